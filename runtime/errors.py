"""Errors of the runtime. `k3jit.errors` re-exports them."""

from __future__ import annotations


class NoDevice(RuntimeError):
    """No Vulkan device can be used: none is installed, none meets the floor, or the chosen one does not exist."""


class OutOfDeviceMemory(RuntimeError):
    """An allocation failed after deferred frees and a trim; the message lists the largest live owners."""


class DeviceLost(RuntimeError):
    """The device stopped answering; the message names the programs that were in flight."""
