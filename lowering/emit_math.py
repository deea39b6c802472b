"""SPIR-V functions for what no instruction does exactly: f16 and bf16 conversion, and fmod.

Each is written into a module on first use. They work on bits, because a device may flush f32 subnormals and may
round conversions either way; every f32 value that does appear in arithmetic here is normal or zero.
"""

from __future__ import annotations

from collections.abc import Callable

from .dtypes import WIDE, same_width, width
from .spirv import Code, Glsl, Module, Op

_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
_HALF_BIAS = 112 << 23  # difference of the exponent biases of f32 and f16
_HALF_NORMAL = 113 << 23  # bits of 2**-14, the smallest normal f16
_HALF_OVERFLOW = 143 << 23  # bits of 2**16


def highest_bit(code: Code, dtype: str, number: int) -> int:
    """Position of the highest bit set in an integer, -1 (wrapped) where there is none. Instructions find it in 32 bits only."""
    module, u32 = code.module, code.module.u32
    if dtype not in WIDE:
        return code.glsl(Glsl.FIND_U_MSB, module.types[dtype], number)
    low, high = code.halves(number)
    in_low, in_high = (code.glsl(Glsl.FIND_U_MSB, u32, half) for half in (low, high))
    is_high = code.op(Op.I_NE, module.bool_, high, module.u(0))
    found = code.op(Op.SELECT, u32, is_high, code.op(Op.I_ADD, u32, in_high, module.u(32)), in_low)
    return code.op(Op.S_CONVERT, module.types[dtype], found)


def sign_and_infinity(dtype: str) -> tuple[int, int]:
    """The bits of -0 and of infinity of a float type."""
    return 1 << width(dtype) - 1, 0x7FF << 52 if dtype == "f64" else _INFINITY


def helper(module: Module, name: str) -> int:
    """Id of a function of `HELPERS`, written on first use."""
    return module.once(("helper", name), lambda: HELPERS[name](module))


def _half_to_float(module: Module) -> int:
    """f16 bits (u32) to f32, exact, with subnormals and NaN."""
    u, f, u32 = module.u, module.f32, module.u32
    code = Code(module, f, [u32])
    bits = code.parameters[0]
    magnitude = code.op(Op.BIT_AND, u32, bits, u(0x7FFF))
    sign = code.op(Op.SHIFT_LEFT, u32, code.op(Op.BIT_AND, u32, bits, u(0x8000)), u(16))
    special = code.op(Op.U_GE, module.bool_, magnitude, u(0x7C00))
    bias = code.op(Op.SELECT, u32, special, u(2 * _HALF_BIAS), u(_HALF_BIAS))
    normal = code.op(Op.I_ADD, u32, code.op(Op.SHIFT_LEFT, u32, magnitude, u(13)), bias)
    scaled = code.exact(Op.F_MUL, f, code.op(Op.U_TO_F, f, magnitude), module.literal("f32", 2.0**-24))
    small = code.op(Op.U_LT, module.bool_, magnitude, u(0x400))
    result = code.op(Op.SELECT, u32, small, code.op(Op.BITCAST, u32, scaled), normal)
    return code.finish(code.op(Op.BITCAST, f, code.op(Op.BIT_OR, u32, result, sign)))


