"""Reading and writing at computed indices: dynamic slices, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..dtypes import DTYPES
from ..graph import Gather, GraphBuilder, Node, Scatter
from ..registry import RuleContext, rule

_MODES = {"CLIP": "clip", "FILL_OR_DROP": "fill", "PROMISE_IN_BOUNDS": "inbounds"}


def index_i32(graph: GraphBuilder, index: Node) -> Node:
    """An index as i32; one beyond i32 becomes the nearest, which is outside of every array too."""
    if index.dtype in ("u32", "i64", "u64"):
        low, high = -(2**31), 2**31 - 1
        if index.op == "const":
            return graph.const(index.attr.array.clip(low if index.dtype == "i64" else None, high), "i32")
        index = graph.map("min", index, graph.const(high, index.dtype))
        if index.dtype == "i64":
            index = graph.map("max", index, graph.const(low, "i64"))
    return graph.const(index.attr.array, "i32") if index.op == "const" else graph.convert(index, "i32")


# -- dynamic slices --------------------------------------------------------------------------------------------------
@rule("dynamic_slice")
def _(ctx: RuleContext, x: Node, *starts: Node, slice_sizes: Sequence[int], **_: Any) -> Node:
    shape = (*slice_sizes, *x.shape[len(slice_sizes) :])
    offsets = _starts(ctx.graph, x.shape, shape, starts)
    if all(o.op == "const" for o in offsets):
        lows = [int(o.attr.array) for o in offsets]
        return ctx.graph.slice(x, lows, [low + n for low, n in zip(lows, shape, strict=True)])
    return ctx.graph.node("dynamic_slice", (x, *offsets), shape, x.dtype)


@rule("dynamic_update_slice")
def _(ctx: RuleContext, x: Node, update: Node, *starts: Node) -> Node:
    if update.shape == x.shape:
        return update
    if update.size == 0:
        return x
    return ctx.graph.node(
        "dynamic_update_slice", (x, update, *_starts(ctx.graph, x.shape, update.shape, starts)), x.shape, x.dtype
    )


def _starts(graph: GraphBuilder, shape: Sequence[int], part: Sequence[int], starts: Sequence[Node]) -> list[Node]:
    """Starts as i32, one a dimension: constants already clamped, 0 where there is only one place."""
    offsets = []
    for dim, (size, taken) in enumerate(zip(shape, part, strict=True)):
        start = index_i32(graph, starts[dim]) if dim < len(starts) and size > taken else graph.const(0, "i32")
        if start.op == "const":
            start = graph.const(min(max(int(start.attr.array), 0), size - taken), "i32")
        offsets.append(start)
    return offsets


# -- gather ----------------------------------------------------------------------------------------------------------
@rule("gather")
def _(
    ctx: RuleContext,
    x: Node,
    indices: Node,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Node:
    graph = ctx.graph
    shape, dtype = ctx.out()
    numbers, offsets, sizes = dimension_numbers, tuple(dimension_numbers.offset_dims), tuple(int(s) for s in slice_sizes)
    if ctx.key_dims():
        offsets, sizes = (*offsets, len(shape) - 1), (*sizes, 2)
    how = _mode(ctx, mode)
    fill = None
    if how == "fill":
        fill = DTYPES[dtype].numpy.type(0 if fill_value is None else fill_value).item()
        fill = float("nan") if fill != fill else fill
    attr = Gather(
        offsets,
        tuple(numbers.collapsed_slice_dims),
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.start_indices_batching_dims),
        sizes,
        how,
        fill,
    )
    return graph.node("gather", (x, index_i32(graph, indices)), shape, dtype, attr)


def _mode(ctx: RuleContext, mode: Any) -> str:
    name = "FILL_OR_DROP" if mode is None else getattr(mode, "name", str(mode)).upper()
    if name not in _MODES:
        ctx.refuse(f"mode {mode}")
    return _MODES[name]


def take_along(graph: GraphBuilder, x: Node, indices: Node, dim: int) -> Node:
    """x at `indices` (i32, in bounds) along one dimension, at its own place along the others."""
    others = tuple(d for d in range(len(x.shape)) if d != dim)
    attr = Gather((), (dim,), (dim,), others, others, (1,) * len(x.shape), "inbounds")
    return graph.node("gather", (x, graph.reshape(indices, (*indices.shape, 1))), indices.shape, x.dtype, attr)


# -- scatter ---------------------------------------------------------------------------------------------------------
def _scatter(kind: str, *names: str) -> None:
    @rule(*names)
    def _(ctx: RuleContext, x: Node, indices: Node, updates: Node, *, update_jaxpr: Any = None, **params: Any) -> Node:
        if kind == "set" and not _is_plain_set(update_jaxpr):
            return _scatter_apply(ctx, x, indices, updates, update_jaxpr, params)
        return scatter(ctx, x, indices, updates, kind, params)


for _kind in ("add", "mul", "min", "max", "sub"):
    _scatter(_kind, f"scatter-{_kind}", f"scatter_{_kind}")
_scatter("set", "scatter")


def scatter(ctx: RuleContext, x: Node, indices: Node, updates: Node, kind: str, params: dict[str, Any]) -> Node:
    """A scatter node with the parameters of JAX's scatter primitives."""
    graph, numbers = ctx.graph, params["dimension_numbers"]
    if updates.size == 0 or x.size == 0:
        return x
    window_dims = tuple(numbers.update_window_dims)
    if ctx.key_dims():
        window_dims = (*window_dims, len(updates.shape) - 1)
    how = _mode(ctx, params["mode"])
    attr = Scatter(
        window_dims,
        tuple(numbers.inserted_window_dims),
        tuple(numbers.scatter_dims_to_operand_dims),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.scatter_indices_batching_dims),
        kind,
        "clip" if how == "clip" else "drop",  # a broken promise of indices in bounds drops the update, as XLA does
        bool(params["unique_indices"]),
    )
    return graph.node("scatter", (x, index_i32(graph, indices), graph.convert(updates, x.dtype)), x.shape, x.dtype, attr)


