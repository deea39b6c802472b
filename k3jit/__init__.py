"""k3jit: JAX functions compiled for Vulkan. `@k3jit.jit` in place of `@jax.jit`.

Names are loaded on first use: importing k3jit does not import JAX and changes nothing in it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import config, debug, errors, testing
    from ._device import devices
    from ._profile import profile
    from .api import grad, jit, value_and_grad
    from .array import Array, block_until_ready, device_put

__version__ = "0.1.0"
__all__ = [
    "Array",
    "block_until_ready",
    "config",
    "debug",
    "device_put",
    "devices",
    "errors",
    "grad",
    "jit",
    "profile",
    "testing",
    "value_and_grad",
]

_HOMES = {
    "jit": "api",
    "grad": "api",
    "value_and_grad": "api",
    "Array": "array",
    "block_until_ready": "array",
    "device_put": "array",
    "devices": "_device",
    "profile": "_profile",
}
_MODULES = ("config", "debug", "errors", "testing", "models", "lowering", "runtime")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'k3jit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
