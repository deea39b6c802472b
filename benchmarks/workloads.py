"""What is timed. `WORKLOADS` has the makers by name; `THIRTEEN` are those that the peers are judged by.

Inputs are float32 from fixed seeds, and weights are arguments, so that nothing is folded into a program as a constant.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = np.ndarray


@dataclass(frozen=True)
class Workload:
    """A function and its inputs.

    Attributes:
        flops: floating-point operations of one call, a multiply-add as two, or None where nobody counts them.
        bytes: what must be read and written, or None.
        carried: the first so many arguments are donated, and replaced by the first results at each call.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    flops: float | None = None
    bytes: float | None = None
    carried: int = 0


Maker = Callable[[], Workload]
WORKLOADS: dict[str, Maker] = {}


def workload(maker: Maker) -> Maker:
    """Register a maker under its own name."""
    WORKLOADS[maker.__name__] = maker
    return maker


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


# -- the thirteen, whose inputs come from one generator in this order ------------------------------------------------------
def _chain(x: jax.Array) -> jax.Array:
    y = x * 1.7 + 0.3
    y = jnp.tanh(y) * jax.nn.sigmoid(x)
    y = y + 0.5 * x * x
    return jnp.exp(-y * y) + jnp.maximum(y, 0.0)


def _rmsnorm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def _mlp(w1: Any, b1: Any, w2: Any, b2: Any, x: Any) -> jax.Array:
    return jnp.tanh(x @ w1 + b1) @ w2 + b2


def _mlp_loss(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, y: Any) -> jax.Array:
    return jnp.mean((_mlp(w1, b1, w2, b2, x) - y) ** 2)


def _attention(qkv_weight: jax.Array, out_weight: jax.Array, x: jax.Array, heads: int = 4) -> jax.Array:
    batch, length, width = x.shape
    size = width // heads
    qkv = (x @ qkv_weight).reshape(batch, length, 3, heads, size)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (size**-0.5)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)
    return x + mixed.transpose(0, 2, 1, 3).reshape(batch, length, width) @ out_weight


def _attention_loss(qkv_weight: Any, out_weight: Any, x: Any) -> jax.Array:
    return jnp.mean(_attention(qkv_weight, out_weight, x) ** 2)


def _rnn(w: Any, u: Any, start: Any, xs: Any) -> Any:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ w + x @ u)
        return h, h

    return lax.scan(step, start, xs)


def _diagonal(a: Any, x: Any) -> jax.Array:
    def step(h: jax.Array, row: Any) -> tuple[jax.Array, jax.Array]:
        h = row[0] * h + row[1]
        return h, h

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), (a, x))[1]


@cache
def _thirteen() -> dict[str, Workload]:
    rng = np.random.default_rng(0)
    made: dict[str, Workload] = {}
    moved = 8.0 * (1 << 20)
    made["chain_1m"] = Workload(_chain, (normal(rng, 1 << 20),), bytes=moved)
    made["axpb_1m"] = Workload(lambda x: x * 2.0 + 1.0, (normal(rng, 1 << 20),), bytes=moved)
    made["softmax_1024"] = Workload(lambda x: jax.nn.softmax(x, axis=-1), (normal(rng, 1024, 1024),), bytes=moved)
    made["rmsnorm_1024"] = Workload(_rmsnorm, (normal(rng, 1024, 1024), normal(rng, 1024)), bytes=moved)
    for n in (256, 512, 1024):
        made[f"matmul_{n}"] = Workload(lambda a, b: a @ b, (normal(rng, n, n), normal(rng, n, n)), flops=2.0 * n**3)
    batch, inputs, hidden, outputs = 128, 256, 512, 64
    weights = (
        normal(rng, inputs, hidden, scale=inputs**-0.5),
        normal(rng, hidden, scale=0.1),
        normal(rng, hidden, outputs, scale=hidden**-0.5),
        normal(rng, outputs, scale=0.1),
    )
    x = normal(rng, batch, inputs)
    flops = 2.0 * batch * hidden * (inputs + outputs)
    made["mlp_fwd"] = Workload(_mlp, (*weights, x), flops=flops)
    made["mlp_vag"] = Workload(
        jax.value_and_grad(_mlp_loss, argnums=(0, 1, 2, 3)),
        (*weights, x, normal(rng, batch, outputs)),
        flops=3 * flops - 2.0 * batch * inputs * hidden,
    )
    width = 128
    parts = (normal(rng, width, 3 * width, scale=width**-0.5), normal(rng, width, width, scale=width**-0.5))
    attention = (*parts, normal(rng, 2, 64, width))
    made["attn_fwd"] = Workload(_attention, attention)
    made["attn_vag"] = Workload(jax.value_and_grad(_attention_loss, argnums=(0, 1)), attention)
    recurrent = (normal(rng, 64, 64, scale=0.1), normal(rng, 64, 64, scale=0.1), normal(rng, 16, 64), normal(rng, 128, 16, 64))
    made["scan_rnn"] = Workload(_rnn, recurrent, flops=128 * 2 * 2.0 * 16 * 64 * 64)
    decays = rng.uniform(0.5, 0.99, (256, 1024)).astype(np.float32)
    made["scan_diag"] = Workload(_diagonal, (decays, normal(rng, 256, 1024)))
    return made


THIRTEEN = (
    "chain_1m axpb_1m softmax_1024 rmsnorm_1024 matmul_256 matmul_512 matmul_1024 mlp_fwd mlp_vag attn_fwd attn_vag "
    "scan_rnn scan_diag"
).split()


def _of_thirteen(name: str) -> Workload:
    return _thirteen()[name]


WORKLOADS.update({name: partial(_of_thirteen, name) for name in THIRTEEN})


def make(name: str) -> Workload:
    """The workload of that name.

    Raises:
        KeyError: there is none; all names are listed.
    """
    if name not in names():
        raise KeyError(f"no workload {name!r}: there are {', '.join(names())}")
    return WORKLOADS[name]()


def names() -> list[str]:
    """All workloads, the thirteen first."""
    for module in ("library", "model"):  # they register theirs
        importlib.import_module(f".{module}", __package__)
    return list(WORKLOADS)
