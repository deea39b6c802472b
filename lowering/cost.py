"""The cost model of fusion, in lane operations (one arithmetic instruction of one lane).

The constants are ratios measured on a two-core lavapipe: a load or store costs about four arithmetic instructions, a
dispatch with its barrier about as much as 250 000 lane operations.
"""

from __future__ import annotations

from . import scalar
from .graph import Graph, Node, fold_length

LOAD = 4
STORE = 4
DISPATCH = 250_000
SHORT = 16  # reductions up to this length are done by one lane
_STORED = frozenset("input pick loop dot scatter argsort cumulative".split())
_CAP = 1 << 40
MOST = 64  # nodes of an expression that are told apart


class Weights:
    """Instructions a node takes: alone, and with everything that would be computed with it."""

    def __init__(self, graph: Graph) -> None:
        self._inside: dict[Node, frozenset[Node]] = {}
        self._total: dict[Node, int] = {}
        for node in graph.nodes:
            self._visit(node)

    def own(self, node: Node) -> int:
        """Instructions of the node itself, as its code is written."""
        if node.op == "map":
            return scalar.cost(node.attr.primitive)
        return {
            "gather": 12,
            "pad": 2,
            "window": 4,
            "concat": 2 * len(node.args),
            "dynamic_update_slice": 4,
            "reduce": 10,
            "dot": 10,
        }.get(node.op, 1)

    def total(self, node: Node) -> int:
        """Operations an evaluation takes, down to what will surely be stored (counted as loads). Shared parts count once."""
        return self._total[node]

    def alone(self, node: Node) -> int:
        """As `total`, for a lane that does a long reduction all by itself."""
        if node.op != "reduce":
            return self._total[node]
        return min(_CAP, 10 + fold_length(node) * sum(LOAD if _loaded(a) else self._total[a] for a in node.args))

    def _visit(self, node: Node) -> None:
        if _loaded(node):
            depth = fold_length(node) if node.op == "dot" else 0
            self._inside[node], self._total[node] = frozenset((node,)), 2 * LOAD * depth if depth else LOAD
            return
        if node.op == "reduce":  # a short one, computed again at each element
            count = fold_length(node)
            self._inside[node] = frozenset((node,))
            self._total[node] = min(_CAP, 10 + count * sum(LOAD if _loaded(a) else self._total[a] for a in node.args))
            return
        inside = frozenset((node,)).union(*(self._inside[a] for a in node.args if a.op != "const" or a.size > 1))
        if len(inside) > MOST:
            self._inside[node] = frozenset((node,))
            self._total[node] = min(_CAP, self.own(node) + sum(LOAD if _loaded(a) else self._total[a] for a in node.args))
            return
        self._inside[node] = inside
        self._total[node] = min(_CAP, sum(self._alone(n) for n in inside))

    def _alone(self, node: Node) -> int:
        if _loaded(node):
            return LOAD
        if node.op == "reduce" or self._inside[node] == frozenset((node,)):
            return self._total.get(node, self.own(node))
        return self.own(node)


def _loaded(node: Node) -> bool:
    """Stored for certain, or a long reduction: shared by the lanes of a row, or stored; readers load it."""
    if node.op == "reduce":
        return fold_length(node) > SHORT
    return node.op in _STORED or (node.op == "const" and node.size > 1)
