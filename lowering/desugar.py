"""Closed jaxpr -> Graph: inlines every call, checks that all of it has a lowering, and applies the rules in order."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params
from jax.interpreters import partial_eval

from . import rules as _rules  # noqa: F401  (registers all rules)
from .dtypes import DTYPES
from .errors import LoweringError, UnsupportedDtype, UnsupportedPrimitive
from .graph import Graph, GraphBuilder, Map, Node
from .registry import Refusal, Rule, RuleContext, is_key, physical, rules, user_location
from .scalar import scalar_rules


def build_graph(closed: ClosedJaxpr, missing: frozenset[str] = frozenset()) -> Graph:
    """Lower a closed jaxpr; inputs and outputs of the graph are those of the jaxpr, in order.

    Typed keys become u32[..., 2] and float0 becomes bool. Dead code is dropped first.

    Args:
        missing: element types that the device has not.

    Raises:
        UnsupportedPrimitive: names every primitive of the program that has no lowering.
        UnsupportedDtype: a value has a dtype that no kernel of the device can hold.
    """
    with _no_collection():
        return _build(closed, missing)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hundreds of thousands of small objects are made and all are kept: collecting meanwhile doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build(closed: ClosedJaxpr, missing: frozenset[str]) -> Graph:
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    _check(jaxpr, missing)
    refusals: list[tuple[Any, str]] = []
    frame = Frame(GraphBuilder(), None, refusals)
    outputs = frame.run(jaxpr, closed.consts, frame.inputs(v.aval for v in jaxpr.invars))
    if refusals:
        equation, reason = refusals[0]
        others = Counter(e.primitive.name for e, _ in refusals[1:])
        raise UnsupportedPrimitive(_message(equation, others, reason))
    return frame.graph.finish(outputs)


class Frame:
    """Lowers jaxprs into one builder.

    Attributes:
        graph: the builder.
        active: bool node under which this code counts (inside a branch that may not be taken), or None.
        refusals: (equation, reason) of rules that could not lower their equation, shared by all frames.
    """

    def __init__(self, graph: GraphBuilder, active: Node | None, refusals: list[tuple[Any, str]]) -> None:
        self.graph, self.active, self.refusals = graph, active, refusals

    def inner(self, active: Node | None) -> Frame:
        """The same builder under a narrower predicate."""
        if active is None:
            return self
        both = active if self.active is None else self.graph.map("and", self.active, active)
        return Frame(self.graph, both, self.refusals)

    def nested(self, graph: GraphBuilder, active: Node | None) -> Frame:
        """A frame of another builder: the body of a loop or a combiner."""
        return Frame(graph, active, self.refusals)

    def inputs(self, avals: Iterable[Any]) -> list[Node]:
        """New inputs of the builder, one an abstract value."""
        return [self.graph.input(*physical(aval)) for aval in avals]

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Node]) -> list[Node]:
        """Lower the equations of `jaxpr` on `args`; returns its outputs."""
        graph = self.graph
        outer_source = graph.source
        env: dict[Any, Node] = dict(zip(jaxpr.invars, args, strict=True))
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            env[variable] = self.constant(value)
        for equation in jaxpr.eqns:
            graph.source = user_location(equation) or outer_source
            inputs = [self.literal(v) if isinstance(v, Literal) else env[v] for v in equation.invars]
            name = equation.primitive.name
            function = rules.get(name)
            if function is None:
                results: Any = self.elementwise(equation, name, inputs)
            else:
                results = self.apply(function, equation, inputs)
            if isinstance(results, Node):
                results = (results,)
            for variable, result in zip(equation.outvars, results, strict=True):
                if (result.shape, result.dtype) != physical(variable.aval):
                    raise LoweringError(f"rule of {name!r} gives {result!r} for {variable.aval} at {graph.source}")
                # No kernel makes an array without elements.
                env[variable] = graph.full(result.shape, 0, result.dtype) if 0 in result.shape else result
        graph.source = outer_source
        return [self.literal(v) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def apply(self, function: Rule, equation: Any, inputs: list[Node]) -> Node | Sequence[Node]:
        """Results of a rule; where it refuses, that is noted and zeros stand in, so that all refusals are found."""
        try:
            return function(RuleContext(self, equation), *inputs, **equation.params)
        except Refusal as refusal:
            self.refusals.append((equation, str(refusal)))
            return [self.graph.full(shape, 0, dtype) for shape, dtype in (physical(v.aval) for v in equation.outvars)]

    def literal(self, literal: Any) -> Node:
        if literal.aval.dtype == jax.dtypes.float0:
            return self.graph.full(literal.aval.shape, False, "bool")
        return self.graph.const(literal.val, physical(literal.aval)[1])

    def constant(self, value: Any) -> Node:
        """A captured array."""
        aval = jax.typeof(value)
        shape, dtype = physical(aval)
        if is_key(aval.dtype):
            value = jax.random.key_data(value)
        elif aval.dtype == jax.dtypes.float0:
            return self.graph.full(shape, False, dtype)
        return self.graph.const(np.asarray(value), dtype)

    def elementwise(self, equation: Any, name: str, args: list[Node]) -> Node:
        """A map node, folded where it is an integer or a conversion of scalar constants."""
        aval = equation.outvars[0].aval
        shape, dtype = physical(aval)
        if name == "convert_element_type" and args[0].dtype == dtype:
            return args[0]
        if all(a.op == "const" and a.shape == () for a in args):
            folded = _fold(name, [a.attr.array for a in args], dtype)
            if folded is not None:
                return self.graph.const(folded, dtype)
        for i, arg in enumerate(args):
            if arg.shape != shape:  # scalars, sizes 1, and the predicate of a selection of typed keys
                args[i] = self.graph.broadcast(arg, shape, range(len(arg.shape)))
        params = {k: _plain(v) for k, v in equation.params.items() if k not in _DROPPED and v is not None}
        return self.graph.node("map", args, shape, dtype, Map(name, tuple(sorted(params.items())) if params else ()))


_DROPPED = frozenset({"sharding", "out_sharding", "weak_type", "new_dtype", "accuracy"})


def _plain(value: Any) -> Any:
    """A parameter as a hashable Python value: enumerations by their number."""
    value = getattr(value, "value", value)
    return value.item() if isinstance(value, np.generic) else value


_FOLDED: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "neg": np.negative,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": lambda which, *cases: cases[min(max(int(which), 0), len(cases) - 1)],
}  # fmt: skip


def _fold(name: str, arrays: list[np.ndarray], dtype: str) -> np.ndarray | None:
    """Value of an operation on scalar constants where NumPy is exact and defined; None elsewhere."""
    if name == "convert_element_type":
        twice = arrays[0].dtype == np.float64 and dtype in ("bf16", "f16")  # NumPy would round to f32 on the way
        if arrays[0].dtype.kind in "biu" or (DTYPES[dtype].kind == "f" and not twice):
            return arrays[0]  # GraphBuilder.const converts; integers wrap
        return None
    function = _FOLDED.get(name)
    if function is None or (name != "select_n" and any(a.dtype.kind not in "biu" for a in arrays)):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(function(*arrays))


# -- refusing a program ----------------------------------------------------------------------------------------------
def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of all jaxprs inside, each once."""
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for equation in current.eqns:
            yield equation
            if equation.params:
                stack.extend(jaxprs_in_params(equation.params))


