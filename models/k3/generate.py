"""Continuing a prompt with cached decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .cache import init_cache
from .config import Config
from .model import Params, forward

Jit = Callable[..., Any]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; ``temperature=0`` takes the most likely one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        ranges = [
            (self.temperature >= 0, "temperature must not be negative"),
            (self.top_k >= 0, "top_k must not be negative (0: off)"),
            (0 < self.top_p <= 1, "top_p must be in (0, 1]"),
            (0 <= self.min_p <= 1, "min_p must be in [0, 1]"),
            (self.repetition_penalty > 0, "repetition_penalty must be positive (1: off)"),
        ]
        for fine, message in ranges:
            if not fine:
                raise ValueError(f"generate: {message}")


def choose(logits: jax.Array, seen: Any, key: Any, sampling: Sampling) -> jax.Array:
    """The next token ``[B]`` int32 from ``logits [B, V]``; ``seen [B, V]`` marks tokens that occurred already."""
    logits = logits.astype(jnp.float32)
    if sampling.repetition_penalty != 1.0:
        penalised = jnp.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = jnp.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        best, _ = lax.top_k(logits, sampling.top_k)
        logits = jnp.where(logits >= best[:, -1:], logits, -jnp.inf)
    if sampling.top_p < 1 or sampling.min_p > 0:
        probabilities = jax.nn.softmax(logits, axis=-1)
        keep = probabilities >= sampling.min_p * jnp.max(probabilities, axis=-1, keepdims=True)
        if sampling.top_p < 1:
            ordered = jnp.flip(jnp.sort(probabilities, axis=-1), axis=-1)
            before = jnp.cumsum(ordered, axis=-1) - ordered
            least = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
            keep = keep & (probabilities >= least)
        logits = jnp.where(keep, logits, -jnp.inf)
    return jnp.argmax(logits + jax.random.gumbel(key, logits.shape), axis=-1).astype(jnp.int32)


@lru_cache(maxsize=32)
def decoder(config: Config, sampling: Sampling, jit: Jit) -> Callable[..., Any]:
    """``step(params, cache, tokens [B, T], seen, key) -> (next [B], cache, seen, key)``, compiled once a shape.

    Prefill and decoding are the same function at different T. The cache and ``seen`` are donated.
    """

    def step(params: Params, cache: Any, tokens: jax.Array, seen: Any, key: Any) -> tuple[Any, ...]:
        logits, cache = forward(params, config, tokens, cache=cache)
        if seen is not None:
            present = tokens[:, :, None] == np.arange(config.vocab_size, dtype=np.int32)
            seen = seen | jnp.any(present, axis=1)
        use = None
        if key is not None:
            key, use = jax.random.split(key)
        return choose(logits[:, -1], seen, use, sampling), cache, seen, key

    return jit(step, donate_argnums=(1, 3))


def stream(
    params: Params,
    config: Config,
    prompt_ids: Any,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    num_beams: int = 1,
    stop_ids: Sequence[int] = (),
    key: jax.Array | None = None,
    *,
    jit: Jit | None = None,
) -> Iterator[np.ndarray]:
    """Yield the continuation of ``prompt_ids [B, T]`` token by token, each ``[B]`` int32.

    A row that produced one of ``stop_ids`` goes on with padding; when every row has, the stream ends. Sampling
    (``temperature > 0``) needs ``key``. ``jit`` compiles the steps: ``k3jit.jit`` unless given.
    """
    if num_beams != 1:
        raise NotImplementedError("generate: beam search (num_beams > 1) is not built yet")
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    if temperature > 0 and key is None:
        raise ValueError("generate: temperature > 0 needs a random key, e.g. key=jax.random.key(0)")
    prompt = np.asarray(prompt_ids, np.int32)
    if prompt.ndim != 2 or prompt.shape[1] == 0:
        raise ValueError(f"generate: prompt_ids must be [B, T] with at least one token, got shape {list(prompt.shape)}")
    if prompt.min() < 0 or prompt.max() >= config.vocab_size:
        raise ValueError(f"generate: prompt_ids must be in [0, {config.vocab_size})")
    return _decode(params, config, prompt, max_new_tokens, sampling, tuple(stop_ids), key, jit or _default_jit())


def _decode(params, config, prompt, max_new_tokens, sampling, stop_ids, key, jit) -> Iterator[np.ndarray]:
    batch, length = prompt.shape
    step = decoder(config, sampling, jit)
    cache = init_cache(config, batch, length + max_new_tokens, params["embed_tokens"].dtype)
    seen = np.zeros((batch, config.vocab_size), bool) if sampling.repetition_penalty != 1.0 else None
    key = None if sampling.temperature == 0 else key
    padding = config.pad_token_id if config.pad_token_id is not None else 0
    running = np.ones(batch, bool)
    tokens: Any = prompt
    for _ in range(max_new_tokens):
        following, cache, seen, key = step(params, cache, tokens, seen, key)
        following = np.where(running, np.asarray(following), padding).astype(np.int32)
        yield following
        running &= ~np.isin(following, stop_ids)
        if not running.any():
            return
        tokens = following[:, None]


def generate(params: Params, config: Config, prompt_ids: Any, max_new_tokens: int, *args: Any, **kwargs: Any) -> np.ndarray:
    """Prompt and continuation ``[B, T + max_new_tokens]`` int32; the arguments are those of ``stream``.

    Rows that stopped early are filled up with the padding token.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    new = list(stream(params, config, prompt, max_new_tokens, *args, **kwargs))
    padding = config.pad_token_id if config.pad_token_id is not None else 0
    missing = np.full((prompt.shape[0], max_new_tokens - len(new)), padding, np.int32)
    return np.concatenate([prompt, *(token[:, None] for token in new), missing], axis=1)


def _default_jit() -> Jit:
    import k3jit  # here, not at the top: the model itself needs no Vulkan

    return k3jit.jit
