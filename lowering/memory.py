"""Memory planning: lifetimes, places in the arena, updates in place, donated arguments.

One arena serves all temporaries of a program. A value lives from the dispatch that writes it to the last one that reads
it; values whose lives do not meet may share bytes. A result may also take over the bytes of a value that dies in the
dispatch that writes it, where the kernel reads each element before it alone writes it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from .plan import Launch, Layout, Memory, Place, Repeat
from .program import GUARD_BYTES


@dataclass(eq=False)
class Life:
    first: int
    last: int


@dataclass
class Assignment:
    """Where each temporary lives, and which donated argument each output takes over."""

    offsets: dict[Memory, int]
    alias: dict[Memory, int]
    arena_bytes: int
    unplanned_bytes: int


def assign(layout: Layout, donated: frozenset[int]) -> Assignment:
    """Give every temporary of `layout` an offset; `donated` are the flat arguments whose memory results may take."""
    launches, lives = _lives(layout)
    alias = _donations(layout, launches, lives, donated)
    dying: dict[int, list[Memory]] = {}
    for memory, life in lives.items():
        if memory.kind == "temp":
            dying.setdefault(life.last, []).append(memory)
    arena = _Arena()
    offsets: dict[Memory, int] = {}
    inherited: set[Memory] = set()
    total = 0
    for time, launch in enumerate(launches):
        for place in _places(launch):
            memory = place.memory
            if memory.kind != "temp" or memory in offsets:
                continue
            total += memory.nbytes
            heir = _dying_operand(launch, place, lives, time, offsets, inherited)
            if heir is not None:
                offsets[memory] = offsets[heir]
                inherited.add(heir)
            else:
                offsets[memory] = arena.take(memory.nbytes)
        for memory in dying.get(time, ()):
            if memory in offsets and memory not in inherited:
                arena.give(offsets[memory], memory.nbytes)
    return Assignment(offsets, alias, arena.top, total)


def flat_launches(steps: list[Launch | Repeat]) -> Iterator[Launch]:
    """Launches in order, those of host loops once."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from flat_launches(step.body)
        else:
            yield step


def _places(launch: Launch) -> list[Place]:
    return [*launch.writes, *launch.reads]


def _lives(layout: Layout) -> tuple[list[Launch], dict[Memory, Life]]:
    launches: list[Launch] = []
    lives: dict[Memory, Life] = {}

    def touch(memory: Memory, time: int) -> None:
        life = lives.setdefault(memory, Life(time, time))
        life.last = max(life.last, time)

    def walk(steps: list[Launch | Repeat]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                launches.append(step)
                for place in _places(step):
                    touch(place.memory, len(launches) - 1)
                continue
            start = len(launches)
            walk(step.body)
            end = len(launches) - 1
            if end >= start:
                touch(step.flag.memory, end)
            # What a loop reads from before it, or keeps as state, is alive in every round.
            for life in [v for m, v in lives.items() if v.last >= start and (v.first < start or m.pinned)]:
                life.last = max(life.last, end)

    walk(layout.steps)
    for place in layout.outputs:
        if place.memory in lives:
            lives[place.memory].last = len(launches)
    return launches, lives


def _dying_operand(
    launch: Launch, place: Place, lives: dict[Memory, Life], time: int, offsets: dict[Memory, int], inherited: set[Memory]
) -> Memory | None:
    """A temporary read for the last time by this launch, whose bytes the result may take over."""
    for read, written in launch.inplace:
        memory = read.memory
        if written == place and memory.kind == "temp" and memory is not place.memory and memory.nbytes == place.memory.nbytes:
            whole = read.nbytes == memory.nbytes and place.nbytes == place.memory.nbytes
            if (
                whole
                and lives[memory].last == time
                and memory in offsets
                and memory not in inherited
                and not place.memory.pinned
            ):
                return memory
    return None


def _donations(layout: Layout, launches: list[Launch], lives: dict[Memory, Life], donated: frozenset[int]) -> dict[Memory, int]:
    """Pair results with donated arguments of the same size that nothing reads once the result is being written."""
    kept = {p.memory for p in layout.outputs}
    free = [m for m in layout.inputs if m.index in donated and m not in kept and m.nbytes]
    alias: dict[Memory, int] = {}
    writers: dict[Memory, list[tuple[int, Place]]] = {}
    for time, launch in enumerate(launches):
        for place in launch.writes:
            if place.memory.kind == "output":
                writers.setdefault(place.memory, []).append((time, place))
    for output, writes in writers.items():
        first, place = writes[0]
        pairs = {read.memory for read, written in launches[first].inplace if written == place and len(writes) == 1}
        # An argument updated in place is the best partner; one that is dead already is as good.
        for memory in sorted(free, key=lambda m: m not in pairs):
            life = lives.get(memory)
            dead = life is None or life.last < first or (life.last == first and memory in pairs)
            if dead and memory.nbytes == output.nbytes:
                alias[output] = memory.index
                free.remove(memory)
                break
    return alias


class _Arena:
    """Best-fit allocation with coalescing; grows at the end."""

    def __init__(self) -> None:
        self.top = 0
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        nbytes = _aligned(nbytes)
        fits = [(size, start) for start, size in self._sizes.items() if size >= nbytes]
        if fits:
            size, start = min(fits)
            self._remove(start)
            if size > nbytes:
                self._insert(start + nbytes, size - nbytes)
            return start
        if self._starts and self._starts[-1] + self._sizes[self._starts[-1]] == self.top:
            start = self._starts[-1]
            self._remove(start)
        else:
            start = self.top
        self.top = start + nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        size = _aligned(nbytes)
        i = bisect.bisect_left(self._starts, start)
        if i < len(self._starts) and self._starts[i] == start + size:
            size += self._remove(self._starts[i])
        if i and self._starts[i - 1] + self._sizes[self._starts[i - 1]] == start:
            start = self._starts[i - 1]
            size += self._remove(start)
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._starts, start)
        self._sizes[start] = size

    def _remove(self, start: int) -> int:
        self._starts.remove(start)
        return self._sizes.pop(start)


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // GUARD_BYTES) * GUARD_BYTES
