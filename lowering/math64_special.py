"""Error functions, gamma functions and powers of f64, as tile expressions."""

from __future__ import annotations

from .expr import Expr, poly, where
from .math64_exp import EXP2, INF, MIN_NORMAL, NAN, ROUNDER, scale_bits, split_log, upper

# 3 atanh(s) / s - 3 - s**2 = s**4 P(s**2), |s| <= 0.1716
_LOG_PAIR = (
    0.6000000000000338,
    0.4285714285514938,
    0.33333333779882535,
    0.27272676550761255,
    0.230801359954413,
    0.1988522661796371,
    0.19794493352068387,
)
_LOG2_SCALE = 0.9617966939259756  # 2 / (3 ln 2)
_LOG2_SCALE_HIGH = 0.9617966860532761  # its 26 leading bits
_LOG2_SCALE_LOW = 7.872699542894897e-09


def _log2_pair(x: Expr) -> tuple[Expr, Expr]:
    """log2 of a positive normal number as a sum of two f64, to about 66 bits; the first has at most 26 bits."""
    exponent, f = split_log(x)
    n = exponent.to("f64")
    # s = f / (2 + f) in two parts.
    divisor = f + 2.0
    dropped = f - (divisor - 2.0)
    inverse = 1.0 / divisor
    s = f * inverse
    s_high = upper(s)
    divisor_high = upper(divisor)
    rest = (f - s_high * divisor_high) - s_high * (divisor - divisor_high) - s_high * dropped
    s_low = rest * inverse
    # 3 log(1 + f) / (2 s) = 3 + s**2 + ... in two parts.
    square = s_high * s_high
    whole = s * s
    tail = whole * whole * poly(whole, _LOG_PAIR) + s_low * (s_high + s)
    series_high = upper(square + 3.0 + tail)
    series_low = tail - ((series_high - 3.0) - square)
    lead = s_high * series_high
    small = s_low * series_high + series_low * s
    log_high = upper(lead + small)
    log_low = small - (log_high - lead)
    lead = log_high * _LOG2_SCALE_HIGH
    small = log_high * _LOG2_SCALE_LOW + log_low * _LOG2_SCALE
    high = upper((lead + small) + n)
    return high, small - ((high - n) - lead)


def pow(x: Expr, y: Expr) -> Expr:
    """x ** y with the corner cases of C99."""
    magnitude = abs(x)
    high, low = _log2_pair(magnitude)
    high = where(magnitude < MIN_NORMAL, -INF, where(magnitude.eq(INF), INF, high))
    y_high = upper(y)
    lead = y_high * high
    small = (y - y_high) * high + y * low
    rough = y * high
    product = where(abs(rough) < 2048.0, lead + small, rough)
    shifted = product + ROUNDER
    r = (lead - (shifted - ROUNDER)) + small
    result = scale_bits(poly(r, EXP2), shifted)
    result = where(product < 1024.0, where(product < -1022.0, 0.0, result), INF)
    whole = y.floor().eq(y)
    half = y * 0.5
    odd = whole & half.floor().ne(half)
    negative = x.bits() < 0
    result = where(negative & odd, -result, result)
    undefined = (x < 0.0) & ~whole & (magnitude < INF)
    result = where(undefined, NAN, where(magnitude.eq(1.0) & ~(negative & odd) & ~undefined, 1.0, result))
    result = where(magnitude.eq(1.0) & negative & odd, -1.0, result)
    result = where(x.is_nan() | y.is_nan(), NAN, result)
    return where(y.eq(0.0) | x.eq(1.0), 1.0, result)