def _check(jaxpr: Any, lacking: frozenset[str]) -> None:
    """Raise where a primitive or a dtype of the program has no lowering, naming all of them at once."""
    missing: list[Any] = []
    dtype_at = ""
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        if not dtype_at:
            dtype_at = _bad_dtype(variable.aval, lacking, "an argument or captured array")
    for equation in equations(jaxpr):
        name = equation.primitive.name
        if name not in rules and name not in scalar_rules:
            missing.append(equation)
            continue
        for variable in equation.outvars:
            if not dtype_at:
                dtype_at = _bad_dtype(variable.aval, lacking, f"the result of {name!r}", equation)
    if missing:
        others = Counter(e.primitive.name for e in missing[1:])
        raise UnsupportedPrimitive(_message(missing[0], others, "no lowering"))
    if dtype_at:
        raise UnsupportedDtype(dtype_at)


def _bad_dtype(aval: Any, lacking: frozenset[str], what: str, equation: Any = None) -> str:
    where = f" at {user_location(equation)}" if equation is not None else ""
    try:
        _, name = physical(aval)
    except Refusal as refusal:
        return f"{what} is {_short(aval)}{where}: {refusal} has no lowering. Convert it to a real type."
    if name in lacking:
        why = "the device does not compute with 64 bits of this kind"
        return f"{what} is {_short(aval)}{where}: {why}. Convert it to a type of at most 32 bits."
    return ""


def _short(aval: Any) -> str:
    return aval.str_short() if hasattr(aval, "str_short") else str(aval)


def _message(equation: Any, others: Counter[str], reason: str) -> str:
    variables = equation.outvars or equation.invars
    aval = f" {_short(variables[0].aval)}" if variables else ""
    where = user_location(equation)
    text = f"{equation.primitive.name!r}{aval}" + (f" at {where}" if where else "") + f": {reason}."
    if others:
        text += " Also unsupported here: " + ", ".join(f"{name} ({count})" for name, count in sorted(others.items())) + "."
    return text + " Run this part outside k3jit.jit, or see docs/ops.md."
