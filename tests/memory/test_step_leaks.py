"""A hundred calls of a compiled training step leave live buffers and Vulkan objects where they were."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from k3jit.runtime.device import Device, default_device
from tiny_step import batches, tiny_step

import k3jit

CALLS = 100


def live(device: Device) -> dict[str, int]:
    gc.collect()
    device.wait_idle()
    return {name: count for name, count in device.live().items() if name != "peak_bytes"}


def hundred_calls(step: Any, state: Any, inputs: list[Any], donate: tuple[int, ...]) -> None:
    device = default_device()
    assert isinstance(device, Device)
    compiled = k3jit.jit(step, donate_argnums=donate)
    for number in range(8):  # memory pool and command buffers reach their size
        *state, loss = compiled(*state, inputs[number % len(inputs)])
        float(loss)
    for executable in device.executables:
        executable.reserve()
    before = live(device)
    for number in range(CALLS):
        *state, loss = compiled(*state, inputs[number % len(inputs)])
        if number % 10 == 0:
            float(loss)
    assert np.isfinite(float(loss))
    assert live(device) == before


@pytest.mark.parametrize("donate", [(), (0, 1)], ids=["kept", "donated"])
def test_dense_step(donate: tuple[int, ...]) -> None:
    def step(params: Any, momentum: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            state, _ = lax.scan(lambda s, row: (jnp.tanh(s @ params["w"] + row), None), jnp.zeros((4, 8)), x)
            return jnp.mean((state * params["scale"] - 0.5) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum, value

    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((8, 8), np.float32), "scale": np.ones(8, np.float32)}
    inputs = [rng.standard_normal((6, 4, 8), np.float32) for _ in range(3)]
    hundred_calls(step, [params, jax.tree.map(np.zeros_like, params)], inputs, donate)


def test_model_step() -> None:
    step, params, state = tiny_step()
    hundred_calls(step, [params, state], batches(3), (0, 1))


def test_dropping_a_step_frees_it() -> None:
    device = default_device()
    assert isinstance(device, Device)

    def use(scale: float) -> float:
        step = k3jit.jit(lambda x: (jnp.cumsum(x @ x.T, 0) * scale).sum())
        return float(step(np.ones((9, 9), np.float32)))

    use(1.0)
    before = live(device)
    for scale in (2.0, 3.0, 4.0):
        use(scale)
    after = live(device)
    assert {n: after[n] for n in ("buffers", "bytes") if n in after} == {
        n: before[n] for n in ("buffers", "bytes") if n in before
    }
