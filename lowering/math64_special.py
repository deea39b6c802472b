"""Error functions, gamma functions and powers of f64, as tile expressions."""

from __future__ import annotations

from .expr import Expr, copysign, poly, where
from .math64_exp import (
    EXP2,
    INF,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    MIN_NORMAL,
    NAN,
    ROUNDER,
    expm1_poly,
    log,
    log_sum,
    scale_bits,
    split_log,
    upper,
)
from .math64_trig import PI, sin_cos_pi

# erf(x) / x - 1 in x**2, on |x| <= 1
_ERF = (
    0.12837916709551256,
    -0.37612638903183454,
    0.1128379167094244,
    -0.026866170642898465,
    0.005223977604676705,
    -0.0008548325869746942,
    0.00012055291996985863,
    -1.4924684838297628e-05,
    1.644682033018077e-06,
    -1.6204099047888678e-07,
    1.3701997557065412e-08,
    -7.763627601473084e-10,
)
# exp(x**2) erfc(x) / t in t - 3/16, t = 1 / (2 + x), on 1 <= x <= 27.3
_ERFC = (
    0.8666131249594583,
    2.221836245801143,
    3.923933765087566,
    3.3975357412323004,
    -2.852178088835891,
    -9.71870568210887,
    2.610977796140069,
    29.401661210750166,
    -10.001916560175196,
    -104.03137749436219,
    90.76819474725905,
    374.99237935237164,
    -735.0214827115523,
    -1001.304367228943,
    4873.281259179902,
    -1215.9756262890282,
    -25336.89841100045,
    39085.72042003746,
    95239.10809867161,
    -213751.27709212556,
    -234007.46108994586,
)
# erf_inv(x) / x in w = -log(1 - x**2) up to 4.8, in sqrt(w) - 2.9 up to 13, and in sqrt(w) - 4.8 above
_ERF_INV_CENTRE = (
    0.886226925452758,
    0.232013666534649,
    0.011549342038435302,
    -0.0023351016436619666,
    -0.0001280432804981848,
    4.661138357353143e-05,
    2.020145793455213e-06,
    -1.0128606382897435e-06,
    -3.6856708316065954e-08,
    2.2320446820789587e-08,
    1.1459604123023106e-09,
    -7.757337979007517e-10,
    1.0974852130594515e-10,
    -3.691758690369918e-11,
    1.519652708825766e-11,
    -3.676742659574968e-12,
    5.513825451293624e-13,
    -5.3626772560889837e-14,
    3.335994233597124e-15,
    -1.2154580463609254e-16,
    1.9795706104517052e-18,
)
_ERF_INV_MIDDLE = (
    2.7329119756863887,
    0.9995322481761256,
    0.012117610756014361,
    -0.010303777501142353,
    0.00769010174987396,
    -0.004461755845779733,
    0.0014905790190375392,
    0.00015622465120815535,
    -0.00048406651438799976,
    0.00023418939459401557,
    -5.352639479815703e-06,
    -5.2929968500010775e-05,
    2.71444581626755e-05,
    -1.2211890459288714e-06,
    -5.313426171952623e-06,
    2.796666704859496e-06,
    -1.9560787369380151e-07,
    -5.379555283342193e-07,
    2.7357473298252523e-07,
    2.3066436411872404e-08,
    -4.422878667485719e-08,
)
_ERF_INV_TAIL = (
    4.647842608097513,
    1.0103275505143776,
    1.0227905761395082e-05,
    -0.0002844833485415749,
    9.869957205793155e-05,
    -2.6066295326818672e-05,
    6.230786387200998e-06,
    -1.4951468859431346e-06,
    4.30939739257684e-07,
    -1.7783763460054872e-07,
    9.371209151256333e-08,
    -4.980821004662217e-08,
    2.3363506488215575e-08,
    -8.929005927216132e-09,
    2.54597862335551e-09,
    -4.188669795352644e-10,
    -1.1253116950020947e-10,
    1.5749980929616934e-10,
    -6.089058226820892e-11,
    7.181799905593516e-13,
    3.3969223833808407e-12,
)
# lgamma(1 + u) = u (u - 1) (C + P(u + 1/2) / Q(u + 1/2)) on -1/2 <= u <= 2
_LGAMMA_C = 0.421875
_LGAMMA_P = (
    0.3412782572329334,
    1.897970916961098,
    3.8000405210993184,
    2.9714426687355746,
    -0.02490449643908798,
    -1.3381879625616917,
    -0.724304550576762,
    -0.14647339842542878,
    -0.010953116780259961,
    -0.00021161245989883082,
)
_LGAMMA_Q = (
    1.0,
    7.269460857200767,
    21.448352973496906,
    33.12412477788111,
    28.860318652265132,
    14.30157187010697,
    3.8865106162778122,
    0.531539498800903,
    0.030849369035777265,
    0.0005101888436579077,
)
# in x**-2, times 1/x, for x >= 3
_STIRLING = (
    0.08333333333333144,
    -0.0027777777769396645,
    0.0007936506562265961,
    -0.0005952263411232222,
    0.0008411426592618564,
    -0.0018968408942725574,
    0.005921545956036256,
    -0.021151518995707358,
    0.06861873359626651,
    -0.15838412213198913,
    0.1813137613596893,
)
# digamma(1 + u) = (1 + u - root) (C + P(u) / Q(u)) on 0 <= u <= 2
_DIGAMMA_C = 0.75
_DIGAMMA_P = (
    0.5003801375034054,
    0.2503274804535245,
    -0.2703909337006662,
    -0.22106400827989117,
    -0.054073639218640585,
    -0.004997370557006664,
    -0.00013794427838606055,
)
_DIGAMMA_Q = (
    1.0,
    2.208362719129297,
    1.7279138060189667,
    0.6167116920937536,
    0.10477433436750326,
    0.007801107389794063,
    0.00018735800691631156,
    -2.35603224391204e-08,
)
_DIGAMMA_ROOT = 1.4616321449683622  # f64 nearest to the root
_DIGAMMA_ROOT_LOW = 9.549995429965697e-17
# log(x) - 1/(2x) - digamma(x) = P(x**-2) / x**2 for x >= 3
_DIGAMMA_TAIL = (
    0.08333333333331165,
    -0.008333333322840095,
    0.003968252123392661,
    -0.004166499427857325,
    0.007566654941023241,
    -0.02076856854635218,
    0.07532423258687959,
    -0.29903643338948444,
    1.0417072837684964,
    -2.5262754735265323,
    3.000031105566049,
)
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


