"""A training step runs on the Vulkan device alone: XLA stays idle, and of all it computes only the loss reaches the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import monitoring
from k3jit.runtime.device import Device
from tiny_step import batches, tiny_step

import k3jit
from k3jit import debug

STEPS = 4  # one cold, three warm


def test_training_step_leaves_xla_and_the_host_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    step, params, state = tiny_step()
    copied: list[int] = []
    download, view = Device.download, Device.view

    def counted_download(device: Device, *args: Any, **kwargs: Any) -> np.ndarray:
        found = download(device, *args, **kwargs)
        copied.append(found.nbytes)
        return found

    def counted_view(device: Device, *args: Any, **kwargs: Any) -> np.ndarray | None:
        found = view(device, *args, **kwargs)
        copied.append(0 if found is None else found.nbytes)
        return found

    monkeypatch.setattr(Device, "download", counted_download)
    monkeypatch.setattr(Device, "view", counted_view)
    compiled = k3jit.jit(step, donate_argnums=(0, 1))
    leaves = len(jax.tree.leaves((params, state)))
    events: list[str] = []
    uploads: list[int] = []
    losses: list[float] = []
    jax.clear_caches()  # whatever XLA runs from here on, it has to compile first
    before = debug.counters()
    monitoring.register_event_duration_secs_listener(lambda event, duration, **_: events.append(event))
    try:
        for batch in batches(STEPS):
            params, state, loss = compiled(params, state, batch)
            losses.append(float(loss))
            uploads.append(debug.counters()["uploads"] - before["uploads"] - sum(uploads))
    finally:
        monitoring.clear_event_listeners()
    after = debug.counters()
    assert any("trace" in e for e in events), "the listener hears nothing"
    assert not [e for e in events if "backend_compile" in e or "jaxpr_to_mlir" in e]
    assert copied == [4] * STEPS, "bytes copied to the host: one float32 a step"
    assert uploads[0] > leaves and uploads[1:] == [1] * (STEPS - 1), (
        "state and constants go to the device once, then a batch a step"
    )
    changes = {name: after[name] - before[name] for name in after}
    assert changes["host_reads"] == changes["calls"] == STEPS and changes["compiles"] == 1 and changes["eager_transfers"] == 0
    assert all(type(leaf) is k3jit.Array for leaf in jax.tree.leaves((params, state)))
    assert np.all(np.isfinite(losses)) and losses[-1] != losses[0]


def test_training_step_agrees_with_jax() -> None:
    step, *start = tiny_step()
    ours, theirs = k3jit.jit(step, donate_argnums=(0, 1)), jax.jit(step)
    mine, wanted = list(start), list(start)
    for batch in batches(2):
        *mine, loss = ours(*mine, batch)
        *wanted, reference = theirs(*wanted, batch)
        np.testing.assert_allclose(float(loss), float(reference), rtol=2e-6)
