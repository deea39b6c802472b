"""Scatter in the interpreter, against jax.lax."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from k3jit.lowering.dtypes import name_of
from k3jit.lowering.graph import GraphBuilder, Scatter
from k3jit.lowering.kernels.scatter import build_scatter
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from kernel_runs import WIDTH_NAMES, WIDTHS, group_of, run_calls

FUNCTIONS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}
MODES = {
    "clip": lax.GatherScatterMode.CLIP,
    "drop": lax.GatherScatterMode.FILL_OR_DROP,
    "inbounds": lax.GatherScatterMode.PROMISE_IN_BOUNDS,
}
widths = pytest.mark.parametrize("caps", WIDTHS, ids=WIDTH_NAMES)

# operand, indices, updates, (window_dims, inserted, scatter_map, operand_batch, indices_batch)
CASES = {
    "rows": ((9, 13), (7, 1), (7, 13), ((1,), (0,), (0,), (), ())),
    "histogram": ((50,), (40, 1), (40,), ((), (0,), (0,), (), ())),
    "points": ((6, 7), (20, 2), (20,), ((), (0, 1), (1, 0), (), ())),
    "columns": ((5, 11), (3, 2, 1), (5, 3, 2), ((0,), (1,), (1,), (), ())),
    "windows": ((8, 9), (4, 2), (4, 3, 2), ((1, 2), (), (0, 1), (), ())),
    "long window": ((20, 3), (3, 1), (5, 3, 3), ((0, 2), (), (0,), (), ())),
    "batch": ((3, 8, 2), (3, 5, 1), (3, 5, 2), ((2,), (1,), (1,), (0,), (0,))),
    "short window": ((6, 10), (4, 1), (4, 7), ((1,), (0,), (0,), (), ())),
    "one": ((300, 4), (1,), (4,), ((0,), (0,), (0,), (), ())),
}


def check(caps: DeviceCaps, case: str, kind: str, mode: str, dtype: type, rng: np.random.Generator) -> None:
    operand_shape, indices_shape, updates_shape, dims = CASES[case]
    name = name_of(dtype)
    assert name is not None
    g = GraphBuilder()
    x, i, u = g.input(operand_shape, name), g.input(indices_shape, "i32"), g.input(updates_shape, name)
    node = g.node("scatter", (x, i, u), operand_shape, name, Scatter(*dims, kind, mode))
    windowed = [d for d in range(len(operand_shape)) if d not in dims[1] and d not in dims[3]]
    window = dict(zip(windowed, (updates_shape[d] for d in dims[0]), strict=True))
    tops = [operand_shape[d] - window.get(d, 1) for d in dims[2]]
    spread = 0 if mode == "inbounds" else 3
    indices = np.stack([rng.integers(-spread, top + 1 + spread, indices_shape[:-1]) for top in tops], -1).astype(np.int32)
    if mode == "drop" and case == "points":
        indices[0] = [2**31 - 1, -(2**31)]
    make = (lambda s: rng.integers(1, 6, s)) if np.dtype(dtype).kind in "iu" else (lambda s: rng.standard_normal(s))
    values = {x: make(operand_shape).astype(dtype), i: indices, u: make(updates_shape).astype(dtype)}
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=dims[0],
        inserted_window_dims=dims[1],
        scatter_dims_to_operand_dims=dims[2],
        operand_batching_dims=dims[3],
        scatter_indices_batching_dims=dims[4],
    )
    expected = FUNCTIONS[kind](jnp.asarray(values[x]), indices, jnp.asarray(values[u]), numbers, mode=MODES[mode])
    call = build_scatter(group_of("scatter", [node], [x, i, u], node), caps)
    found = run_calls(call, values, caps)[node]
    if np.dtype(dtype) == ml_dtypes.bfloat16:  # rounded at every step, in the same order
        np.testing.assert_array_equal(found, np.asarray(expected))
    else:
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_dimensions_and_modes(case: str, mode: str, rng: np.random.Generator) -> None:
    for kind in ("add", "set"):
        if kind == "add" or case != "histogram":
            check(NULL_CAPS, case, kind, mode, np.float32, rng)


@widths
@pytest.mark.parametrize("case", ["rows", "histogram", "windows"])
def test_widths(caps: DeviceCaps, case: str, rng: np.random.Generator) -> None:
    check(caps, case, "add", "drop", np.float32, rng)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_kinds(kind: str, dtype: type, rng: np.random.Generator) -> None:
    check(NULL_CAPS, "rows", kind, "drop", dtype, rng)


def test_embedding_gradient_from_nothing(rng: np.random.Generator) -> None:
    """Zeros as an operand cost no read, and computed updates are evaluated where they land."""
    g = GraphBuilder()
    ids, grads = g.input((30,), "i32"), g.input((30, 10), "f32")
    arguments = g.full((12, 10), 0.0, "f32"), g.reshape(ids, (30, 1)), g.map("neg", grads)
    node = g.node("scatter", arguments, (12, 10), "f32", Scatter((1,), (0,), (0,), (), (), "add", "drop"))
    values = {ids: rng.integers(-12, 12, 30).astype(np.int32), grads: rng.standard_normal((30, 10), np.float32)}
    call = build_scatter(group_of("scatter", [node], [ids, grads], node), NULL_CAPS)
    assert set(call.reads) == {ids, grads} and call.writes == (node,)
    kept = values[ids] >= 0
    expected = np.zeros((12, 10), np.float32)
    np.add.at(expected, values[ids][kept], -values[grads][kept])
    np.testing.assert_allclose(run_calls(call, values, NULL_CAPS)[node], expected, rtol=1e-6, atol=1e-6)


def test_operand_may_be_updated_in_place(rng: np.random.Generator) -> None:
    g = GraphBuilder()
    x, i, u = g.input((300, 4), "f32"), g.input((2, 1), "i32"), g.input((2, 4), "f32")
    node = g.node("scatter", (x, i, u), x.shape, "f32", Scatter((1,), (0,), (0,), (), (), "set", "drop"))
    call = build_scatter(group_of("scatter", [node], [x, i, u], node), NULL_CAPS)
    assert (x, node) in call.inplace


def test_later_update_wins() -> None:
    g = GraphBuilder()
    x, i, u = g.input((4,), "i32"), g.input((3, 1), "i32"), g.input((3,), "i32")
    node = g.node("scatter", (x, i, u), x.shape, "i32", Scatter((), (0,), (0,), (), (), "set", "drop"))
    values = {x: np.zeros(4, np.int32), i: np.array([[1], [1], [3]], np.int32), u: np.array([7, 8, 9], np.int32)}
    found = run_calls(build_scatter(group_of("scatter", [node], [x, i, u], node), NULL_CAPS), values, NULL_CAPS)[node]
    np.testing.assert_array_equal(found, [0, 8, 0, 9])


def test_against_grad_of_indexing(rng: np.random.Generator) -> None:
    """What the gradient of table[ids] lowers to."""
    table, ids = rng.standard_normal((6, 5), np.float32), rng.integers(0, 6, (3, 4)).astype(np.int32)
    expected = jax.grad(lambda t: jnp.sum(jnp.sin(t[ids])))(table)
    g = GraphBuilder()
    i, u = g.input((3, 4, 1), "i32"), g.input((3, 4, 5), "f32")
    arguments = g.full((6, 5), 0.0, "f32"), i, u
    node = g.node("scatter", arguments, (6, 5), "f32", Scatter((2,), (0,), (0,), (), (), "add", "clip"))
    values = {i: ids[..., None], u: np.cos(table[ids])}
    found = run_calls(build_scatter(group_of("scatter", [node], [i, u], node), NULL_CAPS), values, NULL_CAPS)[node]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_what_updates_read_late_does_not_share_memory_with_the_result(rng: np.random.Generator) -> None:
    """The copy of the operand is stored before updates are computed: an array they read must still be there."""
    g = GraphBuilder()
    x, i, b = g.input((1,), "f32"), g.input((2, 1), "i32"), g.input((1,), "f32")
    dims = ((), (0,), (0,), (), ())
    node = g.node("scatter", (x, i, g.broadcast(b, (2,), (0,))), (1,), "f32", Scatter(*dims, "add", "drop"))
    call = build_scatter(group_of("scatter", [node], [x, i, b], node), NULL_CAPS)
    assert (x, node) in call.inplace and (b, node) not in call.inplace
    again = g.node("scatter", (x, i, g.broadcast(x, (2,), (0,))), (1,), "f32", Scatter(*dims, "add", "drop"))
    call = build_scatter(group_of("scatter", [again], [x, i], again), NULL_CAPS)
    assert not call.inplace
