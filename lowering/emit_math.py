"""SPIR-V functions for what no instruction does exactly: f16 and bf16 conversion, and fmod.

Each is written into a module on first use. They work on bits, because a device may flush f32 subnormals and may
round conversions either way; every f32 value that does appear in arithmetic here is normal or zero.
"""

from __future__ import annotations

from collections.abc import Callable

from .spirv import Code, Glsl, Module, Op

_MAGNITUDE, _INFINITY, _QUIET_NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
_HALF_BIAS = 112 << 23  # difference of the exponent biases of f32 and f16
_HALF_NORMAL = 113 << 23  # bits of 2**-14, the smallest normal f16
_HALF_OVERFLOW = 143 << 23  # bits of 2**16


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


def _float_remainder(module: Module) -> int:
    """C fmod of f32, exact: long division of the 24-bit mantissas, eight quotient bits a step, at most 32 steps."""
    u, u32, bool_, f = module.u, module.u32, module.bool_, module.f32
    code = Code(module, f, [f, f])
    x, y = code.parameters
    x_bits, y_bits = code.op(Op.BITCAST, u32, x), code.op(Op.BITCAST, u32, y)
    x_abs, y_abs = (code.op(Op.BIT_AND, u32, bits, u(_MAGNITUDE)) for bits in (x_bits, y_bits))

    def split(magnitude: int) -> tuple[int, int]:
        """Exponent field (1 for subnormals) and mantissa: the value is mantissa * 2**(exponent - 150)."""
        exponent = code.glsl(Glsl.U_MAX, u32, code.op(Op.SHIFT_RIGHT_LOGICAL, u32, magnitude, u(23)), u(1))
        above = code.op(Op.SHIFT_LEFT, u32, code.op(Op.I_SUB, u32, exponent, u(1)), u(23))
        return exponent, code.op(Op.I_SUB, u32, magnitude, above)

    x_exponent, x_mantissa = split(x_abs)
    y_exponent, y_mantissa = split(y_abs)
    divisor = code.glsl(Glsl.U_MAX, u32, y_mantissa, u(1))
    shift = code.op(Op.I_SUB, u32, code.glsl(Glsl.U_MAX, u32, x_exponent, y_exponent), y_exponent)
    rest = code.op(Op.U_MOD, u32, x_mantissa, divisor)

    head, body, following, after = (module.new_id() for _ in range(4))
    entry = code.label
    code.jump(head)
    code.start(head)
    shift_now, shift_hole = code.phi(u32, shift, entry, following)
    rest_now, rest_hole = code.phi(u32, rest, entry, following)
    more = code.op(Op.I_NE, bool_, shift_now, u(0))
    code.do(Op.LOOP_MERGE, after, following, 0)
    code.do(Op.BRANCH_CONDITIONAL, more, body, after)
    code.start(body)
    step = code.glsl(Glsl.U_MIN, u32, shift_now, u(8))
    code.words[rest_hole] = code.op(Op.U_MOD, u32, code.op(Op.SHIFT_LEFT, u32, rest_now, step), divisor)
    code.words[shift_hole] = code.op(Op.I_SUB, u32, shift_now, step)
    code.jump(following)
    code.start(following)
    code.jump(head)
    code.start(after)

    # Shift the rest up to a normal number, as far as the exponent allows.
    below = code.op(Op.I_SUB, u32, y_exponent, u(1))
    high_bit = code.glsl(Glsl.FIND_U_MSB, u32, code.op(Op.BIT_OR, u32, rest_now, u(1)))
    room = code.glsl(Glsl.U_MIN, u32, code.op(Op.I_SUB, u32, u(23), high_bit), below)
    exponent = code.op(Op.SHIFT_LEFT, u32, code.op(Op.I_SUB, u32, below, room), u(23))
    magnitude = code.op(Op.I_ADD, u32, code.op(Op.SHIFT_LEFT, u32, rest_now, room), exponent)
    magnitude = code.op(Op.SELECT, u32, code.op(Op.I_EQ, bool_, rest_now, u(0)), u(0), magnitude)
    magnitude = code.op(Op.SELECT, u32, code.op(Op.U_LT, bool_, x_abs, y_abs), x_abs, magnitude)
    signed = code.op(Op.BIT_OR, u32, magnitude, code.op(Op.BIT_AND, u32, x_bits, u(0x80000000)))
    bad_x = code.op(Op.U_GE, bool_, x_abs, u(_INFINITY))
    # Zero wraps around to the largest number, so one test finds zero and NaN.
    bad_y = code.op(Op.U_GE, bool_, code.op(Op.I_SUB, u32, y_abs, u(1)), u(_INFINITY))
    bad = code.op(Op.LOGICAL_OR, bool_, bad_x, bad_y)
    return code.finish(code.op(Op.BITCAST, f, code.op(Op.SELECT, u32, bad, u(_QUIET_NAN), signed)))


HELPERS: dict[str, Callable[[Module], int]] = {
    "f16_to_float": _half_to_float,
    "float_to_f16": _float_to_half,
    "float_to_bf16": _float_to_bfloat,
    "round_bf16": _float_to_bfloat_value,
    "fmod": _float_remainder,
}
