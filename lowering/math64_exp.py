"""Exponentials, logarithms, hyperbolic functions and roots of f64, as tile expressions.

All take and return f64. Reductions stay exact without a fused multiply-add: the constants multiplied by an integer
have few bits. No step relies on subnormal numbers; they may count as zero, as XLA on CPU takes them.
"""

from __future__ import annotations

import math

from .expr import Expr, copysign, poly, where

INF = math.inf
NAN = math.nan
MIN_NORMAL = 2.0**-1022
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HIGH = 0.6931471805598903  # 42 bits
LN2_LOW = 5.497923018708371e-14
ROUNDER = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits
EXP_HIGH = 709.782712893384  # largest x with a finite exp
EXP_LOW = -708.3964185322641  # exp(x) is below 2**-1022 from here down

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2
_EXP = (
    0.5,
    0.16666666666666682,
    0.041666666666666505,
    0.00833333333331765,
    0.001388888888898161,
    0.00019841269895113443,
    2.480158712562348e-05,
    2.7557235955330542e-06,
    2.7557444148069876e-07,
    2.5111700934920362e-08,
    2.0862721676104187e-09,
)
# 2**r on |r| <= 1/2
EXP2 = (
    1.0,
    0.6931471805599453,
    0.24022650695910133,
    0.05550410866482298,
    0.009618129107593328,
    0.0013333558146151532,
    0.00015403530458083398,
    1.5252734050293764e-05,
    1.3215434815431826e-06,
    1.0177979818160068e-07,
    7.073860386459089e-09,
    4.466428244424803e-10,
)
# (log(1 + f) - 2 s) / s**3 in s**2, where s = f / (2 + f), on sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    0.6666666666666734,
    0.39999999999416647,
    0.2857142874203317,
    0.22222198603716356,
    0.18183562965257496,
    0.1531408081572449,
    0.1479568427334324,
)


def upper(x: Expr) -> Expr:
    """The 26 leading bits of x: products of such numbers are exact."""
    return (x.bits() & -(1 << 27)).bits("f64")


def reduce_exp(x: Expr) -> tuple[Expr, Expr, Expr]:
    """The integer n nearest to x / ln 2 (as n + ROUNDER), x - n ln 2, and what rounding dropped from that."""
    shifted = x.fma(LOG2E, ROUNDER)
    n = shifted - ROUNDER
    high, low = n.fma(-LN2_HIGH, x), n * LN2_LOW
    r = high - low
    return shifted, r, (high - r) - low


def expm1_poly(r: Expr) -> Expr:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return (r * r).fma(poly(r, _EXP), r)


def scale_bits(x: Expr, shifted: Expr, bias: int = 0) -> Expr:
    """x * 2**(n + bias) by its exponent bits, where shifted = n + ROUNDER; the result must be a normal number."""
    exponent = shifted.bits() << 52
    if bias:
        exponent = exponent + (bias << 52)
    return (x.bits() + exponent).bits("f64")


def exp(x: Expr) -> Expr:
    shifted, r, _ = reduce_exp(x)
    result = scale_bits(1.0 + expm1_poly(r), shifted)
    # x + inf is NaN for a NaN, infinity for the rest.
    return where(x <= EXP_HIGH, where(x < EXP_LOW, 0.0, result), x + INF)


def exp2(x: Expr) -> Expr:
    shifted = x + ROUNDER
    result = scale_bits(poly(x - (shifted - ROUNDER), EXP2), shifted)
    return where(x < 1024.0, where(x < -1022.0, 0.0, result), x + INF)


def _quarter_expm1(x: Expr) -> Expr:
    """(exp(x) - 1) / 4 for -40 < x < 711."""
    shifted, r, dropped = reduce_exp(x)
    q = (r * r).fma(poly(r, _EXP), dropped) + r
    quarter = scale_bits(x.lift(0.25), shifted)
    return quarter.fma(q, quarter - 0.25)


def expm1(x: Expr) -> Expr:
    tiny = abs(x) < 2.0**-54
    return where(tiny, x, where(x <= EXP_HIGH, where(x < -40.0, -1.0, _quarter_expm1(x) * 4.0), x + INF))


def split_log(x: Expr) -> tuple[Expr, Expr]:
    """The exponent e (i64) and f of x = 2**e * (1 + f), with 1 + f between sqrt(1/2) and sqrt(2)."""
    offset = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2)
    bits = x.bits() - offset
    mantissa = ((bits & ((1 << 52) - 1)) + offset).bits("f64")
    return bits >> 52, mantissa - 1.0


def _log1p_tail(f: Expr, dropped: Expr | None = None) -> Expr:
    """log(1 + f + dropped) - f, where `dropped` is below the precision of f."""
    s = f / (f + 2.0)
    square = s * s
    half = (f * 0.5) * f
    tail = s * (half + square * poly(square, _LOG)) - half
    if dropped is None:
        return tail
    # 1 / (1 + f) = (1 - s) / (1 + s), to a few bits.
    return tail + dropped * poly(s, (1.0, -2.0, 2.0, -2.0))


