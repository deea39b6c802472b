"""Arithmetic on tile values with Python operators, so that formulas in kernels read like formulas.

An `Expr` is a value and the builder that holds it. Plain numbers are taken as constants of the other side's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dtypes import same_width, width
from .tile import Builder, Value

Number = float | int


class Expr:
    """A tile value with operators. Comparisons give bool expressions; use `eq` and `ne` for equality."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def lift(self, other: Expr | Number) -> Expr:
        """`other` as an expression of this type."""
        return other if isinstance(other, Expr) else Expr(self.b, self.b.const(other, self.dtype))

    def op(self, op: str, *others: Expr | Number, attr: Any = None) -> Expr:
        return Expr(self.b, self.b.op(op, self.value, *(self.lift(o).value for o in others), attr=attr))

    def __add__(self, other: Expr | Number) -> Expr:
        return self.op("add", other)

    def __radd__(self, other: Number) -> Expr:
        return self.lift(other).op("add", self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return self.op("sub", other)

    def __rsub__(self, other: Number) -> Expr:
        return self.lift(other).op("sub", self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return self.op("mul", other)

    def __rmul__(self, other: Number) -> Expr:
        return self.lift(other).op("mul", self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return self.op("div", other)

    def __rtruediv__(self, other: Number) -> Expr:
        return self.lift(other).op("div", self)

    def __neg__(self) -> Expr:
        return self.op("neg")

    def __abs__(self) -> Expr:
        return self.op("abs")

    def __invert__(self) -> Expr:
        return self.op("not")

    def __and__(self, other: Expr | Number) -> Expr:
        return self.op("and", other)

    def __or__(self, other: Expr | Number) -> Expr:
        return self.op("or", other)

    def __xor__(self, other: Expr | Number) -> Expr:
        return self.op("xor", other)

    def __lshift__(self, other: Expr | Number) -> Expr:
        return self.op("shl", other)

    def __rshift__(self, other: Expr | Number) -> Expr:
        return self.op("shr", other)

    def __lt__(self, other: Expr | Number) -> Expr:
        return self.op("lt", other)

    def __le__(self, other: Expr | Number) -> Expr:
        return self.op("le", other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return self.lift(other).op("lt", self)

    def __ge__(self, other: Expr | Number) -> Expr:
        return self.lift(other).op("le", self)

    def eq(self, other: Expr | Number) -> Expr:
        return self.op("eq", other)

    def ne(self, other: Expr | Number) -> Expr:
        return self.op("ne", other)

    def fma(self, factor: Expr | Number, addend: Expr | Number) -> Expr:
        """self * factor + addend."""
        return self.op("fma", factor, addend)

    def floor(self) -> Expr:
        return self.op("floor")

    def sqrt(self) -> Expr:
        return self.op("sqrt")

    def to(self, dtype: str) -> Expr:
        """Value conversion."""
        return self.op("convert", attr=dtype)

    def bits(self, dtype: str | None = None) -> Expr:
        """The same bits as `dtype`, another type of this width; by default the signed integer."""
        return self.op("bitcast", attr=dtype or same_width("i", self.dtype))

    def is_nan(self) -> Expr:
        return self.ne(self)


def where(condition: Expr, a: Expr | Number, b: Expr | Number) -> Expr:
    """`a` where `condition`, else `b`; two plain numbers are f32."""
    if not isinstance(a, Expr):
        a = b.lift(a) if isinstance(b, Expr) else Expr(condition.b, condition.b.f32(a))
    return condition.op("select", a, a.lift(b))


def poly(x: Expr, coefficients: Sequence[float]) -> Expr:
    """c[0] + c[1] x + c[2] x**2 + ... by Horner's rule."""
    result: Expr | None = None
    for c in reversed(coefficients):
        result = x.lift(c) if result is None else result.fma(x, c)
    assert result is not None
    return result


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """`magnitude` (not negative) with the sign bit of `sign`."""
    return (magnitude.bits() | (sign.bits() & -(1 << (width(sign.dtype) - 1)))).bits(magnitude.dtype)
