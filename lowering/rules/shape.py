"""Views: primitives that only move, drop or repeat elements, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dtypes import DTYPES
from ..graph import GraphBuilder, Node
from ..registry import RuleContext, rule


@rule("broadcast_in_dim")
def _(ctx: RuleContext, x: Node, *, broadcast_dimensions: Sequence[int], **_: Any) -> Node:
    shape, _dtype = ctx.out()
    dims = (*broadcast_dimensions, *range(len(shape) - ctx.key_dims(), len(shape)))
    return ctx.graph.broadcast(x, shape, dims)


@rule("reshape")
def _(ctx: RuleContext, x: Node, *, dimensions: Sequence[int] | None, **_: Any) -> Node:
    if dimensions is not None:
        x = ctx.graph.transpose(x, (*dimensions, *range(len(dimensions), len(x.shape))))
    return ctx.graph.reshape(x, ctx.out()[0])


@rule("squeeze", "expand_dims")
def _(ctx: RuleContext, x: Node, **_: Any) -> Node:
    return ctx.graph.reshape(x, ctx.out()[0])


@rule("transpose")
def _(ctx: RuleContext, x: Node, *, permutation: Sequence[int]) -> Node:
    return ctx.graph.transpose(x, (*permutation, *range(len(permutation), len(x.shape))))


@rule("slice")
def _(
    ctx: RuleContext, x: Node, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None
) -> Node:
    extra = (*(0 for _ in range(ctx.key_dims())),)
    strides = strides or (1,) * len(start_indices)
    stops = (*limit_indices, *x.shape[len(limit_indices) :])
    return ctx.graph.slice(x, (*start_indices, *extra), stops, (*strides, *(1 for _ in extra)))


@rule("rev")
def _(ctx: RuleContext, x: Node, *, dimensions: Sequence[int]) -> Node:
    return ctx.graph.reverse(x, dimensions)


@rule("pad")
def _(ctx: RuleContext, x: Node, fill: Node, *, padding_config: Sequence[tuple[int, int, int]]) -> Node:
    if ctx.key_dims():
        ctx.refuse("padding typed keys")
    if x.size == 0:
        return ctx.graph.broadcast(fill, ctx.out()[0], ())
    return ctx.graph.pad(x, fill, [(int(low), int(high), int(mid)) for low, high, mid in padding_config])


@rule("concatenate")
def _(ctx: RuleContext, *parts: Node, dimension: int) -> Node:
    return ctx.graph.concat(parts, dimension)


@rule("split")
def _(ctx: RuleContext, x: Node, *, sizes: Sequence[int], axis: int) -> list[Node]:
    results, start = [], 0
    for size in sizes:
        results.append(part(ctx.graph, x, axis, start, start + int(size)))
        start += int(size)
    return results


@rule("stack")
def _(ctx: RuleContext, *parts: Node, axis: int) -> Node:
    shape = parts[0].shape
    expanded = (*shape[:axis], 1, *shape[axis:])
    return ctx.graph.concat([ctx.graph.reshape(p, expanded) for p in parts], axis)


@rule("unstack")
def _(ctx: RuleContext, x: Node, *, axis: int) -> list[Node]:
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [ctx.graph.reshape(part(ctx.graph, x, axis, i, i + 1), shape) for i in range(x.shape[axis])]


def part(graph: GraphBuilder, x: Node, axis: int, start: int, stop: int) -> Node:
    """x[..., start:stop, ...] along one axis."""
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    return graph.slice(x, starts, stops)


@rule("tile")
def _(ctx: RuleContext, x: Node, *, reps: Sequence[int]) -> Node:
    shape = ctx.out()[0]
    pairs = [size for rep, old in zip(reps, x.shape, strict=False) for size in (int(rep), old)]
    pairs += x.shape[len(reps) :]
    places = (*range(1, 2 * len(reps), 2), *range(2 * len(reps), len(pairs)))
    return ctx.graph.reshape(ctx.graph.broadcast(x, pairs, places), shape)


@rule("iota")
def _(ctx: RuleContext, *_sizes: Node, dimension: int, **_: Any) -> Node:
    shape, dtype = ctx.out()
    return ctx.graph.iota(shape, dimension, dtype)


@rule("empty", "empty2")
def _(ctx: RuleContext, *_args: Node, **_: Any) -> Node:
    shape, dtype = ctx.out()
    return ctx.graph.full(shape, 0, dtype)


@rule("clamp")
def _(ctx: RuleContext, low: Node, x: Node, high: Node) -> Node:
    return ctx.graph.map("clamp", low, x, high, dtype=x.dtype)


@rule("bitcast_convert_type")
def _(ctx: RuleContext, x: Node, **_: Any) -> Node:
    shape, dtype = ctx.out()
    return bitcast(ctx, x, shape, dtype)


_UNSIGNED = {8: "u8", 16: "u16", 32: "u32", 64: "u64"}


def bitcast(ctx: RuleContext, x: Node, shape: tuple[int, ...], dtype: str) -> Node:
    """The bits of `x` as another dtype; a narrower one adds a trailing dimension (low bits first), a wider one takes it."""
    graph = ctx.graph
    if x.dtype == dtype:
        return x
    old, new = DTYPES[x.dtype].bits, DTYPES[dtype].bits
    if old == new:
        return graph.map("bitcast_convert_type", x, dtype=dtype)
    if min(old, new) < 8:
        ctx.refuse("bits of bool")
    wide = "u64" if 64 in (old, new) else "u32"
    bits = graph.convert(bitcast(ctx, x, x.shape, _UNSIGNED[old]), wide)
    step = graph.const(min(old, new), wide)
    if old > new:
        places = graph.iota(shape, len(shape) - 1, wide)
        spread = graph.broadcast(bits, shape, range(len(x.shape)))
        bits = graph.map("shift_right_logical", spread, graph.map("mul", places, step))
    else:
        places = graph.iota(x.shape, len(x.shape) - 1, wide)
        bits = graph.reduce(graph.map("shift_left", bits, graph.map("mul", places, step)), "or", (len(x.shape) - 1,))
    return bitcast(ctx, graph.convert(bits, _UNSIGNED[new]), shape, dtype)
