"""Which SPIR-V instructions compute each pure or subgroup operation of the tile IR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from .emit_math import helper
from .spirv import Capability, Glsl, Op
from .tile import Value

if TYPE_CHECKING:
    from .emit import Emitter

# (operation, type of its first argument) -> opcode: one instruction, same arguments in the same order.
SIMPLE: dict[tuple[str, str], int] = {
    **{("add", t): Op.I_ADD for t in ("i32", "u32")},
    **{("sub", t): Op.I_SUB for t in ("i32", "u32")},
    **{("mul", t): Op.I_MUL for t in ("i32", "u32")},
    **{("neg", t): Op.S_NEGATE for t in ("i32", "u32")},
    **{(name, t): code for name, code in (("eq", Op.I_EQ), ("ne", Op.I_NE)) for t in ("i32", "u32")},
    **{(name, t): code for name, code in (("and", Op.BIT_AND), ("or", Op.BIT_OR), ("xor", Op.BIT_XOR)) for t in ("i32", "u32")},
    **{
        (name, t): code
        for name, code in (("not", Op.BIT_NOT), ("shl", Op.SHIFT_LEFT), ("popcount", Op.BIT_COUNT))
        for t in ("i32", "u32")
    },
    **{("bitcast", t): Op.BITCAST for t in ("i32", "u32", "f32")},
    ("add", "f32"): Op.F_ADD,
    ("sub", "f32"): Op.F_SUB,
    ("mul", "f32"): Op.F_MUL,
    ("div", "f32"): Op.F_DIV,
    ("neg", "f32"): Op.F_NEGATE,
    ("lt", "f32"): Op.F_LT,
    ("le", "f32"): Op.F_LE,
    ("eq", "f32"): Op.F_EQ,
    ("ne", "f32"): Op.F_UNORD_NE,
    ("div", "i32"): Op.S_DIV,
    ("div", "u32"): Op.U_DIV,
    ("rem", "i32"): Op.S_REM,
    ("rem", "u32"): Op.U_MOD,
    ("lt", "i32"): Op.S_LT,
    ("lt", "u32"): Op.U_LT,
    ("le", "i32"): Op.S_LE,
    ("le", "u32"): Op.U_LE,
    ("shr", "i32"): Op.SHIFT_RIGHT_ARITHMETIC,
    ("shr", "u32"): Op.SHIFT_RIGHT_LOGICAL,
    ("eq", "bool"): Op.LOGICAL_EQ,
    ("ne", "bool"): Op.LOGICAL_NE,
    ("and", "bool"): Op.LOGICAL_AND,
    ("or", "bool"): Op.LOGICAL_OR,
    ("xor", "bool"): Op.LOGICAL_NE,
    ("not", "bool"): Op.LOGICAL_NOT,
    ("select", "bool"): Op.SELECT,
}

# Instructions of GLSL.std.450, likewise.
GLSL: dict[tuple[str, str], int] = {
    ("fma", "f32"): Glsl.FMA,
    ("abs", "f32"): Glsl.F_ABS,
    ("abs", "i32"): Glsl.S_ABS,
    ("min", "i32"): Glsl.S_MIN,
    ("min", "u32"): Glsl.U_MIN,
    ("max", "i32"): Glsl.S_MAX,
    ("max", "u32"): Glsl.U_MAX,
    ("floor", "f32"): Glsl.FLOOR,
    ("ceil", "f32"): Glsl.CEIL,
    ("trunc", "f32"): Glsl.TRUNC,
    ("round_even", "f32"): Glsl.ROUND_EVEN,
    ("sqrt", "f32"): Glsl.SQRT,
}

_CONVERT: dict[tuple[str, str], int] = {
    ("i32", "f32"): Op.S_TO_F,
    ("u32", "f32"): Op.U_TO_F,
    ("f32", "i32"): Op.F_TO_S,
    ("f32", "u32"): Op.F_TO_U,
    ("i32", "u32"): Op.BITCAST,
    ("u32", "i32"): Op.BITCAST,
}

_SUBGROUP: dict[tuple[str, str], int] = {
    ("subgroup_add", "i32"): Op.SUBGROUP_I_ADD,
    ("subgroup_add", "u32"): Op.SUBGROUP_I_ADD,
    ("subgroup_add", "f32"): Op.SUBGROUP_F_ADD,
    ("subgroup_min", "i32"): Op.SUBGROUP_S_MIN,
    ("subgroup_min", "u32"): Op.SUBGROUP_U_MIN,
    ("subgroup_min", "f32"): Op.SUBGROUP_F_MIN,
    ("subgroup_max", "i32"): Op.SUBGROUP_S_MAX,
    ("subgroup_max", "u32"): Op.SUBGROUP_U_MAX,
    ("subgroup_max", "f32"): Op.SUBGROUP_F_MAX,
}
_SUBGROUP_SCOPE, _REDUCE = 3, 0


def _is_number(value: Value) -> bool:
    """Whether `value` is a constant other than NaN."""
    return value.op == "const" and value.attr[1] == value.attr[1]


def _float_extreme(ordered: int, unordered: int) -> Callable[[Emitter, Value], int]:
    """min or max that hands NaN on: the comparison is chosen so that a NaN on either side is the one selected."""

    def emit(e: Emitter, value: Value) -> int:
        code, module = e.code, e.module
        a, b = value.args
        left, right = e.ids[a], e.ids[b]
        if _is_number(b):
            take_left = code.exact(unordered, module.bool_, left, right)
        else:
            take_left = code.exact(ordered, module.bool_, left, right)
            if not _is_number(a):
                is_nan = code.exact(Op.F_UNORD_NE, module.bool_, left, left)
                take_left = code.op(Op.LOGICAL_OR, module.bool_, is_nan, take_left)
        return code.op(Op.SELECT, module.f32, take_left, left, right)

    return emit


def _clz(e: Emitter, value: Value) -> int:
    """31 minus the highest set bit, which is -1 where there is none."""
    type_id = e.module.types[value.dtype]
    highest = e.code.glsl(Glsl.FIND_U_MSB, type_id, e.ids[value.args[0]])
    return e.code.op(Op.I_SUB, type_id, e.module.literal(value.dtype, 31), highest)


def _convert(e: Emitter, value: Value) -> int:
    source, target, argument = value.args[0].dtype, value.dtype, e.ids[value.args[0]]
    if source == target:
        return argument
    type_id = e.module.types[target]
    if source == "bool":
        return e.code.op(Op.SELECT, type_id, argument, e.module.literal(target, 1), e.module.literal(target, 0))
    if target == "bool":
        opcode = Op.F_UNORD_NE if source == "f32" else Op.I_NE
        return e.code.op(opcode, type_id, argument, e.module.literal(source, 0))
    return e.code.op(_CONVERT[source, target], type_id, argument)


def _round_to(e: Emitter, value: Value) -> int:
    module, argument = e.module, e.ids[value.args[0]]
    if value.attr == "bf16":
        return e.code.op(Op.FUNCTION_CALL, module.f32, helper(module, "round_bf16"), argument)
    bits = e.code.op(Op.FUNCTION_CALL, module.u32, helper(module, "float_to_f16"), argument)
    e.narrow_bits[value] = ("f16", bits)
    return e.code.op(Op.FUNCTION_CALL, module.f32, helper(module, "f16_to_float"), bits)


def _float_remainder(e: Emitter, value: Value) -> int:
    a, b = value.args
    return e.code.op(Op.FUNCTION_CALL, e.module.f32, helper(e.module, "fmod"), e.ids[a], e.ids[b])


def _constant(e: Emitter, value: Value) -> int:
    if value.dtype == "f32" and value.attr[1] == 0:
        e.float_zeros.add(value)
    return e.module.literal(*value.attr)


# Some drivers simplify arithmetic with a constant zero in ways that lose NaN or the sign of zero, whatever was asked
# of them. So no such instruction is written: the following give the same bits without one.


def _is_positive_zero(e: Emitter, value: Value) -> bool:
    return value in e.float_zeros and math.copysign(1, value.attr[1]) > 0


def _is_negative_zero(e: Emitter, value: Value) -> bool:
    return value in e.float_zeros and math.copysign(1, value.attr[1]) < 0


def _plus_zero(e: Emitter, number: int) -> int:
    """x + 0.0: x, but +0 for -0."""
    zero = e.module.literal("f32", 0.0)
    is_zero = e.code.exact(Op.F_EQ, e.module.bool_, number, zero)
    return e.code.op(Op.SELECT, e.module.f32, is_zero, zero, number)


def _add_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    zero, x = (a, b) if a in e.float_zeros else (b, a)
    return _plus_zero(e, e.ids[x]) if _is_positive_zero(e, zero) else e.ids[x]


def _sub_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    if b in e.float_zeros:
        return _plus_zero(e, e.ids[a]) if _is_negative_zero(e, b) else e.ids[a]
    negative = e.code.exact(Op.F_NEGATE, e.module.f32, e.ids[b])
    return _plus_zero(e, negative) if _is_positive_zero(e, a) else negative


def _times_zero(e: Emitter, a: Value, b: Value) -> int:
    """A product, one factor of which is a constant zero: a zero with the product of the signs; NaN for NaN and infinities."""
    code, module, u32 = e.code, e.module, e.module.u32
    zero, x = (a, b) if a in e.float_zeros else (b, a)
    bits = code.op(Op.BITCAST, u32, e.ids[x])
    sign = code.op(Op.BIT_AND, u32, bits, module.u(0x80000000))
    if _is_negative_zero(e, zero):
        sign = code.op(Op.BIT_XOR, u32, sign, module.u(0x80000000))
    finite = code.op(Op.U_LT, module.bool_, code.op(Op.BIT_AND, u32, bits, module.u(0x7FFFFFFF)), module.u(0x7F800000))
    return code.op(Op.SELECT, module.f32, finite, code.op(Op.BITCAST, module.f32, sign), module.literal("f32", math.nan))


def _mul_with_zero(e: Emitter, value: Value) -> int:
    return _times_zero(e, *value.args)


def _fma_with_zero(e: Emitter, value: Value) -> int:
    a, b, c = value.args
    if not e.float_zeros.isdisjoint((a, b)):
        product = _times_zero(e, a, b)
    else:
        product = e.code.exact(Op.F_MUL, e.module.f32, e.ids[a], e.ids[b])
    if c not in e.float_zeros:
        return e.code.exact(Op.F_ADD, e.module.f32, product, e.ids[c])
    return _plus_zero(e, product) if _is_positive_zero(e, c) else product


def _div_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    code, module = e.code, e.module
    if b in e.float_zeros:  # a product with infinity has the same sign and the same NaN
        infinity = math.copysign(math.inf, b.attr[1])
        return code.exact(Op.F_MUL, module.f32, e.ids[a], module.literal("f32", infinity))
    # A zero with the sign of the divisor, NaN where the divisor is zero or NaN.
    sign = code.op(Op.BIT_AND, module.u32, code.op(Op.BITCAST, module.u32, e.ids[b]), module.u(0x80000000))
    if _is_negative_zero(e, a):
        sign = code.op(Op.BIT_XOR, module.u32, sign, module.u(0x80000000))
    valid = code.exact(Op.F_ORD_NE, module.bool_, e.ids[b], module.literal("f32", 0.0))
    signed = code.op(Op.BITCAST, module.f32, sign)
    return code.op(Op.SELECT, module.f32, valid, signed, module.literal("f32", math.nan))


WITH_ZERO: dict[str, Callable[[Emitter, Value], int]] = {
    "add": _add_with_zero,
    "sub": _sub_with_zero,
    "mul": _mul_with_zero,
    "div": _div_with_zero,
    "fma": _fma_with_zero,
}


def _builtin(e: Emitter, value: Value) -> int:
    name, code, module = value.attr, e.code, e.module
    if name.startswith("group_"):
        component = code.op(Op.COMPOSITE_EXTRACT, module.u32, e.workgroup_id(), "xyz".index(name[-1]))
        return code.op(Op.BITCAST, module.i32, component)
    module.capabilities.add(Capability.GROUP)
    return code.op(Op.BITCAST, module.i32, code.op(Op.LOAD, module.u32, module.builtin(name, module.u32)))


def _broadcast(e: Emitter, value: Value) -> int:
    e.module.capabilities |= {Capability.GROUP, Capability.GROUP_BALLOT}
    type_id, scope = e.module.types[value.dtype], e.module.u(_SUBGROUP_SCOPE)
    return e.code.op(Op.SUBGROUP_BROADCAST, type_id, scope, e.ids[value.args[0]], e.module.u(value.attr))


def _shuffle(e: Emitter, value: Value) -> int:
    e.module.capabilities |= {Capability.GROUP, Capability.GROUP_SHUFFLE}
    source, lane = (e.ids[a] for a in value.args)
    type_id, scope = e.module.types[value.dtype], e.module.u(_SUBGROUP_SCOPE)
    return e.code.op(Op.SUBGROUP_SHUFFLE, type_id, scope, source, e.code.op(Op.BITCAST, e.module.u32, lane))


def _subgroup(e: Emitter, value: Value) -> int:
    e.module.capabilities |= {Capability.GROUP, Capability.GROUP_ARITHMETIC}
    opcode, type_id = _SUBGROUP[value.op, value.dtype], e.module.types[value.dtype]
    return e.code.op(opcode, type_id, e.module.u(_SUBGROUP_SCOPE), _REDUCE, e.ids[value.args[0]])


# Operations that need more than one instruction; `(operation, type)` where only that type does.
SPECIAL: dict[str | tuple[str, str], Callable[[Emitter, Value], int]] = {
    ("min", "f32"): _float_extreme(Op.F_LT, Op.F_UNORD_LT),
    ("max", "f32"): _float_extreme(Op.F_GT, Op.F_UNORD_GT),
    ("rem", "f32"): _float_remainder,
    "clz": _clz,
    "convert": _convert,
    "round_to": _round_to,
    "const": _constant,
    "builtin": _builtin,
    "broadcast": _broadcast,
    "shuffle": _shuffle,
    "subgroup_add": _subgroup,
    "subgroup_min": _subgroup,
    "subgroup_max": _subgroup,
}
