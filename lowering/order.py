"""Orders of elements: kernels visit each element of a result exactly once, but not always in its row-major order.

A transposed or reshaped copy is such a reordering: the position in one array, written in a mixed radix, has the digits of
the position in the other, in another order. Knowing that, a kernel can store every result where it belongs while it runs
through the elements in the order that suits it, and no copy is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .index import ZERO, Atom, Index, symbol


@dataclass(frozen=True)
class Order:
    """position = sum of ((i // source) % size) * target over `digits` (target, source, size); without digits position = i."""

    digits: tuple[tuple[int, int, int], ...]

    def apply(self, index: Index) -> Index:
        """Position of the element that is visited as number `index`."""
        out = ZERO if self.digits else index
        for target, source, size in self.digits:
            out = out + ((index // source) % size) * target
        return out

    def after(self, other: Order, size: int) -> Order | None:
        """`other` first, then this one."""
        counter = symbol("i", 0, size - 1)
        return order_of(self.apply(other.apply(counter)), counter, size)

    def inverse(self) -> Order:
        return _canonical([(source, target, size) for target, source, size in self.digits])


def order_of(position: Index, counter: Index, size: int) -> Order | None:
    """`position` as a permutation of `counter`, which runs through [0, size); None if it is none."""
    if position == counter:
        return Order(())
    if position.const or not position.terms or len(counter.terms) != 1:
        return None
    symbol = counter.terms[0][0]
    digits = []
    for atom, factor in position.terms:
        digit = _digit(atom, symbol, size)
        if digit is None or factor < 1:
            return None
        digits.append((factor, *digit))
    tiles = all(_tiles([(d[side], d[2]) for d in digits], size) for side in (0, 1))
    return _canonical(digits) if tiles else None


def _digit(atom: Atom, symbol: Atom, size: int) -> tuple[int, int] | None:
    """(divisor, modulus) of an atom that is a digit of `symbol`."""
    if atom is symbol:
        return 1, size
    base = atom.base
    if base is None or base.const or len(base.terms) != 1 or base.terms[0][1] != 1:
        return None
    inner = base.terms[0][0]
    if inner is symbol and size % atom.divisor == 0:
        return (atom.divisor, size // atom.divisor) if atom.kind == "div" else (1, atom.divisor)
    if atom.kind == "mod" and inner.kind == "div":
        below = _digit(inner, symbol, size)
        return (below[0], atom.divisor) if below is not None and below[1] % atom.divisor == 0 else None
    return None


def _tiles(digits: list[tuple[int, int]], size: int) -> bool:
    """Whether (stride, size) digits make up every number below `size` exactly once."""
    reached = 1
    for stride, count in sorted(digits):
        if stride != reached:
            return False
        reached *= count
    return reached == size


def _canonical(digits: list[tuple[int, int, int]]) -> Order:
    """Sorted by source, with neighbours merged that stay neighbours."""
    out: list[tuple[int, int, int]] = []
    for target, source, size in sorted(digits, key=lambda d: d[1]):
        if out and out[-1][1] * out[-1][2] == source and out[-1][0] * out[-1][2] == target:
            out[-1] = (out[-1][0], out[-1][1], out[-1][2] * size)
        else:
            out.append((target, source, size))
    return Order(tuple(out) if len(out) > 1 else ())
