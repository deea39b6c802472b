"""Orders the kernels of a graph, packs those of equal code into one dispatch, and lowers the bodies of its loops."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from .fuse import Decision, Fuser
from .graph import Graph, Node
from .groups import Group
from .kernels import KernelCall
from .lift import lift_from_loops
from .limits import limits
from .loop_fusion import how_fused, why_dispatched
from .loops import simplify_loops
from .reuse import KernelLibrary
from .split import split_large_reductions


@dataclass(eq=False)
class Pack:
    """Kernel calls of equal code and no order among them, run as one dispatch."""

    calls: list[KernelCall]


@dataclass(eq=False)
class LoopCall:
    """A scan or while node with its lowered body (and condition), and the nodes that take its results."""

    node: Node
    picks: list[Node]
    body: Routine
    condition: Routine | None


@dataclass(eq=False)
class Routine:
    """A lowered graph: what to run, in order."""

    graph: Graph
    groups: list[Group]
    steps: list[Pack | LoopCall]
    decisions: list[Decision]


def schedule(graph: Graph, library: KernelLibrary, fuse: bool = True, loops: bool = True) -> Routine:
    """Cut `graph` into kernels, write them, and put them in an order that respects dependencies.

    Args:
        fuse: False gives every operation a kernel of its own.
        loops: False dispatches every turn of a scan by itself.
    """
    graph = simplify_loops(graph)
    if fuse and loops:
        lifted = lift_from_loops(graph, lambda spec: why_dispatched(spec, library.caps) is None)
        graph = simplify_loops(lifted) if lifted is not graph else graph  # what came out may be a view that another scan reads
    graph = split_large_reductions(graph)
    fuser = Fuser(graph, limits(library.caps), fuse)
    groups = [g for g in fuser.run() if g.outputs[0].size]
    units: list[tuple[list[KernelCall] | LoopCall, tuple[Node, ...], tuple[Node, ...]]] = []
    for group in groups:
        calls = library.calls(group)
        units.append((calls, tuple(group.outputs), tuple(r for call in calls for r in call.reads)))
    decisions = fuser.decisions
    for node in graph.nodes:
        if node.op != "loop":
            continue
        picks = [n for n in graph.nodes if n.op == "pick" and n.args[0] is node]
        refused = why_dispatched(node.attr, library.caps) if fuse and loops else "kernels of loops are off"
        if refused is None:
            group = Group("loop", picks, {node}, fuser.stored, anchor=node, number=len(groups))
            groups.append(group)
            units.append((library.calls(group), (node,), node.args))
            decisions.append(Decision(node, "one kernel", how_fused(node.attr, library.caps)))
            continue
        decisions.append(Decision(node, "dispatched", refused))
        condition = node.attr.condition
        body, test = (schedule(g, library, fuse, loops) if g else None for g in (node.attr.body, condition))
        assert body is not None
        units.append((LoopCall(node, picks, body, test), (node,), node.args))
    return Routine(graph, groups, _order(units, library.caps.max_groups[0]), decisions)


def _producer(node: Node) -> Node:
    return node.args[0] if node.op == "pick" else node


def _order(units: list, most: int) -> list[Pack | LoopCall]:
    made_by = {n: i for i, (_, outputs, _) in enumerate(units) for n in outputs}
    needs = [{made_by[_producer(r)] for r in reads if _producer(r) in made_by} - {i} for i, (_, _, reads) in enumerate(units)]
    feeds: list[set[int]] = [set() for _ in needs]
    for i, wanted in enumerate(needs):
        for d in wanted:
            feeds[d].add(i)
    # Levels count from the results: updates of parameters all come last, however early their gradients are ready.
    level = _levels(feeds)
    packs: dict[object, list[int]] = {}
    for i, (work, _, _) in enumerate(units):
        single = isinstance(work, list) and len(work) == 1 and work[0].elements is not None
        key: object = ("pack", level[i], work[0].kernel.key()) if single else i
        packs.setdefault(key, []).append(i)
    members = [m for pack in packs.values() for m in _split(pack, units, most)]
    owner = {i: k for k, pack in enumerate(members) for i in pack}
    waits = [{owner[d] for i in pack for d in needs[i]} for pack in members]
    readers: list[list[int]] = [[] for _ in members]
    for k, wait in enumerate(waits):
        for other in wait:
            readers[other].append(k)
    missing = [len(w) for w in waits]
    # Among what is ready, the user's order: values die early, and equal programs give equal plans.
    rank = [min(n.number for i in pack for n in units[i][1]) for pack in members]
    ready = [(rank[k], k) for k in range(len(members)) if not missing[k]]
    heapq.heapify(ready)
    steps: list[Pack | LoopCall] = []
    while ready:
        _, k = heapq.heappop(ready)
        works = [units[i][0] for i in members[k]]
        if isinstance(works[0], LoopCall):
            steps.append(works[0])
        elif len(works) > 1:
            steps.append(Pack([w[0] for w in works]))
        else:
            steps.extend(Pack([call]) for call in works[0])
        for reader in readers[k]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (rank[reader], reader))
    if any(missing):
        raise AssertionError("kernels wait for each other in a circle: a fault of grouping")
    return steps


def _split(pack: list[int], units: list, most: int) -> list[list[int]]:
    """Keep a packed dispatch within the workgroups that a device allows."""
    out: list[list[int]] = []
    total = 0
    for i in pack:
        work = units[i][0]
        size = work[0].groups[0] if isinstance(work, list) else 0
        if not out or total + size > most:
            out.append([])
            total = 0
        out[-1].append(i)
        total += size
    return out


def _levels(edges: list[set[int]]) -> list[int]:
    """Longest path along `edges` from each unit; units of one level never wait for each other."""
    level = [-1] * len(edges)
    for root in range(len(edges)):
        stack = [root]
        while stack:
            i = stack[-1]
            if level[i] >= 0:
                stack.pop()
                continue
            pending = [d for d in edges[i] if level[d] < 0]
            if pending:
                stack.extend(pending)
            else:
                level[i] = 1 + max((level[d] for d in edges[i]), default=-1)
                stack.pop()
    return level
