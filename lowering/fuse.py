"""Grouping: decides which nodes are stored and which kernel computes each of the others.

Nodes are visited from the results towards the arguments, so that everything that reads a node is placed already. A
node is then either *inlined* in every kernel that reads it, or *stored*: as one more output of a kernel that computes
it anyway, or by a kernel of its own. The choice is the cheaper one by `cost.py`, within what the schedules can
express; each decision is kept with its reason in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from .cost import DISPATCH, LOAD, SHORT, STORE, Weights
from .demand import Demands
from .graph import Graph, Node, fold_length
from .groups import Group
from .index import ZERO, Index, symbol, unflatten
from .order import Order, order_of

FREE = frozenset("broadcast reshape transpose slice reverse iota dynamic_slice".split())
ALONE = frozenset("scatter cumulative argsort".split())
MAX_WEIGHT = 1500  # instructions and loads of one kernel, which bounds its compile time
EPILOGUE_ARRAYS = 5  # arrays that the epilogue of a matrix product may read and write
MAX_DEPTH = 120  # longest chain of inlined nodes


@dataclass(frozen=True)
class Decision:
    """`action` is "inlined", "joined" (one more output of a kernel) or "stored" (a kernel of its own)."""

    node: Node
    action: str
    reason: str
    bytes_saved: int = 0

    def __str__(self) -> str:
        return f"{self.node!r} {self.action}: {self.reason}" + (f" ({self.bytes_saved} bytes saved)" if self.bytes_saved else "")


class Plan:
    """A kernel being formed: a group with the indices at which it reads each node."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.demands = Demands()
        self.weight = 0
        self.depth: dict[Node, int] = {}
        self.reach = 0  # plans (as a bit set) that must run after this one
        self.flat = _counter("i", group.outputs[0].size)
        self.row: Index | None = None
        self.columns: dict[int, Index] = {}
        self.number = 0

    def positions(self, node: Node) -> Index | None:
        """Row-major position at which the kernel reads `node`, if it is only one and known."""
        return self.demands.single(node)

    def rebuild(self, rows: int | None) -> None:
        """Recompute demands, for one lane an element (rows None) or one workgroup a row."""
        self.demands = Demands()
        group = self.group
        size = max(n.size for n in group.outputs)
        self.row = None if rows is None else _counter("r", rows)
        self.columns = {}
        for node in group.outputs:
            at = self.flat
            if self.row is not None:
                count = node.size // rows  # type: ignore[operator]
                at = self.row * count + self.column(count)
            self.demands.add(node, unflatten(group.position(node, at), node.shape), size)
        for node in sorted(group.members, key=lambda n: -n.number):
            self.push(node)

    def push(self, node: Node) -> None:
        """Pass on what a member reads."""
        if self.row is not None and node in self.group.reduces:
            self.demands.push(node, self.row, self.column(fold_length(node)))
        elif node.op == "reduce" and node in self.group.outputs:
            self.demands.push(node, column=self.column(fold_length(node)))  # one loop folds all of them
        else:
            self.demands.push(node)

    def column(self, count: int) -> Index:
        """The column of a row of `count` elements; the same in every pass over such rows."""
        return self.columns.setdefault(count, symbol("c", 0, max(0, count - 1)))


