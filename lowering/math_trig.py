"""Trigonometric functions and their inverses, as tile expressions on f32.

The argument is reduced by multiples of pi/2. Below 3217 four constants of 12 bits do it exactly; above, the integers
of the argument are multiplied with as many bits of 2/pi as matter, so the result is accurate for every finite number.
"""

from __future__ import annotations

import math
from itertools import pairwise

from .expr import Expr, copysign, poly, where
from .math_exp import INF, NAN, ROUNDER

PI = math.pi
HALF_PI_HIGH = 1.5707963705062866  # nearest f32 to pi/2
HALF_PI_LOW = -4.371139000186241e-08
_PI_2 = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12)
_SMALL = 3216.0  # n = x * 2/pi stays below 2**11

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2, on |r| <= pi/4
_SIN = (-0.16666655242443085, 0.008332154713571072, -0.000195140833966434)
_COS = (0.04166664555668831, -0.0013887337408959866, 2.4434844817733392e-05)
# (atan(x) - x) / x**3 in x**2 on 0 <= x <= 1
_ATAN = (
    -0.33333301544189453,
    0.19998638331890106,
    -0.1426524519920349,
    0.10957571864128113,
    -0.08419445902109146,
    0.0582343190908432,
    -0.03145546838641167,
    0.011064315214753151,
    -0.0018271846929565072,
)
# (asin(x) - x) / x**3 in x**2 on |x| <= 1/2
_ASIN = (0.16666753590106964, 0.07495241612195969, 0.04547709599137306, 0.02414761111140251, 0.04221854731440544)
# The first bits of 2/pi after a word of zeros.
_TWO_OVER_PI = (0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)


def sin_poly(r: Expr) -> Expr:
    """sin(r) for |r| <= pi/4."""
    square = r * r
    return (square * r).fma(poly(square, _SIN), r)


def cos_poly(r: Expr) -> Expr:
    """cos(r) for |r| <= pi/4."""
    square = r * r
    return (square * square).fma(poly(square, _COS), square.fma(-0.5, 1.0))


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    shifted = x.fma(2.0 / PI, ROUNDER)
    n = shifted - ROUNDER
    r = x
    for part in _PI_2:
        r = n.fma(-part, r)
    return r, shifted.bits()


