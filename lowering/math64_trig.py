"""Trigonometric functions of f64 and their inverses, as tile expressions.

The argument is reduced by multiples of pi/2. Up to 1e5 a few constants of 37 bits do it exactly; above, the integers
of the argument are multiplied with as many bits of 2/pi as matter, so the result is accurate for every finite number.
"""

from __future__ import annotations

import math
from itertools import pairwise

from .expr import Expr, copysign, poly, where
from .math64_exp import INF, NAN, ROUNDER

PI = math.pi
HALF_PI_HIGH = 1.5707963267948966  # nearest f64 to pi/2
HALF_PI_LOW = 6.123233995736766e-17
_PI_2 = (1.5707963267923333, 2.5633441515839558e-12, 1.0562999066987428e-23)
_SMALL = 1e5  # n = x * 2/pi stays below 2**16

# (sin(r) - r) / r**3 and (cos(r) - 1) / r**2 in r**2, on |r| <= pi/4
_SIN = (
    -0.16666666666666666,
    0.008333333333333097,
    -0.00019841269841051743,
    2.755731912621932e-06,
    -2.505208515378893e-08,
    1.605614497307623e-10,
    -7.479801701910935e-13,
)
_COS = (
    -0.5,
    0.0416666666666666,
    -0.0013888888888874487,
    2.4801587289683605e-05,
    -2.755731440507575e-07,
    2.087572986571265e-09,
    -1.1359965111791267e-11,
)
# (atan(x) - x) / x**3 in x**2 on 0 <= x <= 1
_ATAN = (
    -0.33333333333333065,
    0.1999999999995108,
    -0.14285714282556788,
    0.1111111100655565,
    -0.09090906995507815,
    0.07692279759125846,
    -0.06666403447428884,
    0.058805243940320176,
    -0.052535040713311235,
    0.0472227512244186,
    -0.04219060029161409,
    0.03663956575514308,
    -0.02990024523356375,
    0.021980524449748188,
    -0.013896572439693018,
    0.007193735010693308,
    -0.0028835184200201526,
    0.0008308352011264598,
    -0.00015205695843172875,
    1.3214804572244948e-05,
)
# (asin(x) - x) / x**3 in x**2 on |x| <= 1/2
_ASIN = (
    0.16666666666666763,
    0.07499999999970172,
    0.04464285717518798,
    0.03038194268096348,
    0.02237221572387713,
    0.017351599098320986,
    0.01398097199399558,
    0.011397698583097736,
    0.010786922715772562,
    0.003681680233885174,
    0.021766557095389834,
    -0.021081312746140682,
    0.03267923904959575,
)
# The first bits of 2/pi after 38 zeros.
_TWO_OVER_PI = (
    0x00000000028BE60D,
    0xB9391054A7F09D5F,
    0x47D4D377036D8A56,
    0x64F10E4107F9458E,
    0xAF7AEF1586DC91B8,
    0xE909374B801924BB,
    0xA827464873F877AC,
    0x72C4A69CFBA208D7,
    0xD4BAED1213A671C0,
    0x9AD17DF904E64758,
    0xE60D4CE7D272117E,
    0x2EF7E4A0EC7FE25F,
    0xFF7816603FBCBC46,
    0x2D6829B47DB4D9FB,
    0x3C9F2C26DD3D18FD,
    0x9A797FA8B5D49EEB,
    0x1FAF97C5ECF41CE7,
    0xDE294A4BA9AFED7E,
    0xC47E357421580CC1,
)
_LOW_WORD = 0xFFFFFFFF


def sin_poly(r: Expr) -> Expr:
    """sin(r) for |r| <= pi/4."""
    square = r * r
    return (square * r).fma(poly(square, _SIN), r)


def cos_poly(r: Expr) -> Expr:
    """cos(r) for |r| <= pi/4."""
    square = r * r
    return square.fma(poly(square, _COS), 1.0)


def _sine_or_cosine(r: Expr, sine: Expr) -> Expr:
    """sin(r) where `sine`, else cos(r), for |r| <= pi/4: one polynomial with the coefficients of either."""
    square = r * r
    p = where(sine, r.lift(_SIN[-1]), _COS[-1])
    for s, c in zip(_SIN[-2::-1], _COS[-2::-1], strict=True):
        p = p.fma(square, where(sine, r.lift(s), c))
    first = where(sine, r, 1.0)
    return (square * first).fma(p, first)


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    shifted = x.fma(2.0 / PI, ROUNDER)
    n = shifted - ROUNDER
    r = x
    for part in _PI_2:
        r = n.fma(-part, r)
    return r, shifted.bits()


