"""At which indices a kernel under formation reads each node, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from .graph import Node, fold_length
from .index import Index, constant, flatten, symbol, unflatten
from .pull import Position, concat_view, dot_position, pad_view, view, window_view

MANY = 12  # positions of one node that are told apart


class Demands:
    """For each node a map from index to the number of evaluations; an index that depends on data is None.

    Args:
        lanes: lanes that the kernel runs, each of which computes what all its elements, or those of its row, have in common.
    """

    def __init__(self, lanes: int = 1 << 62) -> None:
        self.lanes = lanes
        self._at: dict[Node, dict[Position | None, int]] = {}

    def add(self, node: Node, at: Position | None, evaluations: int) -> None:
        known = self._at.setdefault(node, {})
        if len(known) >= MANY and at not in known:
            at = None
        known[at] = known.get(at, 0) + evaluations if at is None else max(known.get(at, 0), evaluations)

    def nodes(self) -> Iterable[Node]:
        """All nodes read, members included."""
        return self._at.keys()

    def evaluations(self, node: Node) -> int:
        return sum(self._at.get(node, {}).values())

    def at(self, node: Node) -> set[Position | None]:
        """All indices at which a node is read."""
        return set(self._at.get(node, ()))

    def count(self, node: Node, at: Position | None) -> int:
        """Evaluations at one of these."""
        return self._at[node][at]

    def settle(self, node: Node, at: Position, evaluations: int) -> None:
        """Forget who reads a node: it is computed at `at`, and they read what is kept of it."""
        self._at[node] = {at: evaluations}

    def drop(self, node: Node) -> None:
        """Forget a node."""
        del self._at[node]

    def single(self, node: Node) -> Index | None:
        """Row-major position, when there is exactly one."""
        known = self._at.get(node)
        if known is None or len(known) != 1:
            return None
        (at,) = known
        return None if at is None else flatten(at, node.shape)

    def push(self, node: Node, row: Index | None = None, column: Index | None = None) -> None:
        """Add what `node` reads.

        Args:
            row, column: `node` is a reduction that the lanes of this row share, over this column. It is folded once a
                row, and its elements are those that other passes over the row read at the same column.
        """
        for at, evaluations in list(self._at.get(node, {}).items()):
            if at is None:
                folds = fold_length(node) if node.op in ("reduce", "dot") else 1
                for arg in node.args:
                    self.add(arg, None, evaluations * folds)
            else:
                self._push_at(node, at, evaluations if row is None else row.hi + 1, column)

    def _push_at(self, node: Node, at: Position, evaluations: int, column: Index | None) -> None:
        op, args = node.op, node.args
        inner = view(node, at)
        if inner is not None:
            return self.add(args[0], inner, min(evaluations, self.lanes) if _uniform(inner) else evaluations)
        if op == "map":
            for arg in args:
                self.add(arg, at, evaluations)
        elif op == "pad" or op == "window":
            inner, _ = pad_view(node, at) if op == "pad" else window_view(node, at)
            self.add(args[0], inner, evaluations)
            self.add(args[1], (), evaluations)
        elif op == "concat":
            for arg, where, cond in concat_view(node, at):
                if cond.known is not False:
                    self.add(arg, where, evaluations)
        elif op == "reduce":
            axes, shape = node.attr.axes, args[0].shape
            count = fold_length(node)
            folds = column if column is not None else symbol("k", 0, max(0, count - 1))
            folded = iter(unflatten(folds, [shape[a] for a in axes]))
            kept = iter(at)
            where = tuple(next(folded) if i in axes else next(kept) for i in range(len(shape)))
            operands = args if node.attr.kind != "custom" else args[: len(args) // 2]
            for arg in operands:
                self.add(arg, where, evaluations * count)
            for arg in args[len(operands) :]:
                self.add(arg, (), evaluations)
        elif op == "dot":
            count = fold_length(node)
            left, right = dot_position(node, at, symbol("k", 0, max(0, count - 1)))
            # Tiles read each operand element once for eight rows (or columns) of the result.
            self.add(args[0], left, max(args[0].size, evaluations * count // 32))
            self.add(args[1], right, max(args[1].size, evaluations * count // 8))
        elif op == "gather":
            spec = node.attr
            batch = tuple(i for d, i in enumerate(at) if d not in spec.offset_dims)
            self.add(args[0], None, evaluations)
            for component in range(len(spec.start_map)):
                self.add(args[1], (*batch, constant(component)), evaluations)
        elif op in ("dynamic_slice", "dynamic_update_slice"):
            for arg in args:
                if arg is args[0] and op == "dynamic_update_slice":
                    self.add(arg, at, evaluations)
                else:
                    self.add(arg, () if arg.shape == () else None, evaluations)
        elif op == "cumulative":
            self.add(args[0], at, 2 * args[0].size)
        elif op == "argsort":
            for arg in args:
                self.add(arg, None, arg.size * 8)
        elif op == "scatter":
            operand, indices, updates = args
            self.add(operand, at, operand.size)
            window = prod(updates.shape[d] for d in node.attr.window_dims)
            self.add(indices, None, indices.size * max(1, window))
            self.add(updates, None, updates.size)


def _uniform(at: Position) -> bool:
    """Whether an index is the same for all that a lane computes: it depends on the row or on nothing."""
    return all(atom.name == "r" if atom.base is None else _uniform((atom.base,)) for i in at for atom, _ in i.terms)
