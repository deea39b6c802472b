"""The pipeline, in one place: closed jaxpr -> graph -> groups -> kernels -> places -> SPIR-V."""

from __future__ import annotations

import threading
from dataclasses import replace
from math import prod
from typing import Any

from ..runtime.caps import DeviceCaps
from . import hazards, memory
from .desugar import build_graph
from .dtypes import missing
from .emit import emit
from .graph import Graph
from .plan import Launch, Layout, Memory, Place, Planner, Repeat
from .program import Buffer, Dispatch, HostLoop, Output, Program, Ref, Step, Texts
from .reuse import KernelLibrary
from .schedule import LoopCall, Routine, schedule
from .spirv_tools import validate
from .tile import Kernel, to_text
from .verify import verify

_lock = threading.Lock()


def lower(
    closed_jaxpr: Any,
    caps: DeviceCaps,
    *,
    name: str,
    donated: frozenset[int] = frozenset(),
    checked: bool = False,
    fuse: bool = True,
    compact: bool = False,
    loops: bool = True,
) -> Program:
    """Compile a closed jaxpr for devices with capabilities `caps`. Needs no device.

    Args:
        donated: flat arguments whose memory results may take over.
        checked: verify the IR after each stage, run spirv-val, prove the barriers, and emit kernels that test every index.
        fuse: False gives every operation a kernel of its own, for comparison.
        compact: keep kernels short (see `limits`).
        loops: False dispatches every turn of a scan by itself, for comparison.

    Raises:
        UnsupportedPrimitive, UnsupportedDtype: with the place in the user's code.
    """
    caps = replace(caps, compact=compact or caps.compact)
    with _lock:
        graph = build_graph(closed_jaxpr, missing(caps))
        routine = schedule(graph, KernelLibrary(caps), fuse, loops)
        layout = Planner(caps).plan(routine)
        program = _link(name, routine, layout, caps, donated, checked)
    if checked:
        hazards.check(program)
    return program


class _Linker:
    """Gives buffers and kernels their numbers."""

    def __init__(self, caps: DeviceCaps, assignment: memory.Assignment, checked: bool) -> None:
        self.caps, self.assignment, self.checked = caps, assignment, checked
        self.kernels: list[Kernel] = []
        self.buffers: list[Buffer] = []
        self._kernel_numbers: dict[Any, int] = {}
        self._by_identity: dict[Kernel, int] = {}
        self._buffer_numbers: dict[Memory, int] = {}

    def kernel(self, kernel: Kernel) -> int:
        found = self._by_identity.get(kernel)
        if found is None:
            key: Any = kernel.key()
            if self.checked:  # checked kernels test indices against sizes
                key = (key, tuple(p.size for p in kernel.params))
            found = self._kernel_numbers.setdefault(key, len(self.kernels))
            if found == len(self.kernels):
                self.kernels.append(kernel)
            else:  # bounds checks may only know the largest of what shares the code
                known = self.kernels[found]
                sizes = [max(a.size, b.size) for a, b in zip(known.params, kernel.params, strict=True)]
                params = tuple(replace(p, size=size) for p, size in zip(known.params, sizes, strict=True))
                self.kernels[found] = replace(known, params=params)
            self._by_identity[kernel] = found
        return found

    def buffer(self, memory: Memory) -> int:
        found = self._buffer_numbers.get(memory)
        if found is None:
            found = self._buffer_numbers[memory] = len(self.buffers)
            offset = self.assignment.offsets.get(memory, -1)
            self.buffers.append(
                Buffer(memory.kind, memory.nbytes, memory.index, memory.data, offset, self.assignment.alias.get(memory))
            )
        return found

    def ref(self, place: Place) -> Ref:
        return Ref(self.buffer(place.memory), place.offset, place.nbytes)

    def steps(self, steps: list[Launch | Repeat]) -> list[Step]:
        out: list[Step] = []
        for step in steps:
            if isinstance(step, Repeat):
                out.append(HostLoop(self.ref(step.flag), tuple(self.steps(step.body)), step.source))
                continue
            rows = tuple(tuple(self.ref(a) if isinstance(a, Place) else a for a in row) for row in step.rows)
            segments = self.ref(step.segments) if step.segments else None
            reads, writes = (tuple(dict.fromkeys(self.ref(p) for p in places)) for places in (step.reads, step.writes))
            inplace = tuple((self.ref(read), self.ref(written)) for read, written in step.inplace)
            out.append(Dispatch(self.kernel(step.kernel), step.groups, rows, segments, reads, writes, inplace))
        return out


def _link(name: str, routine: Routine, layout: Layout, caps: DeviceCaps, donated: frozenset[int], checked: bool) -> Program:
    assignment = memory.assign(layout, donated)
    linker = _Linker(caps, assignment, checked)
    for entry in layout.inputs:
        linker.buffer(entry)
    steps = hazards.insert_barriers(linker.steps(layout.steps), linker.buffers)
    graph = routine.graph
    outputs = [Output(linker.buffer(p.memory), n.shape, n.dtype) for p, n in zip(layout.outputs, graph.outputs, strict=True)]
    if checked:
        for kernel in linker.kernels:
            verify(kernel, caps)
    spirv = [emit(kernel, caps, checked=checked) for kernel in linker.kernels]
    if checked:
        for code in spirv:
            validate(code)
    return Program(
        name=name,
        kernels=linker.kernels,
        spirv=spirv,
        buffers=linker.buffers,
        steps=steps,
        inputs=[(n.shape, n.dtype) for n in graph.inputs],
        outputs=outputs,
        arena_bytes=assignment.arena_bytes,
        unplanned_bytes=assignment.unplanned_bytes,
        donated=donated,
        decisions=[str(d) for d in _decisions(routine)],
        flops=flops(graph),
        texts=_texts(routine, linker.kernels),
        checked=checked,
    )


def _decisions(routine: Routine) -> list[Any]:
    out = list(routine.decisions)
    for step in routine.steps:
        if isinstance(step, LoopCall):
            out += _decisions(step.body)
    return out


def _texts(routine: Routine, kernels: list[Kernel]) -> Texts:
    return Texts(
        {
            "graph": routine.graph.as_text,
            "groups": lambda: "\n".join(_groups(routine)),
            "tile": lambda: "\n\n".join(to_text(k) for k in kernels),
        }
    )


def _groups(routine: Routine, indent: str = "") -> list[str]:
    """Each kernel with its results and what it computes, loop bodies indented."""
    out = []
    for group in routine.groups:
        members = " ".join(f"%{n.number}" for n in sorted(group.members, key=lambda n: n.number))
        out.append(f"{indent}{group!r} computes {members}")
    for step in routine.steps:
        if isinstance(step, LoopCall):
            out += [f"{indent}{step.node!r}", *_groups(step.body, indent + "  ")]
    return out


def flops(graph: Graph) -> int:
    """Arithmetic operations of one run: a multiply-add is two, any other operation on an element is one."""
    total = 0
    for node in graph.nodes:
        if node.op == "dot":
            total += 2 * node.size * prod(node.args[0].shape[a] for a in node.attr.lhs_contract)
        elif node.op == "map":
            total += node.size
        elif node.op in ("reduce", "cumulative"):
            total += node.args[0].size
        elif node.op == "loop":
            total += flops(node.attr.body) * max(1, node.attr.length)
    return total
