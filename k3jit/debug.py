"""Finding out: what is alive, what happened, where a NaN or a wrong value comes from, what was made of a function."""

from __future__ import annotations

import gc
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from . import _compile, _device, _jax_compat
from .array import Array

__all__ = ["Divergence", "bisect", "check_nans", "counters", "live_buffers", "view"]


def counters() -> dict[str, int]:
    """Counts since the process started: uploads, host_reads, eager_transfers, traces, compiles, calls."""
    return dict(_device.counters)


def live_buffers(device: Any = None) -> dict[str, int]:
    """What is alive on a device: "buffers", "bytes", and on Vulkan every kind of native object."""
    gc.collect()
    target = _device.resolve(device)
    target.wait_idle()
    return dict(target.live())


def check_nans(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """The first equation of `fun(*args)` that makes a NaN or an infinity out of finite values.

    The function is run equation by equation on the CPU.

    Returns:
        "primitive at file.py:line (function)", or None when every value is finite.
    """
    closed, leaves = _traced(fun, args, kwargs)
    found = _first_bad(closed.jaxpr, closed.consts, leaves)
    return None if found is None else _describe(found)


def check_results(loaded: Any, arrays: list[Array]) -> None:
    """Raise FloatingPointError when a result of a call holds a NaN (the setting `check_nan`)."""
    for number, array in enumerate(arrays):
        if array.dtype.kind in "fV" and np.isnan(np.asarray(array, np.float32)).any():
            raise FloatingPointError(
                f"{loaded.name}: result {number} ({array.aval}) holds a NaN. "
                "k3jit.debug.check_nans(f, *args) finds the line that makes it."
            )


@dataclass(frozen=True)
class Divergence:
    """Where two ways of computing first differ.

    Attributes:
        equation: "primitive at file.py:line (function)".
        number: position among the top-level equations.
        device, interpreter: largest error, relative to the largest value, against JAX on the CPU.
        blame: "lowering" when the interpreter differs too, "device" when only the device does.
    """

    equation: str
    number: int
    device: float
    interpreter: float
    blame: str

    def __str__(self) -> str:
        return (
            f"equation {self.number}, {self.equation}: device off by {self.device:.2e}, interpreter by {self.interpreter:.2e} "
            f"of the largest value; the {self.blame} is at fault"
        )


def bisect(fun: Callable[..., Any], *args: Any, tolerance: float = 1e-4, device: Any = None) -> Divergence | None:
    """Compute every intermediate of `fun(*args)` on the device, in the interpreter and with JAX on the CPU, and compare.

    Each top-level equation runs alone on the CPU's inputs, so the first difference is made by that equation itself. Kernels
    that go wrong only when fused show at the end, where the whole function is compared.

    Returns:
        The first divergence, also printed, or None.
    """
    from .runtime.null import NullDevice

    place = _device.resolve(device)
    interpreter = NullDevice(place.caps)
    closed, leaves = _traced(fun, args, {})
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, leaves, strict=True))
    for number, eqn in enumerate(closed.jaxpr.eqns):
        inputs = [v.val if hasattr(v, "val") else env[v] for v in eqn.invars]

        def one(*values: Any, eqn: Any = eqn) -> list[Any]:
            return _jax_compat.evaluate(eqn, values)

        want = one(*inputs)
        divergence = _compare(one, inputs, want, place, interpreter, tolerance, _describe(eqn), number)
        if divergence is not None:
            return divergence
        env.update(zip(eqn.outvars, want, strict=True))

    def whole(*values: Any) -> list[Any]:
        return list(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *values))

    return _compare(
        whole, leaves, whole(*leaves), place, interpreter, tolerance, "the whole function, fused", len(closed.jaxpr.eqns)
    )


def _compare(
    fun: Callable[..., Any],
    inputs: list[Any],
    want: list[Any],
    place: Any,
    interpreter: Any,
    tolerance: float,
    what: str,
    number: int,
) -> Divergence | None:
    errors = []
    for target in (place, interpreter):
        closed, consts = _jax_compat.hoist(jax.make_jaxpr(fun)(*inputs))
        got = _compile.loaded(closed, target, "bisect").run(
            [*(_compile.constant(c, target, "bisect") for c in consts), *_moved(inputs, target)]
        )
        errors.append(max((_error(g, w) for g, w in zip(got, want, strict=True)), default=0.0))
    if max(errors) <= tolerance:
        return None
    divergence = Divergence(what, number, errors[0], errors[1], "lowering" if errors[1] > tolerance else "device")
    print(divergence)
    return divergence


