"""Independent slices of a scan: axes of its state along which no element ever meets another.

What a turn does to one sentence of a batch, one head, or one channel often depends on nothing of the others. Such axes
are found here by following the dimensions of the state through the body: elementwise operations, views and the free
dimensions of a contraction tie dimensions together, and whatever mixes or moves elements along a dimension cuts it.
What does not depend on the state can be evaluated at any index, and ties nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from .graph import Graph, Loop, Node

REPEAT = 4  # work that slices may repeat, relative to what they share out


@dataclass(frozen=True)
class Slices:
    """How the values of a body that depend on its state split into independent slices.

    Attributes:
        sizes: of the independent axes; slices are numbered in row-major order of them.
        dims: for each such node, the axis that each dimension lies on; None for a dimension within slices.
    """

    sizes: tuple[int, ...]
    dims: dict[Node, tuple[int | None, ...]]

    @property
    def count(self) -> int:
        return prod(self.sizes)

    def local(self, node: Node) -> tuple[int, ...]:
        """Shape of the part of a node that lies in one slice."""
        return tuple(s for s, axis in zip(node.shape, self.dims[node], strict=True) if axis is None)

    def missing(self, node: Node) -> tuple[int, ...]:
        """Axes that a node does not have: slices along them hold the same of it."""
        return tuple(a for a in range(len(self.sizes)) if a not in self.dims[node])


def state_dependent(spec: Loop) -> set[Node]:
    """Nodes of the body that depend on carried values, and its outputs."""
    graph = spec.body
    found = set(graph.inputs[spec.consts : spec.consts + spec.carries])
    for node in graph.nodes:
        if any(a in found for a in node.args):
            found.add(node)
    return found | set(graph.outputs)


def find_slices(spec: Loop, work: Callable[[Node], int]) -> Slices:
    """The slices of a scan; of a single slice where every axis is mixed.

    Args:
        work: operations that an element of a node takes.
    """
    graph = spec.body
    nodes = state_dependent(spec)
    states = graph.inputs[spec.consts : spec.consts + spec.carries]
    ties = _Ties(nodes)
    for state, after in zip(states, graph.outputs, strict=False):
        ties.same(state, after)
    for node in graph.nodes:
        if node in nodes and node.op != "input":
            _RULES.get(node.op, _cut_all)(ties, node)
    for node in nodes:
        ties.cut_diagonals(node)
    order = sorted(states, key=lambda n: -n.size)  # neighbouring slices are neighbours in the largest state
    roots = list(dict.fromkeys(r for n in order for d in range(len(n.shape)) if (r := ties.axis(n, d)) is not None))
    roots = [r for r in roots if _shares_work(r, ties, graph, nodes, work)]
    numbers = {r: i for i, r in enumerate(roots)}
    sizes = tuple(ties.size[r] for r in roots)
    dims = {}
    for node in nodes:
        axes = (ties.axis(node, d) for d in range(len(node.shape)))
        dims[node] = tuple(None if a is None else numbers.get(a) for a in axes)
    return Slices(sizes, dims)


Dim = tuple[Node, int]


def _shares_work(root: Dim, ties: _Ties, graph: Graph, nodes: set[Node], work: Callable[[Node], int]) -> bool:
    """Whether slicing along an axis shares out more than it repeats."""
    shared = repeated = 0
    for node in graph.nodes:
        if node in nodes:
            amount = work(node) * node.size
            if any(ties.axis(node, d) == root for d in range(len(node.shape))):
                shared += amount
            else:
                repeated += amount * (ties.size[root] - 1)
    return repeated <= REPEAT * shared


class _Ties:
    """Dimensions of nodes in classes: dimensions of one class have the same index in all that belongs together."""

    def __init__(self, nodes: set[Node]) -> None:
        self.nodes = nodes
        self._parent: dict[Dim, Dim] = {}
        self._cut: set[Dim] = set()
        self.size: dict[Dim, int] = {}

    def find(self, dim: Dim) -> Dim:
        parent = self._parent.setdefault(dim, dim)
        if parent == dim:
            self.size.setdefault(dim, dim[0].shape[dim[1]])
            return dim
        root = self._parent[dim] = self.find(parent)
        return root

    def tie(self, a: Node, i: int, b: Node, j: int) -> None:
        """Dimension i of a and j of b, if both nodes depend on the state."""
        if a not in self.nodes or b not in self.nodes:
            return
        if a.shape[i] != b.shape[j]:
            self.cut(a, i)
            self.cut(b, j)
            return
        first, second = self.find((a, i)), self.find((b, j))
        if first != second:
            self._parent[second] = first
            if second in self._cut:
                self._cut.add(first)

    def same(self, a: Node, b: Node) -> None:
        """All dimensions of two nodes of one shape."""
        for d in range(len(a.shape)):
            self.tie(a, d, b, d)

    def cut(self, node: Node, dim: int) -> None:
        if node in self.nodes:
            self._cut.add(self.find((node, dim)))

    def cut_diagonals(self, node: Node) -> None:
        """A node that has an axis twice holds pairs of elements along it."""
        roots = [self.find((node, d)) for d in range(len(node.shape)) if node.shape[d] > 1]
        self._cut.update(r for r in roots if roots.count(r) > 1)

    def axis(self, node: Node, dim: int) -> Dim | None:
        """The class of a dimension, if nothing cuts it and it has more than one element."""
        root = self.find((node, dim))
        return None if root in self._cut or node.shape[dim] == 1 else root


# -- what operations do to dimensions ------------------------------------------------------------------------------------
def _cut_all(ties: _Ties, node: Node) -> None:
    for n in (node, *node.args):
        for d in range(len(n.shape)):
            ties.cut(n, d)


def _map(ties: _Ties, node: Node) -> None:
    for arg in node.args:
        ties.same(node, arg)


def _broadcast(ties: _Ties, node: Node) -> None:
    (arg,) = node.args
    for i, d in enumerate(node.attr):
        if arg.shape[i] == node.shape[d]:
            ties.tie(node, d, arg, i)


def _reshape(ties: _Ties, node: Node) -> None:
    (arg,) = node.args
    for left, right in _factors(arg.shape, node.shape):
        if len(left) == len(right) == 1:
            ties.tie(arg, left[0], node, right[0])
            continue
        for d in left:
            ties.cut(arg, d)
        for d in right:
            ties.cut(node, d)


def _factors(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes of one size in groups of equal products; dimensions of one element belong to none."""
    out: list[tuple[list[int], list[int]]] = []
    if not prod(a):
        return [(list(range(len(a))), list(range(len(b))))]
    left, right = [d for d, s in enumerate(a) if s > 1], [d for d, s in enumerate(b) if s > 1]
    while left:
        group = [left.pop(0)], [right.pop(0)]
        sizes = [a[group[0][0]], b[group[1][0]]]
        while sizes[0] != sizes[1]:
            side = int(sizes[1] < sizes[0])
            d = (left, right)[side].pop(0)
            group[side].append(d)
            sizes[side] *= (a, b)[side][d]
        out.append(group)
    return out


