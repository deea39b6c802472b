"""Floats taken apart as bits: what must not depend on how a device treats subnormal numbers."""

from __future__ import annotations

from ..dtypes import DTYPES, same_width, width
from ..expr import Expr, where
from ..scalar import wrap

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_HALF_BIAS = 112 << 23  # difference of the exponent biases of f32 and f16


def magnitude(x: Expr) -> Expr:
    """The bits of a float without its sign, as a signed integer."""
    return x.bits() & ((1 << (width(x.dtype) - 1)) - 1)


def is_zero(x: Expr) -> Expr:
    """Whether a float is exactly +-0; a subnormal is not, even where the device takes it for zero."""
    return magnitude(x).eq(0)


def to_bits(x: Expr, dtype: str) -> Expr:
    """The bits of a value of element type `dtype`, zero-extended to u32, or a u64 where they are 64."""
    info = DTYPES[dtype]
    if dtype == "f16":
        return _half_bits(x)
    if dtype == "bf16":
        return x.bits("u32") >> 16
    if info.kind == "b":
        return x.to("u32")
    x = x.bits(same_width("u", x.dtype))
    return x if info.bits >= 32 else x & ((1 << info.bits) - 1)


def from_bits(bits: Expr, dtype: str) -> Expr:
    """The value of element type `dtype` with the given bits (u32 or u64): inverse of `to_bits`."""
    info = DTYPES[dtype]
    if dtype == "f16":
        return _from_half(bits)
    if dtype == "bf16":
        return (bits << 16).bits("f32")
    if info.kind == "b":
        return bits.ne(0)
    value = bits.bits(info.compute)
    return value if info.bits >= 32 else Expr(value.b, wrap(value.b, value.value, info.bits))


def _half_bits(x: Expr) -> Expr:
    """Bits of an f32 that is representable in f16."""
    bits = x.bits("u32")
    size = bits & _MAGNITUDE
    special = size >= _INFINITY
    normal = (size - where(special, 2 * _HALF_BIAS & 0xFFFFFFFF, bits.lift(_HALF_BIAS))) >> 13
    small = where(size < (113 << 23), size, 0).bits("f32") * 2.0**24  # units of 2**-24
    return where(size < (113 << 23), small.to("u32"), normal) | ((bits >> 16) & 0x8000)


def _from_half(bits: Expr) -> Expr:
    size = bits & 0x7FFF
    special = size >= 0x7C00
    normal = (size << 13) + where(special, 2 * _HALF_BIAS & 0xFFFFFFFF, bits.lift(_HALF_BIAS))
    small = (size.to("f32") * 2.0**-24).bits("u32")
    return (where(size < 0x400, small, normal) | ((bits & 0x8000) << 16)).bits("f32")


def odd_f32(x: Expr) -> Expr:
    """An f64 as f32, where that is not exact the one of its two neighbours whose last bit is set.

    Rounded once more to a type of at most 22 bits of mantissa, it gives what rounding `x` itself would.
    """
    size = magnitude(x).bits("u64")
    exponent = (size >> 52).to("i32")
    # Below the smallest normal f32 the result counts units of 2**-149; bits below the last one stay as one bit.
    is_small = exponent < 897
    mantissa = where(is_small, (size & ((1 << 52) - 1)) | (1 << 52), size)
    shift = where(is_small, (897 - exponent).op("min", 34) + 29, exponent.lift(29)).to("u64") & 63
    dropped = mantissa & ((mantissa.lift(1) << shift) - 1)
    kept = (mantissa >> shift).to("u32")
    bits = where(is_small, kept, kept - (896 << 23)) | (dropped.ne(0) & size.ne(0)).to("u32")
    bits = where(exponent < 1151, bits, 0x7F7FFFFF)
    special = where(size > 0x7FF0000000000000, bits.lift(0x7FC00000), bits.lift(_INFINITY))
    bits = where(exponent < 2047, bits, special)
    return (bits | ((x.bits("u64") >> 32).to("u32") & (_MAGNITUDE + 1))).bits("f32")


def reduce_precision(x: Expr, exponent_bits: int, mantissa_bits: int) -> Expr:
    """Round to a float format with so many exponent and mantissa bits: ties to even, subnormals of it flushed to zero."""
    unsigned = same_width("u", x.dtype)
    every, own_mantissa, own_exponent = (1 << width(unsigned)) - 1, *((52, 11) if x.dtype == "f64" else (23, 8))
    sign_bit, own_bias = 1 << (width(unsigned) - 1), (1 << (own_exponent - 1)) - 1
    largest = (1 << own_exponent) - 1
    bits = x.bits(unsigned)
    result = bits
    if mantissa_bits < own_mantissa:
        dropped = own_mantissa - mantissa_bits
        odd = (bits >> dropped) & 1
        result = (bits + odd + ((1 << (dropped - 1)) - 1)) & (every << dropped & every)
    if exponent_bits < own_exponent:
        bias = (1 << (exponent_bits - 1)) - 1
        exponent = (result >> own_mantissa) & largest
        sign = bits & sign_bit
        result = where(
            exponent > own_bias + bias, sign | (largest << own_mantissa), where(exponent <= own_bias - bias, sign, result)
        )
    return where(x.is_nan(), x, result.bits(x.dtype))
