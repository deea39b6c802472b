"""The null device: the runtime's interface without Vulkan. Kernels are interpreted in NumPy, so lowering runs anywhere."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..lowering.dtypes import DTYPES
from ..lowering.program import Barrier, Dispatch, HostLoop, Program, Ref, Step
from ..lowering.tile import Kernel, Param
from .caps import NULL_CAPS, DeviceCaps
from .device import _as_bytes
from .errors import OutOfDeviceMemory

POISON = 0xFF  # what fresh memory holds: NaN to floats, so that a read before a write shows


class NullBuffer:
    """Memory of the null device: `data` is a uint8 array."""

    __slots__ = ("__weakref__", "data", "device", "owner", "pinned")

    def __init__(self, device: NullDevice, data: np.ndarray, owner: str) -> None:
        self.device, self.data, self.owner, self.pinned = device, data, owner, False
        device._count(1, data.nbytes)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __del__(self) -> None:
        self.device._count(-1, -self.data.nbytes)


class NullDevice:
    """Interprets programs in NumPy; see `Device` for the interface.

    Attributes:
        counters: "dispatches", "bytes read", "bytes written" and "workgroups" of all calls so far.
        check_races: calls raise RaceError where lanes of a workgroup race for shared memory. Slow.
    """

    index, kind, driver, missing = 0, "cpu", "interpreter", ()
    check_races = False

    def __init__(self, caps: DeviceCaps = NULL_CAPS) -> None:
        self.caps, self.name, self.memory = caps, caps.name, caps.max_buffer_bytes
        self.messages: list[str] = []
        self._live = [0, 0]
        self.counters = {"dispatches": 0, "workgroups": 0, "bytes read": 0, "bytes written": 0}
        self.executables: weakref.WeakSet[NullExecutable] = weakref.WeakSet()

    @classmethod
    def from_setting(cls, setting: str) -> NullDevice:
        """The device that K3JIT_DEVICE=null or null:file.json (a DeviceCaps as JSON) names."""
        path = setting.partition(":")[2]
        return cls(DeviceCaps.from_json(Path(path).read_text()) if path else NULL_CAPS)

    def __repr__(self) -> str:
        return f"NullDevice({self.caps.name})"

    def _count(self, buffers: int, nbytes: int) -> None:
        self._live[0] += buffers
        self._live[1] += nbytes

    def alloc(self, nbytes: int, owner: str = "") -> NullBuffer:
        if nbytes > self.caps.max_buffer_bytes:
            raise OutOfDeviceMemory(
                f"{owner or 'a buffer'} of {nbytes} bytes is larger than max_buffer_bytes ({self.caps.max_buffer_bytes})"
            )
        return NullBuffer(self, np.full(nbytes, POISON, np.uint8), owner)

    def upload(self, data: Any, owner: str = "") -> NullBuffer:
        return NullBuffer(self, _as_bytes(data).copy(), owner)

    def download(self, buffer: NullBuffer, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        count = buffer.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or count < 0 or offset + count > buffer.nbytes:
            raise ValueError(f"download of {count} bytes at {offset} from a buffer of {buffer.nbytes} bytes")
        return buffer.data[offset : offset + count].copy()

    def view(self, buffer: NullBuffer) -> np.ndarray | None:
        buffer.pinned = True
        shown = buffer.data[:]
        shown.flags.writeable = False
        return shown

    def load(self, program: Program) -> NullExecutable:
        executable = NullExecutable(self, program)
        self.executables.add(executable)
        return executable

    def wait_idle(self) -> None:
        """Nothing is ever in flight."""

    def live(self) -> dict[str, int]:
        return {"buffers": self._live[0], "bytes": self._live[1]}


class NullExecutable:
    """A program on the null device; see `Executable`."""

    def __init__(self, device: NullDevice, program: Program) -> None:
        self.device, self.program, self.name = device, program, program.name
        self.dispatches = _count_dispatches(program.steps)
        self._consts = {
            slot: device.upload(buffer.data or b"", f"{self.name}: constant")
            for slot, buffer in enumerate(program.buffers)
            if buffer.kind == "const"
        }

    def run(self, inputs: Sequence[NullBuffer], donate: Collection[int] = frozenset()) -> list[NullBuffer]:
        program, device = self.program, self.device
        if len(inputs) != len(program.inputs):
            raise ValueError(f"{self.name} takes {len(program.inputs)} buffers, got {len(inputs)}")
        arena = np.full(program.arena_bytes, POISON, np.uint8)
        memory: list[np.ndarray] = []
        fresh: dict[int, NullBuffer] = {}
        for slot, buffer in enumerate(program.buffers):
            if buffer.kind == "temp":
                memory.append(arena[buffer.offset : buffer.offset + buffer.nbytes])
            elif buffer.kind == "const":
                memory.append(self._consts[slot].data)
            elif buffer.kind == "input":
                memory.append(inputs[buffer.index].data)
            else:
                taken = inputs[buffer.alias] if buffer.alias is not None and buffer.alias in donate else None
                usable = taken is not None and not taken.pinned and taken.nbytes == buffer.nbytes
                fresh[slot] = taken if taken is not None and usable else device.alloc(buffer.nbytes, f"{self.name}: result")
                memory.append(fresh[slot].data)
        self._steps(program.steps, memory)
        results, seen = [], set[int]()
        for output in program.outputs:
            buffer = program.buffers[output.buffer]
            result = fresh[output.buffer] if buffer.kind == "output" else inputs[buffer.index]
            if (buffer.kind == "input" and buffer.index not in donate) or id(result) in seen:
                result.pinned = True
            seen.add(id(result))
            results.append(result)
        return results

    def profile(self, inputs: Sequence[NullBuffer]) -> list[tuple[str, float]]:
        raise RuntimeError(
            "the null device interprets kernels: there is no time to measure. Choose a device with K3JIT_DEVICE."
        )

    def _steps(self, steps: Sequence[Step], memory: list[np.ndarray]) -> None:
        for step in steps:
            if isinstance(step, Dispatch):
                if all(step.groups):
                    self._dispatch(step, memory)
            elif isinstance(step, HostLoop):
                width = 1 if 8 in self.device.caps.storage else 4
                while memory[step.flag.buffer][step.flag.offset : step.flag.offset + width].any():
                    self._steps(step.body, memory)
            else:
                assert isinstance(step, Barrier)

    def _dispatch(self, step: Dispatch, memory: list[np.ndarray]) -> None:
        from ..lowering.interp import run_dispatch

        kernel = self.program.kernels[step.kernel]
        if any(count > limit for count, limit in zip(step.groups, self.device.caps.max_groups, strict=True)):
            raise ValueError(
                f"kernel {kernel.name} asks for {step.groups} workgroups; the device allows {self.device.caps.max_groups}"
            )
        counters = self.device.counters
        counters["dispatches"] += 1
        counters["workgroups"] += int(np.prod(step.groups))
        counters["bytes read"] += sum(ref.nbytes for ref in step.reads)
        counters["bytes written"] += sum(ref.nbytes for ref in step.writes)
        narrow: list[tuple[np.ndarray, np.ndarray]] = []
        rows = [
            [self._argument(kernel, param, entry, memory, narrow) for param, entry in zip(kernel.params, row, strict=True)]
            for row in step.rows
        ]
        segments = None if step.segments is None else _range(memory, step.segments).view(np.uint32)
        width, races = self.device.caps.subgroup_size, self.device.check_races
        run_dispatch(kernel, step.groups, rows, segments, subgroup_size=width, check_races=races)
        for words, elements in narrow:
            words[:] = elements.view(f"u{elements.itemsize}")

    def _argument(
        self,
        kernel: Kernel,
        param: Param,
        entry: Ref | int,
        memory: list[np.ndarray],
        narrow: list[tuple[np.ndarray, np.ndarray]],
    ) -> np.ndarray | int:
        """The memory of an argument as elements: a copy where each takes a word, put into `narrow` if it is written."""
        if not isinstance(entry, Ref):
            return entry
        dtype = DTYPES[param.dtype]
        width = dtype.storage_bytes(frozenset(self.device.caps.storage))
        found = _range(memory, entry)
        if found.nbytes % width:
            raise ValueError(
                f"kernel {kernel.name}: {found.nbytes} bytes given for {param.name} are not whole elements of {width} bytes"
            )
        if width == dtype.numpy.itemsize:
            return found.view(dtype.numpy)
        words = found.view(np.uint32)
        elements = words != 0 if dtype.kind == "b" else words.astype(f"u{dtype.numpy.itemsize}").view(dtype.numpy)
        if "w" in param.mode:
            narrow.append((words, elements))
        return elements


def _range(memory: list[np.ndarray], ref: Ref) -> np.ndarray:
    found = memory[ref.buffer][ref.offset : ref.offset + ref.nbytes]
    if found.nbytes != ref.nbytes:
        raise ValueError(f"{ref} reaches outside its buffer of {memory[ref.buffer].nbytes} bytes")
    return found


def _count_dispatches(steps: Sequence[Step]) -> int:
    return sum(
        _count_dispatches(step.body) if isinstance(step, HostLoop) else int(isinstance(step, Dispatch) and all(step.groups))
        for step in steps
    )
