"""Calls, branches and loops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..graph import GraphBuilder, Loop, Node
from ..registry import RuleContext, physical, rule
from .shape import part

UNROLL = 4  # scans up to this long are written out
_regions = itertools.count(1)


# -- calls -----------------------------------------------------------------------------------------------------------
def _call(name: str, parameter: str) -> None:
    @rule(name)
    def _(ctx: RuleContext, *args: Node, **params: Any) -> list[Node]:
        return _inline(ctx, params[parameter], args)


for _name, _parameter in (
    ("jit", "jaxpr"),
    ("pjit", "jaxpr"),
    ("closed_call", "call_jaxpr"),
    ("core_closed_call", "call_jaxpr"),
    ("core_call", "call_jaxpr"),
    ("custom_jvp_call", "call_jaxpr"),
    ("custom_vjp_call", "call_jaxpr"),
    ("custom_vjp_call_jaxpr", "fun_jaxpr"),
    ("custom_vmap_call", "call"),
    ("composite", "jaxpr"),
    ("call", "call_jaxpr"),
    ("remat_opt", "fwd_jaxpr"),
    ("k3_call", "jaxpr"),
):
    _call(_name, _parameter)


def _inline(ctx: RuleContext, jaxpr: Any, args: Sequence[Node], active: Node | None = None) -> list[Node]:
    if hasattr(jaxpr, "jaxpr"):
        return ctx.inline(jaxpr.jaxpr, jaxpr.consts, args, active)
    return ctx.inline(jaxpr, (), args, active)


@rule("remat2", "remat", "checkpoint")
def _(ctx: RuleContext, *args: Node, jaxpr: Any, prevent_cse: Any = True, differentiated: bool = True, **_: Any) -> list[Node]:
    """Recomputation in the backward pass gets a region of its own, so that it is not shared with the forward pass."""
    apart = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)
    if not (apart and differentiated):
        return _inline(ctx, jaxpr, args)
    outer, ctx.graph.region = ctx.graph.region, next(_regions)
    try:
        return _inline(ctx, jaxpr, args)
    finally:
        ctx.graph.region = outer


@rule("custom_linear_solve")
def _(ctx: RuleContext, *args: Node, const_lengths: Any, jaxprs: Any) -> list[Node]:
    skipped = const_lengths.matvec + const_lengths.vecmat
    consts = args[skipped : skipped + const_lengths.solve]
    total = skipped + const_lengths.solve + const_lengths.transpose_solve
    return _inline(ctx, jaxprs.solve, (*consts, *args[total:]))


@rule("copy", "copy_p", "name", "stop_gradient", "pvary", "pcast", "reshard", "sharding_constraint", "mesh_cast",
      "layout_constraint", "device_put", "optimization_barrier")  # fmt: skip
def _(ctx: RuleContext, *args: Node, **_: Any) -> tuple[Node, ...]:
    return args


@rule("dce_sink")
def _(_ctx: RuleContext, *_args: Node, **_: Any) -> tuple[Node, ...]:
    return ()


@rule("platform_index")
def _(ctx: RuleContext, *, platforms: Any) -> Node:
    """`lax.platform_dependent`: the default, or else what was written for the CPU."""
    for wanted in (lambda names: names is None, lambda names: "cpu" in names):
        for number, names in enumerate(platforms):
            if wanted(names):
                return ctx.graph.const(number, "i32")
    ctx.refuse(f"platforms {platforms} without a default")


# -- branches --------------------------------------------------------------------------------------------------------
@rule("cond")
def _(ctx: RuleContext, index: Node, *operands: Node, branches: Sequence[Any], **_: Any) -> list[Node]:
    """Every branch is computed and results are selected; loops of a branch not taken stop at once."""
    graph, last = ctx.graph, len(branches) - 1
    if index.op == "const":
        taken = branches[min(max(int(index.attr.array), 0), last)]
        return _inline(ctx, taken, operands)
    from_branch = partial(_at_least, graph, index)
    results: list[Node] = []
    for number, branch in enumerate(branches):
        above = from_branch(number) if number else None
        active = None
        if _has_while(branch):
            below = graph.map("not", from_branch(number + 1)) if number < last else None
            bounds = [p for p in (above, below) if p is not None]
            active = graph.map("and", *bounds) if len(bounds) == 2 else bounds[0] if bounds else None
        outputs = _inline(ctx, branch, operands, active)
        if above is None:
            results = outputs
        else:
            results = [_select(graph, above, old, new) for old, new in zip(results, outputs, strict=True)]
    return results


def _at_least(graph: GraphBuilder, index: Node, number: int) -> Node:
    if index.dtype == "bool":
        return index
    is_cast = index.op == "map" and index.attr.primitive == "convert_element_type" and index.args[0].dtype == "bool"
    if is_cast and number == 1:
        return index.args[0]
    return graph.map("ge", index, graph.const(number, index.dtype), dtype="bool")


def _select(graph: GraphBuilder, predicate: Node, off: Node, on: Node) -> Node:
    """`on` where the predicate holds; its dimensions are the leading ones of both."""
    if off is on:
        return on
    wide = graph.broadcast(predicate, on.shape, range(len(predicate.shape)))
    return graph.map("select_n", wide, off, on, dtype=on.dtype)


def _has_while(jaxpr: Any) -> bool:
    from ..desugar import equations

    return any(e.primitive.name == "while" for e in equations(getattr(jaxpr, "jaxpr", jaxpr)))


# -- loops -----------------------------------------------------------------------------------------------------------
class _Captured:
    """What a loop reads: constants of equal elements are rebuilt inside its body, all else becomes inputs of it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.passed = [n for n in nodes if _literal(n) is None]

    def rebuild(self, graph: GraphBuilder, skip: int = 0) -> list[Node]:
        """Their counterparts in the body's builder, without `skip` leading dimensions."""
        result = []
        for node in self.nodes:
            literal, shape = _literal(node), node.shape[skip:]
            result.append(graph.input(shape, node.dtype) if literal is None else graph.full(shape, literal, node.dtype))
        return result


