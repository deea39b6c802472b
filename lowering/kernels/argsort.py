"""Stable argsort: the permutation that sorts the rows along a dimension.

Keys become integers whose order is JAX's (-0 equals +0, NaN is last), and equal keys keep their order because the
position is the last key. Three ways, by the length of a row:

* rank: a lane an element counts the elements before it; short rows.
* block: a workgroup sorts a row in shared memory.
* long: blocks are sorted in shared memory, then merged through global memory, with the stages that stay inside a block
  done in shared memory again.

Both longer ways are the bitonic network whose merges begin by comparing mirrored places, so that every comparison puts
the smaller element first. Then places past the end of a row, which count as the largest, never take part in an exchange:
rows need no padding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from ...runtime.caps import DeviceCaps
from ..dtypes import DTYPES
from ..graph import Node
from ..groups import Group
from ..index import Index, constant, flatten, unflatten
from ..tile import Builder, Value
from .writer import KernelCall, Writer, counter, round_up

LOCAL = 64
RANKED = 64  # longest row sorted by counting
BLOCK = 1024  # most elements sorted in shared memory
LANES = 256  # most lanes that sort a block

Element = tuple[Value, ...]  # ordered keys, then the position
Target = Callable[[Index, Index], Index]  # (row, place) -> row-major position in a node


def build_argsort(group: Group, caps: DeviceCaps) -> list[KernelCall]:
    """Kernels of a group whose anchor and only output is an argsort."""
    node = group.anchor
    assert node is not None and node.op == "argsort" and group.outputs == [node]
    sort = _Sort(group, caps, node)
    if sort.count <= RANKED:
        return [sort.by_rank()]
    if sort.count <= sort.block:
        return [sort.in_block()]
    return sort.long()


def ordered(b: Builder, value: Value, dtype: str) -> Value:
    """An i32 or u32 in the order of `value`: for floats -0 equals +0, and NaN is the largest."""
    kind = DTYPES[dtype].kind
    if kind == "b":
        return b.op("convert", value, attr="i32")
    if kind != "f":
        return value
    # Integers only: comparisons of floats may treat subnormals as zeros.
    bits = b.op("bitcast", value, attr="i32")
    size = b.op("and", bits, b.i32(0x7FFFFFFF))
    negated = b.op("xor", bits, b.i32(0x7FFFFFFF))
    signed = b.op("select", b.op("lt", bits, b.i32(0)), negated, bits)
    signed = b.op("select", b.op("eq", size, b.i32(0)), b.i32(0), signed)
    return b.op("select", b.op("lt", b.i32(0x7F800000), size), b.i32(0x7FFFFFFF), signed)


def before(b: Builder, first: Element, second: Element) -> Value:
    """Whether `first` sorts before `second`."""
    result = b.op("lt", first[-1], second[-1])
    for x, y in reversed(list(zip(first[:-1], second[:-1], strict=True))):
        result = b.op("or", b.op("lt", x, y), b.op("and", b.op("eq", x, y), result))
    return result


class _Sort:
    def __init__(self, group: Group, caps: DeviceCaps, node: Node) -> None:
        self.group, self.caps, self.node = group, caps, node
        self.dim = node.attr.dim
        self.count = node.shape[self.dim]
        self.rows = node.size // self.count
        self.kept = [s for d, s in enumerate(node.shape) if d != self.dim]
        self.types = ["u32" if DTYPES[a.dtype].compute == "u32" else "i32" for a in node.args]
        room = caps.shared_bytes // (4 * (len(node.args) + 1))
        self.block = min(BLOCK, 1 << (room.bit_length() - 1))

    def _at(self, row: Index, place: Index) -> tuple[Index, ...]:
        kept = unflatten(row, self.kept)
        return (*kept[: self.dim], place, *kept[self.dim :])

    def _flat(self, row: Index, place: Index) -> Index:
        return flatten(self._at(row, place), self.node.shape)

    def _keys(self, writer: Writer, row: Index, place: Index) -> Element:
        """Ordered keys of an element, and its position."""
        at = self._at(row, place)
        keys = (ordered(writer.b, writer.p.value(a, at), a.dtype) for a in self.node.args)
        return (*keys, writer.p.index(place))

    # -- rank ----------------------------------------------------------------------------------------------------
    def by_rank(self) -> KernelCall:
        writer = Writer(self.group, self.caps)
        b, p = writer.b, writer.p
        lanes = self.node.size
        local = min(LOCAL, self.caps.max_local_size, round_up(lanes, self.caps.subgroup_size))
        grid, number, surplus = writer.groups(-(-lanes // local))
        mine = number * local + writer.lane(local)
        inside = None if mine.hi < lanes and surplus is None else b.op("lt", p.index(mine), b.i32(lanes))
        if inside is None:
            self._rank(writer, mine)
        else:
            with b.branch(inside):
                self._rank(writer, counter("i", lanes, p.index(mine)))
        return writer.finish(local, grid)

    def _rank(self, writer: Writer, mine: Index) -> None:
        """Count the elements before this lane's own, which is the place it sorts to."""
        b = writer.b
        row, place = unflatten(mine, (self.rows, self.count))
        own = self._keys(writer, row, place)

        def counted(rank: Value, other: Index) -> Value:
            less = before(b, self._keys(writer, row, other), own)
            return b.op("add", rank, b.op("convert", less, attr="i32"))

        rank = b.i32(0)
        if self.count <= 8:
            for other in range(self.count):
                rank = counted(rank, constant(other))
        else:
            with b.loop(0, self.count, 1, [rank]) as loop:
                loop.yield_(counted(loop.carry[0], counter("o", self.count, loop.index)))
            rank = loop.results[0]
        to = self._flat(row, counter("rank", self.count, rank))
        writer.store([(self.node, to, own[-1])])

    # -- a block in shared memory ----------------------------------------------------------------------------------
    def in_block(self) -> KernelCall:
        """A workgroup a row."""
        writer = Writer(self.group, self.caps)
        block = _Block(self, writer, self.rows, 1, 1 << (self.count - 1).bit_length())
        block.load(lambda row, place: self._keys(writer, row, place))
        block.sort()
        block.store([(self.node, self._flat)])
        return writer.finish(block.lanes, block.grid)

    # -- long rows -------------------------------------------------------------------------------------------------
    def long(self) -> list[KernelCall]:
        shape, source = (self.rows, self.count), self.node.source
        keys = tuple(Node("scratch", (), shape, dtype, None, source, -1 - i) for i, dtype in enumerate(self.types))
        blocks = -(-self.count // self.block)
        calls = [self._first(keys, blocks)]
        exchange, merge, last = self._exchange(keys), self._merge(keys, blocks, False), self._merge(keys, blocks, True)
        levels, inner = (self.count - 1).bit_length(), self.block.bit_length() - 1
        for level in range(inner, levels):  # merges runs of 2**level
            for shift in range(level, inner - 1, -1):
                mask = (2 << level) - 1 if shift == level else 1 << shift
                calls.append(replace(exchange, args=(*exchange.args[:-2], shift, mask)))
            calls.append(last if level == levels - 1 else merge)
        return [replace(call, scratch=keys) for call in calls]

    def _row_major(self, row: Index, place: Index) -> Index:
        return row * self.count + place

    def _first(self, keys: tuple[Node, ...], blocks: int) -> KernelCall:
        """Sort each block; from here on the keys are in scratch memory and the positions in the result."""
        writer = Writer(self.group, self.caps)
        block = _Block(self, writer, self.rows, blocks, self.block)
        block.load(lambda row, place: self._keys(writer, row, place))
        block.sort()
        block.store([*((k, self._row_major) for k in keys), (self.node, self._flat)])
        return writer.finish(block.lanes, block.grid)

    def _merge(self, keys: tuple[Node, ...], blocks: int, last: bool) -> KernelCall:
        """The end of a merge: all stages inside a block. The last one of all needs no keys any more."""
        writer = Writer(self.group, self.caps)
        numbers = [writer.parameter(k, "r" if last else "rw") for k in keys]
        permutation = writer.parameter(self.node, "rw")
        block = _Block(self, writer, self.rows, blocks, self.block)

        def load(row: Index, place: Index) -> Element:
            at = writer.p.index(self._row_major(row, place))
            read = tuple(writer.b.load(n, at) for n in numbers)
            return (*read, writer.b.load(permutation, writer.p.index(self._flat(row, place))))

        block.load(load)
        block.merge(self.block.bit_length() - 2)
        targets: list[tuple[Node, Target]] = [] if last else [(k, self._row_major) for k in keys]
        block.store([*targets, (self.node, self._flat)])
        return writer.finish(block.lanes, block.grid)

    def _exchange(self, keys: tuple[Node, ...]) -> KernelCall:
        """One stage over global memory, a lane a pair; its distance is given by the literals `shift` and `mask`."""
        writer = Writer(self.group, self.caps)
        b, p = writer.b, writer.p
        numbers = [writer.parameter(k, "rw") for k in keys]
        permutation = writer.parameter(self.node, "rw")
        pairs = 1 << ((self.count - 1).bit_length() - 1)
        local = min(LOCAL, self.caps.max_local_size, pairs)
        grid, number, surplus = writer.groups(self.rows * pairs // local)
        shift, mask = writer.literal("shift", 0), writer.literal("mask", 0)
        row, pair = unflatten(number * local + writer.lane(local), (self.rows, pairs))
        i = p.index(pair)
        high = b.op("shr", i, shift)
        rest = b.op("sub", i, b.op("shl", high, shift))
        lower = b.op("add", b.op("shl", b.op("shl", high, shift), b.i32(1)), rest)
        upper = b.op("xor", lower, mask)
        inside = b.op("lt", upper, b.i32(self.count))
        if surplus is not None:
            inside = b.op("and", inside, surplus)
        with b.branch(inside):
            places = [counter(name, self.count, value) for name, value in (("lower", lower), ("upper", upper))]
            spots = [
                [*((n, p.index(self._row_major(row, at))) for n in numbers), (permutation, p.index(self._flat(row, at)))]
                for at in places
            ]
            low, high_element = (tuple(b.load(n, at) for n, at in spot) for spot in spots)
            with b.branch(before(b, high_element, low)):
                for spot, element in zip(spots, (high_element, low), strict=True):
                    for (n, at), value in zip(spot, element, strict=True):
                        b.store(n, at, value)
        call = writer.finish(local, grid)
        return replace(call, writes=(*keys, self.node), reads=())


class _Block:
    """A workgroup sorting or merging `size` elements (a power of two) in shared memory; one of `blocks` blocks of a row."""

    def __init__(self, sort: _Sort, writer: Writer, rows: int, blocks: int, size: int) -> None:
        self.sort_, self.writer, self.size = sort, writer, size
        b, p, width = writer.b, writer.p, sort.caps.subgroup_size
        self.lanes = max(width, min(size // 2, LANES, sort.caps.max_local_size))
        self.grid, number, surplus = writer.groups(rows * blocks)
        self.surplus = surplus
        if surplus is not None:
            number = counter("g", rows * blocks, b.op("min", p.index(number), b.i32(rows * blocks - 1)))
        self.row, self.number = unflatten(number, (rows, blocks))
        self.lane = writer.lane(self.lanes)
        self.arrays = [b.shared(f"key{i}", t, size) for i, t in enumerate(sort.types)] + [b.shared("position", "i32", size)]

    def load(self, element: Callable[[Index, Index], Element]) -> None:
        """Fill the block; places past the end of the row stay unset."""
        for local, place, ok in self._places():
            with self._when(ok):
                for array, value in zip(self.arrays, element(self.row, place), strict=True):
                    self.writer.b.shared_store(array, local, value)
        self.writer.b.barrier()

    def store(self, targets: list[tuple[Node, Target]]) -> None:
        """Store the last arrays, one to each node, at its row-major position of (row, place)."""
        b = self.writer.b
        for local, place, ok in self._places():
            if self.surplus is not None:
                ok = self.surplus if ok is None else b.op("and", ok, self.surplus)
            with self._when(ok):
                values = [b.shared_load(a, local) for a in self.arrays[-len(targets) :]]
                self.writer.store([(n, at(self.row, place), v) for (n, at), v in zip(targets, values, strict=True)])

    def _places(self) -> list[tuple[Value, Index, Value | None]]:
        """(index in the block, place in the row, whether it exists) of each element that this lane moves."""
        b, p, count = self.writer.b, self.writer.p, self.sort_.count
        out = []
        for turn in range(-(-self.size // self.lanes)):
            local = self.lane + turn * self.lanes
            place = self.number * self.size + local
            ok = None
            if place.hi >= count:
                value = p.index(place)
                ok = b.op("lt", value, b.i32(count))
                place = counter("place", count, value)
            out.append((p.index(local), place, ok))
        return out

    def sort(self) -> None:
        for level in range(self.size.bit_length() - 1):
            self._stage(self.writer.b.i32(level), self.writer.b.i32((2 << level) - 1))
            self.merge(level - 1)

    def merge(self, shift: int) -> None:
        """Stages at distances 2**shift, ..., 2, 1."""
        b = self.writer.b
        if shift < 0:
            return
        with b.loop(0, shift + 1) as loop:
            distance = b.op("sub", b.i32(shift), loop.index)
            self._stage(distance, b.op("shl", b.i32(1), distance))

    def _stage(self, shift: Value, mask: Value) -> None:
        """Order each pair of places that differ by `mask`; `shift` is the position of its highest bit."""
        b, p, pairs = self.writer.b, self.writer.p, self.size // 2
        end = b.i32(self.sort_.count)
        start = p.index(self.number * self.size)
        for turn in range(-(-pairs // self.lanes)):
            pair = self.lane + turn * self.lanes
            i = p.index(pair)
            high = b.op("shl", b.op("shr", i, shift), shift)
            lower = b.op("add", i, high)
            upper = b.op("xor", lower, mask)
            inside = b.op("lt", b.op("add", start, upper), end)
            if pair.hi >= pairs:
                inside = b.op("and", inside, b.op("lt", i, b.i32(pairs)))
            with b.branch(inside):
                low, high_element = (tuple(b.shared_load(a, at) for a in self.arrays) for at in (lower, upper))
                with b.branch(before(b, high_element, low)):
                    for array, first, second in zip(self.arrays, high_element, low, strict=True):
                        b.shared_store(array, lower, first)
                        b.shared_store(array, upper, second)
        b.barrier()

    def _when(self, condition: Value | None) -> AbstractContextManager[Any]:
        return nullcontext() if condition is None else self.writer.b.branch(condition)
