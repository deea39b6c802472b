"""Graph IR: a whole function as a graph of array operations, before it is cut into kernels.

Nodes are immutable and shared: asking the builder twice for the same operation on the same arguments gives the same
node (common subexpressions cost nothing), except across rematerialisation regions, which are kept apart on purpose.

| op | arguments | attr | value at an index |
|---|---|---|---|
| input | | flat argument number | the argument |
| const | | Const (an ndarray) | the element |
| iota | | dimension | index along it, converted |
| map | n of the same shape | Map(primitive, params) | scalar rule of the primitive (`scalar.py`) |
| broadcast | 1 | tuple: operand dim -> output dim | operand at those dims (size-1 dims read 0) |
| reshape | 1 | None | same row-major position |
| transpose | 1 | permutation (output dim i = operand dim perm[i]) | |
| slice | 1 | (starts, strides) | operand at start + stride * i |
| reverse | 1 | dims | |
| pad | operand, scalar | (low, interior) per dim; low may be negative | operand, or the scalar outside |
| window | operand, scalar | a Window per operand dim | output positions ++ window positions: see Window; the scalar outside |
| concat | n | dim | |
| dynamic_slice | operand, scalar i32 starts | None | starts clamped |
| dynamic_update_slice | operand, update, scalar i32 starts | None | starts clamped |
| gather | operand, i32 indices [.., n] | Gather | |
| scatter | operand, i32 indices [.., n], updates | Scatter | updates applied in row-major order |
| reduce | n operands (+ n scalar inits for a combiner) | Reduce | |
| dot | lhs, rhs | Dot | shape = batch ++ lhs free ++ rhs free |
| cumulative | 1 | Cumulative | |
| argsort | keys | Argsort | stable permutation (i32) along a dim; shape of a key |
| loop | inits.. | Loop | several results, taken by pick |
| pick | a loop | result number | |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np


class Const:
    """An ndarray as an attribute, compared by content."""

    __slots__ = ("array", "_key")

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array).reshape(np.shape(array))
        self._key = (self.array.shape, str(self.array.dtype), self.array.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key == other._key

    def __repr__(self) -> str:
        return repr(self.array.item()) if self.array.size == 1 else f"<{self.array.dtype}{list(self.array.shape)}>"


@dataclass(frozen=True)
class Map:
    """`primitive` names a scalar rule; `params` are its parameters as sorted pairs of hashable values."""

    primitive: str
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Window:
    """One dimension of a sliding window.

    Output position i and window position w read stride * i + dilation * w - low in the operand dilated by `base`.
    """

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    dilation: int = 1


@dataclass(frozen=True)
class Gather:
    """As jax.lax.GatherDimensionNumbers, with slice sizes. mode: "clip", "fill" (`fill` outside) or "inbounds"."""

    offset_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    start_map: tuple[int, ...]
    operand_batch: tuple[int, ...]
    indices_batch: tuple[int, ...]
    slice_sizes: tuple[int, ...]
    mode: str
    fill: Any = None


@dataclass(frozen=True)
class Scatter:
    """As jax.lax.ScatterDimensionNumbers. kind: "set" add mul min max sub. mode: "clip" or "drop"."""

    window_dims: tuple[int, ...]
    inserted: tuple[int, ...]
    scatter_map: tuple[int, ...]
    operand_batch: tuple[int, ...]
    indices_batch: tuple[int, ...]
    kind: str
    mode: str
    unique: bool = False


@dataclass(frozen=True)
class Reduce:
    """kind: sum prod max min and or xor argmax argmin, or "custom" with `combiner` (a Graph of 2n scalars -> n scalars).

    A reduction with several operands is one node a result; `result` says which. argmax and argmin give an index
    (first wins, NaN wins) in the node's dtype along their single axis.
    """

    kind: str
    axes: tuple[int, ...]
    combiner: Graph | None = None
    result: int = 0


@dataclass(frozen=True)
class Dot:
    """Contraction as jax.lax.dot_general; accumulates floats in f32 (f64 in f64) and integers in their own width."""

    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


@dataclass(frozen=True)
class Cumulative:
    """kind: sum prod max min logsumexp."""

    kind: str
    axis: int
    reverse: bool


@dataclass(frozen=True)
class Argsort:
    """Lexicographic by all arguments, ascending; JAX's order of floats (-0 == +0, NaN last, whatever its sign)."""

    dim: int


