"""Scans for the tests of loop kernels: each with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def diagonal(a: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = row[0] * h + row[1]
        return h, h

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), (a, x))


def rnn(w: Any, u: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + x @ u)
        return h, h

    return lax.scan(step, h, xs)


def lstm(w: Any, u: Any, bias: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(h @ w + x @ u + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], w.shape[0]), xs.dtype)
    return lax.scan(step, (zero, zero), xs)


def delta_rule(q: Any, k: Any, v: Any, decay: Any, beta: Any) -> Any:
    """Arguments are [time, batch, head, dim]; the state is [batch, head, key, value]."""

    def step(state: Any, row: Any) -> Any:
        q, k, v, decay, beta = row
        state = state * jnp.exp(decay)[..., None]
        state = state + k[..., None] * (beta[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state)))[..., None, :]
        return state, jnp.einsum("bhk,bhkv->bhv", q, state)

    return lax.scan(step, jnp.zeros((*k.shape[1:], v.shape[-1]), v.dtype), (q, k, v, decay, beta))


def counting(x: Any) -> Any:
    return lax.fori_loop(0, 9, lambda i, c: c * 0.5 + i.astype(x.dtype) * x[i % x.shape[0]], x)


def swapping(x: Any) -> Any:
    """Carries that change places, repeat one another, stay, and are stacked before and after."""

    def step(state: Any, row: Any) -> Any:
        a, b, c, d = state
        return (b, a + row, a + row, d), (a, b, row, d * c)

    return lax.scan(step, (x[0], x[1] * 2, x[2], x[3]), x)


def indexed(table: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        at, h = state
        h = lax.dynamic_update_slice(h, lax.dynamic_slice(table, (at, 0), (1, 2)) + row[:2], (0, at % 3))
        picked = jnp.take_along_axis(h, (jnp.abs(row[:1] * 3).astype(jnp.int32) % 4)[None], axis=1)
        return ((at * 5 + 1) % table.shape[0], h), picked * table[at]

    return lax.scan(step, (jnp.int32(2), x[:1]), x)


def bits(x: Any) -> Any:
    def step(key: Any, _: Any) -> Any:
        key, use = jax.random.split(key)
        return key, jax.random.bits(use, (3,))

    return lax.scan(step, jax.random.key(7), None, length=6)[1], x


KDA = (*(normal(5, 2, 3, d, seed=d) * 0.3 for d in (4, 4, 6, 4)), abs(normal(5, 2, 3)))
INTEGERS = np.arange(35, dtype=np.int32).reshape(5, 7)
LOOPS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "diagonal": (diagonal, (normal(7, 5, 9) * 0.5, normal(7, 5, 9))),
    "one element": (diagonal, (normal(11) * 0.5, normal(11))),
    "rnn": (rnn, (normal(12, 12) * 0.3, normal(5, 12), normal(10, 12), normal(7, 10, 5))),
    "rnn of one row": (rnn, (normal(20, 20) * 0.3, normal(5, 20), normal(20), normal(7, 5))),
    "rnn of one line": (rnn, (normal(16, 16) * 0.3, normal(5, 16), normal(1, 16), normal(7, 1, 5))),
    "lstm": (lstm, (normal(6, 24) * 0.3, normal(3, 24), normal(24), normal(6, 9, 3))),
    "delta rule": (delta_rule, KDA),
    "counting": (counting, (normal(5, 7),)),
    "swapping": (swapping, (normal(7, 4, 6),)),
    "indexed": (indexed, (normal(8, 4), normal(6, 4))),
    "bits": (bits, (normal(2),)),
    "whole numbers": (lambda x: lax.scan(lambda c, v: (c * 3 + v, c >> 1), x[0], x), (INTEGERS,)),
}  # fmt: skip
SMOOTH = [n for n in LOOPS if n not in ("bits", "whole numbers")]


def loss_of(function: Function, dtype: Any = np.float32) -> Function:
    """A number that depends on all results of type `dtype`."""

    def loss(*args: Any) -> Any:
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(*args)) if leaf.dtype == dtype)

    return loss
