"""Element types: how each is named, stored in a buffer and computed with in a kernel.

An array has an *element type* ("bf16"). A kernel computes with seven *compute types* only ("f32"): narrow
types are widened by the load and rounded or wrapped after every operation, so that fusing changes no result.
The 64-bit types exist where a device computes with them. A compute type is also the element type of its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..runtime.caps import DeviceCaps

COMPUTE_TYPES = ("bool", "i32", "u32", "f32", "i64", "u64", "f64")
FLOATS = frozenset(("f32", "f64"))
WIDE = frozenset(("i64", "u64", "f64"))


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes:
        name: short name used in every IR ("f32").
        numpy: the NumPy (or ml_dtypes) type users see.
        compute: the type its values have inside a kernel.
        bits: width of the type itself.
        kind: "b" bool, "i" signed, "u" unsigned, "f" float.
    """

    name: str
    numpy: np.dtype
    compute: str
    bits: int
    kind: str

    def storage_bytes(self, narrow: frozenset[int]) -> int:
        """Bytes an element takes in a buffer of a device that stores the widths (8, 16) in `narrow`.

        A width that the device cannot address takes a full 32-bit word an element.
        """
        width = max(8, self.bits)
        return width // 8 if width >= 32 or width in narrow else 4


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bool", np.dtype(np.bool_), "bool", 1, "b"),
        DType("i8", np.dtype(np.int8), "i32", 8, "i"),
        DType("u8", np.dtype(np.uint8), "u32", 8, "u"),
        DType("i16", np.dtype(np.int16), "i32", 16, "i"),
        DType("u16", np.dtype(np.uint16), "u32", 16, "u"),
        DType("i32", np.dtype(np.int32), "i32", 32, "i"),
        DType("u32", np.dtype(np.uint32), "u32", 32, "u"),
        DType("f16", np.dtype(np.float16), "f32", 16, "f"),
        DType("bf16", np.dtype(ml_dtypes.bfloat16), "f32", 16, "f"),
        DType("f32", np.dtype(np.float32), "f32", 32, "f"),
        DType("i64", np.dtype(np.int64), "i64", 64, "i"),
        DType("u64", np.dtype(np.uint64), "u64", 64, "u"),
        DType("f64", np.dtype(np.float64), "f64", 64, "f"),
    )
}
_BY_NUMPY = {d.numpy: d.name for d in DTYPES.values()}


def name_of(numpy_dtype: object) -> str | None:
    """Short name of a NumPy dtype, or None where no kernel can hold it (complex64, ...)."""
    return _BY_NUMPY.get(np.dtype(numpy_dtype))  # type: ignore[call-overload]


def missing(caps: DeviceCaps) -> frozenset[str]:
    """Element types that a device has not: those of 64 bits take arithmetic of their own, f64 also integers for its bits."""
    if caps.int64:
        return frozenset() if caps.float64 else frozenset(("f64",))
    return WIDE


def width(compute: str) -> int:
    """Bits of a number of a compute type: 32 or 64."""
    return 64 if compute in WIDE else 32


def same_width(kind: str, compute: str) -> str:
    """The compute type of kind "i", "u" or "f" that is as wide as `compute`."""
    return f"{kind}{width(compute)}"
