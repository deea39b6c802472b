"""build_graph as a whole: refusals, sharing, regions, speed; and its shapes against brute force."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_count import call_count
from graph_check import check, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from k3jit.lowering.desugar import build_graph
from k3jit.lowering.errors import UnsupportedDtype, UnsupportedPrimitive
from k3jit.lowering.registry import supported

REQUIRED = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_any",
    "and",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitcast_convert_type",
    "broadcast_in_dim",
    "cbrt",
    "ceil",
    "clamp",
    "concatenate",
    "cond",
    "conv_general_dilated",
    "convert_element_type",
    "copy",
    "cos",
    "cosh",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "custom_jvp_call",
    "custom_vjp_call",
    "device_put",
    "digamma",
    "div",
    "dot_general",
    "dynamic_slice",
    "dynamic_update_slice",
    "empty2",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "gather",
    "ge",
    "gt",
    "integer_pow",
    "iota",
    "iota_2x32_shape",
    "is_finite",
    "jit",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "name",
    "ne",
    "neg",
    "nextafter",
    "or",
    "pad",
    "polygamma",
    "population_count",
    "pow",
    "random_bits",
    "random_fold_in",
    "random_seed",
    "random_split",
    "random_unwrap",
    "random_wrap",
    "reduce",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_precision",
    "reduce_prod",
    "reduce_sum",
    "reduce_window",
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "rem",
    "remat2",
    "reshape",
    "rev",
    "round",
    "rsqrt",
    "scan",
    "scatter",
    "scatter-add",
    "scatter-max",
    "scatter-min",
    "scatter-mul",
    "select_and_gather_add",
    "select_and_scatter_add",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "slice",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "sub",
    "tan",
    "tanh",
    "top_k",
    "transpose",
    "unstack",
    "while",
    "xor",
    "threefry2x32",
]


def test_every_required_primitive_has_a_rule() -> None:
    assert sorted(set(REQUIRED) - supported()) == []


def test_refusal_names_all_primitives_and_the_line() -> None:
    def function(x: jax.Array) -> Any:
        jax.debug.print("{}", x)
        return jnp.linalg.cholesky(x), jnp.linalg.svd(x)

    with pytest.raises(
        UnsupportedPrimitive, match=r"(?s)test_graph_build\.py:\d+ \(function\).*Also unsupported here: .*svd \(1\)"
    ) as error:
        build_graph(jax.make_jaxpr(function)(jnp.ones((3, 3))))
    assert "cholesky" in str(error.value) and "debug" in str(error.value)


def test_refusal_by_a_rule_names_the_form() -> None:
    key = jax.random.key(0, impl="rbg")
    with pytest.raises(NotImplementedError, match="rbg"):
        build_graph(jax.make_jaxpr(lambda k: jax.random.bits(k, (3,)))(key))


def test_wide_dtypes_are_refused_with_their_place() -> None:
    with pytest.raises(UnsupportedDtype, match=r"complex64\[3\].*test_graph_build\.py"):
        build_graph(jax.make_jaxpr(lambda x: x.astype(jnp.complex64))(jnp.ones(3)))


def test_dead_code_is_dropped_and_equal_code_is_shared() -> None:
    def function(x: jax.Array) -> jax.Array:
        jnp.linalg.cholesky(x)
        return jnp.sin(x) + jax.jit(jnp.sin)(x)

    assert ops(build_graph(jax.make_jaxpr(function)(jnp.ones((3, 3))))) == ["input", "map", "map"]


def test_recomputation_is_not_shared_with_the_forward_pass() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)).sum())(x)

    def sines(function: Any) -> int:
        graph = build_graph(jax.make_jaxpr(jax.value_and_grad(function))(jnp.ones(3)))
        return sum(n.op == "map" and n.attr.primitive == "sin" for n in graph.nodes)

    assert sines(lambda x: jnp.sin(jnp.sin(x)).sum()) == 2
    assert sines(loss) == 3


def test_source_lines_reach_the_nodes() -> None:
    graph = build_graph(jax.make_jaxpr(lambda x: jnp.sin(x))(1.0))
    assert "test_graph_build.py:" in graph.outputs[0].source


def test_unused_carries_of_a_loop_are_dropped() -> None:
    graph = build_graph(
        jax.make_jaxpr(lambda x: lax.scan(lambda c, v: ((c[0] + v, c[1] + 1), c), (x[0], 0), x)[0][0])(jnp.ones(9))
    )
    (loop,) = (n for n in graph.nodes if n.op == "loop")
    assert loop.attr.carries == 1


def test_building_takes_linear_time() -> None:
    def program(length: int) -> Any:
        def function(x: jax.Array) -> jax.Array:
            for _ in range(length):
                x = jnp.sin(x) * 1.5
            return x

        return jax.make_jaxpr(function)(1.0)

    small, large = (call_count(build_graph, program(length)) for length in (500, 1000))
    assert large < 2.2 * small


# -- shapes ----------------------------------------------------------------------------------------------------------
def numbers(*shape: int) -> np.ndarray:
    """Distinct small integers, exactly summed and multiplied in f32."""
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 11 - 5).astype(np.float32)


@given(st.data())
def test_pad_and_slice(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    config = []
    for size in shape:
        interior = data.draw(st.integers(0, 2))
        dilated = size + max(0, size - 1) * interior
        low = data.draw(st.integers(-dilated, 3))
        config.append((low, data.draw(st.integers(-(dilated + min(low, 0)), 3)) if dilated + low >= 0 else 0, interior))
    check(lambda x: lax.pad(x, np.float32(9), config), numbers(*shape))
    starts = [data.draw(st.integers(0, n)) for n in shape]
    stops = [data.draw(st.integers(a, n)) for a, n in zip(starts, shape, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    check(lambda x: lax.slice(x, starts, stops, strides), numbers(*shape))


@given(st.data())
def test_reduce_window(data: st.DataObject) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    sizes, strides, base, dilation = ([draw(small) for _ in range(rank)] for _ in range(4))
    padding = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank)]
    x = numbers(*(draw(st.integers(1, 5)) for _ in range(rank)))
    reduced = [(w - 1) * d + 1 for w, d in zip(sizes, dilation, strict=True)]
    dilated = [(n - 1) * b + 1 + lo + hi for n, b, (lo, hi) in zip(x.shape, base, padding, strict=True)]
    if all(r <= n for r, n in zip(reduced, dilated, strict=True)):
        for init, combine in ((0.0, lax.add), (-np.inf, lax.max)):
            check(lambda v, i=init, c=combine: lax.reduce_window(v, i, c, sizes, strides, padding, base, dilation), x)


@settings(max_examples=8)
@given(st.data())
def test_maxpool_gradient(data: st.DataObject) -> None:
    draw = data.draw
    sizes, strides = ([draw(st.integers(1, 3)) for _ in range(2)] for _ in range(2))
    padding = [(draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))) for size in sizes]
    x = np.random.default_rng(draw(st.integers(0, 9))).permutation(30).reshape(5, 6).astype(np.float32)
    check(jax.grad(lambda v: (lax.reduce_window(v, -jnp.inf, lax.max, sizes, strides, padding) ** 2).sum()), x)


@given(st.data())
def test_dot_general(data: st.DataObject) -> None:
    draw = data.draw
    batch, contract, left, right = ([draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 2)))] for _ in range(4))
    count = len(batch) + len(contract)
    order_left = draw(st.permutations(range(count + len(left))))
    order_right = draw(st.permutations(range(count + len(right))))

    def operand(free: list[int], order: list[int]) -> tuple[np.ndarray, list[int]]:
        shape = [*batch, *contract, *free]
        return numbers(*(shape[i] for i in order)), [order.index(i) for i in range(count)]

    lhs, places_left = operand(left, order_left)
    rhs, places_right = operand(right, order_right)
    n = len(batch)
    dims = ((places_left[n:], places_right[n:]), (places_left[:n], places_right[:n]))
    check(lambda a, b: lax.dot_general(a, b, dims), lhs, rhs)


@settings(max_examples=8)
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    draw = data.draw
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 2)
    taps, strides, wide, apart = ([draw(small) for _ in range(rank)] for _ in range(4))
    padding = [(draw(st.integers(-1, 2)), draw(st.integers(0, 2))) for _ in range(rank)]
    features, batches = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    per_feature, per_out, per_batch = draw(small), draw(small), draw(small)
    image = numbers(per_batch * batches, per_feature * features, *(draw(st.integers(3, 5)) for _ in range(rank)))
    kernel = numbers(per_out * features * batches, per_feature, *taps)
    layout = ("NHWC", "HWIO", "NHWC") if rank == 2 else ("NWC", "WIO", "WNC")
    lhs_order = [layout[0].index(c) for c in ("NC" + layout[0].replace("N", "").replace("C", ""))]
    rhs_order = [layout[1].index(c) for c in ("OI" + layout[1].replace("O", "").replace("I", ""))]
    check(
        lambda a, b: lax.conv_general_dilated(
            a, b, strides, padding, wide, apart, layout, feature_group_count=features, batch_group_count=batches
        ),
        image.transpose(np.argsort(lhs_order)),
        kernel.transpose(np.argsort(rhs_order)),
    )


@given(st.data())
def test_gather_and_scatter(data: st.DataObject) -> None:
    """Integer array indexing beside slices, which makes most forms of dimension numbers; out of bounds too."""
    draw = data.draw
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    count = draw(st.integers(0, 3))
    kinds = [draw(st.sampled_from(["array", "all", "new"])) for _ in shape]
    index = tuple(
        np.array(draw(st.lists(st.integers(-6, 6), min_size=count, max_size=count)), np.int32) for k in kinds if k == "array"
    )

    def place(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        source = iter(arrays)
        return tuple(next(source) if k == "array" else slice(None) for k in kinds)

    mode = draw(st.sampled_from(["clip", "fill"]))
    operation = draw(st.sampled_from(["add", "set", "mul", "min", "max"]))
    if operation == "set" or mode == "clip":
        index = tuple(np.arange(count, dtype=np.int32) % 4 for _ in index)
    check(lambda x, i: x.at[place(i)].get(mode=mode), numbers(*shape), index)
    check(lambda x, i: getattr(x.at[place(i)], operation)(np.float32(2), mode=mode), numbers(*shape), index)


@settings(max_examples=8)
@given(st.data())
def test_batched_gather_and_its_gradient(data: st.DataObject) -> None:
    draw = data.draw
    rows, size, count = (draw(st.integers(1, 4)) for _ in range(3))
    index = np.array(draw(st.lists(st.integers(-size, size), min_size=rows * count, max_size=rows * count)), np.int32)
    index = index.reshape(rows, count)
    x = numbers(rows, size, 2)
    check(jax.vmap(lambda row, i: row[i]), x, index)
    check(jax.grad(lambda v, i: (jax.vmap(lambda row, j: row[j])(v, i) ** 2).sum()), x, index)
    check(jax.vmap(lambda row, i: lax.dynamic_slice(row, (i[0], 0), (1, 2))), x, index)
