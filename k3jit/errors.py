"""Every error k3jit raises on purpose, in one place."""

from __future__ import annotations

from .lowering.errors import LoweringError, UnsupportedDtype, UnsupportedPrimitive
from .runtime.errors import DeviceLost, NoDevice, OutOfDeviceMemory

__all__ = [
    "DeviceLost",
    "DonatedBuffer",
    "IncompatibleJax",
    "LoweringError",
    "NoDevice",
    "OutOfDeviceMemory",
    "TransferError",
    "UnsupportedDtype",
    "UnsupportedPrimitive",
]


class DonatedBuffer(RuntimeError):
    """An array was used after its memory was given away (donated to a call, or deleted), or cannot be given away.

    The message names the call that took it.
    """


class TransferError(RuntimeError):
    """A copy or a change of device that a setting forbids (`warn_transfer=error`, `warn_inline=error`)."""


class IncompatibleJax(ImportError):
    """This version of JAX lacks a hook that device arrays need. The message names the versions that have it."""
