"""Deliberately wrong jits, to show that run_harnesses.py notices.

Use as ``--path tools/conformance --jit broken_jits:zeros`` and so on.  Each
one stands for a mistake that a real backend makes.
"""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np


def zeros(fun):
    """Right shapes and dtypes, wrong values."""

    def call(*args):
        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(fun, *args))

    return call


def frozen(fun):
    """Right once, then the same answer for ever (inputs baked in)."""
    kept = []

    def call(*args):
        if not kept:
            kept.append(jax.jit(fun)(*args))
        return kept[0]

    return call


def noop(fun):
    """No compilation at all: eager JAX, so it traces on every call."""
    return fun


def low_precision(fun):
    """float32 results as if computed in bfloat16."""
    jitted = jax.jit(fun)

    def squeeze(x):
        return x.astype(jnp.bfloat16).astype(x.dtype) if x.dtype == jnp.float32 else x

    return lambda *args: jax.tree.map(squeeze, jitted(*args))


def widen(fun):
    """Right values, wrong dtype (int8 and bfloat16 come back as 32 bits)."""
    jitted = jax.jit(fun)
    wide = {"bfloat16": np.float32, "float16": np.float32, "int8": np.int32}
    return lambda *args: jax.tree.map(lambda x: x.astype(wide.get(x.dtype.name, x.dtype)), jitted(*args))


def flush_nan(fun):
    """A min/max or comparison that loses NaN."""
    jitted = jax.jit(fun)
    return lambda *args: jax.tree.map(lambda x: jnp.nan_to_num(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x, jitted(*args))


def unsupported(fun):
    """Knows a handful of primitives and says so about the rest."""
    known = {"add", "mul", "sub", "neg", "exp", "reduce_sum", "dot_general"}

    def call(*args):
        for eqn in jax.make_jaxpr(fun)(*args).jaxpr.eqns:
            if eqn.primitive.name not in known:
                raise NotImplementedError(f"no lowering for primitive '{eqn.primitive.name}'")
        return jax.jit(fun)(*args)

    return call


def crash(fun):
    """Takes the process down, as a driver may."""
    return lambda *args: os.abort()


def hang(fun):
    """Never comes back, as a lost device may."""
    return lambda *args: time.sleep(3600)
