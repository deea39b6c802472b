"""Accuracy of the mathematical functions of f64 against mpmath, with a fused and an unfused `fma`; special values as JAX."""

from collections.abc import Callable
from functools import cache

import jax
import mpmath as mpm
import numpy as np
import pytest
from jax import lax
from k3jit.lowering import interp
from k3jit.lowering.mathlib64 import ERROR_BOUNDS, FUNCTIONS
from mpmath import mp, mpf
from scalar_kernels import run_function

Array = np.ndarray
COUNT = 600
SMALLEST = 2.0**-1022


def uniform(low: float, high: float) -> Array:
    return np.random.default_rng(0).uniform(low, high, COUNT)


def sized(low: int = -1022, high: int = 1023, seed: int = 1) -> Array:
    """Numbers of both signs whose exponents lie between `low` and `high`."""
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.uniform(1, 2, COUNT), rng.integers(low, high, COUNT, endpoint=True)) * rng.choice([-1, 1], COUNT)


def beside(centre: float) -> Array:
    """Numbers at all distances from `centre`."""
    return centre + sized(-52, -4)


def inside(centre: float) -> Array:
    """Numbers at all distances from `centre`, a positive number, that are below it."""
    return centre - abs(sized(-53, -4))


def near_right_angles() -> Array:
    """Of each exponent the number of at most 53 bits next to a multiple of pi/2, by continued fractions."""
    with mp.workprec(2600):
        half_pi = int(mpm.floor(mp.pi * mpf(2) ** 2499))
    numbers = []
    for exponent in range(-60, 972, 5):
        a, b = 1 << (2500 + exponent), half_pi  # their quotient is 2**exponent / (pi/2)
        before, denominator = 1, 0
        while b and (following := a // b * denominator + before) < 1 << 53:
            a, b = b, a % b
            before, denominator = denominator, following
        numbers.append(np.ldexp(float(denominator), exponent))
    return np.array(numbers)


def angles() -> list[Array]:
    turns = np.random.default_rng(2).integers(1, 2**40, COUNT) >> np.random.default_rng(3).integers(0, 40, COUNT)
    edges = np.array([99999.9, 100000.0, 100000.1, 6381956970095103 * 2.0**797])
    return [sized(), uniform(-4, 4), uniform(-1e5, 1e5), uniform(0, 1e7), near_right_angles(), turns * (np.pi / 2), edges]


def turns() -> list[Array]:
    """Numbers of every size; those of 2**53 and more are whole and even, and the tangent has poles between."""
    return [sized(-1020, 50), uniform(-4, 4), uniform(-1e6, 1e6), beside(1), beside(0.5), beside(1.5), beside(-1000)]


def log_gamma(x: mpf) -> mpf:
    return mpm.loggamma(x) if x > 0 else mpm.log(abs(mpm.gamma(x)))


# Functions of one argument: the exact one, and normal arguments whose results are finite, at least nearly so.
REFERENCES: dict[str, tuple[Callable[[mpf], mpf], Callable[[], list[Array]]]] = {
    "exp": (mpm.exp, lambda: [sized(-1022, 9), uniform(-708, 709.7), uniform(-1, 1)]),
    "exp2": (lambda x: mpf(2) ** x, lambda: [sized(-1022, 9), uniform(-1022, 1024), uniform(-1, 1)]),
    "expm1": (mpm.expm1, lambda: [sized(-1022, 9), uniform(-40, 709.7), uniform(-1, 1), sized(-60, 0)]),
    "log": (mpm.log, lambda: [abs(sized()), uniform(0, 3), beside(1)]),
    "log2": (lambda x: mpm.log(x) / mpm.log(2), lambda: [abs(sized()), uniform(0, 3), beside(1)]),
    "log1p": (mpm.log1p, lambda: [abs(sized()), uniform(-1, 3), sized(-60, -1), -inside(1)]),
    "logistic": (lambda x: 1 / (1 + mpm.exp(-x)), lambda: [sized(-1022, 9), uniform(-708, 708), uniform(-40, 40)]),
    "tanh": (mpm.tanh, lambda: [sized(-1022, 9), uniform(-20, 20), uniform(-1, 1), sized(-60, 0)]),
    "sinh": (mpm.sinh, lambda: [sized(-1022, 9), uniform(-710.4, 710.4), uniform(-2, 2), sized(-60, 0)]),
    "cosh": (mpm.cosh, lambda: [sized(-1022, 9), uniform(-710.4, 710.4), uniform(-2, 2)]),
    "asinh": (mpm.asinh, lambda: [sized(), uniform(-9, 9), uniform(-1, 1), sized(-60, 3)]),
    "acosh": (mpm.acosh, lambda: [abs(sized(0)), uniform(1, 9), uniform(1, 1.1), abs(beside(1) - 1) + 1]),
    "atanh": (mpm.atanh, lambda: [uniform(-1, 1), uniform(-0.1, 0.1), sized(-1022, -1), inside(1)]),
    "sqrt": (mpm.sqrt, lambda: [abs(sized())]),
    "rsqrt": (lambda x: 1 / mpm.sqrt(x), lambda: [abs(sized())]),
    "cbrt": (lambda x: mpm.sign(x) * mpm.cbrt(abs(x)), lambda: [sized(), uniform(1, 8), np.arange(1.0, 99) ** 3]),
    "sin": (mpm.sin, angles),
    "cos": (mpm.cos, angles),
    "tan": (mpm.tan, angles),
    "asin": (mpm.asin, lambda: [uniform(-1, 1), sized(-1022, -1), inside(1), -inside(1), beside(0.5)]),
    "acos": (mpm.acos, lambda: [uniform(-1, 1), sized(-1022, -1), inside(1), -inside(1), beside(0.5)]),
    "atan": (mpm.atan, lambda: [sized(), uniform(-3, 3), sized(-50, 3)]),
    "erf": (mpm.erf, lambda: [sized(-1022, 3), uniform(-6, 6), uniform(-1.2, 1.2)]),
    "erfc": (mpm.erfc, lambda: [sized(-1022, 2), uniform(-6, 26.5), uniform(0, 1.1), uniform(1, 3)]),
    "erf_inv": (mpm.erfinv, lambda: [uniform(-1, 1), sized(-1022, -1), inside(1), inside(1 - 2.0**-30)]),
    "lgamma": (
        log_gamma,
        lambda: [abs(sized(-1022, 1013)), uniform(0, 10), beside(1), beside(2), uniform(0.4, 3.5), abs(sized(-20, 8))],
    ),
    "sinpi": (mpm.sinpi, turns),
    "cospi": (mpm.cospi, turns),
    "tanpi": (lambda x: mpm.sinpi(x) / mpm.cospi(x), turns),
    "asinpi": (lambda x: mpm.asin(x) / mp.pi, lambda: [uniform(-1, 1), sized(-1020, -1), inside(1), -inside(1), beside(0.5)]),
    "acospi": (lambda x: mpm.acos(x) / mp.pi, lambda: [uniform(-1, 1), sized(-1020, -1), inside(1), -inside(1), beside(0.5)]),
    "atanpi": (lambda x: mpm.atan(x) / mp.pi, lambda: [sized(-1020), uniform(-3, 3), sized(-50, 3)]),
    "exp2m1": (
        lambda x: mpm.expm1(x * mpm.log(2)),
        lambda: [sized(-1020, 9), uniform(-60, 1023.9), uniform(-1, 1), sized(-60, 0), beside(1)],
    ),
    "log2p1": (
        lambda x: mpm.log1p(x) / mpm.log(2),
        lambda: [abs(sized()), uniform(-1, 3), sized(-60, -1), -inside(1), beside(1)],
    ),
    "digamma": (mpm.digamma, lambda: [abs(sized(-1021)), uniform(0, 10), beside(1.4616321449683622), uniform(1, 4)]),
}


@pytest.fixture(params=["fused", "unfused"])
def fma(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices may round the product of a fused multiply-add."""
    if request.param == "unfused":
        monkeypatch.setitem(interp._PURE, "fma", lambda v, a, b, c: a * b + c)


def exact_values(function: Callable[..., mpf], *columns: Array) -> list[mpf]:
    with mp.workprec(160):
        return [function(*(mpf(float(x)) for x in row)) for row in zip(*columns, strict=True)]


@cache
def reference(name: str) -> tuple[Array, list[mpf]]:
    function, columns = REFERENCES[name]
    x = np.concatenate(columns())
    return x, exact_values(function, x)


def worst(got: Array, want: list[mpf], *columns: Array) -> tuple[float, str]:
    """Largest error in units in the last place of the exact result, and where; subnormal results may be zero."""
    errors = []
    for value, exact in zip(got.tolist(), want, strict=True):
        if value == exact or (abs(exact) < SMALLEST and abs(value) <= SMALLEST):
            errors.append(0.0)
        elif np.isfinite(value):
            errors.append(float(mpm.ldexp(abs(value - exact), 53 - max(mpm.frexp(exact)[1], -1021))))
        else:
            errors.append(0.0 if np.isinf(value) and abs(exact) > 1.7976931348623157e308 and value * exact > 0 else np.inf)
    at = int(np.argmax(errors))
    where = ", ".join(repr(float(c[at])) for c in columns)
    return errors[at], f"{errors[at]:.2f} units at ({where}): {got[at]!r} not {mpm.nstr(want[at], 20)}"


@pytest.mark.usefixtures("fma")
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_error_bound(name: str) -> None:
    x, want = reference(name)
    error, message = worst(run_function(FUNCTIONS[name], x), want, x)
    assert error <= ERROR_BOUNDS[name], f"{name}: {message}"


@cache
def powers() -> tuple[Array, Array, list[mpf]]:
    """Bases and exponents whose power is a normal number, mostly large or small."""
    rng = np.random.default_rng(4)
    x = np.concatenate([abs(sized()), uniform(0, 10), beside(1), uniform(0.7, 1.42), abs(sized(seed=5))])
    y = rng.uniform(-1022, 1024, x.size) / np.log2(x)
    y[::7] = np.round(y[::7])
    y[1::9] = rng.uniform(-3, 3, y[1::9].size)
    kept = np.isfinite(y) & (abs(y * np.log2(x)) < 1021)
    x, y = x[kept], y[kept]
    whole = y == np.floor(y)
    x = np.where(whole & (rng.random(x.size) < 0.5), -x, x)
    return x, y, exact_values(lambda a, b: mpm.re(mpm.power(a, b)), x, y)


@pytest.mark.usefixtures("fma")
def test_pow() -> None:
    x, y, want = powers()
    error, message = worst(run_function(FUNCTIONS["pow"], x, y), want, x, y)
    assert error <= ERROR_BOUNDS["pow"], message


def test_pow_at_the_edge_of_the_range() -> None:
    below, above = np.nextafter(1024.0, 0), np.nextafter(1024.0, 2000)
    y = np.array([below, 1024.0, above, -1022.0, np.nextafter(-1022.0, -2000), -1e300, 1e300])
    got = run_function(FUNCTIONS["pow"], np.full(y.size, 2.0), y)
    assert np.isfinite(got[0]) and got[0] > 1.79e308
    np.testing.assert_array_equal(got[1:], [np.inf, np.inf, SMALLEST, 0, 0, np.inf])


@pytest.mark.usefixtures("fma")
def test_atan2() -> None:
    y = np.concatenate([uniform(-3, 3), sized(-500, 500), sized(), uniform(0, 1)])
    x = np.concatenate([uniform(-3, 3)[::-1], sized(-500, 500, 6), sized(seed=6), uniform(0.9, 1)[::-1]])
    error, message = worst(run_function(FUNCTIONS["atan2"], y, x), exact_values(mpm.atan2, y, x), y, x)
    assert error <= ERROR_BOUNDS["atan2"], message


@pytest.mark.usefixtures("fma")
def test_atan2pi() -> None:
    y, x = uniform(-3, 3), uniform(-3, 3)[::-1]
    got = run_function(FUNCTIONS["atan2pi"], y, x)
    error, message = worst(got, exact_values(lambda a, b: mpm.atan2(a, b) / mp.pi, y, x), y, x)
    assert error <= ERROR_BOUNDS["atan2pi"], message


@pytest.mark.usefixtures("fma")
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_functions_below_zero(name: str) -> None:
    x = np.concatenate([uniform(-20, 0), -abs(sized(-40, 6)), -0.5 - np.arange(20)])
    want = exact_values(REFERENCES[name][0], x)
    got = run_function(FUNCTIONS[name], x)
    errors = [float(abs(g - w) / max(1, abs(w))) for g, w in zip(got.tolist(), want, strict=True)]
    assert max(errors) < 1e-14, (max(errors), x[np.argmax(errors)])


SPECIAL = np.array(
    [0.0, 1, 0.5, 2, 3, 1.5, 2.5, 8, 27, 6, 30, 40, 170, 708.39, 709.79, 710.4, 711, 745, 1022, 1023.999, 1025, 1e5, 1e17,
     2**53 - 1, 1e20, 1e-20, 1e300, 1e-300, SMALLEST, 4 * SMALLEST, np.finfo(np.float64).max, np.inf,
     np.nan, 1 - 2.0**-53, 1 + 2.0**-52]
)  # fmt: skip
BASES = np.array([0.0, 1, 2, 0.25, 7, np.inf, np.nan, 1e300, 1e-300, SMALLEST, 1 + 2.0**-52, 1 - 2.0**-53])
POWERS = np.array([0.0, 1, 2, 3, 0.5, np.inf, np.nan, 1e300, 1e-300, 2**53 - 1, 2**53, 101, 1024, 1022.5, 6e18])
DIRECTIONS = np.array([0.0, 1, np.inf, np.nan, 1e300, 1e-300])


def both_signs(x: Array) -> Array:
    return np.concatenate([x, -x])


@pytest.mark.parametrize("name", [name for name in sorted(FUNCTIONS) if hasattr(lax, name)])
def test_special_values_are_those_of_jax(name: str) -> None:
    """Zeros and their signs, infinities, NaN, overflow, underflow."""
    columns = [both_signs(SPECIAL)]
    if name in ("pow", "atan2", "atan2pi"):
        first, second = (BASES, POWERS) if name == "pow" else (DIRECTIONS, DIRECTIONS)
        columns = [grid.ravel() for grid in np.meshgrid(both_signs(first), both_signs(second))]
    with jax.enable_x64(True):
        want = np.array(jax.jit(getattr(lax, name))(*columns))
    if name == "digamma":
        want[columns[0] == 0] = -np.inf  # JAX before 0.12 has NaN
    got = run_function(FUNCTIONS[name], *columns)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(got - want) <= 1e-12 * np.maximum(np.abs(want), 1e-2)  # the reference is not exact
        tiny = (np.abs(want) <= 2 * SMALLEST) & (np.abs(got) <= 2 * SMALLEST)
    close |= tiny | (got == want) | (np.isnan(got) & np.isnan(want))
    assert close.all(), [(*(float(c[i]) for c in columns), got[i], want[i]) for i in np.flatnonzero(~close)]
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_results_stay_in_their_range() -> None:
    assert np.abs(run_function(FUNCTIONS["tanh"], uniform(15, 25))).max() <= 1
    assert np.abs(run_function(FUNCTIONS["erf"], uniform(4, 7))).max() <= 1
    turns = np.concatenate(angles())
    assert max(np.abs(run_function(FUNCTIONS[name], turns)).max() for name in ("sin", "cos")) <= 1
    np.testing.assert_array_equal(run_function(FUNCTIONS["exp2"], np.arange(-1022.0, 1024)), 2.0 ** np.arange(-1022, 1024))
    np.testing.assert_array_equal(run_function(FUNCTIONS["log2"], 2.0 ** np.arange(-1022, 1024)), np.arange(-1022.0, 1024))
    np.testing.assert_array_equal(run_function(FUNCTIONS["cbrt"], np.arange(1.0, 999) ** 3), np.arange(1.0, 999))


def test_every_function_has_a_bound() -> None:
    assert set(FUNCTIONS) == set(ERROR_BOUNDS) == {*REFERENCES, "pow", "atan2", "atan2pi"}
