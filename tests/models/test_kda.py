"""The KDA operator: reference tensors, known answers, and agreement of its two forms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from k3jit.models import k3
from k3jit.models.k3.conv import causal_conv
from k3jit.models.k3.kda import decay_gate, unit_lower_inverse

from .golden import known_answers, load_case
from .jits import UNDER, Under, ids

under_f32 = pytest.mark.parametrize("under", UNDER[:2], ids=ids)


def random_inputs(batch: int, length: int, heads: int, dim: int, gates: str = "random", seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (batch, length, heads, dim)
    q, k, v, f = (rng.standard_normal(shape) for _ in range(4))
    f = {"random": f, "full": np.full(shape, 200.0), "none": np.full(shape, -200.0)}[gates]
    return {
        "q": q,
        "k": k,
        "v": v,
        "f": f,
        "b": rng.standard_normal(shape[:3]),
        "A_log": rng.uniform(-1, 1, heads),
        "dt_bias": rng.standard_normal((heads, dim)),
        "initial_state": rng.standard_normal((batch, heads, dim, dim)),
    }


def cast(inputs: dict[str, np.ndarray], dtype: Any) -> dict[str, Any]:
    return {name: value.astype(dtype) for name, value in inputs.items()}


@under_f32
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("gate", ["lower", "softplus"])
def test_reference(number: int, gate: str, under: Under) -> None:
    expected = load_case("kda_op").expected
    args = [expected[f"{number}.{name}"] for name in ("q", "k", "v", "f", "b", "A_log", "dt_bias", "h0")]
    bound = -5.0 if gate == "lower" else None

    def both(*args):
        forms = [k3.kda(*args, gate_lower_bound=bound, chunk_size=size) for size in (16, None)]
        return forms, decay_gate(args[3], args[5], args[6], bound)

    forms, decay = under.jit(both)(*args)
    np.testing.assert_allclose(decay, expected[f"{number}.g_{gate}"], rtol=2e-6, atol=1e-6)
    suffix = "lower_f64" if gate == "lower" else "softplus"
    for out, state in forms:
        for value, name in ((out, "o"), (state, "hT")):
            reference = expected[f"{number}.{name}_{suffix}"]
            assert np.abs(np.asarray(value) - reference).max() <= 2e-5 * np.abs(reference).max()


@pytest.mark.parametrize("length", [1, 15, 16, 33, 64])
@pytest.mark.parametrize("gates", ["random", "full", "none"])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_chunked_equals_recurrent_in_float64(length: int, gates: str, bound: float | None) -> None:
    with jax.enable_x64(True):
        inputs = random_inputs(1, length, 2, 8, gates)
        forms = [
            jax.jit(lambda x, size=size: k3.kda(**x, gate_lower_bound=bound, chunk_size=size))(inputs) for size in (None, 16)
        ]
        for recurrent, chunked in zip(*forms, strict=True):
            np.testing.assert_allclose(chunked, recurrent, rtol=0, atol=1e-13)


@under_f32
@pytest.mark.parametrize("gates", ["random", "full", "none"])
def test_float32_error_and_gradient(gates: str, under: Under) -> None:
    """Both forms in float32 against the recurrence in float64, values and gradients, over several chunks and a partial one."""
    inputs = random_inputs(1, 40, 2, 8, gates, seed=3)
    weight = np.random.default_rng(4).standard_normal(inputs["v"].shape)

    def value_and_grads(inputs, weight, size):
        def objective(inputs):
            out, state = k3.kda(**inputs, chunk_size=size)
            return jnp.sum(out * weight) + jnp.sum(state * state), out

        (_, out), grads = jax.value_and_grad(objective, has_aux=True)(inputs)
        return {"out": out, **grads}

    with jax.enable_x64(True):
        exact = jax.jit(value_and_grads, static_argnums=2)(inputs, weight, None)
        exact = {name: np.asarray(value) for name, value in exact.items()}
    both = under.jit(lambda inputs, weight: [value_and_grads(inputs, weight, size) for size in (16, None)])
    for form in both(cast(inputs, np.float32), weight.astype(np.float32)):
        for name, reference in exact.items():
            largest = max(float(np.abs(reference).max()), 1e-3)
            assert np.abs(np.asarray(form[name]) - reference).max() <= 2e-5 * largest, name


@under_f32
def test_delta_overwrite(under: Under) -> None:
    """Equal keys, beta 1 and no decay: each step overwrites the state, where an inverse by squaring diverges."""
    case = known_answers()["delta_overwrite"]
    key = np.asarray(case["k"], np.float32)
    length = max(case["T"])  # the first T outputs do not depend on what follows
    v = np.cos(0.11 * np.arange(length)[:, None] - 0.4 * np.arange(4)).astype(np.float32)
    keys = np.tile(key, (1, length, 1, 1))
    gate, beta = np.full((1, length, 1, 4), case["gate_logit"]), np.full((1, length, 1), case["beta_logit"])
    args = (keys, keys, v[None, :, None], gate.astype(np.float32), beta.astype(np.float32), np.zeros(1), np.zeros((1, 4)))
    args = tuple(np.asarray(arg, np.float32) for arg in args)

    def first(count, *args):
        return (arg[:, :count] if arg.ndim > 2 else arg for arg in args)

    def run(*args):
        return [k3.kda(*first(count, *args), chunk_size=size)[0] for count in case["T"] for size in (16, None)]

    for out in under.jit(run)(*args):
        out = np.asarray(out)[0, :, 0]
        np.testing.assert_allclose(out, 0.5 * v[: out.shape[0]], rtol=0, atol=1e-5)


@under_f32
def test_one_step(under: Under) -> None:
    case = known_answers()["kda_one_step"]
    q, k, v, f = (np.asarray(case[name], np.float32).reshape(1, 1, 1, 2) for name in ("q", "k", "v", "gate_logit"))
    b, a_log, dt_bias = (
        np.full((1, 1, 1), case["beta_logit"], np.float32),
        np.zeros(1, np.float32),
        np.zeros((1, 2), np.float32),
    )
    run = under.jit(lambda *args: [k3.kda(*args, chunk_size=size) for size in (16, None)])
    for out, state in run(q, k, v, f, b, a_log, dt_bias):
        np.testing.assert_allclose(np.asarray(state)[0, 0], case["state"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(np.asarray(out)[0, 0, 0], case["output_scale_rsqrt2"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(np.asarray(out)[0, 0, 0] * 2**0.5, case["output_scale_1"], rtol=0, atol=2e-6)


@under_f32
def test_bounded_gate(under: Under) -> None:
    case = known_answers()["bounded_gate"]
    f = np.asarray(case["f"], np.float32).reshape(1, 1, 1, 3)
    gate = under.jit(lambda f: decay_gate(f, jnp.zeros(1), jnp.zeros((1, 3)), case["gate_lower_bound"]))
    np.testing.assert_allclose(np.asarray(gate(f)).reshape(-1), case["g"], rtol=0, atol=1e-6)


@under_f32
def test_unit_lower_inverse(under: Under) -> None:
    lower = np.tril(np.random.default_rng(0).standard_normal((3, 16, 16)), -1).astype(np.float32)

    def value_and_tangent(lower):
        return jax.jvp(unit_lower_inverse, (lower,), (lower,))

    inverse, tangent = under.jit(value_and_tangent)(lower)
    exact = np.linalg.inv(np.eye(16) + lower.astype(np.float64))
    np.testing.assert_allclose(inverse, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    direction = -exact @ lower @ exact
    np.testing.assert_allclose(tangent, direction, rtol=0, atol=1e-5 * np.abs(direction).max())


@under_f32
def test_short_convolution(under: Under) -> None:
    """T below width - 1: the gradient through the carried tail equals that of the sequence in one piece."""
    case = known_answers()["conv_short"]
    rng = np.random.default_rng(0)
    width, channels = case["width"], 3
    weight, whole = (rng.standard_normal(s).astype(np.float32) for s in ((channels, 1, width), (2, 8, channels)))
    for length in case["T"]:
        before, scale = whole[:, :-length], rng.standard_normal((2, length, channels)).astype(np.float32)

        def pieces(before, after, weight, scale=scale):
            _, tail = causal_conv(before, weight)
            out, _ = causal_conv(after, weight, tail)
            return jnp.sum(out * scale)

        def at_once(before, after, weight, scale=scale, length=length):
            out, _ = causal_conv(jnp.concatenate([before, after], axis=1), weight)
            return jnp.sum(out[:, -length:] * scale)

        args = (before, whole[:, -length:], weight)
        got = under.jit(jax.grad(pieces, argnums=(0, 1, 2)))(*args)
        for value, reference in zip(got, jax.grad(at_once, argnums=(0, 1, 2))(*args), strict=True):
            np.testing.assert_allclose(value, reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [16, None])
def test_segments_equal_separate_sequences(size: int | None) -> None:
    lengths = known_answers()["packed_lengths"]["lengths"]
    inputs = random_inputs(1, sum(lengths), 1, 4)
    del inputs["initial_state"]
    segments = np.repeat(np.arange(len(lengths)), lengths)[None].astype(np.int32)
    with jax.enable_x64(True):
        packed, last = jax.jit(lambda x: k3.kda(**x, chunk_size=size, segment_ids=segments))(inputs)
        edges = np.cumsum([0, *lengths])
        for start, end in pairwise(edges):
            part = {name: value[:, start:end] if value.ndim > 2 else value for name, value in inputs.items()}
            alone, state = k3.kda(**part, chunk_size=size)
            np.testing.assert_allclose(packed[:, start:end], alone, rtol=0, atol=1e-12)
        np.testing.assert_allclose(last, state, rtol=0, atol=1e-12)


def test_bad_chunk_size() -> None:
    with pytest.raises(ValueError, match="power of two"):
        k3.kda(**cast(random_inputs(1, 4, 1, 4), np.float32), chunk_size=12)
