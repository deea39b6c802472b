"""Running sums, products, extremes and log-sum-exps along an axis.

With rows enough for all lanes, a lane goes along a row. Otherwise a workgroup shares a row: each lane folds a chunk of
it, a scan over the lanes gives each lane what came before its chunk, and a second pass over the chunk stores.
"""

from __future__ import annotations

from ...runtime.caps import DeviceCaps
from .. import scalar
from ..combine import Combiner, State, simple
from ..dtypes import DTYPES
from ..dtypes import width as bits
from ..graph import Cumulative, Node
from ..groups import Group
from ..index import Index, counter, flatten, unflatten
from ..tile import Builder, Value
from .writer import KernelCall, Writer, local_size

SHORT = 32  # elements that are not worth sharing among lanes
ROWS = {"cpu": 64}  # rows that keep the device busy with a lane each; other kinds of device: MANY
MANY = 4096
CHUNK = 8  # least elements a lane where a workgroup shares a row


def build_cumulative(group: Group, caps: DeviceCaps) -> KernelCall:
    """Kernel of a group whose anchor is a cumulative node; outputs have its elements in the same row-major order."""
    node = group.anchor
    assert node is not None and node.op == "cumulative"
    kernel = _CumulativeKernel(group, caps, node)
    if kernel.count <= SHORT or kernel.rows >= ROWS.get(caps.kind, MANY):
        return kernel.serial()
    return kernel.shared()


def combiner_of(node: Node) -> Combiner:
    """Combiner of a cumulative node."""
    return _log_sum_exp(node.dtype) if node.attr.kind == "logsumexp" else simple(node.attr.kind, node.dtype)


def _log_sum_exp(dtype: str) -> Combiner:
    """(largest, sum of exponentials relative to it)."""
    compute = DTYPES[dtype].compute

    def unary(b: Builder, primitive: str, value: Value) -> Value:
        return scalar.apply(b, primitive, (value,), {"accuracy": None}, (compute,), compute)

    def merge(b: Builder, first: State, second: State) -> State:
        top = b.op("max", first[0], second[0])

        def scaled(state: State) -> Value:
            same = b.op("eq", state[0], top)  # also where both are infinite, whose difference is NaN
            delta = b.op("select", same, b.const(0.0, compute), b.op("sub", state[0], top))
            return b.op("mul", state[1], unary(b, "exp", delta))

        return top, b.op("add", scaled(first), scaled(second))

    def finish(b: Builder, state: State) -> Value:
        total = b.op("add", state[0], unary(b, "log", state[1]))
        return scalar.apply(b, "copy", (total,), {}, (compute,), dtype)

    return Combiner(
        (compute, compute),
        lambda p: (p.b.const(float("-inf"), compute), p.b.const(0.0, compute)),
        lambda b, state, element, _: merge(b, state, (element[0], b.const(1.0, compute))),
        merge,
        finish,
    )