def _float_to_half(module: Module) -> int:
    """f32 to f16 bits (u32): nearest, ties to even, overflow to infinity, subnormals and NaN kept."""
    u, f, u32 = module.u, module.f32, module.u32
    code = Code(module, u32, [f])
    bits = code.op(Op.BITCAST, u32, code.parameters[0])
    magnitude = code.op(Op.BIT_AND, u32, bits, u(_MAGNITUDE))
    sign = code.op(Op.BIT_AND, u32, code.op(Op.SHIFT_RIGHT_LOGICAL, u32, bits, u(16)), u(0x8000))
    clamped = code.glsl(Glsl.U_MIN, u32, magnitude, u(_HALF_OVERFLOW))
    odd = code.op(Op.BIT_AND, u32, code.op(Op.SHIFT_RIGHT_LOGICAL, u32, clamped, u(13)), u(1))
    biased = code.op(Op.I_ADD, u32, code.op(Op.I_ADD, u32, clamped, u(0xFFF - _HALF_BIAS)), odd)
    normal = code.op(Op.SHIFT_RIGHT_LOGICAL, u32, biased, u(13))
    # Below the normal range the result counts units of 2**-24; the product is exact, or far below half a unit.
    tiny = code.op(Op.BITCAST, f, code.glsl(Glsl.U_MIN, u32, magnitude, u(_HALF_NORMAL)))
    units = code.glsl(Glsl.ROUND_EVEN, f, code.exact(Op.F_MUL, f, tiny, module.literal("f32", 2.0**24)))
    is_small = code.op(Op.U_LT, module.bool_, magnitude, u(_HALF_NORMAL))
    number = code.op(Op.SELECT, u32, is_small, code.op(Op.F_TO_U, u32, units), normal)
    payload = code.op(Op.BIT_AND, u32, code.op(Op.SHIFT_RIGHT_LOGICAL, u32, magnitude, u(13)), u(0x3FF))
    nan = code.op(Op.BIT_OR, u32, payload, u(0x7E00))
    is_nan = code.op(Op.U_GT, module.bool_, magnitude, u(_INFINITY))
    return code.finish(code.op(Op.BIT_OR, u32, code.op(Op.SELECT, u32, is_nan, nan, number), sign))


def _float_to_bfloat(module: Module) -> int:
    """f32 to bf16 bits (u32): nearest, ties to even, NaN kept."""
    u, u32 = module.u, module.u32
    code = Code(module, u32, [module.f32])
    bits = code.op(Op.BITCAST, u32, code.parameters[0])
    high = code.op(Op.SHIFT_RIGHT_LOGICAL, u32, bits, u(16))
    biased = code.op(Op.I_ADD, u32, code.op(Op.I_ADD, u32, bits, u(0x7FFF)), code.op(Op.BIT_AND, u32, high, u(1)))
    number = code.op(Op.SHIFT_RIGHT_LOGICAL, u32, biased, u(16))
    is_nan = code.op(Op.U_GT, module.bool_, code.op(Op.BIT_AND, u32, bits, u(_MAGNITUDE)), u(_INFINITY))
    return code.finish(code.op(Op.SELECT, u32, is_nan, code.op(Op.BIT_OR, u32, high, u(0x40)), number))


def _float_to_bfloat_value(module: Module) -> int:
    """f32 to the nearest bf16, as f32."""
    code = Code(module, module.f32, [module.f32])
    bits = code.op(Op.FUNCTION_CALL, module.u32, helper(module, "float_to_bf16"), code.parameters[0])
    return code.finish(code.op(Op.BITCAST, module.f32, code.op(Op.SHIFT_LEFT, module.u32, bits, module.u(16))))


