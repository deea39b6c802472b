"""Stable argsort: the permutation that sorts the rows along a dimension.

Keys become integers whose order is JAX's (-0 equals +0, NaN is last). A row is cut into blocks. An element's place in
its block is the number of elements that sort before it, which every lane counts for elements of its own while the
subgroup passes the block's keys around. Then sorted runs are merged in pairs: an element's place is its place in its own
run plus the number of elements of the other run before it, found by bisection. Equal keys keep their order because those
of an earlier block, or of the left run, count as smaller. There are no barriers and no exchanges, and all merges share
one kernel.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from ...runtime.caps import DeviceCaps
from ..dtypes import DTYPES, same_width, width
from ..graph import Node
from ..groups import Group
from ..index import Index, counter, flatten, unflatten
from ..tile import Builder, Value
from .writer import KernelCall, Writer, local_size

BLOCK = 256  # elements sorted by counting; a power of two
SINGLE = 512  # longest row that is one block, which saves the merges
OWN = 64  # elements a subgroup counts for, at least one a lane

Keys = tuple[Value, ...]


def build_argsort(group: Group, caps: DeviceCaps) -> list[KernelCall]:
    """Kernels of a group whose anchor and only output is an argsort."""
    node = group.anchor
    assert node is not None and node.op == "argsort" and group.outputs == [node]
    return _Sort(group, caps, node).build()


def ordered(b: Builder, value: Value, dtype: str) -> Value:
    """An integer in the order of `value`, as wide: for floats -0 equals +0, and NaN is the largest."""
    kind = DTYPES[dtype].kind
    if kind == "b":
        return b.op("convert", value, attr="i32")
    if kind != "f":
        return value
    # Integers only: comparisons of floats may treat subnormals as zeros.
    kind = same_width("i", value.dtype)
    largest, infinity = (1 << width(kind) - 1) - 1, 0x7FF << 52 if kind == "i64" else 0xFF << 23
    bits = b.op("bitcast", value, attr=kind)
    size = b.op("and", bits, b.const(largest, kind))
    signed = b.op("select", b.op("lt", bits, b.const(0, kind)), b.op("neg", size), size)  # both zeros become 0
    return b.op("select", b.op("lt", b.const(infinity, kind), size), b.const(largest, kind), signed)


def key_type(dtype: str) -> str:
    """Type of `ordered` values."""
    compute = DTYPES[dtype].compute
    return compute if compute in ("u32", "u64") else same_width("i", compute)


def before(b: Builder, first: Keys, second: Keys, ties: Value) -> Value:
    """Whether `first` sorts before `second`, where `ties` says it for equal keys."""
    result = ties
    for x, y in reversed(list(zip(first, second, strict=True))):
        result = b.op("or", b.op("lt", x, y), b.op("and", b.op("eq", x, y), result))
    return result


class _Sort:
    def __init__(self, group: Group, caps: DeviceCaps, node: Node) -> None:
        self.group, self.caps, self.node = group, caps, node
        self.dim = node.attr.dim
        self.count = node.shape[self.dim]
        self.rows = node.size // self.count
        self.kept = [s for d, s in enumerate(node.shape) if d != self.dim]
        self.block = self.count if self.count <= SINGLE else BLOCK

    def build(self) -> list[KernelCall]:
        if self.block == self.count:
            return [_Blocks(self).build((), self.node)]
        shape, source = (self.rows, self.count), self.node.source
        types = [key_type(a.dtype) for a in self.node.args]
        numbers = iter(range(-1, -2 * len(types) - 2, -1))
        halves = [tuple(Node("scratch", (), shape, t, None, source, next(numbers)) for t in types) for _ in range(2)]
        spare = Node("scratch", (), shape, "i32", None, source, next(numbers))
        shifts = range(self.block.bit_length() - 1, (self.count - 1).bit_length())
        places = [self.node, spare] if len(shifts) % 2 == 0 else [spare, self.node]
        merges = [self._merge(halves[i], places[i], halves[1 - i], places[1 - i]) for i in (0, 1)]
        last = (len(shifts) - 1) % 2
        final = self._merge(halves[last], places[last], (), self.node)
        calls = [_Blocks(self).build(halves[0], places[0])]
        for i, shift in enumerate(shifts):
            call = final if i == len(shifts) - 1 else merges[i % 2]
            calls.append(replace(call, args=tuple(shift if isinstance(a, int) else a for a in call.args)))
        scratch = (*halves[0], *(halves[1] if len(shifts) > 1 else ()), spare)
        return [replace(call, scratch=tuple(s for s in scratch if s in call.args)) for call in calls]

    def at(self, row: Index, place: Index) -> tuple[Index, ...]:
        kept = unflatten(row, self.kept)
        return (*kept[: self.dim], place, *kept[self.dim :])

    def _flat(self, node: Node, row: Index, place: Index) -> Index:
        """Row-major position of an element: scratch arrays hold one row after the other."""
        return flatten(self.at(row, place), node.shape) if node is self.node else row * self.count + place

    def put(self, writer: Writer, targets: tuple[Node, ...], row: Index, place: Index, values: Keys) -> None:
        writer.store([(n, self._flat(n, row, place), v) for n, v in zip(targets, values, strict=True)])

    def keys(self, writer: Writer, row: Index, place: Index) -> Keys:
        """Ordered keys of an element."""
        at = self.at(row, place)
        return tuple(ordered(writer.b, writer.p.value(a, at), a.dtype) for a in self.node.args)

    # -- merges ----------------------------------------------------------------------------------------------------
    def _merge(self, keys: tuple[Node, ...], places: Node, to_keys: tuple[Node, ...], to_places: Node) -> KernelCall:
        """Merge pairs of runs of 2**shift elements (a literal), a lane an element. No `to_keys`: only positions are stored."""
        writer = Writer(self.group, self.caps)
        b, p = writer.b, writer.p
        sources = [writer.parameter(n, "r") for n in (*keys, places)]
        shift = writer.literal("shift", 0)
        lanes = self.node.size
        local = local_size(lanes, self.caps)
        grid, number, surplus = writer.groups(-(-lanes // local))
        mine = number * local + writer.lane(local)

        def element(row: Index, place: Index) -> None:
            flats = (self._flat(node, row, place) for node in (*keys, places))
            *held, position = (b.load(n, p.index(flat)) for n, flat in zip(sources, flats, strict=True))
            at, one = p.index(place), b.i32(1)
            run = b.op("shr", at, shift)
            right = b.op("eq", b.op("and", run, one), one)
            other = b.op("shl", b.op("xor", run, one), shift)
            length = b.op("min", b.op("sub", b.i32(self.count), other), b.op("shl", one, shift))
            before_it = b.i32(0)
            for turn in range((self.count - 1).bit_length()):
                step = b.op("shr", b.op("shl", one, shift), b.i32(turn))  # 0 at the end of early merges: changes nothing
                reach = b.op("add", before_it, step)
                last = b.op("sub", b.op("add", other, reach), one)
                fits = b.op("le", reach, length)
                where = counter("probe", self.count, b.op("select", fits, b.op("max", last, b.i32(0)), b.i32(0)))
                probe = tuple(b.load(n, p.index(row * self.count + where)) for n in sources[:-1])
                moves = b.op("and", fits, before(b, probe, tuple(held), right))
                before_it = b.op("select", moves, reach, before_it)
            own_offset = b.op("sub", at, b.op("shl", run, shift))
            start = b.op("shl", b.op("shr", run, one), b.op("add", shift, one))
            to = counter("to", self.count, b.op("add", b.op("add", start, own_offset), before_it))
            self.put(writer, (*to_keys, to_places), row, to, (*(held if to_keys else ()), position))

        if mine.hi < lanes and surplus is None:
            element(*unflatten(mine, (self.rows, self.count)))
        else:
            value = p.index(mine)
            with b.branch(b.op("lt", value, b.i32(lanes))):
                element(*unflatten(counter("i", lanes, value), (self.rows, self.count)))
        return writer.finish(local, grid)


class _Blocks:
    """Writer of the kernel that sorts each block by counting. A subgroup takes a part of a block, in chunks of its width."""

    def __init__(self, sort: _Sort) -> None:
        self.sort, self.writer = sort, Writer(sort.group, sort.caps)
        self.width = width = sort.caps.subgroup_size
        b, p = self.writer.b, self.writer.p
        self.own = min(max(1, OWN // width), -(-sort.block // width))
        parts, blocks = -(-sort.block // (width * self.own)), -(-sort.count // sort.block)
        total = sort.rows * blocks * parts
        self.share = local_size(total * width, sort.caps) // width
        self.grid, number, surplus = self.writer.groups(-(-total // self.share))
        part = number * self.share + counter("s", self.share, b.builtin("subgroup"))
        self.exists = None
        if part.hi >= total or surplus is not None:
            value = p.index(part)
            self.exists = b.op("lt", value, b.i32(total))
            part = counter("part", total, b.op("min", value, b.i32(total - 1)))
        self.row, block, self.part = unflatten(part, (sort.rows, blocks, parts))
        self.start = block * sort.block
        self.lane = self.writer.lane(width)

    def build(self, keys: tuple[Node, ...], places: Node) -> KernelCall:
        """Kernel that stores the keys (none: only positions) and the positions in sorted order."""
        b, p, sort, width = self.writer.b, self.writer.p, self.sort, self.width
        chunks = [self.part * self.own + j for j in range(self.own)]
        spots = [self._clamp(chunk * width + self.lane) for chunk in chunks]
        held = [sort.keys(self.writer, self.row, place) for place, _ in spots]
        numbers = [p.index(chunk) for chunk in chunks]
        count = -(-sort.block // width)
        with b.loop(0, count, 1, [b.i32(0)] * self.own) as loop:
            loop.yield_(*self._count(counter("t", count, loop.index), loop.carry, held, numbers))
        for chunk, (place, inside), mine, rank in zip(chunks, spots, held, loop.results, strict=True):
            rank = b.op("add", rank, self._earlier_equals(chunk, mine))
            to, position = self.start + counter("rank", sort.block, rank), p.index(place)
            inside = _both(b, inside, self.exists)
            with nullcontext() if inside is None else b.branch(inside):
                sort.put(self.writer, (*keys, places), self.row, to, (*(mine if keys else ()), position))
        return self.writer.finish(width * self.share, self.grid)

    def _clamp(self, offset: Index) -> tuple[Index, Value | None]:
        """The place in the row of an offset into the block, kept inside both, and whether it was (None: surely)."""
        b, p, sort = self.writer.b, self.writer.p, self.sort
        inside = None
        if offset.hi >= sort.block:
            inside = b.op("lt", p.index(offset), b.i32(sort.block))
        place = self.start + offset
        if place.hi >= sort.count:
            value = p.index(place)
            inside = _both(b, inside, b.op("lt", value, b.i32(sort.count)))
            place = counter("place", sort.count, b.op("min", value, b.i32(sort.count - 1)))
        return place, inside

    def _passed(self, first: Index, loaded: Keys, lane: int) -> Keys:
        """Keys of element `lane` of the chunk that starts at `first`, in every lane."""
        if self.sort.caps.subgroup_ops:
            return tuple(self.writer.b.op("broadcast", k, attr=lane) for k in loaded)
        return self.sort.keys(self.writer, self.row, self._clamp(first + lane)[0])

    def _count(self, chunk: Index, ranks: Keys, held: list[Keys], numbers: list[Value]) -> Keys:
        """Add to each rank the elements of a chunk that sort before; equal ones count where their chunk is earlier."""
        b, p, first = self.writer.b, self.writer.p, chunk * self.width
        ties = [b.op("lt", p.index(chunk), number) for number in numbers]
        loaded = self.sort.keys(self.writer, self.row, self._clamp(first + self.lane)[0]) if self.sort.caps.subgroup_ops else ()
        for u in range(self.width):
            other, inside = self._passed(first, loaded, u), self._clamp(first + u)[1]
            found = [before(b, other, mine, tie) for mine, tie in zip(held, ties, strict=True)]
            if inside is not None:
                found = [b.op("and", less, inside) for less in found]
            ranks = tuple(b.op("add", rank, b.op("convert", one, attr="i32")) for rank, one in zip(ranks, found, strict=True))
        return ranks

    def _earlier_equals(self, chunk: Index, mine: Keys) -> Value:
        """How many elements of the lane's own chunk are equal to its own and come earlier."""
        b, rank, lane = self.writer.b, self.writer.b.i32(0), self.writer.p.index(self.lane)
        for u in range(self.width - 1):
            same = b.op("lt", b.i32(u), lane)
            for x, y in zip(self._passed(chunk * self.width, mine, u), mine, strict=True):
                same = b.op("and", same, b.op("eq", x, y))
            rank = b.op("add", rank, b.op("convert", same, attr="i32"))
        return rank


def _both(b: Builder, first: Value | None, second: Value | None) -> Value | None:
    """Conjunction; None stands for true."""
    if first is None or second is None:
        return first if second is None else second
    return b.op("and", first, second)
