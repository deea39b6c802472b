"""Errors of lowering: each says what, where in the user's code, and what to do."""

from __future__ import annotations


class UnsupportedPrimitive(NotImplementedError):
    """A JAX primitive (or a form of one) that has no lowering. Names every one of the program at once."""


class UnsupportedDtype(NotImplementedError):
    """An element type that the device or the compiler cannot compute with."""


class LoweringError(RuntimeError):
    """An inconsistency inside the compiler itself: a bug to report, with the pass that found it."""
