"""A kernel being formed: a group with the indices at which it reads each node, and the order of its visits."""

from __future__ import annotations

from .cost import SHORT
from .demand import Demands
from .graph import Node, fold_length
from .groups import Group
from .index import Index, counter, unflatten
from .order import Order, order_of

ROW_LANES = 8  # lanes of a row, at least


class Plan:
    """A kernel being formed.

    Attributes:
        weight: instructions of its members.
        depth: longest chain of members above each node.
        reach: plans (as a bit set) that must run after this one.
        flat: number of the visit, for "map" and "dot".
        row: number of the row, for "row".
    """

    def __init__(self, group: Group, number: int = 0) -> None:
        self.group, self.number = group, number
        self.weight, self.reach = 0, 0
        self.depth: dict[Node, int] = {}
        size = group.outputs[0].size if group.outputs else 1
        self.demands = Demands(size)
        self.flat = counter("i", size)
        self.row: Index | None = None
        self.columns: dict[int, Index] = {}

    def rebuild(self, rows: int | None) -> None:
        """Recompute demands, for one lane an element (rows None) or one workgroup a row."""
        group = self.group
        size = max(n.size for n in group.outputs)
        self.demands = Demands(size if rows is None else ROW_LANES * rows)
        self.row = None if rows is None else counter("r", rows)
        self.columns = {}
        for node in group.outputs:
            at = self.flat
            if self.row is not None:
                count = node.size // rows  # type: ignore[operator]
                at = self.row * count + self._column(count)
            self.demands.add(node, unflatten(group.position(node, at), node.shape), size)
        for node in sorted(group.members, key=lambda n: -n.number):
            self.push(node)

    def push(self, node: Node) -> None:
        """Pass on what a member reads."""
        if self.row is not None and node in self.group.reduces:
            self.demands.push(node, self.row, self._column(fold_length(node)))
        elif self.row is None and node.op == "reduce" and node in self.group.outputs:
            self.demands.push(node, column=self._column(fold_length(node)))  # one loop folds all of them
        else:
            self.demands.push(node)

    def _column(self, count: int) -> Index:
        """The column of a row of `count` elements; the same in every pass over such rows."""
        return self.columns.setdefault(count, counter("c", count))

    # -- what it computes anyway -----------------------------------------------------------------------------------
    def aligned(self, node: Node) -> bool:
        """Whether the kernel computes each element of `node` exactly once; a kernel of rows, also in row-major order."""
        group, flat = self.group, self.demands.single(node)
        if group.kind == "loop" or not node.size or flat is None:
            return False
        if self.row is None:
            return self.order(node) is not None
        if node.size == group.rows:
            return flat == self.row
        count, surplus = divmod(node.size, group.rows)
        return not surplus and flat - self.row * count == self._column(count)

    def order(self, node: Node) -> Order | None:
        """Where the visits of a "map" or "dot" kernel lie in `node`, if they are all its elements, once each."""
        flat = self.demands.single(node)
        if flat is None or self.group.kind not in ("map", "dot") or node.size != self.group.outputs[0].size:
            return None
        return order_of(flat, self.flat, node.size)

    # -- changing the order of visits ------------------------------------------------------------------------------
    def visit(self, order: Order, rows: int | None = None) -> bool:
        """Visit as number `order(i)` what was visited as number i; False where the index algebra cannot follow."""
        group, size = self.group, self.group.outputs[0].size
        if order.digits:
            back = order.inverse()
            orders = {n: group.orders.get(n, Order(())).after(back, size) for n in group.outputs}
            if None in orders.values():
                return False
            group.orders = {n: o for n, o in orders.items() if o is not None and o.digits}
        self.rebuild(rows)
        return True

    def follow(self, node: Node) -> bool:
        """Visit the elements of `node`, which the kernel reads once each, in row-major order."""
        order, before = self.order(node), self.group.orders
        if order is None:
            return False
        if not order.digits or (self.visit(order) and self.demands.single(node) == self.flat):
            return True
        self.group.orders = before
        self.rebuild(None)
        return False

    def as_rows(self, node: Node) -> bool:
        """Become one workgroup a row, where the kernel reads `node` (a reduction, or what follows from one) once a row."""
        group = self.group
        if group.kind == "row":
            return node.size == group.rows and self.demands.single(node) == self.row
        if group.kind != "map" or any(n.op == "reduce" and fold_length(n) > SHORT for n in group.members):
            return False
        if not node.size or any(n.size % node.size for n in group.outputs):
            return False
        before = group.orders
        for order in (Order(()), *before.values()):  # any of the outputs may be the one that is laid out in rows
            group.orders = before
            if self.visit(order, node.size) and self.demands.single(node) == self.row:
                group.kind, group.rows = "row", node.size
                return True
        group.orders = before
        self.rebuild(None)
        return False
