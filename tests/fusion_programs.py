"""Small programs of every kind that grouping treats in its own way, for comparisons fused, not fused and in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class FusionProgram:
    """`fun` on arrays of `shapes`; `tolerance` relative to the largest element of a result."""

    fun: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    tolerance: float = 1e-5
    differentiable: bool = True

    def args(self) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(7)
        return tuple(rng.standard_normal(s).astype(np.float32) for s in self.shapes)

    def gradient(self, *args: Any) -> Any:
        """Of a weighted sum of all results with respect to every argument."""

        def loss(*args: Any) -> jax.Array:
            results = [r for r in jax.tree.leaves(self.fun(*args)) if jnp.issubdtype(r.dtype, jnp.floating)]
            return sum(
                (jnp.sum(r * jnp.cos(jnp.arange(r.size, dtype=r.dtype)).reshape(r.shape)) for r in results), jnp.float32(0)
            )

        return jax.grad(loss, tuple(range(len(args))))(*args)

    def with_gradient(self, *args: Any) -> Any:
        return self.fun(*args), self.gradient(*args)


def flat(results: Any) -> list[np.ndarray]:
    return [np.asarray(r) for r in jax.tree.leaves(results)]


def compare(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float, floor: float = 1e-30) -> None:
    """Relative to the largest element of a result, or to `floor` where it is smaller (what is left of larger numbers)."""
    assert len(got) == len(wanted)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"result {number}"
        if b.dtype.kind == "f":
            largest = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(largest, floor), err_msg=f"result {number}")
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"result {number}")


# -- programs ------------------------------------------------------------------------------------------------------------
def _rms(x: Any, w: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w


def _layer_norm(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.standardize(x, axis=-1) * w + b


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v).reshape(*q.shape[:2], -1)


def _mlp(x: Any, w: Any, b: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ w + b) @ down + x


def _gated(x: Any, gate: Any, up: Any) -> Any:
    return jax.nn.silu(x @ gate) * (x @ up)


def _heads(x: Any, w: Any) -> Any:
    heads = jnp.transpose((x @ w).reshape(3, 5, 2, 4), (0, 2, 1, 3))
    return jnp.tanh(heads), heads.swapaxes(-1, -2) * 2, heads[:, ::-1, 1:3]


def _joined(x: Any, y: Any) -> Any:
    wide = jnp.concatenate([x, y[:, ::-1], jnp.pad(x, ((0, 0), (1, 2)))], axis=1)
    return wide @ wide.T, wide[:, 1:-1].sum(1), jnp.stack([x.sum(0), x.max(0)])


def _conv(x: Any, w: Any) -> Any:
    return jax.nn.relu(lax.conv_general_dilated(x, w, (2, 1), [(1, 1), (2, 0)], dimension_numbers=("NHWC", "HWIO", "NHWC")))


def _short_conv(x: Any, w: Any) -> Any:
    padded = jnp.concatenate([jnp.zeros((x.shape[0], 3, x.shape[2])), x], 1)
    return jax.nn.silu(sum(w[i] * padded[:, i : i + x.shape[1]] for i in range(4)))


def _embedding(table: Any, x: Any) -> Any:
    ids = jnp.argsort(x, axis=-1) % table.shape[0]
    return table[ids] * x[..., None], table.at[ids[0]].add(x[0][:, None]), jnp.take_along_axis(x, ids, axis=-1)


def _routing(x: Any, w: Any) -> Any:
    scores = jax.nn.sigmoid(x @ w)
    best, chosen = lax.top_k(scores, 2)
    mask = jnp.any(chosen[:, :, None] == jnp.arange(w.shape[1]), axis=1)
    kept = jnp.where(mask, scores, 0)
    return kept / kept.sum(-1, keepdims=True), best, chosen, jnp.argmax(scores, -1)


def _cumulative(x: Any) -> Any:
    return jnp.cumsum(x * 2, axis=0), jnp.cumsum(x, axis=1)[:, ::-1], lax.cummax(x, axis=1)


def _sorted(x: Any) -> Any:
    return jnp.sort(x, axis=-1), jnp.argsort(-x, axis=0), jnp.median(x, axis=1)


def _recurrent(x: Any, w: Any) -> Any:
    def body(state: Any, row: Any) -> Any:
        a, b = row
        new = jnp.tanh(state @ w + a) + b.T
        return new, (state, new.T, a, jnp.pad(b, 1))

    return lax.scan(body, jnp.zeros((3, 3)), (jnp.swapaxes(x, 1, 2), jnp.concatenate([x, x], 1)[:, 1:4]))


def _backwards(x: Any, w: Any) -> Any:
    def body(state: Any, row: Any) -> Any:
        state = (state[0] * 0.5 + row, state[0])
        return state, (state[0] @ w, state[1][:, None])

    return lax.scan(body, (w[0], w[1]), x, reverse=True)


def _nested(x: Any, w: Any) -> Any:
    def inner(state: Any, row: Any) -> Any:
        return state * 0.9 + row @ w, state.sum()

    def outer(state: Any, block: Any) -> Any:
        state, sums = lax.scan(inner, state, jnp.concatenate([block, block[:, ::-1]], axis=0))
        return state, (sums, block.T)

    return lax.scan(outer, jnp.ones(3), jnp.transpose(x, (1, 0, 2)))


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: jnp.sum(s[0]) < 40.0, lambda s: (s[0] * 1.5 + s[1], s[1] + 1.0), (jnp.abs(x), x[0, 0]))


def _cond(x: Any, y: Any) -> Any:
    flag = x[0, 0] > y[0, 0]
    picked = lax.cond(flag, lambda a, b: a @ b.T, lambda a, b: b @ a.T, x, y)
    return picked, lax.switch(jnp.int32(2), [jnp.sin, jnp.cos, jnp.tanh], x), jnp.where(flag, x, y)


def _random(x: Any) -> Any:
    key, other = jax.random.split(jax.random.key(3))
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(keep, x, 0) * 2, jax.random.uniform(other, (5,)), jax.random.permutation(key, 7)


def _views(x: Any) -> Any:
    y = jnp.transpose(x.reshape(2, 3, 4, 5), (2, 0, 3, 1))
    z = jnp.tile(jnp.repeat(y, 2, axis=0), (1, 2, 1, 1))[::3, :, 1:, ::-1]
    return y, z * 2, jnp.roll(x, 3, axis=1), jnp.squeeze(x[None, 2:3]).reshape(4, 5).T


def _many_readers(x: Any, w: Any) -> Any:
    hidden = jnp.tanh(x @ w)
    norm = hidden * lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True))
    return hidden.sum(0), norm, norm.T @ x, jnp.max(norm, 0), (hidden * norm).sum()


def _statistics(x: Any) -> Any:
    return x.sum(), x.mean(0), x.var(1), jnp.linalg.norm(x), jax.nn.logsumexp(x, 1), jnp.prod(jnp.cos(x), 0), x.max()


def _integers(x: Any) -> Any:
    i = jnp.round(x * 10).astype(jnp.int32)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return i // 3, i % 7, (bits >> 3) ^ (bits << 5), (i > 0).sum(0), jnp.cumsum(i, 1), i.astype(jnp.bool_).any(1)


def _narrow(x: Any, w: Any) -> Any:
    y = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
    return y * 2, (x.astype(jnp.float16) + 1).astype(jnp.float32)


def _updates(x: Any, y: Any) -> Any:
    start = jnp.argmax(x[:, 0])
    moved = lax.dynamic_update_slice(x, y, (start, jnp.int32(1)))
    return moved, lax.dynamic_slice(x, (start, jnp.int32(2)), (2, 3)) * 2, x.at[1].set(0.0), x.at[:, 2].multiply(3.0)


def _many_sums(x: Any, w: Any) -> Any:
    """Sums that share an operand, one lane each: one loop over all of them would take a driver minutes to compile."""
    return tuple((x * (i + 1) * w).sum(0) + w for i in range(10)), w.sum()


def _constant_result(x: Any, w: Any) -> Any:
    """Results that hold no data, and that others read as well."""
    zeros, ones = jnp.zeros(w.shape, w.dtype), jnp.ones((), w.dtype)
    return zeros, ones, x + zeros, x.sum(0) * ones + zeros, lax.scan(lambda c, row: (c + row * ones, c), zeros, x)


PROGRAMS: dict[str, FusionProgram] = {
    "softmax": FusionProgram(lambda x: (jax.nn.softmax(x), jax.nn.softmax(x).T), ((9, 40),)),
    "log_softmax": FusionProgram(lambda x: jax.nn.log_softmax(x, axis=0), ((17, 6),)),
    "rms_norm": FusionProgram(_rms, ((6, 5, 24), (24,))),
    "layer_norm": FusionProgram(_layer_norm, ((7, 33), (33,), (33,))),
    "attention": FusionProgram(_attention, ((2, 7, 2, 4), (2, 7, 2, 4), (2, 7, 2, 5))),
    "mlp": FusionProgram(_mlp, ((9, 16), (16, 24), (24,), (24, 16))),
    "gated": FusionProgram(_gated, ((9, 16), (16, 24), (16, 24))),
    "heads": FusionProgram(_heads, ((15, 6), (6, 8))),
    "joined": FusionProgram(_joined, ((5, 6), (5, 3))),
    "conv": FusionProgram(_conv, ((2, 6, 5, 3), (3, 2, 3, 4))),
    "short_conv": FusionProgram(_short_conv, ((2, 9, 8), (4, 8))),
    "embedding": FusionProgram(_embedding, ((11, 4), (3, 8))),
    "routing": FusionProgram(_routing, ((10, 6), (6, 5))),
    "cumulative": FusionProgram(_cumulative, ((6, 19),)),
    "sorted": FusionProgram(_sorted, ((5, 12),)),
    "scan": FusionProgram(_recurrent, ((7, 3, 3), (3, 3))),
    "scan_reversed": FusionProgram(_backwards, ((6, 4), (4, 4))),
    "scan_nested": FusionProgram(_nested, ((5, 6, 3), (3, 3))),
    "while": FusionProgram(_while, ((4, 5),), differentiable=False),
    "cond": FusionProgram(_cond, ((4, 4), (4, 4))),
    "random": FusionProgram(_random, ((6, 7),)),
    "views": FusionProgram(_views, ((6, 20),)),
    "many_readers": FusionProgram(_many_readers, ((8, 6), (6, 20))),
    "statistics": FusionProgram(_statistics, ((12, 30),)),
    "integers": FusionProgram(_integers, ((6, 9),), differentiable=False),
    "narrow": FusionProgram(_narrow, ((5, 8), (8, 6)), tolerance=1e-2),
    "many_sums": FusionProgram(_many_sums, ((20, 6), (6,))),
    "constant_result": FusionProgram(_constant_result, ((5, 6), (6,))),
    "updates": FusionProgram(_updates, ((6, 7), (2, 3))),
}
