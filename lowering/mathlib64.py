"""The mathematical functions of f64, with their error bounds: what `mathlib.py` is for f32."""

from __future__ import annotations

from collections.abc import Callable

from . import math64_exp, math64_special, math64_trig, math_pi
from .expr import Expr

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": math64_exp.exp,
    "exp2": math64_exp.exp2,
    "expm1": math64_exp.expm1,
    "log": math64_exp.log,
    "log2": math64_exp.log2,
    "log1p": math64_exp.log1p,
    "logistic": math64_exp.logistic,
    "tanh": math64_exp.tanh,
    "sinh": math64_exp.sinh,
    "cosh": math64_exp.cosh,
    "asinh": math64_exp.asinh,
    "acosh": math64_exp.acosh,
    "atanh": math64_exp.atanh,
    "sqrt": math64_exp.sqrt,
    "rsqrt": math64_exp.rsqrt,
    "cbrt": math64_exp.cbrt,
    "sin": math64_trig.sin,
    "cos": math64_trig.cos,
    "tan": math64_trig.tan,
    "asin": math64_trig.asin,
    "acos": math64_trig.acos,
    "atan": math64_trig.atan,
    "atan2": math64_trig.atan2,
    "erf": math64_special.erf,
    "erfc": math64_special.erfc,
    "erf_inv": math64_special.erf_inv,
    "lgamma": math64_special.lgamma,
    "digamma": math64_special.digamma,
    "pow": math64_special.pow,
}
FUNCTIONS |= math_pi.over_pi(FUNCTIONS, math64_trig.sin_cos_pi)

# Largest error in units in the last place of the exact result, over all normal arguments and with correctly rounded
# division and square root, whether or not `fma` is fused. Results below 2**-1022 may be zero.
# lgamma and digamma hold for positive arguments; below zero the error is 1e-14 of max(1, |result|).
ERROR_BOUNDS: dict[str, float] = {
    "exp": 1.2,
    "exp2": 1.2,
    "expm1": 1.9,
    "log": 1.0,
    "log2": 2.0,
    "log1p": 1.2,
    "logistic": 2.3,
    "tanh": 2.6,
    "sinh": 2.2,
    "cosh": 1.7,
    "asinh": 1.8,
    "acosh": 2.6,
    "atanh": 2.2,
    "sqrt": 0.51,
    "rsqrt": 1.5,
    "cbrt": 0.55,
    "sin": 2.6,
    "cos": 2.6,
    "tan": 4.0,
    "asin": 2.4,
    "acos": 1.5,
    "atan": 1.8,
    "atan2": 2.0,
    "erf": 1.6,
    "erfc": 4.5,
    "erf_inv": 3.0,
    "lgamma": 4.5,
    "digamma": 3.5,
    "pow": 1.6,
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

__all__ = ["ERROR_BOUNDS", "FUNCTIONS"]
