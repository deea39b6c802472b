"""Groups of equal structure share one kernel: the layers of a model are written once and called many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..runtime.caps import DeviceCaps
from .graph import Node
from .groups import Group
from .kernels import KernelCall, build


class KernelLibrary:
    """Kernels written so far for one device, by the structure of their groups."""

    def __init__(self, caps: DeviceCaps) -> None:
        self.caps = caps
        self._written: dict[Any, tuple[dict[Node, int], list[KernelCall]]] = {}

    def calls(self, group: Group) -> list[KernelCall]:
        """The kernels of `group`, in order, applied to its nodes."""
        key, numbers = structure(group)
        found = self._written.get(key)
        if found is None:
            calls = build(group, self.caps)
            self._written[key] = numbers, calls
            return calls
        theirs, calls = found
        by_number = {i: n for n, i in numbers.items()}
        rename = {n: by_number[i] for n, i in theirs.items()}
        for call in calls:
            for node in (*call.scratch, *(a for a in call.args if isinstance(a, Node) and a.op == "scratch")):
                if node not in rename:  # each use of a kernel needs scratch of its own
                    rename[node] = Node("scratch", (), node.shape, node.dtype, None, node.source, node.number)
        return [_renamed(call, rename) for call in calls]


def structure(group: Group) -> tuple[Any, dict[Node, int]]:
    """(what decides the kernel of a group, number of each node in it); nodes outside are known by shape and dtype only."""
    numbers: dict[Node, int] = {}
    entries: list[tuple[Any, ...]] = []
    members = sorted(group.members, key=lambda n: n.number)
    for node in members:
        args = []
        for arg in node.args:
            if arg not in numbers:
                numbers[arg] = len(numbers)
                entries.append((numbers[arg], arg.shape, arg.dtype, arg.size == 1 and arg.op == "const" and arg.attr))
            args.append(numbers[arg])
        if node not in numbers:
            numbers[node] = len(numbers)
        entries.append((numbers[node], node.op, node.attr, node.shape, node.dtype, tuple(args)))
    for node in group.outputs:
        numbers.setdefault(node, len(numbers))
    key = (
        group.kind,
        group.rows,
        tuple(entries),
        tuple((numbers[n], group.orders.get(n)) for n in group.outputs),
        tuple(numbers[n] for n in group.reduces),
        numbers.get(group.anchor) if group.anchor is not None else None,
    )
    return key, numbers


def _renamed(call: KernelCall, rename: dict[Node, Node]) -> KernelCall:
    return replace(
        call,
        args=tuple(rename[a] if isinstance(a, Node) else a for a in call.args),
        inplace=frozenset((rename[r], rename[w]) for r, w in call.inplace),
        scratch=tuple(rename[n] for n in call.scratch),
        writes=tuple(rename[n] for n in call.writes),
        reads=tuple(rename[n] for n in call.reads),
    )
