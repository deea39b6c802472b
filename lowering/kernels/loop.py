"""A whole scan as one kernel: its independent slices side by side, its turns one after another in each.

Either each lane takes a slice of its own, and no barrier is needed; or, where slices are few and large, a workgroup
takes a slice, and its lanes share out the elements of each phase with a barrier after it. Carried values of one
element stay in registers, others in workgroup memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from ...runtime.caps import DeviceCaps
from ..cost import DISPATCH
from ..dtypes import DTYPES, width
from ..graph import Loop, Node
from ..groups import Group
from ..index import ZERO, Index, constant, counter, flatten, symbol, unflatten
from ..limits import limits
from ..phases import Phase, Turn, plan_turn
from ..pull import Guard, Position, Puller
from ..sharing import Tile
from ..tile import Value
from ..traits import constant_array
from .loop_dot import SharedDot, join, rows_of, split
from .writer import KernelCall, Writer, local_size, when

LANES = {"cpu": 16}  # lanes that run at once; other kinds of device: MANY
MANY = 1 << 15
SAVED = {"cpu": DISPATCH // 16}  # operations of a lane that take as long as a dispatch; others: MORE
MORE = 1 << 13
WORTH = 0.9  # part of the time of dispatched turns below which a kernel of its own is worth compiling
TOGETHER = 256  # lanes of a workgroup that share a slice, at most
UNROLLED = 64  # instructions of a turn that is worth writing out several times


@dataclass(frozen=True)
class Layout:
    """How lanes share the work.

    Attributes:
        lanes: of a workgroup.
        together: a workgroup takes one slice; else each lane takes one.
    """

    lanes: int
    together: bool


def layout_of(turn: Turn, caps: DeviceCaps) -> Layout | str:
    """The cheaper layout, or why the scan should be dispatched turn by turn."""
    bounds = limits(caps)
    if turn.weight > bounds.weight:
        return f"a turn takes {turn.weight} instructions, and a kernel holds {bounds.weight}"
    if turn.depth > bounds.depth:
        return f"a turn has a chain of {turn.depth} nodes, and a kernel holds {bounds.depth}"
    count, everyone = turn.slices.count, LANES.get(caps.kind, MANY)
    sharing = lanes_of_slice(turn, caps)
    apart = Layout(_neighbours(turn, local_size(count, caps), caps), together=False)
    while apart.lanes > caps.subgroup_size and shared_bytes(turn, apart) > caps.shared_bytes:
        apart = Layout(apart.lanes // 2, together=False)
    together = Layout(sharing, together=True)
    best: tuple[float, Layout] | None = None
    for layout, lanes in ((apart, count), (together, count * min(sharing, turn.elements))):
        work = turn.tiled if layout is apart else turn.untiled
        time = work * count / min(lanes, everyone)
        if shared_bytes(turn, layout) <= caps.shared_bytes and (best is None or time < best[0]):
            best = time, layout
    if best is None:
        return f"a slice of its state takes {shared_bytes(turn, together)} bytes, and a workgroup has {caps.shared_bytes}"
    dispatched = turn.dispatched * count / everyone + SAVED.get(caps.kind, MORE) * max(1, turn.kernels)
    if best[0] > WORTH * dispatched:
        return (
            f"with {count} independent slices of {turn.elements} elements a turn takes a lane {best[0]:.0f} operations, and "
            f"{dispatched:.0f} when dispatched"
        )
    return best[1]


def _neighbours(turn: Turn, lanes: int, caps: DeviceCaps) -> int:
    """Lanes of a workgroup, so that contractions find their shared operand the same in all of them where that can be."""
    if turn.slices.sizes and any(not tile.everywhere for tile in turn.tiles.values()):
        while lanes > caps.subgroup_size and turn.slices.sizes[-1] % lanes:
            lanes //= 2
    return lanes


def lanes_of_slice(turn: Turn, caps: DeviceCaps) -> int:
    """Lanes of a workgroup that shares a slice."""
    lanes, most = caps.subgroup_size, min(TOGETHER, caps.max_local_size)
    while caps.kind != "cpu" and lanes < turn.elements and lanes * 2 <= most:
        lanes *= 2
    return lanes


def shared_bytes(turn: Turn, layout: Layout) -> int:
    """Workgroup memory of a layout."""

    def nbytes(node: Node) -> int:
        return turn.count(node) * width(DTYPES[node.dtype].compute) // 8

    states = sum(nbytes(n) * (1 if n in turn.in_place else 2) for n in turn.states if turn.count(n) > 1)
    after = turn.spec.body.outputs[: turn.spec.carries]
    kept = sum(nbytes(n) for n in turn.stored if n not in after)
    return (states + kept) * (1 if layout.together else layout.lanes)


def build_loop(group: Group, caps: DeviceCaps) -> KernelCall:
    """Kernel of a group whose anchor is a scan; its outputs are the scan's picks."""
    node = group.anchor
    assert node is not None and node.op == "loop"
    turn = plan_turn(node.attr, limits(caps))
    layout = layout_of(turn, caps)
    assert isinstance(layout, Layout), layout
    return build_laid_out(group, caps, turn, layout)


