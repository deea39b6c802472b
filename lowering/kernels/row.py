"""One workgroup (or subgroup) a row: reductions along rows with everything that depends on them.

Softmax, norms, their input gradients, logsumexp, argmax. A reduction is folded by all lanes of the row, then every
lane holds it; columns short enough stay in registers between the passes, because the same element at the same index
is the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...runtime.caps import DeviceCaps
from ..combine import Combiner, combiner_of
from ..graph import Node, fold_length
from ..groups import Group
from ..index import Index, constant, symbol, unflatten
from ..tile import Value
from .writer import KernelCall, Writer

SHARE = 8  # columns a lane that more lanes are not worth
ROWS = 8  # rows a workgroup where one subgroup is enough for a row


def build_row(group: Group, caps: DeviceCaps) -> KernelCall:
    """Outputs have rows * columns elements; reductions have one result a row."""
    writer = Writer(group, caps)
    return _RowKernel(writer, group, caps).build()


class _RowKernel:
    def __init__(self, writer: Writer, group: Group, caps: DeviceCaps) -> None:
        self.writer, self.group, self.caps = writer, group, caps
        self.b, self.p = writer.b, writer.p
        width = caps.subgroup_size
        longest = max([fold_length(n) for n in group.reduces] + [n.size // group.rows for n in group.outputs])
        lanes = width
        while lanes * SHARE < longest and lanes * 2 <= min(caps.max_local_size, 256):
            lanes *= 2
        self.lanes = lanes
        self.per_group = min(ROWS, group.rows, caps.max_local_size // width) if lanes == width else 1
        self.valid: Value | None = None
        self.edges: dict[tuple[Index, int], tuple[Index, Value | None]] = {}

    def build(self) -> KernelCall:
        b, writer, rows = self.b, self.writer, self.group.rows
        grid, number, surplus = writer.groups(-(-rows // self.per_group))
        if surplus is not None:  # a surplus workgroup repeats the last row without storing it
            self.valid = surplus
            number = symbol("g", 0, number.hi, b.op("min", self.p.index(number), b.i32(number.hi)))
        if self.per_group > 1:
            row = number * self.per_group + symbol("s", 0, self.per_group - 1, b.builtin("subgroup"))
            if row.hi >= rows:
                inside = b.op("lt", self.p.index(row), b.i32(rows))
                self.valid = inside if self.valid is None else b.op("and", self.valid, inside)
                row = symbol("row", 0, rows - 1, b.op("min", self.p.index(row), b.i32(rows - 1)))
            self.lane = writer.lane(self.caps.subgroup_size)
        else:
            row, self.lane = number, writer.lane(self.lanes)
        self.row = row
        for node in self.group.reduces:
            self._reduce(node)
        kept = [n for n in self.group.outputs if n.size == rows]
        wide = [n for n in self.group.outputs if n.size != rows]
        for count in dict.fromkeys(n.size // rows for n in wide):
            self._columns([n for n in wide if n.size // rows == count], count)
        if kept:
            places = [(n, self.group.position(n, row)) for n in kept]
            results = [(n, place, self.p.value(n, unflatten(place, n.shape))) for n, place in places]
            self._put(results, b.op("eq", self.p.index(self.lane), b.i32(0)))
        # Every lane reads the values kept once a row, so none may be overwritten while a lane may still read it.
        call = writer.finish(self.lanes * self.per_group, grid)
        return replace(call, inplace=frozenset(pair for pair in call.inplace if pair[1] not in kept))

    def _put(self, results: Sequence[tuple[Node, Index, Value]], condition: Value | None) -> None:
        """Store where `condition` holds, in a row that exists."""
        if self.valid is not None:
            condition = self.valid if condition is None else self.b.op("and", condition, self.valid)
        if condition is None:
            return self.writer.store(results)
        with self.b.branch(condition):
            self.writer.store(results)

    # -- reductions ----------------------------------------------------------------------------------------------
    def _reduce(self, node: Node) -> None:
        combiner = combiner_of(node)
        at = unflatten(self.row, node.shape)
        state = self._fold(node, combiner, at)
        state = self._across_lanes(combiner, state)
        self.p.fix(node, self.row, combiner.finish(self.b, state))

    def _column(self, turn: Index | int, count: int) -> tuple[Index, Value | None]:
        """This lane's column in a turn, kept inside the row, and whether it was inside to begin with (None: surely).

        The same turn gives the same index, which is what keeps a column in registers from one pass to the next.
        """
        column = self.lane + (constant(turn) if isinstance(turn, int) else turn) * self.lanes
        if column.hi < count:
            return column, None
        if (column, count) not in self.edges:
            value = self.p.index(column)
            bounded = self.b.op("min", value, self.b.i32(count - 1))
            self.edges[column, count] = symbol("c", 0, count - 1, bounded), self.b.op("lt", value, self.b.i32(count))
        return self.edges[column, count]

    def _fold(self, node: Node, combiner: Combiner, at: tuple[Index, ...]) -> tuple[Value, ...]:
        b, p, count = self.b, self.p, fold_length(node)
        turns = -(-count // self.lanes)

        def step(state: tuple[Value, ...], turn: Index | int) -> tuple[Value, ...]:
            column, inside = self._column(turn, count)
            folded = combiner.step(b, state, p.element(node, at, column, ()), p.index(column))
            if inside is None:
                return folded
            return tuple(b.op("select", inside, new, old) for new, old in zip(folded, state, strict=True))

        state = combiner.identity(p)
        if turns <= self.writer.limits.kept:
            for turn in range(turns):
                state = step(state, turn)
            return state
        whole = count // self.lanes
        with b.loop(0, whole, 1, state) as loop:
            loop.yield_(*step(loop.carry, symbol("t", 0, whole - 1, loop.index)))
        return step(loop.results, whole) if whole < turns else loop.results

    def _across_lanes(self, combiner: Combiner, state: tuple[Value, ...]) -> tuple[Value, ...]:
        b, width = self.b, self.caps.subgroup_size
        if self.caps.subgroup_ops:
            state = self._butterfly(combiner, state)
            parts = self.lanes // width
            if parts == 1:
                return state
            leader, slot = b.op("eq", b.builtin("lane"), b.i32(0)), b.builtin("subgroup")
        else:
            parts, leader, slot = self.lanes, None, self.p.index(self.lane)
        arrays = [b.shared("part", t, parts * (self.per_group if not self.caps.subgroup_ops else 1)) for t in combiner.types]
        offset = b.i32(0)
        if not self.caps.subgroup_ops and self.per_group > 1:
            offset = b.op("mul", b.builtin("subgroup"), b.i32(self.lanes))
            slot = b.op("add", slot, offset)
        if leader is None:
            for array, value in zip(arrays, state, strict=True):
                b.shared_store(array, slot, value)
        else:
            with b.branch(leader):
                for array, value in zip(arrays, state, strict=True):
                    b.shared_store(array, slot, value)
        b.barrier()
        total = tuple(b.shared_load(a, offset) for a in arrays)
        for i in range(1, parts):
            index = b.op("add", offset, b.i32(i))
            total = combiner.merge(b, total, tuple(b.shared_load(a, index) for a in arrays))
        return total

    def _butterfly(self, combiner: Combiner, state: tuple[Value, ...]) -> tuple[Value, ...]:
        """Fold over the subgroup by exchanges; the lower lane's state counts as the earlier one."""
        b, lane = self.b, self.b.builtin("lane")
        distance = 1
        while distance < self.caps.subgroup_size:
            partner = b.op("xor", lane, b.i32(distance))
            other = tuple(b.op("shuffle", v, partner) for v in state)
            state = combiner.merge(b, state, other)
            distance *= 2
        return state

    # -- outputs -------------------------------------------------------------------------------------------------
    def _columns(self, nodes: list[Node], count: int) -> None:
        """Store the row of each node, `count` columns long."""
        turns = -(-count // self.lanes)

        def put(turn: Index | int) -> None:
            column, inside = self._column(turn, count)
            flat = self.row * count + column
            places = [(n, self.group.position(n, flat)) for n in nodes]
            results = [(n, place, self.p.value(n, unflatten(place, n.shape))) for n, place in places]
            self._put(results, inside)

        if turns <= self.writer.limits.kept:
            for turn in range(turns):
                put(turn)
            return
        whole = count // self.lanes
        with self.b.loop(0, whole) as loop:
            put(symbol("t", 0, whole - 1, loop.index))
        if whole < turns:
            put(whole)
