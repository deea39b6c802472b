"""What every kernel is built with: parameters for stored nodes, the grid, and stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...runtime.caps import DeviceCaps
from ..graph import Node
from ..groups import Group
from ..index import Index, counter, symbol
from ..limits import limits
from ..pull import Puller
from ..tile import Builder, Kernel, Value


@dataclass(frozen=True)
class KernelCall:
    """A kernel and what it is applied to, before buffers have places.

    Attributes:
        args: a stored node (its buffer) or a 32-bit literal for each parameter.
        groups: workgroups in x, y, z.
        inplace: (read, written) pairs of nodes that may share memory: each lane reads an element before it alone writes it.
        elements: for kernels that may be packed with others of the same code, the number of elements (parameter `count`).
    """

    kernel: Kernel
    groups: tuple[int, int, int]
    args: tuple[Node | int, ...]
    inplace: frozenset[tuple[Node, Node]] = frozenset()
    elements: int | None = None
    scratch: tuple[Node, ...] = ()
    writes: tuple[Node, ...] = ()
    reads: tuple[Node, ...] = field(default=())


class Writer:
    """A kernel under construction for one group."""

    def __init__(self, group: Group, caps: DeviceCaps) -> None:
        self.group, self.caps, self.limits = group, caps, limits(caps)
        self.b = Builder()
        self.p = Puller(self.b, self._read, self.limits)
        self.args: list[Node | int] = []
        self._numbers: dict[Node, int] = {}
        self._written: dict[Node, set[Index]] = {}
        self._loaded: dict[Node, int] = {}  # number of loads before the first store to a node

    def _read(self, node: Node) -> int | None:
        """Members of the group are computed; scalars known at compile time are written out; the rest is stored."""
        if node in self.group.members or node.op == "iota" or (node.op == "const" and node.size == 1):
            return None
        if node.op in ("const", "input", "pick") or node in self.group.stored:
            return self.parameter(node, "r")
        raise AssertionError(f"{node!r} is neither stored nor a member of {self.group}")

    def parameter(self, node: Node, mode: str) -> int:
        """Parameter for the buffer of a stored node."""
        if node not in self._numbers:
            self._numbers[node] = self.b.param(f"n{node.number}", node.dtype, node.size, mode)
            self.args.append(node)
        return self._numbers[node]

    def literal(self, name: str, value: int) -> Value:
        """A 32-bit parameter, so that kernels differing in it share their code."""
        self.args.append(value)
        return self.b.scalar(self.b.param(name, "i32", 0, "scalar"))

    def store(self, results: Sequence[tuple[Node, Index, Value]]) -> None:
        """Store computed results together, after everything they read has been loaded (so that updates in place are right)."""
        for node, flat, value in results:
            self._written.setdefault(node, set()).add(flat)
            self._loaded.setdefault(node, len(self.p.loads))
            self.b.store(self.parameter(node, "w"), self.p.index(flat), value)

    def groups(self, count: int) -> tuple[tuple[int, int, int], Index, Value | None]:
        """Grid of `count` workgroups: (dispatch size, the workgroup's number, a condition that excludes surplus ones)."""
        limit = self.caps.max_groups[0]
        if count <= limit:
            return (count, 1, 1), counter("g", count, self.b.builtin("group_x")), None
        width = 1 << (limit.bit_length() - 1)
        height = -(-count // width)
        b = self.b
        value = b.op("add", b.op("mul", b.builtin("group_y"), b.i32(width)), b.builtin("group_x"))
        surplus = None if width * height == count else b.op("lt", value, b.i32(count))
        return (width, height, 1), symbol("g", 0, count - 1, value), surplus

    def lane(self, local_size: int) -> Index:
        """The lane's number in its workgroup."""
        b, width = self.b, self.caps.subgroup_size
        if local_size <= width:
            return symbol("lane", 0, width - 1, b.builtin("lane"))
        value = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(width)), b.builtin("lane"))
        return symbol("lane", 0, local_size - 1, value)

    def finish(self, local_size: int, grid: tuple[int, int, int], elements: int | None = None) -> KernelCall:
        group = self.group
        names = sorted({n.attr.primitive if n.op == "map" else n.op for n in group.members})
        sources = tuple(dict.fromkeys(n.source for n in sorted(group.members, key=lambda n: n.number) if n.source))
        kernel = self.b.finish(group.name, local_size, source=sources, operations=tuple(names))
        written = tuple(self._written)
        reads = tuple(a for a in self.args if isinstance(a, Node) and a not in self._written)
        return KernelCall(kernel, grid, tuple(self.args), self._inplace(), elements, (), written, reads)

    def _inplace(self) -> frozenset[tuple[Node, Node]]:
        """Pairs that may share memory: read at the one index that is written later, and not again after that."""
        read_at: dict[Node, set[Index]] = {}
        last: dict[Node, int] = {}
        for number, (node, flat) in enumerate(self.p.loads):
            read_at.setdefault(node, set()).add(flat)
            last[node] = number
        return frozenset(
            (read, written)
            for read, at in read_at.items()
            for written, to in self._written.items()
            if at == to and len(at) == 1 and read.size == written.size and last[read] < self._loaded[written]
        )


@contextmanager
def when(b: Builder, condition: Value | None) -> Iterator[None]:
    """Emit under a condition; None: unconditionally."""
    if condition is None:
        yield
    else:
        with b.branch(condition):
            yield


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def local_size(lanes: int, caps: DeviceCaps, most: int = 64, spread: int = 32) -> int:
    """Lanes of a workgroup: at most `most`, but so few that some `spread` workgroups share the work where they can."""
    local = min(most, caps.max_local_size)
    while local > caps.subgroup_size and -(-lanes // local) < spread:
        local //= 2
    return max(local, caps.subgroup_size)
