"""The cost model of fusion, in lane operations (one arithmetic instruction of one lane).

The constants are ratios measured on a two-core lavapipe: a load or store costs about four arithmetic instructions, a
dispatch with its barrier about as much as 250 000 lane operations.
"""

from __future__ import annotations

from math import prod

from . import scalar
from .graph import Graph, Node

LOAD = 4
STORE = 4
DISPATCH = 250_000
SHORT = 16  # reductions up to this length are done by one lane
_STORED = frozenset("input pick loop dot scatter argsort cumulative".split())
_CAP = 1 << 40


class Weights:
    """Instructions a node takes: alone, and with everything that would be computed with it."""

    def __init__(self, graph: Graph) -> None:
        self._total: dict[Node, int] = {}
        for node in graph.nodes:
            self._total[node] = self._compute(node)

    def own(self, node: Node) -> int:
        """Instructions of the node itself, as its code is written."""
        if node.op == "map":
            return scalar.cost(node.attr.primitive)
        return {"gather": 12, "pad": 4, "window": 8, "concat": 3 * len(node.args), "dynamic_update_slice": 6, "reduce": 10, "dot": 10}.get(
            node.op, 1
        )

    def total(self, node: Node) -> int:
        """Operations an evaluation takes, down to what will surely be stored (counted as loads)."""
        return self._total[node]

    def _compute(self, node: Node) -> int:
        if node.op == "const" or node.op == "iota":
            return 0 if node.size == 1 or node.op == "iota" else LOAD
        if node.op in _STORED:
            return LOAD if node.op != "dot" else 2 * LOAD * prod(node.args[0].shape[a] for a in node.attr.lhs_contract)
        inner = sum(LOAD if a.op in _STORED else self._total[a] for a in node.args)
        if node.op == "reduce":
            count = prod(node.args[0].shape[a] for a in node.attr.axes)
            if count > SHORT:  # shared by the lanes of a row, or stored: readers will load it
                return LOAD
            inner *= count
        return min(_CAP, self.own(node) + inner)
