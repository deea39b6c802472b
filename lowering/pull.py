"""Evaluates graph nodes at an index, inside a kernel: the heart of code generation.

A node that is stored is a load; any other is computed on the spot from its arguments at the indices it reads them.
So a view costs index arithmetic only, and fusing is nothing but leaving a node unstored. Conditions collected on the
way (`pad`, `concat`, ragged edges) keep every load inside its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from . import scalar
from .combine import Combiner, combiner_of
from .graph import Gather, Node
from .index import ZERO, Atom, Cond, Index, constant, flatten, narrow, symbol, unflatten
from .limits import Limits
from .tile import Block, Builder, Value

Position = tuple[Index, ...]
Guard = tuple[Cond, ...]
BLOCK = 4  # elements of a long fold that a turn takes; sums of floats add them up by themselves first, which is more exact


class Puller:
    """Evaluates nodes in the kernel that `builder` writes.

    Args:
        read: parameter number of a stored node, or None for one to compute here.
    """

    def __init__(self, builder: Builder, read: Callable[[Node], int | None], limits: Limits) -> None:
        self.b, self.read, self.limits = builder, read, limits
        self.loads: list[tuple[Node, Index]] = []  # in the order the kernel does them
        self._fixed: dict[Node, list[tuple[Index, Value]]] = {}
        self._values: dict[tuple[Node, Position, Guard], Value] = {}
        self._indices: dict[Index, Value] = {}
        self._guards: dict[Guard, Value] = {}
        self._starts: dict[tuple[Value, int, int], Index] = {}

    # -- indices -------------------------------------------------------------------------------------------------
    def index(self, index: Index) -> Value:
        """The i32 value of an index expression."""
        found = self._indices.get(index)
        if found is not None and self._visible(found):
            return found
        b = self.b
        total: Value | None = None
        for atom, k in index.terms:
            value = self._atom(atom)
            term = value if k == 1 else b.op("mul", value, b.i32(k))
            total = term if total is None else b.op("add", total, term)
        if total is None:
            total = b.i32(index.const)
        elif index.const:
            total = b.op("add", total, b.i32(index.const))
        self._indices[index] = total
        return total

    def _atom(self, atom: Atom) -> Value:
        if atom.kind == "sym":
            return atom.value
        assert atom.base is not None
        b, divisor = self.b, atom.divisor
        if divisor & (divisor - 1) == 0:  # floor semantics for negative values too
            base = self.index(atom.base)
            if atom.kind == "div":
                return b.op("shr", base, b.i32(divisor.bit_length() - 1))
            return b.op("and", base, b.i32(divisor - 1))
        lift = -(atom.base.lo // divisor) if atom.base.lo < 0 else 0
        base = self.index(atom.base + lift * divisor)
        quotient = b.op("bitcast", b.op("div", b.op("bitcast", base, attr="u32"), b.const(divisor, "u32")), attr="i32")
        if atom.kind == "div":
            return b.op("sub", quotient, b.i32(lift)) if lift else quotient
        return b.op("sub", base, b.op("mul", quotient, b.i32(divisor)))

    def condition(self, cond: Cond) -> Value:
        b, value = self.b, self.index(cond.index)
        parts = []
        if cond.index.lo < cond.lo:
            parts.append(b.op("le", b.i32(cond.lo), value))
        if cond.index.hi >= cond.hi:
            parts.append(b.op("lt", value, b.i32(cond.hi)))
        if not parts:
            return b.const(True, "bool")
        return parts[0] if len(parts) == 1 else b.op("and", *parts)

    def guard(self, guard: Guard) -> Value | None:
        """Conjunction of the conditions, None where there are none."""
        if not guard:
            return None
        found = self._guards.get(guard)
        if found is None or not self._visible(found):
            found = self.condition(guard[0])
            for cond in guard[1:]:
                found = self.b.op("and", found, self.condition(cond))
            self._guards[guard] = found
        return found

    def _visible(self, value: Value) -> bool:
        """Whether `value` is defined in the block being written or one around it."""
        home = value.block
        block: Block | None = self.b.block
        while block is not None:
            if block is home:
                return True
            block = block.parent.block if block.parent is not None else None
        return False

    # -- values --------------------------------------------------------------------------------------------------
    def fix(self, node: Node, flat: Index, value: Value) -> None:
        """Declare the value of `node` at row-major position `flat` as computed already."""
        self._fixed.setdefault(node, []).append((flat, value))

    def value(self, node: Node, at: Position, guard: Guard = ()) -> Value:
        """Value of `node` at index `at`, in its compute type. Where `guard` fails it is arbitrary, but safe to compute."""
        key = (node, at, guard)
        found = self._values.get(key)
        if found is not None and self._visible(found):
            return found
        fixed = self._fixed.get(node)
        if fixed is not None:
            flat = flatten(at, node.shape)
            for position, result in fixed:
                if position == flat and self._visible(result):
                    return result
        if node.source:
            self.b.source = node.source
        param = self.read(node)
        result = self._load(node, param, at, guard) if param is not None else _RULES[node.op](self, node, at, guard)
        self._values[key] = result
        return result

    def _load(self, node: Node, param: int, at: Position, guard: Guard) -> Value:
        flat = flatten(at, node.shape)
        self.loads.append((node, flat))
        index = self.index(flat)
        if flat.lo < 0 or flat.hi >= node.size:
            ok = self.guard(guard)
            index = self.b.op("select", ok, index, self.b.i32(0)) if ok is not None else index
        return self.b.load(param, index)

    def start(self, node: Node, at: Position, guard: Guard, low: int, high: int, clamp: bool = True) -> Index:
        """A data-dependent index: the value of `node`, clamped to [low, high] (bounds the algebra may rely on)."""
        b = self.b
        value = self.value(node, at, guard)
        if value.dtype == "u32":
            value = b.op("bitcast", b.op("min", value, b.const(0x7FFFFFFF, "u32")), attr="i32")
        if clamp:
            if high <= low:
                return constant(low)
            value = b.op("max", b.op("min", value, b.i32(high)), b.i32(low))
        else:
            low, high = -(1 << 31), (1 << 31) - 1
        return self._starts.setdefault((value, low, high), symbol("start", low, high, value))

    # -- reductions ----------------------------------------------------------------------------------------------
    def element(self, node: Node, kept: Position, k: Index, guard: Guard) -> tuple[Value, ...]:
        """Operands of a reduction (factors of a dot) for kept index `kept` and row-major position `k` in the reduced axes."""
        if node.op == "dot":
            return tuple(self.value(a, at, guard) for a, at in zip(node.args, dot_position(node, kept, k), strict=True))
        axes, shape = node.attr.axes, node.args[0].shape
        inner = iter(unflatten(k, [shape[a] for a in axes]))
        outer = iter(kept)
        at = tuple(next(inner) if i in axes else next(outer) for i in range(len(shape)))
        operands = node.args if node.attr.kind != "custom" else node.args[: len(node.args) // 2]
        return tuple(self.value(a, at, guard) for a in operands)

    def accumulate(
        self,
        combiner: Combiner,
        count: int,
        element: Callable[[Index], tuple[Value, ...]],
        state: tuple[Value, ...] | None = None,
    ) -> tuple[Value, ...]:
        """Fold `element(k)` for k in [0, count) in order, in this lane."""
        b = self.b
        state = combiner.identity(self) if state is None else state
        if count <= self.limits.fold:
            return self._turn(combiner, element, ZERO, count, state)
        unrolled = self.limits.fold >= BLOCK
        block = BLOCK if count % BLOCK == 0 and (unrolled or combiner.rounds) else 1
        with b.loop(0, count, block, state) as loop:
            first = symbol("k", 0, count - block, loop.index)
            if combiner.rounds and block > 1:
                part = self._turn(combiner, element, first, block, combiner.identity(self))
                loop.yield_(*combiner.merge(b, loop.carry, part))
            else:
                loop.yield_(*self._turn(combiner, element, first, block, loop.carry))
        return loop.results

    def _turn(
        self,
        combiner: Combiner,
        element: Callable[[Index], tuple[Value, ...]],
        first: Index,
        count: int,
        state: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Fold `element(first + i)` for i in [0, count): written out, or in a loop where kernels are to be short."""
        b = self.b
        if count <= self.limits.fold:
            for i in range(count):
                state = combiner.step(b, state, element(first + i), self.index(first + i))
            return state
        with b.loop(0, count, 1, state) as loop:
            k = first + symbol("i", 0, count - 1, loop.index)
            loop.yield_(*combiner.step(b, loop.carry, element(k), self.index(k)))
        return loop.results


