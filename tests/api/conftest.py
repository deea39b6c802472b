"""A stand-in for device and compiler, so that these tests are about the interface alone: it evaluates jaxprs with JAX.

`zeros_only` makes it compute nothing at all, for tests that count what JAX itself does.
"""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np
import pytest
from k3jit.runtime.caps import NULL_CAPS

from k3jit import _compile, _device


class FakeBuffer:
    def __init__(self, device: FakeDevice, data: np.ndarray) -> None:
        self.device, self.data, self.pinned = device, data, False
        device.live_count += 1

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __del__(self) -> None:
        self.device.live_count -= 1


class FakeProgram:
    """Stands for a compiled jaxpr."""

    def __init__(self, closed: Any, name: str, donated: frozenset[int]) -> None:
        self.closed, self.name, self.donated = closed, name, donated
        self.buffers = [types.SimpleNamespace(kind="output", nbytes=0, alias=None) for _ in closed.out_avals]
        self.outputs = [types.SimpleNamespace(buffer=i) for i in range(len(closed.out_avals))]
        self.kernels: list[Any] = []
        self.spirv: list[bytes] = []
        self.steps: list[Any] = []
        self.decisions: list[str] = []
        self.texts: dict[str, str] = {}
        self.arena_bytes = self.unplanned_bytes = self.flops = 0


class FakeExecutable:
    dispatches = 0

    def __init__(self, device: FakeDevice, program: FakeProgram) -> None:
        self.device, self.program = device, program

    def run(self, inputs: Any, donate: Any = ()) -> list[FakeBuffer]:
        self.device.calls.append((self.program.name, len(inputs), tuple(donate)))
        closed = self.program.closed
        if self.device.zeros_only:
            results = [np.zeros(*_physical(aval)) for aval in closed.out_avals]
        else:
            values = [_logical(b.data, aval) for b, aval in zip(inputs, closed.in_avals, strict=True)]
            results = [_host(v) for v in jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *values)]
        return [FakeBuffer(self.device, np.frombuffer(r.tobytes(), np.uint8)) for r in results]


def _physical(aval: Any) -> tuple[tuple[int, ...], Any]:
    return ((*aval.shape, 2), np.uint32) if _compile.is_key(aval.dtype) else (aval.shape, aval.dtype)


def _logical(data: np.ndarray, aval: Any) -> Any:
    shape, dtype = _physical(aval)
    value = np.frombuffer(data.tobytes(), dtype).reshape(shape)
    if _compile.is_key(aval.dtype):
        return jax.random.wrap_key_data(value)
    return jax.lax.convert_element_type(value, jax.numpy.asarray(value).dtype) if value.ndim else jax.numpy.asarray(value)


def _host(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if _compile.is_key(value.dtype) else value)


class FakeDevice:
    index, kind, driver, name, caps, missing = 0, "cpu", "fake", "fake", NULL_CAPS, ()

    def __init__(self, name: str = "fake") -> None:
        self.name, self.calls, self.zeros_only, self.live_count = name, [], False, 0

    def upload(self, data: np.ndarray) -> FakeBuffer:
        return FakeBuffer(self, np.frombuffer(data.tobytes(), np.uint8))

    def download(self, buffer: FakeBuffer) -> np.ndarray:
        return buffer.data.copy()

    def view(self, buffer: FakeBuffer) -> np.ndarray:
        buffer.pinned = True
        return buffer.data

    def load(self, program: FakeProgram) -> FakeExecutable:
        return FakeExecutable(self, program)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    fake = FakeDevice()

    def lower(closed: Any, caps: Any, name: str, donated: frozenset[int], *, use_cache: bool) -> FakeProgram:
        _device.counters["compiles"] += 1
        return FakeProgram(closed, name, donated)

    monkeypatch.setattr(_compile, "lower", lower)
    monkeypatch.setattr(_device, "default_device", lambda: fake)
    return fake
