"""Scatter without atomics: every element of the result belongs to one lane, so updates land in their order.

Some dimensions of the result are scattered (indices choose the position along them); along the others an update has
the position of the element it changes. A lane owns one position in the latter and a range of the former. It copies its
elements from the operand, then walks all updates that can reach it, index after index, and applies those that fall
in its range. The result is the same in every run, also for sums of floats.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

from ...runtime.caps import DeviceCaps
from .. import scalar
from ..graph import Node, Scatter
from ..groups import Group
from ..index import ZERO, Cond, Index, constant, counter, flatten, narrow, unflatten
from ..tile import Builder, Value
from .writer import KernelCall, Writer, local_size

LANES = {"cpu": 128}  # lanes worth having; each of them walks all updates. Other kinds of device: MANY
MANY = 4096
PRIMITIVES = {"add": "add", "sub": "sub", "mul": "mul", "min": "min", "max": "max"}
ON_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and"}


@dataclass(frozen=True)
class Geometry:
    """Which dimensions of a scatter do what.

    Attributes:
        scattered: operand dimensions that indices choose a position along; `owned` are the others.
        windows: window size of an update along each operand dimension (1 where inserted).
        from_window: operand dimension -> dimension of the updates that runs along it.
        batch: dimensions of the updates that number the indices, in order.
        owned_batch: operand dimension -> position in `batch` that it equals.
        walked: dimensions of the updates that a lane goes through: index after index, each window in row-major order.
    """

    scattered: tuple[int, ...]
    owned: tuple[int, ...]
    windows: tuple[int, ...]
    from_window: dict[int, int]
    batch: tuple[int, ...]
    owned_batch: dict[int, int]
    walked: tuple[int, ...]


def geometry(node: Node) -> Geometry:
    operand, _, updates = node.args
    spec: Scatter = node.attr
    dims = range(len(operand.shape))
    windowed = [d for d in dims if d not in spec.inserted and d not in spec.operand_batch]
    from_window = dict(zip(windowed, sorted(spec.window_dims), strict=True))
    batch = tuple(d for d in range(len(updates.shape)) if d not in spec.window_dims)
    owned_batch = dict(zip(spec.operand_batch, spec.indices_batch, strict=True))
    scattered = tuple(d for d in dims if d in spec.scatter_map)
    free = [d for i, d in enumerate(batch) if i not in spec.indices_batch]
    return Geometry(
        scattered,
        tuple(d for d in dims if d not in scattered),
        tuple(updates.shape[from_window[d]] if d in from_window else 1 for d in dims),
        from_window,
        batch,
        owned_batch,
        (*free, *(from_window[d] for d in scattered if d in from_window)),
    )


def build_scatter(group: Group, caps: DeviceCaps) -> KernelCall:
    """Kernel of a group whose anchor and only output is a scatter."""
    node = group.anchor
    assert node is not None and node.op == "scatter" and group.outputs == [node]
    return _ScatterKernel(group, caps, node).build()


class _ScatterKernel:
    def __init__(self, group: Group, caps: DeviceCaps, node: Node) -> None:
        self.writer, self.caps, self.node = Writer(group, caps), caps, node
        self.b, self.p = self.writer.b, self.writer.p
        self.operand, self.indices, self.updates = node.args
        self.spec: Scatter = node.attr
        self.places = geometry(node)
        self.scattered_shape = [node.shape[d] for d in self.places.scattered]
        self.owned_shape = [node.shape[d] for d in self.places.owned]

    def build(self) -> KernelCall:
        writer, b, p = self.writer, self.b, self.p
        positions, owners = prod(self.scattered_shape), prod(self.owned_shape)
        self.share = -(-positions // max(1, LANES.get(self.caps.kind, MANY) // owners))
        self.ranges = -(-positions // self.share)
        lanes = self.ranges * owners
        local = local_size(lanes, self.caps)
        grid, number, surplus = writer.groups(-(-lanes // local))
        self.buffer = writer.parameter(self.node, "rw")
        mine = number * local + writer.lane(local)
        exists = None
        if mine.hi >= lanes or surplus is not None:  # surplus lanes go along, so that exchanges stay well defined
            value = p.index(mine)
            exists = b.op("lt", value, b.i32(lanes))
            mine = counter("i", lanes, b.op("min", value, b.i32(lanes - 1)))
        number, place = unflatten(mine, (self.ranges, owners))
        self.place = dict(zip(self.places.owned, unflatten(place, self.owned_shape), strict=True))
        self.first = number * self.share
        with _when(b, exists):
            self._copy()
        places = self.places
        reached = narrow(Cond(at, 0, places.windows[d]) for d, at in self.place.items() if d not in places.owned_batch)
        if reached is not None:
            inside = p.guard(reached)
            self.active = exists if inside is None else inside if exists is None else b.op("and", exists, inside)
            self._walk()
        return writer.finish(local, grid)

    def _copy(self) -> None:
        """Start from the operand."""
        b, positions = self.b, prod(self.scattered_shape)

        def element(at: Index) -> None:
            where = self._position(unflatten(at, self.scattered_shape))
            self.writer.store([(self.node, flatten(where, self.node.shape), self.p.value(self.operand, where))])

        if self.share == 1:
            element(self.first)
            return
        with b.loop(0, self.share) as loop:
            at = self.first + counter("e", self.share, loop.index)
            if at.hi < positions:
                element(at)
            else:
                value = self.p.index(at)
                with b.branch(b.op("lt", value, b.i32(positions))):
                    element(counter("e", positions, value))

    def _position(self, scattered: tuple[Index, ...]) -> tuple[Index, ...]:
        """Index of the result from the positions along the scattered dimensions."""
        along = dict(zip(self.places.scattered, scattered, strict=True))
        return tuple(along[d] if d in along else self.place[d] for d in range(len(self.node.shape)))

    # -- updates -------------------------------------------------------------------------------------------------
    def _walk(self) -> None:
        """Go through the updates in order. Where all lanes see the same ones, each lane looks up another of them."""
        b, p, width = self.b, self.p, self.caps.subgroup_size
        shape = [self.updates.shape[d] for d in self.places.walked]
        count = prod(shape)
        together = self.caps.subgroup_ops and not self.places.owned_batch and self.updates not in self.writer.group.members
        if not together or count < width:
            if count:
                with b.loop(0, count) as loop:
                    walked = unflatten(counter("t", count, loop.index), shape)
                    self._apply(self._target(walked), walked)
            return

        def several(first: Index, number: int) -> None:
            lane = self.writer.lane(width)
            if number < width:
                lane = counter("lane", number, b.op("min", p.index(lane), b.i32(number - 1)))
            target = self._target(unflatten(first + lane, shape))
            for u in range(number):
                self._apply(b.op("broadcast", target, attr=u), unflatten(first + u, shape))

        with b.loop(0, count // width) as loop:
            several(counter("t", count // width, loop.index) * width, width)
        if count % width:
            several(constant(count // width * width), count % width)

    def _target(self, walked: tuple[Index, ...]) -> Value:
        """Row-major position along the scattered dimensions that an update changes; out of range where it is dropped."""
        b, p, places, spec = self.b, self.p, self.places, self.spec
        at = self._in_updates(walked)
        target, conds = [], []
        for d in places.scattered:
            top = self.node.shape[d] - places.windows[d]
            where = (*(at[i] for i in places.batch), constant(spec.scatter_map.index(d)))
            start = p.start(self.indices, where, (), 0, top, clamp=spec.mode == "clip")
            if spec.mode == "drop" and (len(places.scattered) > 1 or places.windows[d] > 1):
                conds.append(Cond(start, 0, top + 1))  # else the range of the lane is test enough
            target.append(start + at[places.from_window[d]] if d in places.from_window else start)
        position = p.index(flatten(target, self.scattered_shape))
        for cond in conds:
            position = b.op("select", p.condition(cond), position, b.i32(-1))
        return position

    def _in_updates(self, walked: tuple[Index, ...]) -> tuple[Index, ...]:
        """Index into the updates."""
        places = self.places
        at = dict(zip(places.walked, walked, strict=True))
        for d, i in places.owned_batch.items():
            at[places.batch[i]] = self.place[d]
        for d, window in places.from_window.items():
            if d not in places.scattered:
                at[window] = self._inside_window(d)
        return tuple(at[d] for d in range(len(self.updates.shape)))

    def _apply(self, target: Value, walked: tuple[Index, ...]) -> None:
        """Apply an update where its target is in this lane's range."""
        b, p = self.b, self.p
        hit = self._in_range(target)
        with b.branch(hit if self.active is None else b.op("and", hit, self.active)):
            position = counter("target", prod(self.scattered_shape), target)
            flat = p.index(flatten(self._position(unflatten(position, self.scattered_shape)), self.node.shape))
            b.store(self.buffer, flat, self._combine(flat, p.value(self.updates, self._in_updates(walked))))

    def _inside_window(self, d: int) -> Index:
        """This lane's position along an owned dimension, in the bounds of the window (beyond it no update is applied)."""
        at, size = self.place[d], self.places.windows[d]
        return at if at.hi < size else counter("w", size, self.p.index(at)) if size > 1 else ZERO

    def _in_range(self, value: Value) -> Value:
        b = self.b
        offset = b.op("sub", value, self.p.index(self.first))
        last = min(self.share, prod(self.scattered_shape))
        inside = b.op("lt", b.op("bitcast", offset, attr="u32"), b.const(last, "u32"))
        if self.first.hi + last > prod(self.scattered_shape):
            inside = b.op("and", inside, b.op("lt", value, b.i32(prod(self.scattered_shape))))
        return inside

    def _combine(self, flat: Value, update: Value) -> Value:
        kind, dtype = self.spec.kind, self.node.dtype
        if kind == "set":
            return update
        primitive = ON_BOOL[kind] if dtype == "bool" else PRIMITIVES[kind]
        current = self.b.load(self.buffer, flat)
        return scalar.apply(self.b, primitive, (current, update), {}, (dtype, dtype), dtype)


def _when(b: Builder, condition: Value | None) -> AbstractContextManager[Any]:
    return nullcontext() if condition is None else b.branch(condition)
