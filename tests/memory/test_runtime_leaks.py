"""Live buffers and Vulkan objects return to where they were."""

from __future__ import annotations

import gc
from collections.abc import Callable

import handmade
import numpy as np
import pytest
from k3jit.lowering.program import Program
from k3jit.runtime.caps import DeviceCaps
from k3jit.runtime.device import Device, default_device

DATA = np.arange(handmade.SIZE, dtype=np.int32)


def counts(device: Device) -> dict[str, int]:
    gc.collect()
    device.wait_idle()
    return {name: count for name, count in device.live().items() if name not in ("peak_bytes",)}


@pytest.mark.parametrize(
    "build",
    [
        lambda caps: handmade.adding_program(caps, alias=0),
        lambda caps: handmade.chain_program(caps, 7),
        lambda caps: handmade.counting_program(caps, 4),
    ],
    ids=["add", "chain", "loop"],
)
def test_hundred_calls(build: Callable[[DeviceCaps], Program]) -> None:
    device = default_device()
    assert isinstance(device, Device)
    executable = device.load(build(device.caps))
    executable.reserve()
    kept = [executable.run([device.upload(DATA)])[0] for _ in range(8)]
    del kept
    before = counts(device)
    for i in range(100):
        (result,) = executable.run([device.upload(DATA)], donate={0} if i % 2 else ())
    device.download(result)
    del result
    assert counts(device) == before


def test_loading_and_dropping() -> None:
    device = default_device()
    assert isinstance(device, Device)
    device.load(handmade.chain_program(device.caps, 3)).run([device.upload(DATA)])
    before = counts(device)
    for length in range(1, 6):
        executable = device.load(handmade.chain_program(device.caps, length))
        executable.run([device.upload(DATA)])
    del executable
    after = counts(device)
    assert after == before, "a dropped program leaves nothing, even while it still runs"
    assert after.get("Pipeline", 0) == len({id(p) for e in device.executables for p in e.pipelines})
