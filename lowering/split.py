"""Splits reductions that would leave most of a device idle into two: partial results, then their combination."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .graph import Graph, GraphBuilder, Node, Reduce, fold_length
from .traits import row_suited

LANES = 2048  # parallel lanes worth having
LEAST = 64  # elements a lane should fold at least
_SPLITTABLE = frozenset("sum prod max min and or xor".split())


def split_large_reductions(graph: Graph) -> Graph:
    """Rewrite few-result, many-element reductions; the order of floating-point sums changes, deterministically."""

    if not any(_parts(n) for n in graph.nodes):
        return graph
    builder = GraphBuilder()
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        builder.source = node.source
        args = tuple(new[a] for a in node.args)
        parts = _parts(node)
        if node.op == "input":
            new[node] = builder.input(node.shape, node.dtype)
        elif parts:
            new[node] = _split(builder, node, args[0], *parts)
        else:
            copy = Node(node.op, args, node.shape, node.dtype, node.attr, node.source, len(builder.nodes))
            builder.nodes.append(copy)
            new[node] = copy
    return builder.finish([new[n] for n in graph.outputs])


def _parts(node: Node) -> tuple[int, int] | None:
    """(axis, number of parts) for a reduction to be split, else None."""
    if node.op != "reduce" or node.attr.kind not in _SPLITTABLE or not node.size:
        return None
    count = fold_length(node)
    lanes = node.size * (256 if row_suited(node) else 1)
    if lanes >= LANES or count < 4 * LEAST:
        return None
    if row_suited(node) and count <= 4096:
        return None
    shape = node.args[0].shape
    axis = max(node.attr.axes, key=lambda a: (shape[a], -a))
    wanted = min(-(-LANES // node.size), max(1, count // LEAST), shape[axis])
    exact = [p for p in range(wanted, max(1, wanted // 4), -1) if shape[axis] % p == 0]
    parts = exact[0] if exact else wanted
    return (axis, parts) if parts > 1 else None


def _split(builder: GraphBuilder, node: Node, arg: Node, axis: int, parts: int) -> Node:
    from . import scalar

    size = arg.shape[axis]
    each = -(-size // parts)
    if each * parts != size:
        fill = builder.const(scalar.identity(node.attr.kind, arg.dtype), arg.dtype)
        config = [(0, each * parts - size if d == axis else 0, 0) for d in range(len(arg.shape))]
        arg = builder.pad(arg, fill, config)
    arg = builder.reshape(arg, (*arg.shape[:axis], parts, each, *arg.shape[axis + 1 :]))
    # Partial sums of narrow floats stay wide, so that splitting adds no rounding.
    partial_dtype = "f32" if node.dtype in ("f16", "bf16") and node.attr.kind in ("sum", "prod") else node.dtype
    axes = (axis + 1, *(a + (a >= axis) for a in node.attr.axes if a != axis))
    spec = Reduce(node.attr.kind, tuple(sorted(axes)))
    kept = tuple(s for d, s in enumerate(arg.shape) if d not in spec.axes)
    partial = builder.node("reduce", (arg,), kept, partial_dtype, spec)
    where = sum(1 for d in range(axis) if d not in spec.axes)
    assert prod(kept) == node.size * parts
    return builder.node("reduce", (partial,), node.shape, node.dtype, replace(spec, axes=(where,)))
