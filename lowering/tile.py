"""Tile IR: the program of one kernel, as SSA values in structured blocks.

Every lane of a dispatch runs the body. Values are scalars of a compute type ("bool", "i32", "u32", "f32", and
"i64", "u64", "f64" where the device has them); memory is reached through numbered parameters (buffers) and shared
arrays by element index. Control flow is structured: `for` (constant bounds, carried values) and `if`. The exact
meaning of each operation is in `OPS`; `interp.py` runs it in NumPy and `emit.py` writes it as SPIR-V, and the two
must agree bit for bit except for the rounding of `fma`, `sqrt` and `div`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from .dtypes import DTYPES
from .fold import fold, wrap

VOID = "void"


@dataclass(frozen=True)
class OpInfo:
    """Signature of an operation.

    Attributes:
        arity: number of arguments, or None where it varies.
        result: "same" as the first argument, "bool", "second" argument's type, "attr" (the attribute names it) or a type.
        types: compute types accepted for the first argument.
        pure: no effect and no dependence on memory or on other lanes: may be shared and moved freely.
        meaning: the exact semantics.
    """

    arity: int | None
    result: str
    types: str
    pure: bool
    meaning: str


_NUM, _INT, _F = "i32 u32 f32 i64 u64 f64", "i32 u32 i64 u64", "f32 f64"
_ANY, _LOGIC, _WORD = f"bool {_NUM}", f"bool {_INT}", "i32 u32 f32"
OPS: dict[str, OpInfo] = {
    "const": OpInfo(0, "attr", _ANY, True, "attr = (dtype, python scalar)"),
    "builtin": OpInfo(
        0,
        "i32",
        "i32",
        True,
        "attr in group_x group_y group_z lane subgroup: workgroup id; index in the subgroup; subgroup in the workgroup",
    ),
    "arg": OpInfo(0, "attr", _ANY, False, "argument of a block: loop index or carried value"),
    "result": OpInfo(1, "attr", _ANY, False, "attr = (dtype, i): i-th result of a region"),
    "add": OpInfo(2, "same", _NUM, True, "a + b; integers wrap"),
    "sub": OpInfo(2, "same", _NUM, True, "a - b; integers wrap"),
    "mul": OpInfo(2, "same", _NUM, True, "a * b; integers wrap"),
    "div": OpInfo(2, "same", _NUM, True, "quotient; integers truncate, undefined where b == 0 or on overflow"),
    "rem": OpInfo(
        2, "same", _NUM, True, "remainder with the sign of a (C fmod; exact for floats); integers undefined where b == 0"
    ),
    "fma": OpInfo(3, "same", _F, True, "a * b + c, rounded once where the device can"),
    "neg": OpInfo(1, "same", _NUM, True, "-a (flips the sign bit of a float)"),
    "abs": OpInfo(1, "same", "i32 f32 i64 f64", True, "|a|"),
    "min": OpInfo(2, "same", _NUM, True, "smaller; NaN if either is NaN"),
    "max": OpInfo(2, "same", _NUM, True, "larger; NaN if either is NaN"),
    "floor": OpInfo(1, "same", _F, True, "round down"),
    "ceil": OpInfo(1, "same", _F, True, "round up"),
    "trunc": OpInfo(1, "same", _F, True, "round toward zero"),
    "round_even": OpInfo(1, "same", _F, True, "round to nearest, ties to even"),
    "sqrt": OpInfo(1, "same", _F, True, "square root; NaN below zero"),
    "lt": OpInfo(2, "bool", _NUM, True, "a < b, false on NaN"),
    "le": OpInfo(2, "bool", _NUM, True, "a <= b, false on NaN"),
    "eq": OpInfo(2, "bool", _ANY, True, "a == b, false on NaN"),
    "ne": OpInfo(2, "bool", _ANY, True, "a != b, true on NaN"),
    "and": OpInfo(2, "same", _LOGIC, True, "bitwise (logical on bool)"),
    "or": OpInfo(2, "same", _LOGIC, True, "bitwise (logical on bool)"),
    "xor": OpInfo(2, "same", _LOGIC, True, "bitwise (logical on bool)"),
    "not": OpInfo(1, "same", _LOGIC, True, "bitwise (logical on bool)"),
    "shl": OpInfo(2, "same", _INT, True, "a << b; undefined unless 0 <= b < width of a"),
    "shr": OpInfo(
        2, "same", _INT, True, "a >> b, arithmetic on signed, logical on unsigned; undefined unless 0 <= b < width of a"
    ),
    "popcount": OpInfo(1, "same", _INT, True, "number of one bits"),
    "clz": OpInfo(1, "same", _INT, True, "number of leading zero bits, the width for 0"),
    "select": OpInfo(3, "second", "bool", True, "b if a else c"),
    "convert": OpInfo(
        1,
        "attr",
        _ANY,
        True,
        "value; float to integer truncates and is undefined out of range; integers wrap; bool is 0 or 1; to bool is != 0",
    ),
    "bitcast": OpInfo(1, "attr", _NUM, True, "same bits, other type of that width"),
    "round_to": OpInfo(
        1,
        "same",
        "f32",
        True,
        "attr in f16 bf16: nearest value of that type, ties to even, as f32 (overflow to infinity, subnormals and NaN kept)",
    ),
    "load": OpInfo(1, "attr", "i32", False, "attr = (dtype, parameter number): element [a], widened to its compute type"),
    "store": OpInfo(2, VOID, "i32", False, "attr = parameter number: element [a] = b; b is representable in the element type"),
    "shared_load": OpInfo(1, "attr", "i32", False, "attr = (dtype, shared array number): element [a]"),
    "shared_store": OpInfo(2, VOID, "i32", False, "attr = shared array number: element [a] = b"),
    "scalar": OpInfo(0, "attr", "i32 u32", True, "attr = (dtype, parameter number): a 32-bit literal parameter"),
    "barrier": OpInfo(
        0,
        VOID,
        "",
        False,
        "all lanes of the workgroup arrive; shared and buffer writes become visible in it; never under divergent control",
    ),
    "broadcast": OpInfo(1, "same", _ANY, False, "attr = lane: the value in that lane of the subgroup"),
    "shuffle": OpInfo(2, "same", _ANY, False, "the value of a in lane b (i32) of the subgroup"),
    "subgroup_add": OpInfo(1, "same", _WORD, False, "sum over the subgroup, in every lane"),
    "subgroup_min": OpInfo(1, "same", _WORD, False, "as min, over the subgroup (no NaN guarantee)"),
    "subgroup_max": OpInfo(1, "same", _WORD, False, "as max, over the subgroup (no NaN guarantee)"),
    "for": OpInfo(None, VOID, _ANY, False, "attr = (start, stop, step); args = initial carries; one block"),
    "if": OpInfo(1, VOID, "bool", False, "two blocks, each yielding the results"),
}

_SIGNATURES = {name: (info.arity, info.result, frozenset(info.types.split()), info.pure) for name, info in OPS.items()}


class Value:
    """One SSA value or statement (dtype "void"). Compared by identity; the builder shares equal pure values."""

    __slots__ = ("op", "dtype", "args", "attr", "block", "source")

    def __init__(self, op: str, dtype: str, args: tuple[Value, ...], attr: Any, block: Block | None, source: str = "") -> None:
        self.op, self.dtype, self.args, self.attr, self.source = op, dtype, args, attr, source
        self.block = cast("Block", block)


class Region(Value):
    """A `for` or an `if`: a statement with blocks, and results that `result` values pick."""

    __slots__ = ("blocks", "results")

    def __init__(self, op: str, args: tuple[Value, ...], attr: Any, block: Block, source: str = "") -> None:
        super().__init__(op, VOID, args, attr, block, source)
        self.blocks: tuple[Block, ...] = ()
        self.results: tuple[Value, ...] = ()


class Block:
    """Statements in order, the block's arguments, and what it yields to its region."""

    __slots__ = ("values", "args", "yields", "parent", "depth", "seen")

    def __init__(self, parent: Region | None, depth: int) -> None:
        self.values: list[Value] = []
        self.args: tuple[Value, ...] = ()
        self.yields: tuple[Value, ...] = ()
        self.parent = parent
        self.depth = depth
        self.seen: dict[tuple, Value] = {}


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel: a buffer of `size` elements of type `dtype` (a key of DTYPES), or a literal.

    Attributes:
        mode: "r" read only, "w" written only, "rw" both, "scalar" a 32-bit literal (size 0).
        size: elements that may be addressed; checked kernels test every index against it.
    """

    name: str
    dtype: str
    size: int
    mode: str


@dataclass(frozen=True)
class Shared:
    """An array in workgroup memory, of a compute type."""

    name: str
    dtype: str
    size: int


@dataclass(eq=False)
class Kernel:
    """One kernel.

    Attributes:
        local_size: lanes of a workgroup; a multiple of the subgroup size.
        packed: parameters are a table of rows and the workgroup picks its row: see `program.Dispatch`.
        source: the user's lines it computes.
        operations: names of the primitives inside, for reports.
    """

    name: str
    params: tuple[Param, ...]
    local_size: int
    shared: tuple[Shared, ...]
    body: Block
    packed: bool = False
    source: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    _key: str | None = None

    def key(self) -> str:
        """Hash of everything that decides the SPIR-V: equal kernels of different layers and sizes share one pipeline."""
        if self._key is None:
            self._key = hashlib.sha256(to_text(self, names=False).encode()).hexdigest()
        return self._key


class Builder:
    """Writes a kernel body. Equal pure values are shared, constants folded by `fold`, invariants moved out of loops."""

    def __init__(self) -> None:
        self.params: list[Param] = []
        self.shared_arrays: list[Shared] = []
        self.root = Block(None, 0)
        self.block = self.root
        self.source = ""
        self.instructions = 0

    # -- declarations ------------------------------------------------------------------------------------------
    def param(self, name: str, dtype: str, size: int, mode: str) -> int:
        self.params.append(Param(name, dtype, size, mode))
        return len(self.params) - 1

    def shared(self, name: str, dtype: str, size: int) -> int:
        self.shared_arrays.append(Shared(name, dtype, size))
        return len(self.shared_arrays) - 1

    # -- values ------------------------------------------------------------------------------------------------
    def const(self, value: Any, dtype: str) -> Value:
        if dtype == "f32":
            value = float(np.float32(value))
        elif dtype == "f64":
            value = float(value)
        elif dtype == "bool":
            value = bool(value)
        else:
            value = wrap(int(value), dtype)
        return self._pure("const", dtype, (), (dtype, value), key=(dtype, repr(value)))

    def i32(self, value: int) -> Value:
        return self.const(value, "i32")

    def f32(self, value: float) -> Value:
        return self.const(value, "f32")

    def op(self, op: str, *args: Value, attr: Any = None) -> Value:
        """Emit operation `op` of `OPS` on `args`."""
        arity, result, types, pure = _SIGNATURES[op]
        if arity is not None and len(args) != arity:
            raise ValueError(f"tile op {op!r} takes {arity} arguments, got {len(args)}")
        if args and args[0].dtype not in types:
            raise TypeError(f"tile op {op!r} does not take {args[0].dtype} (takes {sorted(types)})")
        if pure:
            folded = fold(self, op, args, attr)
            if folded is not None:
                return folded
        if result == "same":
            dtype = args[0].dtype
        elif result == "second":
            dtype = args[1].dtype
        elif result == "attr":
            dtype = attr[0] if isinstance(attr, tuple) else attr
        else:
            dtype = result
        return self._pure(op, dtype, args, attr) if pure else self._emit(op, dtype, args, attr)

    def _pure(self, op: str, dtype: str, args: tuple[Value, ...], attr: Any, key: Any = None) -> Value:
        """Place in the outermost block where all arguments exist, sharing an equal value there."""
        block = self.root
        depth = 0
        for arg in args:
            home = arg.block
            if home.depth > depth:
                block, depth = home, home.depth
        signature = (op, dtype, args, attr if key is None else key)
        found = block.seen.get(signature)
        if found is None:
            found = Value(op, dtype, args, attr, block, self.source)
            block.seen[signature] = found
            block.values.append(found)
            self.instructions += 1
        return found

    def _emit(self, op: str, dtype: str, args: tuple[Value, ...], attr: Any) -> Value:
        value = Value(op, dtype, args, attr, self.block, self.source)
        self.block.values.append(value)
        self.instructions += 1
        return value

    def anchor(self, value: Value) -> Value:
        """A copy of `value` (not bool) that belongs to the current block, so that what is computed from it stays there.

        Pure values otherwise move to the outermost block of their arguments: right for loops, wrong for the costly side
        of a branch that few lanes take.
        """
        return self._emit("bitcast", value.dtype, (value,), value.dtype)

    def load(self, param: int, index: Value) -> Value:
        """Element of a buffer. Loads of read-only buffers are shared within a block and its inner blocks."""
        p = self.params[param]
        dtype = DTYPES[p.dtype].compute
        if p.mode != "r":
            return self._emit("load", dtype, (index,), (dtype, param))
        signature = ("load", param, index)
        home: Block | None = None
        block: Block | None = self.block
        while block is not None:
            if signature in block.seen:
                return block.seen[signature]
            # Invariant loads leave loops that run at least once, never a branch.
            if home is None and (block is index.block or not _leaves(block)):
                home = block
            block = block.parent.block if block.parent is not None else None
        home = home or self.root
        value = Value("load", dtype, (index,), (dtype, param), home, self.source)
        home.values.append(value)
        self.instructions += 1
        home.seen[signature] = value
        return value

    def store(self, param: int, index: Value, value: Value) -> None:
        self._emit("store", VOID, (index, value), param)

    def shared_load(self, array: int, index: Value) -> Value:
        dtype = self.shared_arrays[array].dtype
        return self._emit("shared_load", dtype, (index,), (dtype, array))

    def shared_store(self, array: int, index: Value, value: Value) -> None:
        self._emit("shared_store", VOID, (index, value), array)

    def scalar(self, param: int) -> Value:
        dtype = self.params[param].dtype
        return self._pure("scalar", dtype, (), (dtype, param))

    def builtin(self, name: str) -> Value:
        return self._pure("builtin", "i32", (), name)

    def barrier(self) -> None:
        self._emit("barrier", VOID, (), None)

    # -- regions -----------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, start: int, stop: int, step: int = 1, init: Sequence[Value] = ()) -> Iterator[Loop]:
        """`with b.loop(0, n, 1, [acc]) as loop:` ... `loop.yield_(new)`; afterwards `loop.results`.

        The body runs for index = start, start + step, ... below stop (constants), with loop.index (i32) and loop.carry.
        """
        region = Region("for", tuple(init), (start, stop, step), self.block, self.source)
        outer, body = self.block, Block(region, self.block.depth + 1)
        region.blocks = (body,)
        args = tuple(Value("arg", d, (), i, body) for i, d in enumerate(["i32"] + [v.dtype for v in init]))
        body.args = args
        handle = Loop(args[0], args[1:], body)
        self.block = body
        try:
            yield handle
        finally:
            self.block = outer
        outer.values.append(region)
        region.results = tuple(Value("result", v.dtype, (region,), (v.dtype, i), outer) for i, v in enumerate(init))
        handle.results = region.results
        if len(body.yields) != len(init):
            raise ValueError("loop body must yield as many values as it carries")

    @contextmanager
    def branch(self, condition: Value) -> Iterator[Branch]:
        """`with b.branch(c) as br:` emits under `c`; `with br.otherwise():` the other side; `br.yield_(...)` on both sides."""
        region = Region("if", (condition,), None, self.block, self.source)
        outer = self.block
        region.blocks = (Block(region, outer.depth + 1), Block(region, outer.depth + 1))
        handle = Branch(self, region)
        self.block = region.blocks[0]
        try:
            yield handle
        finally:
            self.block = outer
        outer.values.append(region)
        yields = region.blocks[0].yields
        region.results = tuple(Value("result", v.dtype, (region,), (v.dtype, i), outer) for i, v in enumerate(yields))
        handle.results = region.results
        if len(yields) != len(region.blocks[1].yields):
            raise ValueError("both sides of a branch must yield the same number of values")

    def finish(self, name: str, local_size: int, **extra: Any) -> Kernel:
        return Kernel(name, tuple(self.params), local_size, tuple(self.shared_arrays), self.root, **extra)


def _leaves(block: Block) -> bool:
    """Whether an invariant load may move from `block` to the block around it."""
    region = block.parent
    return region is not None and region.op == "for" and region.attr[0] < region.attr[1]


@dataclass
class Loop:
    index: Value
    carry: tuple[Value, ...]
    _body: Block
    results: tuple[Value, ...] = ()

    def yield_(self, *values: Value) -> None:
        self._body.yields = values


@dataclass
class Branch:
    _builder: Builder
    _region: Region
    results: tuple[Value, ...] = field(default=())

    def yield_(self, *values: Value) -> None:
        self._builder.block.yields = values

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        previous, self._builder.block = self._builder.block, self._region.blocks[1]
        try:
            yield
        finally:
            self._builder.block = previous


def to_text(kernel: Kernel, names: bool = True) -> str:
    """The kernel as text; without `names`, only what decides its code (used for hashing)."""
    numbers: dict[Value, int] = {}
    lines: list[str] = []

    def number(value: Value) -> str:
        return f"%{numbers.setdefault(value, len(numbers))}"

    def write(block: Block, indent: str) -> None:
        for value in block.values:
            args = " ".join(number(a) for a in value.args)
            attr = "" if value.attr is None else f" {value.attr!r}"
            where = f"  ; {value.source}" if names and value.source else ""
            if isinstance(value, Region):
                results = " ".join(f"{number(r)}:{r.dtype}" for r in value.results)
                for i, inner in enumerate(value.blocks):
                    head = f"{value.op}{attr} {args}" if i == 0 else "else"
                    blockargs = " ".join(f"{number(a)}:{a.dtype}" for a in inner.args)
                    lines.append(f"{indent}{head} ({blockargs}){where if i == 0 else ''}")
                    write(inner, indent + "  ")
                    lines.append(f"{indent}  yield {' '.join(number(y) for y in inner.yields)}")
                lines.append(f"{indent}end -> {results}")
            elif value.dtype == VOID:
                lines.append(f"{indent}{value.op}{attr} {args}{where}")
            else:
                lines.append(f"{indent}{number(value)}:{value.dtype} = {value.op}{attr} {args}{where}")

    title = kernel.name if names else ""
    params = ", ".join(f"{p.name}:{p.dtype}[{p.size}]{p.mode}" if names else f"{p.dtype} {p.mode}" for p in kernel.params)
    shared = ", ".join(f"{s.dtype}[{s.size}]" for s in kernel.shared)
    lines.append(f"kernel {title}({params}) local={kernel.local_size} shared=({shared}) packed={kernel.packed}")
    write(kernel.body, "  ")
    return "\n".join(lines)
