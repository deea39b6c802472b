"""Kernels written by hand, on the device that k3jit uses: what it does at most, and the least that some workloads take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from k3jit.lowering.program import Buffer, Dispatch, Program, Ref
from k3jit.lowering.tile import Block, Kernel, Param
from k3jit.runtime.device import Buffer as DeviceBuffer
from k3jit.runtime.device import Device, default_device

from .workloads import Array, Workload, make

FOLDER = Path(__file__).parent / "kernels"
SUBGROUPS = (4, 8, 16, 32, 64)  # lanes for which there are binaries
COPIED = 1 << 24  # floats that the copy moves: more than caches hold


@dataclass(frozen=True)
class Launch:
    """One dispatch.

    Attributes:
        kernel: name of the source in `kernels/`.
        row: arguments in the kernel's order: arrays, and 32-bit literals.
        groups: workgroups in x, y, z.
        results: which of the arguments are written.
        flops, bytes: of one dispatch.
    """

    kernel: str
    row: tuple[Array | int, ...]
    groups: tuple[int, int, int]
    results: tuple[int, ...]
    flops: float = 0.0
    bytes: float = 0.0


class Handwritten:
    """A launch made ready: call it to run it to its end.

    Raises:
        RuntimeError: the device is no Vulkan device, or there is no binary for its subgroups.
    """

    def __init__(self, launch: Launch) -> None:
        device, size = default_device(), lanes()
        if not isinstance(device, Device):
            raise RuntimeError("hand-written kernels need a Vulkan device; K3JIT_DEVICE chose another")
        spirv = (FOLDER / f"{launch.kernel}_{size}.spv").read_bytes()
        buffers: list[Buffer] = []
        entries: list[Ref | int] = []
        self._device, self._launch = device, launch
        self._uploads: list[DeviceBuffer] = []
        for argument in launch.row:
            if isinstance(argument, int):
                entries.append(argument)
                continue
            entries.append(Ref(len(buffers), 0, argument.nbytes))
            buffers.append(Buffer("input", argument.nbytes, index=len(buffers)))
            self._uploads.append(device.upload(argument))
        params = tuple(Param(f"p{position}", "f32", 0, "rw") for position in range(len(launch.row)))
        kernel = Kernel(launch.kernel, params, size, (), Block(None, 0))
        inputs: list[tuple[tuple[int, ...], str]] = [((upload.nbytes,), "u8") for upload in self._uploads]
        dispatch = Dispatch(0, launch.groups, (tuple(entries),))
        self._executable = device.load(Program(launch.kernel, [kernel], [spirv], buffers, [dispatch], inputs, []))

    def __call__(self) -> None:
        self._executable.run(self._uploads)
        self._device.wait_idle()

    def results(self) -> list[np.ndarray]:
        """What the arguments that are written hold now."""
        out, number = [], 0
        for position, argument in enumerate(self._launch.row):
            if isinstance(argument, int):
                continue
            if position in self._launch.results:
                out.append(self._device.download(self._uploads[number]).view(argument.dtype).reshape(argument.shape))
            number += 1
        return out


def lanes() -> int:
    """Lanes of a subgroup of the device, for which there must be binaries."""
    size = default_device().caps.subgroup_size
    if size not in SUBGROUPS:
        raise RuntimeError(
            f"no hand-written kernels for subgroups of {size} lanes; kernels/compile.sh makes those for {SUBGROUPS}"
        )
    return size


# -- workloads that are bound by memory ------------------------------------------------------------------------------------
def _mapped(kernel: str, x: Array, groups_a_lane: int) -> Launch:
    blocks = x.size // (4 * groups_a_lane * lanes())
    return Launch(kernel, (x, np.zeros_like(x)), (blocks, 1, 1), (1,), bytes=8.0 * x.size)


def _adamw(workload: Workload) -> Launch:
    """All leaves as one array, of a whole number of blocks."""
    params, _, grads = workload.args
    block = 4 * 32 * lanes()
    size = -(-sum(leaf.size for leaf in params) // block) * block
    flat = [np.resize(np.concatenate(leaves), size).astype(np.float32) for leaves in (params, grads)]
    first, second = 1 / (1 - 0.9), 1 / (1 - 0.95)
    bias, zeros = np.array([first, second], np.float32), np.zeros(size, np.float32)
    return Launch("adamw", (flat[0], zeros, zeros.copy(), flat[1], bias), (size // block, 1, 1), (0,), bytes=28.0 * size)


def _rows(kernel: str, workload: Workload) -> Launch:
    x, *gain = workload.args
    return Launch(kernel, (x, *gain, np.zeros_like(x)), (x.shape[0], 1, 1), (1 + len(gain),), bytes=8.0 * x.size)


BOUND_BY_MEMORY: dict[str, Callable[[Workload], Launch]] = {
    "axpb_1m": lambda w: _mapped("axpb", w.args[0], 16),
    "chain_1m": lambda w: _mapped("chain", w.args[0], 4),
    "softmax_1024": lambda w: _rows("softmax", w),
    "rmsnorm_1024": lambda w: _rows("rmsnorm", w),
    "adamw_200": _adamw,
}
"""Workloads with a hand-written counterpart."""


# -- ceilings --------------------------------------------------------------------------------------------------------------
def _fma() -> Launch:
    groups, size = 2048, lanes()
    x, y = np.full(4 * size, 1e-3, np.float32), np.zeros(4 * size * groups, np.float32)
    return Launch("fma", (x, y), (groups, 1, 1), (1,), flops=4 * 2 * 16384.0 * size * groups)


def _matmul(name: str) -> Launch:
    a, b = make(name).args
    size = a.shape[0]
    groups = size // (4 * lanes()), size // 8, 1
    return Launch("matmul", (a, b, np.zeros_like(a), size), groups, (2,), flops=2.0 * size**3)


CEILINGS: dict[str, Callable[[], Launch]] = {
    "fma": _fma,
    "copy": lambda: _mapped("copy", np.ones(COPIED, np.float32), 16),
    "matmul_512": lambda: _matmul("matmul_512"),
    "matmul_1024": lambda: _matmul("matmul_1024"),
}
"""What the device does at most: multiply-adds, bytes copied, and a hand-tiled matrix product."""
