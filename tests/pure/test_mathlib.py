"""Accuracy of the mathematical functions against float64, with a fused and an unfused `fma`."""

from collections.abc import Callable

import numpy as np
import pytest
from k3jit.lowering import interp
from k3jit.lowering.mathlib import ERROR_BOUNDS, FUNCTIONS, FUNCTIONS64
from mpmath import fp
from scalar_kernels import run_function, ulp_error
from scipy import special

COUNT = 60_000
SPECIAL = np.float32(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-30, -1e-30, 1e-20, 1e20, 1e30, -1e30, 3.4028235e38, -3.4028235e38,
     2.0**-126, -(2.0**-126), np.inf, -np.inf, np.nan]
)  # fmt: skip


def uniform(low: float, high: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, COUNT).astype(np.float32)


def any_bits() -> np.ndarray:
    """Normal numbers of every size."""
    x = np.random.default_rng(1).integers(0, 2**32, COUNT, dtype=np.uint32).view(np.float32)
    return x[np.abs(x) >= 2.0**-126]


def near_right_angles() -> np.ndarray:
    turns = np.concatenate([np.arange(1, 4000), np.random.default_rng(2).integers(4000, 2**40, 4000)])
    return (turns * (np.pi / 2)).astype(np.float32)


def finite(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """`function` of every finite number; NaN of the others."""
    return lambda x: np.array([function(v) if np.isfinite(v) else np.nan for v in x.tolist()])


def near_halves() -> np.ndarray:
    """Multiples of a half and their neighbours, without the poles of the tangent."""
    halves = np.arange(-40, 40, dtype=np.float32) / 2
    return np.concatenate([halves[halves % 1 == 0], *(np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf))])


ANY = any_bits()
REFERENCES: dict[str, tuple[Callable[..., np.ndarray], list[np.ndarray]]] = {
    "exp": (np.exp, [ANY, uniform(-100, 100), uniform(-1, 1)]),
    "exp2": (np.exp2, [ANY, uniform(-130, 130), uniform(-1, 1)]),
    "expm1": (np.expm1, [ANY, uniform(-20, 90), uniform(-1, 1), uniform(-1e-4, 1e-4)]),
    "log": (np.log, [ANY, uniform(0, 3), uniform(0.99, 1.01)]),
    "log2": (np.log2, [ANY, uniform(0, 3), uniform(0.99, 1.01)]),
    "log1p": (np.log1p, [ANY, uniform(-1, 3), uniform(-0.01, 0.01)]),
    "logistic": (special.expit, [ANY, uniform(-87, 87), uniform(-5, 5)]),
    "tanh": (np.tanh, [ANY, uniform(-10, 10), uniform(-1, 1)]),
    "sinh": (np.sinh, [ANY, uniform(-90, 90), uniform(-2, 2)]),
    "cosh": (np.cosh, [ANY, uniform(-90, 90), uniform(-2, 2)]),
    "asinh": (np.arcsinh, [ANY, uniform(-9, 9), uniform(-1, 1)]),
    "acosh": (np.arccosh, [ANY, uniform(1, 9), uniform(1, 1.1)]),
    "atanh": (np.arctanh, [ANY, uniform(-1, 1), uniform(-0.1, 0.1)]),
    "sqrt": (np.sqrt, [ANY]),
    "rsqrt": (lambda x: 1 / np.sqrt(x), [ANY]),
    "cbrt": (np.cbrt, [ANY, uniform(1, 8)]),
    "sin": (np.sin, [ANY, uniform(-4, 4), uniform(-3300, 3300), uniform(0, 1e6), near_right_angles()]),
    "cos": (np.cos, [ANY, uniform(-4, 4), uniform(-3300, 3300), uniform(0, 1e6), near_right_angles()]),
    "tan": (np.tan, [ANY, uniform(-4, 4), uniform(-3300, 3300), uniform(0, 1e6), near_right_angles()]),
    "asin": (np.arcsin, [ANY, uniform(-1, 1)]),
    "acos": (np.arccos, [ANY, uniform(-1, 1)]),
    "atan": (np.arctan, [ANY, uniform(-3, 3)]),
    "erf": (special.erf, [ANY, uniform(-5, 5), uniform(-1, 1)]),
    "erfc": (special.erfc, [ANY, uniform(-5, 10), uniform(-1, 1)]),
    "erf_inv": (special.erfinv, [uniform(-1, 1), np.float32(1 - 2.0 ** -np.linspace(1, 24, 1000))]),
    "lgamma": (special.gammaln, [np.abs(ANY), uniform(0, 10), uniform(0.9, 1.1), uniform(1.9, 2.1), uniform(0, 1e-3)]),
    "sinpi": (finite(fp.sinpi), [ANY, uniform(-2, 2), uniform(-1000, 1000), near_halves()]),
    "cospi": (finite(fp.cospi), [ANY, uniform(-2, 2), uniform(-1000, 1000), near_halves()]),
    "tanpi": (
        lambda x: finite(fp.sinpi)(x) / (finite(fp.cospi)(x) + 0.0),
        [uniform(-2, 2), uniform(-1000, 1000), near_halves()],
    ),
    "asinpi": (lambda x: np.arcsin(x) / np.pi, [ANY, uniform(-1, 1)]),
    "acospi": (lambda x: np.arccos(x) / np.pi, [ANY, uniform(-1, 1)]),
    "atanpi": (lambda x: np.arctan(x) / np.pi, [ANY, uniform(-3, 3)]),
    "exp2m1": (lambda x: np.expm1(x * np.log(2)), [ANY, uniform(-30, 128), uniform(-1, 1), uniform(-1e-4, 1e-4)]),
    "log2p1": (lambda x: np.log1p(x) / np.log(2), [ANY, uniform(-1, 3), uniform(-0.01, 0.01)]),
    "digamma": (special.digamma, [np.abs(ANY), uniform(0, 10), uniform(1.4, 1.5), uniform(0, 1e-3)]),
}