@dataclass(frozen=True)
class Loop:
    """scan and while.

    kind "scan": args = consts ++ carries ++ xs (stacked along a leading axis of `length`); body maps consts ++ carries ++
    x slices to carries ++ y slices; results = final carries ++ stacked ys. kind "while": args = condition consts ++ consts
    ++ carries; `condition` maps condition consts ++ carries to one bool; results = final carries.
    """

    kind: str
    body: Graph
    consts: int
    carries: int
    length: int = 0
    reverse: bool = False
    condition: Graph | None = None
    condition_consts: int = 0


class Node:
    """One operation. `shape` and `dtype` (a DTYPES key) are those of its result; loops have several, taken by pick."""

    __slots__ = ("op", "args", "shape", "dtype", "attr", "source", "number")

    def __init__(
        self, op: str, args: tuple[Node, ...], shape: tuple[int, ...], dtype: str, attr: Any, source: str, number: int
    ) -> None:
        self.op, self.args, self.shape, self.dtype, self.attr = op, args, shape, dtype, attr
        self.source, self.number = source, number

    def __hash__(self) -> int:
        return self.number  # sets of nodes are walked in the same order in every process

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"%{self.number}:{self.dtype}{list(self.shape)}={self.op}"


def fold_length(node: Node) -> int:
    """Elements folded into each result of a reduce or dot node."""
    axes = node.attr.axes if node.op == "reduce" else node.attr.lhs_contract
    return prod(node.args[0].shape[a] for a in axes)


@dataclass(eq=False)
class Graph:
    """Nodes in an order that respects dependencies; `inputs[i]` is flat argument i."""

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]

    def as_text(self, indent: str = "") -> str:
        lines = []
        for node in self.nodes:
            args = " ".join(f"%{a.number}" for a in node.args)
            attr = (
                ""
                if node.attr is None
                else f" {node.attr!r}"
                if not isinstance(node.attr, (Loop, Reduce))
                else f" {_short(node.attr)}"
            )
            where = f"  ; {node.source}" if node.source else ""
            lines.append(f"{indent}%{node.number}:{node.dtype}{list(node.shape)} = {node.op}{attr} {args}{where}")
            if isinstance(node.attr, Loop):
                if node.attr.condition is not None:
                    lines.append(f"{indent}  condition")
                    lines.append(node.attr.condition.as_text(indent + "    "))
                lines.append(f"{indent}  body")
                lines.append(node.attr.body.as_text(indent + "    "))
        lines.append(f"{indent}return {' '.join(f'%{n.number}' for n in self.outputs)}")
        return "\n".join(lines)


def _short(attr: Loop | Reduce) -> str:
    if isinstance(attr, Reduce):
        return f"{attr.kind} axes={attr.axes}"
    return f"{attr.kind} length={attr.length} consts={attr.consts} carries={attr.carries} reverse={attr.reverse}"


