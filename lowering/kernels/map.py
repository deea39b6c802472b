"""One lane an element: elementwise work, views, gathers, and reductions small enough for a lane."""

from __future__ import annotations

from ...runtime.caps import DeviceCaps
from ..groups import Group
from ..index import Index, constant, symbol, unflatten
from .writer import KernelCall, Writer, round_up

LOCAL = 64
BUSY = 1 << 16  # lanes beyond which each takes several elements


def build_map(group: Group, caps: DeviceCaps) -> KernelCall:
    """Every output has the same number of elements; lane i computes element i of each.

    The number of elements and the first workgroup are literals, so that kernels which differ in nothing else have the
    same code, and may be packed into one dispatch.
    """
    writer = Writer(group, caps)
    b, p = writer.b, writer.p
    count = group.outputs[0].size
    local = round_up(LOCAL, caps.subgroup_size)
    turns = max(1, min(16, count // BUSY))
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
            at = symbol("i", 0, count - 1, value) if count > 1 else constant(0)
            writer.store([(n, at, p.value(n, unflatten(at, n.shape))) for n in group.outputs])

    if turns == 1:
        element(first)
    else:
        with b.loop(0, turns) as loop:
            element(first + symbol("t", 0, turns - 1, loop.index) * local)
    return writer.finish(local, grid, elements=count if packable else None)
