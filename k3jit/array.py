"""`k3jit.Array`: a `jax.Array` whose values live on a Vulkan device.

It holds a runtime buffer, its signature (shape, dtype, weak type, device) and, once asked for, a host copy. Reading a value
waits for the device and copies once. Eager jnp on it computes on the CPU, as JAX would with any foreign array: correct, counted
in `k3jit.debug.counters()`, and refused or reported under `K3JIT_WARN_TRANSFER`.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _device, _jax_compat, config
from .errors import DonatedBuffer, TransferError, UnsupportedDtype

_setup_lock = threading.Lock()
_ready = False


class Signature:
    """What a compiled function depends on in one argument; equal signatures are one object, compared by identity."""

    __slots__ = ("aval", "bare", "device", "dtype", "shape", "weak_type")
    _known: dict[tuple[Any, ...], Signature] = {}  # noqa: RUF012
    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool
    device: Any
    aval: Any
    bare: Signature
    """The same without a device: what tracing depends on."""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any, weak_type: bool = False, device: Any = None) -> Signature:
        key = (shape, dtype, weak_type, device)
        found = cls._known.get(key)
        if found is None:
            found = cls()
            found.shape, found.dtype, found.weak_type, found.device = shape, dtype, weak_type, device
            found.aval = jax.core.ShapedArray(shape, dtype, weak_type=weak_type)
            found.bare = found if device is None else cls.of(shape, dtype, weak_type)
            found = cls._known.setdefault(key, found)
        return found

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]{weak}"


class Array(jax.Array):
    """A device array. Made by calling a jitted function or by `k3jit.device_put`, not directly.

    Raises:
        DonatedBuffer: on any use of the values after the array was donated or deleted.
    """

    __slots__ = ("__weakref__", "_buffer", "_gone", "_host", "_sig")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100
    _buffer: Any
    _sig: Signature
    _host: np.ndarray | None
    _gone: str | None

    def __init__(self) -> None:
        raise TypeError("k3jit.Array is not made directly; use k3jit.device_put(x)")

    # -- description ---------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self._sig.shape

    @property
    def dtype(self) -> np.dtype:
        return self._sig.dtype

    @property
    def ndim(self) -> int:
        return len(self._sig.shape)

    @property
    def size(self) -> int:
        return math.prod(self._sig.shape)

    @property
    def itemsize(self) -> int:
        return self._sig.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self._sig.dtype.itemsize

    @property
    def weak_type(self) -> bool:
        return self._sig.weak_type

    @property
    def aval(self) -> Any:
        return self._sig.aval

    @property
    def vulkan_device(self) -> Any:
        """The k3jit Device that holds the values."""
        return self._sig.device

    # XLA has no name for our device, so towards JAX an array says where its eager operations run: the CPU.
    @property
    def sharding(self) -> Any:
        return _jax_compat.cpu_sharding()

    @property
    def device(self) -> Any:
        return _jax_compat.cpu_sharding()

    @property
    def committed(self) -> bool:
        return False

    _committed = committed

    def devices(self) -> set[Any]:
        return set(_jax_compat.cpu_sharding().device_set)

    @property
    def is_fully_addressable(self) -> bool:
        return True

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def is_ready(self) -> bool:
        """Whether the values are computed; never waits."""
        return _device.is_ready(self._live_buffer())

    def addressable_data(self, index: int) -> Array:
        if index != 0:
            raise IndexError(f"a device array has one shard, not {index + 1}")
        return self

    def on_device_size_in_bytes(self) -> int:
        """Bytes on the device, where a type it cannot address takes 32 bits an element."""
        return self.size * _device.element_bytes(self._sig.device, self._sig.dtype)

    # -- life ----------------------------------------------------------------------------------------------------
    def is_deleted(self) -> bool:
        return self._buffer is None

    def delete(self) -> None:
        """Give the memory back now."""
        self._release("Array.delete()")

    def _release(self, taker: str) -> None:
        self._gone, self._buffer, self._host = taker, None, None

    def _live_buffer(self) -> Any:
        if self._buffer is None:
            raise DonatedBuffer(
                f"{self._sig} was given away to {self._gone}. Use what that call returned, or do not donate this argument "
                "(donate_argnums), or pass a copy."
            )
        return self._buffer

    def block_until_ready(self) -> Array:
        _device.wait(self._live_buffer())
        return self

    def copy_to_host_async(self) -> None:
        """Does nothing but check that the array is alive: the copy is made when a value is read."""
        self._live_buffer()

    def copy(self) -> Array:
        """A new device array with the same values."""
        return put(self._value(), self._sig.device, self._sig.weak_type)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._value(), self._sig.weak_type)

    # -- values --------------------------------------------------------------------------------------------------
    def _value(self) -> np.ndarray:
        """The values on the host, read-only, copied once."""
        if self._host is None:
            buffer = self._live_buffer()
            host = _device.download(self._sig.device, buffer, self._sig.shape, self._sig.dtype)
            host.flags.writeable = False
            self._host = host
        return self._host

    def __array__(self, dtype: Any = None, context: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._value()
        if dtype is not None and np.dtype(dtype) != value.dtype:
            if copy is False:
                raise ValueError(f"cannot view {value.dtype} as {np.dtype(dtype)} without a copy")
            return value.astype(dtype)
        return value.copy() if copy else value

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Export to the CPU."""
        if dl_device is not None and tuple(int(d) for d in dl_device) != (1, 0):
            raise BufferError(f"a k3jit array exports to the CPU (1, 0) only, not to {dl_device}")
        if copy is not True and self._host is None:
            view = self._sig.device.view(self._live_buffer())
            if view is not None and view.nbytes == self.nbytes:
                # Memory that the CPU sees is handed out as it is; the view pins it, so no later call writes into it.
                shown = view.view(self.dtype).reshape(self.shape)
                if max_version is not None and max_version >= (1, 0):
                    return shown.__dlpack__(max_version=max_version)
        return self._value().copy().__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self, *args: Any) -> Any:
        return self._value().item(*args)

    def tolist(self) -> Any:
        return self._value().tolist()

    def _scalar(self, convert: Callable[[Any], Any]) -> Any:
        if self.ndim:
            raise TypeError(f"only a scalar array converts to a Python scalar; this one has shape {self.shape}")
        return convert(self._value().item())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __int__(self) -> int:
        return self._scalar(int)

    def __float__(self) -> float:
        return self._scalar(float)

    def __complex__(self) -> complex:
        return self._scalar(complex)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"only an integer scalar can be an index, not {self.dtype}")
        return self._scalar(operator.index)

    def __format__(self, spec: str) -> str:
        return format(self._value()[()], spec) if self.ndim == 0 else format(str(self), spec)

    def __len__(self) -> int:
        if not self._sig.shape:
            raise TypeError("len() of a scalar array")
        return self._sig.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self._sig.shape:
            raise TypeError("iteration over a scalar array")
        return iter(self._as_jax())

    def __repr__(self) -> str:
        if self._buffer is None:
            return f"k3jit.Array<{self._sig}, given away to {self._gone}>"
        weak = ", weak_type=True" if self.weak_type else ""
        prefix = "k3jit.Array("
        text = np.array2string(self._value(), prefix=prefix, separator=", ", threshold=100)
        return f"{prefix}{text}, dtype={self.dtype.name}{weak})"

    def __str__(self) -> str:
        return str(self._value())

    def _repr_html_(self) -> str:
        from html import escape

        place = escape(str(getattr(self._sig.device, "name", self._sig.device)))
        return f"<pre>{escape(repr(self))}\n{escape(repr(self._sig))} on {place}, {self.nbytes:,} bytes</pre>"

    # -- computing -----------------------------------------------------------------------------------------------
    def _as_jax(self) -> Any:
        """A CPU array with these values, or inside a trace a traced copy."""
        return jnp.copy(self)

    def __getitem__(self, index: Any) -> Any:
        return self._as_jax()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("arrays are immutable: use x = x.at[index].set(value), inside k3jit.jit to keep it on the device")

    def __contains__(self, value: Any) -> bool:
        return value in self._as_jax()

    def __array_namespace__(self, *, api_version: str | None = None, device: Any = None) -> Any:
        return jnp

    def tobytes(self, order: str = "C") -> bytes:
        return self._value().tobytes(order)  # type: ignore[arg-type]

    def _split(self, indices: Any, axis: int = 0) -> Any:
        """What jacfwd and jacrev cut results with; one piece stays where it is."""
        return self._as_jax()._split(indices, axis) if len(indices) else [self]

    @property
    def at(self) -> Any:
        return self._as_jax().at

    @property
    def T(self) -> Any:
        return self._as_jax().T

    @property
    def mT(self) -> Any:
        return self._as_jax().mT

    @property
    def real(self) -> Any:
        return self._as_jax().real

    @property
    def imag(self) -> Any:
        return self._as_jax().imag

    @property
    def flat(self) -> Any:
        return self._as_jax().flat

    @property
    def addressable_shards(self) -> Any:
        return self._as_jax().addressable_shards

    @property
    def global_shards(self) -> Any:
        return self._as_jax().global_shards

    @property
    def format(self) -> Any:
        # JAX asks for it while it moves the array, so it must not go through a copy of the array itself.
        from jax.experimental.layout import Format, Layout

        return Format(Layout(tuple(range(self.ndim))), _jax_compat.cpu_sharding())


