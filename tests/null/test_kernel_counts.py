"""How many dispatches well-known functions take, and that none of them only moves elements. Plans only; nothing runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from k3jit.lowering.limits import COMPACT, FULL

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import kernel_report as report

ROWS = 64
COLUMNS = [256, 1024, 4096]


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def count(function: Callable[..., Any], *args: Any, donate: int = 0, **options: bool) -> int:
    """Dispatches of `function`; transfer and fill commands do not exist in a plan."""
    program = report.program_of(function, *args, donate=donate, **options)
    assert not report.movers(program)
    return len(report.kernels(program))


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    mean, variance = jnp.mean(x, axis=-1, keepdims=True), jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * weight + bias


def standardize(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.standardize(x, axis=-1) * weight + bias


NORMS = [(softmax, 0), (jax.nn.log_softmax, 0), (rms_norm, 1), (layer_norm, 2), (standardize, 2)]
norms = pytest.mark.parametrize(("norm", "weights"), NORMS, ids=[f.__name__ for f, _ in NORMS])


@pytest.mark.parametrize("columns", COLUMNS)
@norms
def test_norms(norm: Callable[..., jax.Array], weights: int, columns: int) -> None:
    x, extra = shape(ROWS, columns), [shape(columns)] * weights

    def pull(*args: Any, wanted: int) -> Any:
        *primals, cotangent = args
        return jax.vjp(norm, *primals)[1](cotangent)[:wanted]

    assert count(norm, x, *extra) == 1
    assert count(lambda *a: pull(*a, wanted=1), x, *extra, x) == 1, "the gradient with respect to x"
    if weights:
        assert count(lambda *a: pull(*a, wanted=1 + weights), x, *extra, x) == 2, "one kernel more for all weights"
        both = count(lambda *a: (norm(*a[:-1]), pull(*a, wanted=1 + weights)), x, *extra, x)
        assert both <= 3, "value and all gradients"


@pytest.mark.parametrize("columns", COLUMNS)
def test_transposed_copy_of_a_norm_costs_nothing(columns: int) -> None:
    assert count(lambda x: (softmax(x), softmax(x).T), shape(ROWS, columns)) == 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "sigmoid", "softplus"])
@pytest.mark.parametrize("leading", [(64,), (4, 16)], ids=["matrix", "batch"])
def test_dense_layer(activation: str, leading: tuple[int, ...]) -> None:
    act = getattr(jax.nn, activation)
    assert count(lambda x, w, b: act(x @ w + b), shape(*leading, 256), shape(256, 512), shape(512)) == 1


def test_views_of_a_product_cost_nothing() -> None:
    def split_heads(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.transpose((x @ w).reshape(2, 16, 4, 8), (0, 2, 1, 3)) * 0.5

    assert count(split_heads, shape(32, 64), shape(64, 32)) == 1
    assert count(lambda x, w: jnp.einsum("bthd,hde->bte", x, w), shape(2, 16, 4, 8), shape(4, 8, 24)) == 1
    assert count(lambda x, w: jnp.concatenate([x[:, :32], x[:, ::-1][:, 32:]], 1).T @ w, shape(16, 64), shape(16, 8)) == 1
    assert count(lambda x, w: jnp.pad(x, 1) @ w, shape(16, 62), shape(64, 8)) == 1


def leaves() -> list[jax.ShapeDtypeStruct]:
    """200 parameters: vectors, matrices, higher ranks and scalars, from 1 to 2**20 elements."""
    kinds = [lambda i: (64 + i,), lambda i: (16 + i, 24), lambda i: (3, 5, 7 + i), lambda i: (), lambda i: (1, 128)]
    shapes = [kinds[i % 5](i) for i in range(200)]
    shapes[0], shapes[7], shapes[12], shapes[50] = (1024, 1024), (1000, 1000), (512, 512), (2048, 100)
    return [shape(*s) for s in shapes]


@pytest.mark.parametrize("donate", [0, 2], ids=["kept", "donated"])
def test_adamw_of_200_leaves(donate: int) -> None:
    optimizer = optax.adamw(1e-3, weight_decay=0.1)
    params = leaves()

    def update(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    assert count(update, params, jax.eval_shape(optimizer.init, params), params, donate=donate) <= 4


@pytest.mark.parametrize("compact", [False, True], ids=["full", "compact"])
@pytest.mark.parametrize("number", [10, 100])
def test_kernels_stay_small(number: int, compact: bool) -> None:
    """However many results share an operand, or a constant that is a result too."""
    bounds = COMPACT if compact else FULL
    vectors, matrices, weight = [shape(64)] * number, [shape(80, 64)] * number, shape(64)

    def arrays(function: Callable[..., Any], *args: Any) -> list[tuple[int, int]]:
        """(read, written) of each kernel."""
        kernels = report.kernels(report.program_of(function, *args, compact=compact))
        return [tuple(sum(p.mode == mode and p.size > 1 for p in k.params) for mode in ("r", "w")) for k in kernels]

    products = arrays(lambda vectors, weight: [v * weight for v in vectors], vectors, weight)
    assert all(read + written <= bounds.arrays + 1 for read, written in products)
    sums = arrays(lambda matrices, weight: [(m * weight).sum(0) for m in matrices], matrices, weight)
    assert all(written <= bounds.folds for _, written in sums)
    zeros = arrays(lambda vectors: (jnp.zeros(64), [v + jnp.zeros(64) for v in vectors]), vectors)
    assert all(written == 1 for _, written in zeros)


@pytest.mark.parametrize("scale", [False, True])
def test_a_long_sum_of_few_results_is_shared_out(scale: bool) -> None:
    """Partial sums are stored, by many lanes; one lane that summed them all again would leave the device idle."""

    def total(x: jax.Array) -> jax.Array:
        return (x * 2 if scale else x).sum(0) + 1

    partial, final = report.dispatches(report.program_of(total, shape(4096, 8)).steps)
    assert partial.groups[0] * 64 >= 512 and final.groups == (1, 1, 1)


def test_scan_copies_nothing() -> None:
    """Arguments in another layout, joined and padded ones, and results that repeat or rearrange what went in."""
    turns = 7

    def loop(x: jax.Array, w: jax.Array) -> Any:
        def body(state: jax.Array, row: Any) -> Any:
            a, b, c = row
            new = jnp.tanh(state @ w + a) * b.T + c[1:, 1:]
            return new, (state[..., None], a, b.T, w)

        rows = (jnp.swapaxes(x, 1, 2), jnp.concatenate([x, x], 1)[:, 2:5], jnp.pad(x, ((0, 0), (1, 0), (1, 0))))
        return lax.scan(body, jnp.zeros((3, 3)), rows)

    x, w = shape(turns, 3, 3), shape(3, 3)
    assert count(lambda x, w: loop(x, w)[0], x, w, loops=False) == turns
    assert count(lambda x, w: loop(x, w)[0], x, w) == 1

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        final, (states, *_) = loop(x, w)
        return jnp.sum(final) + jnp.sum(states**2)

    for loops in (True, False):
        program = report.program_of(jax.grad(loss, (0, 1)), x, w, loops=loops)
        assert not report.movers(program)


@pytest.mark.parametrize("title", list(report.PROGRAMS))
def test_model(title: str) -> None:
    """The counts of docs/kernels.md; after a change of grouping `python tools/kernel_report.py` writes them anew."""
    program = report.PROGRAMS[title]()
    assert not report.movers(program), "a kernel that merely copies, casts, fills or transposes"
    assert len(report.kernels(program)) == report.stated()[title]


def test_recurrences_are_kernels() -> None:
    """A recurrence is one dispatch, an RNN has another for its input projection; gradients of weights are added outside."""

    def diagonal(a: jax.Array, x: jax.Array) -> Any:
        def step(h: jax.Array, row: Any) -> Any:
            h = row[0] * h + row[1]
            return h, h

        return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), (a, x))

    def rnn(w: jax.Array, u: jax.Array, h: jax.Array, xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(h @ w + x @ u)
            return h, h

        return lax.scan(step, h, xs)

    def loss(*args: Any) -> jax.Array:
        final, states = rnn(*args)
        return jnp.sum(final**2) + jnp.sum(states**2)

    assert count(diagonal, shape(256, 1024), shape(256, 1024)) == 1
    args = shape(64, 64), shape(64, 64), shape(16, 64), shape(128, 16, 64)
    assert count(rnn, *args) == 2
    assert count(jax.grad(loss, (0, 1, 2, 3)), *args) <= 14
