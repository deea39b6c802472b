"""Workloads of Kimi K3: its operator, its experts, the demo's training step, prefill and decoding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from k3jit.models import k3, train
from k3jit.models.k3.moe import moe

from .workloads import WORKLOADS, Workload, normal, workload


# -- the operator ----------------------------------------------------------------------------------------------------------
def _kda_args() -> tuple[Any, ...]:
    rng = np.random.default_rng(11)
    heads, size = 4, 64
    vectors = [normal(rng, 1, 1024, heads, size) for _ in range(4)]
    return *vectors, normal(rng, 1, 1024, heads), normal(rng, heads, scale=0.1), normal(rng, heads, size, scale=0.1)


def _operator(*args: Any) -> jax.Array:
    return k3.kda(*args)[0]


@workload
def kda_1024() -> Workload:
    """Chunkwise, batch 1, 1024 tokens, 4 heads of 64."""
    return Workload(_operator, _kda_args())


@workload
def kda_1024_grad() -> Workload:
    return Workload(jax.grad(lambda *args: (_operator(*args) ** 2).mean(), argnums=tuple(range(7))), _kda_args())


# -- the experts -----------------------------------------------------------------------------------------------------------
def _moe_parts() -> tuple[Any, Any, Any]:
    """Configuration, parameters and 256 tokens of one layer with 64 experts, of which 8 are chosen."""
    config = replace(k3.tiny(), num_experts=64, num_experts_per_token=8)
    params = k3.init_params(config, jax.random.key(12))
    layer = next(layer for layer in params["layers"] if "block_sparse_moe" in layer)["block_sparse_moe"]
    return config, jax.tree.map(np.asarray, layer), normal(np.random.default_rng(12), 2, 128, config.hidden_size)


@workload
def moe_64() -> Workload:
    config, layer, x = _moe_parts()
    return Workload(lambda layer, x: moe(layer, config, x)[0], (layer, x))


@workload
def moe_64_grad() -> Workload:
    config, layer, x = _moe_parts()

    def loss(floats: Any, bias: Any, x: Any) -> jax.Array:
        return (moe({**floats, "e_score_correction_bias": bias}, config, x)[0] ** 2).mean()

    floats = {key: value for key, value in layer.items() if key != "e_score_correction_bias"}
    return Workload(jax.grad(loss, argnums=(0, 2)), (floats, layer["e_score_correction_bias"], x))


# -- the demo's model ------------------------------------------------------------------------------------------------------
@workload
def train_step() -> Workload:
    """The demo's: forward, backward and AdamW."""
    config = k3.tiny()
    optimizer = train.make_optimizer(config, train.DEFAULT_STEPS, train.DEFAULT_LEARNING_RATE)
    params, state = train.initial_state(config, optimizer, 0)
    tokens = np.random.default_rng(13).integers(0, 256, (train.DEFAULT_BATCH, train.DEFAULT_LENGTH)).astype(np.int32)
    return Workload(train.make_step(config, optimizer), (params, state, tokens), carried=2)


def _continued(batch: int, length: int, before: int) -> Workload:
    """`length` tokens a row, continuing a cache that holds `before`; the cache stays where it is from call to call."""
    config = k3.tiny()
    params = jax.tree.map(np.asarray, k3.init_params(config, jax.random.key(14)))
    cache: Any = jax.tree.map(np.asarray, k3.init_cache(config, batch, 1024))
    cache["length"] = np.int32(before)

    def step(cache: Any, params: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        logits, after = k3.forward(params, config, tokens, cache=cache)
        return {**after, "length": jnp.int32(before)}, logits[:, -1]

    tokens = np.random.default_rng(14).integers(0, 256, (batch, length)).astype(np.int32)
    return Workload(step, (cache, params, tokens), carried=1)


for _batch in (1, 8):
    WORKLOADS[f"prefill_512_batch_{_batch}"] = partial(_continued, _batch, 512, 0)
    WORKLOADS[f"decode_batch_{_batch}"] = partial(_continued, _batch, 1, 512)
