"""Functions of pi x and their inverses over pi, and 2**x - 1 with its inverse (IEEE 754-2019, section 9.2), for f32 and f64.

JAX has them as primitives since 0.12.1. They are written with functions of the same element type, `base`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .expr import Expr, copysign, where

Function = Callable[..., Expr]


def _half_turn(x: Expr) -> tuple[Expr, Expr]:
    """x less its nearest integer, and whether that one is odd; NaN for infinities. Both are exact."""
    nearest = x.op("round_even")
    half = nearest * 0.5
    return x - nearest, half.floor().ne(half)


def over_pi(base: Mapping[str, Function], sin_cos_pi: Callable[[Expr], tuple[Expr, Expr]]) -> dict[str, Function]:
    """The table.

    Args:
        base: functions of one element type by name.
        sin_cos_pi: sin(pi x) and cos(pi x) for |x| <= 1/2.
    """

    def sinpi(x: Expr) -> Expr:
        r, odd = _half_turn(x)
        sine = sin_cos_pi(r)[0]
        return where(r.eq(0.0), copysign(abs(r), x), where(odd, -sine, sine))

    def cospi(x: Expr) -> Expr:
        r, odd = _half_turn(x)
        cosine = sin_cos_pi(r)[1]
        return where(abs(r).eq(0.5), 0.0, where(odd, -cosine, cosine))

    def tanpi(x: Expr) -> Expr:
        return sinpi(x) / cospi(x)  # the signs of zeros and infinities are those of the standard

    def exp2m1(x: Expr) -> Expr:
        return where(abs(x) < 1.0, base["expm1"](x * math.log(2.0)), base["exp2"](x) - 1.0)

    def log2p1(x: Expr) -> Expr:
        return where(x < 1.0, base["log1p"](x) * (1.0 / math.log(2.0)), base["log2"](x + 1.0))

    def divided(name: str) -> Function:
        return lambda *args: base[name](*args) * (1.0 / math.pi)

    inverse = {f"{name}pi": divided(name) for name in ("asin", "acos", "atan", "atan2")}
    return {"sinpi": sinpi, "cospi": cospi, "tanpi": tanpi, "exp2m1": exp2m1, "log2p1": log2p1, **inverse}
