"""Which SPIR-V instructions compute each pure or subgroup operation of the tile IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .dtypes import FLOATS, WIDE, same_width, width
from .emit_math import helper, highest_bit, sign_and_infinity
from .spirv import Capability, Glsl, Op
from .tile import Value

if TYPE_CHECKING:
    from .emit import Emitter

_SIGNED, _UNSIGNED, _REALS = ("i32", "i64"), ("u32", "u64"), ("f32", "f64")
_INTEGERS = (*_SIGNED, *_UNSIGNED)


def _each(types: Sequence[str], **codes: int) -> dict[tuple[str, str], int]:
    return {(name, t): code for name, code in codes.items() for t in types}


# (operation, type of its first argument) -> opcode: one instruction, same arguments in the same order.
SIMPLE: dict[tuple[str, str], int] = {
    **_each(_INTEGERS, add=Op.I_ADD, sub=Op.I_SUB, mul=Op.I_MUL, neg=Op.S_NEGATE, eq=Op.I_EQ, ne=Op.I_NE),
    **_each(_INTEGERS, **{"and": Op.BIT_AND, "or": Op.BIT_OR, "xor": Op.BIT_XOR, "not": Op.BIT_NOT, "shl": Op.SHIFT_LEFT}),
    **_each(_SIGNED, div=Op.S_DIV, rem=Op.S_REM, lt=Op.S_LT, le=Op.S_LE, shr=Op.SHIFT_RIGHT_ARITHMETIC),
    **_each(_UNSIGNED, div=Op.U_DIV, rem=Op.U_MOD, lt=Op.U_LT, le=Op.U_LE, shr=Op.SHIFT_RIGHT_LOGICAL),
    **_each(_REALS, add=Op.F_ADD, sub=Op.F_SUB, mul=Op.F_MUL, div=Op.F_DIV, neg=Op.F_NEGATE),
    **_each(_REALS, lt=Op.F_LT, le=Op.F_LE, eq=Op.F_EQ, ne=Op.F_UNORD_NE),
    **_each((*_INTEGERS, *_REALS), bitcast=Op.BITCAST),
    **_each(("i32", "u32"), popcount=Op.BIT_COUNT),
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
    **_each(_REALS, fma=Glsl.FMA, abs=Glsl.F_ABS, sqrt=Glsl.SQRT),
    **_each(_REALS, floor=Glsl.FLOOR, ceil=Glsl.CEIL),
    **_each(("f32",), trunc=Glsl.TRUNC, round_even=Glsl.ROUND_EVEN),
    **_each(_SIGNED, abs=Glsl.S_ABS, min=Glsl.S_MIN, max=Glsl.S_MAX),
    **_each(_UNSIGNED, min=Glsl.U_MIN, max=Glsl.U_MAX),
}

_CONVERT: dict[tuple[str, str], int] = {
    **{(a, b): Op.S_TO_F for a in _SIGNED for b in _REALS},
    **{(a, b): Op.U_TO_F for a in _UNSIGNED for b in _REALS},
    **{(a, b): Op.F_TO_S for a in _REALS for b in _SIGNED},
    **{(a, b): Op.F_TO_U for a in _REALS for b in _UNSIGNED},
    **{(f"{a}{bits}", f"{b}{bits}"): Op.BITCAST for bits in (32, 64) for a, b in ("iu", "ui")},
    # Between the widths the kind of the source decides how its bits go on; a signed result takes them from S_CONVERT only.
    **{("i32", b): Op.S_CONVERT for b in ("i64", "u64")},
    **{(a, "i32"): Op.S_CONVERT for a in ("i64", "u64")},
    **{(a, "u32"): Op.U_CONVERT for a in ("i64", "u64")},
    ("u32", "u64"): Op.U_CONVERT,
    ("f32", "f64"): Op.F_CONVERT,
    ("f64", "f32"): Op.F_CONVERT,
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
        return code.op(Op.SELECT, module.types[value.dtype], take_left, left, right)

    return emit


def _clz(e: Emitter, value: Value) -> int:
    """The width less one minus the highest set bit, which is -1 where there is none."""
    type_id = e.module.types[value.dtype]
    highest = highest_bit(e.code, value.dtype, e.ids[value.args[0]])
    return e.code.op(Op.I_SUB, type_id, e.module.literal(value.dtype, width(value.dtype) - 1), highest)


def _popcount(e: Emitter, value: Value) -> int:
    """Of 64 bits: instructions count in 32."""
    code, u32 = e.code, e.module.u32
    low, high = (code.op(Op.BIT_COUNT, u32, half) for half in code.halves(e.ids[value.args[0]]))
    return code.op(Op.S_CONVERT, e.module.types[value.dtype], code.op(Op.I_ADD, u32, low, high))


def _convert(e: Emitter, value: Value) -> int:
    source, target, argument = value.args[0].dtype, value.dtype, e.ids[value.args[0]]
    if source == target:
        return argument
    type_id = e.module.types[target]
    if source == "bool":
        return e.code.op(Op.SELECT, type_id, argument, e.module.literal(target, 1), e.module.literal(target, 0))
    if target == "bool":
        opcode = Op.F_UNORD_NE if source in FLOATS else Op.I_NE
        return e.code.op(opcode, type_id, argument, e.module.literal(source, 0))
    if (source, target) == ("u32", "i64"):
        return e.code.op(Op.BITCAST, type_id, e.code.op(Op.U_CONVERT, e.module.types["u64"], argument))
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
    return e.code.op(Op.FUNCTION_CALL, e.module.types[value.dtype], helper(e.module, f"fmod_{value.dtype}"), e.ids[a], e.ids[b])


# Of f64, lavapipe's Trunc and RoundEven were seen to be wrong with 256-bit subgroups on a CPU with AVX2: 1.5 became 1, and
# numbers above 2**24 stayed as they were. Its Floor and Ceil are right.


def _trunc_wide(e: Emitter, value: Value) -> int:
    code, module, real, x = e.code, e.module, e.module.types[value.dtype], e.ids[value.args[0]]
    negative = code.exact(Op.F_LT, module.bool_, x, module.literal(value.dtype, 0.0))
    return code.op(Op.SELECT, real, negative, code.glsl(Glsl.CEIL, real, x), code.glsl(Glsl.FLOOR, real, x))


def _round_even_wide(e: Emitter, value: Value) -> int:
    """Adding 2**52 rounds the magnitude to an integer; from there on every number is one. The sign of zeros is kept."""
    code, module, dtype, x = e.code, e.module, value.dtype, e.ids[value.args[0]]
    kind, sign_bit, real = same_width("u", dtype), sign_and_infinity(dtype)[0], module.types[dtype]
    unsigned, integers = module.types[kind], module.literal(dtype, 2.0**52)
    magnitude = code.glsl(Glsl.F_ABS, real, x)
    rounded = code.exact(Op.F_SUB, real, code.exact(Op.F_ADD, real, magnitude, integers), integers)
    sign = code.op(Op.BIT_AND, unsigned, code.op(Op.BITCAST, unsigned, x), module.literal(kind, sign_bit))
    signed = code.op(Op.BIT_OR, unsigned, code.op(Op.BITCAST, unsigned, rounded), sign)
    has_fraction = code.exact(Op.F_LT, module.bool_, magnitude, integers)
    return code.op(Op.SELECT, real, has_fraction, code.op(Op.BITCAST, real, signed), x)


def _constant(e: Emitter, value: Value) -> int:
    if value.dtype in FLOATS and value.attr[1] == 0:
        e.float_zeros.add(value)
    return e.module.literal(*value.attr)


# Some drivers simplify arithmetic with a constant zero in ways that lose NaN or the sign of zero, whatever was asked
# of them. So no such instruction is written: the following give the same bits without one.


def _is_positive_zero(e: Emitter, value: Value) -> bool:
    return value in e.float_zeros and math.copysign(1, value.attr[1]) > 0


def _is_negative_zero(e: Emitter, value: Value) -> bool:
    return value in e.float_zeros and math.copysign(1, value.attr[1]) < 0


def _plus_zero(e: Emitter, dtype: str, number: int) -> int:
    """x + 0.0: x, but +0 for -0."""
    zero = e.module.literal(dtype, 0.0)
    is_zero = e.code.exact(Op.F_EQ, e.module.bool_, number, zero)
    return e.code.op(Op.SELECT, e.module.types[dtype], is_zero, zero, number)


def _add_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    zero, x = (a, b) if a in e.float_zeros else (b, a)
    return _plus_zero(e, x.dtype, e.ids[x]) if _is_positive_zero(e, zero) else e.ids[x]


def _sub_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    if b in e.float_zeros:
        return _plus_zero(e, a.dtype, e.ids[a]) if _is_negative_zero(e, b) else e.ids[a]
    negative = e.code.exact(Op.F_NEGATE, e.module.types[b.dtype], e.ids[b])
    return _plus_zero(e, b.dtype, negative) if _is_positive_zero(e, a) else negative


def _times_zero(e: Emitter, a: Value, b: Value) -> int:
    """A product, one factor of which is a constant zero: a zero with the product of the signs; NaN for NaN and infinities."""
    code, module, dtype = e.code, e.module, a.dtype
    kind, (sign_bit, infinity) = same_width("u", dtype), sign_and_infinity(dtype)
    unsigned, real = module.types[kind], module.types[dtype]
    zero, x = (a, b) if a in e.float_zeros else (b, a)
    bits = code.op(Op.BITCAST, unsigned, e.ids[x])
    sign = code.op(Op.BIT_AND, unsigned, bits, module.literal(kind, sign_bit))
    if _is_negative_zero(e, zero):
        sign = code.op(Op.BIT_XOR, unsigned, sign, module.literal(kind, sign_bit))
    size = code.op(Op.BIT_AND, unsigned, bits, module.literal(kind, sign_bit - 1))
    finite = code.op(Op.U_LT, module.bool_, size, module.literal(kind, infinity))
    return code.op(Op.SELECT, real, finite, code.op(Op.BITCAST, real, sign), module.literal(dtype, math.nan))


def _mul_with_zero(e: Emitter, value: Value) -> int:
    return _times_zero(e, *value.args)


def _fma_with_zero(e: Emitter, value: Value) -> int:
    a, b, c = value.args
    type_id = e.module.types[value.dtype]
    if not e.float_zeros.isdisjoint((a, b)):
        product = _times_zero(e, a, b)
    else:
        product = e.code.exact(Op.F_MUL, type_id, e.ids[a], e.ids[b])
    if c not in e.float_zeros:
        return e.code.exact(Op.F_ADD, type_id, product, e.ids[c])
    return _plus_zero(e, c.dtype, product) if _is_positive_zero(e, c) else product


def _div_with_zero(e: Emitter, value: Value) -> int:
    a, b = value.args
    code, module, dtype = e.code, e.module, value.dtype
    kind, sign_bit = same_width("u", dtype), sign_and_infinity(dtype)[0]
    unsigned, real = module.types[kind], module.types[dtype]
    if b in e.float_zeros:  # a product with infinity has the same sign and the same NaN
        infinity = math.copysign(math.inf, b.attr[1])
        return code.exact(Op.F_MUL, real, e.ids[a], module.literal(dtype, infinity))
    # A zero with the sign of the divisor, NaN where the divisor is zero or NaN.
    sign = code.op(Op.BIT_AND, unsigned, code.op(Op.BITCAST, unsigned, e.ids[b]), module.literal(kind, sign_bit))
    if _is_negative_zero(e, a):
        sign = code.op(Op.BIT_XOR, unsigned, sign, module.literal(kind, sign_bit))
    valid = code.exact(Op.F_ORD_NE, module.bool_, e.ids[b], module.literal(dtype, 0.0))
    signed = code.op(Op.BITCAST, real, sign)
    return code.op(Op.SELECT, real, valid, signed, module.literal(dtype, math.nan))


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
    return _exchange(e, Op.SUBGROUP_BROADCAST, value, lambda: e.module.u(value.attr))


def _shuffle(e: Emitter, value: Value) -> int:
    e.module.capabilities |= {Capability.GROUP, Capability.GROUP_SHUFFLE}
    lane = e.ids[value.args[1]]
    return _exchange(e, Op.SUBGROUP_SHUFFLE, value, lambda: e.code.op(Op.BITCAST, e.module.u32, lane))


def _exchange(e: Emitter, opcode: int, value: Value, lane: Callable[[], int]) -> int:
    """A subgroup operation that moves values: of 64 bits it moves two words, which needs no feature of the device."""
    code, module, source = e.code, e.module, e.ids[value.args[0]]
    type_id, scope = module.types[value.dtype], module.u(_SUBGROUP_SCOPE)
    if value.dtype not in WIDE:
        return code.op(opcode, type_id, scope, source, lane())
    pair = module.type(Op.TYPE_VECTOR, module.u32, 2)
    return code.op(Op.BITCAST, type_id, code.op(opcode, pair, scope, code.op(Op.BITCAST, pair, source), lane()))


def _subgroup(e: Emitter, value: Value) -> int:
    e.module.capabilities |= {Capability.GROUP, Capability.GROUP_ARITHMETIC}
    opcode, type_id = _SUBGROUP[value.op, value.dtype], e.module.types[value.dtype]
    return e.code.op(opcode, type_id, e.module.u(_SUBGROUP_SCOPE), _REDUCE, e.ids[value.args[0]])


# Operations that need more than one instruction; `(operation, type)` where only that type does.
SPECIAL: dict[str | tuple[str, str], Callable[[Emitter, Value], int]] = {
    **{("min", t): _float_extreme(Op.F_LT, Op.F_UNORD_LT) for t in _REALS},
    **{("max", t): _float_extreme(Op.F_GT, Op.F_UNORD_GT) for t in _REALS},
    **{("rem", t): _float_remainder for t in _REALS},
    ("trunc", "f64"): _trunc_wide,
    ("round_even", "f64"): _round_even_wide,
    **{("popcount", t): _popcount for t in ("i64", "u64")},
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
