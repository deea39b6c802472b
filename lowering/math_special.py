"""Error functions, gamma functions and powers, as tile expressions on f32."""

from __future__ import annotations

from .expr import Expr, copysign, poly, where
from .math_exp import _EXP2, INF, LN2_HIGH, LN2_LOW, LOG2E, NAN, ROUNDER, exp_poly, log, log1p, scale_bits, split_log
from .math_trig import PI, sin_cos_pi

# x * P(x**2) / Q(x**2) on |x| <= 3.93
_ERF_P = (
    1.1283791065216064,
    0.1907820999622345,
    0.052790068089962006,
    0.0037795393727719784,
    0.00028480772743932903,
    2.041992047452368e-06,
)
_ERF_Q = (1.0, 0.5024089813232422, 0.11425682157278061, 0.01499729510396719, 0.001165197230875492, 3.800425474764779e-05)
# exp(x**2) erfc(x) = P(x) / Q(x) on 0 <= x <= 10.2
_ERFC_P = (1.0, 1.2392499446868896, 0.7324838042259216, 0.2296382337808609, 0.03288460895419121)
_ERFC_Q = (1.0, 2.3676297664642334, 2.4040584564208984, 1.3270107507705688, 0.40704917907714844, 0.05828576534986496)
# Giles, "Approximating the erfinv function" (single precision), in w - 2.5 below w = 5 and sqrt(w) - 3 above.
_ERF_INV_CENTRE = (
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-06,
    -3.5233877e-06,
    3.43273939e-07,
    2.81022636e-08,
)
_ERF_INV_TAIL = (
    2.83297682,
    1.00167406,
    0.00943887047,
    -0.0076224613,
    0.00573950773,
    -0.00367342844,
    0.00134934322,
    0.000100950558,
    -0.000200214257,
)
# lgamma(1 + u) = u (u - 1) P(u + 1/2) / Q(u + 1/2) on -1/2 <= u <= 2
_LGAMMA_P = (0.7631532549858093, 1.958925724029541, 1.3372544050216675, 0.2185157686471939, 0.002258156891912222)
_LGAMMA_Q = (1.0, 3.3307368755340576, 3.355901002883911, 1.0900347232818604, 0.08246782422065735)
_STIRLING = (0.08333316445350647, -0.0027698874473571777, 0.0006789769395254552)  # in x**-2, times 1/x, for x >= 3
# digamma(1 + u) = (1 + u - root) P(u) / Q(u) on 0 <= u <= 1
_DIGAMMA_P = (1.2503801584243774, 1.1311472654342651, 0.2107556015253067, 0.0025098896585404873)
_DIGAMMA_Q = (1.0, 1.5881894826889038, 0.6523644924163818, 0.06362023204565048)
_DIGAMMA_ROOT = 1.4616321325302124  # f32 nearest to the root
_DIGAMMA_ROOT_LOW = 1.2438149843418955e-08
# log(x) - 1/(2x) - digamma(x) = P(x**-2) / x**2 for x >= 2
_DIGAMMA_TAIL = (
    0.08333320915699005,
    -0.008326775394380093,
    0.0038479510694742203,
    -0.0030813473276793957,
    0.0019250381737947464,
)
# log2(m) = C s + s**3 P(s**2), s = (m - 1) / (m + 1)
_LOG2_C_HIGH = 2.884765625  # 12 bits of 2 / ln 2
_LOG2_C_LOW = 0.000624456777926774
_LOG2_TAIL = (0.9617967009544373, 0.5770828723907471, 0.4117041826248169, 0.34026214480400085)


def erf(x: Expr) -> Expr:
    magnitude = abs(x)
    square = x * x
    ratio = magnitude * poly(square, _ERF_P) / poly(square, _ERF_Q)
    return copysign(where((magnitude > 3.92) | (ratio > 1.0), 1.0, ratio), x)


def _upper(x: Expr) -> Expr:
    """The 12 leading bits of x: products of such numbers are exact."""
    return (x.bits() & -4096).bits("f32")


def erfc(x: Expr) -> Expr:
    magnitude = abs(x)
    # exp(-x**2) needs x**2 to more bits than a float has: x**2 = upper**2 (exact) + (x - upper) (x + upper).
    upper = _upper(magnitude)
    square = upper * upper
    shifted = square.fma(-LOG2E, ROUNDER)
    n = shifted - ROUNDER
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, -square)) - (magnitude - upper) * (magnitude + upper)
    tail = scale_bits(exp_poly(r) * (poly(magnitude, _ERFC_P) / poly(magnitude, _ERFC_Q)), shifted)
    tail = where(magnitude < 9.195, tail, where(x.is_nan(), NAN, 0.0))
    return where(x < 0.0, 2.0 - tail, tail)