def _log_special(x: Expr, result: Expr) -> Expr:
    """Logarithm outside the positive normal numbers: -inf at zero, NaN below it, infinity and NaN as they are."""
    regular = (x >= MIN_NORMAL) & (x < INF)
    return where(regular, result, where(x < 0.0, NAN, where(x < MIN_NORMAL, -INF, x)))


def log(x: Expr) -> Expr:
    e, f = split_log(x)
    n = e.to("f64")
    return _log_special(x, n.fma(LN2_HIGH, f + n.fma(LN2_LOW, _log1p_tail(f))))


def log_sum(x: Expr, dropped: Expr) -> Expr:
    """log(x + dropped), where `dropped` is below the precision of x, and zero for x above 2**1000."""
    e, f = split_log(x)
    n = e.to("f64")
    scale = (0x3FF0000000000000 - (e << 52)).bits("f64")  # 2**-e
    tail = _log1p_tail(f, where(dropped.eq(0.0), 0.0, dropped * scale))
    return _log_special(x, n.fma(LN2_HIGH, f + n.fma(LN2_LOW, tail)))


def log2(x: Expr) -> Expr:
    e, f = split_log(x)
    return _log_special(x, e.to("f64") + f.fma(LOG2E, _log1p_tail(f) * LOG2E))


def log1p(x: Expr) -> Expr:
    u = 1.0 + x
    result = log_sum(u, where(u < 2.0**100, x - (u - 1.0), 0.0))
    return where(abs(x) < 2.0**-54, x, result)


def logistic(x: Expr) -> Expr:
    return 1.0 / (1.0 + exp(-x))


def tanh(x: Expr) -> Expr:
    magnitude = abs(x)
    small = magnitude < 0.5
    growth = expm1(2.0 * magnitude)
    ratio = where(small, growth, 2.0) / (growth + 2.0)
    return copysign(where(small, ratio, 1.0 - ratio), x)


def half_exp(x: Expr) -> Expr:
    """exp(x) / 2 for -700 < x < 710.47; past that infinity or NaN."""
    shifted, r, _ = reduce_exp(x)
    return where(x < 710.4758600739439, scale_bits(1.0 + expm1_poly(r), shifted, -1), x + INF)


def sinh(x: Expr) -> Expr:
    magnitude = abs(x)
    quarter = _quarter_expm1(magnitude)
    result = (quarter + quarter / quarter.fma(4.0, 1.0)) * 2.0
    result = where(magnitude < 711.0, result, magnitude + INF)
    return copysign(where(magnitude < 2.0**-27, magnitude, result), x)


def cosh(x: Expr) -> Expr:
    half = half_exp(abs(x))
    return half + 0.25 / half


def asinh(x: Expr) -> Expr:
    magnitude = abs(x)
    large = magnitude > 2.0**60
    square = where(large, 0.0, magnitude * magnitude)
    result = log1p(magnitude + square / (1.0 + (square + 1.0).sqrt()))
    return copysign(result + where(large, magnitude.lift(LN2), 0.0), x)


def acosh(x: Expr) -> Expr:
    large = x > 2.0**60
    above = x - 1.0
    result = log1p(where(large, above, above + (above * (above + 2.0)).sqrt()))
    return where(x < 1.0, NAN, result + where(large, x.lift(LN2), 0.0))


def atanh(x: Expr) -> Expr:
    magnitude = abs(x)
    return copysign(0.5 * log1p(2.0 * magnitude / (1.0 - magnitude)), x)


def sqrt(x: Expr) -> Expr:
    return x.sqrt()


def rsqrt(x: Expr) -> Expr:
    return 1.0 / x.sqrt()


def cbrt(x: Expr) -> Expr:
    magnitude = abs(x)
    words = magnitude.bits("u64")
    third = (words >> 32).to("u32") / 3
    inverse = ((0x553EF0FF - third).to("u64") << 32).bits("f64")  # within 5 percent of x**(-1/3)
    error = 1.0 - magnitude * inverse * inverse * inverse
    inverse = (inverse * error).fma(poly(error, (1 / 3, 2 / 9, 14 / 81, 35 / 243)), inverse)
    # A root of 17 bits, the cube of which is exact, and a correction.
    root = ((magnitude * inverse * inverse).bits() & -(1 << 36)).bits("f64")
    cube = root * root * root
    rest = (magnitude - cube) / cube
    result = (root * rest).fma(poly(rest, (1 / 3, -1 / 9, 5 / 81)), root)
    regular = (magnitude >= MIN_NORMAL) & (magnitude < INF)
    return where(regular, copysign(result, x), x)
