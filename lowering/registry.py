"""Rules from JAX primitives to graph nodes: the table, what a rule sees, and where an equation was written."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np

from .dtypes import DTYPES
from .graph import Node

if TYPE_CHECKING:
    from .desugar import Frame

Rule = Callable[..., "Node | Sequence[Node]"]
rules: dict[str, Rule] = {}


class Refusal(Exception):
    """A rule cannot lower this form of its primitive; becomes part of one `UnsupportedPrimitive`."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a lowering: `f(ctx, *args: Node, **params) -> Node | Sequence[Node]`, one node a result."""

    def register(function: Rule) -> Rule:
        for name in names:
            rules[name] = function
        return function

    return register


def composite(name: str, factory: Callable[..., Callable]) -> None:
    """Register a primitive as a JAX function: `factory(avals, **params)` gives it, tracing and inlining follow.

    The traced function is cached by the operands' shapes and dtypes, by whether Python numbers are wide, and by the
    parameters where those are hashable.
    """

    @lru_cache(maxsize=256)
    def traced(avals: tuple[tuple[tuple[int, ...], Any], ...], params: tuple[tuple[str, Any], ...], x64: bool) -> Any:
        structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
        return jax.make_jaxpr(factory(structs, **dict(params)))(*structs)

    @rule(name)
    def _(ctx: RuleContext, *args: Node, **params: Any) -> Sequence[Node]:
        avals = tuple((tuple(aval.shape), aval.dtype) for aval in ctx.avals_in)
        key, x64 = tuple(sorted(params.items())), bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        try:
            closed = traced(avals, key, x64)
        except TypeError:  # an unhashable parameter
            closed = traced.__wrapped__(avals, key, x64)
        return ctx.inline(closed.jaxpr, closed.consts, args)


class RuleContext:
    """What a rule sees of its equation.

    Attributes:
        graph: builder the rule makes its nodes with.
        frame: the jaxpr being lowered around the equation (`desugar.Frame`).
        equation: the JAX equation.
    """

    __slots__ = ("equation", "frame", "graph")

    def __init__(self, frame: Frame, equation: Any) -> None:
        self.frame, self.equation, self.graph = frame, equation, frame.graph

    @property
    def avals_in(self) -> list[Any]:
        return [v.aval for v in self.equation.invars]

    @property
    def avals_out(self) -> list[Any]:
        return [v.aval for v in self.equation.outvars]

    @property
    def source(self) -> str:
        return self.graph.source

    @property
    def active(self) -> Node | None:
        """The bool under which this code counts, or None: set inside branches that may not be taken."""
        return self.frame.active

    def out(self, index: int = 0) -> tuple[tuple[int, ...], str]:
        """Shape and dtype name of result `index`."""
        return physical(self.equation.outvars[index].aval)

    def inline(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Node], active: Node | None = None) -> list[Node]:
        """Lower an inner jaxpr in place. `active` narrows the predicate under which its code counts."""
        return self.frame.inner(active).run(jaxpr, consts, args)

    def key_dims(self, argument: int = 0) -> int:
        """Trailing dimensions that typed keys have in the graph and not in the jaxpr: 1 for keys, else 0."""
        return int(is_key(self.equation.invars[argument].aval.dtype))

    def refuse(self, reason: str) -> NoReturn:
        raise Refusal(reason)


# -- types -----------------------------------------------------------------------------------------------------------
_NAMES: dict[Any, str] = {d.numpy: d.name for d in DTYPES.values()}
_FLOAT0 = np.dtype(jax.dtypes.float0)


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of typed random keys."""
    return dtype not in _NAMES and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def physical(aval: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype name an abstract value has in the graph: threefry keys are u32[..., 2], float0 is bool.

    Raises:
        Refusal: no kernel can hold the dtype.
    """
    dtype = getattr(aval, "dtype", None)
    name = _NAMES.get(dtype)
    if name is not None:
        return aval.shape, name
    if dtype is None:
        raise Refusal(f"{aval} is not an array")
    if dtype == _FLOAT0:
        return aval.shape, "bool"
    if is_key(dtype):
        if str(dtype) != "key<fry>":
            raise Refusal(f"{dtype}: only threefry keys have a lowering")
        return (*aval.shape, 2), "u32"
    raise Refusal(f"dtype {dtype}")


# -- places ----------------------------------------------------------------------------------------------------------
_NOT_USER = (os.path.dirname(jax.__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep)
_SITE = sysconfig.get_path("purelib") + os.sep


@lru_cache(maxsize=4096)
def _is_user(filename: str) -> bool:
    inside_stdlib = filename.startswith(_NOT_USER[1]) and not filename.startswith(_SITE)
    return not (filename.startswith(_NOT_USER[0]) or inside_stdlib or filename.startswith("<frozen"))


@lru_cache(maxsize=65536)
def _place(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
            break
    return f"{code.co_filename}:{line} ({code.co_name})"


def user_location(equation: Any) -> str:
    """`file:line (function)` of the user's innermost frame that made an equation; "" where JAX kept none."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    codes, instructions = traceback.raw_frames()
    for code, instruction in zip(codes, instructions, strict=True):
        if _is_user(code.co_filename):
            return _place(code, instruction)
    return ""


def supported() -> frozenset[str]:
    """Names of all primitives that have a lowering."""
    from . import desugar  # noqa: F401  (importing it registers the rules)
    from .scalar import scalar_rules

    return frozenset(rules) | frozenset(scalar_rules)
