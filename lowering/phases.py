"""What a turn of a loop kernel does: which values of a slice it keeps, and in which order it computes them.

A value that is carried, stacked, folded, or read more often than it pays to compute again is *kept*: all its elements in
the slice are computed once a turn, into a register where there is one of them and into workgroup memory otherwise. All
else is computed where it is read. Kept values of one shape that read each other element by element make one *phase*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from .cost import LOAD, STORE, Weights
from .demand import Demands
from .graph import Graph, Loop, Map, Node, fold_length
from .index import Index, counter, unflatten
from .limits import Limits
from .pull import Position, dot_position
from .sharing import Tile, shared_by_elements, shared_by_slices, symbols_of
from .slices import Slices, find_slices, state_dependent
from .traits import FREE

EPILOGUE = 12  # instructions of an element that join a contraction
TILED = 1.5  # operations a product takes where lanes share loads


@dataclass(eq=False)
class Phase:
    """Kept nodes that are computed together, element by element; `shape` is that of each within a slice.

    `weight` counts the instructions of an element.
    """

    nodes: list[Node]
    shape: tuple[int, ...]
    weight: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(eq=False)
class Turn:
    """A turn of a scan, slice by slice.

    Attributes:
        spec: the scan; outputs of its body are distinct, and none is an input.
        slices: its independent slices.
        phases: what to compute, in order.
        stored: kept nodes of several elements that later phases read.
        in_place: carried inputs whose next value may overwrite them element by element.
        tiles: contractions one of whose operands is the same in neighbouring slices.
        lines: contractions one of whose operands is the same for neighbouring elements of a slice.
        weight: instructions of the code.
        tiled, untiled: lane operations of a slice, where lanes have a slice each, and where they share one.
        dispatched: the same where kernels of their own compute it.
        kernels: how many those would be.
        depth: longest chain of nodes computed where they are read.
    """

    spec: Loop
    slices: Slices
    phases: list[Phase] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    in_place: set[Node] = field(default_factory=set)
    tiles: dict[Node, Tile] = field(default_factory=dict)
    lines: dict[Node, Tile] = field(default_factory=dict)
    weight: int = 0
    tiled: int = 0
    untiled: int = 0
    dispatched: int = 0
    kernels: int = 0
    depth: int = 0

    @cached_property
    def states(self) -> list[Node]:
        """Carried inputs of the body."""
        return self.spec.body.inputs[self.spec.consts : self.spec.consts + self.spec.carries]

    def count(self, node: Node) -> int:
        """Elements of a node in a slice."""
        return prod(self.slices.local(node))

    def position(self, node: Node, axes: Position, local: Position) -> Position:
        """Index of the element `local` of a node within the slice at `axes`."""
        rest = iter(local)
        return tuple(next(rest) if axis is None else axes[axis] for axis in self.slices.dims[node])

    def within(self, node: Node, at: Position) -> Position:
        """Index within its slice of the element of a node at `at`."""
        return tuple(i for i, axis in zip(at, self.slices.dims[node], strict=True) if axis is None)

    @cached_property
    def elements(self) -> int:
        """Elements of the largest phase: lanes that can work together on a slice."""
        return max((p.size for p in self.phases), default=1)


def plan_turn(spec: Loop, limits: Limits) -> Turn:
    """The turn of a scan, in kept values and phases."""
    spec = _canonical(spec)
    weights = Weights(spec.body)
    turn = Turn(spec, find_slices(spec, lambda n: _work(weights, n)))
    _Planner(turn, weights, limits).run()
    return turn


def _work(weights: Weights, node: Node) -> int:
    """Operations an element of a node takes."""
    return 2 * LOAD * fold_length(node) if node.op in ("reduce", "dot") else weights.own(node)


def _canonical(spec: Loop) -> Loop:
    """The scan with copies in place of outputs that are inputs, or carried twice."""
    graph = spec.body
    seen: set[Node] = set(graph.inputs)
    outputs, nodes = [], list(graph.nodes)
    for i, node in enumerate(graph.outputs):
        if node in seen and (node.op == "input" or i < spec.carries):
            node = Node("map", (node,), node.shape, node.dtype, Map("copy"), node.source, 1 + nodes[-1].number)
            nodes.append(node)
        seen.add(node)
        outputs.append(node)
    return replace(spec, body=Graph(nodes, graph.inputs, outputs))


class _Planner:
    def __init__(self, turn: Turn, weights: Weights, limits: Limits) -> None:
        self.turn, self.weights, self.limits = turn, weights, limits
        self.graph = turn.spec.body
        self.dependent = state_dependent(turn.spec)
        self.axes = tuple(counter(f"s{i}", size) for i, size in enumerate(turn.slices.sizes))
        self.kept: set[Node] = set()
        self._elements: dict[tuple[int, ...], Position] = {}
        self._place = {n: i for i, n in enumerate(self.graph.nodes)}

    def run(self) -> None:
        turn = self.turn
        turn.depth = self._keep()
        reads = {n: self._reads(n) for n in self.graph.nodes if n in self.kept}
        for node in reads:
            if node.op == "dot":
                self._tiles(node)
        for node, read in reads.items():
            self._arrange(node, read)
        for node, read in reads.items():
            phase = self._phase(node)
            phase.weight += self._count(node, read)
            for n in read.nodes():
                if n in self.kept and turn.count(n) > 1 and n not in phase.nodes:
                    turn.stored.add(n)
        for state, after in zip(turn.states, self.graph.outputs, strict=False):
            if turn.count(state) > 1 and self._overwrites(state, after, reads):
                turn.in_place.add(state)

    def _count(self, node: Node, read: Demands) -> int:
        """Add the code and the work of a kept node; returns its instructions."""
        turn, own = self.turn, self.weights.own
        weight = self._code(node, read)
        work = turn.count(node) * (own(node) + STORE)
        work += sum(read.evaluations(n) * (LOAD if self._held(n) else own(n)) for n in read.nodes())
        turn.weight += weight
        turn.dispatched += work
        turn.untiled += work - self._in_registers(node, read)
        turn.tiled += work - self._in_registers(node, read)
        turn.kernels += node.op in ("reduce", "dot")
        if node.op == "dot":
            products = turn.count(node) * fold_length(node)
            turn.dispatched -= int(products * (2 * LOAD - TILED))
            if node in turn.lines:
                turn.untiled -= int(products * (LOAD - TILED))
            if node in turn.tiles:
                tile = turn.tiles[node]
                turn.tiled -= int(products * (2 * LOAD - (TILED if tile.rows else LOAD + TILED)))
        return weight

    def _in_registers(self, node: Node, read: Demands) -> int:
        """Part of this work that is loads and stores of values which a lane has in registers."""
        outputs, states = self.graph.outputs[self.turn.spec.carries :], self.turn.states
        own = STORE if self.turn.count(node) == 1 and node not in outputs else 0
        held = (n for n in read.nodes() if (n in self.kept or n in states) and self.turn.count(n) == 1)
        return own + sum(LOAD * read.evaluations(n) for n in held)

    def _code(self, node: Node, read: Demands) -> int:
        """Instructions that compute an element of a kept node."""
        own = self.weights.own
        return own(node) + sum(1 if self._held(n) else own(n) for n in read.nodes())

    def _held(self, node: Node) -> bool:
        return node in self.kept or node.op == "input"

    def _tiles(self, node: Node) -> None:
        """Find how lanes can share the loads of a contraction: with a slice each, or with an element each of one slice."""
        turn, at = self.turn, self._at(node)

        def used(symbols: Sequence[Index]) -> Callable[[Node, Position], set[Index] | None]:
            return lambda arg, place: symbols_of(self.graph, arg, place, symbols, self._held, _push)

        if turn.slices.sizes:
            tile = shared_by_slices(node, at, turn.slices.dims[node], self.axes, used(self.axes))
            if tile is not None:
                turn.tiles[node] = tile
        shape = turn.slices.local(node)
        if shape and shape[-1] > 1:
            last = counter("l", shape[-1])
            local = (*(counter("e", s) for s in shape[:-1]), last)
            tile = shared_by_elements(node, turn.position(node, self.axes, local), used([last]))
            if tile is not None:
                turn.lines[node] = tile

    def _at(self, node: Node) -> Position:
        """The index of any element of a node in any slice; equal for nodes that have equal shapes within slices."""
        shape = self.turn.slices.local(node)
        if shape not in self._elements:
            self._elements[shape] = unflatten(counter("e", prod(shape)), shape)
        return self.turn.position(node, self.axes, self._elements[shape])

    # -- what to keep ------------------------------------------------------------------------------------------------
    def _keep(self) -> int:
        """Fill `kept`; returns the longest chain of nodes that are not."""
        outputs, demands = set(self.graph.outputs), Demands()
        depth: dict[Node, int] = {}
        for node in outputs:
            demands.add(node, self._at(node), self.turn.count(node))
        for node in reversed(self.graph.nodes):
            evaluations = demands.evaluations(node)
            if not evaluations or node.op == "input":
                continue
            if node in self.dependent and (
                node in outputs or depth.get(node, 0) >= self.limits.depth or self._worth_keeping(node, evaluations)
            ):
                self.kept.add(node)
                demands.settle(node, self._at(node), self.turn.count(node))
                depth[node] = 0
            _push(demands, node)
            for arg in node.args:
                depth[arg] = max(depth.get(arg, 0), depth.get(node, 0) + 1)
        return max(depth.values(), default=0)

    def _worth_keeping(self, node: Node, evaluations: int) -> bool:
        if node.op in FREE or node.op == "const":
            return False
        if node.op in ("reduce", "dot"):
            return True
        size, weight = self.turn.count(node), self.weights.alone(node)
        return evaluations * weight > size * (weight + STORE) + evaluations * LOAD

    def _reads(self, node: Node) -> Demands:
        """Where computing a kept node reads kept nodes and inputs, and what it computes on the way."""
        demands = Demands()
        demands.add(node, self._at(node), self.turn.count(node))
        _push(demands, node)
        demands.drop(node)
        for below in reversed(self.graph.nodes[: self._place[node]]):
            if below not in self.kept and below.op != "input" and demands.evaluations(below):
                _push(demands, below)
        return demands

    # -- phases --------------------------------------------------------------------------------------------------------
    def _arrange(self, node: Node, read: Demands) -> None:
        """Put a node into the last phase if that fits, else into one of its own.

        A tile's code is written out for many elements, so that only short work joins a contraction of several results.
        """
        shape, phases = self.turn.slices.local(node), self.turn.phases
        if phases and phases[-1].shape == shape:
            last = phases[-1].nodes
            tiled = self.turn.count(node) > 1 and any(n in self.turn.tiles for n in (node, *last))
            if (not tiled or self._code(node, read) <= EPILOGUE) and all(read.at(n) <= {self._at(n)} for n in last):
                last.append(node)
                return
        phases.append(Phase([node], shape))

    def _phase(self, node: Node) -> Phase:
        return next(p for p in self.turn.phases if node in p.nodes)

    def _overwrites(self, state: Node, after: Node, reads: dict[Node, Demands]) -> bool:
        """Whether nothing reads a state at another element, or later, than its next value is computed."""
        phase = self._phase(after)
        number = self.turn.phases.index(phase)
        for i, other in enumerate(self.turn.phases):
            for node in other.nodes:
                at = reads[node].at(state)
                if at and (i > number or (i == number and at != {self._at(state)})):
                    return False
        return self.turn.slices.dims[state] == self.turn.slices.dims[after]


def _push(demands: Demands, node: Node) -> None:
    if node.op != "dot":
        return demands.push(node)
    count = fold_length(node)
    k = counter("k", count)
    for at in demands.at(node):
        evaluations = demands.count(node, at) * count
        left, right = (None, None) if at is None else dot_position(node, at, k)
        demands.add(node.args[0], left, evaluations)
        demands.add(node.args[1], right, evaluations)
