"""Each rule from JAX primitives to the graph, against jax.jit on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_check import check
from jax import lax
from jax.ad_checkpoint import checkpoint_name

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 5)).astype(np.float32)
Y = RANDOM.normal(size=(5, 4)).astype(np.float32)
SPECIAL = np.concatenate([X.ravel(), [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, np.inf, 0.0]]).astype(np.float32)
INTEGERS = RANDOM.integers(-100, 100, (4, 7)).astype(np.int32)
EMPTY = np.zeros((0, 3), np.float32)
KEY = jax.random.key(7)
LONG = np.tile(SPECIAL, 4)


def affine(a: Any, b: Any) -> Any:
    """(1 + a)(1 + b) - 1: associative, and no single primitive."""
    return a * b + a + b


def maxpool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (2, 1), "SAME")


EXACT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "broadcast": (lambda x: (x[:, None, :] + jnp.zeros((3, 2, 5)), jnp.broadcast_to(x[:1], (4, 5))), (X,)),
    "reshape": (lambda x: (x.reshape(5, 3), lax.reshape(x, (15,), (1, 0)), x.T), (X,)),
    "squeeze": (lambda x: (jnp.squeeze(x[:1]), lax.expand_dims(x, (0, 3))), (X,)),
    "slice": (lambda x: (x[::-1], x[1:, ::2], x[:0], x[2, 3]), (X,)),
    "pad": (lambda x: (jnp.pad(x, ((1, 2), (0, 3))), lax.pad(x, 2.0, ((-1, 3, 2), (2, -4, 0)))), (X,)),
    "pad_empty": (lambda x: lax.pad(x, 1.0, ((2, 1, 1), (0, 0, 0))), (EMPTY,)),
    "concatenate": (lambda x: jnp.concatenate([x, x[:0], x[:1]]), (X,)),
    "split_stack": (lambda x: (jnp.split(x, (1, 4), 1), jnp.stack([x, x], 1), jnp.unstack(x)), (X,)),
    "tile": (lambda x: (jnp.tile(x, (2, 3)), jnp.tile(x, (2, 1, 1)), jnp.tile(x[:0], (2, 1))), (X,)),
    "iota": (lambda: (jnp.arange(7), lax.broadcasted_iota(jnp.bfloat16, (2, 3), 1)), ()),
    "empty": (lambda: jnp.empty((2, 3), jnp.int8), ()),
    "clamp": (lambda x: (lax.clamp(-0.5, x, 0.5), jnp.clip(x, x - 1, 2)), (X,)),
    "select": (lambda x: (jnp.where(x > 0, x, 2), lax.select_n(jnp.int32(2), x, x + 1, x + 2)), (X,)),
    "bitcast_narrow": (lambda x: (lax.bitcast_convert_type(x, jnp.uint8), lax.bitcast_convert_type(x, jnp.bfloat16)), (X,)),
    "bitcast_wide": (lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int16), jnp.float32), (X,)),
    "bitcast_16": (lambda x: lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.int8), (X,)),
    "reduce_kinds": (
        lambda x: (x.sum(0), x.max(), x.min(1), (x > 3).all(), (x > 3).any(0), lax.reduce_xor(x, (1,))),
        (INTEGERS,),
    ),
    "reduce_empty": (lambda x: (x.sum(0), x.prod(0), x.max(0, initial=-1), x.sum(1)), (EMPTY,)),
    "reduce_init": (lambda x: (lax.reduce(x, 5, lax.add, (0,)), lax.reduce(x, 0, lax.bitwise_or, (0, 1))), (INTEGERS,)),
    "reduce_custom": (lambda x: lax.reduce(x, 0, affine, (1,)), (INTEGERS,)),
    "reduce_pair": (
        lambda x: lax.reduce((x, x * 2), (0, 7), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (0,)),
        (INTEGERS,),
    ),
    "argmax": (lambda x: (jnp.argmax(x), jnp.argmin(x), lax.argmax(x, 0, jnp.uint8)), (SPECIAL,)),
    "argmax_one": (lambda x: (jnp.argmax(x[:1], 0), jnp.argmin(x, 1)), (INTEGERS,)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 0, reverse=True), lax.cumprod(x, 1), lax.cummin(x)), (INTEGERS,)),
    "window": (lambda x: (maxpool(x), lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 2), "VALID")), (X,)),
    "window_dilated": (
        lambda x: lax.reduce_window(x, 0, lax.add, (2, 2), (1, 2), ((1, 2), (0, 1)), (2, 1), (1, 3)),
        (INTEGERS,),
    ),
    "window_init": (lambda x: lax.reduce_window(x, 3, lax.add, (2, 2), (1, 1), "SAME"), (INTEGERS,)),
    "window_custom": (lambda x: lax.reduce_window(x, 0, affine, (2, 2), (1, 1), "SAME"), (INTEGERS,)),
    "maxpool_grad": (jax.grad(lambda x: (maxpool(x) ** 2).sum()), (X,)),
    "maxpool_jvp": (lambda x: jax.jvp(maxpool, (x,), (x + 1,)), (X,)),
    "dot_integers": (lambda x: x @ x.T, (INTEGERS,)),
    "dot_narrow": (
        lambda x: lax.dot(x.astype(jnp.int8), x.T.astype(jnp.int8), preferred_element_type=jnp.int32),
        (INTEGERS,),
    ),
    "dot_outer": (lambda x: (jnp.outer(x[0], x[1]), jnp.einsum("bi,bj->bij", x, x), x[:, :0] @ x[:0]), (INTEGERS,)),
    "dot_bool": (lambda x: lax.dot(x > 0, (x > 0).T, preferred_element_type=jnp.int32), (INTEGERS,)),
    "conv_depthwise": (
        lambda x: lax.conv_general_dilated(x[None], x[:, None, :4], (1,), [(3, 0)], feature_group_count=4),
        (INTEGERS.astype(np.float32),),
    ),
    "dynamic_slice": (lambda x, i: (lax.dynamic_slice(x, (i, -i), (2, 3)), lax.dynamic_slice(x, (i, 2), (3, 1))), (X, 9)),
    "dynamic_static": (lambda x: (lax.dynamic_slice(x, (-2, 1), (2, 3)), x.at[1].set(0)), (X,)),
    "dynamic_unsigned": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), (X, np.uint32(2**32 - 1))),
    "dynamic_update": (lambda x, i: lax.dynamic_update_slice(x, x[:2, :2] * 2, (i, i)), (X, 4)),
    "gather_modes": (
        lambda x, i: (x.at[i].get(mode="clip"), x.at[i].get(mode="fill"), x[i % 3, i % 5]),
        (X, np.array([2, 7, -9, 0], np.int32)),
    ),
    "gather_fill": (
        lambda x, i: [v.at[i].get(mode="fill") for v in (x, x > 0, x.astype(jnp.uint8))],
        (INTEGERS, np.array([2, 7, -9], np.int32)),
    ),
    "gather_fill_value": (lambda x, i: x.at[i].get(mode="fill", fill_value=3), (INTEGERS, np.array([2, -9], np.int32))),
    "gather_small_index": (
        lambda x, i: (x.at[i].get(mode="clip"), x.at[i.astype(jnp.int8)].get()),
        (X, np.array([2, 200], np.uint8)),
    ),
    "gather_unsigned": (lambda x, i: x.at[i].get(mode="clip"), (X, np.array([2, 2**32 - 2], np.uint32))),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 1), (INTEGERS, np.array([[3], [0], [6], [2]], np.int32))),
    "scatter_kinds": (
        lambda x, i: [getattr(x.at[i], op)(3) for op in ("set", "add", "subtract", "multiply", "min", "max")],
        (INTEGERS, np.array([1, 3, 1, -9], np.int32)),
    ),
    "scatter_clip": (lambda x, i: x.at[i].add(3, mode="clip"), (INTEGERS, np.array([1, 30, -9], np.int32))),
    "scatter_apply": (lambda x, i: (x.at[i].apply(lambda v: v * 3), x.at[i[:2]].apply(jnp.negative, unique_indices=True)),
                      (INTEGERS, np.array([1, 3, 1, 9], np.int32))),
    "sort": (lambda x: (jnp.sort(x), lax.sort((x, jnp.arange(92)), num_keys=1), jnp.argsort(x[:5])), (LONG,)),
    "sort_keys": (lambda x: lax.sort((x // 50, -x, x.astype(jnp.float32)), dimension=1, num_keys=2), (INTEGERS,)),
    "sort_dim": (lambda x: (jnp.sort(x, 0), jnp.sort(x[:1], 0), jnp.sort(x[:0], 0)), (INTEGERS,)),
    "top_k": (lambda x: (lax.top_k(x, 1), lax.top_k(x, 23), lax.top_k(x, 0)), (SPECIAL,)),
    "approx_top_k": (lambda x: (lax.approx_min_k(x, 2, recall_target=1.0), lax.approx_max_k(x, 2, recall_target=1.0)), (X,)),
    "top_k_bf16": (lambda x: lax.top_k(x.astype(jnp.bfloat16), 9), (SPECIAL,)),
    "top_k_rows": (lambda x: (lax.top_k(x, 3), lax.top_k(x.astype(jnp.uint8), 2), lax.top_k(x > 0, 2)), (INTEGERS,)),
    "top_k_long": (lambda x: lax.top_k(x, 20), (LONG,)),
    "cond": (lambda x: [lax.cond(p, lambda: x, lambda: x + 1) for p in (x[0, 0] > 0, x[0, 0] <= 0)], (X,)),
    "switch": (lambda x, i: lax.switch(i, [lambda: x, lambda: x + 1, lambda: x + 2]), (X, 7)),
    "cond_of_keys": (lambda k, p: lax.cond(p, lambda: jax.random.split(k), lambda: jax.random.split(k)[::-1]), (KEY, True)),
    "fori": (lambda x: lax.fori_loop(0, 10, lambda i, c: c * 0.5 + i, x), (X,)),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: jnp.abs(c) * 2, x), (X,)),
    "while_vmapped": (jax.vmap(lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: jnp.abs(c) * 2, x)), (X,)),
    "while_not_taken": (
        lambda x: lax.cond(x[0, 0] > 100, lambda: lax.while_loop(lambda c: True, lambda c: c + 1, x), lambda: x),
        (X,),
    ),
    "while_in_scan_not_taken": (
        lambda x: lax.cond(
            x[0, 0] > 100,
            lambda: lax.scan(lambda c, _: (lax.while_loop(lambda d: True, lambda d: d, c), None), x, length=7)[0],
            lambda: x,
        ),
        (X,),
    ),
    "calls": (lambda x: jax.jit(jax.nn.relu)(lax.optimization_barrier(jax.device_put(x))), (X,)),
    "named": (lambda x: jax.checkpoint(lambda v: checkpoint_name(v * 2, "v"))(lax.stop_gradient(x)), (X,)),
    "captured": (lambda x: x + jnp.asarray(X) + jax.random.bits(KEY, (5,)).astype(jnp.float32), (X,)),
}  # fmt: skip

CLOSE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "reduce": (lambda x: (x.sum(0), x.prod(1), x.astype(jnp.bfloat16).sum()), (X,)),
    "cumulative": (lambda x: (jnp.cumsum(x, 0), lax.cumlogsumexp(x, 1, reverse=True)), (X,)),
    "dot": (lambda x, y: (x @ y, jnp.einsum("ij,kj->ik", x, x), x[0] @ y), (X, Y)),
    "dot_mixed": (
        lambda x, y: lax.dot(x.astype(jnp.bfloat16), y.astype(jnp.float16), preferred_element_type=jnp.float32),
        (X, Y),
    ),
    "attention": (lambda x: jax.nn.softmax(x @ x.T) @ x, (X,)),
    "layer_norm_grad": (jax.grad(lambda x: (jnp.tanh(x - x.mean(1, keepdims=True)) * x.std(1, keepdims=True)).sum()), (X,)),
    "remat": (jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)).sum())(x)), (X,)),
    "scan_grad": (jax.grad(lambda x: lax.scan(lambda c, v: (jnp.tanh(c * v), c), x[0], jnp.tile(x, (3, 1)))[0].sum()), (X,)),
    "logsumexp_grad": (jax.grad(lambda x: jax.nn.logsumexp(x, axis=1).sum()), (X,)),
    "embedding_grad": (jax.grad(lambda x: (x[jnp.array([0, 2, 2, 1])] ** 2).sum()), (X,)),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x, axis=1), (X,)),
    "normal": (lambda k: (jax.random.normal(k, (7,)), jax.random.categorical(k, jnp.ones((3, 4)))), (KEY,)),
    "dropout": (lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x * 2, 0), (KEY, X)),
    "ragged_dot": (
        jax.grad(lambda a, b, n: (lax.ragged_dot(a, b, n) ** 2).sum(), (0, 1)),
        (Y, RANDOM.normal(size=(3, 4, 2)).astype(np.float32), np.array([2, 0, 2], np.int32)),
    ),
    "polygamma": (jax.grad(lambda x: lax.digamma(x).sum()), (np.array([0.3, 1.0, 7.5], np.float32),)),
    "solve": (lambda x: jax.scipy.sparse.linalg.cg(lambda v: v * 3, x[0])[0], (X,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_equal(name: str) -> None:
    function, args = EXACT[name]
    check(function, *args)


@pytest.mark.parametrize("name", CLOSE)
def test_close(name: str) -> None:
    function, args = CLOSE[name]
    check(function, *args, tolerance=2e-5)


@pytest.mark.parametrize("length", [0, 1, 4, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(length: int, reverse: bool) -> None:
    def function(x: jax.Array) -> Any:
        return lax.scan(lambda c, i: (c + x[0, i] * 0.5, (c, i)), x[:, 0], jnp.arange(length), reverse=reverse)

    check(function, X)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("axis", [0, 1])
def test_sort_special_values(dtype: Any, axis: int) -> None:
    rows = np.stack([SPECIAL, SPECIAL[::-1]])
    check(lambda x: jnp.sort(x.astype(dtype), axis), rows)


@pytest.mark.parametrize("partitionable", [True, False])
def test_random_is_bit_equal(partitionable: bool) -> None:
    def function(key: jax.Array, seed: jax.Array) -> Any:
        keys = jax.random.split(key, (2, 3))
        widths = [jax.random.bits(key, shape, dtype) for dtype in ("uint8", "uint16", "uint32") for shape in ((), (3,), (5, 7))]
        batched = jax.vmap(lambda k: jax.random.bits(k, (3,)))(keys[0])
        folded = jax.vmap(jax.random.fold_in)(keys[1], jnp.arange(3))
        raw = jax.random.split(jax.random.PRNGKey(seed))
        return widths, batched, folded, raw, keys[0, 1:].T, jax.random.clone(key), jax.random.permutation(key, 10)

    with jax.threefry_partitionable(partitionable):
        check(function, KEY, np.int32(-3))


SEVERAL_STREAMS = "num_streams" in inspect.signature(jax.random.bits).parameters  # JAX 0.12.1 and later


@pytest.mark.parametrize("partitionable", [True, False])
def test_streams_are_bit_equal(partitionable: bool) -> None:
    def function(key: jax.Array) -> Any:
        if not SEVERAL_STREAMS:
            return jax.random.bits(key, (5,))
        widths = [jax.random.bits(key, (3, 5), d, num_streams=n) for d in ("uint8", "uint16", "uint32") for n in (1, 2, 4)]
        return widths, jax.vmap(lambda k: jax.random.bits(k, (0, 3), num_streams=2))(jax.random.split(key, 2))

    with jax.threefry_partitionable(partitionable):
        check(function, KEY)