def _moved(values: list[Any], target: Any) -> list[Any]:
    return [np.asarray(v) if type(v) is Array else v for v in values]


def _error(got: Any, want: Any) -> float:
    if _compile.is_key(want.dtype):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype.kind in "biu":
        return float(np.any(a != b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    special = np.where(both, 0.0, np.where((np.isnan(a) & np.isnan(b)) | (a == b), 0.0, np.inf))
    scale = float(np.max(np.abs(b[both]), initial=0.0)) or 1.0
    return float(max(np.max(np.abs(a - b)[both], initial=0.0) / scale, np.max(special, initial=0.0)))


def view(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """One self-contained HTML page: what became of `fun(*args)`, stage by stage (for IPython.display.HTML)."""
    from .api import Jitted, jit
    from .stages import memory_of, table_html

    lowered = (fun if isinstance(fun, Jitted) else jit(fun)).lower(*args, **kwargs)
    program = lowered.program
    sizes = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:,}</td></tr>" for k, v in memory_of(program).items())
    decisions = "".join(f"<li>{html.escape(d)}</li>" for d in program.decisions)
    kernels = "".join(
        f"<details><summary>{html.escape(k.name)}</summary><pre>{html.escape(k.as_text())}</pre></details>"
        for k in lowered.kernels
    )
    stages = ""
    for stage in ("jaxpr", "graph", "groups", "tile"):
        try:
            stages += f"<details><summary>{stage}</summary><pre>{html.escape(lowered.as_text(stage))}</pre></details>"
        except ValueError:
            continue
    style = (
        "body{font:15px system-ui,sans-serif;margin:1rem auto;max-width:70rem;padding:0 1rem}"
        "pre{overflow-x:auto;background:#f4f4f4;padding:.6rem}"
        "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #ccc;padding:.2rem .5rem;"
        "text-align:left}summary{cursor:pointer;padding:.2rem 0}"
    )
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(program.name)}</title><style>{style}</style></head><body><h1>{html.escape(program.name)}</h1>"
        f"{table_html(program)}<h2>Stages</h2>{stages}<h2>Kernels</h2>{kernels}<h2>Fusion decisions</h2><ol>{decisions}</ol>"
        f"<h2>Memory, bytes</h2><table>{sizes}</table></body></html>"
    )


# -- equations -----------------------------------------------------------------------------------------------------------
def _traced(fun: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    fun = getattr(fun, "__wrapped__", fun)
    leaves, tree = jax.tree.flatten((args, kwargs))

    def flat(*values: Any) -> Any:
        positional, named = jax.tree.unflatten(tree, values)
        return fun(*positional, **named)

    return jax.make_jaxpr(flat)(*leaves), leaves


def _describe(eqn: Any) -> str:
    line = _jax_compat.user_line(eqn)
    return f"{eqn.primitive.name}{f' at {line}' if line else ''}"


def _bad(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not jax.numpy.issubdtype(dtype, np.floating):
        return False
    return not bool(np.isfinite(np.asarray(value, np.float64)).all())


def _first_bad(jaxpr: Any, consts: Any, args: list[Any]) -> Any:
    """First equation with finite inputs and a result that is not, looking into calls."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [v.val if hasattr(v, "val") else env[v] for v in eqn.invars]
        results = _jax_compat.evaluate(eqn, inputs)
        if any(map(_bad, results)) and not any(map(_bad, inputs)):
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            if inner is not None and eqn.primitive.name in (
                "jit",
                "pjit",
                "k3_call",
                "custom_jvp_call",
                "custom_vjp_call",
                "closed_call",
            ):
                found = _first_bad(inner.jaxpr, inner.consts, inputs)
                return eqn if found is None else found
            return eqn
        env.update(zip(eqn.outvars, results, strict=True))
    return None