class GraphBuilder:
    """Makes nodes: checks shapes, shares equal ones, and simplifies chains of views as they are made."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self.source = ""
        self.region = 0  # nodes of different rematerialisation regions are never shared
        self._seen: dict[tuple, Node] = {}

    def node(self, op: str, args: Iterable[Node], shape: Sequence[int], dtype: str, attr: Any = None) -> Node:
        args = tuple(args)
        shape = tuple(int(s) for s in shape)
        region = self.region if op not in ("const", "iota", "input") else 0
        key = (op, args, shape, dtype, attr, region)
        found = self._seen.get(key)
        if found is None:
            found = Node(op, args, shape, dtype, attr, self.source, len(self.nodes))
            self._seen[key] = found
            self.nodes.append(found)
        return found

    def input(self, shape: Sequence[int], dtype: str) -> Node:
        node = self.node("input", (), shape, dtype, len(self.inputs))
        self.inputs.append(node)
        return node

    def finish(self, outputs: Sequence[Node]) -> Graph:
        live: set[Node] = set(self.inputs)
        stack = list(outputs)
        while stack:
            node = stack.pop()
            if node not in live:
                live.add(node)
                stack.extend(node.args)
        return Graph([n for n in self.nodes if n in live], self.inputs, list(outputs))

    # -- sources -----------------------------------------------------------------------------------------------
    def const(self, value: Any, dtype: str) -> Node:
        """An array constant; one of equal elements becomes a broadcast scalar."""
        from .dtypes import DTYPES

        array = np.asarray(value, dtype=DTYPES[dtype].numpy)
        if array.ndim and array.size and array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size:
            return self.broadcast(self.const(array.reshape(-1)[0], dtype), array.shape, ())
        return self.node("const", (), array.shape, dtype, Const(array))

    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Node:
        return self.broadcast(self.const(value, dtype), shape, ())

    def iota(self, shape: Sequence[int], dim: int, dtype: str) -> Node:
        return self.node("iota", (), shape, dtype, dim)

    # -- elementwise -------------------------------------------------------------------------------------------
    def map(self, primitive: str, *args: Node, dtype: str | None = None, **params: Any) -> Node:
        """Elementwise operation. Arguments of shape () are broadcast to the largest shape."""
        shape = max((a.shape for a in args), key=lambda s: (len(s), prod(s)))
        args = tuple(a if a.shape == shape else self.broadcast(a, shape, ()) for a in args)
        for arg in args:
            if arg.shape != shape:
                raise ValueError(f"{primitive}: shapes {[a.shape for a in args]} differ")
        return self.node("map", args, shape, dtype or args[0].dtype, Map(primitive, tuple(sorted(params.items()))))

    def convert(self, arg: Node, dtype: str) -> Node:
        return arg if arg.dtype == dtype else self.map("convert_element_type", arg, dtype=dtype)

    # -- views -------------------------------------------------------------------------------------------------
    def broadcast(self, arg: Node, shape: Sequence[int], dims: Sequence[int]) -> Node:
        shape, dims = tuple(shape), tuple(dims)
        if arg.shape == shape and dims == tuple(range(len(shape))):
            return arg
        if arg.op == "broadcast":
            return (
                self.node("broadcast", arg.args, shape, arg.dtype, tuple(dims[d] for d in arg.attr))
                if all(arg.args[0].shape[i] == arg.shape[d] for i, d in enumerate(arg.attr))
                else self.node("broadcast", (arg,), shape, arg.dtype, dims)
            )
        return self.node("broadcast", (arg,), shape, arg.dtype, dims)

    def reshape(self, arg: Node, shape: Sequence[int]) -> Node:
        shape = tuple(int(s) for s in shape)
        if prod(shape) != arg.size:
            raise ValueError(f"reshape of {arg.shape} to {shape}")
        if arg.shape == shape:
            return arg
        if arg.op == "reshape":
            return self.reshape(arg.args[0], shape)
        if arg.op == "broadcast" and arg.args[0].shape == ():
            return self.broadcast(arg.args[0], shape, ())
        return self.node("reshape", (arg,), shape, arg.dtype)

    def transpose(self, arg: Node, perm: Sequence[int]) -> Node:
        perm = tuple(perm)
        if perm == tuple(range(len(perm))):
            return arg
        if arg.op == "transpose":
            return self.transpose(arg.args[0], tuple(arg.attr[p] for p in perm))
        if arg.op == "broadcast" and arg.args[0].shape == ():
            return self.broadcast(arg.args[0], tuple(arg.shape[p] for p in perm), ())
        return self.node("transpose", (arg,), tuple(arg.shape[p] for p in perm), arg.dtype, perm)

    def slice(self, arg: Node, starts: Sequence[int], stops: Sequence[int], strides: Sequence[int] | None = None) -> Node:
        starts = tuple(int(a) for a in starts)  # JAX passes NumPy integers too, which index expressions must not meet
        strides = tuple(int(s) for s in strides) if strides is not None else (1,) * len(starts)
        shape = tuple(max(0, -(-(b - a) // s)) for a, b, s in zip(starts, stops, strides, strict=True))
        return (
            arg
            if shape == arg.shape and all(s == 1 for s in strides)
            else self.node("slice", (arg,), shape, arg.dtype, (starts, strides))
        )

    def reverse(self, arg: Node, dims: Sequence[int]) -> Node:
        dims = tuple(d for d in sorted(dims) if arg.shape[d] > 1)
        return self.node("reverse", (arg,), arg.shape, arg.dtype, dims) if dims else arg

    def pad(self, arg: Node, fill: Node, config: Sequence[tuple[int, int, int]]) -> Node:
        """`config` is (low, high, interior) a dimension, as jax.lax.pad."""
        shape = tuple(max(0, n + lo + hi + max(0, n - 1) * mid) for n, (lo, hi, mid) in zip(arg.shape, config, strict=True))
        if all(c == (0, 0, 0) for c in config):
            return arg
        return self.node("pad", (arg, fill), shape, arg.dtype, tuple((lo, mid) for lo, _, mid in config))

    def window(self, arg: Node, fill: Node, windows: Sequence[Window]) -> Node:
        """Sliding windows; the result has the output positions first, then the window positions."""
        out = []
        for n, w in zip(arg.shape, windows, strict=True):
            dilated = 0 if n == 0 else (n - 1) * w.base + 1
            reach = (w.size - 1) * w.dilation + 1
            total = dilated + w.low + w.high
            out.append(0 if total < reach else (total - reach) // w.stride + 1)
        return self.node("window", (arg, fill), (*out, *(w.size for w in windows)), arg.dtype, tuple(windows))

    def concat(self, args: Sequence[Node], dim: int) -> Node:
        args = tuple(a for a in args if a.shape[dim] or len(args) == 1) or args[:1]
        if len(args) == 1:
            return args[0]
        shape = list(args[0].shape)
        shape[dim] = sum(a.shape[dim] for a in args)
        return self.node("concat", args, shape, args[0].dtype, dim)

    # -- the rest ----------------------------------------------------------------------------------------------
    def reduce(self, arg: Node, kind: str, axes: Sequence[int], dtype: str | None = None) -> Node:
        axes = tuple(sorted(axes))
        shape = tuple(s for i, s in enumerate(arg.shape) if i not in axes)
        if not axes or (all(arg.shape[a] == 1 for a in axes) and not kind.startswith("arg")):
            return self.reshape(arg, shape)
        return self.node("reduce", (arg,), shape, dtype or arg.dtype, Reduce(kind, axes))

    def dot(self, lhs: Node, rhs: Node, dims: Dot, dtype: str) -> Node:
        free_l = [s for i, s in enumerate(lhs.shape) if i not in dims.lhs_contract and i not in dims.lhs_batch]
        free_r = [s for i, s in enumerate(rhs.shape) if i not in dims.rhs_contract and i not in dims.rhs_batch]
        return self.node("dot", (lhs, rhs), [*(lhs.shape[i] for i in dims.lhs_batch), *free_l, *free_r], dtype, dims)

    def pick(self, loop: Node, result: int, shape: Sequence[int], dtype: str) -> Node:
        return self.node("pick", (loop,), shape, dtype, result)
