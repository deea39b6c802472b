"""Devices as the user sees them, and how host values become buffers and come back."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np

from . import config
from .errors import NoDevice, UnsupportedDtype
from .lowering.dtypes import DTYPES, missing, name_of

counters = {"uploads": 0, "host_reads": 0, "eager_transfers": 0, "traces": 0, "compiles": 0, "calls": 0}
"""What happened in this process so far; `k3jit.debug.counters()` gives a copy."""

_narrow: dict[Any, frozenset[int]] = {}
_null: dict[str, Any] = {}


def devices() -> list[Any]:
    """Every device, usable or not (see `Device.missing`).

    Raises:
        NoDevice: there is none; the message says how to install a driver.
    """
    from .runtime.device import devices as found

    return list(found())


def default_device() -> Any:
    """The device that `k3jit.config.device` (or K3JIT_DEVICE) names, else the strongest kind.

    Raises:
        NoDevice: there is none, or none of that name.
    """
    choice = config.value("device")
    if choice is None or choice == os.environ.get("K3JIT_DEVICE"):
        from .runtime.device import default_device as found

        return found()
    if choice == "null" or choice.startswith("null:"):
        if choice not in _null:
            from .runtime.null import NullDevice

            _null[choice] = NullDevice.from_setting(choice)
        return _null[choice]
    return resolve(choice)


def wait(buffer: Any) -> None:
    """Block until the last write to `buffer` is finished."""
    last = getattr(buffer, "last_write", None)
    if last is not None:
        buffer.device.stream.wait(last)


def is_ready(buffer: Any) -> bool:
    """Whether the last write to `buffer` is finished."""
    last = getattr(buffer, "last_write", None)
    return last is None or buffer.device.stream.reached(last)


def is_null(device: Any) -> bool:
    """Whether kernels are interpreted there."""
    return getattr(device, "driver", "") == "interpreter"


def resolve(device: Any) -> Any:
    """A Device from None (the default), an index, part of a name, or a Device."""
    if device is None:
        return default_device()
    if isinstance(device, int | str):
        found = devices()
        for candidate in found:
            if str(candidate.index) == str(device) or (
                not str(device).isdigit() and str(device).lower() in candidate.name.lower()
            ):
                return candidate
        raise NoDevice(f"no device {device!r}; there are {', '.join(f'{d.index}: {d.name}' for d in found) or 'none'}")
    return device


def element_bytes(device: Any, dtype: np.dtype) -> int:
    """Bytes an element takes in a buffer of `device`."""
    narrow = _narrow.get(device)
    if narrow is None:
        narrow = _narrow[device] = frozenset(device.caps.storage)
    name = name_of(dtype)
    if name is None or name in missing(device.caps):
        raise UnsupportedDtype(unsupported_dtype(dtype))
    return DTYPES[name].storage_bytes(narrow)


def unsupported_dtype(dtype: Any) -> str:
    """Sentence for an element type that no kernel holds."""
    return (
        f"{np.dtype(dtype).name} arrays cannot live on this Vulkan device; k3jit computes with "
        f"{', '.join(d.numpy.name for d in DTYPES.values())}, those of 64 bits where the device does. Convert the array "
        "first, for instance with .astype(jnp.float32)."
    )


def upload(device: Any, array: np.ndarray) -> Any:
    """Copy `array` (an element type of DTYPES) into a new buffer; later changes to `array` do not matter."""
    counters["uploads"] += 1
    width = element_bytes(device, array.dtype)
    if width != array.dtype.itemsize:
        array = _widen(array)
    elif array.dtype == np.bool_:
        array = array.view(np.uint8) if array.flags.c_contiguous else array.astype(np.uint8)
    elif array.dtype == ml_dtypes.bfloat16:
        array = np.ascontiguousarray(array).view(np.uint16)
    return device.upload(np.ascontiguousarray(array))


def download(device: Any, buffer: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Wait for `buffer` and copy it to the host."""
    counters["host_reads"] += 1
    raw = np.asarray(device.download(buffer))
    width = element_bytes(device, dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = raw[: count * width]
    if width == dtype.itemsize:
        return raw.view(dtype).reshape(shape) if dtype != np.bool_ else (raw != 0).reshape(shape)
    words = raw.view(np.uint32)
    if dtype == np.bool_:
        return (words != 0).reshape(shape)
    bits = words.astype(np.uint16 if dtype.itemsize == 2 else np.uint8)
    return bits.view(dtype).reshape(shape)


def _widen(array: np.ndarray) -> np.ndarray:
    """One 32-bit word an element, its bits in the low part (sign-extended for signed integers)."""
    if array.dtype.kind == "i":
        return array.astype(np.int32)
    if array.dtype.kind in "ub":
        return array.astype(np.uint32)
    return np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