def erf_inv(x: Expr) -> Expr:
    w = -log1p(x * -x)
    centre = w < 5.0
    t = where(centre, w - 2.5, w.sqrt() - 3.0)
    p = where(centre, _ERF_INV_CENTRE[-1], t.lift(_ERF_INV_TAIL[-1]))
    for near, far in zip(_ERF_INV_CENTRE[-2::-1], _ERF_INV_TAIL[-2::-1], strict=True):
        p = p.fma(t, where(centre, near, t.lift(far)))
    return x * where(abs(x).eq(1.0), INF, p)


def lgamma(x: Expr) -> Expr:
    """log |gamma(x)|: a rational function below 3, Stirling's series above, reflection below zero."""
    magnitude = abs(x)
    tiny, large = magnitude < 0.5, magnitude >= 3.0
    u = where(tiny, magnitude, magnitude - 1.0)
    logarithm = log(magnitude)
    v = where(tiny, magnitude + 0.5, magnitude - 0.5)
    near = u * (u - 1.0) * (poly(v, _LGAMMA_P) / poly(v, _LGAMMA_Q)) + 0.0  # no -0 at 1
    inverse = 1.0 / magnitude
    series = inverse * poly(inverse * inverse, _STIRLING) + 0.41893853320467274  # log(2 pi) / 2 - 1/2
    far = (magnitude - 0.5).fma(logarithm - 1.0, series)
    far = where(magnitude < 2.0**120, far, magnitude * (logarithm - 1.0))
    # gamma(x) gamma(-x) = -pi / (x sin(pi x)), so lgamma(1 + |x|) is what reflection needs.
    result = where(large, far, where(tiny, near - logarithm, near))
    beside = where(large, far + logarithm, where(tiny, near, near + logarithm))
    sine, _ = sin_cos_pi(magnitude - magnitude.op("round_even"))
    negative = x < 0.0
    reflected = where(sine.eq(0.0) | (magnitude >= 2.0**23), INF, log(PI / abs(sine)) - beside)
    result = where(magnitude < INF, where(negative, reflected, result), magnitude)
    return where(magnitude.eq(0.0), INF, result)


def digamma(x: Expr) -> Expr:
    """Derivative of lgamma: a rational function between 1 and 2, a series above, recurrence and reflection below."""
    magnitude = abs(x)
    below, large = magnitude < 1.0, magnitude >= 2.0
    u = where(below, magnitude, magnitude - 1.0)
    distance = where(below, magnitude + (1.0 - _DIGAMMA_ROOT), magnitude - _DIGAMMA_ROOT) - _DIGAMMA_ROOT_LOW
    near = distance * (poly(u, _DIGAMMA_P) / poly(u, _DIGAMMA_Q))
    inverse = 1.0 / magnitude
    square = inverse * inverse
    far = log(magnitude) - inverse.fma(0.5, square * poly(square, _DIGAMMA_TAIL))
    base = where(large, far, near)
    # digamma(x) = digamma(1 + x) - 1/x, and digamma(-x) = digamma(x) + 1/x + pi / tan(pi x).
    negative = x < 0.0
    sine, cosine = sin_cos_pi(magnitude - magnitude.op("round_even"))
    reflected = base + where(below, 0.0, inverse) + PI * (cosine / sine)
    result = where(negative, reflected, where(below, base - inverse, base))
    pole = (x < 0.0) & (magnitude.floor().eq(magnitude))
    return where(pole, NAN, result)  # at zero -infinity, as JAX has it since 0.12


def _product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a * b as a rounded product and what rounding dropped."""
    a_high, b_high = _upper(a), _upper(b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _log2_pair(x: Expr) -> tuple[Expr, Expr]:
    """log2 of a positive normal number as a sum of two f32, to about 32 bits."""
    e, f = split_log(x)
    divisor = f + 2.0
    dropped = f - (divisor - 2.0)
    s = f / divisor
    s_high = _upper(s)
    # The rest of the quotient: (f - s_high * (2 + f)) / (2 + f), with s_high * divisor in exact pieces.
    divisor_high = _upper(divisor)
    rest = (f - s_high * divisor_high) - s_high * (divisor - divisor_high) - s_high * dropped
    s_low = rest / divisor
    square = s * s
    tail = s_high * _LOG2_C_LOW + s_low * (_LOG2_C_HIGH + _LOG2_C_LOW) + s * square * poly(square, _LOG2_TAIL)
    lead = s_high * _LOG2_C_HIGH
    total = e + lead
    tail = tail + ((e - total) + lead)
    high = total + tail
    return high, (total - high) + tail


def pow(x: Expr, y: Expr) -> Expr:
    """x ** y with the corner cases of C99."""
    magnitude = abs(x)
    high, low = _log2_pair(magnitude)
    high = where(magnitude.eq(0.0), -INF, where(magnitude.eq(INF), INF, high))
    product, error = _product(y, high)
    shifted = product + ROUNDER
    r = (product - (shifted - ROUNDER)) + y.fma(low, error)
    result = scale_bits(poly(r, _EXP2), shifted)
    result = where(product < 128.0, where(product < -126.0, 0.0, result), INF)
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