def _multiply_high(a: Expr, b: Expr) -> Expr:
    """Upper 64 bits of the product of two u64, where a is below 2**53."""
    a_low, a_high, b_low, b_high = a & _LOW_WORD, a >> 32, b & _LOW_WORD, b >> 32
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    low = a_low * b_high + (middle & _LOW_WORD)
    return a_high * b_high + (middle >> 32) + (low >> 32)


def _window(first: Expr) -> list[Expr]:
    """192 bits of 2/pi from bit `first` of the table, in three words."""
    words: list[Expr] = [first.lift(word) for word in _TWO_OVER_PI]
    for step in (8, 4, 2, 1):  # of the words that may still be wanted, leave out the first `step` or not
        skip = (first & (64 * step)).ne(0)
        words = [where(skip, b, a) for a, b in zip(words, words[step : step + 3 + step], strict=False)]
    shift = first & 63
    aligned = shift.eq(0)  # a shift by 64 is undefined
    return [where(aligned, a, (a << shift) | (b >> ((64 - shift) & 63))) for a, b in pairwise(words)]


def _reduce_large(x: Expr) -> tuple[Expr, Expr]:
    """Reduction of |x| >= 2**16 in 128-bit integers (Payne and Hanek)."""
    bits = abs(x).bits("u64")
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    # Bits of 2/pi whose product with the mantissa is a multiple of 4 are left out.
    window = _window((bits >> 52) - 1039)
    middle = mantissa * window[1]
    low = middle + _multiply_high(mantissa, window[2])
    carry = where(low < middle, low.lift(1), 0)
    high = mantissa * window[0] + _multiply_high(mantissa, window[1]) + carry
    # high:low is x * 2/pi modulo 4, with 126 bits after the point.
    quadrant = (high + (1 << 61)) >> 62
    high = high - (quadrant << 62)
    # Words of 32 bits are exact in f64; added from the highest down, whatever cancels is exact too.
    turn = (high.bits("i64") >> 32).to("i32").to("f64") * 2.0**-30
    for word, scale in ((high & _LOW_WORD, 2.0**-62), (low >> 32, 2.0**-94), (low & _LOW_WORD, 2.0**-126)):
        turn = word.to("u32").to("f64").fma(scale, turn)
    r = turn.fma(HALF_PI_HIGH, turn * HALF_PI_LOW)
    negative = x < 0.0
    quadrant = quadrant.bits("i64")
    return where(negative, -r, r), where(negative, 0 - quadrant, quadrant)


def reduce_angle(x: Expr) -> tuple[Expr, Expr]:
    """x - q pi/2 within pi/4 of zero, and q (i64, only its two lowest bits count); NaN for infinities."""
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
    result = _sine_or_cosine(r, (quadrant & 1).eq(0))
    return (result.bits() ^ ((quadrant & 2) << 62)).bits("f64")


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


def _asin_parts(x: Expr) -> tuple[Expr, Expr]:
    """Whether |x| > 1/2, and asin of |x| or of sqrt((1 - |x|) / 2), whichever is at most 1/2."""
    magnitude = abs(x)
    large = magnitude > 0.5
    square = where(large, magnitude.fma(-0.5, 0.5), x * x)
    root = where(large, square.sqrt(), magnitude)
    return large, (root * square).fma(poly(square, _ASIN), root)


def asin(x: Expr) -> Expr:
    large, part = _asin_parts(x)
    return copysign(where(large, HALF_PI_HIGH - (2.0 * part - HALF_PI_LOW), part), x)


def acos(x: Expr) -> Expr:
    large, part = _asin_parts(x)
    backward = x < 0.0
    outer = where(backward, 2 * HALF_PI_HIGH - (2.0 * part - 2 * HALF_PI_LOW), 2.0 * part)
    inner = HALF_PI_HIGH - (where(backward, -part, part) - HALF_PI_LOW)
    return where(large, outer, inner)
