"""From a jaxpr to something that runs on a device: the plan cache, lowering, loading, and what is printed about it."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _device, _jax_compat, _profile, config
from .array import Array, Signature, host_value, put, ready, user_level, wrap
from .errors import DonatedBuffer

_LARGE_CONSTANT = 1 << 20
_lock = threading.RLock()


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of typed PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def lower(closed: Any, caps: Any, name: str, donated: frozenset[int], *, use_cache: bool) -> Any:
    """The Program of a jaxpr without constants, from the plan cache or from lowering."""
    from . import _dump, plan_cache

    started = time.perf_counter()
    closed = _jax_compat.expanded(closed)
    key = plan_cache.key(closed, caps, name, donated) if use_cache else None
    program = plan_cache.load(key) if key is not None else None
    cached = program is not None
    if program is None:
        from .lowering.compile import lower as lower_jaxpr

        program = lower_jaxpr(
            closed,
            caps,
            name=name,
            donated=donated,
            checked=config.value("check"),
            fuse=config.value("fuse"),
            compact=config.value("compact"),
            loops=config.value("loops"),
        )
        if key is not None:
            plan_cache.store(key, program)
    _device.counters["compiles"] += 1
    _dump.report(program, closed, time.perf_counter() - started, cached)
    return program


class Loaded:
    """A jaxpr compiled for one device.

    Attributes:
        program: what lowering made.
        executable: what the runtime runs.
        signatures: of the results; a typed key's is that of its raw words.
        keys: (result number, key implementation) of results that are typed keys.
        donated: flat inputs whose memory is given away.
        repeated: results that are the same buffer as an earlier one, so that neither may be overwritten.
    """

    __slots__ = ("device", "donated", "executable", "keys", "name", "program", "repeated", "signatures")

    def __init__(self, closed: Any, device: Any, name: str, donated: frozenset[int] = frozenset(), program: Any = None) -> None:
        ready()
        self.device, self.name, self.donated = device, name, tuple(sorted(donated))
        use_cache = not _device.is_null(device) and config.value("cache_dir") != "off"
        self.program = program or lower(closed, device.caps, name, donated, use_cache=use_cache)
        self.executable = device.load(self.program)
        places = [output.buffer for output in self.program.outputs]
        self.repeated = [i for i, place in enumerate(places) if place in places[:i]]
        self.signatures: list[Signature] = []
        self.keys: list[tuple[int, Any]] = []
        for number, aval in enumerate(closed.out_avals):
            if is_key(aval.dtype):
                self.keys.append((number, aval.dtype._impl.name))
                self.signatures.append(
                    Signature.of((*aval.shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32), False, device)
                )
            else:
                self.signatures.append(Signature.of(aval.shape, aval.dtype, bool(aval.weak_type), device))

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Submit one call; returns at once with arrays that fill in order.

        Args:
            leaves: flat inputs: Arrays of this device, or anything `host_value` takes.
        """
        buffers = [leaf._buffer if type(leaf) is Array else self._upload(leaf) for leaf in leaves]
        if None in buffers:
            leaves[buffers.index(None)]._live_buffer()
        if _profile.wanted():
            _profile.time_call(self, buffers)
        if self.donated:
            self._check_donation(leaves, buffers)
            results = self.executable.run(buffers, donate=self.donated)
            for index in self.donated:
                if type(leaves[index]) is Array:
                    leaves[index]._release(f"a call of {self.name}")
        else:
            results = self.executable.run(buffers)
        arrays: list[Any] = [wrap(buffer, sig) for buffer, sig in zip(results, self.signatures, strict=True)]
        for number in self.repeated:
            results[number].pinned = True
        if config.value("check_nan"):
            from .debug import check_results

            check_results(self, arrays)
        for number, impl in self.keys:
            arrays[number] = jax.random.wrap_key_data(arrays[number], impl=impl)
        _device.counters["calls"] += 1
        return arrays

    def _upload(self, leaf: Any) -> Any:
        if isinstance(leaf, Array):
            return leaf._live_buffer()
        if isinstance(leaf, jax.Array) and is_key(leaf.dtype):
            base = _jax_compat.key_base(leaf)
            return base._live_buffer() if type(base) is Array else self._upload(base)
        return _device.upload(self.device, host_value(leaf)[0])

    def _check_donation(self, leaves: Sequence[Any], buffers: list[Any]) -> None:
        seen: dict[int, int] = {}
        for number, buffer in enumerate(buffers):
            first = seen.setdefault(id(buffer), number)
            if first != number and (first in self.donated or number in self.donated):
                raise DonatedBuffer(
                    f"{self.name}: flat arguments {first} and {number} are the same device array ({leaves[number].aval}), "
                    "and one of them is donated. Pass a copy (x.copy()) or do not donate it."
                )


_states: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def state_of(closed: Any) -> dict[Any, Any]:
    """What has been derived from a jaxpr (loaded programs, its transformations); lives as long as the jaxpr."""
    found = _states.get(closed)
    if found is None:
        with _lock:
            found = _states.setdefault(closed, {})
    return found


def loaded(closed: Any, device: Any, name: str, donated: frozenset[int] = frozenset(), program: Any = None) -> Loaded:
    """The compiled form of `closed` on `device`, made on first use, of `program` where it is lowered already."""
    state = state_of(closed)
    key = ("loaded", device, donated, config.key())
    found = state.get(key)
    if found is None:
        with _lock:
            found = state.get(key)
            if found is None:
                found = state[key] = Loaded(closed, device, name, donated, program)
    return found


_constants: dict[tuple[int, Any], tuple[weakref.ref[Any], Array]] = {}


def constant(value: Any, device: Any, name: str) -> Any:
    """A closed-over array as a flat input, uploaded once for an array object and a device."""
    if isinstance(value, Array):
        return value if value._sig.device is device else put(value._value(), device, value.weak_type)
    if isinstance(value, jax.Array) and is_key(value.dtype):
        return value
    key = (id(value), device)
    found = _constants.get(key)
    if found is not None and found[0]() is value:
        return found[1]
    host, weak = host_value(value)
    if host.nbytes > _LARGE_CONSTANT:
        warnings.warn(
            f"{name} closes over an array of {host.nbytes / 2**20:.1f} MiB ({host.dtype}{list(host.shape)}), which stays in "
            "device memory as long as the function does. Pass it as an argument instead.",
            stacklevel=user_level(),
        )
    array = put(host, device, weak)
    with contextlib.suppress(TypeError):  # a value that takes no weak reference is uploaded once a signature instead
        _constants[key] = weakref.ref(value, lambda _: _constants.pop(key, None)), array
    return array
