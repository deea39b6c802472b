"""Moves views across the edges of scans, so that no kernel copies an array only to hand it to a loop or out of one.

What a loop reads lies in memory, so a transposed, sliced, padded or joined argument would have to be written there first.
Instead the loop is given what the view reads, and the view is taken inside, where it costs index arithmetic only.
Likewise a stacked result that is a view of something stacked is taken outside, and one that merely repeats an argument
is that argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .graph import Graph, GraphBuilder, Loop, Node

JOINED = 4  # operands of a concatenation that may be told apart at every read
_UNARY = frozenset(("broadcast", "reshape", "transpose", "slice", "reverse"))


def simplify_loops(graph: Graph) -> Graph:
    """The graph with views moved into its scans and out of them; loops inside their bodies stay as they are."""
    if not any(n.op == "loop" and n.attr.kind == "scan" for n in graph.nodes):
        return graph
    builder = GraphBuilder()
    new: dict[Node, Node] = {}
    results: dict[Node, dict[int, Node]] = {}
    wanted: dict[Node, dict[int, bool]] = {}
    sliced = _read_by_loops(graph)
    for node in graph.nodes:
        if node.op == "pick":
            wanted.setdefault(node.args[0], {})[node.attr] = node in sliced
    for node in graph.nodes:
        builder.source = node.source
        if node.op == "input":
            new[node] = builder.input(node.shape, node.dtype)
        elif node.op == "pick" and node.args[0] in results:
            new[node] = results[node.args[0]][node.attr]
        elif node.op == "loop" and node.attr.kind == "scan":
            results[node] = _scan(builder, node, [new[a] for a in node.args], wanted.get(node, {}))
        else:
            new[node] = copy_node(builder, node, [new[a] for a in node.args])
    return builder.finish([new[n] for n in graph.outputs])


def _read_by_loops(graph: Graph) -> set[Node]:
    """Nodes that loops read, directly or through views."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "loop" or (node in found and (node.op in _UNARY or node.op in ("pad", "concat"))):
            found.update(node.args)
    return found


def copy_node(builder: GraphBuilder, node: Node, args: Sequence[Node]) -> Node:
    """The node on other arguments, never shared with an equal one: regions of rematerialisation stay apart."""
    copy = Node(node.op, tuple(args), node.shape, node.dtype, node.attr, node.source, len(builder.nodes))
    builder.nodes.append(copy)
    return copy


def _scan(builder: GraphBuilder, node: Node, args: list[Node], wanted: dict[int, bool]) -> dict[int, Node]:
    """The scan on `args`, rewritten; returns those of its results that are wanted (True: by another loop), by number."""
    spec: Loop = node.attr
    carries = args[spec.consts : spec.consts + spec.carries]
    entry = _Entry(args, spec)
    body = GraphBuilder()
    body.source = node.source
    inside = entry.enter(body)
    values = dict(zip(spec.body.inputs, inside, strict=True))
    for inner in spec.body.nodes:
        if inner.op != "input":
            values[inner] = copy_node(body, inner, [values[a] for a in inner.args])
    outputs = [values[n] for n in spec.body.outputs]
    kept: list[Node] = outputs[: spec.carries]
    numbers = [i for i in wanted if i >= spec.carries]
    leave = _Exit(
        builder,
        spec,
        slices={n: a for a, n in entry.slices.items()},
        whole={n: a for a, n in entry.whole.items()},
        states=dict(zip(inside[spec.consts : spec.consts + spec.carries], zip(carries, kept, strict=True), strict=True)),
        kept=kept,
        stacked=[outputs[i] for i in numbers],
    )
    stacked = {i: leave.plan(outputs[i], wanted[i]) for i in numbers}
    attr = replace(spec, body=body.finish(kept), consts=len(entry.whole))
    loop = builder.node("loop", (*entry.whole, *carries, *entry.slices), (), "bool", attr)
    finals = {i: builder.pick(loop, i, carries[i].shape, carries[i].dtype) for i in wanted if i < spec.carries}
    return finals | {i: make(loop) for i, make in stacked.items()}


