"""Contractions in the interpreter: every schedule, every tail, fused prologues and epilogues."""

from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
from k3jit.lowering.graph import Dot, GraphBuilder, Node
from k3jit.lowering.kernels.matmul import Schedule, build_dot, build_scheduled, choose, sizes
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from kernel_runs import WIDTH_NAMES, WIDTHS, group_of, run_calls

BATCHED = Dot((2,), (1,), (0,), (0,))
SCHEDULES = [
    Schedule("lane"),
    Schedule("row"),
    Schedule("tile", 8, 4),
    Schedule("tile", 3, 2, swap=True),
    Schedule("tile", 2, 1, subgroups=2),
    Schedule("tile", 1, 4, swap=True),
]
widths = pytest.mark.parametrize("caps", WIDTHS, ids=WIDTH_NAMES)


@widths
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}{s.rows}x{s.columns}{'s' * s.swap}")
@pytest.mark.parametrize("shape", [(1, 16, 64, 16), (2, 5, 37, 11), (1, 1, 1, 1), (1, 7, 3, 40), (3, 1, 19, 9)])
def test_every_schedule_and_tail(
    caps: DeviceCaps, schedule: Schedule, shape: tuple[int, int, int, int], rng: np.random.Generator
) -> None:
    batch, m, n, k = shape
    g = GraphBuilder()
    x, y, r = g.input((batch, m, k), "f32"), g.input((batch, k, n), "f32"), g.input((batch, n), "f32")
    dot = g.dot(x, y, BATCHED, "f32")
    out = g.reshape(g.map("add", dot, g.broadcast(r, dot.shape, (0, 2))), (batch * m * n,))
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y, r)}
    values[x][0, 0, 0] = np.inf  # must not reach other rows through surplus lanes
    values[y][0, -1, -1] = np.nan
    call = build_scheduled(group_of("dot", [out, dot], [x, y, r], dot), caps, schedule)
    written = run_calls(call, values, caps)
    with np.errstate(invalid="ignore"):
        expected = values[x] @ values[y]
    np.testing.assert_allclose(written[dot], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(written[out].reshape(dot.shape), expected + values[r][:, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [5, 64, 203])
def test_a_tile_sums_alike_on_every_device(depth: int, rng: np.random.Generator) -> None:
    """In blocks of eight products, however wide a subgroup and however long a turn, so that no device is less exact."""
    g = GraphBuilder()
    x, y = g.input((1, 9, depth), "f32"), g.input((1, depth, 40), "f32")
    dot = g.dot(x, y, BATCHED, "f32")
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y)}
    results = []
    for caps in (*WIDTHS, replace(NULL_CAPS, compact=True)):
        call = build_scheduled(group_of("dot", [dot], [x, y], dot), caps, Schedule("tile", 2, 1))
        results.append(run_calls(call, values, caps)[dot])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@widths
@pytest.mark.parametrize("dims", [((0,), (1,)), ((1,), (0,)), ((0, 2), (1, 3))])
def test_general_dimensions(caps: DeviceCaps, dims: tuple, rng: np.random.Generator) -> None:
    """Several batch, free and contracted dimensions anywhere, against jax."""
    lhs_shape, rhs_shape = (2, 3, 5, 4), (3, 2, 6, 5)
    contract = ((0, 2), (1, 3)) if len(dims[0]) == 2 else ((2,), (3,))
    batch = ((1,), (0,)) if len(dims[0]) == 2 else ((1, 0), (0, 1)) if dims[0] == (1,) else ((0,), (1,))
    g = GraphBuilder()
    x, y = g.input(lhs_shape, "f32"), g.input(rhs_shape, "f32")
    dot = g.dot(x, y, Dot(contract[0], contract[1], batch[0], batch[1]), "f32")
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y)}
    expected = np.asarray(jax.lax.dot_general(values[x], values[y], (contract, batch)))
    assert dot.shape == expected.shape
    for schedule in (choose(*sizes(dot), caps), Schedule("tile", 4, 2)):
        written = run_calls(build_scheduled(group_of("dot", [dot], [x, y], dot), caps, schedule), values, caps)
        np.testing.assert_allclose(written[dot], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("left", "right", "result"), [("bf16", "f32", "f32"), ("bf16", "bf16", "bf16"), ("f16", "f16", "f32")])
def test_narrow_floats_sum_in_f32_and_round_once(left: str, right: str, result: str, rng: np.random.Generator) -> None:
    numpy_of = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
    g = GraphBuilder()
    x, y = g.input((9, 33), left), g.input((33, 17), right)
    dot = g.dot(x, y, Dot((1,), (0,), (), ()), result)
    values = {
        x: rng.standard_normal(x.shape).astype(numpy_of[left]),
        y: rng.standard_normal(y.shape).astype(numpy_of[right]),
    }
    exact = values[x].astype(np.float64) @ values[y].astype(np.float64)
    call = build_scheduled(group_of("dot", [dot], [x, y], dot), NULL_CAPS, Schedule("tile", 4, 2))
    found = run_calls(call, values, NULL_CAPS)[dot].astype(np.float64)
    limit = 1e-6 * 33 + (2.0**-8 if result == "bf16" else 0)
    assert np.max(np.abs(found - exact) / np.maximum(np.abs(exact), 1)) <= limit


