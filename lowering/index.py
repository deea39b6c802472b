"""Index algebra: affine expressions with floor division and modulo, exact bounds, and the rules that cancel views.

A reshape, transpose, slice or broadcast only rewrites the indices at which its operand is read; whether a chain of
them costs anything is decided here, by simplification. `unflatten` followed by `flatten` of the same shape gives back
the flat index.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, cast

_numbers = itertools.count()
_atoms: weakref.WeakValueDictionary[tuple, Atom] = weakref.WeakValueDictionary()


class Atom:
    """A symbol with bounds, or `base // divisor` or `base % divisor` that did not simplify."""

    __slots__ = ("kind", "base", "divisor", "lo", "hi", "value", "number", "name", "__weakref__")

    def __init__(
        self, kind: str, base: Index | None, divisor: int, lo: int, hi: int, value: Any = None, name: str = ""
    ) -> None:
        self.kind, self.divisor, self.lo, self.hi, self.value, self.name = kind, divisor, lo, hi, value, name
        self.base = cast("Index", base)  # a symbol has none, and nobody asks it
        self.number = next(_numbers)

    def __repr__(self) -> str:
        return self.name if self.kind == "sym" else f"({self.base} {'//' if self.kind == 'div' else '%'} {self.divisor})"


class Index:
    """sum(coefficient * atom) + const, an integer in [lo, hi]."""

    __slots__ = ("terms", "const", "lo", "hi", "_hash")

    def __init__(self, terms: tuple[tuple[Atom, int], ...], const: int) -> None:
        self.terms, self.const = terms, const
        lo = hi = const
        for atom, k in terms:
            lo += k * (atom.lo if k > 0 else atom.hi)
            hi += k * (atom.hi if k > 0 else atom.lo)
        self.lo, self.hi = lo, hi
        self._hash = hash((terms, const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self.const == other.const and self.terms == other.terms)

    def __repr__(self) -> str:
        parts = [f"{k}*{a}" if k != 1 else str(a) for a, k in self.terms]
        return " + ".join(parts + ([str(self.const)] if self.const or not parts else []))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other) if other else self
        if not self.terms:
            return other + self.const
        if not other.terms:
            return self + other.const
        sums = dict(self.terms)
        for atom, k in other.terms:
            sums[atom] = sums.get(atom, 0) + k
        return _combine(sums, self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, k: int) -> Index:
        if k == 1:
            return self
        return Index(tuple((a, c * k) for a, c in self.terms), self.const * k) if k else ZERO

    def __floordiv__(self, divisor: int) -> Index:
        if divisor == 1:
            return self
        if self.lo // divisor == self.hi // divisor:
            return constant(self.lo // divisor)
        whole = {a: k // divisor for a, k in self.terms if k % divisor == 0}
        rest = tuple((a, k) for a, k in self.terms if k % divisor)
        outer, inner = divmod(self.const, divisor)
        left = Index(rest, inner)
        quotient = Index(tuple(whole.items()), outer)
        if 0 <= left.lo and left.hi < divisor:
            return quotient
        common = gcd(divisor, *(k for _, k in rest))
        if common > 1:
            return quotient + Index(tuple((a, k // common) for a, k in rest), inner // common) // (divisor // common)
        parts = _split(left, divisor)
        if parts is not None:
            step, high, _ = parts
            return quotient + high // (divisor // step)
        if len(rest) == 1 and rest[0][1] == 1 and inner == 0:
            atom = rest[0][0]
            if atom.kind == "div":
                return quotient + atom.base // (atom.divisor * divisor)
            if atom.kind == "mod" and atom.divisor % divisor == 0:
                return quotient + (atom.base // divisor) % (atom.divisor // divisor)
        return quotient + _atom("div", left, divisor, left.lo // divisor, left.hi // divisor)

    def __mod__(self, divisor: int) -> Index:
        if divisor == 1:
            return ZERO
        if 0 <= self.lo and self.hi < divisor:
            return self
        rest = tuple((a, k) for a, k in self.terms if k % divisor)
        left = Index(rest, self.const % divisor)
        if 0 <= left.lo and left.hi < divisor:
            return left
        common = gcd(divisor, *(k for _, k in rest))
        if common > 1:
            high, low = divmod(left.const, common)
            return (Index(tuple((a, k // common) for a, k in rest), high) % (divisor // common)) * common + low
        parts = _split(left, divisor)
        if parts is not None:
            step, top, bottom = parts
            return (top % (divisor // step)) * step + bottom
        if len(rest) == 1 and rest[0][1] == 1 and left.const == 0:
            atom = rest[0][0]
            if atom.kind == "mod" and atom.divisor % divisor == 0:
                return atom.base % divisor
        if left.lo // divisor == left.hi // divisor:
            return left - (left.lo // divisor) * divisor
        return _atom("mod", left, divisor, 0, divisor - 1)

    @property
    def is_const(self) -> bool:
        return not self.terms


def _split(index: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """(step, high, low) with index = step * high + low, 0 <= low < step and step dividing `divisor`."""
    for _, k in index.terms:
        step = gcd(k, divisor)
        if step == 1:
            continue
        high_const, low_const = divmod(index.const, step)
        low = Index(tuple((a, c) for a, c in index.terms if c % step), low_const)
        if 0 <= low.lo and low.hi < step:
            return step, Index(tuple((a, c // step) for a, c in index.terms if c % step == 0), high_const), low
    return None


def _atom(kind: str, base: Index, divisor: int, lo: int, hi: int) -> Index:
    key = (kind, base, divisor)
    atom = _atoms.get(key)
    if atom is None:
        atom = Atom(kind, base, divisor, lo, hi)
        _atoms[key] = atom
    return Index(((atom, 1),), 0)


def _order(term: tuple[Atom, int]) -> int:
    return term[0].number


def _combine(sums: dict[Atom, int], const: int) -> Index:
    """Canonical order, and the two rules that undo `unflatten`: x//c*c + x%c = x and (x//c%n)*c + x%c = x%(c*n)."""
    sums = {a: k for a, k in sums.items() if k}
    for atom, k in list(sums.items()):
        if atom.kind != "mod":
            continue
        base, divisor = atom.base, atom.divisor
        for other, factor in sums.items():
            if factor != k * divisor or other.kind == "sym":
                continue
            if other.kind == "div" and base // divisor == Index(((other, 1),), 0):
                rest = {a: c for a, c in sums.items() if a is not atom and a is not other}
                return Index(tuple(sorted(rest.items(), key=_order)), const) + base * k
            if other.kind == "mod" and (base // divisor) == other.base:
                rest = {a: c for a, c in sums.items() if a is not atom and a is not other}
                return Index(tuple(sorted(rest.items(), key=_order)), const) + (base % (divisor * other.divisor)) * k
    return Index(tuple(sorted(sums.items(), key=_order)), const)


def constant(value: int) -> Index:
    return Index((), value)


ZERO = constant(0)


def symbol(name: str, lo: int, hi: int, value: Any = None) -> Index:
    """A fresh symbol in [lo, hi]; `value` is whatever stands for it in a kernel."""
    return Index(((Atom("sym", None, 0, lo, hi, value, name), 1),), 0)


def counter(name: str, count: int, value: Any = None) -> Index:
    """An index that runs through [0, count); plain 0 where it can be nothing else."""
    return symbol(name, 0, count - 1, value) if count > 1 else ZERO


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    out = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
    return tuple(out)


def flatten(index: Iterable[Index], shape: Sequence[int]) -> Index:
    """Row-major position of a multi-dimensional index."""
    flat = ZERO
    for i, step in zip(reversed(tuple(index)), reversed(strides(shape)), strict=True):
        flat = i * step + flat
    return flat


def unflatten(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Multi-dimensional index of a row-major position."""
    if prod(shape) == 0:
        return (ZERO,) * len(shape)
    return tuple((flat // step) % size if size > 1 else ZERO for size, step in zip(shape, strides(shape), strict=True))


@dataclass(frozen=True)
class Cond:
    """lo <= index < hi."""

    index: Index
    lo: int
    hi: int

    @property
    def known(self) -> bool | None:
        """True or False where the bounds decide, else None."""
        if self.lo <= self.index.lo and self.index.hi < self.hi:
            return True
        if self.index.hi < self.lo or self.index.lo >= self.hi:
            return False
        return None


def narrow(conds: Iterable[Cond]) -> tuple[Cond, ...] | None:
    """The conditions that are not known to hold; None where one is known to fail."""
    out = []
    for cond in conds:
        known = cond.known
        if known is False:
            return None
        if known is None:
            out.append(cond)
    return tuple(out)
