"""Reductions over sliding windows, and the gradient of max pooling as sums over windows of the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..graph import GraphBuilder, Node, Window
from ..registry import RuleContext, rule
from .reduce import identity, monoid, reduce_kind, reduce_with


def windows_of(
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
) -> list[Window]:
    """One `Window` a dimension, from the parameters of JAX's window primitives."""
    ones = (1,) * len(sizes)
    return [
        Window(int(size), int(stride), int(low), int(high), int(wide), int(apart))
        for size, stride, (low, high), wide, apart in zip(sizes, strides, padding, base or ones, dilation or ones, strict=True)
    ]


def windowed(graph: GraphBuilder, x: Node, fill: Node, windows: Sequence[Window]) -> Node:
    """Sliding windows of `x` (output positions ++ window positions); no node where each window is one element."""
    if all(w == Window(1) for w in windows):
        return graph.reshape(x, (*x.shape, *(1 for _ in windows)))
    if x.size == 0:
        return graph.broadcast(fill, graph.window(x, fill, windows).shape, ())
    return graph.window(x, fill, windows)


def _window_axes(rank: int) -> range:
    return range(rank, 2 * rank)


def _pooling(kind: str) -> None:
    @rule(f"reduce_window_{kind}")
    def _(ctx: RuleContext, x: Node, **params: Any) -> Node:
        view = windowed(ctx.graph, x, ctx.graph.const(identity(kind, x.dtype), x.dtype), _windows(params))
        return reduce_kind(ctx.graph, view, kind, _window_axes(len(x.shape)))


for _kind in ("sum", "max", "min"):
    _pooling(_kind)


def _windows(params: dict[str, Any]) -> list[Window]:
    return windows_of(
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("base_dilation"),
        params.get("window_dilation"),
    )


@rule("reduce_window")
def _(ctx: RuleContext, *args: Node, jaxpr: Any, consts: Sequence[Any], **params: Any) -> list[Node]:
    half = len(args) // 2
    operands, inits = args[:half], args[half:]
    windows = _windows(params)
    if hasattr(jaxpr, "jaxpr"):
        jaxpr, consts = jaxpr.jaxpr, jaxpr.consts
    kind = monoid(jaxpr)
    # What pads a window must not count; a combiner of unknown kind has only its init to pad with.
    fills = inits if kind is None else [ctx.graph.const(identity(kind, x.dtype), x.dtype) for x in operands]
    views = [windowed(ctx.graph, x, fill, windows) for x, fill in zip(operands, fills, strict=True)]
    return reduce_with(ctx, views, inits, jaxpr, consts, _window_axes(len(operands[0].shape)))


def _chosen(graph: GraphBuilder, operand: Node, select_prim: Any, windows: Sequence[Window]) -> Node:
    """Row-major position inside each window of the element that max (ge) or min (le) pooling selects."""
    kind = "max" if select_prim.name == "ge" else "min"
    rank = len(operand.shape)
    view = windowed(graph, operand, graph.const(identity(kind, operand.dtype), operand.dtype), windows)
    positions = view.shape[:rank]
    flat = graph.reshape(view, (*positions, prod(view.shape[rank:])))
    if flat.shape[-1] == 1:
        return graph.full(positions, 0, "i32")
    return graph.reduce(flat, f"arg{kind}", (rank,), "i32")


@rule("select_and_gather_add")
def _(ctx: RuleContext, tangents: Node, operand: Node, *, select_prim: Any, **params: Any) -> Node:
    graph, rank, windows = ctx.graph, len(operand.shape), _windows(params)
    chosen = _chosen(graph, operand, select_prim, windows)
    view = windowed(graph, tangents, graph.const(0, tangents.dtype), windows)
    size = prod(view.shape[rank:])
    flat = graph.reshape(view, (*view.shape[:rank], size))
    hit = graph.map("eq", graph.broadcast(chosen, flat.shape, range(rank)), graph.iota(flat.shape, rank, "i32"), dtype="bool")
    kept = graph.map("select_n", hit, graph.const(0, flat.dtype), flat, dtype=flat.dtype)
    return graph.reduce(kept, "sum", (rank,))


@rule("select_and_scatter_add")
def _(ctx: RuleContext, source: Node, operand: Node, *, select_prim: Any, **params: Any) -> Node:
    """Each element of the operand sums the sources of the windows over it that chose it."""
    graph, rank, windows = ctx.graph, len(operand.shape), _windows(params)
    chosen = _chosen(graph, operand, select_prim, windows)
    covering = []
    for size, window, count in zip(operand.shape, windows, source.shape, strict=True):
        low = window.size - 1 - window.low
        dilated = (count - 1) * window.stride + 1 if count else 0
        covering.append(Window(window.size, 1, low, size + window.size - 1 - dilated - low, window.stride, 1))
    choices = windowed(graph, chosen, graph.const(-1, "i32"), covering)
    values = windowed(graph, source, graph.const(0, source.dtype), covering)
    # The covering windows run backwards: position 0 is the window in which this element comes last.
    size = prod(w.size for w in windows)
    shape = (*operand.shape, size)
    place = graph.map("sub", graph.const(size - 1, "i32"), graph.iota(shape, rank, "i32"))
    hit = graph.map("eq", graph.reshape(choices, shape), place, dtype="bool")
    kept = graph.map("select_n", hit, graph.const(0, source.dtype), graph.reshape(values, shape), dtype=source.dtype)
    return graph.reduce(kept, "or" if source.dtype == "bool" else "sum", (rank,))
