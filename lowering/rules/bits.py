"""Floats taken apart as bits: what must not depend on how a device treats subnormal numbers."""

from __future__ import annotations

from ..dtypes import DTYPES
from ..expr import Expr, where
from ..scalar import wrap

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_HALF_BIAS = 112 << 23  # difference of the exponent biases of f32 and f16


def is_zero(x: Expr) -> Expr:
    """Whether an f32 is exactly +-0; a subnormal is not, even where the device takes it for zero."""
    return (x.bits() & _MAGNITUDE).eq(0)


def to_bits(x: Expr, dtype: str) -> Expr:
    """The bits of a value of element type `dtype`, zero-extended to u32."""
    info = DTYPES[dtype]
    if dtype == "f16":
        return _half_bits(x)
    if dtype == "bf16":
        return x.bits("u32") >> 16
    if info.kind == "b":
        return x.to("u32")
    x = x.bits("u32")
    return x if info.bits == 32 else x & ((1 << info.bits) - 1)


def from_bits(bits: Expr, dtype: str) -> Expr:
    """The value of element type `dtype` with the given bits (u32): inverse of `to_bits`."""
    info = DTYPES[dtype]
    if dtype == "f16":
        return _from_half(bits)
    if dtype == "bf16":
        return (bits << 16).bits("f32")
    if info.kind == "b":
        return bits.ne(0)
    value = bits.bits(info.compute)
    return value if info.bits == 32 else Expr(value.b, wrap(value.b, value.value, info.bits))


def _half_bits(x: Expr) -> Expr:
    """Bits of an f32 that is representable in f16."""
    bits = x.bits("u32")
    magnitude = bits & _MAGNITUDE
    special = magnitude >= _INFINITY
    normal = (magnitude - where(special, 2 * _HALF_BIAS & 0xFFFFFFFF, bits.lift(_HALF_BIAS))) >> 13
    small = where(magnitude < (113 << 23), magnitude, 0).bits("f32") * 2.0**24  # units of 2**-24
    return where(magnitude < (113 << 23), small.to("u32"), normal) | ((bits >> 16) & 0x8000)


def _from_half(bits: Expr) -> Expr:
    magnitude = bits & 0x7FFF
    special = magnitude >= 0x7C00
    normal = (magnitude << 13) + where(special, 2 * _HALF_BIAS & 0xFFFFFFFF, bits.lift(_HALF_BIAS))
    small = (magnitude.to("f32") * 2.0**-24).bits("u32")
    return (where(magnitude < 0x400, small, normal) | ((bits & 0x8000) << 16)).bits("f32")


def reduce_precision(x: Expr, exponent_bits: int, mantissa_bits: int) -> Expr:
    """Round to a float format with so many exponent and mantissa bits: ties to even, subnormals of it flushed to zero."""
    bits = x.bits("u32")
    result = bits
    if mantissa_bits < 23:
        dropped = 23 - mantissa_bits
        odd = (bits >> dropped) & 1
        result = (bits + odd + ((1 << (dropped - 1)) - 1)) & (0xFFFFFFFF << dropped & 0xFFFFFFFF)
    if exponent_bits < 8:
        bias = (1 << (exponent_bits - 1)) - 1
        exponent = (result >> 23) & 0xFF
        sign = bits & (_MAGNITUDE + 1)
        result = where(exponent > 127 + bias, sign | _INFINITY, where(exponent <= 127 - bias, sign, result))
    return where(x.is_nan(), x, result.bits("f32"))