@pytest.fixture(params=["fused", "unfused"])
def fma(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices may round the product of a fused multiply-add."""
    if request.param == "unfused":
        monkeypatch.setitem(interp._PURE, "fma", lambda v, a, b, c: a * b + c)


def worst(got: np.ndarray, want: np.ndarray, *columns: np.ndarray) -> tuple[float, str]:
    error = ulp_error(got, want)
    at = int(np.argmax(error))
    where = ", ".join(repr(float(c[at])) for c in columns)
    return float(error[at]), f"{error[at]:.2f} units at ({where}): {got[at]!r} not {want[at]!r}"


@pytest.mark.usefixtures("fma")
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_error_bound(name: str) -> None:
    reference, columns = REFERENCES[name]
    edges = SPECIAL if name not in ("lgamma", "digamma") else SPECIAL[SPECIAL > 0]
    x = np.concatenate([edges, *columns])
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    got = run_function(FUNCTIONS[name], x)
    error, message = worst(got, want, x)
    assert error <= ERROR_BOUNDS[name], f"{name}: {message}"
    zero = (want == 0) & (x == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(x[zero] if name not in ("cos", "cospi") else got[zero]))


@pytest.mark.usefixtures("fma")
def test_pow() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([ANY, ANY, uniform(0, 10), uniform(0.99, 1.01), -uniform(0, 3)])
    y = np.concatenate([uniform(-3, 3)[: len(ANY)], rng.permutation(ANY), uniform(-40, 40)[::-1], uniform(-8000, 8000)[::-1]])
    y = np.concatenate([y, rng.integers(-60, 60, COUNT).astype(np.float32)])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    error, message = worst(run_function(FUNCTIONS["pow"], x, y), want, x, y)
    assert error <= ERROR_BOUNDS["pow"], message


def test_pow_corners() -> None:
    """C99: every pair of special values."""
    bases = np.float32([0.0, -0.0, 1, -1, 2, -2, 0.25, -0.25, np.inf, -np.inf, np.nan, 1e30, -1e30])
    powers = np.float32([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 16777217, 101])
    x, y = (g.ravel() for g in np.meshgrid(bases, powers))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    got = run_function(FUNCTIONS["pow"], x, y)
    want = np.where(np.abs(want) < 2.0**-126, np.copysign(np.float32(0), want), want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_allclose(got[number], want[number], rtol=2e-7)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.usefixtures("fma")
def test_atan2() -> None:
    y, x = uniform(-3, 3), uniform(-3, 3)[::-1]
    corners = np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e20, 1e-20])
    grid = [g.ravel() for g in np.meshgrid(corners, corners)]
    y, x = np.concatenate([y, grid[0]]), np.concatenate([x, grid[1]])
    want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    got = run_function(FUNCTIONS["atan2"], y, x)
    error, message = worst(got, want, y, x)
    assert error <= ERROR_BOUNDS["atan2"], message
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.usefixtures("fma")
def test_atan2pi() -> None:
    y, x = uniform(-3, 3), uniform(-3, 3)[::-1]
    error, message = worst(run_function(FUNCTIONS["atan2pi"], y, x), np.arctan2(y, x, dtype=np.float64) / np.pi, y, x)
    assert error <= ERROR_BOUNDS["atan2pi"], message


def test_exact_results() -> None:
    """Whole and half turns, with the signs of IEEE 754-2019, and powers of two."""
    inf, x = np.inf, np.float32([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 2.5, 1e30, -1e30, np.inf])
    expected = {
        "sinpi": [0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 1, -1, -1, 1, 1, 0.0, -0.0, np.nan],
        "cospi": [1, 1, -1, -1, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 1, np.nan],
        "tanpi": [0.0, -0.0, -0.0, 0.0, 0.0, -0.0, inf, -inf, -inf, inf, inf, 0.0, -0.0, np.nan],
    }
    for dtype, functions in ((np.float32, FUNCTIONS), (np.float64, FUNCTIONS64)):
        for name, want in expected.items():
            got = run_function(functions[name], x.astype(dtype))
            np.testing.assert_array_equal(got, want, err_msg=name)
            np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(want[:-1]), err_msg=name)
        for name, want in {"asinpi": 0.5, "acospi": 0.0, "exp2m1": 1, "log2p1": 1}.items():
            assert run_function(functions[name], np.ones(1, dtype)) == want, name


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_gamma_functions_below_zero(name: str) -> None:
    x = np.concatenate(
        [uniform(-20, 0), uniform(-1e-3, 0), -np.arange(1, 9, dtype=np.float32), np.float32([-1e9, -np.inf, 0.0, -0.0])]
    )
    reference = special.gammaln if name == "lgamma" else special.digamma
    want = reference(x.astype(np.float64))
    pole = (x == np.floor(x)) | (x == 0)
    want[pole] = np.inf if name == "lgamma" else np.where(x[pole] == 0, -np.inf, np.nan)
    got = run_function(FUNCTIONS[name], x)
    np.testing.assert_array_equal(np.isfinite(got), ~pole)
    np.testing.assert_array_equal(got[pole], want[pole].astype(np.float32))
    error = np.abs(got[~pole] - want[~pole]) / np.maximum(1, np.abs(want[~pole]))
    assert error.max() < 2e-6, (error.max(), x[~pole][error.argmax()])


def test_saturation() -> None:
    x = np.float32([9.5, -9.5, 50, -1e3, 1e30, np.inf, -np.inf])
    np.testing.assert_array_equal(run_function(FUNCTIONS["tanh"], x), np.sign(x))
    np.testing.assert_array_equal(run_function(FUNCTIONS["erf"], x), np.sign(x))
    got = run_function(FUNCTIONS["logistic"], np.float32([-np.inf, -200, 200, np.inf]))
    np.testing.assert_array_equal(got, np.float32([0, 0, 1, 1]))
    assert np.abs(run_function(FUNCTIONS["tanh"], uniform(5, 10))).max() <= 1
    assert np.abs(run_function(FUNCTIONS["erf"], uniform(2, 5))).max() <= 1


def test_every_function_has_a_bound() -> None:
    assert set(FUNCTIONS) == set(ERROR_BOUNDS) == {*REFERENCES, "pow", "atan2", "atan2pi"}