Rule = Callable[[Puller, Node, Position, Guard], Value]
_RULES: dict[str, Rule] = {}


def _rule(op: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES[op] = function
        return function

    return register


@_rule("const")
def _const(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    from .dtypes import DTYPES

    return p.b.const(node.attr.array.reshape(-1)[0].item(), DTYPES[node.dtype].compute)


@_rule("iota")
def _iota(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    return scalar.apply(p.b, "convert_element_type", (p.index(at[node.attr]),), {}, ("i32",), node.dtype)


@_rule("map")
def _map(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    args = tuple(p.value(a, at, guard) for a in node.args)
    p.b.source = node.source
    return scalar.apply(p.b, node.attr.primitive, args, dict(node.attr.params), tuple(a.dtype for a in node.args), node.dtype)


def view(node: Node, at: Position) -> Position | None:
    """Index at which an unconditional view reads its operand; None for every other node."""
    if node.op == "broadcast":
        shape = node.args[0].shape
        return tuple(at[d] if shape[i] == node.shape[d] else ZERO for i, d in enumerate(node.attr))
    if node.op == "reshape":
        return unflatten(flatten(at, node.shape), node.args[0].shape)
    if node.op == "transpose":
        out: list[Any] = [None] * len(at)
        for i, dim in enumerate(node.attr):
            out[dim] = at[i]
        return tuple(out)
    if node.op == "slice":
        starts, steps = node.attr
        return tuple(i * step + start for i, start, step in zip(at, starts, steps, strict=True))
    if node.op == "reverse":
        return tuple(i * -1 + (node.shape[d] - 1) if d in node.attr else i for d, i in enumerate(at))
    return None


def _view(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    inner = view(node, at)
    assert inner is not None
    return p.value(node.args[0], inner, guard)


for _op in ("broadcast", "reshape", "transpose", "slice", "reverse"):
    _RULES[_op] = _view


def pad_view(node: Node, at: Position) -> tuple[Position, list[Cond]]:
    """Index and conditions at which a pad reads its operand."""
    inner, conds = [], []
    for i, size, (low, interior) in zip(at, node.args[0].shape, node.attr, strict=True):
        step = interior + 1
        if step > 1:
            conds.append(Cond((i - low) % step, 0, 1))
        position = (i - low) // step
        conds.append(Cond(position, 0, size))
        inner.append(position)
    return tuple(inner), conds


def window_view(node: Node, at: Position) -> tuple[Position, list[Cond]]:
    """Index and conditions at which a window reads its operand."""
    rank = len(node.attr)
    inner, conds = [], []
    for d, (window, size) in enumerate(zip(node.attr, node.args[0].shape, strict=True)):
        position = at[d] * window.stride + at[rank + d] * window.dilation - window.low
        if window.base > 1:
            conds.append(Cond(position % window.base, 0, 1))
            position = position // window.base
        conds.append(Cond(position, 0, size))
        inner.append(position)
    return tuple(inner), conds


def _padded(p: Puller, node: Node, guard: Guard, inner: Position, conds: Sequence[Cond]) -> Value:
    kept = narrow(conds)
    if kept is None:
        return p.value(node.args[1], (), guard)
    if not kept:
        return p.value(node.args[0], inner, guard)
    inside = p.value(node.args[0], inner, _join(guard, kept))
    return p.b.op("select", p.guard(kept), inside, p.value(node.args[1], (), guard))  # type: ignore[arg-type]


@_rule("pad")
def _pad(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    return _padded(p, node, guard, *pad_view(node, at))


@_rule("window")
def _window(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    return _padded(p, node, guard, *window_view(node, at))


def _join(guard: Guard, more: Sequence[Cond]) -> Guard:
    return guard + tuple(c for c in more if c not in guard)


def concat_view(node: Node, at: Position) -> list[tuple[Node, Position, Cond]]:
    """(operand, index, condition) for each operand of a concatenation."""
    parts, offset, dim = [], 0, node.attr
    for arg in node.args:
        local = at[dim] - offset
        parts.append((arg, (*at[:dim], local, *at[dim + 1 :]), Cond(local, 0, arg.shape[dim])))
        offset += arg.shape[dim]
    return parts


@_rule("concat")
def _concat(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    result: Value | None = None
    for arg, inner, cond in reversed(concat_view(node, at)):
        if cond.known is False:
            continue
        if result is None or cond.known:
            result = p.value(arg, inner, guard if cond.known else _join(guard, (cond,)))
            continue
        # Later operands are already excluded by the order of the selects: only the upper edge needs a test.
        below = p.b.op("lt", p.index(cond.index), p.b.i32(cond.hi))
        result = p.b.op("select", below, p.value(arg, inner, _join(guard, (cond,))), result)
    assert result is not None
    return result


@_rule("dynamic_slice")
def _dynamic_slice(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    operand, *starts = node.args
    inner = tuple(
        i + p.start(s, (), guard, 0, full - size)
        for i, s, full, size in zip(at, starts, operand.shape, node.shape, strict=True)
    )
    return p.value(operand, inner, guard)


@_rule("dynamic_update_slice")
def _dynamic_update_slice(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    operand, update, *starts = node.args
    inner, conds = [], []
    for i, s, full, size in zip(at, starts, operand.shape, update.shape, strict=True):
        local = i - p.start(s, (), guard, 0, full - size)
        inner.append(local)
        conds.append(Cond(local, 0, size))
    kept = narrow(conds)
    if kept is None:
        return p.value(operand, at, guard)
    if not kept:
        return p.value(update, tuple(inner), guard)
    inside = p.value(update, tuple(inner), _join(guard, kept))
    return p.b.op("select", p.guard(kept), inside, p.value(operand, at, guard))  # type: ignore[arg-type]


@_rule("gather")
def _gather(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    operand, indices = node.args
    spec: Gather = node.attr
    batch = [at[d] for d in range(len(at)) if d not in spec.offset_dims]
    offsets = iter(at[d] for d in sorted(spec.offset_dims))
    inner: list[Index] = [ZERO] * len(operand.shape)
    for d in range(len(operand.shape)):
        if d not in spec.collapsed and d not in spec.operand_batch:
            inner[d] = next(offsets)
    for d, i in zip(spec.operand_batch, spec.indices_batch, strict=True):
        inner[d] = batch[i]
    conds = []
    for component, d in enumerate(spec.start_map):
        where = (*batch, constant(component))
        top = operand.shape[d] - spec.slice_sizes[d]
        inner[d] = inner[d] + p.start(indices, where, guard, 0, top)  # clamped in any mode: index algebra needs bounds
        if spec.mode == "fill":
            conds.append(Cond(p.start(indices, where, guard, 0, top, clamp=False), 0, top + 1))
    if operand.size == 0:
        return _fill(p, node)
    inside = p.value(operand, tuple(inner), guard)
    return inside if not conds else p.b.op("select", p.guard(tuple(conds)), inside, _fill(p, node))  # type: ignore[arg-type]


def _fill(p: Puller, node: Node) -> Value:
    from .dtypes import DTYPES

    return p.b.const(node.attr.fill or 0, DTYPES[node.dtype].compute)


@_rule("reduce")
def _reduce(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    combiner = combiner_of(node)
    count = prod(node.args[0].shape[a] for a in node.attr.axes)
    state = p.accumulate(combiner, count, lambda k: p.element(node, at, k, guard))
    return combiner.finish(p.b, state)


def dot_position(node: Node, at: Position, k: Index) -> tuple[Position, Position]:
    """Indices of both operands of a dot for output index `at` and row-major position `k` in the contracted axes."""
    lhs, rhs = node.args
    spec = node.attr
    n_batch = len(spec.lhs_batch)
    inner = unflatten(k, [lhs.shape[a] for a in spec.lhs_contract])
    rest = iter(at[n_batch:])

    def place(rank: int, contract: tuple[int, ...], batch: tuple[int, ...]) -> Position:
        out: list[Any] = [None] * rank
        for a, i in zip(contract, inner, strict=True):
            out[a] = i
        for a, i in zip(batch, at, strict=False):
            out[a] = i
        return tuple(next(rest) if i is None else i for i in out)

    left = place(len(lhs.shape), spec.lhs_contract, spec.lhs_batch)
    return left, place(len(rhs.shape), spec.rhs_contract, spec.rhs_batch)


@_rule("dot")
def _dot(p: Puller, node: Node, at: Position, guard: Guard) -> Value:
    count = prod(node.args[0].shape[a] for a in node.attr.lhs_contract)

    def product(k: Index) -> tuple[Value, ...]:
        left, right = dot_position(node, at, k)
        return p.value(node.args[0], left, guard), p.value(node.args[1], right, guard)

    combiner = combiner_of(node)
    return combiner.finish(p.b, p.accumulate(combiner, count, product))