class Fuser:
    """Groups one graph. `fuse=False` stores every node that is not a view, for comparison."""

    def __init__(self, graph: Graph, fuse: bool = True) -> None:
        self.graph, self.fuse = graph, fuse
        self.outputs = set(graph.outputs)
        self.weights = Weights(graph)
        self.row_values = _row_values(graph)
        self.plans: list[Plan] = []
        self.readers: dict[Node, list[Plan]] = {}
        self.kept: set[Node] = set()  # read by something that needs a buffer: loops
        self.stored: set[Node] = set()
        self.home: dict[Node, Plan] = {}
        self.decisions: list[Decision] = []

    def run(self) -> list[Group]:
        for node in self.graph.nodes:
            if node.op == "loop":
                self.kept.update(node.args)
        for node in reversed(self.graph.nodes):
            if node.op == "loop":
                self._place_loop(node)
            elif node.op in ("input", "pick") or (node.op == "const" and node.size != 1):
                if node.op == "pick":
                    self.stored.add(node)
                    self._edge_from_pick(node)
            else:
                self._place(node)
        for i, plan in enumerate(self.plans):
            plan.group.number = i
        return [p.group for p in self.plans if p.group.outputs]

    # -- order between kernels -----------------------------------------------------------------------------------
    def _new_plan(self, group: Group) -> Plan:
        plan = Plan(group)
        plan.number = len(self.plans)
        self.plans.append(plan)
        return plan

    def _after(self, first: Plan, later: Plan) -> None:
        """Record that `later` reads what `first` computes."""
        added = later.reach | (1 << later.number)
        if added & ~first.reach:
            bit = 1 << first.number
            for plan in self.plans:
                if plan is first or plan.reach & bit:
                    plan.reach |= added

    @staticmethod
    def _before(first: Plan, later: Plan) -> bool:
        return bool(first.reach >> later.number & 1)

    def _place_loop(self, node: Node) -> None:
        """A loop is no kernel, but orders the kernels around it like one."""
        group = Group("loop", [], {node}, self.stored, anchor=node)
        plan = Plan.__new__(Plan)
        plan.group, plan.reach, plan.number, plan.demands = group, 0, len(self.plans), Demands()
        plan.weight, plan.depth, plan.row = 0, {}, None
        self.plans.append(plan)
        self.home[node] = plan
        for reader in self.readers.get(node, ()):
            self._after(plan, reader)
        for arg in node.args:
            self.readers.setdefault(arg, [])
            if plan not in self.readers[arg]:
                self.readers[arg].append(plan)

    def _edge_from_pick(self, node: Node) -> None:
        loop = node.args[0]
        readers = self.readers.setdefault(loop, [])
        readers.extend(p for p in self.readers.get(node, ()) if p not in readers)

    # -- placing one node ----------------------------------------------------------------------------------------
    def _place(self, node: Node) -> None:
        readers = self.readers.get(node, [])
        forced = node in self.outputs or (node in self.kept and constant_array(node) is None)
        if not forced and not readers:
            return
        if not forced and (node.op in FREE or (node.op == "const")):
            return self._inline(node, readers, "a view or a constant: it costs index arithmetic only")
        if node.op in ALONE:
            return self._store_alone(node, f"{node.op} has its own schedule")
        if not self.fuse:
            return self._store_alone(node, "fusion is off")
        if node in self.row_values:
            for plan in readers:
                self._as_rows(plan, node)
        if not forced:
            refused = self._refusal(node, readers)
            if refused is None:
                return self._inline(node, readers, self._why_inline(node, readers), saved=self._bytes(node))
        else:
            refused = "a result of the function" if node in self.outputs else "read by a loop"
        joined = self._join_reader(node, readers) or self._join_sibling(node, readers)
        if not joined:
            self._store_alone(node, refused)

    def _bytes(self, node: Node) -> int:
        return 2 * node.size * 4

    def _why_inline(self, node: Node, readers: list[Plan]) -> str:
        if len(readers) == 1:
            return f"its only reader is kernel {readers[0].number}"
        return f"computing it again in {len(readers)} kernels costs less than storing it"

    def _refusal(self, node: Node, readers: list[Plan]) -> str | None:
        """Why `node` cannot or should not be computed inside the kernels that read it; None if it should."""
        if any(p.group.kind == "loop" for p in readers):
            return "read by a loop"
        for plan in readers:
            if plan.weight + self.weights.own(node) > MAX_WEIGHT:
                return f"kernel {plan.number} is at its size limit of {MAX_WEIGHT} instructions"
            if self._depth(plan, node) > MAX_DEPTH:
                return f"kernel {plan.number} is at its depth limit of {MAX_DEPTH} nodes"
        if node.op == "dot":
            return self._adopt_dot(node, readers)
        if node.op == "reduce" and len(readers) == 1 and self._adopt_reduce(node, readers[0]):
            return None
        return self._too_dear(node, readers)

    def _too_dear(self, node: Node, readers: list[Plan]) -> str | None:
        """Compare computing `node` at every place it is read with computing it once, storing and loading it."""
        aligned = [self._aligned(p, node) for p in readers]
        evaluations = sum(node.size if ok else p.demands.evaluations(node) for p, ok in zip(readers, aligned, strict=True))
        weight = self.weights.total(node)
        inline = evaluations * weight
        store = node.size * (weight + STORE) + evaluations * LOAD + (0 if any(aligned) else DISPATCH)
        if inline <= store:
            return None
        return (
            f"computed {evaluations} times where {node.size} are needed: {inline} operations inlined, {store} when stored"
        )

    def _depth(self, plan: Plan, node: Node) -> int:
        return plan.depth.get(node, 0)

    def _enter(self, plan: Plan, node: Node) -> None:
        """Make `node` a member of a kernel and pass on what it reads."""
        plan.group.members.add(node)
        plan.weight += self.weights.own(node)
        plan.push(node)
        below = plan.depth.get(node, 0) + 1
        for arg in node.args:
            plan.depth[arg] = max(plan.depth.get(arg, 0), below)
            readers = self.readers.setdefault(arg, [])
            if plan not in readers:
                readers.append(plan)

    def _inline(self, node: Node, readers: list[Plan], reason: str, saved: int = 0) -> None:
        for plan in readers:
            self._enter(plan, node)
        if node.op not in FREE and node.op != "const":
            self.decisions.append(Decision(node, "inlined", reason, saved))

    def _mark_stored(self, node: Node, plan: Plan, readers: list[Plan]) -> None:
        self.stored.add(node)
        self.home[node] = plan
        for reader in readers:
            if reader is not plan:
                self._after(plan, reader)

    # -- stored by a kernel of its own -----------------------------------------------------------------------------
    def _store_alone(self, node: Node, reason: str) -> None:
        readers = list(self.readers.get(node, ()))
        kind = node.op if node.op in ALONE or node.op == "dot" else "map"
        anchor = node if kind != "map" else None
        plan = self._new_plan(Group(kind, [node], set(), self.stored, anchor=anchor))
        if node.op == "reduce" and row_suited(node):
            plan.group.kind, plan.group.rows, plan.group.reduces = "row", node.size, [node]
        self._mark_stored(node, plan, readers)
        if node.size:
            plan.rebuild(plan.group.rows if plan.group.kind == "row" else None)
            self._enter(plan, node)
        self.decisions.append(Decision(node, "stored", reason))

    # -- stored as one more output ---------------------------------------------------------------------------------
    def _join_reader(self, node: Node, readers: list[Plan]) -> bool:
        """Let the first kernel that reads `node` compute and store it, when no other reader must run before that one."""
        for plan in readers:
            if plan.group.kind == "loop" or any(self._before(other, plan) for other in readers if other is not plan):
                continue
            if plan.weight + self.weights.own(node) > MAX_WEIGHT or self._depth(plan, node) > MAX_DEPTH:
                continue
            if node.op == "dot":
                if not self._anchor(plan, node):
                    continue
            elif node.op == "reduce" and plan.group.kind != "dot" and self._adopt_reduce(node, plan):
                pass
            elif not self._aligned(plan, node) or (node.op == "reduce" and fold_length(node) > SHORT and row_suited(node)):
                continue
            order = self._order(plan, node)
            if order is not None and order.digits:
                plan.group.orders[node] = order
            plan.group.outputs.append(node)
            self._mark_stored(node, plan, readers)
            self._enter(plan, node)
            self.decisions.append(Decision(node, "joined", f"kernel {plan.number} computes it anyway", node.size * 4))
            return True
        return False

    def _join_sibling(self, node: Node, readers: list[Plan]) -> bool:
        """Store `node` from a kernel that reads the same arguments in the same shape, if neither waits for the other."""
        if node.op == "dot" or not node.size:
            return False
        later = 0
        for reader in readers:
            later |= reader.reach | (1 << reader.number)
        rows = node.size if node.op == "reduce" and row_suited(node) else None
        for plan in {id(p): p for a in _sources(node) for p in self.readers.get(a, ())}.values():
            group = plan.group
            if later >> plan.number & 1 or plan.weight + self.weights.own(node) > MAX_WEIGHT:
                continue
            if rows is not None:
                fits = group.kind == "row" and group.rows == rows and fold_length(node) in {fold_length(r) for r in group.reduces}
            else:
                folds = {fold_length(n) if n.op == "reduce" else 1 for n in group.outputs}
                fits = group.kind == "map" and group.outputs[0].size == node.size
                fits = fits and folds == {fold_length(node) if node.op == "reduce" else 1}
            if not fits:
                continue
            group.outputs.append(node)
            if rows is not None:
                group.reduces.insert(0, node)
            plan.rebuild(group.rows if group.kind == "row" else None)
            self._mark_stored(node, plan, readers)
            self._enter(plan, node)
            self.decisions.append(Decision(node, "joined", f"kernel {plan.number} reads the same arguments", node.size * 4))
            return True
        return False

    def _aligned(self, plan: Plan, node: Node) -> bool:
        """Whether the kernel computes each element of `node` exactly once; a kernel of rows, also in row-major order."""
        group = plan.group
        if group.kind == "loop" or not node.size:
            return False
        flat = plan.positions(node)
        if flat is None:
            return False
        if plan.row is None:
            return self._order(plan, node) is not None
        if node.size == group.rows:
            return flat == plan.row
        if node.size % group.rows:
            return False
        rest = flat - plan.row * (node.size // group.rows)
        count = node.size // group.rows
        return len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1 and rest.terms[0][0].name == "c" and rest.hi == count - 1

    @staticmethod
    def _order(plan: Plan, node: Node) -> Order | None:
        """Where a "map" or "dot" kernel's visits lie in `node`, if they are all its elements, once each."""
        flat = plan.positions(node)
        if flat is None or plan.group.kind not in ("map", "dot") or node.size != plan.group.outputs[0].size:
            return None
        return order_of(flat, plan.flat, node.size)

    # -- dots ------------------------------------------------------------------------------------------------------
    def _can_anchor(self, plan: Plan, node: Node) -> bool:
        """Whether a kernel may become the epilogue of a matrix product.

        The epilogue is written out for each of the tile's accumulators, so one that touches many arrays (an optimizer's
        update) spills registers and takes long to compile; such kernels are better packed with their like.
        """
        group = plan.group
        if group.kind != "map" or not self._aligned(plan, node) or any(n.op in ("reduce", "dot") for n in group.members):
            return False
        others = [n for n in plan.demands.nodes() if n not in group.members and n is not node and n.size > 1]
        return len(group.outputs) + len(others) <= EPILOGUE_ARRAYS

    def _anchor(self, plan: Plan, node: Node) -> bool:
        """Make a kernel the epilogue of a matrix product, visiting its elements in row-major order."""
        if not self._can_anchor(plan, node):
            return False
        group, order = plan.group, self._order(plan, node)
        assert order is not None
        if order.digits:
            before = group.orders
            visited = _visit(group, order)
            plan.rebuild(None)
            if not visited or plan.positions(node) != plan.flat:
                group.orders = before
                plan.rebuild(None)
                return False
        group.kind, group.anchor = "dot", node
        return True

    def _adopt_dot(self, node: Node, readers: list[Plan]) -> str | None:
        depth = prod(node.args[0].shape[a] for a in node.attr.lhs_contract)
        if len(readers) > 1:
            return "a matrix product read by several kernels"
        plan = readers[0]
        if self._anchor(plan, node):
            return None
        if depth * node.size <= 256 and self._too_dear(node, readers) is None:
            return None
        return f"a matrix product that kernel {plan.number} ({plan.group.kind}) does not read element by element"

    # -- reductions ------------------------------------------------------------------------------------------------
    def _adopt_reduce(self, node: Node, plan: Plan) -> bool:
        """Make `node` a reduction that the whole workgroup of a row does together."""
        if not row_suited(node) or not self._as_rows(plan, node):
            return False
        plan.group.reduces.insert(0, node)
        return True

    @staticmethod
    def _as_rows(plan: Plan, node: Node) -> bool:
        """Give a kernel one workgroup a row, where it reads `node` (a reduction, or what follows from one) once a row."""
        group = plan.group
        if group.kind == "row":
            return node.size == group.rows and plan.positions(node) == plan.row
        if group.kind != "map" or any(n.op == "reduce" and not _short(n) for n in group.members):
            return False
        if not node.size or any(n.size % node.size for n in group.outputs):
            return False
        before = group.orders
        for order in (Order(()), *before.values()):  # any of the outputs may be the one that is laid out in rows
            group.orders = before
            visited = _visit(group, order)
            plan.rebuild(node.size)
            if visited and plan.positions(node) == plan.row:
                group.kind, group.rows = "row", node.size
                return True
        group.orders = before
        plan.rebuild(None)
        return False


def _row_values(graph: Graph) -> set[Node]:
    """Long reductions along the fastest axis, and elementwise values and views of the same size computed from them."""
    found: set[Node] = set()
    for node in graph.nodes:
        if (node.op == "reduce" and row_suited(node)) or (
            (node.op == "map" or node.op in FREE) and any(a in found and a.size == node.size for a in node.args)
        ):
            found.add(node)
    return found


def constant_array(node: Node) -> np.ndarray | None:
    """The value of a node that a loop may read from a constant buffer, so that no kernel need fill one."""
    if node.op == "const":
        return node.attr.array
    if node.op == "broadcast" and node.args[0].op == "const" and node.args[0].size == 1:
        return np.broadcast_to(node.args[0].attr.array.reshape(()), node.shape)
    return None


def _short(node: Node) -> bool:
    return fold_length(node) <= SHORT


def row_suited(node: Node) -> bool:
    """Whether lanes should share each result: long, and along the fastest axis."""
    rank = len(node.args[0].shape)
    last = max((i for i in range(rank) if node.args[0].shape[i] > 1), default=-1)
    return fold_length(node) > SHORT and last in node.attr.axes


def _visit(group: Group, order: Order) -> bool:
    """Let the kernel visit as number `order(i)` what it visited as number i; False where the index algebra cannot follow."""
    size = group.outputs[0].size
    back = order.inverse()
    orders = {n: group.orders.get(n, Order(())).after(back, size) for n in group.outputs}
    group.orders = {n: o for n, o in orders.items() if o is not None and o.digits}
    return None not in orders.values()


def _counter(name: str, count: int) -> Index:
    """A symbol that runs through [0, count); plain 0 where it can be nothing else."""
    return symbol(name, 0, count - 1) if count > 1 else ZERO


def _sources(node: Node) -> list[Node]:
    """What `node` reads, looking through views."""
    out, stack = [], list(node.args)
    while stack:
        arg = stack.pop()
        out.append(arg)
        if arg.op in FREE:
            stack.extend(arg.args)
    return [a for a in out if not (a.op == "const" and a.size == 1)]

