"""Time of every dispatch, by timestamps around each one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import vk
from .plan import Launch

if TYPE_CHECKING:
    from .device import Buffer, Device
    from .program import Executable


class Timer:
    """Two timestamps a dispatch, and the seconds they told."""

    def __init__(self, device: Device, kernels: Sequence[str], launches: Sequence[int]) -> None:
        self._device = device
        self._names = [kernels[kernel] for kernel in launches]
        self._count = max(1, 2 * len(launches))
        self._mask = np.uint64((1 << device.facts.timestamp_bits) - 1)
        self._seconds_a_tick = device.facts.timestamp_period * 1e-9
        if not self._seconds_a_tick:
            raise RuntimeError(f"{device.name} has no timestamps: kernels can't be timed on it")
        self._stage = vk.constant("PIPELINE_STAGE_COMPUTE_SHADER_BIT")
        kind = vk.constant("QUERY_TYPE_TIMESTAMP")
        self._pool = device.objects.create(
            "QueryPool", vk.struct("VkQueryPoolCreateInfo", queryType=kind, queryCount=self._count)
        )
        self.times: list[tuple[str, float]] = []

    def begin(self, commands: Any, first: int, count: int) -> None:
        """Reset the queries of a batch of `count` launches from number `first`."""
        vk.lib.vkCmdResetQueryPool(commands, self._pool, 2 * first, 2 * count)

    def mark(self, commands: Any, query: int) -> None:
        vk.lib.vkCmdWriteTimestamp(commands, self._stage, self._pool, query)

    def collect(self, launches: Sequence[Launch]) -> None:
        """Read the queries of a finished batch."""
        first, count = launches[0].number, 2 * len(launches)
        found = np.zeros(count, dtype=np.uint64)
        flags = vk.constant("QUERY_RESULT_64_BIT") | vk.constant("QUERY_RESULT_WAIT_BIT")
        result = vk.lib.vkGetQueryPoolResults(
            self._device.objects.device, self._pool, 2 * first, count, found.nbytes, vk.ffi.from_buffer(found), 8, flags
        )
        vk.check(result, "vkGetQueryPoolResults")
        spans = ((found[1::2] - found[::2]) & self._mask).astype(np.float64) * self._seconds_a_tick
        self.times += [(self._names[launch.number], float(span)) for launch, span in zip(launches, spans, strict=True)]

    def close(self) -> None:
        self._device.objects.destroy("QueryPool", self._pool)


def profile(executable: Executable, inputs: Sequence[Buffer]) -> list[tuple[str, float]]:
    """See `Executable.profile`."""
    from .program import EMPTY, Instance

    device = executable.device
    device.ready()
    with device.lock:
        timer = Timer(device, [kernel.name for kernel in executable.program.kernels], executable.plan.launches)
        try:
            instance = Instance(executable, timer)
            try:
                executable._start(instance, inputs, EMPTY)
                device.stream.wait(instance.value)
            finally:
                instance.release(device)
        finally:
            device.stream.wait_idle()
            timer.close()
    return timer.times