@pytest.mark.parametrize("dtype", ["i32", "u8", "bool"])
def test_integers_and_bool(dtype: str, rng: np.random.Generator) -> None:
    g = GraphBuilder()
    x, y = g.input((5, 12), dtype), g.input((12, 20), dtype)
    dot = g.dot(x, y, Dot((1,), (0,), (), ()), dtype)
    kind = {"i32": np.int32, "u8": np.uint8, "bool": np.bool_}[dtype]
    values = {v: rng.integers(0, 2 if dtype == "bool" else 100, v.shape).astype(kind) for v in (x, y)}
    wide = values[x].astype(np.int64) @ values[y].astype(np.int64)
    expected = wide > 0 if dtype == "bool" else wide.astype(kind)
    for schedule in (Schedule("tile", 4, 2), Schedule("row"), Schedule("lane")):
        written = run_calls(build_scheduled(group_of("dot", [dot], [x, y], dot), NULL_CAPS, schedule), values, NULL_CAPS)
        np.testing.assert_array_equal(written[dot], expected)


def test_prologue_and_transposed_epilogue_views(rng: np.random.Generator) -> None:
    """A masked, transposed operand, and an output whose rows are merged dimensions of the dot."""
    g = GraphBuilder()
    x, y, bias = g.input((12, 4, 6), "f32"), g.input((12, 8), "f32"), g.input((4, 6, 8), "f32")
    kept = g.map("mul", x, g.convert(g.iota((12, 4, 6), 1, "i32"), "f32"))
    dot = g.dot(kept, g.map("neg", y), Dot((0,), (0,), (), ()), "f32")
    out = g.reshape(g.map("add", dot, bias), (24, 8))
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y, bias)}
    scaled = values[x] * np.arange(4, dtype=np.float32)[None, :, None]
    expected = (np.einsum("kab,kn->abn", scaled, -values[y]) + values[bias]).reshape(24, 8)
    for schedule in (Schedule("tile", 8, 1), Schedule("tile", 4, 2, swap=True)):
        call = build_scheduled(group_of("dot", [out], [x, y, bias], dot), NULL_CAPS, schedule)
        assert call.kernel.operations.count("dot") == 1
        np.testing.assert_allclose(run_calls(call, values, NULL_CAPS)[out], expected, rtol=1e-4, atol=1e-4)


def test_more_tiles_than_workgroups_of_a_dimension(rng: np.random.Generator) -> None:
    caps = replace(NULL_CAPS, max_groups=(4, 4, 4))
    g = GraphBuilder()
    x, y, r = g.input((9, 5), "f32"), g.input((5, 9), "f32"), g.input((9, 9), "f32")
    dot = g.dot(x, y, Dot((1,), (0,), (), ()), "f32")
    out = g.map("add", dot, r)
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y, r)}
    call = build_scheduled(group_of("dot", [out], [x, y, r], dot), caps, Schedule("tile", 2, 1))
    assert max(call.groups) <= 4
    np.testing.assert_allclose(run_calls(call, values, caps)[out], values[x] @ values[y] + values[r], rtol=1e-5, atol=1e-5)


@widths
def test_chosen_schedules_fit(caps: DeviceCaps) -> None:
    assert choose(1, 1, 1, 1, caps).kind == "lane"
    assert choose(1, 1, 1, 4096, caps).kind == "row"
    square = choose(1, 512, 512, 512, caps)
    assert square.kind == "tile" and 1 < square.rows * square.columns <= 64
    for batch, m, n, k in ((1, 1000, 4, 64), (1, 4, 1000, 64)):
        chosen = choose(batch, m, n, k, caps)
        if chosen.kind == "tile" and caps.kind == "cpu" and caps.subgroup_size == 8:
            assert chosen.swap == (n < m), "lanes run along the longer side"


def test_build_dot_runs_the_choice(rng: np.random.Generator) -> None:
    g = GraphBuilder()
    x, y = g.input((65, 30), "f32"), g.input((30, 65), "f32")
    dot: Node = g.dot(x, y, Dot((1,), (0,), (), ()), "f32")
    values = {v: rng.standard_normal(v.shape, np.float32) for v in (x, y)}
    written = run_calls(build_dot(group_of("dot", [dot], [x, y], dot), NULL_CAPS), values, NULL_CAPS)
    np.testing.assert_allclose(written[dot], values[x] @ values[y], rtol=1e-4, atol=1e-4)
