"""Ready configurations."""

from __future__ import annotations

from .config import Config

BYTE_BOS, BYTE_EOS, BYTE_PAD = 256, 257, 258


def tiny() -> Config:
    """A byte-level model of a little over a million parameters that has every part of Kimi K3.

    KDA in layers 0 to 2 and gated MLA in layer 3, two residual blocks of two layers, a dense MLP in layer 0 and latent
    mixtures of experts with shared experts elsewhere.
    """
    return Config(
        vocab_size=260,  # bytes, begin, end, padding, and one spare to keep rows a multiple of four
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        kda_layers=(1, 2, 3),
        full_attn_layers=(4,),
        kda_head_dim=32,
        kda_num_heads=4,
        use_full_rank_gate=True,
        gate_lower_bound=-5.0,
        q_lora_rank=64,
        kv_lora_rank=32,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        mla_use_output_gate=True,
        attn_res_block_size=2,
        hidden_act="situ",
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=2,
        moe_intermediate_size=64,
        routed_expert_hidden_size=64,
        latent_moe_use_norm=True,
        first_k_dense_replace=1,
        initializer_range=0.04,
        bos_token_id=BYTE_BOS,
        eos_token_id=BYTE_EOS,
        pad_token_id=BYTE_PAD,
    )