def _multiply_high(a: Expr, b: Expr) -> Expr:
    """Upper 32 bits of the product of two u32, where a is below 2**24."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    middle = a_high * b_low + ((a_low * b_low) >> 16)
    low = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (low >> 16)


def _reduce_large(x: Expr) -> tuple[Expr, Expr]:
    """Reduction of |x| >= 2**11 in 96-bit integers (Payne and Hanek)."""
    bits = abs(x).bits("u32")
    mantissa = (bits & 0x7FFFFF) | 0x800000
    # Bits of 2/pi whose product with the mantissa is a multiple of 4 are left out: start at bit `first` of the table.
    first = (bits >> 23) - (150 - 30)
    word, shift = first >> 5, first & 31
    tail = 32 - shift
    words = []
    for offset in range(4):
        picked = bits.lift(_TWO_OVER_PI[offset])
        for index in range(1, 5):
            picked = where(word.eq(index), _TWO_OVER_PI[index + offset], picked)
        words.append(picked)
    # A shift by 32 is undefined, and there is nothing to take from the next word then.
    window = [(a << shift) | where(shift.eq(0), 0, b >> (tail & 31)) for a, b in pairwise(words)]
    middle = mantissa * window[1]
    low = middle + _multiply_high(mantissa, window[2])
    carry = where(low < middle, low.lift(1), 0)
    high = mantissa * window[0] + _multiply_high(mantissa, window[1]) + carry
    # high:low is x * 2/pi modulo 4, with 62 bits after the point.
    quadrant = (high + (1 << 29)) >> 30
    high = high - (quadrant << 30)
    negative = high >> 31
    flip = 0 - negative
    low = (low ^ flip) + negative
    high = (high ^ flip) + where(low.eq(0), negative, 0)
    zeros = high.op("clz") & 31
    top = (high << zeros) | where(zeros.eq(0), 0, low >> ((32 - zeros) & 31))
    scale = ((127 - 30 - zeros) << 23).bits("f32")  # 2**(-30 - zeros)
    magnitude = top.to("f32") * (PI / 2) * scale
    r = (magnitude.bits("u32") ^ (negative << 31)).bits("f32")
    flip_x = x.bits("u32") >> 31
    r = (r.bits("u32") ^ (flip_x << 31)).bits("f32")
    quadrant = (quadrant ^ (0 - flip_x)) + flip_x
    return r, quadrant.bits("i32")


def reduce_angle(x: Expr) -> tuple[Expr, Expr]:
    """x - q pi/2 within pi/4 of zero, and q (i32, only its two lowest bits count); NaN for infinities."""
    b = x.b
    with b.branch((abs(x) > _SMALL).value) as branch:
        large = _reduce_large(Expr(b, b.anchor(x.value)))
        branch.yield_(large[0].value, large[1].value)
        with branch.otherwise():
            small = _reduce_small(x)
            branch.yield_(small[0].value, small[1].value)
    r, quadrant = (Expr(b, v) for v in branch.results)
    return where(abs(x) < INF, r, NAN), quadrant


def _turn(r: Expr, quadrant: Expr) -> Expr:
    """sin of r + quadrant * pi/2."""
    result = where((quadrant & 1).eq(0), sin_poly(r), cos_poly(r))
    return (result.bits() ^ ((quadrant & 2) << 30)).bits("f32")


def sin(x: Expr) -> Expr:
    r, quadrant = reduce_angle(x)
    return where(x.eq(0.0), x, _turn(r, quadrant))


def cos(x: Expr) -> Expr:
    r, quadrant = reduce_angle(x)
    return _turn(r, quadrant + 1)


def tan(x: Expr) -> Expr:
    r, quadrant = reduce_angle(x)
    sine, cosine = sin_poly(r), cos_poly(r)
    even = (quadrant & 1).eq(0)
    result = where(even, sine, -cosine) / where(even, cosine, sine)
    return where(x.eq(0.0), x, result)


def sin_cos_pi(x: Expr) -> tuple[Expr, Expr]:
    """sin(pi x) and cos(pi x) for |x| <= 1/2."""
    n = (x * 2.0).op("round_even")
    r = n.fma(-0.5, x) * PI
    sine, cosine = sin_poly(r), cos_poly(r)
    inside = n.eq(0.0)
    return where(inside, sine, n * cosine), where(inside, cosine, -n * sine)


def _atan_unit(x: Expr) -> Expr:
    """atan(x) for 0 <= x <= 1."""
    square = x * x
    return (square * x).fma(poly(square, _ATAN), x)


def atan(x: Expr) -> Expr:
    magnitude = abs(x)
    large = magnitude > 1.0
    result = _atan_unit(where(large, 1.0 / magnitude, magnitude))
    return copysign(where(large, HALF_PI_HIGH - (result - HALF_PI_LOW), result), x)


def atan2(y: Expr, x: Expr) -> Expr:
    height, width = abs(y), abs(x)
    steep = height > width
    small, large = where(steep, width, height), where(steep, height, width)
    # 0/0 and inf/inf have a direction here.
    ratio = where(small.eq(large), where(small.eq(0.0), small, 1.0), small / large)
    result = _atan_unit(ratio)
    result = where(steep, HALF_PI_HIGH - (result - HALF_PI_LOW), result)
    backward = x.bits() < 0
    result = where(backward, 2 * HALF_PI_HIGH - (result - 2 * HALF_PI_LOW), result)
    return where(x.is_nan() | y.is_nan(), NAN, copysign(result, y))


def _asin_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """|x| > 1/2, asin of |x| or of sqrt((1 - |x|) / 2), whichever is at most 1/2."""
    magnitude = abs(x)
    large = magnitude > 0.5
    square = where(large, magnitude.fma(-0.5, 0.5), x * x)
    root = where(large, square.sqrt(), magnitude)
    return large, (root * square).fma(poly(square, _ASIN), root), magnitude


def asin(x: Expr) -> Expr:
    large, part, _ = _asin_parts(x)
    return copysign(where(large, HALF_PI_HIGH - (2.0 * part - HALF_PI_LOW), part), x)


def acos(x: Expr) -> Expr:
    large, part, _ = _asin_parts(x)
    backward = x < 0.0
    outer = where(backward, 2 * HALF_PI_HIGH - (2.0 * part - 2 * HALF_PI_LOW), 2.0 * part)
    inner = HALF_PI_HIGH - (where(backward, -part, part) - HALF_PI_LOW)
    return where(large, outer, inner)