METHODS = """
    all any argmax argmin argpartition argsort astype byteswap choose clip compress conj conjugate cumprod cumsum diagonal dot
    flatten max mean min nonzero prod ptp ravel repeat reshape round searchsorted sort squeeze std sum swapaxes take
    to_device trace transpose var view _chunk_iter _multi_slice _unstack
""".split()
_BINARY: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.true_divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.remainder,
    "divmod": jnp.divmod,
    "pow": jnp.power,
    "matmul": jnp.matmul,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "lshift": jnp.left_shift,
    "rshift": jnp.right_shift,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_UNARY = {"neg": jnp.negative, "pos": jnp.positive, "abs": jnp.abs, "invert": jnp.bitwise_not}
_OPERANDS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _delegate() -> None:
    """Give Array the operators and methods of jax.Array; each goes through jnp, so it also works inside a trace."""

    def operation(name: str, function: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
        def binary(self: Array, other: Any) -> Any:
            if not isinstance(other, _OPERANDS) and not hasattr(other, "__jax_array__"):
                return NotImplemented
            return function(other, self) if reflected else function(self, other)

        binary.__name__ = binary.__qualname__ = name
        return binary

    def unary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Array) -> Any:
            return function(self)

        apply.__name__ = apply.__qualname__ = name
        return apply

    def method(name: str) -> Callable[..., Any]:
        def call(self: Array, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._as_jax(), name)(*args, **kwargs)

        call.__name__ = call.__qualname__ = name
        return call

    for name, function in {**_BINARY, **_COMPARE}.items():
        setattr(Array, f"__{name}__", operation(f"__{name}__", function, reflected=False))
    for name, function in _BINARY.items():
        setattr(Array, f"__r{name}__", operation(f"__r{name}__", function, reflected=True))
    for name, function in _UNARY.items():
        setattr(Array, f"__{name}__", unary(f"__{name}__", function))
    for name in METHODS:
        setattr(Array, name, method(name))
    setattr(Array, "__round__", lambda self, digits=0: self.round(digits))  # noqa: B010  (jax.Array declares it)


