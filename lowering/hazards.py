"""Barriers: where they must stand, and the proof that they do.

With buffer addresses the validation layer cannot see which memory a kernel touches. So the plan carries the byte
ranges of every dispatch; `insert_barriers` separates each pair that depends on one another, and `check` verifies a
finished program on its own, from its `Ref`s alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from .program import Barrier, Buffer, Dispatch, HostLoop, Program, Ref, Step

Range = tuple[object, int, int]
_NOWHERE: Range = (None, 0, 0)


class HazardError(RuntimeError):
    """Two dispatches touch the same bytes, one of them writing, with no barrier between them."""


class _Touched:
    """A set of byte ranges, each with the dispatch that touched it last; a query takes logarithmic time."""

    def __init__(self) -> None:
        self._memories: dict[object, tuple[list[int], list[int], list[Dispatch]]] = {}

    def find(self, range_: Range) -> Dispatch | None:
        """Who touched some byte of the range."""
        memory, start, stop = range_
        starts, stops, owners = self._memories.get(memory, ([], [], []))
        i = bisect_left(starts, stop) - 1
        return owners[i] if i >= 0 and stops[i] > start else None

    def add(self, range_: Range, owner: Dispatch) -> None:
        """Ranges that overlap become one."""
        memory, start, stop = range_
        starts, stops, owners = self._memories.setdefault(memory, ([], [], []))
        first = bisect_left(starts, start)
        if first and stops[first - 1] > start:
            first -= 1
            start = starts[first]
        last = first
        while last < len(starts) and starts[last] < stop:
            stop = max(stop, stops[last])
            last += 1
        starts[first:last], stops[first:last], owners[first:last] = [start], [stop], [owner]


class _Window:
    """Ranges touched since the last barrier."""

    def __init__(self) -> None:
        self.reads, self.writes = _Touched(), _Touched()

    def conflict(self, reads: Sequence[Range], writes: Sequence[Range]) -> tuple[Dispatch, Range] | None:
        for ours, theirs in ((reads, self.writes), (writes, self.writes), (writes, self.reads)):
            for range_ in ours:
                dispatch = theirs.find(range_)
                if dispatch is not None:
                    return dispatch, range_
        return None

    def add(self, dispatch: Dispatch, reads: Iterable[Range], writes: Iterable[Range]) -> None:
        for touched, new in ((self.reads, reads), (self.writes, writes)):
            for range_ in new:
                touched.add(range_, dispatch)


def _overlap(a: Range, b: Range) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def ranges(buffers: Sequence[Buffer], refs: Iterable[Ref]) -> list[Range]:
    """Byte ranges of places: in the arena, in the memory of a donated argument, or in a buffer of its own."""
    out: list[Range] = []
    for ref in refs:
        buffer = buffers[ref.buffer]
        if buffer.kind == "const":
            continue
        if buffer.kind == "temp":
            start: int = buffer.offset + ref.offset
            out.append(("arena", start, start + ref.nbytes))
        else:
            memory = ("input", buffer.alias) if buffer.alias is not None else (buffer.kind, buffer.index)
            out.append((memory, ref.offset, ref.offset + ref.nbytes))
    return out


def insert_barriers(steps: Sequence[Step], buffers: Sequence[Buffer]) -> list[Step]:
    """The steps with as few barriers as their order allows. The host's waits around a loop count as barriers."""
    out: list[Step] = []
    window = _Window()
    for step in steps:
        if isinstance(step, HostLoop):
            out.append(HostLoop(step.flag, tuple(insert_barriers(step.body, buffers)), step.source))
            window = _Window()
            continue
        assert isinstance(step, Dispatch)
        reads, writes = ranges(buffers, step.reads), ranges(buffers, step.writes)
        if window.conflict(reads, writes):
            out.append(Barrier())
            window = _Window()
        window.add(step, reads, writes)
        out.append(step)
    return out


def check(program: Program) -> None:
    """Raise HazardError unless every dependent pair of dispatches is separated.

    A dispatch must declare every place it is given; a place that a kernel may write must be among its writes.
    """
    _check(program, program.steps)


def _check(program: Program, steps: Sequence[Step]) -> None:
    window = _Window()
    for step in steps:
        if isinstance(step, Barrier):
            window = _Window()
        elif isinstance(step, HostLoop):
            _check(program, step.body)
            window = _Window()
        else:
            _check_declared(program, step)
            _check_inside(program, step)
            reads, writes = ranges(program.buffers, step.reads), ranges(program.buffers, step.writes)
            found = window.conflict(reads, writes)
            if found is not None:
                first, range_ = found
                names = program.kernels[first.kernel].name, program.kernels[step.kernel].name
                raise HazardError(
                    f"{program.name}: {names[1]} touches bytes {range_[1]}..{range_[2]} of {range_[0]} "
                    f"while {names[0]} may still use them"
                )
            window.add(step, reads, writes)


def _check_declared(program: Program, step: Dispatch) -> None:
    kernel = program.kernels[step.kernel]
    reads, writes = set(step.reads), set(step.writes)
    for row in step.rows:
        for param, value in zip(kernel.params, row, strict=True):
            if isinstance(value, Ref):
                if "w" in param.mode and value not in writes:
                    raise HazardError(f"{kernel.name}: parameter {param.name} is written but not declared so")
                if "r" in param.mode and value not in reads and value not in writes:
                    raise HazardError(f"{kernel.name}: parameter {param.name} is read but not declared so")


def _check_inside(program: Program, step: Dispatch) -> None:
    """Within a dispatch, only places declared to be updated in place may be both read and written."""
    name, allowed = program.kernels[step.kernel].name, frozenset(step.inplace)
    touched = _Touched()
    places: list[tuple[Ref, Range]] = []
    for written in step.writes:
        if program.buffers[written.buffer].kind == "const":
            raise HazardError(f"{program.name}: {name} writes to a constant")
        (second,) = ranges(program.buffers, [written])
        if touched.find(second) is not None:
            raise HazardError(f"{program.name}: {name} writes bytes {second[1]}..{second[2]} of {second[0]} from two places")
        touched.add(second, step)
        places.append((written, second))
    for read in step.reads:
        (first,) = ranges(program.buffers, [read]) or [_NOWHERE]
        if touched.find(first) is None:
            continue
        for written, second in places:
            if _overlap(first, second) and read != written and (read, written) not in allowed:
                raise HazardError(
                    f"{program.name}: {name} reads bytes {first[1]}..{first[2]} of {first[0]} while it writes them"
                )
    given = Counter(a for row in step.rows for a in row if isinstance(a, Ref)) if allowed else Counter[Ref]()
    for read, written in step.inplace:
        (first,), (second,) = ranges(program.buffers, [read]) or [_NOWHERE], ranges(program.buffers, [written])
        if _overlap(first, second) and (first != second or given[read] != 1 or given[written] != 1):
            raise HazardError(f"{program.name}: {name} may not update {first[0]} in place")
