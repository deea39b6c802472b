"""Takes work out of scans that can be done for all turns at once, where what is left then becomes one kernel.

Before the scan: contractions and reductions of what does not depend on the state, as an RNN's input projection. After it:
those that the state does not depend on, as the gradients of an RNN's weights, which reverse mode adds up turn by turn.
The former save a loop kernel work that a matrix product does better; the latter mix slices that are independent otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .graph import Graph, GraphBuilder, Loop, Node
from .loops import copy_node
from .stacking import ADD, Stacked, Stacker, is_outer, liftable
from .traits import FREE

_HEAVY = frozenset(("dot", "reduce", "cumulative", "argsort"))
_MIXING = ("dot", "reduce")
_WIDE = ("f32", "i32", "u32", "f64", "i64", "u64")  # types whose sums do not round more, turn by turn, than at once


def lift_from_loops(graph: Graph, becomes_kernel: Callable[[Loop], bool]) -> Graph:
    """The graph with each scan lightened that becomes a kernel then, or is one anyway."""
    if not any(n.op == "loop" and n.attr.kind == "scan" for n in graph.nodes):
        return graph
    builder = GraphBuilder()
    new: dict[Node, Node] = {}
    results: dict[Node, dict[int, Node]] = {}
    changed = False
    for node in graph.nodes:
        builder.source = node.source
        if node.op == "input":
            new[node] = builder.input(node.shape, node.dtype)
        elif node.op == "pick" and node.args[0] in results:
            new[node] = results[node.args[0]][node.attr]
        else:
            args = [new[a] for a in node.args]
            if node.op == "loop" and node.attr.kind == "scan":
                wanted = [n for n in graph.nodes if n.op == "pick" and n.args[0] is node]
                lighter = _lighten(builder, node.attr, args, wanted, becomes_kernel)
                if lighter is not None:
                    results[node], changed = lighter, True
                    continue
            new[node] = copy_node(builder, node, args)
    return builder.finish([new[n] for n in graph.outputs]) if changed else graph


def _lighten(
    builder: GraphBuilder, spec: Loop, args: list[Node], wanted: list[Node], becomes_kernel: Callable[[Loop], bool]
) -> dict[int, Node] | None:
    """Results by number from a lighter scan; None where there is nothing to lift, or no kernel to win."""
    for also_results in (False, True):
        plan = _Plan(spec, also_results)
        if plan.lifts and becomes_kernel(plan.remaining()):
            return plan.build(builder, args, wanted)
    return None


@dataclass(eq=False)
class _Plan:
    """What to lift out of a scan.

    Attributes:
        reductions: take reductions out of stacked results too, at the price of stacking what they reduce.
        before: nodes computed before the scan.
        sums: carried values that are sums over turns: number and summand of each.
        after: stacked results computed after the scan, by number of the body's output.
        stacks: nodes to be stacked for what is computed after the scan.
    """

    spec: Loop
    reductions: bool
    before: dict[Node, None] = field(default_factory=dict)
    sums: dict[int, Node] = field(default_factory=dict)
    after: dict[int, Node] = field(default_factory=dict)
    stacks: dict[Node, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec, self.graph = self.spec, self.spec.body
        inputs = self.graph.inputs
        self.states = inputs[spec.consts : spec.consts + spec.carries]
        self.dependent = _above(self.graph, set(self.states))
        self.readers: dict[Node, list[Node]] = {}
        for node in self.graph.nodes:
            for arg in dict.fromkeys(node.args):
                self.readers.setdefault(arg, []).append(node)
        self.free: set[Node] = set()  # what can be computed before the scan
        self.holds = {heavy: _holding(self.graph, heavy) for heavy in (_MIXING, ("dot",))}
        self._find_before()
        self._find_sums()
        kept = [n for i, n in enumerate(self.graph.outputs[: spec.carries]) if i not in self.sums]
        self.needed = _below(kept)
        for number in range(spec.carries, len(self.graph.outputs)):
            y = self.graph.outputs[number]
            lifted = self.holds[_MIXING if self.reductions else ("dot",)]
            computed = y in self.free and y.op not in ("input", "const")
            if computed or (y not in self.needed and y in self.dependent and y in lifted):
                self.after[number] = y
        self._find_stacks()

    @property
    def lifts(self) -> bool:
        return bool(self.before or self.sums or self.after)

    # -- before the scan -----------------------------------------------------------------------------------------------
    def _find_before(self) -> None:
        for node in self.graph.nodes:
            if node in self.dependent:
                continue
            if node.op == "input" or (liftable(node) and all(a in self.free for a in node.args)):
                self.free.add(node)
        for node in self.graph.nodes:
            if node.op in _HEAVY and node in self.free:
                above = self.readers.get(node, [])
                while len(above) == 1 and above[0].op == "map" and above[0] in self.free and node not in self.graph.outputs:
                    node, above = above[0], self.readers.get(above[0], [])
                self.before[node] = None

    # -- after the scan ------------------------------------------------------------------------------------------------
    def _find_sums(self) -> None:
        for i, state in enumerate(self.states):
            after = self.graph.outputs[i]
            if after.op != "map" or after.attr.primitive not in ADD or after.dtype not in _WIDE or state not in after.args:
                continue
            summand = next((a for a in after.args if a is not state), None)
            alone = self.readers[state] == [after] and not self.readers.get(after) and self.graph.outputs.count(after) == 1
            if summand is not None and alone and self.graph.outputs.count(state) == 0 and summand in self.holds[_MIXING]:
                self.sums[i] = summand

    def _find_stacks(self) -> None:
        """Find what has to be stacked to compute what is left for after the scan."""
        seen: set[Node] = set()
        waiting = [*self.sums.values(), *self.after.values()]
        while waiting:
            node = waiting.pop()
            if node in seen or node in self.free:
                continue
            seen.add(node)
            lifted = node not in self.needed and node in self.holds[_MIXING]
            if liftable(node) and (node.op in FREE or lifted):
                waiting.extend(node.args)
            else:
                self.stacks[node] = None

    # -- the scan that is left -----------------------------------------------------------------------------------------
    def remaining(self) -> Loop:
        """The scan without what is lifted, for a judgement of it."""
        return self._body()[0]

    def _body(self) -> tuple[Loop, list[Node], list[Node]]:
        """(the scan, nodes behind its constants and slices in the old body, nodes it stacks)."""
        spec, graph = self.spec, self.graph
        kept = [i for i in range(spec.carries) if i not in self.sums]
        carried = [graph.outputs[i] for i in kept]
        ys = dict.fromkeys(n for i, n in enumerate(graph.outputs) if i >= spec.carries and i not in self.after)
        stacked = list(ys | self.stacks)
        used = _below([*carried, *stacked], set(self.before))
        first = spec.consts + spec.carries
        turns = _above(graph, set(graph.inputs[first:]))
        consts = [n for n in (*graph.inputs[: spec.consts], *self.before) if n in used and n not in turns]
        slices = [n for n in (*graph.inputs[first:], *self.before) if n in used and n in turns]
        body = GraphBuilder()
        values: dict[Node, Node] = {}
        for node in (*consts, *(self.states[i] for i in kept), *slices):
            body.source = node.source
            values[node] = body.input(node.shape, node.dtype)
        for node in graph.nodes:
            if node in used and node not in values:
                values[node] = copy_node(body, node, [values[a] for a in node.args])
        made = body.finish([values[n] for n in (*carried, *stacked)])
        return replace(spec, body=made, consts=len(consts), carries=len(kept)), [*consts, *slices], stacked

    def build(self, builder: GraphBuilder, args: list[Node], wanted: list[Node]) -> dict[int, Node]:
        """The lighter scan with all around it; returns the results that are wanted, by number."""
        spec, graph = self.spec, self.graph
        first = spec.consts + spec.carries
        known = {n: Stacked(a, i >= first) for i, (n, a) in enumerate(zip(graph.inputs, args, strict=True))}
        before = Stacker(builder, spec.length, {n: v for n, v in known.items() if n not in self.states})
        loop_spec, read, stacked = self._body()
        behind = [before.get(n).node for n in read]
        kept = [i for i in range(spec.carries) if i not in self.sums]
        carries = [args[spec.consts + i] for i in kept]
        loop_args = (*behind[: loop_spec.consts], *carries, *behind[loop_spec.consts :])
        loop = builder.node("loop", loop_args, (), "bool", loop_spec)
        place = {n: len(kept) + i for i, n in enumerate(stacked)}
        for node in stacked:
            pick = builder.pick(loop, place[node], (spec.length, *node.shape), node.dtype)
            before.known[node] = Stacked(pick, True)
        out: dict[int, Node] = {}
        for pick in wanted:
            number = pick.attr
            if number in self.sums:
                init = args[spec.consts + number]
                out[number] = builder.map("add", init, before.total(self.sums[number]))
            elif number in self.after:
                out[number] = before.stack(self.after[number])
            elif number < spec.carries:
                out[number] = builder.pick(loop, kept.index(number), pick.shape, pick.dtype)
            else:
                out[number] = before.known[graph.outputs[number]].node
        return out


def _below(nodes: list[Node], stop: set[Node] = frozenset()) -> set[Node]:  # type: ignore[assignment]
    """Nodes and all they rest on, down to those of `stop`."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                stack.extend(node.args)
    return found


def _holding(graph: Graph, heavy: tuple[str, ...]) -> set[Node]:
    """Nodes that can be computed outside and rest on heavy ones, through elementwise work and views."""
    found: set[Node] = set()
    for node in graph.nodes:
        passes = node.op == "map" or node.op in FREE
        works = node.op in heavy or (heavy == _MIXING and is_outer(node))
        if liftable(node) and (works or (passes and any(a in found for a in node.args))):
            found.add(node)
    return found


def _above(graph: Graph, roots: set[Node]) -> set[Node]:
    """Nodes that rest on some of `roots`, and these."""
    found = set(roots)
    for node in graph.nodes:
        if any(a in found for a in node.args):
            found.add(node)
    return found