def _literal(node: Node) -> Any:
    """Value of a constant of equal elements, or None."""
    scalar = node.args[0] if node.op == "broadcast" else node
    return scalar.attr.array if scalar.op == "const" and scalar.shape == () else None


@rule("scan")
def _(
    ctx: RuleContext,
    *args: Node,
    jaxpr: Any,
    length: int,
    reverse: bool,
    num_consts: int = 0,
    num_carry: int = 0,
    ft_in: Any = None,
    **_: Any,
) -> list[Node]:
    graph = ctx.graph
    if ft_in is not None:  # JAX 0.12 tells the parts of the arguments by their structure
        num_consts, num_carry, _others = (len(list(part.vals)) for part in ft_in.unpack())
    consts, carries, stacked = (
        args[:num_consts],
        list(args[num_consts : num_consts + num_carry]),
        args[num_consts + num_carry :],
    )
    shapes = [ctx.out(i) for i in range(len(ctx.equation.outvars))]
    if length == 0:
        return [*carries, *(graph.full(shape, 0, dtype) for shape, dtype in shapes[num_carry:])]
    if length <= UNROLL:
        return _unrolled(ctx, jaxpr, length, reverse, consts, carries, stacked)
    captured = _Captured(consts)
    slices = _Captured(stacked)
    gate = [ctx.active] if ctx.active is not None and _has_while(jaxpr) else []
    body = GraphBuilder()
    body.source = graph.source
    active = body.input((), "bool") if gate else None
    inner = captured.rebuild(body)
    frame = ctx.frame.nested(body, active)
    inner += [body.input(c.shape, c.dtype) for c in carries]
    inner += slices.rebuild(body, skip=1)
    outputs = frame.run(jaxpr.jaxpr, jaxpr.consts, inner)
    attr = Loop("scan", body.finish(outputs), len(gate) + len(captured.passed), num_carry, int(length), bool(reverse))
    loop = graph.node("loop", (*gate, *captured.passed, *carries, *slices.passed), (), "bool", attr)
    return [graph.pick(loop, i, shape, dtype) for i, (shape, dtype) in enumerate(shapes)]


def _unrolled(
    ctx: RuleContext,
    jaxpr: Any,
    length: int,
    reverse: bool,
    consts: Sequence[Node],
    carries: list[Node],
    stacked: Sequence[Node],
) -> list[Node]:
    graph, count = ctx.graph, len(carries)
    steps: list[list[Node]] = [[]] * length
    for i in reversed(range(length)) if reverse else range(length):
        slices = [graph.reshape(part(graph, x, 0, i, i + 1), x.shape[1:]) for x in stacked]
        outputs = ctx.inline(jaxpr.jaxpr, jaxpr.consts, (*consts, *carries, *slices))
        carries, steps[i] = outputs[:count], outputs[count:]
    ys = [graph.concat([graph.reshape(y, (1, *y.shape)) for y in column], 0) for column in zip(*steps, strict=True)]
    return [*carries, *ys]


@rule("while")
def _(
    ctx: RuleContext, *args: Node, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **_: Any
) -> list[Node]:
    """A predicate with dimensions (from vmap) goes on while any is true, and keeps the carries of those that are done."""
    graph = ctx.graph
    total = cond_nconsts + body_nconsts
    cond_consts, body_consts, carries = args[:cond_nconsts], args[cond_nconsts:total], args[total:]
    batched = bool(cond_jaxpr.out_avals[0].shape)
    condition_captured = _Captured(cond_consts)
    captured = _Captured((*cond_consts, *body_consts) if batched else body_consts)
    gate = [ctx.active] if ctx.active is not None else []

    condition = GraphBuilder()
    condition.source = graph.source
    active = condition.input((), "bool") if gate else None
    inner = condition_captured.rebuild(condition) + [condition.input(c.shape, c.dtype) for c in carries]
    (predicate,) = ctx.frame.nested(condition, active).run(cond_jaxpr.jaxpr, cond_jaxpr.consts, inner)
    predicate = condition.reduce(predicate, "or", range(len(predicate.shape)))
    if active is not None:
        predicate = condition.map("and", active, predicate)

    body = GraphBuilder()
    body.source = graph.source
    inner = captured.rebuild(body)
    state = [body.input(c.shape, c.dtype) for c in carries]
    frame = ctx.frame.nested(body, None)
    outputs = frame.run(body_jaxpr.jaxpr, body_jaxpr.consts, (*inner[cond_nconsts if batched else 0 :], *state))
    if batched:
        (running,) = frame.run(cond_jaxpr.jaxpr, cond_jaxpr.consts, (*inner[:cond_nconsts], *state))
        outputs = [_select(body, running, old, new) for old, new in zip(state, outputs, strict=True)]

    attr = Loop(
        "while",
        body.finish(outputs),
        len(captured.passed),
        len(carries),
        condition=condition.finish([predicate]),
        condition_consts=len(gate) + len(condition_captured.passed),
    )
    loop = graph.node("loop", (*gate, *condition_captured.passed, *captured.passed, *carries), (), "bool", attr)
    return [graph.pick(loop, i, *physical(v.aval)) for i, v in enumerate(ctx.equation.outvars)]
