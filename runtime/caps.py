"""What lowering may know of a device: a frozen record, readable as JSON, that also names a null device."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class DeviceCaps:
    """Capabilities that decide generated code. Part of every cache key.

    Attributes:
        subgroup_size: lanes of a subgroup, fixed for all kernels (required at pipeline creation where the device varies it).
        subgroup_ops: arithmetic and shuffle operations over a subgroup exist in compute shaders.
        max_local_size: invocations of a workgroup.
        shared_bytes: shared memory of a workgroup.
        max_groups: workgroups of a dispatch along x, y, z.
        storage: widths below 32 bits that buffers can hold, of (8, 16).
        int64, float64, float16, int8, int16: arithmetic types of shaders.
        float_controls, float_controls64: signed zeros, infinities and NaN of f32, of f64, are kept when asked for.
        max_buffer_bytes: largest buffer.
        compact: kernels should be short: nothing written out that can be looped, little fused.
    """

    name: str = "null"
    kind: str = "cpu"
    subgroup_size: int = 8
    subgroup_ops: bool = True
    max_local_size: int = 1024
    shared_bytes: int = 32768
    max_groups: tuple[int, int, int] = (65535, 65535, 65535)
    storage: tuple[int, ...] = (8, 16)
    int64: bool = True
    float64: bool = True
    float16: bool = True
    int8: bool = True
    int16: bool = True
    float_controls: bool = True
    float_controls64: bool = True
    max_buffer_bytes: int = (1 << 32) - 1
    compact: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DeviceCaps:
        fields = json.loads(text)
        fields["max_groups"] = tuple(fields["max_groups"])
        fields["storage"] = tuple(fields["storage"])
        return cls(**fields)


NULL_CAPS = DeviceCaps()
