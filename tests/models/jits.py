"""The compilers the model tests run under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Under:
    """A jit and a float type. ``reference`` runs are an independent look at the mathematics, not at this compiler."""

    name: str
    dtype: Any
    reference: bool

    def jit(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if self.reference:
            return jax.jit(*args, **kwargs)
        import k3jit

        return k3jit.jit(*args, **kwargs)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        return jax.enable_x64(True) if self.dtype == jnp.float64 else contextlib.nullcontext()


UNDER = [
    Under("k3jit", jnp.float32, False),
    Under("xla_f32", jnp.float32, True),
    Under("xla_f64", jnp.float64, True),
    Under("k3jit_f64", jnp.float64, False),
]


def ids(under: Under) -> str:
    return under.name
