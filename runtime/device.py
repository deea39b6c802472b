"""Devices: finding and choosing one, its buffers, and loading programs on it."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import vk
from .errors import NoDevice, OutOfDeviceMemory
from .memory import Block, Pool, format_bytes
from .pipeline import Pipelines
from .probe import Probe, feature_structs, probe
from .slabs import MemoryTypes
from .stream import Stream
from .transfer import Transfer

if TYPE_CHECKING:
    from ..lowering.program import Program
    from .null import NullDevice
    from .program import Executable

PREFERENCE = ("discrete", "integrated", "virtual", "cpu")


class Buffer:
    """Device memory. Dropping the last reference frees it, also while the device still uses it.

    Attributes:
        address: device address of the first byte.
        last_write: the submission that writes it last; 0 for data from the host.
        pinned: handed out more than once (a view, an argument returned as a result): never overwritten in place.
    """

    __slots__ = ("__weakref__", "_pool", "address", "block", "device", "last_write", "nbytes", "pinned")

    def __init__(self, device: Device, pool: Pool, block: Block, nbytes: int) -> None:
        self.device, self._pool, self.block, self.nbytes = device, pool, block, nbytes
        self.address = block.slab.address + block.start
        self.last_write = 0
        self.pinned = False

    @property
    def owner(self) -> str:
        return self.block.owner

    @property
    def host(self) -> np.ndarray | None:
        """The bytes, where the host sees them; no waiting, and no reference to the buffer is kept."""
        mapped = self.block.slab.bytes
        return None if mapped is None else mapped[self.block.start : self.block.start + self.nbytes]

    def __del__(self) -> None:
        self._pool.drop(self.block)

    def __repr__(self) -> str:
        return f"Buffer({self.nbytes} bytes at {self.address:#x} on {self.device.name}, owner {self.owner!r})"


class _View:
    """Array interface over a buffer: the array made from it keeps the buffer alive."""

    def __init__(self, buffer: Buffer, host: np.ndarray) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "shape": host.shape,
            "typestr": "|u1",
            "data": (host.__array_interface__["data"][0], True),
        }


class Device:
    """One Vulkan device. Opened at first use; all methods may be called from any thread.

    Attributes:
        index: position in `devices()`.
        name, kind, driver: kind is "discrete", "integrated", "virtual" or "cpu".
        memory: bytes of its largest local heap.
        missing: features it lacks, each with the consequence.
        caps: what lowering may know of it.
        messages: what the validation layer said (K3JIT_VALIDATE).
    """

    def __init__(self, index: int, physical: Any, facts: Probe, messages: list[str]) -> None:
        self.index, self._physical, self.facts, self.messages = index, physical, facts, messages
        self.name, self.kind, self.caps = facts.caps.name, facts.caps.kind, facts.caps
        self.driver, self.memory, self.missing = facts.driver, facts.memory, facts.missing
        self.lock = threading.RLock()
        self._opened = False
        self._arena: Buffer | None = None
        self.executables: weakref.WeakSet[Executable] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Device({self.index}: {self.name}, {self.kind}, {self.driver}, {format_bytes(self.memory)})"

    # -- opening -----------------------------------------------------------------------------------------------
    def ready(self) -> None:
        """Open the device if it is not; raise where it can't be used."""
        if vk.forked():
            raise RuntimeError(
                f"{self.name} was opened before this process was forked, and Vulkan does not survive a fork. "
                "Start workers with the 'spawn' or 'forkserver' method, or use k3jit in one process only."
            )
        if not self._opened:
            with self.lock:
                if not self._opened:
                    self._open()

    def _open(self) -> None:
        facts = self.facts
        if facts.floor:
            reasons = "; ".join(facts.floor)
            raise NoDevice(f"{self.name} can't be used: {reasons}. Update its driver or set K3JIT_DEVICE to another one.")
        api_minor = 3 if "subgroupSizeControl" in facts.features or "maintenance4" in facts.features else 2
        queue_info = vk.struct(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=facts.queue_family,
            queueCount=1,
            pQueuePriorities=vk.ffi.new("float[1]", [1.0]),
        )
        info = vk.struct(
            "VkDeviceCreateInfo",
            pNext=feature_structs(facts.features, api_minor),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue_info,
        )
        out = vk.ffi.new("VkDevice*")
        vk.check(vk.lib.vkCreateDevice(self._physical, info, vk.ffi.NULL, out), f"opening {self.name}")
        self.objects = objects = vk.Objects(out[0])
        queue = vk.ffi.new("VkQueue*")
        vk.lib.vkGetDeviceQueue(objects.device, facts.queue_family, 0, queue)
        self.stream = stream = Stream(objects, queue[0], self.name)
        self.types = types = MemoryTypes(self._physical)

        self._pools: dict[tuple[int, bool], Pool] = {}

        def pool(memory_type: int, mapped: bool, name: str, **sizes: int) -> Pool:
            def make(size: int) -> Any:
                return types.make(objects, size, memory_type, mapped)

            key = (memory_type, mapped)
            if key not in self._pools:
                self._pools[key] = Pool(
                    make, stream.reached, stream.wait, lambda: stream.submitted, f"{self.name}, {name}", **sizes
                )
            return self._pools[key]

        small = {"slab_bytes": 8 << 20, "keep_empty_bytes": 64 << 20}
        self.pool = pool(types.device, types.mapped, "device memory")
        self.table_pool = pool(types.table, True, "memory for arguments", **small)
        self.staging_pool = pool(types.staging, True, "memory for copies", **small)
        flags = vk.constant("COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT")
        pool_info = vk.struct("VkCommandPoolCreateInfo", flags=flags, queueFamilyIndex=facts.queue_family)
        self.command_pool = objects.create("CommandPool", pool_info)
        self.pipelines = Pipelines(objects, facts.pipeline_key, facts.required_subgroup, facts.full_subgroups, stream.put_off)
        self.transfer = Transfer(self)
        self._opened = True
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if vk.forked():
            return
        try:
            with self.lock:
                self.pipelines.save()
                self.stream.wait_idle()
                instance = vk.instance()
                instance.ended = True
                if instance.validate:  # the layer ends its threads with the device; left to the process, they abort it
                    self.objects.close()
        except (RuntimeError, KeyboardInterrupt):
            pass  # the process ends; a lost device has been reported where it was lost

    # -- buffers -----------------------------------------------------------------------------------------------
    def alloc(self, nbytes: int, owner: str = "") -> Buffer:
        """Uninitialised memory for `nbytes` bytes. Raises OutOfDeviceMemory."""
        self.ready()
        return self._take(self.pool, nbytes, owner, False)

    def alloc_table(self, nbytes: int, owner: str = "") -> Buffer:
        """Memory that the host may write at once through `Buffer.host` and kernels may address."""
        self.ready()
        return self._take(self.table_pool, nbytes, owner, True)

    def alloc_staging(self, nbytes: int) -> Buffer:
        """Memory for a copy, that the host may write at once and reads fast."""
        self.ready()
        return self._take(self.staging_pool, nbytes, "staging", True)

    def _take(self, pool: Pool, nbytes: int, owner: str, host: bool) -> Buffer:
        self.check_size(nbytes, owner or "a buffer")
        with self.lock:
            self.stream.run_put_off()
            return Buffer(self, pool, pool.take(nbytes, owner, host), nbytes)

    def check_size(self, nbytes: int, what: str) -> None:
        """Raise OutOfDeviceMemory where no buffer of this device can hold `nbytes`."""
        if nbytes > self.caps.max_buffer_bytes:
            raise OutOfDeviceMemory(
                f"{what} of {format_bytes(nbytes)} is larger than any buffer of {self.name} may be "
                f"({format_bytes(self.caps.max_buffer_bytes)}). Split the array or use a narrower element type."
            )

    def upload(self, data: Any, owner: str = "") -> Buffer:
        """Copy host bytes (bytes-like or any NumPy array, in C order) to a new buffer."""
        source = _as_bytes(data)
        self.ready()
        if not self.types.mapped:
            buffer = self.alloc(source.nbytes, owner)
            self.transfer.write(buffer, source)
            return buffer
        buffer = self._take(self.pool, source.nbytes, owner, True)
        host = buffer.host
        assert host is not None
        host[:] = source
        return buffer

    def download(self, buffer: Buffer, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Bytes `offset` up to `offset + nbytes` of a buffer, as a new uint8 array; waits for its last write only."""
        count = buffer.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or count < 0 or offset + count > buffer.nbytes:
            raise ValueError(f"download of {count} bytes at {offset} from a buffer of {buffer.nbytes} bytes")
        self.ready()
        host = buffer.host
        if host is None or not self.types.cached:
            return self.transfer.read(buffer, offset, count)
        self.stream.wait(buffer.last_write)
        return host[offset : offset + count].copy()

    def view(self, buffer: Buffer) -> np.ndarray | None:
        """The buffer as a read-only uint8 array without a copy, or None where the host can't see it or reads it slowly.

        Waits for its last write. The array keeps the memory alive and pins it.
        """
        self.ready()
        host = buffer.host
        if host is None or not self.types.cached:
            return None
        self.stream.wait(buffer.last_write)
        buffer.pinned = True
        return np.asarray(_View(buffer, host))

    def arena(self, nbytes: int) -> Buffer:
        """Scratch memory shared by all programs: the queue runs them one after the other. Grows, and then moves."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None  # the old one may make room for the new one
            self._arena = self.alloc(nbytes, "temporaries")
        return self._arena

    # -- programs ----------------------------------------------------------------------------------------------
    def load(self, program: Program) -> Executable:
        """Make a program ready to run: compile its kernels, upload its constants."""
        from .program import Executable

        self.ready()
        executable = Executable(self, program)
        self.executables.add(executable)
        return executable

    def wait_idle(self) -> None:
        """Block until everything submitted is finished."""
        if not self._opened:
            return
        self.ready()
        self.stream.wait(self.stream.submitted)
        with self.lock:
            if vk.instance().validate:  # the layer speaks of finished work from a thread of its own; this hears it out
                vk.check(vk.lib.vkDeviceWaitIdle(self.objects.device), f"waiting for {self.name}")
            self.stream.run_put_off()
            for pool in self._pools.values():
                pool.settle()

    def live(self) -> dict[str, int]:
        """Counts of what is alive: "buffers", "bytes", "slab_bytes", "peak_bytes", and Vulkan objects by type."""
        if not self._opened:
            return {"buffers": 0, "bytes": 0}
        self.ready()
        pools = self._pools.values()
        with self.lock:
            self.stream.run_put_off()
            blocks = [block for pool in pools for block in pool.live()]
            counts = {kind: count for kind, count in sorted(self.objects.counts.items()) if count}
        totals = {name: sum(getattr(pool, name) for pool in pools) for name in ("slab_bytes", "peak_bytes")}
        return {"buffers": len(blocks), "bytes": sum(block.size for block in blocks), **totals, **counts}

    def owners(self) -> dict[str, int]:
        """Bytes in use by owner."""
        found: dict[str, int] = {}
        with self.lock:
            for pool in self._pools.values() if self._opened else ():
                for block in pool.live():
                    found[block.owner] = found.get(block.owner, 0) + block.size
        return found


def _as_bytes(data: Any) -> np.ndarray:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8)


