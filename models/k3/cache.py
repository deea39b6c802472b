"""What decoding remembers between calls."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .config import Config

Cache = dict[str, Any]


def init_cache(config: Config, batch: int, max_len: int, dtype: jax.typing.DTypeLike = np.float32) -> Cache:
    """An empty cache for ``batch`` rows of at most ``max_len`` tokens.

    ``{"length": int32 scalar, "layers": [...]}``; a KDA layer keeps its state ``[B, h, d, d]`` (float32) and the last W - 1
    inputs of each convolution ``[B, W-1, P]``; an MLA layer keeps the latent ``[B, max_len, c]`` and the shared key part.
    """
    wide = np.promote_types(np.dtype(dtype), np.float32) if np.dtype(dtype).kind == "f" else np.float32
    heads, dim = config.kda_num_heads, config.kda_head_dim
    layers: list[dict[str, Any]] = []
    for layer in range(config.num_hidden_layers):
        if config.is_kda(layer):
            tail = (batch, config.short_conv_kernel_size - 1, heads * dim)
            conv = {name: np.zeros(tail, dtype) for name in "qkv"}
            layers.append({"state": np.zeros((batch, heads, dim, dim), wide), "conv": conv})
        else:
            sizes = {"latent": config.kv_lora_rank, "key_rope": config.qk_rope_head_dim}
            layers.append({name: np.zeros((batch, max_len, size), dtype) for name, size in sizes.items()})
    return {"length": np.zeros((), np.int32), "layers": layers}


def cache_capacity(cache: Cache) -> int | None:
    """Tokens the cache has room for; None where no layer limits it (KDA only)."""
    return next((layer["latent"].shape[1] for layer in cache["layers"] if "latent" in layer), None)
