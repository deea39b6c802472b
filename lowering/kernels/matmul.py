"""Contractions: matrix products, with whatever feeds them and whatever elementwise work follows.

Operands are evaluated where they are read, so casts, masks, transposes and convolution windows cost no pass of their
own; outputs are evaluated from the accumulators. A product [batch, m, k] x [batch, k, n] runs on one of three schedules:

* tile: each subgroup computes a block of rows by columns in registers. A lane loads one element of the row operand for
  its own k, which subgroup broadcasts then hand to all lanes, and one element of the column operand for its own column:
  every load instruction brings as many fresh elements as the subgroup has lanes, and the rest is arithmetic.
* row: lanes share out k and fold their partial sums; for few results over a long k.
* lane: a lane a result, for what is too small to fill a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ...runtime.caps import DeviceCaps
from ..combine import combiner_of
from ..demand import Demands
from ..dtypes import DTYPES
from ..graph import Node
from ..groups import Group
from ..index import ZERO, Index, constant, counter, flatten, unflatten
from ..limits import limits
from ..pull import dot_position
from ..tile import Value
from .map import build_map
from .row import build_row
from .writer import KernelCall, Writer, when

# Nanoseconds an operation takes a subgroup of eight lanes on a CPU device; elsewhere only the ratios matter.
LOAD, STORE, FMA, TURN, EXCHANGE = 6.0, 7.0, 0.55, 12.0, 4.0
SMALL = 1 << 19  # products of fewer multiply-adds get a quarter of the code
BLOCK = 8  # products that are summed by themselves before they join the total: half the error of long sums, on any device
WORKERS = {"cpu": 4}  # subgroups that run at once; other kinds of device: MANY
MANY = 1024


@dataclass(frozen=True)
class Schedule:
    """How a product is computed.

    Attributes:
        kind: "tile", "row" or "lane".
        rows, columns: of a tile; a tile has `columns` columns a lane.
        swap: tile rows run along n and columns along m, instead of the other way around.
        subgroups: tiles a workgroup.
    """

    kind: str
    rows: int = 1
    columns: int = 1
    swap: bool = False
    subgroups: int = 1


def choose(batch: int, m: int, n: int, k: int, caps: DeviceCaps) -> Schedule:
    """The cheapest schedule by instruction counts.

    A tile of r rows and c columns a lane takes r + 8c loads for 8rc multiply-adds, so it should be as large as
    registers and compile time allow, but no larger than the matrix (surplus rows and columns are computed in vain) nor
    so large that there are fewer tiles than subgroups running at once.
    """
    width, workers = caps.subgroup_size, WORKERS.get(caps.kind, MANY)

    def spread(count: float, cost: float) -> float:
        return cost * max(count / workers, 1.0)

    results = batch * m * n
    best = Schedule("lane"), spread(-(-results // width), k * (2 * LOAD + FMA) + k / 4 * TURN + STORE)
    turns = -(-k // width)
    exchanges = EXCHANGE * (width.bit_length() - 1) if caps.subgroup_ops else LOAD * width
    row = spread(results, turns * (2 * LOAD + FMA + TURN) + exchanges + STORE)
    if k > width and row < best[1]:
        best = Schedule("row"), row
    limit = limits(caps)
    step = min(limit.step, width, k)
    unrolled = limit.products if results * k >= SMALL else limit.products // 4
    a_row = step / width if caps.subgroup_ops else step  # loads a row of a turn
    for swap in (False, True):
        across, along = (n, m) if swap else (m, n)
        for rows in (1, 2, 3, 4, 6, 8, 16):
            for columns in (1, 2, 3, 4):
                if step * rows * columns > unrolled:
                    continue
                tiles = batch * -(-across // rows) * -(-along // (width * columns))
                turn = (a_row * rows + step * columns) * LOAD + step * rows * columns * FMA + TURN
                cost = spread(tiles, -(-k // step) * turn + rows * columns * STORE)
                if cost < best[1]:
                    best = Schedule("tile", rows, columns, swap, 1 if caps.kind == "cpu" else _share(tiles)), cost
    return best[0]


def _share(tiles: int) -> int:
    """Tiles a workgroup: enough for a processor to overlap loads, while there are workgroups for every processor."""
    return next((s for s in (4, 2) if tiles % s == 0 and tiles // s >= MANY // 8), 1)


def build_dot(group: Group, caps: DeviceCaps) -> KernelCall:
    """Kernel of a group whose anchor is a dot; outputs have the elements of the dot, in its row-major order or their own."""
    dot = group.anchor
    assert dot is not None and dot.op == "dot"
    schedule = choose(*sizes(dot), caps)
    return build_scheduled(group, caps, schedule)


def build_scheduled(group: Group, caps: DeviceCaps, schedule: Schedule) -> KernelCall:
    """As `build_dot`, with a given schedule."""
    dot = group.anchor
    assert dot is not None
    if schedule.kind == "lane":
        return build_map(group, caps)
    if schedule.kind == "row":
        return build_row(replace(group, rows=dot.size, reduces=[dot]), caps)
    return _Tile(group, caps, dot, schedule).build()


def sizes(dot: Node) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of a dot."""
    batch, left, right, contracted = _dims(dot)
    return prod(batch), prod(left), prod(right), prod(contracted)


