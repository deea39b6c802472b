"""Exponentials, logarithms, hyperbolic functions and roots, as tile expressions.

All take and return f32. Reductions stay exact without a fused multiply-add: the constants multiplied by an integer
have few bits. No step relies on subnormal numbers; results below 2**-126 are zero, as XLA on CPU gives them.
"""

from __future__ import annotations

import math

from .expr import Expr, copysign, poly, where

INF = math.inf
NAN = math.nan
MIN_NORMAL = 2.0**-126
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HIGH = 0.693359375  # 9 bits
LN2_LOW = -2.12194440054690583e-4
ROUNDER = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
EXP_HIGH = 88.72283935546875  # largest x with a finite exp
EXP_LOW = -87.33654475055310  # exp(x) is below 2**-126 from here down

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2
_EXP = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368954062461853, 0.0013950599823147058)
_EXPM1 = (0.5, 0.16666541993618011, 0.04166628047823906, 0.008366644382476807, 0.0013946552062407136)
# 2**r on |r| <= 1/2
_EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022650718688965,
    0.055503278970718384,
    0.009618005715310574,
    0.0013400283642113209,
    0.00015475897816941142,
)
# (log(1 + f) - f + f**2 / 2) / f**3 on sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    0.3333333134651184,
    -0.250008225440979,
    0.20001226663589478,
    -0.16623356938362122,
    0.14201761782169342,
    -0.131601944565773,
    0.12761549651622772,
    -0.07634429633617401,
)
# x * P(x**2) / Q(x**2) on |x| <= 9
_TANH_P = (1.0, 0.13377754390239716, 0.0034917022567242384, 2.0545097868307494e-05, 1.326583554117633e-08)
_TANH_Q = (1.0, 0.46711069345474243, 0.025862200185656548, 0.0003279278753325343, 7.740243859188922e-07)
# (sinh(x) - x) / x**3 in x**2 on |x| <= 1
_SINH = (0.1666666716337204, 0.008333350531756878, 0.0001983606634894386, 2.817439735736116e-06)


def reduce_exp(x: Expr) -> tuple[Expr, Expr]:
    """The integer n nearest to x / ln 2 (as n + ROUNDER) and x - n ln 2."""
    shifted = x.fma(LOG2E, ROUNDER)
    n = shifted - ROUNDER
    return shifted, n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))


def exp_poly(r: Expr) -> Expr:
    """exp(r) for |r| <= ln(2) / 2."""
    return poly(r, (1.0, 1.0, *_EXP))


def scale_bits(x: Expr, shifted: Expr, bias: int = 0) -> Expr:
    """x * 2**(n + bias) by its exponent bits, where shifted = n + ROUNDER; the result must be a normal number."""
    exponent = shifted.bits() << 23
    if bias:
        exponent = exponent + (bias << 23)
    return (x.bits() + exponent).bits("f32")


def exp(x: Expr) -> Expr:
    shifted, r = reduce_exp(x)
    result = scale_bits(exp_poly(r), shifted)
    # x + inf is NaN for a NaN, infinity for the rest.
    return where(x <= EXP_HIGH, where(x < EXP_LOW, 0.0, result), x + INF)


def exp2(x: Expr) -> Expr:
    shifted = x + ROUNDER
    result = scale_bits(poly(x - (shifted - ROUNDER), _EXP2), shifted)
    return where(x < 128.0, where(x < -126.0, 0.0, result), x + INF)


def expm1(x: Expr) -> Expr:
    shifted, r = reduce_exp(x)
    q = (r * r).fma(poly(r, _EXPM1), r)
    half = scale_bits(x.lift(0.5), shifted)  # 2**(n - 1): never above the largest number
    result = half.fma(q, half - 0.5) * 2.0
    tiny = abs(x) < 2.0**-25
    return where(tiny, x, where(x <= EXP_HIGH, where(x < -18.0, -1.0, result), x + INF))