def _erf_unit(x: Expr) -> Expr:
    """erf(x) / x - 1 for |x| <= 1."""
    return poly(x * x, _ERF)


def _erfc_tail(x: Expr) -> Expr:
    """erfc(x) for x >= 1."""
    # exp(-x**2) needs x**2 to more bits than a float has: x**2 = high**2 (exact) + (x - high) (x + high).
    high = upper(x)
    square = high * high
    shifted = square.fma(-LOG2E, ROUNDER)
    n = shifted - ROUNDER
    r = n.fma(-LN2_HIGH, -square) - n.fma(LN2_LOW, (x - high) * (x + high))
    divisor = x + 2.0
    t = 1.0 / divisor
    t = (t * t).fma((divisor - 2.0) - x, t)
    scale = t * poly(t - 0.1875, _ERFC)
    tail = scale_bits(scale.fma(expm1_poly(r), scale), shifted)
    return where(x < 26.54325845425098, tail, where(x.is_nan(), x, 0.0))


def erf(x: Expr) -> Expr:
    magnitude = abs(x)
    near = magnitude.fma(_erf_unit(x), magnitude)
    return copysign(where(magnitude < 1.0, near, 1.0 - _erfc_tail(magnitude)), x)


def erfc(x: Expr) -> Expr:
    magnitude = abs(x)
    tail = _erfc_tail(magnitude)
    tail = where(x < 0.0, 2.0 - tail, tail)
    correction = x * _erf_unit(x)
    near = where(x < 0.25, 1.0 - (x + correction), 0.5 - ((x - 0.5) + correction))
    return where(magnitude < 1.0, near, tail)


def erf_inv(x: Expr) -> Expr:
    magnitude = abs(x)
    square = x * x
    # 1 - x**2 and what rounding dropped; 1 - |x| is exact above 1/2.
    small = magnitude < 0.5
    rest = where(small, 1.0 - square, (1.0 - magnitude) * (1.0 + magnitude))
    w = -log_sum(rest, where(small, (1.0 - rest) - square, 0.0))
    root = w.sqrt()
    centre, middle = w < 4.8, w < 13.0
    t = where(centre, w, root - where(middle, root.lift(2.9), 4.8))
    p = t.lift(0.0)
    for c, m, far in zip(_ERF_INV_CENTRE[::-1], _ERF_INV_MIDDLE[::-1], _ERF_INV_TAIL[::-1], strict=True):
        p = p.fma(t, where(centre, c, where(middle, m, t.lift(far))))
    return x * where(magnitude.eq(1.0), INF, p)


def lgamma(x: Expr) -> Expr:
    """log |gamma(x)|: a rational function below 3, Stirling's series above, reflection below zero."""
    magnitude = abs(x)
    tiny, large = magnitude < 0.5, magnitude >= 3.0
    u = where(tiny, magnitude, magnitude - 1.0)
    logarithm = log(magnitude)
    v = where(tiny, magnitude + 0.5, magnitude - 0.5)
    near = u * (u - 1.0) * (poly(v, _LGAMMA_P) / poly(v, _LGAMMA_Q) + _LGAMMA_C) + 0.0  # no -0 at 1
    inverse = 1.0 / magnitude
    series = inverse * poly(inverse * inverse, _STIRLING) + 0.4189385332046727  # log(2 pi) / 2 - 1/2
    far = (magnitude - 0.5).fma(logarithm - 1.0, series)
    far = where(magnitude < 2.0**1000, far, magnitude * (logarithm - 1.0))
    # gamma(x) gamma(-x) = -pi / (x sin(pi x)), so lgamma(1 + |x|) is what reflection needs.
    result = where(large, far, where(tiny, near - logarithm, near))
    beside = where(large, far + logarithm, where(tiny, near, near + logarithm))
    sine, _ = sin_cos_pi(magnitude - magnitude.op("round_even"))
    negative = x < 0.0
    reflected = where(sine.eq(0.0) | (magnitude >= 2.0**52), INF, log(PI / abs(sine)) - beside)
    result = where(magnitude < INF, where(negative, reflected, result), magnitude)
    return where(magnitude.eq(0.0), INF, result)


def digamma(x: Expr) -> Expr:
    """Derivative of lgamma: a rational function between 1 and 3, a series above, recurrence and reflection below."""
    magnitude = abs(x)
    below, large = magnitude < 1.0, magnitude >= 3.0
    u = where(below, magnitude, magnitude - 1.0)
    distance = where(below, magnitude + (1.0 - _DIGAMMA_ROOT), magnitude - _DIGAMMA_ROOT) - _DIGAMMA_ROOT_LOW
    near = distance * (poly(u, _DIGAMMA_P) / poly(u, _DIGAMMA_Q) + _DIGAMMA_C)
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
