"""One lane an element: elementwise work, views, gathers, and reductions small enough for a lane."""

from __future__ import annotations

from ...runtime.caps import DeviceCaps
from ..combine import Combiner, combiner_of
from ..graph import Node, fold_length
from ..groups import Group
from ..index import Index, counter, symbol, unflatten
from ..pull import Puller
from ..tile import Value
from .writer import KernelCall, Writer, round_up

LOCAL = 64
TURNS = 16  # elements a lane takes of a large array; one number, so that all large arrays share their code
LARGE = {"cpu": 1 << 17}  # elements of a large array; other kinds of device have more lanes to keep busy: MANY
MANY = 1 << 20


def build_map(group: Group, caps: DeviceCaps) -> KernelCall:
    """Every output has the same number of elements; lane i computes element i of each, or the one at its order's i.

    The number of elements and the first workgroup are literals, so that kernels which differ in nothing else have the
    same code, and may be packed into one dispatch.
    """
    writer = Writer(group, caps)
    b, p = writer.b, writer.p
    count = group.outputs[0].size
    local = round_up(LOCAL, caps.subgroup_size)
    turns = TURNS if count >= LARGE.get(caps.kind, MANY) else 1
    block = local * turns
    blocks = -(-count // block)
    grid, number, _ = writer.groups(blocks)
    packable = grid[1] == 1
    if packable:
        value = b.op("sub", b.builtin("group_x"), writer.literal("first", 0))
        number = symbol("g", 0, blocks - 1, value)
    limit = writer.literal("count", count)
    first = number * block + writer.lane(local)

    def element(flat: Index) -> None:
        value = p.index(flat)
        with b.branch(b.op("lt", value, limit)):
            at = counter("i", count, value)
            _fold_together(p, group, at)
            places = [(n, group.position(n, at)) for n in group.outputs]
            writer.store([(n, place, p.value(n, unflatten(place, n.shape))) for n, place in places])

    if turns == 1:
        element(first)
    else:
        with b.loop(0, turns) as loop:
            element(first + symbol("t", 0, turns - 1, loop.index) * local)
    return writer.finish(local, grid, elements=count if packable else None)


def _fold_together(p: Puller, group: Group, at: Index) -> None:
    """Fold results that are reductions of equal length in one loop, so that what they share is computed once."""
    by_length: dict[int, list[Node]] = {}
    for node in group.outputs:
        if node.op == "reduce":
            by_length.setdefault(fold_length(node), []).append(node)
    for length, nodes in by_length.items():
        if len(nodes) < 2:
            continue
        combiners = [combiner_of(n) for n in nodes]
        starts = [c.identity(p) for c in combiners]

        def step(
            state: tuple[Value, ...], k: Index, nodes: list[Node] = nodes, combiners: list[Combiner] = combiners
        ) -> tuple[Value, ...]:
            out: list[Value] = []
            for node, combiner in zip(nodes, combiners, strict=True):
                mine = state[len(out) : len(out) + len(combiner.types)]
                where = unflatten(group.position(node, at), node.shape)
                out += combiner.step(p.b, mine, p.element(node, where, k, ()), p.index(k))
            return tuple(out)

        with p.b.loop(0, length, 1, [v for s in starts for v in s]) as loop:
            loop.yield_(*step(loop.carry, symbol("k", 0, length - 1, loop.index)))
        results = list(loop.results)
        for node, combiner in zip(nodes, combiners, strict=True):
            mine, results = results[: len(combiner.types)], results[len(combiner.types) :]
            p.fix(node, group.position(node, at), combiner.finish(p.b, tuple(mine)))