def _transpose(ties: _Ties, node: Node) -> None:
    for i, d in enumerate(node.attr):
        ties.tie(node, i, node.args[0], d)


def _whole(keeps: Callable[[Node, int], bool]) -> Callable[[_Ties, Node], None]:
    """Dimensions that are kept whole are tied; the others are cut."""

    def rule(ties: _Ties, node: Node) -> None:
        for arg in (a for a in node.args if len(a.shape) == len(node.shape)):
            for d in range(len(node.shape)):
                if arg.shape[d] == node.shape[d] and keeps(node, d):
                    ties.tie(node, d, arg, d)
                else:
                    ties.cut(node, d)
                    ties.cut(arg, d)

    return rule


def _window(ties: _Ties, node: Node) -> None:
    arg, rank = node.args[0], len(node.attr)
    for d, window in enumerate(node.attr):
        if window.size == window.stride == window.base == 1 and window.low == 0:
            ties.tie(node, d, arg, d)
        else:
            ties.cut(arg, d)
            ties.cut(node, d)
            ties.cut(node, rank + d)


def _gather(ties: _Ties, node: Node) -> None:
    operand, indices = node.args
    spec = node.attr
    batch = [d for d in range(len(node.shape)) if d not in spec.offset_dims]
    for i, d in enumerate(batch):
        ties.tie(node, d, indices, i)
    ties.cut(indices, len(batch))
    for d, i in zip(spec.operand_batch, spec.indices_batch, strict=True):
        ties.tie(node, batch[i], operand, d)
    kept = [d for d in range(len(operand.shape)) if d not in spec.collapsed and d not in spec.operand_batch]
    for d, i in zip(kept, sorted(spec.offset_dims), strict=True):
        if spec.slice_sizes[d] == operand.shape[d]:
            ties.tie(node, i, operand, d)
        else:
            ties.cut(node, i)
            ties.cut(operand, d)
    for d in spec.collapsed:
        ties.cut(operand, d)


def _reduce(ties: _Ties, node: Node) -> None:
    axes = node.attr.axes
    for arg in (a for a in node.args if a.shape):
        kept = [d for d in range(len(arg.shape)) if d not in axes]
        for i, d in enumerate(kept):
            ties.tie(node, i, arg, d)
        for d in axes:
            ties.cut(arg, d)


def _dot(ties: _Ties, node: Node) -> None:
    spec, batch = node.attr, len(node.attr.lhs_batch)
    at = batch
    for arg, contract, shared in zip(
        node.args, (spec.lhs_contract, spec.rhs_contract), (spec.lhs_batch, spec.rhs_batch), strict=True
    ):
        for i, d in enumerate(shared):
            ties.tie(node, i, arg, d)
        for d in contract:
            ties.cut(arg, d)
        for d in range(len(arg.shape)):
            if d not in contract and d not in shared:
                ties.tie(node, at, arg, d)
                at += 1


def _nothing(ties: _Ties, node: Node) -> None:
    pass


_RULES: dict[str, Callable[[_Ties, Node], None]] = {
    "const": _nothing,
    "iota": _nothing,
    "map": _map,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _whole(lambda node, d: node.attr[1][d] == 1),
    "reverse": _whole(lambda node, d: d not in node.attr),
    "pad": _whole(lambda node, d: node.attr[d] == (0, 0)),
    "concat": _whole(lambda node, d: d != node.attr),
    "dynamic_slice": _whole(lambda node, d: True),
    "dynamic_update_slice": _whole(lambda node, d: node.args[1].shape[d] == node.shape[d]),
    "window": _window,
    "gather": _gather,
    "reduce": _reduce,
    "dot": _dot,
}