def build_laid_out(group: Group, caps: DeviceCaps, turn: Turn, layout: Layout) -> KernelCall:
    """As `build_loop`, with a given layout."""
    return _LoopKernel(group, caps, turn, layout).build()


@dataclass(frozen=True)
class _Array:
    """A value of several elements in workgroup memory, from element `offset` on."""

    number: int
    offset: Value


Home = Value | _Array  # where a kept value is: a register or workgroup memory
State = dict[Node, Home]
Visit = Callable[[Position], None]


class _LoopKernel:
    def __init__(self, group: Group, caps: DeviceCaps, turn: Turn, layout: Layout) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.turn, self.layout = group, caps, turn, layout
        self.writer = Writer(group, caps)
        self.b, self.p, self.limits = self.writer.b, self.writer.p, self.writer.limits
        self.p.read = self.read
        self.spec: Loop = turn.spec
        self.body = self.spec.body
        self.inside = set(self.body.nodes)
        arguments, first = group.anchor.args, self.spec.consts + self.spec.carries
        self.outer = dict(zip(self.body.inputs, arguments, strict=True))  # what stands behind each input of the body
        self.stacked = set(self.body.inputs[first:])
        self.after = dict(zip(turn.states, self.body.outputs, strict=False))
        picks = {n.attr: n for n in group.outputs}
        self.finals = {s: picks[i] for i, s in enumerate(turn.states) if i in picks}
        self.stacks: dict[Node, list[Node]] = {}
        for i, y in enumerate(self.body.outputs):
            if i >= self.spec.carries and i in picks:
                self.stacks.setdefault(y, []).append(picks[i])
        self.single = [s for s in turn.states if turn.count(s) == 1]
        self.spread = [s for s in turn.states if turn.count(s) > 1]
        self.arrays: dict[Node, int] = {}
        self.stored: dict[Node, dict[Index, int]] = {}  # where results are stored first, after how many loads

    def read(self, node: Node) -> int | None:
        """The body is computed; arguments are in buffers, but those of equal elements are written out."""
        if node in self.inside and (node.op != "const" or node.size == 1):
            return None
        if node.op == "broadcast" and constant_array(node) is not None:
            return None
        return self.writer._read(node)

    # -- the kernel ----------------------------------------------------------------------------------------------------
    def build(self) -> KernelCall:
        b = self.b
        grid = self._slice()
        state: State = {s: self._initial(s) for s in self.single}
        for s in self.spread:
            self.arrays[s] = self._array(s, 1 if s in self.turn.in_place else 2)
            self._each(self.turn.slices.local(s), partial(self._keep_initial, s))
        for node in self.turn.stored - set(self.after.values()):
            self.arrays[node] = self._array(node, 1)
        self.initial = len(self.p.loads)  # loads before the first turn
        self._barrier()
        length, copies = self.spec.length, self._copies()
        whole = length // copies
        with b.loop(0, whole, 1, [self._register(state[s]) for s in self.single]) as loop:
            state = dict(zip(self.single, loop.carry, strict=True))
            for i in range(copies):
                state = self._turn(counter("t", whole, loop.index) * copies + i, state)
            loop.yield_(*(self._register(state[s]) for s in self.single))
        state = dict(zip(self.single, loop.results, strict=True))
        for t in range(whole * copies, length):
            state = self._turn(constant(t), state)
        self._finish(state)
        return self._call(grid)

    def _copies(self) -> int:
        """Turns that are written out in the body of the kernel's loop: short ones, to spend less time on the loop itself."""
        if self.turn.elements > 1 or self.turn.weight > UNROLLED:
            return 1
        return min(self.limits.stride, self.spec.length)

    def _slice(self) -> tuple[int, int, int]:
        """Find the workgroup's or the lane's slice; returns the grid."""
        b, p, writer, layout = self.b, self.p, self.writer, self.layout
        count = self.turn.slices.count
        lanes = layout.lanes
        grid, number, surplus = writer.groups(count if layout.together else -(-count // lanes))
        self.lane = writer.lane(lanes)
        self.valid = surplus
        if not layout.together:
            number = number * lanes + self.lane
            if number.hi >= count:
                self.valid = b.op("lt", p.index(number), b.i32(count))
        if self.valid is not None:  # those beyond the last slice repeat it without storing
            number = counter("s", count, b.op("min", p.index(number), b.i32(count - 1)))
        self.axes = unflatten(number, self.turn.slices.sizes)
        return grid

    def _call(self, grid: tuple[int, int, int]) -> KernelCall:
        call = self.writer.finish(self.layout.lanes, grid)
        shown = [n for n in self.body.nodes if n.op != "input"]
        operations = tuple(sorted({n.attr.primitive if n.op == "map" else n.op for n in shown}))
        source = tuple(dict.fromkeys(n.source for n in shown if n.source))
        kernel = replace(call.kernel, operations=operations, source=source)
        return replace(call, kernel=kernel, inplace=self._inplace())

    def _inplace(self) -> frozenset[tuple[Node, Node]]:
        """Arguments that results may overwrite: what a slice reads for the last time before it alone stores there."""
        if self.valid is not None:
            return frozenset()
        pairs: set[tuple[Node, Node]] = set()
        alone = [(node, pick) for node, pick in self._picks() if not self.turn.slices.missing(node)]
        sooner, later = ({n for n, _ in loads} for loads in (self.p.loads[: self.initial], self.p.loads[self.initial :]))
        for node, pick in alone:
            first = self.outer.get(node)
            states = [s for s in self.turn.states if self.outer[s] is first]
            if states == [node] and first in sooner - later and self.finals.get(node) is pick:
                pairs.add((first, pick))
        if self.layout.together:
            return frozenset(pairs)
        last: dict[Node, dict[Index, int]] = {}
        for number, (node, flat) in enumerate(self.p.loads):
            last.setdefault(node, {})[flat] = number
        for _, pick in alone:
            stored = self.stored[pick]
            for node, at in last.items():
                if node.size == pick.size and at.keys() == stored.keys() and all(at[i] < stored[i] for i in at):
                    pairs.add((node, pick))
        return frozenset(pairs)

    def _picks(self) -> list[tuple[Node, Node]]:
        """(node of the body, result of the scan) for all that is stored."""
        return [*self.finals.items(), *((y, pick) for y, picks in self.stacks.items() for pick in picks)]

    # -- places --------------------------------------------------------------------------------------------------------
    def _array(self, node: Node, copies: int) -> int:
        size = self.turn.count(node) * copies * (1 if self.layout.together else self.layout.lanes)
        return self.b.shared(f"kept{node.number}", DTYPES[node.dtype].compute, size)

    def _element(self, node: Node, local: Position) -> Value:
        """Number of an element of a node's part in a slice."""
        return self.p.index(flatten(local, self.turn.slices.local(node)))

    def cell(self, element: Value, offset: Value) -> Value:
        """Where an element of this slice lies in its array; both arguments count elements of a slice."""
        b = self.b
        place = b.op("add", element, offset)
        if self.layout.together:
            return place
        return b.op("add", b.op("mul", place, b.i32(self.layout.lanes)), self.p.index(self.lane))

    def _keep_initial(self, state: Node, local: Position) -> None:
        cell = self.cell(self._element(state, local), self.b.i32(0))
        self.b.shared_store(self.arrays[state], cell, self._initial(state, local))

    def _half(self, state: Node, t: Index) -> Value:
        """Where the value of a state before turn `t` is: values before and after a turn take turns in its array."""
        b = self.b
        if state in self.turn.in_place:
            return b.i32(0)
        return b.op("mul", b.op("and", self.p.index(t), b.i32(1)), b.i32(self.turn.count(state)))

    def _initial(self, state: Node, local: Position = ()) -> Value:
        local = local or (ZERO,) * len(self.turn.slices.local(state))
        return self.p.value(self.outer[state], self.turn.position(state, self.axes, local))

    @staticmethod
    def _register(home: Home) -> Value:
        assert isinstance(home, Value)
        return home

    # -- loops over elements -------------------------------------------------------------------------------------------
    def _each(self, shape: tuple[int, ...], visit: Visit, weight: int = 1) -> None:
        """Visit all elements of a slice: by this lane alone, or this lane's share of them; `weight` is that of a visit."""
        b, size = self.b, prod(shape)
        if not self.layout.together:
            step = self.limits.stride if size % self.limits.stride == 0 and weight < UNROLLED else 1
            with b.loop(0, size, step) as loop:
                first = symbol("e", 0, size - step, loop.index) if size > step else ZERO
                for i in range(step):
                    visit(unflatten(first + i, shape))
            return
        turns = -(-size // self.layout.lanes)
        with b.loop(0, turns) as loop:
            element = counter("e", turns, loop.index) * self.layout.lanes + self.lane
            if element.hi < size:
                visit(unflatten(element, shape))
            else:
                value = self.p.index(element)
                with b.branch(b.op("lt", value, b.i32(size))):
                    visit(unflatten(counter("e", size, value), shape))

    def _barrier(self) -> None:
        if self.layout.together:
            self.b.barrier()

    # -- one turn ------------------------------------------------------------------------------------------------------
    def _turn(self, t: Index, state: State) -> State:
        time = t * -1 + (self.spec.length - 1) if self.spec.reverse else t
        homes: State = dict(state)
        for s in self.spread:
            homes[s] = _Array(self.arrays[s], self._half(s, t))
        nexts = {self.after[s]: _Array(self.arrays[s], self._half(s, t + 1)) for s in self.spread}
        kept = nexts | {n: _Array(self.arrays[n], self.b.i32(0)) for n in self.turn.stored if n not in nexts}
        puller = _TurnPuller(self, time, homes)
        for phase in self.turn.phases:
            self._phase(puller, phase, time, kept)
            homes |= {n: kept[n] for n in phase.nodes if n in kept}
        return {s: homes[self.after[s]] for s in self.single}

    def _phase(self, puller: _TurnPuller, phase: Phase, time: Index, kept: dict[Node, _Array]) -> None:
        homes, turn = puller.homes, self.turn
        lines = [n for n in phase.nodes if self._in_line(n, phase)]

        def visit(local: Position) -> None:
            for node in lines:
                at = turn.position(node, self.axes, local)
                (value,) = self._dot(puller, node, turn.lines[node], partial(_constantly, at)).rows(ZERO, 1)
                puller.fix(node, flatten(at, node.shape), value)
            values = []
            for node in phase.nodes:
                at = turn.position(node, self.axes, local)
                value = puller.value(node, at)
                puller.fix(node, flatten(at, node.shape), value)
                values.append((node, at, value))
                if phase.size == 1:
                    homes[node] = value
            for node, _, value in values:
                home = kept.get(node)
                if home is not None:
                    self.b.shared_store(home.number, self.cell(self._element(node, local), home.offset), value)
            stacks = [(n, at, v, pick) for n, at, v in values for pick in self.stacks.get(n, ())]
            self._store([(n, flatten((time, *at), pick.shape), v, pick) for n, at, v, pick in stacks])

        tiles = [n for n in phase.nodes if self._same_in_lanes(n)]
        if tiles:
            return self._tiled(puller, phase, tiles, visit)
        if phase.size > 1:
            self._each(phase.shape, visit, phase.weight)
            return self._barrier()
        before = puller.shared_loads
        visit((ZERO,) * len(phase.shape))
        if puller.shared_loads > before:  # all lanes computed the same, and what they read may be overwritten next
            self._barrier()

    def _dot(self, puller: _TurnPuller, node: Node, tile: Tile, at: Callable[[Index], Position]) -> SharedDot:
        return SharedDot(puller, self.caps, node, tile, at, self.writer.lane(self.caps.subgroup_size))

    def _in_line(self, node: Node, phase: Phase) -> bool:
        """Whether all lanes of a subgroup are at elements that share an operand of a contraction."""
        if not self.layout.together or node not in self.turn.lines or not self.caps.subgroup_ops:
            return False
        return phase.size % self.layout.lanes == 0 and phase.shape[-1] % self.caps.subgroup_size == 0

    def _same_in_lanes(self, node: Node) -> bool:
        """Whether all lanes of a workgroup are at slices that share an operand of a contraction."""
        tile = self.turn.tiles.get(node)
        if tile is None or self.layout.together:
            return False
        return tile.everywhere or self.turn.slices.sizes[-1] % self.layout.lanes == 0

    def _tiled(self, puller: _TurnPuller, phase: Phase, tiles: list[Node], visit: Visit) -> None:
        """A phase with contractions whose operands lanes share: several elements at once along the shared operand's rows."""
        b, turn = self.b, self.turn
        rows = turn.tiles[tiles[0]].rows
        own, others = split(phase.shape, rows)
        most = self.limits.products // (2 * self.limits.step * len(turn.tiles))  # a bound that the kernel's tiles share
        most = max(1, min(most, self.limits.weight // (4 * max(1, phase.weight))))
        count = prod(own)
        together = rows_of(count, most)

        def block(first: Index, size: int, other: Index) -> None:
            def local(row: Index) -> Position:
                return join(unflatten(row, own), unflatten(other, others), rows)

            for node in tiles:
                if turn.tiles[node].rows != rows:
                    continue

                def at(row: Index, node: Node = node) -> Position:
                    return turn.position(node, self.axes, local(row))

                values = self._dot(puller, node, turn.tiles[node], at).rows(first, size)
                for i, value in enumerate(values):
                    puller.fix(node, flatten(at(first + i), node.shape), value)
            for i in range(size):
                visit(local(first + i))

        def blocks(other: Index) -> None:
            whole = count // together
            if whole == 1:
                block(ZERO, together, other)
            else:
                with b.loop(0, whole) as loop:
                    block(counter("r", whole, loop.index) * together, together, other)
            if count % together:
                block(constant(whole * together), count % together, other)

        if prod(others) == 1:
            return blocks(ZERO)
        with b.loop(0, prod(others)) as loop:
            blocks(counter("c", prod(others), loop.index))

    # -- results -------------------------------------------------------------------------------------------------------
    def _store(self, results: Sequence[tuple[Node, Index, Value, Node]]) -> None:
        """Store (node, position, value) into picks, once for slices that hold the same."""
        for node in dict.fromkeys(n for n, *_ in results):
            for _, flat, _, pick in (r for r in results if r[0] is node):
                self.stored.setdefault(pick, {}).setdefault(flat, len(self.p.loads))
            with when(self.b, self._mine(node)):
                self.writer.store([(pick, flat, value) for n, flat, value, pick in results if n is node])

    def _mine(self, node: Node) -> Value | None:
        """Whether this lane is the one that stores a node's elements."""
        b, conditions = self.b, [] if self.valid is None else [self.valid]
        alone = [self.axes[a] for a in self.turn.slices.missing(node)]
        if self.layout.together and self.turn.count(node) == 1:
            alone.append(self.lane)
        conditions += [b.op("eq", self.p.index(i), b.i32(0)) for i in alone if i.hi > 0]
        out: Value | None = None
        for condition in conditions:
            out = condition if out is None else b.op("and", out, condition)
        return out

    def _finish(self, state: State) -> None:
        """Store the final values that somebody wants."""
        b, turn = self.b, self.turn
        for s, pick in self.finals.items():

            def put(local: Position, s: Node = s, pick: Node = pick) -> None:
                at = turn.position(s, self.axes, local)
                if s in state:
                    value = self._register(state[s])
                else:
                    last = self._half(s, constant(self.spec.length))
                    value = b.shared_load(self.arrays[s], self.cell(self._element(s, local), last))
                self._store([(s, flatten(at, pick.shape), value, pick)])

            shape = turn.slices.local(s)
            if s in state:
                put((ZERO,) * len(shape))
            else:
                self._each(shape, put)


def _constantly(at: Position, _row: Index) -> Position:
    return at


class _TurnPuller(Puller):
    """Evaluates nodes of the body in one turn: inputs are arguments, or kept values in their homes."""

    def __init__(self, kernel: _LoopKernel, time: Index, homes: State) -> None:
        super().__init__(kernel.b, kernel.read, kernel.limits)
        self.kernel, self.time, self.homes = kernel, time, homes
        self.loads = kernel.p.loads
        self.shared_loads = 0

    def value(self, node: Node, at: Position, guard: Guard = ()) -> Value:
        home, kernel = self.homes.get(node), self.kernel
        if isinstance(home, Value):
            return home
        if home is not None:
            return self._kept(node, home, at, guard)
        if node in kernel.outer:
            outer = kernel.outer[node]
            return super().value(outer, (self.time, *at) if node in kernel.stacked else at, guard)
        return super().value(node, at, guard)

    def _kept(self, node: Node, home: _Array, at: Position, guard: Guard) -> Value:
        key = (node, at, guard)
        found = self._values.get(key)
        if found is not None and self._visible(found):
            return found
        turn, b = self.kernel.turn, self.b
        element = flatten(turn.within(node, at), turn.slices.local(node))
        index = self.index(element)
        if element.lo < 0 or element.hi >= turn.count(node):
            inside = self.guard(guard)
            index = b.op("select", inside, index, b.i32(0)) if inside is not None else index
        self.shared_loads += 1
        found = self._values[key] = b.shared_load(home.number, self.kernel.cell(index, home.offset))
        return found
