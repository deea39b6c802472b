"""`k3_call`: a call of a compiled function as one JAX primitive, so that it composes with every transformation.

Each rule works on whole functions with public JAX API: differentiating a call gives two calls (the forward pass that also
returns what the backward pass needs, and the linear part), transposing and batching give one. The derived functions are kept
with the jaxpr they come from, so a second `jax.grad` traces nothing. Inside a computation that XLA compiles the call is
inlined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from . import _compile, _device, _jax_compat, config
from .array import Array, user_level
from .errors import TransferError

k3_call_p = Primitive("k3_call")
k3_call_p.multiple_results = True


def call(args: Sequence[Any], closed: Any, name: str, device: Any) -> list[Any]:
    """Bind `closed` (a jaxpr without constants) to flat arguments in whatever trace is current."""
    return k3_call_p.bind(*args, jaxpr=closed, name=name, device=device)


def choose_device(leaves: Sequence[Any], device: Any) -> Any:
    """The device of a call: the one asked for, else that of its array arguments, else the default.

    Raises:
        ValueError: arguments live on two devices.
    """
    found = None
    for leaf in leaves:
        if not isinstance(leaf, Array) and isinstance(leaf, jax.Array) and _compile.is_key(leaf.dtype):
            leaf = _jax_compat.key_base(leaf)
        if type(leaf) is Array:
            here = leaf._sig.device
            if found is None:
                found = here
            elif here is not found:
                raise ValueError(
                    f"arguments live on two devices, {found.name!r} and {here.name!r}. "
                    "Move them with k3jit.device_put(x, device)."
                )
    if device is None:
        return found if found is not None else _device.default_device()
    wanted = _device.resolve(device)
    if found is not None and found is not wanted:
        raise ValueError(
            f"this function is made for device {wanted.name!r} but an argument lives on {found.name!r}. "
            "Move it with k3jit.device_put(x, device)."
        )
    return wanted


@k3_call_p.def_impl
def _run(*args: Any, jaxpr: Any, name: str, device: Any) -> list[Any]:
    target = choose_device(args, device)
    return _compile.loaded(jaxpr, target, name).run(args)


def _expand(*args: Any, jaxpr: Any, name: str, device: Any) -> list[Any]:
    """The call of a jaxpr that holds high-level primitives, where the trace (such as eager evaluation) takes none."""
    expanded, consts = _derived(jaxpr, "expanded", lambda: _jax_compat.hoist(_jax_compat.expanded(jaxpr)))
    return call([*consts, *args], expanded, name, device)


k3_call_p.to_lojax = _expand  # type: ignore[method-assign]


@k3_call_p.def_effectful_abstract_eval
def _types(*avals: Any, jaxpr: Any, name: str, device: Any) -> tuple[list[Any], Any]:
    return list(jaxpr.out_avals), jaxpr.effects


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    aval: Any = value if isinstance(value, jax.core.AbstractValue) else jax.typeof(value)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def _derive(function: Callable[..., Any], *args: Any) -> tuple[Any, list[Any], Any]:
    """Trace `function` once: (jaxpr without constants, its former constants, structure of the result)."""
    _device.counters["traces"] += 1
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    closed, consts = _jax_compat.hoist(closed)
    return closed, consts, jax.tree.structure(shape)


def _derived(jaxpr: Any, key: Any, make: Callable[[], Any]) -> Any:
    """`make()`, kept with `jaxpr` under `key`; traced outside every transformation in progress."""
    state = _compile.state_of(jaxpr)
    key = (key, _jax_compat.trace_context())
    found = state.get(key)
    if found is None:
        found = state[key] = make()
    return found


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, name: str, device: Any) -> tuple[list[Any], list[Any]]:
    moving = tuple(
        i
        for i, t in enumerate(tangents)
        if type(t) is not ad.Zero and jaxpr.in_avals[i].to_tangent_aval().dtype != jax.dtypes.float0
    )
    if not moving:
        results = call(primals, jaxpr, name, device)
        return results, [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]

    def make() -> tuple[Any, ...]:
        function = jaxpr_as_fun(jaxpr)

        def forward(*values: Any) -> tuple[list[Any], Any]:
            def partial(*changed: Any) -> list[Any]:
                full = list(values)
                for i, x in zip(moving, changed, strict=True):
                    full[i] = x
                return function(*full)

            return jax.linearize(partial, *[values[i] for i in moving])

        first, first_consts, tree = _derive(forward, *map(_struct, jaxpr.in_avals))
        count = len(jaxpr.out_avals)
        residuals = first.out_avals[count:]
        live = [i for i, aval in enumerate(jaxpr.out_avals) if aval.to_tangent_aval().dtype != jax.dtypes.float0]

        def linear(leaves: list[Any], changes: list[Any]) -> list[Any]:
            _, linearized = jax.tree.unflatten(tree, [None] * count + leaves)
            moved = linearized(*changes)
            return [moved[i] for i in live]

        changes = [_struct(jaxpr.in_avals[i].to_tangent_aval()) for i in moving]
        second, second_consts, _ = _derive(linear, list(map(_struct, residuals)), changes)
        return first, first_consts, second, second_consts, live

    first, first_consts, second, second_consts, live = _derived(jaxpr, ("jvp", moving), make)
    count = len(jaxpr.out_avals)
    values = call([*first_consts, *primals], first, f"{name}_fwd", device)
    results, residuals = values[:count], values[count:]
    changes = [tangents[i] for i in moving]
    moved = call([*second_consts, *residuals, *changes], second, f"{name}_lin", device)
    tangents_out: list[Any] = [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]
    for i, tangent in zip(live, moved, strict=True):
        tangents_out[i] = tangent
    return results, tangents_out


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: Any, name: str, device: Any) -> list[Any]:
    linear = tuple(i for i, a in enumerate(args) if ad.is_undefined_primal(a))
    live = tuple(i for i, c in enumerate(cotangents) if type(c) is not ad.Zero)
    known = [a for a in args if not ad.is_undefined_primal(a)]
    if not live:
        return [ad.Zero(args[i].aval) if i in linear else None for i in range(len(args))]

    def make() -> tuple[Any, ...]:
        function = jaxpr_as_fun(jaxpr)
        structs = [_struct(jaxpr.in_avals[i]) for i in linear]

        def backward(given: list[Any], received: list[Any]) -> list[Any]:
            def forward(*xs: Any) -> list[Any]:
                unknown, fixed = iter(xs), iter(given)
                results = function(*[next(unknown) if i in linear else next(fixed) for i in range(len(args))])
                return [results[i] for i in live]

            return list(jax.linear_transpose(forward, *structs)(received))

        given = [_struct(jaxpr.in_avals[i]) for i in range(len(args)) if i not in linear]
        return _derive(backward, given, [_struct(jaxpr.out_avals[i]) for i in live])

    closed, consts, _ = _derived(jaxpr, ("transpose", linear, live), make)
    got = iter(call([*consts, *known, *[cotangents[i] for i in live]], closed, f"{name}_T", device))
    return [next(got) if i in linear else None for i in range(len(args))]


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any, name: str, device: Any
) -> tuple[list[Any], list[Any]]:
    where = tuple(dims)
    if all(dim is None for dim in where) and not jaxpr.effects:
        results = call(args, jaxpr, name, device)
        return results, [None] * len(results)
    axis_name = axis.name if isinstance(axis.name, str) else None

    def make() -> tuple[Any, ...]:
        function = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=where, axis_name=axis_name, axis_size=axis.size)
        structs = []
        for aval, dim in zip(jaxpr.in_avals, where, strict=True):
            shape = aval.shape if dim is None else (*aval.shape[:dim], axis.size, *aval.shape[dim:])
            structs.append(jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False))))
        return _derive(function, *structs)

    closed, consts, _ = _derived(jaxpr, ("vmap", where, axis.size, axis_name), make)
    results = call([*consts, *args], closed, f"{name}_vmap", device)
    return results, [0] * len(results)


def _inline(*args: Any, jaxpr: Any, name: str, device: Any) -> list[Any]:
    return jaxpr_as_fun(jaxpr)(*args)


_lower_inline = mlir.lower_fun(_inline, multiple_results=True)
_warned: set[str] = set()


def _lowering(context: Any, *args: Any, jaxpr: Any, name: str, device: Any) -> Any:
    action = config.value("warn_inline")
    if action != "ignore":
        text = (
            f"{name} is part of a computation that JAX itself compiles (an outer jax.jit, or an eager scan, cond or "
            "while_loop), so it runs where that runs and not on the Vulkan device. Use one k3jit.jit around the whole "
            "(K3JIT_WARN_INLINE=ignore silences this, =error forbids it)."
        )
        if action == "error":
            raise TransferError(text)
        if name not in _warned:
            _warned.add(name)
            warnings.warn(text, stacklevel=user_level())
    return _lower_inline(context, *args, jaxpr=jaxpr, name=name, device=device)


ad.primitive_jvps[k3_call_p] = _jvp
ad.primitive_transposes[k3_call_p] = _transpose
batching.fancy_primitive_batchers[k3_call_p] = _batch
mlir.register_lowering(k3_call_p, _lowering)
