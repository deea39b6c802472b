"""Copies between host and device memory that the host can't see, or reads slowly, through staging chunks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from . import vk

if TYPE_CHECKING:
    from .device import Buffer, Device

CHUNK_BYTES = 16 << 20
CHUNKS_IN_FLIGHT = 4


class Transfer:
    """Staged copies of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        compute, transfer, host = (vk.constant(f"PIPELINE_STAGE_{name}_BIT") for name in ("COMPUTE_SHADER", "TRANSFER", "HOST"))
        reads, writes = vk.constant("ACCESS_MEMORY_READ_BIT"), vk.constant("ACCESS_MEMORY_WRITE_BIT")
        self._barrier = vk.struct("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=reads | writes)
        self._before = (compute | transfer, transfer)
        self._after = (transfer, compute | transfer | host)

    def write(self, target: Buffer, source: np.ndarray) -> None:
        """Copy uint8 `source` to the start of `target`; returns before the device has done it."""
        device, pending = self._device, deque[int]()
        for start in range(0, source.nbytes, CHUNK_BYTES):
            piece = source[start : start + CHUNK_BYTES]
            if len(pending) == CHUNKS_IN_FLIGHT:
                device.stream.wait(pending.popleft())
            staging = device.alloc_staging(piece.nbytes)
            assert staging.host is not None
            staging.host[:] = piece
            pending.append(self._copy(staging, 0, target, start, piece.nbytes))
        target.last_write = device.stream.submitted

    def read(self, source: Buffer, offset: int, nbytes: int) -> np.ndarray:
        """`nbytes` bytes of `source` from `offset`, as a new uint8 array."""
        device, result = self._device, np.empty(nbytes, np.uint8)
        for start in range(0, nbytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, nbytes - start)
            staging = device.alloc_staging(count)
            device.stream.wait(self._copy(source, offset + start, staging, 0, count))
            assert staging.host is not None
            result[start : start + count] = staging.host
        return result

    def _copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, nbytes: int) -> int:
        device, lib, none = self._device, vk.lib, vk.ffi.NULL
        region = vk.struct(
            "VkBufferCopy",
            srcOffset=source.block.start + source_offset,
            dstOffset=target.block.start + target_offset,
            size=nbytes,
        )
        with device.lock:
            commands = device.objects.allocate_commands(device.command_pool)
            begin = vk.struct("VkCommandBufferBeginInfo", flags=vk.constant("COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT"))
            vk.check(lib.vkBeginCommandBuffer(commands[0], begin), "vkBeginCommandBuffer")
            lib.vkCmdPipelineBarrier(commands[0], *self._before, 0, 1, self._barrier, 0, none, 0, none)
            lib.vkCmdCopyBuffer(commands[0], _handle(source), _handle(target), 1, region)
            lib.vkCmdPipelineBarrier(commands[0], *self._after, 0, 1, self._barrier, 0, none, 0, none)
            vk.check(lib.vkEndCommandBuffer(commands[0]), "vkEndCommandBuffer")
            value = device.stream.submit(device.stream.batch(commands), "a copy")
            device.stream.put_off(lambda: device.objects.free_commands(device.command_pool, commands))
        return value


def _handle(buffer: Buffer) -> Any:
    return buffer.block.slab.buffer  # type: ignore[attr-defined]
