"""Turns a routine into dispatches on buffers: loops are unrolled or driven, and every value gets a place.

Iterations of a scan are recorded one after another with their own places, so a carried value needs no copy: what one
iteration wrote is what the next one reads, and slices of stacked inputs and results are just addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..runtime.caps import DeviceCaps
from .dtypes import DTYPES
from .graph import GraphBuilder, Node
from .groups import Group
from .kernels import KernelCall, build
from .schedule import LoopCall, Pack, Routine
from .tile import Kernel
from .traits import constant_array


@dataclass(eq=False)
class Memory:
    """A buffer before it has an address. kind: input output const temp."""

    kind: str
    nbytes: int
    index: int = -1
    data: bytes | None = None
    pinned: bool = False  # loop state: lives as long as its loop


@dataclass(frozen=True)
class Place:
    """Part of a memory."""

    memory: Memory
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Stack:
    """A stacked result that only scans read, slice by slice: its parts may lie anywhere, so none is ever copied to be there."""

    parts: tuple[Place, ...]


@dataclass(eq=False)
class Launch:
    """A dispatch on places. `inplace[i]` are (read, written) places that may share memory."""

    kernel: Kernel
    groups: tuple[int, int, int]
    rows: list[tuple[Place | int, ...]]
    reads: list[Place]
    writes: list[Place]
    inplace: list[tuple[Place, Place]]
    segments: Place | None = None


@dataclass(eq=False)
class Repeat:
    """Launches that the host repeats while a flag is set."""

    flag: Place
    body: list[Launch | Repeat]
    source: str


@dataclass(eq=False)
class Layout:
    """Everything of a program but addresses."""

    steps: list[Launch | Repeat] = field(default_factory=list)
    inputs: list[Memory] = field(default_factory=list)
    outputs: list[Place] = field(default_factory=list)


class Planner:
    """Walks routines and emits launches."""

    def __init__(self, caps: DeviceCaps) -> None:
        self.caps = caps
        self.narrow = frozenset(caps.storage)
        self.steps: list[Launch | Repeat] = []
        self._consts: dict[bytes, Place] = {}

    def nbytes(self, node: Node) -> int:
        return node.size * DTYPES[node.dtype].storage_bytes(self.narrow)

    def temp(self, nbytes: int, pinned: bool = False) -> Place:
        return Place(Memory("temp", nbytes, pinned=pinned), 0, nbytes)

    def plan(self, routine: Routine) -> Layout:
        layout = Layout()
        places: dict[Node, Place] = {}
        for i, node in enumerate(routine.graph.inputs):
            memory = Memory("input", self.nbytes(node), i)
            layout.inputs.append(memory)
            places[node] = Place(memory, 0, memory.nbytes)
        fixed: dict[Node, Place] = {}
        for node in routine.graph.outputs:
            if node.op != "input" and node not in fixed:
                size = self.nbytes(node)
                fixed[node] = Place(Memory("output", size, len(fixed)), 0, size)
        env = self.run(routine, places, fixed)
        layout.steps = self.steps
        layout.outputs = [env[n] for n in routine.graph.outputs]
        return layout

    # -- one routine ---------------------------------------------------------------------------------------------
    def run(self, routine: Routine, places: dict[Node, Place], fixed: dict[Node, Place]) -> dict[Node, Place]:
        """Emit the steps of `routine` given the places of its inputs; results in `fixed` are put where it says."""
        env = dict(places)
        stacks: dict[Node, Stack] = {}
        loose = _read_in_slices(routine)
        for step in routine.steps:
            if isinstance(step, LoopCall):
                self._loop(step, env, fixed, stacks, loose)
            else:
                self._launch(step, env, fixed)
        for node in routine.graph.outputs:
            self._place(node, env, fixed)
        for node, place in fixed.items():
            if env[node] != place:
                self._copy(node, env[node], place)
                env[node] = place
        return env

    def _place(self, node: Node, env: dict[Node, Place], fixed: dict[Node, Place]) -> Place:
        if node not in env:
            array = constant_array(node)
            env[node] = fixed.get(node) or self.temp(self.nbytes(node)) if array is None else self._constant(node, array)
        return env[node]

    def _constant(self, node: Node, array: np.ndarray) -> Place:
        return self._bytes(to_storage(array, node.dtype, self.narrow))

    def _bytes(self, data: bytes) -> Place:
        if data not in self._consts:
            self._consts[data] = Place(Memory("const", len(data), data=data), 0, len(data))
        return self._consts[data]

    def _launch(self, pack: Pack, env: dict[Node, Place], fixed: dict[Node, Place]) -> None:
        rows: list[tuple[Place | int, ...]] = []
        reads: list[Place] = []
        writes: list[Place] = []
        inplace: list[tuple[Place, Place]] = []
        total = 0
        segments: list[int] = []
        for number, call in enumerate(pack.calls):
            for node in call.writes:  # what a kernel computes may be a constant, but never lives in one
                if node not in env or env[node].memory.kind == "const":
                    env[node] = fixed.get(node) or self.temp(self.nbytes(node))
            row = [a if isinstance(a, int) else self._place(a, env, fixed) for a in call.args]
            if len(pack.calls) > 1:
                names = [p.name for p in call.kernel.params]
                row[names.index("first")] = total
                segments += [number] * call.groups[0]
                total += call.groups[0]
            rows.append(tuple(row))
            written = set(call.writes)
            reads += [
                p
                for a, p in zip(call.args, row, strict=True)
                if isinstance(a, Node) and isinstance(p, Place) and (a not in written or a.op == "scratch")
            ]
            writes += [env[n] for n in call.writes]
            inplace += [(env[r], env[w]) for r, w in call.inplace]
        # Sharing memory is right only if nothing else in the dispatch, of this row or another, touches it.
        uses = Counter(a.memory for row in rows for a in row if isinstance(a, Place))
        inplace = [(read, written) for read, written in inplace if uses[read.memory] == uses[written.memory] == 1]
        kernel, first = pack.calls[0].kernel, pack.calls[0]
        if len(pack.calls) == 1:
            self.steps.append(Launch(kernel, first.groups, rows, reads, writes, inplace))  # type: ignore[arg-type]
            return
        packed = replace(kernel, params=_widest(pack.calls), packed=True, _key=None)
        table = self._bytes(b"".join(s.to_bytes(4, "little") for s in segments))
        self.steps.append(Launch(packed, (total, 1, 1), rows, [*reads, table], writes, inplace, table))  # type: ignore[arg-type]

    def _copy(self, node: Node, source: Place, target: Place) -> None:
        """A result that no kernel computes (an argument handed on, a constant) in a place that is asked for."""
        builder = GraphBuilder()
        original = builder.input(node.shape, node.dtype)
        copy = builder.map("copy", original)
        for call in build(Group("map", [copy], {copy}, {copy}), self.caps):
            self._launch(Pack([call]), {original: source, copy: target}, {})

    # -- loops -----------------------------------------------------------------------------------------------------
    def _loop(
        self, loop: LoopCall, env: dict[Node, Place], fixed: dict[Node, Place], stacks: dict[Node, Stack], loose: set[Node]
    ) -> None:
        spec, wanted = loop.node.attr, {n.attr: n for n in loop.picks}
        results: Sequence[Place | Stack]
        if spec.kind == "scan":
            first = spec.consts + spec.carries
            args = [self._place(a, env, fixed) for a in loop.node.args[:first]]
            stacked = [stacks.get(a) or self._place(a, env, fixed) for a in loop.node.args[first:]]
            results = self._scan(loop, args, stacked, wanted, fixed, {n.attr for n in loop.picks if n in loose})
        else:
            results = self._while(loop, [self._place(a, env, fixed) for a in loop.node.args])
        for number, pick in wanted.items():
            found = results[number]
            if isinstance(found, Stack):
                stacks[pick] = found
            else:
                env[pick] = found

    def _scan(
        self,
        loop: LoopCall,
        args: list[Place],
        stacked: list[Place | Stack],
        wanted: dict[int, Node],
        fixed: dict[Node, Place],
        loose: set[int],
    ) -> list[Place | Stack]:
        spec, graph = loop.node.attr, loop.body.graph
        consts, carries = args[: spec.consts], args[spec.consts :]
        ys = graph.outputs[spec.carries :]
        totals: list[Place | list[Place]] = []
        for i, y in enumerate(ys):
            pick = wanted.get(spec.carries + i)
            nbytes = self.nbytes(y) * spec.length
            if spec.carries + i in loose:
                totals.append([])
            else:
                totals.append(fixed[pick] if pick is not None and pick in fixed else self.temp(nbytes))
        # A state that is stacked as it comes in (what reverse mode saves) is written to the stack by the turn before.
        entering = {n: i for i, n in enumerate(graph.inputs[spec.consts : spec.consts + spec.carries])}
        saved = {entering[y]: total for y, total in zip(ys, totals, strict=True) if y in entering and isinstance(total, Place)}
        for turn in range(spec.length):
            at, following = (spec.length - 1 - t if spec.reverse else t for t in (turn, turn + 1))
            xs = [self._part(x, at, spec.length) for x in stacked]
            places = dict(zip(graph.inputs, [*consts, *carries, *xs], strict=True))
            goals: dict[Node, Place] = {}
            extra: list[tuple[Node, Place]] = []
            for y, total in zip(ys, totals, strict=True):
                if not isinstance(total, Place):
                    continue
                place = self._part(total, at, spec.length)
                if y in goals or y in places:
                    extra.append((y, place))
                else:
                    goals[y] = place
            for i, carry in enumerate(graph.outputs[: spec.carries]):
                if turn == spec.length - 1:
                    pick = wanted.get(i)
                    goal = fixed.get(pick) if pick is not None else None
                else:
                    goal = self._part(saved[i], following, spec.length) if i in saved else None
                if goal is not None and carry not in goals and carry not in places:
                    goals[carry] = goal
            inner = self.run(loop.body, places, goals)
            for y, place in extra:
                if inner[y] != place:
                    self._copy(y, inner[y], place)
            for y, total in zip(ys, totals, strict=True):
                if not isinstance(total, Place):
                    total.append(inner[y])
            carries = [inner[c] for c in graph.outputs[: spec.carries]]
        order = -1 if spec.reverse else 1
        return [*carries, *(t if isinstance(t, Place) else Stack(tuple(t[::order])) for t in totals)]

    @staticmethod
    def _part(place: Place | Stack, at: int, length: int) -> Place:
        if isinstance(place, Stack):
            return place.parts[at]
        nbytes = place.nbytes // length
        return Place(place.memory, place.offset + at * nbytes, nbytes)

    def _while(self, loop: LoopCall, args: list[Place]) -> list[Place]:
        spec, condition = loop.node.attr, loop.condition
        assert condition is not None
        n_cond = spec.condition_consts
        cond_consts, consts, inits = args[:n_cond], args[n_cond : n_cond + spec.consts], args[n_cond + spec.consts :]
        body, test = loop.body.graph, condition.graph
        state = [self.temp(p.nbytes, pinned=True) for p in inits]
        carry_nodes = body.inputs[spec.consts :]
        for node, source, target in zip(carry_nodes, inits, state, strict=True):
            self._copy(node, source, target)
        flag = self.temp(self.nbytes(test.outputs[0]), pinned=True)
        self._test(condition, [*cond_consts, *state], flag)
        outer, self.steps = self.steps, []
        places = dict(zip(body.inputs, [*consts, *state], strict=True))
        inner = self.run(loop.body, places, {})
        results = []
        for node, target in zip(body.outputs, state, strict=True):
            source = inner[node]
            if source in state and source != target:  # carries that change places: read all before writing any
                source = self.temp(source.nbytes)
                self._copy(node, inner[node], source)
            results.append(source)
        for node, source, target in zip(body.outputs, results, state, strict=True):
            if source != target:
                self._copy(node, source, target)
        self._test(condition, [*cond_consts, *state], flag)
        inside, self.steps = self.steps, outer
        self.steps.append(Repeat(flag, inside, loop.node.source))
        return state

    def _test(self, condition: Routine, args: list[Place], flag: Place) -> None:
        graph = condition.graph
        places = dict(zip(graph.inputs, args, strict=True))
        (result,) = graph.outputs
        if result in places:
            self._copy(result, places[result], flag)
        else:
            self.run(condition, places, {result: flag})


def _read_in_slices(routine: Routine) -> set[Node]:
    """Stacked results of scans that nothing reads but scans, and those slice by slice."""
    found: set[Node] = set()
    other: set[Node] = set(routine.graph.outputs)
    for step in routine.steps:
        if isinstance(step, Pack):
            other.update(r for call in step.calls for r in call.reads)
            continue
        spec = step.node.attr
        if spec.kind == "scan":
            found.update(p for p in step.picks if p.attr >= spec.carries)
            other.update(step.node.args[: spec.consts + spec.carries])
        else:
            other.update(step.node.args)
    return found - other


def _widest(calls: Sequence[KernelCall]) -> tuple:
    """Parameters of a packed kernel: each as large as its largest row, which is what bounds checks can know."""
    return tuple(
        replace(group[0], size=max(p.size for p in group)) for group in zip(*(c.kernel.params for c in calls), strict=True)
    )


def to_storage(array: object, dtype: str, narrow: frozenset[int]) -> bytes:
    """Bytes of an array as a device stores it."""
    info = DTYPES[dtype]
    data = np.ascontiguousarray(array, dtype=info.numpy)
    width = info.storage_bytes(narrow)
    if width != data.dtype.itemsize:
        bits = data.view(f"u{data.dtype.itemsize}") if data.dtype != np.bool_ else data
        data = bits.astype(f"u{width}")
    return data.tobytes()
