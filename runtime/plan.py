"""A program flattened for recording: batches of dispatches, host loops, and the table of kernel arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..lowering.program import Barrier, Dispatch, HostLoop, Program, Ref, Step

MAX_BATCH = 2000  # dispatches of a submission: drivers of display devices end submissions that take seconds
ERROR_BYTES = 64  # of each dispatch, in checked mode
ROW_ENTRY = 8


@dataclass(frozen=True)
class Launch:
    """One dispatch: its kernel, the first byte of its rows in the table, and its number in the program."""

    kernel: int
    groups: tuple[int, int, int]
    row: int
    segments: Ref | None
    number: int


@dataclass(frozen=True)
class Batch:
    """Commands submitted together; None stands for a barrier."""

    commands: tuple[Launch | None, ...]


@dataclass(frozen=True)
class Loop:
    """While the element at `flag` is true, run `body`. The host tests the flag before each round."""

    flag: Ref
    body: tuple[Batch | Loop, ...]
    source: str


class Plan:
    """What recording and a call need to know of a program.

    Entry i of the argument table is `base[slots[i]] + offsets[i]`, where `base` has the address of every buffer of the
    program, then 0 (for literals), then the address of the error records (checked mode).

    Attributes:
        nodes: batches and loops, in order.
        slots, offsets: uint32 and uint64 arrays, one element a table entry.
        launches: kernel number of each dispatch that is recorded.
    """

    def __init__(self, program: Program, max_groups: tuple[int, int, int], checked: bool) -> None:
        self._program, self._max_groups, self._checked = program, max_groups, checked
        self.literal_slot = len(program.buffers)
        self.error_slot = self.literal_slot + 1
        self._slots: list[int] = []
        self._offsets: list[int] = []
        self.launches: list[int] = []
        self.nodes = self._walk(program.steps)
        self.slots = np.array(self._slots, dtype=np.uint32)
        self.offsets = np.array(self._offsets, dtype=np.uint64)

    def _walk(self, steps: Sequence[Step]) -> tuple[Batch | Loop, ...]:
        nodes: list[Batch | Loop] = []
        commands: list[Launch | None] = []
        count = 0

        def close() -> None:
            nonlocal count
            while commands and commands[-1] is None:
                commands.pop()
            if commands:
                nodes.append(Batch(tuple(commands)))
            commands.clear()
            count = 0

        for step in steps:
            if isinstance(step, HostLoop):
                close()
                nodes.append(Loop(step.flag, self._walk(step.body), step.source))
            elif isinstance(step, Barrier):
                if commands and commands[-1] is not None:  # a batch begins with a barrier of its own
                    commands.append(None)
            elif all(step.groups):
                commands.append(self._launch(step))
                count += 1
                if count == MAX_BATCH:
                    close()
        close()
        return tuple(nodes)

    def _launch(self, step: Dispatch) -> Launch:
        kernel = self._program.kernels[step.kernel]
        if any(count > limit for count, limit in zip(step.groups, self._max_groups, strict=True)):
            raise ValueError(f"kernel {kernel.name} asks for {step.groups} workgroups; the device allows {self._max_groups}")
        row, number = len(self._slots) * ROW_ENTRY, len(self.launches)
        for entries in step.rows:
            if len(entries) != len(kernel.params):
                raise ValueError(
                    f"kernel {kernel.name} has {len(kernel.params)} parameters, its dispatch {len(entries)} arguments"
                )
            for entry in entries:
                if isinstance(entry, Ref):
                    self._slots.append(entry.buffer)
                    self._offsets.append(entry.offset)
                else:
                    self._slots.append(self.literal_slot)
                    self._offsets.append(entry & 0xFFFFFFFF)
            if self._checked:
                self._slots.append(self.error_slot)
                self._offsets.append(number * ERROR_BYTES)
        self.launches.append(step.kernel)
        return Launch(step.kernel, step.groups, row, step.segments, number)
