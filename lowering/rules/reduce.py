"""Reductions, argmax and cumulative operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from ..dtypes import DTYPES
from ..graph import Cumulative, Graph, GraphBuilder, Node, Reduce
from ..registry import RuleContext, rule

KINDS = {"add": "sum", "add_any": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}
MAPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}


def _reduction(kind: str) -> None:
    @rule(f"reduce_{kind}")
    def _(ctx: RuleContext, x: Node, *, axes: Sequence[int], **_: Any) -> Node:
        return reduce_kind(ctx.graph, x, kind, axes)


for _kind in ("sum", "prod", "max", "min", "and", "or", "xor"):
    _reduction(_kind)


@rule("argmax", "argmin")
def _(ctx: RuleContext, x: Node, *, axes: Sequence[int], **_: Any) -> Node:
    shape, dtype = ctx.out()
    axis = axes[0]
    if x.shape[axis] == 1:
        return ctx.graph.full(shape, 0, dtype)
    return ctx.graph.reduce(x, ctx.equation.primitive.name, (axis,), dtype)


def _cumulative(kind: str) -> None:
    @rule(f"cum{kind}")
    def _(ctx: RuleContext, x: Node, *, axis: int, reverse: bool) -> Node:
        if x.shape[axis] <= 1:
            return x
        return ctx.graph.node("cumulative", (x,), x.shape, x.dtype, Cumulative(kind, axis, reverse))


for _kind in ("sum", "prod", "max", "min", "logsumexp"):
    _cumulative(_kind)


@rule("reduce")
def _(ctx: RuleContext, *args: Node, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> list[Node]:
    half = len(args) // 2
    return reduce_with(ctx, args[:half], args[half:], jaxpr.jaxpr, jaxpr.consts, dimensions)


def reduce_kind(graph: GraphBuilder, x: Node, kind: str, axes: Sequence[int]) -> Node:
    """Reduction of a plain kind; over no elements it is the neutral element."""
    if x.size:
        return graph.reduce(x, kind, axes)
    return graph.full([n for i, n in enumerate(x.shape) if i not in set(axes)], identity(kind, x.dtype), x.dtype)


def reduce_with(
    ctx: RuleContext, operands: Sequence[Node], inits: Sequence[Node], jaxpr: Any, consts: Sequence[Any], axes: Sequence[int]
) -> list[Node]:
    """Reduce n operands over `axes` by a jaxpr of 2n scalars, each starting from its init."""
    graph = ctx.graph
    kind = monoid(jaxpr)
    if kind is not None:
        total = reduce_kind(graph, operands[0], kind, axes)
        return [total if is_identity(kind, inits[0]) else graph.map(MAPS[kind], inits[0], total, dtype=total.dtype)]
    axes = tuple(sorted(axes))
    shape = tuple(s for i, s in enumerate(operands[0].shape) if i not in axes)
    if operands[0].size == 0:
        return [graph.broadcast(init, shape, ()) for init in inits]
    combiner = scalar_graph(ctx, jaxpr, consts)
    args = (*operands, *inits)
    return [graph.node("reduce", args, shape, x.dtype, Reduce("custom", axes, combiner, i)) for i, x in enumerate(operands)]


def monoid(jaxpr: Any) -> str | None:
    """Kind of reduction whose combiner `jaxpr` is, where it is a plain one on two scalars."""
    if len(jaxpr.invars) != 2 or len(jaxpr.eqns) != 1 or len(jaxpr.outvars) != 1:
        return None
    equation = jaxpr.eqns[0]
    if any(isinstance(v, Literal) for v in (*equation.invars, *jaxpr.outvars)):
        return None
    if set(equation.invars) != set(jaxpr.invars) or equation.outvars[0] is not jaxpr.outvars[0]:
        return None
    return KINDS.get(equation.primitive.name)


def identity(kind: str, dtype: str) -> Any:
    """Neutral element of a reduction."""
    info = DTYPES[dtype]
    if kind in ("sum", "or", "xor"):
        return 0
    if kind == "prod":
        return 1
    if kind == "and":
        return True if info.kind == "b" else np.array(-1).astype(info.numpy).item()
    if info.kind == "b":
        return kind == "min"
    if info.kind == "f":
        return -np.inf if kind == "max" else np.inf
    limits = np.iinfo(info.numpy)
    return int(limits.min if kind == "max" else limits.max)


def is_identity(kind: str, node: Node) -> bool:
    """Whether a scalar node is known to be the neutral element."""
    if node.op == "broadcast":
        return is_identity(kind, node.args[0])
    return node.op == "const" and node.size == 1 and node.attr.array.reshape(()).item() == identity(kind, node.dtype)


def scalar_graph(ctx: RuleContext, jaxpr: Any, consts: Sequence[Any]) -> Graph:
    """A jaxpr of scalars as a graph of its own."""
    frame = ctx.frame.nested(GraphBuilder(), None)
    frame.graph.source = ctx.source
    inputs = frame.inputs(v.aval for v in jaxpr.invars)
    return frame.graph.finish(frame.run(jaxpr, consts, inputs))