AnyDevice = Union[Device, "NullDevice"]
_found: dict[str, list[AnyDevice]] = {}
_found_lock = threading.Lock()


def _reset_lock() -> None:
    global _found_lock
    _found_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


def _null_choice() -> str:
    choice = os.environ.get("K3JIT_DEVICE", "")
    return choice if choice == "null" or choice.startswith("null:") else ""


def _list_devices() -> list[AnyDevice]:
    null = _null_choice()
    if null:
        from .null import NullDevice

        return [NullDevice.from_setting(null)]
    opened = vk.instance()
    handles = opened.physical_devices()
    if not handles:
        raise NoDevice(f"The Vulkan loader found no device. {vk.INSTALL_HINT}")
    return [Device(i, handle, probe(handle), opened.messages) for i, handle in enumerate(handles)]


def devices() -> list[AnyDevice]:
    """All devices, usable or not (see `Device.missing`). Raises NoDevice where there is none.

    With K3JIT_DEVICE=null or null:file.json it is the null device alone.
    """
    key = _null_choice()
    with _found_lock:
        if key not in _found:
            _found[key] = _list_devices()
        return list(_found[key])


def default_device() -> AnyDevice:
    """The device that K3JIT_DEVICE (an index, a part of the name, or null) names, else the strongest kind."""
    found = devices()
    choice = os.environ.get("K3JIT_DEVICE", "")
    listing = "; ".join(f"{device.index}: {device.name} ({device.kind})" for device in found)
    if choice and not _null_choice():

        def chosen(device: AnyDevice) -> bool:
            return str(device.index) == choice if choice.isdigit() else choice.lower() in device.name.lower()

        matches = [device for device in found if chosen(device)]
        if not matches:
            raise NoDevice(f"K3JIT_DEVICE={choice!r} matches no device. Present: {listing}")
        return matches[0]
    usable = [device for device in found if not (isinstance(device, Device) and device.facts.floor)]
    if not usable:
        reasons = "; ".join(f"{device.name}: {', '.join(device.missing)}" for device in found)
        raise NoDevice(f"No device meets the floor of Vulkan 1.2 with buffer device addresses: {reasons}. {vk.INSTALL_HINT}")
    return min(usable, key=lambda device: (PREFERENCE.index(device.kind), device.index))
