"""Run an expression over columns of numbers through the interpreter."""

from collections.abc import Callable, Sequence

import numpy as np
from k3jit.lowering.dtypes import DTYPES, name_of
from k3jit.lowering.expr import Expr
from k3jit.lowering.interp import run_dispatch
from k3jit.lowering.tile import Builder, Value

LOCAL = 64


def run_columns(build: Callable[..., Value], columns: Sequence[np.ndarray], out: str) -> np.ndarray:
    """Apply `build(builder, *values)` to each row of the columns (flattened); `out` is the element type stored."""
    shape = np.broadcast_shapes(*(np.shape(c) for c in columns))
    flat = [np.ascontiguousarray(np.broadcast_to(c, shape)).ravel() for c in columns]
    size = flat[0].size
    b = Builder()
    params = []
    for number, column in enumerate(flat):
        name = name_of(column.dtype)
        assert name is not None
        params.append(b.param(f"x{number}", name, size, "r"))
    target = b.param("y", out, size, "w")
    lane = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(8)), b.builtin("lane"))
    index = b.op("add", b.op("mul", b.builtin("group_x"), b.i32(LOCAL)), lane)
    with b.branch(b.op("lt", index, b.i32(size))) as branch:
        b.store(target, index, build(b, *[b.load(p, index) for p in params]))
        branch.yield_()
    result = np.zeros(size, DTYPES[out].numpy)
    run_dispatch(b.finish("columns", LOCAL), (-(-size // LOCAL), 1, 1), [[*flat, result]])
    return result.reshape(shape)


def run_function(function: Callable[..., Expr], *columns: np.ndarray) -> np.ndarray:
    """Apply a function of `Expr` whose arguments and result have the type of the columns, f32 or f64."""
    out = name_of(columns[0].dtype)
    assert out is not None
    return run_columns(lambda b, *values: function(*(Expr(b, v) for v in values)).value, columns, out)


def ulp_error(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units in the last place of the exact result; 0 where both are NaN or the same infinity or tiny."""
    exact = np.asarray(exact, np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126))).astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - exact) / spacing
    same = (np.isnan(got) & np.isnan(exact)) | (got == rounded)
    # Results in the subnormal range may be flushed to zero.
    same |= (np.abs(exact) < 2.0**-126) & (np.abs(got) <= 2.0**-126)
    return np.where(
        same,
        np.where(np.isfinite(exact) & np.isfinite(error), np.minimum(error, 0.5), 0.0),
        np.where(np.isnan(error), np.inf, error),
    )
