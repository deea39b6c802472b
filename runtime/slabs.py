"""Slabs of device memory: one VkDeviceMemory with one VkBuffer over it, its address, and its mapping."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import vk
from .errors import OutOfDeviceMemory
from .memory import format_bytes


class VulkanSlab:
    """See `memory.Slab`. `buffer` is the VkBuffer, for copies."""

    def __init__(self, objects: vk.Objects, size: int, memory_type: int, mapped: bool) -> None:
        self._objects = objects
        self.size = size
        self.bytes: np.ndarray | None = None
        names = ("STORAGE_BUFFER_BIT", "SHADER_DEVICE_ADDRESS_BIT", "TRANSFER_SRC_BIT", "TRANSFER_DST_BIT")
        flags = sum(vk.constant(f"BUFFER_USAGE_{name}") for name in names)
        self.buffer = objects.create("Buffer", vk.struct("VkBufferCreateInfo", size=size, usage=flags))
        try:
            requirements = vk.ffi.new("VkMemoryRequirements*")
            vk.lib.vkGetBufferMemoryRequirements(objects.device, self.buffer, requirements)
            if not requirements.memoryTypeBits >> memory_type & 1:
                raise RuntimeError(f"memory type {memory_type} cannot hold storage buffers")
            address_info = vk.struct("VkMemoryAllocateFlagsInfo", flags=vk.constant("MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT"))
            info = vk.struct(
                "VkMemoryAllocateInfo", pNext=address_info, allocationSize=requirements.size, memoryTypeIndex=memory_type
            )
            self._memory = objects.allocate_memory(info)
        except BaseException:
            objects.destroy("Buffer", self.buffer)
            raise
        vk.check(vk.lib.vkBindBufferMemory(objects.device, self.buffer, self._memory, 0), "vkBindBufferMemory")
        self.address = int(
            vk.lib.vkGetBufferDeviceAddress(objects.device, vk.struct("VkBufferDeviceAddressInfo", buffer=self.buffer))
        )
        if mapped:
            pointer = vk.ffi.new("void**")
            vk.check(vk.lib.vkMapMemory(objects.device, self._memory, 0, (1 << 64) - 1, 0, pointer), "vkMapMemory")
            self.bytes = np.frombuffer(vk.ffi.buffer(pointer[0], size), dtype=np.uint8)

    def destroy(self) -> None:
        self.bytes = None
        self._objects.destroy("Buffer", self.buffer)
        self._objects.free_memory(self._memory)


class MemoryTypes:
    """Which memory types to use.

    Attributes:
        device: type for arrays; `mapped` tells whether the host sees it, `cached` whether the host reads it fast.
        table: type that the host writes and kernels read: argument tables.
        staging: type that the host reads fast: copies.
    """

    def __init__(self, physical: Any) -> None:
        found = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
        vk.lib.vkGetPhysicalDeviceMemoryProperties(physical, found)
        local, visible, coherent, cached = (
            vk.constant(f"MEMORY_PROPERTY_{name}_BIT")
            for name in ("DEVICE_LOCAL", "HOST_VISIBLE", "HOST_COHERENT", "HOST_CACHED")
        )
        types = [
            (int(found.memoryTypes[i].propertyFlags), int(found.memoryTypes[i].heapIndex)) for i in range(found.memoryTypeCount)
        ]
        self._heaps = [int(found.memoryHeaps[i].size) for i in range(found.memoryHeapCount)]
        # Bits above 0x1F (AMD's device-coherent types) need features that are off.
        usable = [i for i, (flags, _) in enumerate(types) if not flags & ~0x1F]

        def best(needed: int, liked: int) -> int | None:
            candidates = [i for i in usable if types[i][0] & needed == needed]
            return max(
                candidates, key=lambda i: (bin(types[i][0] & liked).count("1"), self._heaps[types[i][1]], -i), default=None
            )

        largest_local = max((self._heaps[types[i][1]] for i in usable if types[i][0] & local), default=0)
        direct = best(local | visible | coherent, cached)
        # K3JIT_MAP=0 takes the path of devices whose memory the host can't see.
        allow_mapping = os.environ.get("K3JIT_MAP", "1") != "0"
        # Small windows into a large heap are for tables; whole-heap visibility replaces staging.
        self.mapped = allow_mapping and direct is not None and self._heaps[types[direct][1]] >= largest_local // 2
        plain = best(local, 0)
        chosen = direct if self.mapped else plain
        table, staging = best(visible | coherent, local | cached), best(visible | coherent, cached)
        if chosen is None or table is None or staging is None:
            raise RuntimeError("the device has no memory that is local to it, or none that the host can write")
        self.device, self.table, self.staging = chosen, chosen if self.mapped else table, staging
        self.cached = bool(types[self.device][0] & cached) and self.mapped
        self.heap_of = {i: heap for i, (_, heap) in enumerate(types)}
        self._taken = [0] * len(self._heaps)

    def make(self, objects: vk.Objects, size: int, memory_type: int, mapped: bool) -> VulkanSlab:
        """A slab, counted against its heap: drivers on shared memory overcommit, and the process would be killed later."""
        heap = self.heap_of[memory_type]
        if self._taken[heap] + size > self._heaps[heap]:
            raise OutOfDeviceMemory(f"The heap holds {format_bytes(self._heaps[heap])}.")
        slab = _CountedSlab(objects, size, memory_type, mapped)
        slab.count = (self._taken, heap)
        self._taken[heap] += size
        return slab


class _CountedSlab(VulkanSlab):
    count: tuple[list[int], int]

    def destroy(self) -> None:
        super().destroy()
        taken, heap = self.count
        taken[heap] -= self.size