@dataclass
class _Entry:
    """Arguments of a scan, traced to what lies behind their views. `whole` and `slices` map arguments to body inputs."""

    args: list[Node]
    spec: Loop

    def __post_init__(self) -> None:
        self.whole: dict[Node, Node] = {}
        self.slices: dict[Node, Node] = {}

    def enter(self, body: GraphBuilder) -> list[Node]:
        """Makes the inputs of the body, and the views on them; returns what stands for each old input."""
        consts, carries = self.spec.consts, self.spec.carries
        kinds = [True] * consts + [False] * (len(self.args) - consts)
        moving = [i for i in range(len(self.args)) if not consts <= i < consts + carries]
        leaves: dict[bool, dict[Node, None]] = {True: {}, False: {}}
        for i in moving:
            _take(self.args[i], kinds[i], lambda node, whole: leaves[whole].setdefault(node), None)
        self.whole = {n: body.input(n.shape, n.dtype) for n in leaves[True]}
        states = [body.input(a.shape, a.dtype) for a in self.args[consts : consts + carries]]
        self.slices = {n: body.input(n.shape[1:], n.dtype) for n in leaves[False]}
        out: list[Node] = []
        for i, arg in enumerate(self.args):
            if i in moving:
                taken = _take(arg, kinds[i], lambda node, whole: (self.whole if whole else self.slices)[node], body)
                assert taken is not None
                out.append(taken)
            else:
                out.append(states[i - consts])
        return out


def _take(node: Node, whole: bool, leaf: Callable[[Node, bool], Node | None], body: GraphBuilder | None) -> Node | None:
    """Rebuild `node` (unless `whole`, its slice along the leading axis) in `body` from leaves; without one only visit them."""
    skip = 0 if whole else 1
    shape, attr, op = node.shape[skip:], node.attr, node.op

    def take(arg: Node, entire: bool = whole) -> Node:
        return _take(arg, entire, leaf, body)  # type: ignore[return-value]

    same = whole or (bool(node.args) and node.args[0].shape[:1] == node.shape[:1])
    if op == "const" and node.shape == ():
        return body.const(attr.array, node.dtype) if body else None
    if op == "broadcast" and (whole or 0 not in attr):  # every slice is the same
        arg = take(node.args[0], True)
        return body.broadcast(arg, shape, tuple(d - skip for d in attr)) if body else None
    if op == "broadcast" and same and attr[0] == 0:
        arg = take(node.args[0])
        return body.broadcast(arg, shape, tuple(d - 1 for d in attr[1:])) if body else None
    if op == "reshape" and same and node.size:
        arg = take(node.args[0])
        return body.reshape(arg, shape) if body else None
    if op == "transpose" and (whole or attr[0] == 0):
        arg = take(node.args[0])
        return body.transpose(arg, tuple(d - skip for d in attr[skip:])) if body else None
    if op == "slice" and same and (whole or (attr[0][0] == 0 and attr[1][0] == 1)):
        arg = take(node.args[0])
        return body.node("slice", (arg,), shape, node.dtype, (attr[0][skip:], attr[1][skip:])) if body else None
    if op == "reverse" and (whole or 0 not in attr):
        arg = take(node.args[0])
        return body.reverse(arg, tuple(d - skip for d in attr)) if body else None
    if op == "pad" and same and (whole or attr[0] == (0, 0)):
        arg, fill = take(node.args[0]), take(node.args[1], True)
        return body.node("pad", (arg, fill), shape, node.dtype, attr[skip:]) if body else None
    if op == "concat" and (whole or attr != 0) and len(node.args) <= JOINED:
        parts = [take(a) for a in node.args]
        return body.concat(parts, attr - skip) if body else None
    if op == "map" and attr.primitive == "convert_element_type":
        arg = take(node.args[0])
        return body.node("map", (arg,), shape, node.dtype, attr) if body else None
    return leaf(node, whole)


