"""What grouping needs to know of single nodes."""

from __future__ import annotations

import numpy as np

from .cost import SHORT
from .graph import Graph, Node, fold_length
from .loops import JOINED

FREE = frozenset(("broadcast", "reshape", "transpose", "slice", "reverse", "iota", "dynamic_slice"))
ALONE = frozenset(("scatter", "cumulative", "argsort"))


def row_suited(node: Node) -> bool:
    """Whether lanes should share each result of a reduction: long, and along the fastest axis."""
    rank = len(node.args[0].shape)
    last = max((i for i in range(rank) if node.args[0].shape[i] > 1), default=-1)
    return fold_length(node) > SHORT and last in node.attr.axes


def row_values(graph: Graph) -> set[Node]:
    """Long reductions along the fastest axis, and elementwise values and views of the same size computed from them."""
    found: set[Node] = set()
    for node in graph.nodes:
        if (node.op == "reduce" and row_suited(node)) or (
            (node.op == "map" or node.op in FREE) and any(a in found and a.size == node.size for a in node.args)
        ):
            found.add(node)
    return found


def moves(node: Node) -> bool:
    """Whether a node only selects what to load: a pass over memory to store that costs more than a select a load."""
    if node.op == "map":
        return node.attr.primitive == "convert_element_type" and node.args[0].op in ("input", "pick")
    return node.op == "pad" or (node.op == "concat" and len(node.args) <= JOINED)


def constant_array(node: Node) -> np.ndarray | None:
    """The value of a node that a loop may read from a constant buffer, so that no kernel need fill one."""
    if node.op == "const":
        return node.attr.array
    if node.op == "broadcast" and node.args[0].op == "const" and node.args[0].size == 1:
        return np.broadcast_to(node.args[0].attr.array.reshape(()), node.shape)
    return None


def sources(node: Node) -> list[Node]:
    """What `node` reads, looking through views; scalars, which cost nothing to read, left out."""
    out, stack = [], list(node.args)
    while stack:
        arg = stack.pop()
        out.append(arg)
        if arg.op in FREE:
            stack.extend(arg.args)
    return [a for a in out if a.size > 1 and not (a.op == "broadcast" and a.args[0].size == 1)]
