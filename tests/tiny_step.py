"""The smallest training step that has every part of the demo's: two layers, AdamW, donated state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from k3jit.models import k3
from k3jit.models import train as training

BATCH, LENGTH = 2, 33


def tiny_config() -> k3.Config:
    """A KDA layer with a dense MLP, and a gated MLA layer with a mixture of experts in another residual block."""
    return dataclasses.replace(
        k3.tiny(),
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        kda_layers=(1,),
        full_attn_layers=(2,),
        kda_head_dim=8,
        kda_num_heads=2,
        attn_res_block_size=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        num_experts=4,
        moe_intermediate_size=8,
        routed_expert_hidden_size=8,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def tiny_step() -> tuple[Callable[..., Any], Any, Any]:
    """(step, parameters, optimizer state); a step takes a batch too and returns new ones with the loss."""
    config = tiny_config()
    optimizer = training.make_optimizer(config, 10, 1e-2)
    return training.make_step(config, optimizer), *training.initial_state(config, optimizer, seed=0)


def batches(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, 40, (BATCH, LENGTH)).astype(np.int32) for _ in range(count)]
