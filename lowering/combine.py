"""Combiners: what a reduction folds with, as a state of one or more registers.

A combiner is associative on states; order is otherwise free, which is the documented accumulate rule: floats narrower
than f32 are summed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import scalar
from .dtypes import DTYPES, FLOATS
from .errors import UnsupportedPrimitive
from .graph import Graph, Node
from .tile import Builder, Value

if TYPE_CHECKING:
    from .pull import Puller

State = tuple[Value, ...]


@dataclass(frozen=True)
class Combiner:
    """How to fold.

    Attributes:
        types: compute types of the registers of a state.
        identity: (puller) -> state.
        step: (builder, state, elements, position) -> state.
        merge: (builder, earlier state, later state) -> state.
        finish: (builder, state) -> value.
        rounds: each step of a long fold rounds, so that a sum of the sums of blocks is more exact.
    """

    types: tuple[str, ...]
    identity: Callable[[Puller], State]
    step: Callable[[Builder, State, State, Value], State]
    merge: Callable[[Builder, State, State], State]
    finish: Callable[[Builder, State], Value]
    rounds: bool = False


def combiner_of(node: Node) -> Combiner:
    """Combiner of a reduce, cumulative or dot node."""
    if node.op == "dot":
        return _products(node)
    if node.attr.kind in ("argmax", "argmin"):
        return _arg_extreme(node)
    if node.attr.kind == "custom":
        return _custom(node)
    return simple(node.attr.kind, node.dtype)


def simple(kind: str, dtype: str) -> Combiner:
    """Combiner of one register: sum prod max min and or xor."""
    compute = DTYPES[dtype].compute

    def merge(b: Builder, first: State, second: State) -> State:
        return (scalar.combine(b, kind, first[0], second[0], compute),)

    return Combiner(
        (compute,),
        lambda p: (p.b.const(scalar.identity(kind, dtype), compute),),
        lambda b, state, element, _: merge(b, state, element),
        merge,
        lambda b, state: scalar.narrow(b, state[0], dtype),
        kind == "sum" and DTYPES[dtype].kind == "f",
    )


def _products(node: Node) -> Combiner:
    dtype = node.dtype
    compute = DTYPES[dtype].compute

    def step(b: Builder, state: State, pair: State, _: Value) -> State:
        left, right = (v if v.dtype == compute else b.op("convert", v, attr=compute) for v in pair)
        if compute == "bool":
            return (b.op("or", state[0], b.op("and", left, right)),)
        if compute in FLOATS:
            return (b.op("fma", left, right, state[0]),)
        return (b.op("add", state[0], b.op("mul", left, right)),)

    base = simple("or" if compute == "bool" else "sum", dtype)
    return replace(base, step=step)


def _arg_extreme(node: Node) -> Combiner:
    """(value, position): first position wins among equals, NaN wins over numbers."""
    dtype = node.args[0].dtype
    compute = DTYPES[dtype].compute
    largest = node.attr.kind == "argmax"

    def merge(b: Builder, first: State, second: State) -> State:
        (va, ia), (vb, ib) = first, second
        if compute == "bool":
            va, vb = (b.op("convert", v, attr="i32") for v in (va, vb))
        better = b.op("lt", va, vb) if largest else b.op("lt", vb, va)
        same = b.op("eq", va, vb)
        if compute in FLOATS:
            nan_a, nan_b = b.op("ne", va, va), b.op("ne", vb, vb)
            better = b.op("or", better, b.op("and", nan_b, b.op("not", nan_a)))
            same = b.op("or", same, b.op("and", nan_a, nan_b))
        take = b.op("or", better, b.op("and", same, b.op("lt", ib, ia)))
        return b.op("select", take, second[0], first[0]), b.op("select", take, ib, ia)

    def finish(b: Builder, state: State) -> Value:
        return scalar.apply(b, "convert_element_type", (state[1],), {}, ("i32",), node.dtype)

    extreme = "max" if largest else "min"
    return Combiner(
        (compute, "i32"),
        lambda p: (p.b.const(scalar.identity(extreme, dtype), compute), p.b.i32(0x7FFFFFFF)),
        lambda b, state, element, position: merge(b, state, (element[0], position)),
        merge,
        finish,
    )


def _custom(node: Node) -> Combiner:
    graph: Graph = node.attr.combiner
    count = len(node.args) // 2

    def merge(b: Builder, first: State, second: State) -> State:
        return evaluate_scalars(b, graph, (*first, *second))

    return Combiner(
        tuple(DTYPES[a.dtype].compute for a in node.args[:count]),
        lambda p: tuple(p.value(init, ()) for init in node.args[count:]),
        lambda b, state, element, _: merge(b, state, element),
        merge,
        lambda b, state: state[node.attr.result],
    )


def evaluate_scalars(b: Builder, graph: Graph, inputs: State) -> State:
    """Run a graph whose arrays are all scalars, on registers."""
    values: dict[Node, Value] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node in values:
            continue
        if node.op == "const":
            values[node] = b.const(node.attr.array.item(), DTYPES[node.dtype].compute)
        elif node.op == "map":
            args = tuple(values[a] for a in node.args)
            types = tuple(a.dtype for a in node.args)
            values[node] = scalar.apply(b, node.attr.primitive, args, dict(node.attr.params), types, node.dtype)
        elif node.op in ("broadcast", "reshape", "transpose"):
            values[node] = values[node.args[0]]
        else:
            raise UnsupportedPrimitive(
                f"'reduce' with a combiner that uses {node.op} at {node.source}: combiners may only use elementwise "
                "operations. Run this part outside k3jit.jit, or see docs/ops.md."
            )
    return tuple(values[n] for n in graph.outputs)
