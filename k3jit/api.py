"""`k3jit.jit`: the keywords and the behaviour of `jax.jit`, compiled for a Vulkan device.

A call flattens its arguments, looks up what was compiled for their structure, shapes and dtypes, and submits. Under a JAX
transformation it binds `k3_call` instead (see `primitive.py`).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from . import _compile, _device, _dump, _jax_compat, config, primitive
from .array import Array, Signature, host_value
from .errors import UnsupportedDtype

_settings: Any = jax.config
_tree_flatten = jax.tree_util.tree_flatten


class Entry:
    """A traced signature of a jitted function.

    Attributes:
        closed: jaxpr without constants; its first inputs are `consts`.
        consts: values of closed-over arrays.
        tree: structure of the result.
        donated: flat inputs that are donated, constants counted.
        transient: the constants belong to a trace in progress, so the entry must not be kept.
    """

    __slots__ = ("closed", "consts", "device", "donated", "hidden", "loaded", "transient", "tree")

    def __init__(self, closed: Any, consts: list[Any], tree: Any, donated: frozenset[int]) -> None:
        self.closed, self.consts, self.tree = closed, consts, tree
        self.donated = donated
        self.transient = any(isinstance(c, jax.core.Tracer) for c in consts)
        self.loaded: _compile.Loaded | None = None
        self.hidden: list[Any] = []
        self.device: Any = None

    def load(self, leaves: Sequence[Any], name: str, device: Any) -> _compile.Loaded:
        """Compile for the device of `leaves`; the signature fixes it, so it is done once."""
        target = primitive.choose_device(leaves, device)
        loaded = _compile.loaded(self.closed, target, name, self.donated)
        self.hidden = [_compile.constant(c, target, name) for c in self.consts]
        self.device, self.loaded = target, loaded
        return loaded


class Jitted:
    """A compiled function: call it, look at it with `lower`, `trace` or `eval_shape`, transform it with JAX."""

    def __init__(self, fun: Callable[..., Any], options: Options) -> None:
        if not callable(fun):
            raise TypeError(f"k3jit.jit takes a function, not {fun!r}")
        functools.update_wrapper(self, fun, updated=())
        self.__wrapped__ = fun
        self._fun = fun
        self._options = options
        self._name = options.name or _name_of(fun)
        self._argnums, self._argnames = _match(fun, options.static_argnums, options.static_argnames, "static")
        self._donate = _match(fun, options.donate_argnums, options.donate_argnames, "donate")
        self._has_static = bool(self._argnums or self._argnames)
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._traced: OrderedDict[Any, Entry] = OrderedDict()
        self._lock = threading.RLock()

    # -- calling -------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _settings.jax_disable_jit:
            return self._fun(*args, **kwargs)
        statics: Any = None
        dynamic, named = args, kwargs
        if self._has_static:
            dynamic, named, statics = self._split(args, kwargs)
        leaves, tree = _tree_flatten((dynamic, named))
        clean = _jax_compat.trace_state_clean()
        try:
            signature = [leaf._sig if type(leaf) is Array else _signature(leaf) for leaf in leaves]
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        key = (tree, tuple(signature), statics, _jax_compat.trace_context(), config.key())
        entry = self._entries.get(key)
        if entry is None:
            entry = self._trace(key, args, kwargs, tree, signature)
        if not clean:
            results = primitive.call([*entry.consts, *leaves], entry.closed, self._name, self._options.device)
            return entry.tree.unflatten(results)
        loaded = entry.loaded
        if loaded is None:
            loaded = entry.load(leaves, self._name, self._options.device)
        return entry.tree.unflatten(loaded.run(entry.hidden + leaves if entry.hidden else leaves))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<k3jit.jit of {self._name}>"

    # -- tracing -------------------------------------------------------------------------------------------------
    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Arguments without the static ones, and a hashable of the static ones."""
        statics: list[Any] = []
        dynamic = list(args)
        for number in self._argnums:
            if number < len(args):
                statics.append((number, _static(args[number], number, self._name)))
                dynamic[number] = None
        named = kwargs
        if self._argnames and not self._argnames.isdisjoint(kwargs):
            named = {k: v for k, v in kwargs.items() if k not in self._argnames}
            statics += [(k, _static(v, k, self._name)) for k, v in sorted(kwargs.items()) if k in self._argnames]
        return tuple(dynamic), named, tuple(statics)

    def _trace(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tree: Any, signature: list[Any]) -> Entry:
        """The entry of a signature that has not been called yet; traced unless only the place of the arguments is new."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                return entry
            bare = (key[0], tuple([s.bare for s in signature]), *key[2:])
            traced = self._traced.get(bare)
            if traced is None:
                _check_wide(signature, self._name)
                if config.value("explain_cache_misses"):
                    _dump.say(f"{self._name} is traced: {self._explain(bare)}")
                traced = self._make(args, kwargs, tree, [s.struct() for s in signature])
            entry = Entry(traced.closed, traced.consts, traced.tree, traced.donated)
            if not entry.transient:
                self._entries[key] = entry
                self._traced[bare] = traced
                for known in (self._entries, self._traced):
                    while len(known) > max(1, config.value("cache_entries")):
                        known.popitem(last=False)
            return entry

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any], tree: Any, structs: list[Any]) -> Entry:
        """Trace the function for arguments of these types. Nothing is computed."""
        dynamic, named = jax.tree.unflatten(tree, structs)
        fixed = dict.fromkeys(n for n in self._argnums if n < len(args))
        static_named = {k: v for k, v in kwargs.items() if k in self._argnames}
        moving = [i for i in range(len(args)) if i not in fixed]

        def flexible(*values: Any, **others: Any) -> Any:
            full = list(args)
            for i, value in zip(moving, values, strict=True):
                full[i] = value
            return self._fun(*full, **others, **static_named)

        function = _with_names(flexible, self._fun, args, moving, self._name)
        _device.counters["traces"] += 1
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*[dynamic[i] for i in moving], **named)
        closed, consts = _jax_compat.hoist(closed)
        donated = frozenset(i + len(consts) for i in self._donated(args, dynamic, named))
        return Entry(closed, consts, jax.tree.structure(shape), donated)

    def _donated(self, args: tuple[Any, ...], dynamic: Any, named: dict[str, Any]) -> frozenset[int]:
        numbers, names = self._donate
        donated: set[int] = set()
        position = 0
        for i in range(len(args)):
            count = len(jax.tree.leaves(dynamic[i]))
            if i in numbers:
                donated.update(range(position, position + count))
            position += count
        for name in sorted(named):
            count = len(jax.tree.leaves(named[name]))
            if name in names:
                donated.update(range(position, position + count))
            position += count
        return frozenset(donated)

    def _explain(self, key: Any) -> str:
        if not self._traced:
            return "first call"
        parts = ("structure of the arguments", "shapes and dtypes", "static arguments", "JAX settings", "k3jit settings")
        closest = max(self._traced, key=lambda old: sum(a == b for a, b in zip(old, key, strict=True)))
        changed = [i for i, (a, b) in enumerate(zip(closest, key, strict=True)) if a != b]
        text = ", ".join(parts[i] for i in changed)
        if changed == [1]:
            pairs = [(n, a, b) for n, (a, b) in enumerate(zip(closest[1], key[1], strict=True)) if a is not b]
            text += ": " + ", ".join(f"leaf {n} was {a} and is {b}" for n, a, b in pairs[:4])
        elif changed == [2]:
            text += f": {closest[2]} became {key[2]}"
        return f"new {text}"

    # -- looking -------------------------------------------------------------------------------------------------
    def _entry_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, Any, list[Signature]]:
        statics: Any = None
        dynamic, named = args, kwargs
        if self._has_static:
            dynamic, named, statics = self._split(args, kwargs)
        leaves, tree = _tree_flatten((dynamic, named))
        signature = [_signature(leaf) for leaf in leaves]
        key = (tree, tuple(signature), statics, _jax_compat.trace_context(), config.key())
        entry = self._entries.get(key)
        return (self._trace(key, args, kwargs, tree, signature) if entry is None else entry), tree, signature

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower for these arguments (arrays or ShapeDtypeStructs) without running; needs no device.

        Returns:
            A `Lowered`: jaxpr, kernels, texts of every stage, and `compile()`.
        """
        from .stages import Lowered

        entry, tree, signature = self._entry_of(args, kwargs)
        return Lowered(self, entry, tree, signature)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).trace`: what JAX itself makes of the function, for its own stages."""
        return self._jax().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, as a pytree of ShapeDtypeStruct; nothing is computed."""
        return self._jax().eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget every traced and compiled signature."""
        with self._lock:
            self._entries.clear()
            self._traced.clear()

    def _cache_size(self) -> int:
        return len(self._traced)

    def _jax(self) -> Any:
        return jax.jit(self._fun, static_argnums=self._argnums, static_argnames=tuple(self._argnames))


class Options:
    """Keywords of `jit`."""

    def __init__(self, **given: Any) -> None:
        self.static_argnums: Any = given["static_argnums"]
        self.static_argnames: Any = given["static_argnames"]
        self.donate_argnums: Any = given["donate_argnums"]
        self.donate_argnames: Any = given["donate_argnames"]
        self.device: Any = given["device"]
        self.name: str | None = given["name"]


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    name: str | None = None,
) -> Any:
    """Compile `fun` for a Vulkan device; keywords as in `jax.jit`.

    Args:
        fun: a pure function of pytrees of arrays. Without it, a decorator is returned.
        static_argnums, static_argnames: hashable arguments that the trace depends on.
        donate_argnums, donate_argnames: arguments whose device memory the results may take over; using one afterwards raises.
        keep_unused, inline: accepted for compatibility: an unused argument costs nothing, a nested function is always inlined.
        device: a Device, its index or part of its name; default: that of the arguments, else `k3jit.config.device`.
        backend, compiler_options, in_shardings, out_shardings: must be None: there is one backend and no sharding.
        name: what reports call it; default the function's name.

    Raises:
        TypeError: an unknown keyword, or an argument that is neither array, number, nor static.
        UnsupportedPrimitive, UnsupportedDtype: the function needs something that has no lowering; the message lists all of it.
    """
    for keyword, value in (("backend", backend), ("in_shardings", in_shardings), ("out_shardings", out_shardings)):
        if value is not None:
            raise TypeError(f"k3jit.jit does not take {keyword}: a function runs whole on one Vulkan device (see device=)")
    if compiler_options:
        raise TypeError("k3jit.jit takes no compiler_options; see k3jit.config for its settings")
    options = Options(
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        device=device,
        name=name,
    )
    if fun is None:
        return lambda function: Jitted(function, options)
    return Jitted(fun, options)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any) -> Any:
    """`k3jit.jit(jax.grad(fun, ...))`; other keywords are those of `jit`."""
    return jit(jax.grad(fun, argnums, has_aux), **options)


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any) -> Any:
    """`k3jit.jit(jax.value_and_grad(fun, ...))`; other keywords are those of `jit`."""
    return jit(jax.value_and_grad(fun, argnums, has_aux), **options)


def _signature(leaf: Any) -> Any:
    """Signature of one flat argument.

    Raises:
        TypeError: not an array, a number or a ShapeDtypeStruct.
    """
    kind = type(leaf)
    if kind is Array:
        return leaf._sig
    if kind is int:
        return _python_int()
    if kind is float:
        return _python_float()
    if kind is np.ndarray or isinstance(leaf, np.generic):
        return _of(leaf.shape, leaf.dtype, False)
    if isinstance(leaf, jax.core.Tracer):
        aval: Any = leaf.aval
        return _of(aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False)))
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        base = _jax_compat.key_base(leaf) if isinstance(leaf, jax.Array) and _compile.is_key(leaf.dtype) else None
        return _of(
            tuple(leaf.shape),
            leaf.dtype,
            bool(getattr(leaf, "weak_type", False)),
            base._sig.device if type(base) is Array else None,
        )
    value, weak = host_value(leaf)
    return Signature.of(value.shape, value.dtype, weak)


def _of(shape: tuple[int, ...], dtype: Any, weak: bool, device: Any = None) -> Signature:
    if not _extended(dtype):
        dtype = _canonical(np.dtype(dtype), bool(_settings.jax_enable_x64))
    return Signature.of(shape, dtype, weak, device)


@functools.lru_cache(256)
def _extended(dtype: Any) -> bool:
    return jax.numpy.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0


@functools.lru_cache(256)
def _canonical(dtype: np.dtype, x64: bool) -> np.dtype:
    return jax.dtypes.canonicalize_dtype(dtype)


def _check_wide(signature: list[Signature], name: str) -> None:
    """Raise where JAX would trace an array of 64 bits as one of 32, which is not what its buffer holds."""
    x64 = bool(_settings.jax_enable_x64)
    for number, sig in enumerate(signature):
        if not _extended(sig.dtype) and _canonical(sig.dtype, x64) != sig.dtype:
            raise UnsupportedDtype(
                f"{name}: argument {number} is a device array {sig}, made under jax_enable_x64, which is off now. Call inside "
                "jax.enable_x64(True), or convert the array there."
            )


def _python_int() -> Signature:
    return Signature.of((), _canonical(np.dtype(np.int64), bool(_settings.jax_enable_x64)), True)


def _python_float() -> Signature:
    return Signature.of((), _canonical(np.dtype(np.float64), bool(_settings.jax_enable_x64)), True)


def _static(value: Any, where: Any, name: str) -> Any:
    try:
        hash(value)
    except TypeError:
        raise ValueError(
            f"{name}: static argument {where!r} is {value!r}, of type {type(value).__name__}, which is not hashable. Static "
            "arguments are part of the cache key: pass a tuple for a list, or do not mark it static."
        ) from None
    return type(value), value


def _name_of(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def _match(fun: Any, numbers: Any, names: Any, what: str) -> tuple[tuple[int, ...], frozenset[str]]:
    """Positions and names of marked arguments, each completed from the other by the function's signature."""
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    if not numbers and not names:
        return (), frozenset()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (ValueError, TypeError):
        return tuple(n for n in numbers if n >= 0), frozenset(names)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    keywords = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not variadic:
        for number in numbers:
            if not -len(positional) <= number < len(positional):
                raise ValueError(f"{what}_argnums={number}: {_name_of(fun)} has {len(positional)} positional parameters")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in names:
            if name not in keywords:
                raise ValueError(
                    f"{what}_argnames={name!r}: {_name_of(fun)} has no such parameter; it has {', '.join(keywords)}"
                )
    numbers = tuple(n + len(positional) if n < 0 and not variadic else n for n in numbers)
    by_name = {positional[n] for n in numbers if n < len(positional) and positional[n] in keywords}
    by_number = {positional.index(name) for name in names if name in positional}
    return tuple(sorted({*numbers, *by_number})), frozenset({*names, *by_name})


def _with_names(function: Any, fun: Any, args: tuple[Any, ...], moving: list[int], name: str) -> Any:
    """Give the traced function the user's name and parameter names, so that JAX's own errors speak of them."""
    function.__name__ = function.__qualname__ = name
    try:
        parameters = list(inspect.signature(fun).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(positional) >= len(args):
            kept = [positional[i].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_empty) for i in moving]
            function.__signature__ = inspect.Signature([*kept, inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)])
    except (ValueError, TypeError):
        pass
    return function


_empty = inspect.Parameter.empty
