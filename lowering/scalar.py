"""Scalar rules: what an elementwise primitive does to one element, as tile operations.

A rule works on values of the compute types. Narrow element types are dealt with here and nowhere else: `apply` runs
the rule and rounds or wraps its result to the element type, so fusing equations changes no result.
The rules themselves are in `rules/elementwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .dtypes import DTYPES
from .tile import Builder, Value

Build = Callable[[Builder, tuple[Value, ...], dict[str, Any], tuple[str, ...], str], Value]


@dataclass(frozen=True)
class ScalarRule:
    """How to compute one element of an elementwise primitive.

    Attributes:
        build: (builder, arguments, parameters, element types of the arguments, element type of the result) -> value of
            the result's compute type, not yet narrowed.
        exact: the result is representable whenever the arguments have the result's element type, so it needs no
            rounding or wrapping.
        example: element types of arguments, and of the result, on which `ops` is counted.
        params: parameters for the same purpose.
    """

    name: str
    build: Build
    exact: bool
    example: tuple[tuple[str, ...], str]
    params: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def ops(self) -> int:
        """Instructions of the rule, constants not counted."""
        inputs, output = self.example
        b = Builder()
        index = b.i32(0)
        args = tuple(b.load(b.param(f"x{i}", dtype, 1, "r"), index) for i, dtype in enumerate(inputs))
        before = _work(b)
        apply(b, self.name, args, self.params, inputs, output)
        return _work(b) - before


scalar_rules: dict[str, ScalarRule] = {}


def scalar_rule(
    *names: str,
    inputs: tuple[str, ...] = ("f32",),
    output: str = "f32",
    exact: bool = False,
    params: dict[str, Any] | None = None,
) -> Callable[[Build], Build]:
    """Register a rule for the primitives `names`; see `ScalarRule` for the rest."""

    def register(build: Build) -> Build:
        for name in names:
            scalar_rules[name] = ScalarRule(name, build, exact, (inputs, output), params or {})
        return build

    return register


def lookup(name: str) -> ScalarRule:
    """The rule of a primitive.

    Raises:
        KeyError: there is none.
    """
    if name not in scalar_rules:
        from .rules import elementwise  # noqa: F401  (importing it registers the rules)
    if name not in scalar_rules:
        raise KeyError(f"primitive {name!r} has no scalar rule; add one to lowering/rules/elementwise.py")
    return scalar_rules[name]


def cost(name: str) -> int:
    """Approximate number of instructions of a primitive."""
    return lookup(name).ops


def apply(
    b: Builder, name: str, args: tuple[Value, ...], params: dict[str, Any], in_dtypes: tuple[str, ...], out_dtype: str
) -> Value:
    """One element of primitive `name`: a value of the compute type of `out_dtype`, representable in `out_dtype`.

    Args:
        args: values of the compute types of `in_dtypes` (element type names).
        params: the primitive's parameters, as in the jaxpr.
    """
    rule = lookup(name)
    value = rule.build(b, args, params, in_dtypes, out_dtype)
    compute = DTYPES[out_dtype].compute
    if value.dtype != compute:
        raise TypeError(f"scalar rule {name!r} gave {value.dtype} for {in_dtypes} -> {out_dtype}, expected {compute}")
    if rule.exact and all(dtype in (out_dtype, "bool") for dtype in in_dtypes):
        return value
    return narrow(b, value, out_dtype)


def narrow(b: Builder, value: Value, dtype: str) -> Value:
    """`value`, of the compute type of `dtype`, rounded (f16, bf16) or wrapped (8 and 16 bits) to `dtype`."""
    if dtype in ("f16", "bf16"):
        return b.op("round_to", value, attr=dtype)
    info = DTYPES[dtype]
    if info.bits in (8, 16):
        return wrap(b, value, info.bits)
    return value


def wrap(b: Builder, value: Value, bits: int) -> Value:
    """The low `bits` of an integer: sign-extended in an i32, zero-extended in a u32."""
    if value.dtype == "u32":
        return b.op("and", value, b.const((1 << bits) - 1, "u32"))
    shift = b.i32(32 - bits)
    return b.op("shr", b.op("shl", value, shift), shift)


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}
_COMBINE_BOOL = {"sum": "or", "prod": "and", "max": "or", "min": "and", "and": "and", "or": "or", "xor": "xor"}


def combine(b: Builder, kind: str, first: Value, second: Value, dtype: str) -> Value:
    """Fold two accumulators of a reduction: kind is sum prod max min and or xor.

    Works on the compute type: narrow the end result with `narrow`, which gives what narrowing each step would for
    integers, and a better rounded sum for floats. A NaN wins in max and min.
    """
    return b.op((_COMBINE_BOOL if dtype == "bool" else _COMBINE)[kind], first, second)


def identity(kind: str, dtype: str) -> float | int | bool:
    """The neutral element of a reduction over element type `dtype`."""
    info = DTYPES[dtype]
    if kind in ("sum", "or", "xor"):
        neutral: float | int = 0
    elif kind == "prod":
        neutral = 1
    elif kind == "and":
        neutral = -1 if info.kind == "i" else (1 << info.bits) - 1
    elif kind in ("max", "min"):
        if info.kind == "f":
            neutral = float("-inf") if kind == "max" else float("inf")
        elif info.kind == "b":
            neutral = kind == "min"
        else:
            limits = np.iinfo(info.numpy)
            neutral = int(limits.min if kind == "max" else limits.max)
    else:
        raise ValueError(f"no reduction {kind!r}: it is one of {sorted(_COMBINE)}")
    return {"f": float, "b": bool}.get(info.kind, int)(neutral)


def _work(b: Builder) -> int:
    """Instructions emitted so far, without constants."""
    return b.instructions - sum(1 for value in b.root.values if value.op == "const")
