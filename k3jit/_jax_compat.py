"""The only file that touches private JAX. Everything here has a test in tests/api/test_compat.py.

Tried with JAX 0.10.2 to 0.12. Three private hooks make a class of ours a full `jax.Array`: what its abstract value is, that it
needs no canonicalization, and how it becomes a CPU array when XLA wants it. They are registered by `install`, when the first
device array is made; importing this file changes nothing in JAX.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.interpreters import mlir

TESTED = "0.10.2 to 0.12"

try:
    from jax._src import config as _config
    from jax._src import core as _core
    from jax._src import dtypes as _dtypes
    from jax._src.interpreters import partial_eval as _partial_eval
    from jax._src.interpreters import pxla as _pxla

    trace_context: Callable[[], Any] = _config.trace_context
    """Everything in JAX's state that changes what tracing gives (x64, matmul precision, named axes, ...); hashable."""

    trace_state_clean: Callable[[], bool] = _core.trace_state_clean
    """Whether no transformation is being traced right now."""

    _AVALS = _core.pytype_aval_mappings
    _CANONICALIZE = _dtypes.register_canonicalize_value_handler
    _SHARD = _pxla.shard_arg_handlers
    _SHARD_ARGS = _pxla.shard_args
    _EXPAND = _partial_eval.lower_jaxpr2
    _MISSING: str | None = None
except (ImportError, AttributeError) as _error:  # pragma: no cover - only on a JAX outside the window
    _MISSING = str(_error)


def require() -> None:
    """Raise IncompatibleJax when a hook is missing from this JAX."""
    if _MISSING is not None:  # pragma: no cover
        from .errors import IncompatibleJax

        raise IncompatibleJax(
            f"JAX {jax.__version__} lacks a hook that k3jit needs ({_MISSING}). k3jit works with JAX {TESTED}: "
            "pip install 'jax>=0.10.2,<0.13'"
        )


def install(cls: type, aval: Callable[[Any], Any], to_host: Callable[[Any], np.ndarray]) -> None:
    """Make `cls`, a subclass of jax.Array, acceptable wherever JAX takes an array.

    Args:
        aval: gives the jax.core.ShapedArray of an instance.
        to_host: gives its value for a computation on another device; called when XLA needs it.
    """
    require()

    def shard(values: Sequence[Any], shardings: Any, layouts: Any, copy_semantics: Any) -> Any:
        hosts = [to_host(v) for v in values]
        # An array made under x64 keeps its type where that is off now: JAX's own do.
        wide = any(host.dtype.itemsize == 8 for host in hosts)
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return _SHARD_ARGS(shardings, layouts, copy_semantics, hosts)

    _AVALS[cls] = aval
    _CANONICALIZE(cls, None)
    _SHARD[cls] = shard
    mlir.register_constant_handler(cls, lambda value, aval: mlir.ir_constant(to_host(value)))


def installed(cls: type) -> bool:
    """Whether `install` was called for `cls`."""
    return cls in _AVALS


def hoist(closed: Any) -> tuple[Any, list[Any]]:
    """(jaxpr whose constants became its first inputs, their values): arrays a function closes over turn into arguments."""
    consts = list(closed.consts)
    if not consts:
        return closed, consts
    if hasattr(closed, "with_consts"):  # JAX 0.12 on: one class, constants are the first inputs that have values
        return closed.with_consts(()), consts
    inner = closed.jaxpr
    debug = inner.debug_info
    if debug.arg_names is not None:
        debug = debug._replace(arg_names=("",) * len(consts) + tuple(debug.arg_names))
    inputs = [*inner.constvars, *inner.invars]
    return ClosedJaxpr(inner.replace(constvars=(), invars=inputs, debug_info=debug), ()), consts


def expanded(closed: Any) -> Any:
    """The jaxpr with JAX's high-level primitives (from 0.12 on frexp, searchsorted, ...) replaced by what they stand for.

    Derivatives and batching have rules for the high level, so this comes last, right before lowering.
    """
    if hasattr(closed, "with_consts"):
        return _expanded_inside(closed, {})
    return _EXPAND(closed) if closed.jaxpr.is_high else closed


def _expanded_inside(jaxpr: Any, done: dict[Any, Any]) -> Any:
    """Also where `is_high` of the outer jaxpr does not tell of the inner ones: custom_linear_solve hides them."""
    if jaxpr in done:
        return done[jaxpr]
    low: Any = _EXPAND(jaxpr) if jaxpr.is_high else jaxpr

    def inner(value: Any) -> Any:
        if isinstance(value, _core.Jaxpr):
            return _expanded_inside(value, done)
        if isinstance(value, tuple):
            parts = [inner(part) for part in value]
            if any(new is not old for new, old in zip(parts, value, strict=True)):
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value

    equations = []
    for equation in low.eqns:
        params = {key: inner(value) for key, value in equation.params.items()}
        changed = any(params[key] is not value for key, value in equation.params.items())
        equations.append(equation.replace(params=params) if changed else equation)
    if any(new is not old for new, old in zip(equations, low.eqns, strict=True)):
        low = low.replace(eqns=equations)
    done[jaxpr] = low
    return low


def evaluate(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Results of one equation on these inputs, in the trace that is current."""
    params = eqn.primitive.get_bind_params(eqn.params)
    results = eqn.primitive.bind(*inputs, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def key_base(key: Any) -> Any:
    """The raw uint32 array (or device array) inside a typed PRNG key array, without running anything."""
    return key._base_array


@functools.cache
def cpu_sharding() -> Any:
    """The placement that a CPU array has. JAX 0.12.1 replaced the class by a function and warns of the class."""
    make = getattr(jax.sharding, "make_single_device_sharding", None) or jax.sharding.SingleDeviceSharding
    return make(jax.local_devices(backend="cpu")[0])


def user_line(eqn: Any) -> str:
    """`file.py:line (function)` of the user's code an equation comes from, or ''."""
    try:
        from jax._src import source_info_util

        frame = source_info_util.user_frame(eqn.source_info.traceback)
        return "" if frame is None else f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
    except (ImportError, AttributeError, TypeError):
        return ""
