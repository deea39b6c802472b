"""The whole text model: known answers, caches, packed rows, switches, and what it refuses."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from k3jit.models import k3
from k3jit.models.k3.layers import situ
from k3jit.models.k3.model import cross_entropy
from k3jit.models.k3.moe import route

from .golden import known_answers
from .jits import UNDER, Under, ids

under_f32 = pytest.mark.parametrize("under", UNDER[:2], ids=ids)


def small(**changes: Any) -> k3.Config:
    """Four narrow layers with every part."""
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "kda_head_dim": 8,
        "kda_num_heads": 2,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_experts": 4,
        "moe_intermediate_size": 8,
        "routed_expert_hidden_size": 8,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return dataclasses.replace(k3.tiny(), **(sizes | changes))


def random_ids(config: k3.Config, batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, config.vocab_size, (batch, length)).astype(np.int32)


@under_f32
def test_situ(under: Under) -> None:
    case = known_answers()["situ"]
    values, gradients = np.asarray(case["values"], np.float32), np.asarray(case["gradients"], np.float32)
    act = lambda gate, up: situ(gate, up, case["beta"], case["linear_beta"])  # noqa: E731
    np.testing.assert_allclose(under.jit(act)(values[:, 0], values[:, 1]), values[:, 2], rtol=3e-6, atol=3e-6)
    grads = under.jit(jax.grad(lambda gate, up: jnp.sum(act(gate, up)), argnums=(0, 1)))(gradients[:, 0], gradients[:, 1])
    for got, wanted in zip(grads, gradients[:, 2:].T, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=3e-6, atol=3e-6)


@under_f32
def test_router_bias(under: Under) -> None:
    """The bias decides which experts, never how much."""
    case = known_answers()["router_bias"]
    config = small(num_experts=4, num_experts_per_token=case["k"])
    logits, bias = np.asarray([case["logits"]], np.float32), np.asarray(case["correction_bias"], np.float32)
    weights, chosen = under.jit(lambda logits, bias: route(config, logits, bias))(logits, bias)
    np.testing.assert_array_equal(np.asarray(chosen)[0], case["experts"])
    np.testing.assert_allclose(np.asarray(weights)[0, case["experts"]], case["weights"], rtol=0, atol=1e-6)
    assert np.count_nonzero(np.asarray(weights)) == case["k"]


def test_router_ties_take_the_smaller_index() -> None:
    _, chosen = route(small(), jnp.zeros((1, 4)), jnp.zeros(4))
    np.testing.assert_array_equal(np.asarray(chosen)[0], [0, 1])


def test_router_groups() -> None:
    config = small(num_expert_group=2, topk_group=1)
    logits = jnp.asarray([[3.0, -9.0, 1.0, 1.5]])  # group sums of sigmoids: 0.95 + 0.0 against 0.73 + 0.82
    _, chosen = route(config, logits, jnp.zeros(4))
    assert sorted(np.asarray(chosen)[0]) == [2, 3]


@under_f32
def test_cached_decoding_equals_full_forward(under: Under) -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    tokens = random_ids(config, 2, 24)
    full = np.asarray(under.jit(lambda params, tokens: k3.forward(params, config, tokens))(params, tokens))
    step = under.jit(lambda params, cache, tokens: k3.forward(params, config, tokens, cache=cache))
    cache, parts = k3.init_cache(config, 2, 24), []
    for piece in (tokens[:, :19], *(tokens[:, i : i + 1] for i in range(19, 24))):
        logits, cache = step(params, cache, piece)
        parts.append(np.asarray(logits))
    assert np.abs(np.concatenate(parts, 1) - full).max() <= 1e-5 * np.abs(full).max()


def test_cache_overflow_is_an_error() -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    with pytest.raises(ValueError, match="make init_cache larger"):
        k3.forward(params, config, random_ids(config, 1, 5), cache=k3.init_cache(config, 1, 4))


def test_packed_rows_equal_separate_rows() -> None:
    lengths = known_answers()["packed_lengths"]["lengths"]
    changes = {
        "num_hidden_layers": 2,
        "kda_layers": (1,),
        "full_attn_layers": (2,),
        "num_experts": 0,
        "attn_res_block_size": None,
    }
    config = small(**changes)
    tokens = random_ids(config, 1, sum(lengths))
    segments = np.repeat(np.arange(len(lengths)), lengths)[None].astype(np.int32)
    edges = np.cumsum([0, *lengths])

    def packed(params):
        logits = k3.forward(params, config, tokens, segments)
        return jnp.sum(logits * wave), logits

    def separate(params):
        pieces = [k3.forward(params, config, tokens[:, a:b]) for a, b in pairwise(edges)]
        logits = jnp.concatenate(pieces, axis=1)
        return jnp.sum(logits * wave), logits

    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), k3.init_params(config, jax.random.key(0)))
        wave = jnp.cos(jnp.arange(tokens.size * config.vocab_size, dtype=jnp.float64)).reshape(1, -1, config.vocab_size)
        (_, got), got_grad = jax.jit(jax.value_and_grad(packed, has_aux=True))(params)
        (_, wanted), wanted_grad = jax.jit(jax.value_and_grad(separate, has_aux=True))(params)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-10)
        for left, right in zip(jax.tree.leaves(got_grad), jax.tree.leaves(wanted_grad), strict=True):
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-9)


SWITCHES = [
    {"attn_res_block_size": None},
    {"attn_res_block_size": 1},
    {"mla_use_output_gate": False},
    {"use_full_rank_gate": False},
    {"gate_lower_bound": None},
    {"hidden_act": "silu"},
    {"activation_situ_linear_beta": None},
    {"q_lora_rank": None},
    {"routed_expert_hidden_size": None, "latent_moe_use_norm": False},
    {"latent_moe_use_norm": False},
    {"moe_router_activation_func": "softmax"},
    {"moe_renormalize": False},
    {"routed_scaling_factor": 2.0},
    {"num_shared_experts": 0},
    {"num_experts": 0},
    {"first_k_dense_replace": 0, "moe_layer_freq": 2},
    {"num_expert_group": 2, "topk_group": 1},
    {"short_conv_kernel_size": 2},
    {"tie_word_embeddings": True},
    {"pad_token_id": None},
]


@pytest.mark.parametrize("changes", SWITCHES, ids=lambda c: ",".join(f"{k}={v}" for k, v in c.items()))
def test_switches(changes: dict[str, Any]) -> None:
    """Each switch changes the logits, keeps them finite, and survives a round trip through config.json and names."""
    base = {"num_hidden_layers": 2, "kda_layers": (1,), "full_attn_layers": (2,)}
    config = small(**base, **changes)
    assert k3.Config.from_dict(config.to_dict()) == config
    params = k3.init_params(config, jax.random.key(0))
    tokens = random_ids(config, 1, 6)
    logits = k3.forward(params, config, tokens)
    assert np.isfinite(logits).all()
    again = k3.from_named({name: np.asarray(value) for name, value in k3.to_named(params, config).items()}, config)
    np.testing.assert_array_equal(k3.forward(again, config, tokens), logits)
    reference = small(**base)
    if changes != {"pad_token_id": None}:
        assert np.abs(logits - k3.forward(k3.init_params(reference, jax.random.key(0)), reference, tokens)).max() > 1e-6


def test_block_sums_and_embedding() -> None:
    """The layer that opens a block starts from its attention output alone; layer 0 reads the plain embedding."""
    config = small()
    tokens = random_ids(config, 1, 5)
    params = k3.init_params(config, jax.random.key(0))
    _, seen = k3.forward(params, config, tokens, capture=True)
    np.testing.assert_array_equal(seen["layers.0.attn_in"], seen["embed"])
    for layer in range(4):
        before = seen[f"layers.{layer - 1}.out"] if layer % 2 else 0
        total = before + seen[f"layers.{layer}.attn_out"] + seen[f"layers.{layer}.mlp_out"]
        np.testing.assert_allclose(seen[f"layers.{layer}.out"], total, rtol=0, atol=1e-5)


def test_loss_ignores_labels_and_padding_row_has_no_gradient() -> None:
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((1, 4, 5)), jnp.float32)
    labels = np.asarray([[9, 3, -100, 1]], np.int32)  # the first label is never a target
    picked = jax.nn.log_softmax(logits)[0]
    np.testing.assert_allclose(cross_entropy(logits, labels), -(picked[0, 3] + picked[2, 1]) / 2, rtol=1e-6)
    assert float(cross_entropy(logits, np.full((1, 4), -100, np.int32))) == 0
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    tokens = random_ids(config, 1, 8)
    tokens[0, 3] = config.pad_token_id
    grads = jax.jit(jax.grad(k3.loss_fn), static_argnums=1)(params, config, tokens)
    assert not np.any(grads["embed_tokens"][config.pad_token_id])
    assert np.any(grads["embed_tokens"][tokens[0, 0]])


def test_bfloat16_stays_bfloat16() -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0), jnp.bfloat16)
    assert params["layers"][0]["self_attn"]["A_log"].dtype == jnp.float32
    tokens = random_ids(config, 1, 20)
    forward = jax.jit(k3.forward, static_argnums=1)
    logits = forward(params, config, tokens)
    wide = forward(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params), config, tokens)
    assert logits.dtype == jnp.bfloat16
    assert np.abs(logits.astype(jnp.float32) - wide).mean() < 0.1 * np.abs(wide).mean()
    _, cache = forward(params, config, tokens, cache=k3.init_cache(config, 1, 20, jnp.bfloat16))
    assert cache["layers"][0]["state"].dtype == jnp.float32
    assert cache["layers"][3]["latent"].dtype == jnp.bfloat16


def test_what_is_not_built_says_so() -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    tokens = random_ids(config, 1, 4)
    with pytest.raises(NotImplementedError, match="vision"):
        k3.forward(params, config, tokens, pixel_values=np.zeros((1, 3, 2, 2)))
    with pytest.raises(NotImplementedError, match="beam"):
        k3.generate(params, config, tokens, 2, num_beams=2, jit=jax.jit)
    with pytest.raises(ValueError, match="exclude each other"):
        k3.forward(params, config, tokens, np.zeros((1, 4), np.int32), cache=k3.init_cache(config, 1, 4))