class _CumulativeKernel:
    def __init__(self, group: Group, caps: DeviceCaps, node: Node) -> None:
        self.group, self.caps, self.node = group, caps, node
        self.writer = Writer(group, caps)
        self.b, self.p = self.writer.b, self.writer.p
        self.spec: Cumulative = node.attr
        self.count = node.shape[self.spec.axis]
        self.rows = node.size // self.count
        self.kept = [s for d, s in enumerate(node.shape) if d != self.spec.axis]
        self.combiner = combiner_of(node)

    def serial(self) -> KernelCall:
        """A lane a row."""
        b, p, writer = self.b, self.p, self.writer
        local = local_size(self.rows, self.caps)
        grid, number, surplus = writer.groups(-(-self.rows // local))
        row = number * local + writer.lane(local)
        if row.hi < self.rows and surplus is None:
            self._pass(row, self.combiner.identity(p), self.count)
        else:
            value = p.index(row)
            with b.branch(b.op("lt", value, b.i32(self.rows))):
                self._pass(counter("row", self.rows, value), self.combiner.identity(p), self.count)
        return writer.finish(local, grid)

    def _pass(self, row: Index, state: State, count: int) -> None:
        """Go along a whole row and store it."""
        stride = self.writer.limits.stride
        step = stride if count % stride == 0 else 1
        with self.b.loop(0, count // step, 1, state) as loop:
            turn = counter("t", count // step, loop.index)
            state = loop.carry
            for i in range(step):
                state = self._step(row, turn * step + i, state)
                self._store(row, turn * step + i, state)
            loop.yield_(*state)

    def _at(self, row: Index, column: Index) -> tuple[Index, ...]:
        axis = self.spec.axis
        kept = unflatten(row, self.kept)
        along = column * -1 + (self.count - 1) if self.spec.reverse else column
        return (*kept[:axis], along, *kept[axis:])

    def _step(self, row: Index, column: Index, state: State) -> State:
        element = self.p.value(self.node.args[0], self._at(row, column))
        return self.combiner.step(self.b, state, (element,), self.b.i32(0))

    def _store(self, row: Index, column: Index, state: State) -> None:
        flat = flatten(self._at(row, column), self.node.shape)
        self.p.fix(self.node, flat, self.combiner.finish(self.b, state))
        self.writer.store([(o, flat, self.p.value(o, unflatten(flat, o.shape))) for o in self.group.outputs])

    # -- a workgroup a row -----------------------------------------------------------------------------------------
    def shared(self) -> KernelCall:
        """A workgroup a row, a chunk of it for each lane."""
        b, p, writer, width = self.b, self.p, self.writer, self.caps.subgroup_size
        state_bytes = 2 * sum(bits(t) // 8 for t in self.combiner.types)
        most = min(self.caps.max_local_size, self.caps.shared_bytes // state_bytes, 1024)
        lanes = width
        while lanes * 2 <= most and lanes * CHUNK < self.count:
            lanes *= 2
        chunk = -(-self.count // lanes)
        grid, number, surplus = writer.groups(self.rows)
        lane = writer.lane(lanes)
        row = number if surplus is None else counter("row", self.rows, b.op("min", p.index(number), b.i32(self.rows - 1)))
        first = lane * chunk

        def inside(turn: Index) -> tuple[Index, Value | None]:
            column = first + turn
            if column.hi < self.count:
                return column, None
            value = p.index(column)
            bounded = b.op("min", value, b.i32(self.count - 1))
            return counter("c", self.count, bounded), b.op("lt", value, b.i32(self.count))

        with b.loop(0, chunk, 1, self.combiner.identity(p)) as loop:
            column, ok = inside(counter("t", chunk, loop.index))
            folded = self._step(row, column, loop.carry)
            if ok is not None:
                folded = tuple(b.op("select", ok, new, old) for new, old in zip(folded, loop.carry, strict=True))
            loop.yield_(*folded)
        before = self._before(lanes, p.index(lane), loop.results)
        with b.loop(0, chunk, 1, before) as loop:
            column, ok = inside(counter("t", chunk, loop.index))
            state = self._step(row, column, loop.carry)
            if surplus is not None:
                ok = surplus if ok is None else b.op("and", ok, surplus)
            if ok is None:
                self._store(row, column, state)
            else:
                with b.branch(ok):
                    self._store(row, column, state)
            loop.yield_(*state)
        return writer.finish(lanes, grid)

    def _before(self, lanes: int, lane: Value, state: State) -> State:
        """The fold of all earlier lanes' states: a scan by doubling distances, between two sets of shared arrays."""
        b, types = self.b, self.combiner.types
        sets = [[b.shared(f"scan{i}_{j}", t, lanes) for j, t in enumerate(types)] for i in range(2)]

        def earlier(arrays: list[int], distance: int) -> tuple[Value, State]:
            exists = b.op("le", b.i32(distance), lane)
            index = b.op("select", exists, b.op("sub", lane, b.i32(distance)), b.i32(0))
            return exists, tuple(b.shared_load(a, index) for a in arrays)

        distance, turn = 1, 0
        while True:
            arrays = sets[turn % 2]
            for array, value in zip(arrays, state, strict=True):
                b.shared_store(array, lane, value)
            b.barrier()
            if distance >= lanes:
                break
            exists, other = earlier(arrays, distance)
            merged = self.combiner.merge(b, other, state)
            state = tuple(b.op("select", exists, new, old) for new, old in zip(merged, state, strict=True))
            distance, turn = distance * 2, turn + 1
        exists, other = earlier(arrays, 1)
        identity = self.combiner.identity(self.p)
        return tuple(b.op("select", exists, found, none) for found, none in zip(other, identity, strict=True))