@dataclass
class _Exit:
    """Stacked results of a scan.

    Attributes:
        slices, whole: arguments by the body inputs they enter through.
        states: (first value, value after a turn) of the carried inputs.
        kept: outputs of the new body so far.
        stacked: body nodes whose stacks are wanted.
    """

    builder: GraphBuilder
    spec: Loop
    slices: dict[Node, Node]
    whole: dict[Node, Node]
    states: dict[Node, tuple[Node, Node]]
    kept: list[Node]
    stacked: list[Node]

    def __post_init__(self) -> None:
        self.length, self.carries = self.spec.length, self.spec.carries

    def plan(self, y: Node, sliced: bool) -> Callable[[Node], Node]:
        """How to make the stacked form of the body's node `y` from the new loop; `sliced`: a loop will read it."""
        if y in self.slices:
            return lambda loop: self.slices[y]
        if y in self.whole:
            return lambda loop: self._repeat(self.whole[y])
        if y.op == "const" and y.shape == ():
            return lambda loop: self.builder.full((self.length,), y.attr.array, y.dtype)
        if y in self.states and not sliced:  # what came in is what the turn before gave out
            first, after = self.states[y]
            outs = self.plan(after, sliced)
            return lambda loop: self._shifted(first, outs(loop))
        if y.op in _UNARY:
            below = y.args[0]
            while below.op in _UNARY:
                below = below.args[0]
            free = below in self.slices or below in self.whole or below in self.stacked or below.op == "const"
            if free or y.args[0].size <= y.size:
                inner = self.plan(y.args[0], sliced)
                return lambda loop: self._lift(y, inner(loop))
        if y.op == "pad" and y.args[1].op == "const" and y.args[0].size <= y.size:
            inner, fill = self.plan(y.args[0], sliced), y.args[1].attr.array
            return lambda loop: self._padded(y, inner(loop), fill)
        if y.op == "concat" and len(y.args) <= JOINED:
            parts = [self.plan(a, sliced) for a in y.args]
            return lambda loop: self.builder.concat([p(loop) for p in parts], y.attr + 1)
        if y not in self.kept[self.carries :]:
            self.kept.append(y)
        number = self.kept.index(y, self.carries)
        return lambda loop: self.builder.pick(loop, number, (self.length, *y.shape), y.dtype)

    def _repeat(self, value: Node) -> Node:
        return self.builder.broadcast(value, (self.length, *value.shape), range(1, len(value.shape) + 1))

    def _shifted(self, first: Node, outs: Node) -> Node:
        """Values before each turn, from the first and those after each turn."""
        builder, shape = self.builder, outs.shape
        first = builder.reshape(first, (1, *first.shape))
        low = 1 if self.spec.reverse else 0
        rest = builder.slice(outs, (low,) + (0,) * (len(shape) - 1), (low + self.length - 1, *shape[1:]))
        return builder.concat([rest, first] if self.spec.reverse else [first, rest], 0)

    def _padded(self, y: Node, arg: Node, fill: Any) -> Node:
        value = self.builder.const(fill, y.dtype)
        return self.builder.node("pad", (arg, value), (self.length, *y.shape), y.dtype, ((0, 0), *y.attr))

    def _lift(self, view: Node, arg: Node) -> Node:
        """The view on each of the stacked elements of `arg`."""
        builder, shape, attr = self.builder, (self.length, *view.shape), view.attr
        if view.op == "broadcast":
            return builder.broadcast(arg, shape, (0, *(d + 1 for d in attr)))
        if view.op == "reshape":
            return builder.reshape(arg, shape)
        if view.op == "transpose":
            return builder.transpose(arg, (0, *(d + 1 for d in attr)))
        if view.op == "reverse":
            return builder.reverse(arg, tuple(d + 1 for d in attr))
        return builder.node("slice", (arg,), shape, view.dtype, ((0, *attr[0]), (1, *attr[1])))
