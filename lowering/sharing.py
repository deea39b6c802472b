"""Contractions in which neighbouring lanes of a loop kernel read the same elements of one operand, and may share the loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .demand import Demands
from .graph import Graph, Node, fold_length
from .index import Index, counter
from .pull import Position, dot_position

Used = Callable[[Node, Position], set[Index] | None]
_ANYWHERE = frozenset(("gather", "dynamic_slice", "dynamic_update_slice"))


@dataclass(frozen=True)
class Tile:
    """A contraction with an operand that neighbouring lanes share.

    Attributes:
        side: number of that operand.
        rows: dimensions of the result within a slice that are the operand's own.
        everywhere: all slices share it, not only those that differ in the last axis.
    """

    side: int
    rows: tuple[int, ...] = ()
    everywhere: bool = True


def shared_by_slices(node: Node, at: Position, dims: Sequence[int | None], axes: Sequence[Index], used: Used) -> Tile | None:
    """How slices that differ in the last axis share an operand of a contraction.

    Args:
        at: index of a result; dims: the axis of each of its dimensions, None within slices.
        used: those of `axes` that the value of a node at an index depends on.
    """
    for side, place in enumerate(dot_position(node, at, counter("k", fold_length(node)))):
        found = used(node.args[side], place)
        if found is None or axes[-1] in found:
            continue
        spec, local = node.attr, [d for d, axis in enumerate(dims) if axis is None]
        batch, left = len(spec.lhs_batch), len(node.args[0].shape) - len(spec.lhs_contract)
        own = range(batch, left) if side == 0 else range(left, len(node.shape))
        if all(node.shape[d] == 1 for d in local if d < batch):
            return Tile(side, tuple(i for i, d in enumerate(local) if d in own), not found)
    return None


def shared_by_elements(node: Node, at: Position, used: Used) -> Tile | None:
    """How elements of a slice that differ in the last dimension share one; `used`: whether a value depends on that."""
    for side, place in enumerate(dot_position(node, at, counter("k", fold_length(node)))):
        if used(node.args[side], place) == set():
            return Tile(side)
    return None


def symbols_of(
    graph: Graph,
    node: Node,
    at: Position,
    symbols: Sequence[Index],
    held: Callable[[Node], bool],
    push: Callable[[Demands, Node], None],
) -> set[Index] | None:
    """Those of `symbols` that the value of a node at an index depends on; None where that cannot be told.

    Args:
        held: whether a node is read from where it is kept, rather than computed.
    """
    demands = Demands()
    demands.add(node, at, 1)
    found: set[Index] = set()
    for below in reversed(graph.nodes):
        places = demands.at(below)
        if not places:
            continue
        if None in places or (below.op in _ANYWHERE and not held(below)):
            return None
        if held(below) or below.op in ("iota", "const"):
            found.update(s for place in places for s in symbols if _uses(place or (), s))
        else:
            push(demands, below)
    return found


def _uses(place: Position, symbol: Index) -> bool:
    """Whether an index depends on a symbol."""
    atoms = {a for a, _ in symbol.terms}
    return any(a in atoms or (a.base is not None and _uses((a.base,), symbol)) for i in place for a, _ in i.terms)
