"""Computes nodes of a scan's body outside of it, for all turns at once: the turn becomes the leading dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .graph import Dot, GraphBuilder, Node, Reduce

ADD = ("add", "add_any")


@dataclass(frozen=True)
class Stacked:
    """A node outside a scan that stands for one inside: with a leading dimension of turns, or the same in every turn."""

    node: Node
    turns: bool


class Stacker:
    """Builds the outside of nodes of a body.

    Args:
        builder: of the graph that the scan is in.
        known: nodes of the body that are at hand outside.
    """

    def __init__(self, builder: GraphBuilder, length: int, known: dict[Node, Stacked]) -> None:
        self.builder, self.length, self.known = builder, length, known

    def get(self, node: Node) -> Stacked:
        """The node outside; it must be `liftable` and rest on known nodes only."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            missing = [] if last in self.known else [a for a in last.args if a not in self.known]
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                self._compute(last)
        return self.known[node]

    def _compute(self, node: Node) -> None:
        if node in self.known:
            return
        args = [self.known[a] for a in node.args]
        self.builder.source = node.source
        if any(a.turns for a in args):
            self.known[node] = Stacked(_RULES[node.op](self, node, args), True)
        else:
            self.known[node] = Stacked(self._same(node, [a.node for a in args]), False)

    def stack(self, node: Node) -> Node:
        """The node outside, with turns."""
        return self.wide(self.get(node))

    def wide(self, value: Stacked) -> Node:
        node = value.node
        if value.turns:
            return node
        return self.builder.broadcast(node, (self.length, *node.shape), range(1, 1 + len(node.shape)))

    def total(self, node: Node) -> Node:
        """Sum of the node over all turns."""
        builder, op = self.builder, node.op
        if op == "map" and node.attr.primitive in ADD:
            return builder.map("add", *(self.total(a) for a in node.args))
        if op in ("reshape", "transpose", "broadcast", "slice", "reverse"):
            return self._same(node, [self.total(node.args[0])])
        if op == "dot":
            lhs, rhs = (self.stack(a) for a in node.args)
            spec = Dot(
                (0, *_up(node.attr.lhs_contract)),
                (0, *_up(node.attr.rhs_contract)),
                _up(node.attr.lhs_batch),
                _up(node.attr.rhs_batch),
            )
            return builder.node("dot", (lhs, rhs), node.shape, node.dtype, spec)
        if is_outer(node):
            return self._sum_of_products(node)
        if op == "reduce" and node.attr.kind == "sum":
            arg = self.stack(node.args[0])
            return builder.node("reduce", (arg,), node.shape, node.dtype, Reduce("sum", (0, *_up(node.attr.axes))))
        return builder.node("reduce", (self.stack(node),), node.shape, node.dtype, Reduce("sum", (0,)))

    def _sum_of_products(self, node: Node) -> Node:
        """Outer products, summed over turns: a contraction of the factors."""
        builder = self.builder
        lhs, rhs = node.args
        first, second = (self.stack(a.args[0]) for a in node.args)
        batch = [d for d in lhs.attr if d in rhs.attr]
        free = [d for d in lhs.attr if d not in batch], [d for d in rhs.attr if d not in batch]
        left, right = (tuple(arg.attr.index(d) + 1 for d in batch) for arg in node.args)
        made = builder.dot(first, second, Dot((0,), (0,), left, right), node.dtype)
        order = [*batch, *free[0], *free[1]]
        return builder.transpose(made, tuple(order.index(d) for d in range(len(node.shape))))

    def _same(self, node: Node, args: Sequence[Node]) -> Node:
        return self.builder.node(node.op, args, node.shape, node.dtype, node.attr)


def is_outer(node: Node) -> bool:
    """Whether a node is a product of two smaller ones, each element of one with elements of the other."""
    if node.op != "map" or node.attr.primitive != "mul" or any(a.op != "broadcast" for a in node.args):
        return False
    whole = all(a.args[0].shape[i] == node.shape[d] for a in node.args for i, d in enumerate(a.attr))
    apart = all(set(a.attr) - set(b.attr) for a, b in (node.args, node.args[::-1]))
    return whole and apart and set(node.args[0].attr) | set(node.args[1].attr) == set(range(len(node.shape)))


def liftable(node: Node) -> bool:
    """Whether a stack of the node can be computed from stacks of its arguments."""
    return node.op in _RULES and not (node.op == "reduce" and node.attr.kind == "custom")


def _up(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dims)


# -- stacks of results from stacks of arguments ---------------------------------------------------------------------------
Rule = Callable[[Stacker, Node, list[Stacked]], Node]


def _plain(attr: Callable[[Node], object]) -> Rule:
    """The same operation on stacked arguments, with another attribute."""

    def rule(s: Stacker, node: Node, args: list[Stacked]) -> Node:
        wide = [s.wide(a) for a in args]
        return s.builder.node(node.op, wide, (s.length, *node.shape), node.dtype, attr(node))

    return rule


def _broadcast(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    return s.builder.broadcast(args[0].node, (s.length, *node.shape), (0, *_up(node.attr)))


def _reshape(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    return s.builder.reshape(args[0].node, (s.length, *node.shape))


def _transpose(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    return s.builder.transpose(args[0].node, (0, *_up(node.attr)))


def _pad(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    fill = args[1].node
    assert not args[1].turns
    return s.builder.node("pad", (s.wide(args[0]), fill), (s.length, *node.shape), node.dtype, ((0, 0), *node.attr))


def _concat(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    return s.builder.concat([s.wide(a) for a in args], node.attr + 1)


def _dot(s: Stacker, node: Node, args: list[Stacked]) -> Node:
    """An operand that is the same in every turn stays as it is: then turns are one more free dimension of the other."""
    spec, (lhs, rhs) = node.attr, args
    batch = len(spec.lhs_batch)
    if batch or (lhs.turns and rhs.turns):
        both = Dot(_up(spec.lhs_contract), _up(spec.rhs_contract), (0, *_up(spec.lhs_batch)), (0, *_up(spec.rhs_batch)))
        return s.builder.dot(s.wide(lhs), s.wide(rhs), both, node.dtype)
    if lhs.turns:
        return s.builder.dot(lhs.node, rhs.node, replace(spec, lhs_contract=_up(spec.lhs_contract)), node.dtype)
    made = s.builder.dot(lhs.node, rhs.node, replace(spec, rhs_contract=_up(spec.rhs_contract)), node.dtype)
    free = len(lhs.node.shape) - len(spec.lhs_contract)
    return s.builder.transpose(made, (free, *range(free), *range(free + 1, len(made.shape))))


_RULES: dict[str, Rule] = {
    "const": _plain(lambda n: n.attr),
    "iota": _plain(lambda n: n.attr + 1),
    "map": _plain(lambda n: n.attr),
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _plain(lambda n: ((0, *n.attr[0]), (1, *n.attr[1]))),
    "reverse": _plain(lambda n: _up(n.attr)),
    "pad": _pad,
    "concat": _concat,
    "reduce": _plain(lambda n: replace(n.attr, axes=_up(n.attr.axes))),
    "dot": _dot,
    "cumulative": _plain(lambda n: replace(n.attr, axis=n.attr.axis + 1)),
    "argsort": _plain(lambda n: replace(n.attr, dim=n.attr.dim + 1)),
}