_delegate()


# -- making arrays -----------------------------------------------------------------------------------------------------
def ready() -> None:
    """Register Array with JAX, once."""
    global _ready
    if not _ready:
        with _setup_lock:
            if not _ready:
                _jax_compat.install(Array, lambda array: array._sig.aval, _for_xla)
                _ready = True


_new = object.__new__


def wrap(buffer: Any, sig: Signature) -> Array:
    """An Array that owns `buffer`; `ready()` was called before."""
    array = _new(Array)
    array._buffer = buffer
    array._sig = sig
    array._host = None
    array._gone = None
    return array


def put(value: np.ndarray, device: Any, weak_type: bool = False) -> Array:
    """Copy a host array to `device`."""
    ready()
    sig = Signature.of(value.shape, value.dtype, weak_type, device)
    return wrap(_device.upload(device, value), sig)


def host_value(leaf: Any) -> tuple[np.ndarray, bool]:
    """Host values of an argument that is not an Array, with the dtype JAX gives it, and whether the type is weak.

    Raises:
        TypeError: not an array nor a number.
        UnsupportedDtype: a type that no kernel holds (float64 under x64, complex, ...).
    """
    kind = type(leaf)
    if kind in _WEAK:
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(_WEAK[kind])), True
    if isinstance(leaf, bool | np.ndarray | np.generic | jax.Array):
        value = np.asarray(leaf)
        weak = bool(getattr(leaf, "weak_type", False))
    elif hasattr(leaf, "__jax_array__"):
        return host_value(leaf.__jax_array__())
    else:
        raise TypeError(
            f"argument {leaf!r} of type {kind.__name__} is not an array. k3jit.jit takes arrays, numbers and pytrees of them; "
            "mark other arguments static (static_argnums, static_argnames)."
        )
    if value.dtype == jax.dtypes.float0:
        return np.zeros(value.shape, np.bool_), False
    canonical = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype != canonical:
        value = value.astype(canonical)
    if _device.name_of(value.dtype) is None:
        raise UnsupportedDtype(_device.unsupported_dtype(value.dtype))
    return value, weak


