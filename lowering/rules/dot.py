"""Matrix products."""

from __future__ import annotations

from math import prod
from typing import Any

from ..dtypes import DTYPES
from ..graph import Dot, GraphBuilder, Node
from ..registry import RuleContext, rule


@rule("dot_general")
def _(ctx: RuleContext, lhs: Node, rhs: Node, *, dimension_numbers: Any, **_: Any) -> Node:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    dims = Dot(tuple(lhs_contract), tuple(rhs_contract), tuple(lhs_batch), tuple(rhs_batch))
    return contract(ctx.graph, lhs, rhs, dims, ctx.out()[1])


def contract(graph: GraphBuilder, lhs: Node, rhs: Node, dims: Dot, dtype: str) -> Node:
    """Dot with any operand and result dtypes; outer products and empty sums become elementwise."""
    if dtype == "bool":
        return graph.map("ne", contract(graph, lhs, rhs, dims, "i32"), graph.const(0, "i32"), dtype="bool")
    if dtype != "f64" and "f64" in (lhs.dtype, rhs.dtype) and DTYPES[dtype].kind == "f":
        return graph.convert(contract(graph, lhs, rhs, dims, "f64"), dtype)
    lhs, rhs = _operands(graph, lhs, rhs, dtype)
    terms = prod(lhs.shape[i] for i in dims.lhs_contract)
    free_lhs = [i for i in range(len(lhs.shape)) if i not in dims.lhs_contract and i not in dims.lhs_batch]
    free_rhs = [i for i in range(len(rhs.shape)) if i not in dims.rhs_contract and i not in dims.rhs_batch]
    batch = [lhs.shape[i] for i in dims.lhs_batch]
    left, right = [lhs.shape[i] for i in free_lhs], [rhs.shape[i] for i in free_rhs]
    shape = (*batch, *left, *right)
    if terms == 0 or prod(shape) == 0:
        return graph.full(shape, 0, dtype)
    if terms > 1:
        return graph.dot(lhs, rhs, dims, dtype)
    leading = range(len(batch))
    flat_lhs = graph.reshape(graph.transpose(lhs, (*dims.lhs_batch, *free_lhs, *dims.lhs_contract)), (*batch, *left))
    flat_rhs = graph.reshape(graph.transpose(rhs, (*dims.rhs_batch, *free_rhs, *dims.rhs_contract)), (*batch, *right))
    wide_lhs = graph.broadcast(graph.convert(flat_lhs, dtype), shape, range(len(batch) + len(left)))
    places = (*leading, *range(len(batch) + len(left), len(shape)))
    return graph.map("mul", wide_lhs, graph.broadcast(graph.convert(flat_rhs, dtype), shape, places))


def _operands(graph: GraphBuilder, lhs: Node, rhs: Node, dtype: str) -> tuple[Node, Node]:
    """Operands in one dtype in which their products are those of the result: floats may stay narrow, since sums are wide."""
    if DTYPES[dtype].kind != "f":
        return graph.convert(lhs, dtype), graph.convert(rhs, dtype)
    if lhs.dtype == rhs.dtype and DTYPES[lhs.dtype].kind == "f":
        return lhs, rhs
    wide = "f64" if dtype == "f64" else "f32"
    return graph.convert(lhs, wide), graph.convert(rhs, wide)