def _is_plain_set(jaxpr: Any) -> bool:
    return jaxpr is None or (not jaxpr.eqns and jaxpr.outvars[0] is jaxpr.invars[1])


def _scatter_apply(ctx: RuleContext, x: Node, indices: Node, updates: Node, jaxpr: Any, params: dict[str, Any]) -> Node:
    """`x.at[i].apply(f)`: each element goes through f as often as it is indexed."""
    operand, index, update = ctx.avals_in
    call = jaxpr_as_fun(ClosedJaxpr(jaxpr, params["update_consts"]))
    zero = jnp.zeros((), update.dtype)

    def function(value: jax.Array) -> jax.Array:
        flat = jax.vmap(lambda element: call(element, zero)[0])(value.reshape(-1))
        return flat.reshape(value.shape)

    def apply(value: jax.Array, places: jax.Array) -> jax.Array:
        ones = jnp.ones(update.shape, jnp.int32)
        counts = lax.scatter_add(
            jnp.zeros(operand.shape, jnp.int32), places, ones, params["dimension_numbers"],
            indices_are_sorted=params["indices_are_sorted"], unique_indices=params["unique_indices"], mode=params["mode"],
        )  # fmt: skip
        if params["unique_indices"]:
            return jnp.where(counts > 0, function(value), value)
        most = counts.max(initial=0)

        def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            done, current = carry
            return done + 1, jnp.where(counts > done, function(current), current)

        return lax.while_loop(lambda carry: carry[0] < most, step, (jnp.int32(0), value))[1]

    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (operand, index)]
    closed = jax.make_jaxpr(apply)(*structs)
    return ctx.inline(closed.jaxpr, closed.consts, (x, indices))[0]
