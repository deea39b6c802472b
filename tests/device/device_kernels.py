"""Runs single kernels on the device, and builds random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from k3jit.lowering.dtypes import DTYPES
from k3jit.lowering.emit import emit, validate
from k3jit.lowering.program import Buffer, Dispatch, Program, Ref
from k3jit.lowering.tile import Builder, Kernel, Value
from k3jit.lowering.verify import verify
from k3jit.runtime.device import default_device

Array = np.ndarray


def element_index(b: Builder, local_size: int, subgroup: int) -> Value:
    """Number of the lane in a dispatch along x."""
    lane = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(subgroup)), b.builtin("lane"))
    return b.op("add", b.op("mul", b.builtin("group_x"), b.i32(local_size)), lane)


def subgroup_size() -> int:
    return default_device().caps.subgroup_size


def _encode(array: Array, narrow: frozenset[int]) -> Array:
    """An array as it lies in a buffer: widths outside `narrow` take a word an element."""
    dtype = next(d for d in DTYPES.values() if d.numpy == array.dtype)
    if dtype.storage_bytes(narrow) == array.itemsize:
        return array.copy()
    return array.view(f"u{array.itemsize}").astype(np.uint32)


def run_on_device(
    kernel: Kernel,
    groups: tuple[int, int, int],
    rows: Sequence[Sequence[Array | int]],
    segments: Array | None = None,
    storage: tuple[int, ...] | None = None,
    checked: bool = False,
) -> None:
    """As `interp.run_dispatch`, on the default device; `storage` limits the widths that buffers hold."""
    device = default_device()
    caps = device.caps if storage is None else replace(device.caps, storage=storage)
    narrow = frozenset(caps.storage)
    verify(kernel, caps)
    spirv = emit(kernel, caps, checked=checked)
    validate(spirv)
    buffers: list[Buffer] = []
    uploads = []
    arrays: list[tuple[int, Array]] = []
    references: list[tuple[Ref | int, ...]] = []
    for row in rows:
        entries: list[Ref | int] = []
        for argument in row:
            if isinstance(argument, int):
                entries.append(argument)
                continue
            stored = _encode(argument, narrow)
            entries.append(Ref(len(buffers), 0, stored.nbytes))
            arrays.append((len(uploads), argument))
            buffers.append(Buffer("input", stored.nbytes, index=len(uploads)))
            uploads.append(device.upload(stored))
        references.append(tuple(entries))
    numbers = None
    if segments is not None:
        data = np.asarray(segments, np.uint32).tobytes()
        numbers = Ref(len(buffers), 0, len(data))
        buffers.append(Buffer("const", len(data), data=data))
    dispatch = Dispatch(0, groups, tuple(references), numbers)
    inputs = [((upload.nbytes,), "u8") for upload in uploads]
    program = Program(kernel.name, [kernel], [spirv], buffers, [dispatch], inputs, [])
    program.checked = checked  # type: ignore[attr-defined]
    executable = device.load(program)
    executable.run(uploads)
    device.wait_idle()
    for number, array in arrays:
        content = device.download(uploads[number])
        if content.nbytes == array.nbytes:
            array[:] = content.view(array.dtype)
        else:
            array[:] = content.view(np.uint32).astype(f"u{array.itemsize}").view(array.dtype)


def elementwise(make: object, inputs: Sequence[Array], results: Sequence[str], local_size: int = 32) -> tuple[Kernel, int]:
    """A kernel out_i[n] = make(builder, in_0[n], ...)[i], and its number of workgroups."""
    b = Builder()
    count, subgroup = inputs[0].size, subgroup_size()
    names = {d.numpy: d.name for d in DTYPES.values()}
    sources = [b.param(f"in{i}", names[a.dtype], count, "r") for i, a in enumerate(inputs)]
    targets = [b.param(f"out{i}", name, count, "w") for i, name in enumerate(results)]
    index = element_index(b, local_size, subgroup)
    with b.branch(b.op("lt", index, b.i32(count))):
        values = make(b, *[b.load(s, index) for s in sources])  # type: ignore[operator]
        for target, value in zip(targets, values, strict=True):
            b.store(target, index, value)
    return b.finish("elementwise", local_size), -(-count // local_size)


def apply(make: object, inputs: Sequence[Array], results: Sequence[str], **options: object) -> list[Array]:
    """Results of `elementwise` on the device."""
    kernel, groups = elementwise(make, inputs, results)
    outputs = [np.zeros(inputs[0].size, DTYPES[name].numpy) for name in results]
    run_on_device(kernel, (groups, 1, 1), [[*inputs, *outputs]], **options)  # type: ignore[arg-type]
    return outputs
