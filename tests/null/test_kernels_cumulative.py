"""Running folds in the interpreter, against jax.lax."""

from dataclasses import replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from k3jit.lowering.dtypes import name_of
from k3jit.lowering.graph import Cumulative, GraphBuilder
from k3jit.lowering.kernels.cumulative import build_cumulative
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from kernel_runs import WIDTH_NAMES, WIDTHS, group_of, run_calls

FUNCTIONS = {"sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin, "logsumexp": lax.cumlogsumexp}
SHAPES = [((3, 100), 1), ((70, 5), 1), ((100, 3), 0), ((2, 65, 2), 1), ((1,), 0), ((257,), 0), ((33, 90), 0)]


def check(caps: DeviceCaps, kind: str, x: np.ndarray, axis: int, reverse: bool, rtol: float = 2e-5) -> np.ndarray:
    name = name_of(x.dtype)
    assert name is not None
    g = GraphBuilder()
    a = g.input(x.shape, name)
    node = g.node("cumulative", (a,), x.shape, name, Cumulative(kind, axis, reverse))
    call = build_cumulative(group_of("cumulative", [node], [a], node), caps)
    found = run_calls(call, {a: x}, caps)[node]
    expected = np.asarray(FUNCTIONS[kind](jnp.asarray(x), axis, reverse))
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol)
    return found


@pytest.mark.parametrize("caps", WIDTHS, ids=WIDTH_NAMES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_shapes(caps: DeviceCaps, shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> None:
    for reverse in (False, True):
        check(caps, "sum", rng.standard_normal(shape, np.float32), axis, reverse)


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 100), 1), ((80, 6), 1)])
def test_kinds(kind: str, shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> None:
    for reverse in (False, True):
        check(NULL_CAPS, kind, rng.uniform(0.5, 1.5, shape).astype(np.float32), axis, reverse)
        if kind != "logsumexp":
            check(NULL_CAPS, kind, rng.integers(-3, 4, shape).astype(np.int32), axis, reverse)


@pytest.mark.parametrize("kind", ["max", "min", "sum"])
@pytest.mark.parametrize("shape", [(2, 50), (70, 9)])
def test_nan_stays(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape, np.float32)
    x[1, 4] = np.nan
    found = check(NULL_CAPS, kind, x, 1, False)
    assert np.isnan(found[1, 4:]).all() and not np.isnan(found[0]).any()


@pytest.mark.parametrize("shape", [(2, 50), (70, 9)])
def test_logsumexp_of_infinities_and_large_values(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape, np.float32) * 100
    x[0, :3], x[1, :2], x[1, 5] = -np.inf, 1000.0, np.inf
    check(NULL_CAPS, "logsumexp", x, 1, False)


def test_bf16_sums_in_f32(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 40)).astype(ml_dtypes.bfloat16)
    g = GraphBuilder()
    a = g.input(x.shape, "bf16")
    node = g.node("cumulative", (a,), x.shape, "bf16", Cumulative("sum", 1, False))
    found = run_calls(build_cumulative(group_of("cumulative", [node], [a], node), NULL_CAPS), {a: x}, NULL_CAPS)[node]
    exact = np.cumsum(x.astype(np.float64), 1)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0**-8, atol=1e-4)


def test_fused_around(rng: np.random.Generator) -> None:
    """An elementwise prologue and epilogue, and more rows than workgroups along x."""
    caps = replace(NULL_CAPS, max_groups=(8, 8, 8))
    x = rng.standard_normal((33, 2, 90), np.float32)
    for axis in (0, 2):
        g = GraphBuilder()
        a = g.input(x.shape, "f32")
        node = g.node("cumulative", (g.map("neg", a),), x.shape, "f32", Cumulative("sum", axis, False))
        out = g.map("mul", node, a)
        call = build_cumulative(group_of("cumulative", [out], [a], node), caps)
        np.testing.assert_allclose(run_calls(call, {a: x}, caps)[out], np.cumsum(-x, axis) * x, rtol=1e-4, atol=1e-4)
