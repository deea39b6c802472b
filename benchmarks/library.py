"""Workloads of ordinary array programs: matmul shapes, losses, attention, convolution, sorting, random numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from .workloads import WORKLOADS, Workload, normal, workload


def _product(rows: int, inner: int, columns: int) -> Workload:
    rng = np.random.default_rng(1)
    args = normal(rng, rows, inner), normal(rng, inner, columns)
    return Workload(lambda a, b: a @ b, args, flops=2.0 * rows * inner * columns, bytes=4.0 * (rows + columns) * inner)


SHAPES = {"matmul_200": (200,) * 3, "matmul_333": (333,) * 3, "matmul_1000": (1000,) * 3, "matvec_4096": (1, 4096, 4096)}
WORKLOADS.update({name: partial(_product, *shape) for name, shape in SHAPES.items()})


@workload
def adamw_200() -> Workload:
    """AdamW over 200 leaves of 64 to 1M elements."""
    rng = np.random.default_rng(2)
    sizes = np.geomspace(64, 1 << 20, 200).astype(int)
    params = [normal(rng, int(size)) for size in sizes]
    grads = [normal(rng, int(size)) for size in sizes]
    optimizer = optax.adamw(1e-3, b1=0.9, b2=0.95, weight_decay=0.1)
    state = jax.tree.map(np.asarray, optimizer.init(params))

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Workload(step, (params, state, grads), bytes=4.0 * 7 * sizes.sum(), carried=2)


@workload
def cross_entropy_32k() -> Workload:
    """Mean cross-entropy of 256 rows over 32 768 classes, and its gradient."""
    rng = np.random.default_rng(3)
    logits, labels = normal(rng, 256, 32768), rng.integers(0, 32768, 256).astype(np.int32)

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return Workload(jax.value_and_grad(loss), (logits, labels), bytes=4.0 * 2 * logits.size)


@workload
def embedding_grad() -> Workload:
    """Gradient of a table of 4096 x 256 through 4096 ids, many of them alike."""
    rng = np.random.default_rng(4)
    ids = (rng.zipf(1.3, 4096) % 4096).astype(np.int32)
    args = normal(rng, 4096, 256), ids, normal(rng, 4096, 256)
    return Workload(jax.grad(lambda table, ids, weight: (table[ids] * weight).sum()), args, bytes=4.0 * 2 * 4096 * 256)


def _softmax_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def _attention_args() -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    return tuple(normal(rng, 1, 4, 512, 64) for _ in range(3))


@workload
def attention_512() -> Workload:
    return Workload(_softmax_attention, _attention_args(), flops=4.0 * 4 * 512 * 512 * 64)


@workload
def attention_512_grad() -> Workload:
    loss = jax.grad(lambda q, k, v: (_softmax_attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))
    return Workload(loss, _attention_args(), flops=3 * 4.0 * 4 * 512 * 512 * 64)


@workload
def conv_block() -> Workload:
    """Two 3x3 convolutions with a rectifier, on 4 images of 32 x 32 with 64 channels."""
    rng = np.random.default_rng(6)
    conv = partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    args = normal(rng, 4, 32, 32, 64), normal(rng, 3, 3, 64, 64, scale=0.05), normal(rng, 3, 3, 64, 64, scale=0.05)
    flops = 2 * 2.0 * 4 * 32 * 32 * 9 * 64 * 64
    return Workload(lambda x, a, b: x + conv(jax.nn.relu(conv(x, a)), b), args, flops=flops)


@workload
def normal_1m() -> Workload:
    return Workload(lambda key: jax.random.normal(key, (1 << 20,)), (np.array([0, 42], np.uint32),), bytes=4.0 * (1 << 20))


def _million(function: Any) -> Workload:
    return Workload(function, (normal(np.random.default_rng(7), 1 << 20),), bytes=8.0 * (1 << 20))


@workload
def cumsum_1m() -> Workload:
    return _million(jnp.cumsum)


@workload
def sort_1m() -> Workload:
    return _million(jnp.sort)
