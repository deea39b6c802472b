"""Schedules: how the kernel of each kind of group is written."""

from __future__ import annotations

from collections.abc import Callable

from ...runtime.caps import DeviceCaps
from ..groups import Group
from .argsort import build_argsort
from .cumulative import build_cumulative
from .loop import build_loop
from .map import build_map
from .matmul import build_dot
from .row import build_row
from .scatter import build_scatter
from .writer import KernelCall

SCHEDULES: dict[str, Callable[[Group, DeviceCaps], KernelCall | list[KernelCall]]] = {
    "map": build_map,
    "row": build_row,
    "dot": build_dot,
    "scatter": build_scatter,
    "cumulative": build_cumulative,
    "argsort": build_argsort,
    "loop": build_loop,
}


def build(group: Group, caps: DeviceCaps) -> list[KernelCall]:
    """The kernels of a group, to be run in order."""
    calls = SCHEDULES[group.kind](group, caps)
    return calls if isinstance(calls, list) else [calls]