def _dims(dot: Node) -> tuple[tuple[int, ...], ...]:
    """Shapes of the batch, left free, right free and contracted dimensions."""
    lhs, rhs, spec = *dot.args, dot.attr
    batch = tuple(lhs.shape[d] for d in spec.lhs_batch)
    left = tuple(s for d, s in enumerate(lhs.shape) if d not in spec.lhs_batch and d not in spec.lhs_contract)
    right = tuple(s for d, s in enumerate(rhs.shape) if d not in spec.rhs_batch and d not in spec.rhs_contract)
    return batch, left, right, tuple(lhs.shape[d] for d in spec.lhs_contract)


@dataclass(frozen=True)
class _Line:
    """A row or a column of a tile: its index, kept inside the matrix, and whether it was inside (None: surely)."""

    at: Index
    inside: Value | None


class _Tile:
    """Writer of the tile schedule. Rows run along m and columns along n, or the other way around (`swap`)."""

    def __init__(self, group: Group, caps: DeviceCaps, dot: Node, schedule: Schedule) -> None:
        self.writer = Writer(group, caps)
        self.b, self.p = self.writer.b, self.writer.p
        self.group, self.caps, self.dot, self.schedule = group, caps, dot, schedule
        self.combiner = combiner_of(dot)
        self.width = caps.subgroup_size
        self.batch_shape, self.left_shape, self.right_shape, contracted = _dims(dot)
        m, n, self.depth = prod(self.left_shape), prod(self.right_shape), prod(contracted)
        self.m, self.n = m, n
        self.row_count, self.column_count = (n, m) if schedule.swap else (m, n)
        self.step = min(self.writer.limits.step, self.width)
        self.lane = self.writer.lane(self.width)

    def build(self) -> KernelCall:
        s, b = self.schedule, self.b
        row_tiles, column_tiles = -(-self.row_count // s.rows), -(-self.column_count // (self.width * s.columns))
        batch = prod(self.batch_shape)
        grid, tile, surplus = self._number(batch * row_tiles * column_tiles)
        self.batch, row_tile, column_tile = unflatten(tile, (batch, row_tiles, column_tiles))
        self.first_row = row_tile * s.rows
        first_column = column_tile * (self.width * s.columns) + self.lane
        self.rows = [self._line(self.first_row + i, self.row_count) for i in range(s.rows)]
        self.columns = [self._line(first_column + j * self.width, self.column_count) for j in range(s.columns)]
        sums = self._contract()
        with when(b, surplus):
            self._store(sums)
        return self.writer.finish(self.width * s.subgroups, grid)

    def _number(self, tiles: int) -> tuple[tuple[int, int, int], Index, Value | None]:
        """Grid, the subgroup's tile, and whether it exists (surplus subgroups repeat the last tile without storing it)."""
        b, share = self.b, self.schedule.subgroups
        grid, number, surplus = self.writer.groups(-(-tiles // share))
        tile = number * share + counter("s", share, b.builtin("subgroup")) if share > 1 else number
        if tile.hi < tiles and surplus is None:
            return grid, tile, None
        value = self.p.index(tile)
        return grid, counter("tile", tiles, b.op("min", value, b.i32(tiles - 1))), b.op("lt", value, b.i32(tiles))

    def _line(self, at: Index, count: int) -> _Line:
        if at.hi < count:
            return _Line(at, None)
        b, value = self.b, self.p.index(at)
        return _Line(counter("line", count, b.op("min", value, b.i32(count - 1))), b.op("lt", value, b.i32(count)))

    # -- operands ------------------------------------------------------------------------------------------------
    def _element(self, of_row: bool, at: Index, k: Index) -> Value:
        """Element of the row or column operand, converted to the type of the sums."""
        left = of_row != self.schedule.swap
        output = (
            *unflatten(self.batch, self.batch_shape),
            *(unflatten(at, self.left_shape) if left else (ZERO,) * len(self.left_shape)),
            *((ZERO,) * len(self.right_shape) if left else unflatten(at, self.right_shape)),
        )
        side = 0 if left else 1
        value = self.p.value(self.dot.args[side], dot_position(self.dot, output, k)[side])
        compute = DTYPES[self.dot.dtype].compute
        return value if value.dtype == compute else self.b.op("convert", value, attr=compute)

    def _row_elements(self, k: Index, count: int) -> list[list[Value]]:
        """[row][u] for k + u, u < count: loaded once each by some lane, then broadcast."""
        b = self.b
        if not self.caps.subgroup_ops:
            return [[self._element(True, line.at, k + u) for u in range(count)] for line in self.rows]
        together = self.width // self.step  # rows that one load instruction covers
        lane_k = self.lane % self.step
        if count < self.step:
            lane_k = counter("u", count, b.op("min", self.p.index(lane_k), b.i32(count - 1)))
        loads = []
        for i in range(0, self.schedule.rows, together):
            if together == 1:
                at = self.rows[i].at
            else:
                at = self._line(self.first_row + i + self.lane // self.step, self.row_count).at
            loads.append(self._element(True, at, k + lane_k))
        return [
            [b.op("broadcast", loads[i // together], attr=i % together * self.step + u) for u in range(count)]
            for i in range(self.schedule.rows)
        ]

    # -- arithmetic ----------------------------------------------------------------------------------------------
    def _contract(self) -> list[list[Value]]:
        """[row][column] sums over k, rounded to the type of the dot."""
        b, s = self.b, self.schedule
        state = [self.combiner.identity(self.p)[0] for _ in range(s.rows * s.columns)]
        turns, rest = divmod(self.depth, BLOCK)
        if turns == 1:
            state = self._advance(state, ZERO, BLOCK)
        elif turns:
            with b.loop(0, turns, 1, state) as loop:
                k = counter("t", turns, loop.index) * BLOCK
                loop.yield_(*self._advance(list(loop.carry), k, BLOCK))
            state = list(loop.results)
        if rest:
            state = self._advance(state, constant(turns * BLOCK), rest)
        finished = [self.combiner.finish(b, (v,)) for v in state]
        return [finished[i * s.columns : (i + 1) * s.columns] for i in range(s.rows)]

    def _advance(self, state: list[Value], k: Index, count: int) -> list[Value]:
        """Add the sums of the products for k, ..., k + count - 1, at most a block."""
        b = self.b
        sums = [self.combiner.identity(self.p)[0] for _ in state]
        turns, rest = divmod(count, self.step)
        if turns == 1:
            sums = self._products(sums, k, self.step)
        elif turns:
            with b.loop(0, turns, 1, sums) as loop:
                sums = self._products(list(loop.carry), k + counter("b", turns, loop.index) * self.step, self.step)
                loop.yield_(*sums)
            sums = list(loop.results)
        if rest:
            sums = self._products(sums, k + turns * self.step, rest)
        return [self.combiner.merge(b, (old,), (new,))[0] for old, new in zip(state, sums, strict=True)]

    def _products(self, sums: list[Value], k: Index, count: int) -> list[Value]:
        """Add the products for k, ..., k + count - 1, written out."""
        b, zero, sums = self.b, self.b.i32(0), list(sums)
        rows = self._row_elements(k, count)
        for u in range(count):
            for j, line in enumerate(self.columns):
                column = self._element(False, line.at, k + u)
                for i, row in enumerate(rows):
                    slot = i * self.schedule.columns + j
                    (sums[slot],) = self.combiner.step(b, (sums[slot],), (row[u], column), zero)
        return sums

    # -- results -------------------------------------------------------------------------------------------------
    def _store(self, sums: list[list[Value]]) -> None:
        b, p, swap = self.b, self.p, self.schedule.swap
        for row, line_sums in zip(self.rows, sums, strict=True):
            with when(b, row.inside):
                for column, total in zip(self.columns, line_sums, strict=True):
                    m, n = (column.at, row.at) if swap else (row.at, column.at)
                    flat = self.batch * (self.m * self.n) + m * self.n + n
                    if not self._follows(flat):
                        flat = counter("e", self.dot.size, p.index(flat))
                    p.fix(self.dot, flat, total)
                    places = [(o, self.group.position(o, flat)) for o in self.group.outputs]
                    with when(b, column.inside):
                        self.writer.store([(o, place, p.value(o, unflatten(place, o.shape))) for o, place in places])

    def _follows(self, flat: Index) -> bool:
        """Whether the index algebra sees that outputs in an order of their own read the product at `flat`."""
        if not self.group.orders:
            return all(flatten(unflatten(flat, o.shape), o.shape) == flat for o in self.group.outputs)
        demands = Demands()
        for output in self.group.outputs:
            demands.add(output, unflatten(self.group.position(output, flat), output.shape), 1)
        for node in sorted(self.group.members - {self.dot}, key=lambda n: -n.number):
            demands.push(node)
        return demands.single(self.dot) == flat
