"""The null device runs the same programs, interpreted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from k3jit.runtime.device import default_device, devices
from k3jit.runtime.errors import OutOfDeviceMemory
from k3jit.runtime.null import NullDevice


@pytest.fixture
def device() -> NullDevice:
    return NullDevice()


def numbers(start: int = 0) -> np.ndarray:
    return np.arange(start, start + handmade.SIZE, dtype=np.int32)


def fetch(device: NullDevice, buffer: object) -> np.ndarray:
    return device.download(buffer).view(np.int32)  # type: ignore[arg-type]


def test_chain_and_counts(device: NullDevice) -> None:
    executable = device.load(handmade.chain_program(device.caps, 6))
    (result,) = executable.run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() + 6)
    assert executable.dispatches == device.counters["dispatches"] == 6


def test_loop_and_packed(device: NullDevice) -> None:
    (result,) = device.load(handmade.counting_program(device.caps, 7)).run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() + 9)
    results = device.load(handmade.packed_program(device.caps, 3)).run([device.upload(numbers(10 * i)) for i in range(3)])
    for i, packed in enumerate(results):
        np.testing.assert_array_equal(fetch(device, packed), numbers(10 * i) + i + 1)


def test_donation(device: NullDevice) -> None:
    executable = device.load(handmade.adding_program(device.caps, alias=0))
    buffer = device.upload(numbers())
    (result,) = executable.run([buffer], donate={0})
    assert result is buffer
    (kept,) = executable.run([buffer])
    assert kept is not buffer
    np.testing.assert_array_equal(fetch(device, kept), numbers() + 2)


def test_live_counts_return_to_zero(device: NullDevice) -> None:
    executable = device.load(handmade.adding_program(device.caps))
    (result,) = executable.run([device.upload(numbers())])
    assert device.live() == {"buffers": 1, "bytes": handmade.BYTES}
    del result
    assert device.live() == {"buffers": 0, "bytes": 0}


def test_chosen_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caps = replace(NULL_CAPS, name="tiny", subgroup_size=4, storage=(), max_buffer_bytes=1000)
    path = tmp_path / "tiny.json"
    path.write_text(caps.to_json())
    assert json.loads(path.read_text())["name"] == "tiny"
    monkeypatch.setenv("K3JIT_DEVICE", f"null:{path}")
    device = default_device()
    assert isinstance(device, NullDevice) and device.caps == caps == DeviceCaps.from_json(path.read_text())
    assert devices() == [device] and default_device() is device
    with pytest.raises(OutOfDeviceMemory, match="the weights of 1001 bytes"):
        device.alloc(1001, "the weights")
