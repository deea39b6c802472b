"""Groups: the cut of a graph into kernels, as data. `fuse.py` decides, `kernels/` writes the code."""

from __future__ import annotations

from dataclasses import dataclass, field

from .graph import Node
from .index import Index
from .order import Order


@dataclass(eq=False)
class Group:
    """What one kernel computes.

    Attributes:
        kind: the schedule (a key of `kernels.SCHEDULES`): map row dot scatter cumulative argsort loop.
        outputs: nodes it stores.
        members: every node it computes, outputs included; cheap nodes may be members of several groups.
        stored: all nodes of the program that live in memory.
        rows: for "row", how many rows; each output has rows * columns elements in row-major order.
        reduces: for "row", the reductions that a whole workgroup does together, producers first.
        anchor: the node whose schedule this is (dot, scatter, cumulative, argsort, loop), else None.
        orders: for outputs that "map" and "dot" kernels do not visit in row-major order, where each visit belongs.
    """

    kind: str
    outputs: list[Node]
    members: set[Node]
    stored: set[Node]
    rows: int = 0
    reduces: list[Node] = field(default_factory=list)
    anchor: Node | None = None
    orders: dict[Node, Order] = field(default_factory=dict)
    number: int = 0

    @property
    def name(self) -> str:
        """Readable kernel name: the operations that characterise it."""
        nodes = self.anchor.attr.body.nodes if self.anchor is not None and self.anchor.op == "loop" else self.members
        nodes = sorted(nodes, key=lambda n: n.number)
        main = [n for n in nodes if n.op in ("dot", "reduce", "scatter", "cumulative", "argsort", "gather")]
        words = [f"{n.op}_{n.attr.kind}" if n.op in ("reduce", "scatter", "cumulative") else n.op for n in main]
        words += [n.attr.primitive for n in nodes if n.op == "map"][-2:]
        return "_".join(dict.fromkeys([self.kind, *words]))[:60]

    def position(self, node: Node, at: Index) -> Index:
        """Row-major position of the element of an output that the kernel visits as number `at`."""
        order = self.orders.get(node)
        return at if order is None else order.apply(at)

    def __repr__(self) -> str:
        return f"group {self.number} ({self.name}) -> {self.outputs}"
