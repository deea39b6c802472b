"""Fused multiply-add on the host, as the interpreter and constant folding compute it.

Of f32 the product is exact in f64, and the sum is rounded there and to f32. Of f64 the result is rounded once, after Boldo and
Melquiond: the exact product and sums are kept as pairs of numbers, and the last but one addition is rounded to odd.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray
_SPLIT = 2.0**27 + 1
_LOW, _HIGH = 2.0**-900, 2.0**990  # outside, the parts of a product or of a factor leave the range of normal numbers


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of arrays of one type, float32 or float64."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    plain = a * b + c
    high, low = _product(a, b)
    top, rest = _sum(c, low)
    value, error = _sum(high, top)
    exact = value + _odd_sum(rest, error)
    size = np.abs(high)
    inside = (size > _LOW) & (size < _HIGH) & (np.maximum(np.abs(a), np.abs(b)) < _HIGH) & (np.abs(c) < _HIGH)
    return np.where(inside, exact, plain)


def _halves(a: Array) -> tuple[Array, Array]:
    """a as a sum of two numbers of at most 26 bits."""
    scaled = a * _SPLIT
    high = scaled - (scaled - a)
    return high, a - high


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b as the rounded product and its error."""
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b, and where that is not exact the one of its two neighbours whose last bit is set."""
    total, error = _sum(a, b)
    total = np.asarray(total, np.float64)
    even = (np.ascontiguousarray(total).view(np.int64) & 1) == 0
    return np.where((error != 0) & even, np.nextafter(total, np.copysign(np.inf, error)), total)
