"""Which scans become kernels, and why the others are dispatched turn by turn."""

from __future__ import annotations

from ..runtime.caps import DeviceCaps
from .cost import Weights
from .graph import Loop
from .kernels.loop import Layout, layout_of
from .limits import limits
from .phases import plan_turn

_INSIDE = frozenset(
    "input const iota map broadcast reshape transpose slice reverse pad window concat "
    "dynamic_slice dynamic_update_slice gather reduce dot".split()
)


def why_dispatched(spec: Loop, caps: DeviceCaps) -> str | None:
    """Why a loop cannot or should not be one kernel; None if it should."""
    if spec.kind != "scan":
        return "only the device knows how often it turns"
    for inner in spec.body.nodes:
        if inner.op not in _INSIDE:
            return f"a turn holds {inner!r}, which has a schedule of its own"
    weights, most = Weights(spec.body), limits(caps).weight
    least = sum(weights.own(n) for n in spec.body.nodes)
    if least > most:
        return f"a turn takes {least} instructions or more, and a kernel holds {most}"
    layout = layout_of(plan_turn(spec, limits(caps)), caps)
    return None if isinstance(layout, Layout) else layout


def how_fused(spec: Loop, caps: DeviceCaps) -> str:
    """What to say of a scan that is one kernel."""
    turn = plan_turn(spec, limits(caps))
    layout = layout_of(turn, caps)
    assert isinstance(layout, Layout)
    share = "a workgroup" if layout.together else "a lane"
    return f"{turn.slices.count} independent slices of {turn.elements} elements, {share} each"
