"""Continuing a prompt from a checkpoint of the byte-level model, and checking its cached decoding."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import k3
from .train import Jit, default_jit, device_name


def encode(text: str) -> np.ndarray:
    """``[1, T]`` int32 bytes of a prompt."""
    data = text.encode("utf-8")
    if not data:
        raise ValueError("the prompt is empty: give at least one character")
    return np.frombuffer(data, np.uint8).astype(np.int32)[None]


def decode(tokens: np.ndarray) -> str:
    """The text of byte tokens; ids above 255 (begin, end, padding) are left out, broken UTF-8 is replaced."""
    return bytes(int(token) for token in tokens if token < 256).decode("utf-8", errors="replace")


def run_generate(
    checkpoint_dir: str | Path,
    prompt: str,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 0.95,
    seed: int = 0,
    jit: Jit | None = None,
    check: bool = True,
) -> str:
    """Load a checkpoint, print the device, the continued prompt and the agreement of cached and full decoding; return the text.

    The body of the command line's ``generate``.
    """
    config = k3.Config.from_pretrained(checkpoint_dir)
    if config.vocab_size < 256 or config.vocab_size > 1024:
        raise ValueError(
            f"{checkpoint_dir}: vocabulary of {config.vocab_size} is not the byte-level one this command can decode"
        )
    params = k3.load_params(checkpoint_dir, config)
    print(f"device: {device_name(jit)}")
    print(f"checkpoint: {checkpoint_dir}, {k3.count_parameters(config):,} parameters", flush=True)
    key = jax.random.key(seed) if temperature > 0 else None
    begin = time.perf_counter()
    tokens = k3.generate(
        params,
        config,
        encode(prompt),
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop_ids=() if config.eos_token_id is None else (config.eos_token_id,),
        key=key,
        jit=jit,
    )
    seconds = time.perf_counter() - begin
    text = decode(tokens[0])
    print(f"--- {max_new_tokens} tokens in {seconds:.1f} s\n{text}\n---", flush=True)
    if check:
        print(f"cached decoding against the full forward: {verify_cache(checkpoint_dir, jit=jit):.1e} of the largest logit")
    return text


def verify_cache(checkpoint_dir: str | Path, length: int = 32, seed: int = 0, jit: Jit | None = None) -> float:
    """Largest difference between cached and full logits, as a share of the largest logit.

    A prompt of half the tokens goes through the cache at once, the rest one by one.
    """
    config = k3.Config.from_pretrained(checkpoint_dir)
    params = k3.load_params(checkpoint_dir, config)
    tokens = np.random.default_rng(seed).integers(0, min(config.vocab_size, 256), (1, length)).astype(np.int32)
    compiler = jit or default_jit()
    full = np.asarray(compiler(partial(_logits, config))(params, tokens))
    step = compiler(partial(_cached_logits, config))
    cache = k3.init_cache(config, 1, length)
    pieces = [tokens[:, : length // 2], *(tokens[:, i : i + 1] for i in range(length // 2, length))]
    cached = []
    for piece in pieces:
        logits, cache = step(params, cache, piece)
        cached.append(np.asarray(logits))
    return float(np.max(np.abs(np.concatenate(cached, axis=1) - full)) / np.max(np.abs(full)))


def _logits(config: k3.Config, params: Any, tokens: Any) -> Any:
    return k3.forward(params, config, tokens)


def _cached_logits(config: k3.Config, params: Any, cache: Any, tokens: Any) -> Any:
    return k3.forward(params, config, tokens, cache=cache)