def _float_remainder(module: Module, dtype: str) -> int:
    """C fmod, exact: long division of the mantissas, as many quotient bits a step as there is room for.

    That is 8 bits and at most 32 steps for f32, 11 bits and at most 186 steps for f64.
    """
    unsigned, mantissa = same_width("u", dtype), 52 if dtype == "f64" else 23
    sign, infinity = sign_and_infinity(dtype)
    word, bool_, f = module.types[unsigned], module.bool_, module.types[dtype]

    def u(value: int) -> int:
        return module.literal(unsigned, value)

    code = Code(module, f, [f, f])
    x, y = code.parameters
    x_bits, y_bits = code.op(Op.BITCAST, word, x), code.op(Op.BITCAST, word, y)
    x_abs, y_abs = (code.op(Op.BIT_AND, word, bits, u(sign - 1)) for bits in (x_bits, y_bits))

    def split(magnitude: int) -> tuple[int, int]:
        """Exponent field (1 for subnormals) and mantissa: the value is mantissa * 2**(exponent - bias)."""
        exponent = code.glsl(Glsl.U_MAX, word, code.op(Op.SHIFT_RIGHT_LOGICAL, word, magnitude, u(mantissa)), u(1))
        above = code.op(Op.SHIFT_LEFT, word, code.op(Op.I_SUB, word, exponent, u(1)), u(mantissa))
        return exponent, code.op(Op.I_SUB, word, magnitude, above)

    x_exponent, x_mantissa = split(x_abs)
    y_exponent, y_mantissa = split(y_abs)
    divisor = code.glsl(Glsl.U_MAX, word, y_mantissa, u(1))
    shift = code.op(Op.I_SUB, word, code.glsl(Glsl.U_MAX, word, x_exponent, y_exponent), y_exponent)
    rest = code.op(Op.U_MOD, word, x_mantissa, divisor)

    head, body, following, after = (module.new_id() for _ in range(4))
    entry = code.label
    code.jump(head)
    code.start(head)
    shift_now, shift_hole = code.phi(word, shift, entry, following)
    rest_now, rest_hole = code.phi(word, rest, entry, following)
    more = code.op(Op.I_NE, bool_, shift_now, u(0))
    code.do(Op.LOOP_MERGE, after, following, 0)
    code.do(Op.BRANCH_CONDITIONAL, more, body, after)
    code.start(body)
    step = code.glsl(Glsl.U_MIN, word, shift_now, u(width(dtype) - 1 - mantissa))
    code.words[rest_hole] = code.op(Op.U_MOD, word, code.op(Op.SHIFT_LEFT, word, rest_now, step), divisor)
    code.words[shift_hole] = code.op(Op.I_SUB, word, shift_now, step)
    code.jump(following)
    code.start(following)
    code.jump(head)
    code.start(after)

    # Shift the rest up to a normal number, as far as the exponent allows.
    below = code.op(Op.I_SUB, word, y_exponent, u(1))
    high_bit = highest_bit(code, unsigned, code.op(Op.BIT_OR, word, rest_now, u(1)))
    room = code.glsl(Glsl.U_MIN, word, code.op(Op.I_SUB, word, u(mantissa), high_bit), below)
    exponent = code.op(Op.SHIFT_LEFT, word, code.op(Op.I_SUB, word, below, room), u(mantissa))
    magnitude = code.op(Op.I_ADD, word, code.op(Op.SHIFT_LEFT, word, rest_now, room), exponent)
    magnitude = code.op(Op.SELECT, word, code.op(Op.I_EQ, bool_, rest_now, u(0)), u(0), magnitude)
    magnitude = code.op(Op.SELECT, word, code.op(Op.U_LT, bool_, x_abs, y_abs), x_abs, magnitude)
    signed = code.op(Op.BIT_OR, word, magnitude, code.op(Op.BIT_AND, word, x_bits, u(sign)))
    bad_x = code.op(Op.U_GE, bool_, x_abs, u(infinity))
    # Zero wraps around to the largest number, so one test finds zero and NaN.
    bad_y = code.op(Op.U_GE, bool_, code.op(Op.I_SUB, word, y_abs, u(1)), u(infinity))
    bad = code.op(Op.LOGICAL_OR, bool_, bad_x, bad_y)
    return code.finish(code.op(Op.BITCAST, f, code.op(Op.SELECT, word, bad, u(infinity | 1 << mantissa - 1), signed)))


HELPERS: dict[str, Callable[[Module], int]] = {
    "f16_to_float": _half_to_float,
    "float_to_f16": _float_to_half,
    "float_to_bf16": _float_to_bfloat,
    "round_bf16": _float_to_bfloat_value,
    "fmod_f32": lambda module: _float_remainder(module, "f32"),
    "fmod_f64": lambda module: _float_remainder(module, "f64"),
}
