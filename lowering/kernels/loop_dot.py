"""Contractions in a loop kernel whose lanes have a slice each, with an operand that the slices share.

As in a tiled matrix product, each lane loads one element of the shared operand for a place of its own in the contracted
dimension, and broadcasts hand it to all lanes of the subgroup; an element of the other operand serves several results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...runtime.caps import DeviceCaps
from ..combine import State, combiner_of
from ..graph import Node, fold_length
from ..index import Index, constant, counter
from ..pull import Position, Puller, dot_position
from ..sharing import Tile
from ..tile import Value

ROWS = 16  # results that share an element of the other operand


def rows_of(count: int, most: int) -> int:
    """Results to compute together, of `count` and at most `most`."""
    most = min(ROWS, most, count)
    exact = max(r for r in range(1, most + 1) if count % r == 0)
    return exact if exact * 2 > most else most


class SharedDot:
    """Results of a contraction at `at(row)` for several rows, in all lanes of a subgroup at once.

    Args:
        at: index of the result in a row; other rows differ only in dimensions of the shared operand.
        lane: of the subgroup.
    """

    def __init__(
        self, puller: Puller, caps: DeviceCaps, node: Node, tile: Tile, at: Callable[[Index], Position], lane: Index
    ) -> None:
        self.p, self.b, self.caps = puller, puller.b, caps
        self.node, self.side, self.at, self.lane = node, tile.side, at, lane
        self.depth = fold_length(node)
        self.step = min(puller.limits.step, caps.subgroup_size, self.depth) if caps.subgroup_ops else 1
        self.combiner = combiner_of(node)

    def rows(self, first: Index, count: int) -> list[Value]:
        """Results of rows first, ..., first + count - 1."""
        b, identity = self.b, self.combiner.identity(self.p)
        turns, rest = divmod(self.depth, self.step)
        state = [identity] * count
        if turns == 1:
            state = self._advance(state, first, constant(0), self.step)
        elif turns:
            with b.loop(0, turns, 1, [v for s in state for v in s]) as loop:
                k = counter("t", turns, loop.index) * self.step
                state = self._advance([(v,) for v in loop.carry], first, k, self.step)
                loop.yield_(*(v for s in state for v in s))
            state = [(v,) for v in loop.results]
        if rest:
            state = self._advance(state, first, constant(turns * self.step), rest)
        return [self.combiner.finish(b, s) for s in state]

    def _element(self, side: int, row: Index, k: Index) -> Value:
        return self.p.value(self.node.args[side], dot_position(self.node, self.at(row), k)[side])

    def _advance(self, state: Sequence[State], first: Index, k: Index, count: int) -> list[State]:
        """Add the products for k, ..., k + count - 1, summed by themselves first: that halves the error of long sums."""
        b, combiner = self.b, self.combiner
        sums = [combiner.identity(self.p)] * len(state)
        shared = self._shared(first, len(state), k, count)
        for u in range(count):
            other = self._element(1 - self.side, first, k + u)
            for i, row in enumerate(shared):
                pair = (row[u], other) if self.side == 0 else (other, row[u])
                sums[i] = combiner.step(b, sums[i], pair, b.i32(0))
        return [combiner.merge(b, old, new) for old, new in zip(state, sums, strict=True)]

    def _shared(self, first: Index, rows: int, k: Index, count: int) -> list[list[Value]]:
        """[row][u]: elements of the shared operand for k + u, u < count."""
        b = self.b
        if self.step == 1:
            return [[self._element(self.side, first + i, k + u) for u in range(count)] for i in range(rows)]
        together = self.caps.subgroup_size // self.step  # rows that one load instruction covers
        lane_k, out = self.lane % self.step, []
        if count < self.step:
            lane_k = counter("u", count, b.op("min", self.p.index(lane_k), b.i32(count - 1)))
        for i in range(0, rows, together):
            row = first + i
            if together > 1 and rows > 1:
                more = self.lane // self.step
                if i + together > rows:
                    more = counter("r", rows - i, b.op("min", self.p.index(more), b.i32(rows - i - 1)))
                row = row + more
            value = self._element(self.side, row, k + lane_k)
            for j in range(min(together, rows - i)):
                out.append([b.op("broadcast", value, attr=j * self.step + u) for u in range(count)])
        return out


def split(shape: Sequence[int], rows: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of the dimensions in `rows`, and of the others."""
    return tuple(shape[d] for d in rows), tuple(s for d, s in enumerate(shape) if d not in rows)


def join(own: Position, others: Position, rows: Sequence[int]) -> Position:
    """Index of which `own` lies in the dimensions `rows` and `others` in the others."""
    mine, rest = iter(own), iter(others)
    return tuple(next(mine) if d in rows else next(rest) for d in range(len(own) + len(others)))
