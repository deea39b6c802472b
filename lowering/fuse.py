"""Grouping: decides which nodes are stored and which kernel computes each of the others.

Nodes are visited from the results towards the arguments, so that everything that reads a node is placed already. A
node is then either *inlined* in every kernel that reads it, or *stored*: as one more output of a kernel that computes
it anyway, or by a kernel of its own. The choice is the cheaper one by `cost.py`, within what the schedules can
express; each decision is kept with its reason in words.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cost import DISPATCH, LOAD, SHORT, STORE, Weights
from .forming import Plan
from .graph import Graph, Node, fold_length
from .groups import Group
from .limits import Limits
from .split import LANES
from .traits import ALONE, FREE, constant_array, moves, row_suited, row_values, sources

SEVERAL = 8  # readers of a scalar; more are likely alike, as the leaves of an optimizer, and share their code when packed
EPILOGUE_ARRAYS = 5  # arrays that the epilogue of a matrix product may read and write


@dataclass(frozen=True)
class Decision:
    """`action` is "inlined", "joined" (one more output of a kernel) or "stored" (a kernel of its own).

    Of a loop it is "one kernel" or "dispatched" (turn by turn).
    """

    node: Node
    action: str
    reason: str
    bytes_saved: int = 0

    def __str__(self) -> str:
        return f"{self.node!r} {self.action}: {self.reason}" + (
            f" ({self.bytes_saved} bytes saved)" if self.bytes_saved else ""
        )


class Fuser:
    """Groups one graph. `fuse=False` stores every node that is not a view, for comparison."""

    def __init__(self, graph: Graph, limits: Limits, fuse: bool = True) -> None:
        self.graph, self.limits, self.fuse = graph, limits, fuse
        self.outputs = set(graph.outputs)
        self.weights = Weights(graph)
        self.row_values = row_values(graph)
        self.plans: list[Plan] = []
        self.readers: dict[Node, list[Plan]] = {}
        self.kept: set[Node] = set()  # read by something that needs a buffer: loops
        self.stored: set[Node] = set()
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
        plan = Plan(group, len(self.plans))
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
        plan = self._new_plan(group)
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
        if constant_array(node) is not None and self.fuse:  # a result: stored, but nobody need load it
            self._inline(node, self.readers.pop(node, []), "a constant")
            return self._store_alone(node, self._forced_why(node))
        if node.op in ALONE:
            return self._store_alone(node, f"{node.op} has its own schedule")
        if not self.fuse:
            return self._store_alone(node, "fusion is off")
        if node in self.row_values:
            for plan in readers:
                plan.as_rows(node)
        refused = self._forced_why(node) if forced else self._refusal(node, readers)
        if refused is not None and self._merge_readers(node, readers):
            readers = self.readers[node]
            refused = self._forced_why(node) if forced else self._refusal(node, readers)
        if refused is None:
            return self._inline(node, readers, self._why_inline(node, readers), saved=self._bytes(node))
        joined = self._join_reader(node, readers) or self._join_sibling(node, readers)
        if not joined:
            self._store_alone(node, refused)

    def _forced_why(self, node: Node) -> str:
        return "a result of the function" if node in self.outputs else "read by a loop"

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
        full = next((why for plan in readers if (why := self._full(plan, node)) is not None), None)
        if full is not None:
            return full
        if node.op == "dot":
            return self._adopt_dot(node, readers)
        if node.op == "reduce" and len(readers) == 1 and self._adopt_reduce(node, readers[0]):
            return None
        if _folds(node) and any(self._nested(node, plan) for plan in readers):
            return "a sum inside a sum of one lane, where there are lanes to spare"
        return self._too_dear(node, readers)

    @staticmethod
    def _nested(node: Node, plan: Plan) -> bool:
        """Whether a lane would do a long reduction again and again while others have nothing to do."""
        lanes = plan.group.outputs[0].size
        return plan.group.kind == "map" and lanes < LANES and plan.demands.evaluations(node) > lanes

    def _full(self, plan: Plan, node: Node, stored: bool = False) -> str | None:
        """Why a kernel is too large to compute `node` too, and to store it."""
        limits, number = self.limits, plan.number
        if plan.weight + self.weights.own(node) > limits.weight:
            return f"kernel {number} is at its size limit of {limits.weight} instructions"
        if plan.depth.get(node, 0) > limits.depth:
            return f"kernel {number} is at its depth limit of {limits.depth} nodes"
        if _folds(node) and not row_suited(node) and len(_folded((plan,))) >= limits.folds:
            return f"kernel {number} is at its limit of {limits.folds} reductions by one lane"
        if stored and _arrays((plan,), node) >= limits.arrays:
            return f"kernel {number} is at its limit of {limits.arrays} arrays"
        return None

    def _too_dear(self, node: Node, readers: list[Plan]) -> str | None:
        """Compare computing `node` at every place it is read with computing it once, storing and loading it."""
        if moves(node):
            return None
        aligned = [p.aligned(node) for p in readers]
        evaluations = sum(node.size if ok else p.demands.evaluations(node) for p, ok in zip(readers, aligned, strict=True))
        weight = self.weights.alone(node)
        inline = evaluations * weight
        store = node.size * (weight + STORE) + evaluations * LOAD + (0 if any(aligned) else DISPATCH)
        if inline <= store:
            return None
        return f"computed {evaluations} times where {node.size} are needed: {inline} operations inlined, {store} when stored"

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
            if self._full(plan, node, stored=True):
                continue
            if node.op == "dot":
                if not self._anchor(plan, node):
                    continue
            elif node.op == "reduce" and plan.group.kind != "dot" and self._adopt_reduce(node, plan):
                pass
            elif not plan.aligned(node) or (node.op == "reduce" and fold_length(node) > SHORT and row_suited(node)):
                continue
            order = plan.order(node)
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
        for plan in {id(p): p for a in sources(node) for p in self.readers.get(a, ())}.values():
            group = plan.group
            if later >> plan.number & 1 or self._full(plan, node, stored=True):
                continue
            if rows is not None:
                fits = (
                    group.kind == "row" and group.rows == rows and fold_length(node) in {fold_length(r) for r in group.reduces}
                )
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

    # -- two kernels become one ------------------------------------------------------------------------------------
    def _merge_readers(self, node: Node, readers: list[Plan]) -> bool:
        """Make one kernel of those that compute every element of `node` and do not wait for each other."""
        if node.size == 1 and len(readers) > SEVERAL:
            return False
        merged = False
        for plan in list(readers):
            partner = next((p for p in readers if p.number < plan.number and self._mergeable(p, plan, node)), None)
            if partner is not None:
                self._merge(partner, plan)
                readers = self.readers[node]
                merged = True
        return merged

    def _mergeable(self, plan: Plan, other: Plan, node: Node) -> bool:
        a, b = plan.group, other.group
        if (
            a.kind != b.kind
            or a.kind not in ("map", "row")
            or a.rows != b.rows
            or not (plan.aligned(node) and other.aligned(node))
        ):
            return False
        if a.kind == "map" and plan.order(node) != other.order(node):
            return False
        both, limits = (plan, other), self.limits
        if (
            sum(self.weights.own(n) for n in a.members | b.members) > limits.weight
            or _arrays(both, node) >= limits.arrays
            or len(_folded(both)) > limits.folds
            or self._waits(plan, other)
            or self._waits(other, plan)
        ):
            return False
        # What one stores and the other reads must be at hand where it is read.
        crossing = all(
            p.aligned(n) for p, q in ((plan, other), (other, plan)) for n in q.group.outputs if p in self.readers.get(n, ())
        )
        return crossing and (node.op != "dot" or _arrays(both, node) <= EPILOGUE_ARRAYS)

    def _waits(self, first: Plan, later: Plan) -> bool:
        """Whether a third kernel has to run between the two."""
        return any(self._before(first, p) and self._before(p, later) for p in self.plans)

    def _merge(self, plan: Plan, other: Plan) -> None:
        """Let `plan` compute what `other` does."""
        group, gone = plan.group, other.group
        bits = 1 << plan.number | 1 << other.number
        reach = (plan.reach | other.reach) & ~bits
        for before in self.plans:
            if before.reach & bits:
                before.reach |= reach | bits
        plan.reach = reach
        group.outputs += gone.outputs
        group.orders |= gone.orders
        group.members |= gone.members
        group.reduces = sorted(set(group.reduces + gone.reduces), key=lambda n: n.number)
        plan.weight = sum(self.weights.own(n) for n in group.members)
        for node, depth in other.depth.items():
            plan.depth[node] = max(plan.depth.get(node, 0), depth)
        for readers in self.readers.values():
            if other in readers:
                readers[:] = [p for p in readers if p is not other and p is not plan] + [plan]
        gone.outputs, gone.members = [], set()
        other.reach = 0
        plan.rebuild(group.rows if group.kind == "row" else None)
        self.decisions.append(Decision(group.outputs[-1], "joined", f"kernel {plan.number} reads the same at the same places"))

    # -- dots ------------------------------------------------------------------------------------------------------
    def _can_anchor(self, plan: Plan, node: Node) -> bool:
        """Whether a kernel may become the epilogue of a matrix product.

        The epilogue is written out for each of the tile's accumulators, so one that touches many arrays (an optimizer's
        update) spills registers and takes long to compile; such kernels are better packed with their like.
        """
        group = plan.group
        if group.kind != "map" or not plan.aligned(node) or any(n.op in ("reduce", "dot") for n in group.members):
            return False
        return _arrays((plan,), node) <= EPILOGUE_ARRAYS

    def _anchor(self, plan: Plan, node: Node) -> bool:
        """Make a kernel the epilogue of a matrix product, visiting its elements in row-major order."""
        if not self._can_anchor(plan, node) or not plan.follow(node):
            return False
        plan.group.kind, plan.group.anchor = "dot", node
        return True

    def _adopt_dot(self, node: Node, readers: list[Plan]) -> str | None:
        if len(readers) > 1:
            return "a matrix product read by several kernels"
        plan = readers[0]
        if self._anchor(plan, node):
            return None
        if fold_length(node) * node.size <= 256 and self._too_dear(node, readers) is None:
            return None
        return f"a matrix product that kernel {plan.number} ({plan.group.kind}) does not read element by element"

    # -- reductions ------------------------------------------------------------------------------------------------
    def _adopt_reduce(self, node: Node, plan: Plan) -> bool:
        """Make `node` a reduction that the whole workgroup of a row does together."""
        if not row_suited(node) or not plan.as_rows(node):
            return False
        plan.group.reduces.insert(0, node)
        return True


def _folds(node: Node) -> bool:
    return node.op == "reduce" and fold_length(node) > SHORT


def _folded(plans: tuple[Plan, ...]) -> set[Node]:
    """Long reductions that a lane of kernels does all by itself."""
    return {n for p in plans for n in p.group.members if _folds(n) and n not in p.group.reduces}


def _arrays(plans: tuple[Plan, ...], node: Node) -> int:
    """Arrays that kernels together write, and read beside `node` and what they compute themselves."""
    members = {n for p in plans for n in p.group.members}
    read = {n for p in plans for n in p.demands.nodes() if n not in members and n is not node and n.size > 1}
    return sum(len(p.group.outputs) for p in plans) + len(read)
