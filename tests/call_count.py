"""The work a function does, counted instead of timed: a count is the same on every machine."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any


def call_count(function: Callable[..., Any], *arguments: Any) -> int:
    """Function calls, of Python and of C, that `function(*arguments)` makes."""
    profile = cProfile.Profile()
    profile.runcall(function, *arguments)
    return sum(entry.callcount for entry in profile.getstats())
