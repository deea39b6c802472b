"""Mathematical functions and scalar rules on the device: within their bounds, or equal to the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from device_kernels import Array, apply
from k3jit.lowering import scalar
from k3jit.lowering.dtypes import DTYPES
from k3jit.lowering.expr import Expr
from k3jit.lowering.mathlib import ERROR_BOUNDS, FUNCTIONS
from k3jit.lowering.mathlib64 import ERROR_BOUNDS as ERROR_BOUNDS64
from k3jit.lowering.mathlib64 import FUNCTIONS as FUNCTIONS64

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from k3jit.runtime.device import default_device
from scalar_kernels import run_columns, ulp_error
from test_mathlib import REFERENCES
from test_mathlib64 import powers, reference, worst
from test_scalar import numbers, pairs

KEEP = 4001


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_error_bound(name: str) -> None:
    reference, columns = REFERENCES[name]
    x = np.concatenate([c[:: max(1, c.size // KEEP)] for c in columns])
    (got,) = apply(lambda b, v: [FUNCTIONS[name](Expr(b, v)).value], [x], ["f32"])
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    error = ulp_error(got, want)
    at = int(np.argmax(error))
    # Division may be off by 2.5 units on a device.
    assert error[at] <= ERROR_BOUNDS[name] + 2, f"{error[at]:.2f} units at {x[at]!r}: {got[at]!r} not {want[at]!r}"


@pytest.mark.parametrize("name", sorted({*REFERENCES, "pow"}))
def test_error_bound_of_f64(name: str) -> None:
    caps = default_device().caps
    if not (caps.float64 and caps.int64):
        pytest.skip("the device does not compute in f64")
    *columns, want = powers() if name == "pow" else reference(name)
    (got,) = apply(lambda b, *v: [FUNCTIONS64[name](*(Expr(b, x) for x in v)).value], columns, ["f64"])
    error, message = worst(got, want, *columns)
    assert error <= ERROR_BOUNDS64[name] + 2, f"{name}: {message}"  # division as above


def same(got: Array, want: Array, name: str) -> None:
    """Equal bits apart from NaNs and subnormals, which a device may flush."""
    wide_got, wide_want = (a.astype(np.float64) for a in (got, want))
    agree = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
    if got.dtype.kind in "fV":
        limit = 2.0**-126
        agree |= (np.abs(wide_got) < limit) & (np.abs(wide_want) < limit)
    assert agree.all(), (name, wide_got[~agree][:4], wide_want[~agree][:4])


UNARY = ["neg", "abs", "sign", "floor", "ceil", "square", "is_finite", "round", "reduce_precision", "copy"]
BINARY = ["add", "sub", "mul", "max", "min", "rem", "eq", "ne", "lt", "le", "gt", "ge", "nextafter"]
INTEGER_UNARY = ["neg", "sign", "square", "not", "population_count", "clz"]
SHIFTS = ["shift_left", "shift_right_logical", "shift_right_arithmetic"]
INTEGER_BINARY = ["add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", "lt", *SHIFTS]
PARAMS = {"round": {"rounding_method": 0}, "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 4}}
BOOL = {"is_finite", "eq", "ne", "lt", "le", "gt", "ge"}


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_rules_equal_the_interpreter(dtype: str) -> None:
    floating = DTYPES[dtype].kind == "f"
    x = numbers(dtype, 1)
    left, right = pairs(x, numbers(dtype, 2))
    for names, columns in (
        (UNARY if floating else INTEGER_UNARY, [x]),
        (BINARY if floating else INTEGER_BINARY, [left, right]),
    ):
        types = (dtype,) * len(columns)
        outs = ["bool" if name in BOOL else dtype for name in names]

        def build(b, *values, names=names, types=types, outs=outs):
            return [scalar.apply(b, n, values, PARAMS.get(n, {}), types, out) for n, out in zip(names, outs, strict=True)]

        results = apply(build, columns, outs)
        for number, (name, out, got) in enumerate(zip(names, outs, results, strict=True)):
            want = run_columns(lambda b, *values, i=number, build=build: build(b, *values)[i], columns, out)
            same(got, want, f"{name} {dtype}")


@pytest.mark.parametrize("source", list(DTYPES))
def test_conversions_equal_the_interpreter(source: str) -> None:
    x, targets = numbers(source, 3), list(DTYPES)

    def build(b, v):
        return [scalar.apply(b, "convert_element_type", (v,), {}, (source,), target) for target in targets]

    for number, (target, got) in enumerate(zip(targets, apply(build, [x], targets), strict=True)):
        same(got, run_columns(lambda b, v, i=number: build(b, v)[i], [x], target), f"{source} to {target}")
