"""Choosing tokens, and the loop around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from k3jit.models import k3
from k3jit.models.k3.generate import Sampling, choose

from .test_model import random_ids, small

LOGITS = jnp.log(jnp.asarray([[0.5, 0.3, 0.15, 0.05]]))


def drawn(sampling: Sampling) -> set[int]:
    keys = jax.random.split(jax.random.key(0), 200)
    return set(np.asarray(jax.vmap(lambda key: choose(LOGITS, None, key, sampling))(keys)).reshape(-1).tolist())


def test_sampling_limits() -> None:
    assert drawn(Sampling(1.0)) == {0, 1, 2, 3}
    assert drawn(Sampling(1.0, top_k=2)) == {0, 1}
    assert drawn(Sampling(1.0, top_p=0.79)) == {0, 1}
    assert drawn(Sampling(1.0, top_p=0.81)) == {0, 1, 2}
    assert drawn(Sampling(1.0, min_p=0.29)) == {0, 1, 2}
    assert drawn(Sampling(0.01)) == {0}


def test_repetition_penalty() -> None:
    seen = jnp.asarray([[True, False, False, False]])
    assert int(choose(LOGITS, seen, None, Sampling(repetition_penalty=2.0))[0]) == 1


def test_generate_stops_and_pads() -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    prompt = random_ids(config, 2, 5)
    free = k3.generate(params, config, prompt, 6, jit=jax.jit)
    assert free.shape == (2, 11)
    stop = int(free[0, 6])
    stopped = k3.generate(params, config, prompt, 6, stop_ids=[stop], jit=jax.jit)
    for row, reference in zip(stopped, free, strict=True):
        ends = np.flatnonzero(reference[5:] == stop)
        end = 5 + ends[0] + 1 if ends.size else 11
        np.testing.assert_array_equal(row[:end], reference[:end])
        assert (row[end:] == config.pad_token_id).all()


def test_sampling_is_reproducible_and_streams_the_same() -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    prompt = random_ids(config, 1, 3)
    options = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.2, "key": jax.random.key(7), "jit": jax.jit}
    whole = k3.generate(params, config, prompt, 8, **options)
    parts = np.stack(list(k3.stream(params, config, prompt, 8, **options)), axis=1)
    np.testing.assert_array_equal(whole[:, 3:], parts)


@pytest.mark.parametrize(
    "options", [{"top_p": 0.0}, {"temperature": -1.0}, {"temperature": 1.0}, {"min_p": 2.0}, {"top_k": -1}]
)
def test_bad_options(options: dict[str, float]) -> None:
    config = small()
    with pytest.raises(ValueError, match="generate:"):
        k3.generate({}, config, np.zeros((1, 2), np.int32), 1, jit=jax.jit, **options)


def test_prompt_outside_the_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"\[0, 32\)"):
        k3.generate({}, small(), np.full((1, 2), 32), 1, jit=jax.jit)
