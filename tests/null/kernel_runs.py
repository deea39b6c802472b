"""Runs the kernels of one group in the interpreter: inputs by node, outputs by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from k3jit.lowering.dtypes import DTYPES
from k3jit.lowering.graph import Node
from k3jit.lowering.groups import Group
from k3jit.lowering.interp import run_dispatch
from k3jit.lowering.kernels.writer import KernelCall
from k3jit.lowering.verify import verify
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps

Array = np.ndarray
Run = Callable[[KernelCall, Sequence[Array | int], DeviceCaps], None]
WIDTHS = [
    replace(NULL_CAPS, subgroup_size=4),
    NULL_CAPS,
    replace(NULL_CAPS, subgroup_size=32, kind="discrete"),
    replace(NULL_CAPS, subgroup_ops=False),
]
WIDTH_NAMES = ["4", "8", "32", "8-no-ops"]


def group_of(kind: str, outputs: Iterable[Node], inputs: Iterable[Node], anchor: Node) -> Group:
    """A group that computes everything between `inputs` and `outputs`."""
    outputs, inputs = list(outputs), set(inputs)
    members: set[Node] = set()
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node not in members and node not in inputs:
            members.add(node)
            stack.extend(node.args)
    return Group(kind, outputs, members, inputs | set(outputs), anchor=anchor)


def in_interpreter(call: KernelCall, row: Sequence[Array | int], caps: DeviceCaps) -> None:
    run_dispatch(call.kernel, call.groups, [row], subgroup_size=caps.subgroup_size, check_races=True)


def run_calls(
    calls: KernelCall | Sequence[KernelCall], values: Mapping[Node, Any], caps: DeviceCaps, run: Run = in_interpreter
) -> dict[Node, Array]:
    """Run kernels in order; returns every array they wrote, in its shape."""
    calls = [calls] if isinstance(calls, KernelCall) else calls
    memory = {node: np.ascontiguousarray(value).reshape(-1) for node, value in values.items()}
    written: dict[Node, Array] = {}
    for call in calls:
        verify(call.kernel, caps)
        for node in call.args:
            if isinstance(node, Node) and node not in memory:
                dtype = DTYPES[node.dtype].numpy
                memory[node] = np.full(node.size, 0x5A, np.uint8).astype(dtype)
        assert all(isinstance(n, Node) for n in call.writes + call.reads)
        run(call, [memory[a] if isinstance(a, Node) else a for a in call.args], caps)
        for node in call.writes:
            written[node] = memory[node].reshape(node.shape)
    return written
