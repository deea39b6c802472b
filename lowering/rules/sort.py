"""sort and top_k."""

from __future__ import annotations

from typing import Any

from ..dtypes import DTYPES, same_width, width
from ..graph import Argsort, GraphBuilder, Node
from ..registry import RuleContext, rule
from .index import take_along
from .shape import part

SMALL_ROW = 64  # rows up to this long are ranked by comparing all pairs, which fuses with what surrounds it


@rule("sort")
def _(ctx: RuleContext, *operands: Node, dimension: int, num_keys: int, **_: Any) -> list[Node]:
    if operands[0].size == 0 or operands[0].shape[dimension] == 1:
        return list(operands)
    order = _argsort(ctx.graph, operands[:num_keys], dimension)
    return [take_along(ctx.graph, x, order, dimension) for x in operands]


def _argsort(graph: GraphBuilder, keys: tuple[Node, ...], dim: int) -> Node:
    return graph.node("argsort", keys, keys[0].shape, "i32", Argsort(dim))


@rule("top_k")
def _(ctx: RuleContext, x: Node, *, k: int, axis: int = -1, **_: Any) -> list[Node]:
    return top_k(ctx.graph, x, int(k), axis % len(x.shape), ctx.out(1)[1], largest=True)


@rule("approx_top_k")
def _(
    ctx: RuleContext, x: Node, *, k: int, reduction_dimension: int, is_max_k: bool, aggregate_to_topk: bool = True, **_: Any
) -> list[Node]:
    if not aggregate_to_topk:
        ctx.refuse("aggregate_to_topk=False")
    return top_k(ctx.graph, x, int(k), reduction_dimension % len(x.shape), ctx.out(1)[1], largest=is_max_k)


def top_k(graph: GraphBuilder, x: Node, k: int, axis: int, index_dtype: str, largest: bool) -> list[Node]:
    """The k first in descending (ascending) total order along an axis, with their indices; of equals the first comes first."""
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if 0 in shape:
        return [graph.full(shape, 0, x.dtype), graph.full(shape, 0, index_dtype)]
    key = _total_order(graph, x)
    if largest:
        key = graph.map("not", key)
    if x.shape[axis] > SMALL_ROW:
        order = part(graph, _argsort(graph, (key,), axis), axis, 0, k)
        return [take_along(graph, x, order, axis), graph.convert(order, index_dtype)]
    return _ranked(graph, x, key, k, axis, index_dtype)


def _ranked(graph: GraphBuilder, x: Node, key: Node, k: int, axis: int, index_dtype: str) -> list[Node]:
    """Rank of each element = how many come before it; slot r takes the element of rank r."""
    rank, n = len(x.shape), x.shape[axis]
    last_first = (*(d for d in range(rank) if d != axis), axis)
    rows = graph.transpose(key, last_first)
    pairs = (*rows.shape, n)
    own, other = graph.broadcast(rows, pairs, range(rank)), graph.broadcast(rows, pairs, (*range(rank - 1), rank))
    own_place, other_place = graph.iota(pairs, rank - 1, "i32"), graph.iota(pairs, rank, "i32")
    equal_before = graph.map(
        "and", graph.map("eq", other, own, dtype="bool"), graph.map("lt", other_place, own_place, dtype="bool")
    )
    before = graph.map("or", graph.map("lt", other, own, dtype="bool"), equal_before)
    ranks = graph.reduce(graph.convert(before, "i32"), "sum", (rank,))
    slots = (*rows.shape[:-1], k, n)
    hit = graph.map(
        "eq", graph.broadcast(ranks, slots, (*range(rank - 1), rank)), graph.iota(slots, rank - 1, "i32"), dtype="bool"
    )
    place = graph.reduce(_where(graph, hit, graph.iota(slots, rank, "i32")), "sum", (rank,))
    bits = graph.transpose(_to_bits(graph, x), last_first)
    chosen = graph.reduce(_where(graph, hit, graph.broadcast(bits, slots, (*range(rank - 1), rank))), "sum", (rank,))
    back = tuple(last_first.index(d) for d in range(rank))
    values = _from_bits(graph, graph.transpose(chosen, back), x.dtype)
    return [values, graph.convert(graph.transpose(place, back), index_dtype)]


def _where(graph: GraphBuilder, condition: Node, x: Node) -> Node:
    return graph.map("select_n", condition, graph.const(0, x.dtype), x, dtype=x.dtype)


def _to_bits(graph: GraphBuilder, x: Node) -> Node:
    """An integer of 32 or 64 bits that holds `x` exactly, NaN and signed zero too."""
    info = DTYPES[x.dtype]
    target = same_width("u" if info.kind == "u" else "i", info.compute)
    if info.kind == "f":
        return graph.map("bitcast_convert_type", graph.convert(x, info.compute), dtype=target)
    return graph.convert(x, target)


def _from_bits(graph: GraphBuilder, bits: Node, dtype: str) -> Node:
    if DTYPES[dtype].kind == "f":
        return graph.convert(graph.map("bitcast_convert_type", bits, dtype=DTYPES[dtype].compute), dtype)
    return graph.convert(bits, dtype)


def _total_order(graph: GraphBuilder, x: Node) -> Node:
    """An integer key in the total order of `x`: for floats -NaN < -inf < .. < -0 < 0 < .. < inf < NaN."""
    bits = _to_bits(graph, x)
    if DTYPES[x.dtype].kind != "f":
        return bits
    top = width(bits.dtype) - 1
    negative = graph.map("shift_right_arithmetic", bits, graph.const(top, bits.dtype))
    return graph.map("xor", bits, graph.map("and", negative, graph.const((1 << top) - 1, bits.dtype)))
