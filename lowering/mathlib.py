"""The mathematical functions of f32, with their error bounds. Those of f64 are in `mathlib64.py`.

Each function takes and returns `Expr` (see `expr.py`) and is written with tile operations alone, because the
functions of the Vulkan instruction set promise too little: `FUNCTIONS` has them by the name of the JAX primitive.
"""

from __future__ import annotations

from collections.abc import Callable

from . import math_exp, math_pi, math_special, math_trig
from .expr import Expr
from .math_exp import integer_pow
from .mathlib64 import FUNCTIONS as FUNCTIONS64

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": math_exp.exp,
    "exp2": math_exp.exp2,
    "expm1": math_exp.expm1,
    "log": math_exp.log,
    "log2": math_exp.log2,
    "log1p": math_exp.log1p,
    "logistic": math_exp.logistic,
    "tanh": math_exp.tanh,
    "sinh": math_exp.sinh,
    "cosh": math_exp.cosh,
    "asinh": math_exp.asinh,
    "acosh": math_exp.acosh,
    "atanh": math_exp.atanh,
    "sqrt": math_exp.sqrt,
    "rsqrt": math_exp.rsqrt,
    "cbrt": math_exp.cbrt,
    "sin": math_trig.sin,
    "cos": math_trig.cos,
    "tan": math_trig.tan,
    "asin": math_trig.asin,
    "acos": math_trig.acos,
    "atan": math_trig.atan,
    "atan2": math_trig.atan2,
    "erf": math_special.erf,
    "erfc": math_special.erfc,
    "erf_inv": math_special.erf_inv,
    "lgamma": math_special.lgamma,
    "digamma": math_special.digamma,
    "pow": math_special.pow,
}
FUNCTIONS |= math_pi.over_pi(FUNCTIONS, math_trig.sin_cos_pi)

# Largest error in units in the last place of the exact result, over all normal arguments and with correctly rounded
# division and square root, whether or not `fma` is fused. Results below 2**-126 may be zero.
# erf_inv is the polynomial that XLA uses: 70 near +-0.9998, at most 4 within +-0.5. lgamma and digamma hold for
# positive arguments away from their roots; elsewhere the error is 2e-6 of max(1, |result|).
ERROR_BOUNDS: dict[str, float] = {
    "exp": 1.3,
    "exp2": 1.3,
    "expm1": 2.0,
    "log": 1.0,
    "log2": 2.0,
    "log1p": 2.0,
    "logistic": 3.0,
    "tanh": 5.5,
    "sinh": 2.0,
    "cosh": 1.7,
    "asinh": 2.2,
    "acosh": 3.0,
    "atanh": 2.6,
    "sqrt": 0.51,
    "rsqrt": 1.5,
    "cbrt": 3.5,
    "sin": 3.0,
    "cos": 3.0,
    "tan": 4.5,
    "asin": 2.5,
    "acos": 1.5,
    "atan": 1.6,
    "atan2": 2.0,
    "erf": 6.5,
    "erfc": 6.5,
    "erf_inv": 70.0,
    "lgamma": 5.5,
    "digamma": 5.0,
    "pow": 1.5,
    "sinpi": 2.5,
    "cospi": 2.5,
    "tanpi": 4.5,
    "asinpi": 4.0,
    "acospi": 3.0,
    "atanpi": 3.0,
    "atan2pi": 3.0,
    "exp2m1": 4.0,
    "log2p1": 4.0,
}


def function(name: str, dtype: str) -> Callable[..., Expr]:
    """The function of compute type `dtype`, f32 or f64."""
    return (FUNCTIONS64 if dtype == "f64" else FUNCTIONS)[name]


__all__ = ["ERROR_BOUNDS", "FUNCTIONS", "FUNCTIONS64", "function", "integer_pow"]