_WEAK: dict[type, Any] = {int: np.int64, float: np.float64}


def device_put(x: Any, device: Any = None) -> Any:
    """Copy every array leaf of `x` (NumPy, JAX, numbers) to a device; leaves already there are returned as they are.

    Args:
        device: a Device, its index, part of its name, or None for the default.
    """
    target = _device.resolve(device)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Array):
            leaf._live_buffer()
            return leaf if leaf._sig.device is target else put(leaf._value(), target, leaf.weak_type)
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            base = move(_jax_compat.key_base(leaf))
            return jax.random.wrap_key_data(base, impl=jax.random.key_impl(leaf))
        value, weak = host_value(leaf)
        return put(value, target, weak)

    return jax.tree.map(move, x)


def block_until_ready(tree: Any) -> Any:
    """Wait until every array in `tree` has its values; returns `tree`."""
    return jax.block_until_ready(tree)


def _restore(value: np.ndarray, weak_type: bool) -> Array:
    return put(value, _device.default_device(), weak_type)


def _for_xla(array: Array) -> np.ndarray:
    """The value of an array that JAX is about to compute with on the CPU."""
    _device.counters["eager_transfers"] += 1
    action = config.value("warn_transfer")
    if action != "ignore":
        text = (
            f"an eager JAX operation copies {array._sig} from the Vulkan device to the CPU and computes there. Put it inside "
            "k3jit.jit, or use np.asarray(x) where a host value is meant."
        )
        if action == "error":
            raise TransferError(text)
        warnings.warn(text, stacklevel=user_level())
    return array._value()


_INSIDE = tuple(os.path.dirname(place or "") + os.sep for place in (jax.__file__, np.__file__, __file__))


def user_level() -> int:
    """`stacklevel` that makes a warning, given by the caller, point at the first line outside JAX, NumPy and k3jit."""
    import sys

    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