def split_log(x: Expr) -> tuple[Expr, Expr]:
    """The exponent e (as f32) and f of x = 2**e * (1 + f), with 1 + f between sqrt(1/2) and sqrt(2)."""
    offset = 0x3F3504F3  # bits of sqrt(1/2)
    bits = x.bits() - offset
    mantissa = ((bits & 0x7FFFFF) + offset).bits("f32")
    return (bits >> 23).to("f32"), mantissa - 1.0


def _log1p_tail(f: Expr) -> Expr:
    """log(1 + f) - f."""
    square = f * f
    return square.fma(-0.5, square * f * poly(f, _LOG))


def _log_special(x: Expr, result: Expr, lowest: float = MIN_NORMAL) -> Expr:
    """Logarithm outside the positive normal numbers: -inf at zero, NaN below it, infinity and NaN as they are."""
    regular = (x >= lowest) & (x < INF)
    return where(regular, result, where(x < 0.0, NAN, where(x < lowest, -INF, x)))


def log_positive(x: Expr) -> Expr:
    """log of a positive normal number."""
    e, f = split_log(x)
    return e.fma(LN2_HIGH, f + e.fma(LN2_LOW, _log1p_tail(f)))


def log(x: Expr) -> Expr:
    return _log_special(x, log_positive(x))


def log2(x: Expr) -> Expr:
    e, f = split_log(x)
    high = 1.44140625  # of log2(e), 10 bits
    tail = _log1p_tail(f)
    return _log_special(x, e + f.fma(high, f.fma(LOG2E - high, tail * LOG2E)))


def log1p(x: Expr) -> Expr:
    u = 1.0 + x
    lost = where(u < 2.0**60, x - (u - 1.0), 0.0)  # what the sum dropped
    result = _log_special(u, log_positive(u) + lost / u)
    return where(abs(x) < 2.0**-25, x, result)


def logistic(x: Expr) -> Expr:
    return 1.0 / (1.0 + exp(-x))


def tanh(x: Expr) -> Expr:
    magnitude = abs(x)
    square = x * x
    ratio = magnitude * poly(square, _TANH_P) / poly(square, _TANH_Q)
    return copysign(where((magnitude > 9.0) | (ratio > 1.0), 1.0, ratio), x)


def half_exp(x: Expr) -> Expr:
    """exp(x) / 2 for -80 < x < 89.4; past that infinity or NaN."""
    shifted, r = reduce_exp(x)
    return where(x < 89.4159, scale_bits(exp_poly(r), shifted, -1), x + INF)


def sinh(x: Expr) -> Expr:
    magnitude = abs(x)
    square = x * x
    small = (square * x).fma(poly(square, _SINH), x)
    half = half_exp(magnitude)
    return where(magnitude < 1.0, small, copysign(half - 0.25 / half, x))


def cosh(x: Expr) -> Expr:
    half = half_exp(abs(x))
    return half + 0.25 / half


def asinh(x: Expr) -> Expr:
    magnitude = abs(x)
    large = magnitude > 2.0**30
    square = where(large, 0.0, magnitude * magnitude)
    result = log1p(magnitude + square / (1.0 + (square + 1.0).sqrt()))
    return copysign(result + where(large, magnitude.lift(LN2), 0.0), x)


def acosh(x: Expr) -> Expr:
    large = x > 2.0**30
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
    inverse = (0x54A2FA8C - magnitude.bits("u32") / 3).bits("f32")  # within 5 percent of x**(-1/3)
    for _ in range(2):  # each step raises the relative error to the fourth power, without a division
        error = 1.0 - magnitude * inverse * inverse * inverse
        inverse = (inverse * error).fma(poly(error, (1 / 3, 2 / 9, 14 / 81)), inverse)
    regular = (magnitude >= MIN_NORMAL) & (magnitude < INF)
    return where(regular, copysign(magnitude * inverse * inverse, x), x)


def integer_pow(x: Expr, exponent: int) -> Expr:
    """x to a constant integer power by repeated squaring, in the order XLA multiplies."""
    if exponent == 0:
        return x.lift(1)
    remaining, result, square = abs(exponent), None, x
    while remaining:
        if remaining & 1:
            result = square if result is None else result * square
        remaining >>= 1
        if remaining:
            square = square * square
    assert result is not None
    return 1.0 / result if exponent < 0 else result
