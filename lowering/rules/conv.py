"""Convolutions: a sliding window over the image, then a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph import Dot, Node
from ..registry import RuleContext, rule
from .dot import contract
from .window import windowed, windows_of


@rule("conv_general_dilated")
def _(
    ctx: RuleContext,
    lhs: Node,
    rhs: Node,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> Node:
    graph = ctx.graph
    image = graph.transpose(lhs, dimension_numbers.lhs_spec)  # batch, feature, spatial..
    kernel = graph.transpose(rhs, dimension_numbers.rhs_spec)  # out feature, in feature, spatial..
    out_shape, dtype = ctx.out()
    rank = len(image.shape) - 2
    taps = kernel.shape[2:]
    windows = windows_of(
        (1, 1, *taps), (1, 1, *window_strides), ((0, 0), (0, 0), *padding), (1, 1, *lhs_dilation), (1, 1, *rhs_dilation)
    )
    view = windowed(graph, image, graph.const(0, image.dtype), windows)
    batch, features = image.shape[:2]
    positions = view.shape[2 : 2 + rank]
    out_features = kernel.shape[0]
    groups = feature_group_count * batch_group_count
    per_batch, per_feature, per_out = batch // batch_group_count, features // feature_group_count, out_features // groups
    # group, batch, in feature, positions.., taps..  and  group, out feature, in feature, taps..
    if batch_group_count > 1:
        view = graph.reshape(view, (groups, per_batch, per_feature, *positions, *taps))
    else:
        view = graph.reshape(view, (per_batch, groups, per_feature, *positions, *taps))
        view = graph.transpose(view, (1, 0, *range(2, 3 + 2 * rank)))
    kernel = graph.reshape(kernel, (groups, per_out, per_feature, *taps))
    if per_feature == 1 and groups > 1:
        result = _depthwise(ctx, view, kernel, rank, dtype)
    else:
        contracted = (2, *range(3 + rank, 3 + 2 * rank))
        result = contract(graph, view, kernel, Dot(contracted, tuple(range(2, 3 + rank)), (0,), (0,)), dtype)
    # group, batch, positions.., out feature  ->  batch, group, out feature, positions..
    result = graph.transpose(result, (1, 0, 2 + rank, *range(2, 2 + rank)))
    result = graph.reshape(result, (per_batch, out_features, *positions))
    inverse = [0] * (rank + 2)
    for i, dim in enumerate(dimension_numbers.out_spec):
        inverse[dim] = i
    result = graph.transpose(result, inverse)
    return graph.reshape(result, out_shape)


def _depthwise(ctx: RuleContext, view: Node, kernel: Node, rank: int, dtype: str) -> Node:
    """One input feature a group: products are no matrices, so multiply and sum over the taps, which fuses."""
    graph = ctx.graph
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    groups, per_batch, _, *positions_taps = view.shape
    positions, taps = positions_taps[:rank], positions_taps[rank:]
    per_out = kernel.shape[1]
    shape = (groups, per_batch, *positions, per_out, *taps)
    image = graph.reshape(graph.convert(view, wide), (groups, per_batch, *positions, *taps))
    image = graph.broadcast(image, shape, (*range(2 + rank), *range(3 + rank, 3 + 2 * rank)))
    weights = graph.reshape(graph.convert(kernel, wide), (groups, per_out, *taps))
    weights = graph.broadcast(weights, shape, (0, 2 + rank, *range(3 + rank, 3 + 2 * rank)))
    total = graph.reduce(graph.map("mul", image, weights), "sum", range(3 + rank, 3 + 2 * rank))
    return graph.convert(total, dtype)
