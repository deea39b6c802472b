"""Constant folding and exact identities, tried by the builder on every pure operation.

`fold` returns an existing or simpler value, or None to let the builder emit the operation. Every rule gives the
same bits as the operation it replaces, for NaN, infinity and signed zero too; so `x + 0.0` stays (it turns -0 into 0)
and `x * 0.0` stays (it may be NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from .dtypes import DTYPES, FLOATS, width
from .fused import fma

if TYPE_CHECKING:
    from .tile import Builder, Value

_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1
_UNSIGNED = ("u32", "u64")
Rule = Callable[["Builder", tuple["Value", ...], Any], "Value | None"]


def fold(builder: Builder, op: str, args: tuple[Value, ...], attr: Any) -> Value | None:
    """A value equal to `op(*args)` that needs no new operation of this kind, or None."""
    rule = _RULES.get(op)
    if rule is None:
        return None
    for arg in args:
        if arg.op != "const":
            break
    else:
        folded = _constant(builder, op, args, attr)
        if folded is not None:
            return folded
    return rule(builder, args, attr)


# -- constants ---------------------------------------------------------------------------------------------------


def wrap(value: int, dtype: str) -> int:
    """`value` modulo 2**32 or 2**64 as the integer type `dtype` ("i32", "u32", "i64" or "u64")."""
    if dtype in ("i32", "u32"):
        value &= _WORD
        return value - (1 << 32) if dtype == "i32" and value >> 31 else value
    value &= _LONG
    return value - (1 << 64) if dtype == "i64" and value >> 63 else value


def _mask(dtype: str) -> int:
    """All bits of an integer type."""
    return (1 << width(dtype)) - 1


def _truncated_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: _truncated_div(a, b) if b else 0,
    "rem": lambda a, b: a - b * _truncated_div(a, b) if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_FLOAT: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rem": np.fmod,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round_even": np.rint,
    "sqrt": np.sqrt,
}
_NARROW: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _constant(builder: Builder, op: str, args: tuple[Value, ...], attr: Any) -> Value | None:
    """Fold an operation whose arguments are all constants."""
    if not args:
        return None
    dtype = args[0].dtype
    values = [arg.attr[1] for arg in args]
    if op in _COMPARE:
        return builder.const(_COMPARE[op](*values), "bool")
    if op == "select":
        return args[1] if values[0] else args[2]
    if op == "convert":
        return _convert_constant(builder, values[0], dtype, attr)
    if op == "bitcast":
        result = np.array(values, DTYPES[dtype].numpy).view(DTYPES[attr].numpy)[0]
        # A NaN constant would lose its payload on the way through a Python float.
        return None if attr in FLOATS and np.isnan(result) else builder.const(result, attr)
    if dtype in FLOATS:
        return _float_constant(builder, op, values, attr, dtype)
    a = values[0]
    if op == "not":
        return builder.const(not a if dtype == "bool" else ~a, dtype)
    if op == "neg":
        return builder.const(-a, dtype)
    if op == "abs":
        return builder.const(abs(a), dtype)
    if op == "popcount":
        return builder.const((a & _mask(dtype)).bit_count(), dtype)
    if op == "clz":
        return builder.const(width(dtype) - (a & _mask(dtype)).bit_length(), dtype)
    if op in _INTEGER:
        if op in ("shl", "shr") and not 0 <= values[1] < width(dtype):
            return builder.const(0, dtype)
        if op in ("div", "rem") and values[1] == 0:
            return None
        return builder.const(_INTEGER[op](a, values[1]), dtype)
    return None


def _convert_constant(builder: Builder, value: Any, source: str, target: str) -> Value | None:
    if target == "bool":
        return builder.const(value != 0, "bool")
    if target in FLOATS:
        with np.errstate(over="ignore"):
            return builder.const(np.array(value, DTYPES[source].numpy).astype(DTYPES[target].numpy).item(), target)
    if source in FLOATS and not (math.isfinite(value) and wrap(math.trunc(value), target) == math.trunc(value)):
        return None  # undefined: leave it to the device
    return builder.const(math.trunc(value), target)


def _float_constant(builder: Builder, op: str, values: list[float], attr: Any, dtype: str) -> Value | None:
    arrays = [np.asarray(v, DTYPES[dtype].numpy) for v in values]
    with np.errstate(all="ignore"):
        if op == "fma":
            return builder.const(fma(*arrays).item(), dtype)
        if op == "round_to":
            return builder.const(arrays[0].astype(_NARROW[attr]).astype(np.float32).item(), dtype)
        function = _FLOAT.get(op)
        return None if function is None else builder.const(function(*arrays).item(), dtype)


# -- identities --------------------------------------------------------------------------------------------------


def _is(value: Value, number: Any) -> bool:
    return value.op == "const" and value.attr[1] == number


def _order(builder: Builder, op: str, args: tuple[Value, ...]) -> Value | None:
    """Move a constant of a commutative operation to the right, so equal expressions are shared."""
    return builder.op(op, args[1], args[0]) if args[0].op == "const" and args[1].op != "const" else None


def _add(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b = args
    if a.dtype in FLOATS:
        # x + -0.0 is x for every x, but x + 0.0 is not.
        return a if b.op == "const" and b.attr[1] == 0 and math.copysign(1, b.attr[1]) < 0 else _order(builder, "add", args)
    if b.op == "const":
        if b.attr[1] == 0:
            return a
        if a.op == "add" and a.args[1].op == "const":
            return builder.op("add", a.args[0], builder.const(a.args[1].attr[1] + b.attr[1], a.dtype))
        return None
    return _order(builder, "add", args)


def _sub(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b = args
    if a.dtype in FLOATS:
        return a if b.op == "const" and b.attr[1] == 0 and math.copysign(1, b.attr[1]) > 0 else None
    if a is b:
        return builder.const(0, a.dtype)
    return builder.op("add", a, builder.const(-b.attr[1], a.dtype)) if b.op == "const" else None


def _mul(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b = args
    if b.op != "const":
        return _order(builder, "mul", args)
    number = b.attr[1]
    if number == 1:
        return a
    if a.dtype in FLOATS:
        return None
    if number == 0:
        return b
    if number > 0 and number & (number - 1) == 0:
        return builder.op("shl", a, builder.const(number.bit_length() - 1, a.dtype))
    if a.op == "mul" and a.args[1].op == "const":
        return builder.op("mul", a.args[0], builder.const(a.args[1].attr[1] * number, a.dtype))
    return None


def _div(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b = args
    if b.op != "const":
        return None
    number = b.attr[1]
    if number == 1:
        return a
    if a.dtype in FLOATS:
        # Division by a power of two is an exact multiplication while the reciprocal is a normal number.
        mantissa, exponent = math.frexp(number)
        exact = abs(mantissa) == 0.5 and -120 < exponent < 120
        return builder.op("mul", a, builder.const(1.0 / number, a.dtype)) if exact else None
    if a.dtype in _UNSIGNED and number > 0 and number & (number - 1) == 0:
        return builder.op("shr", a, builder.const(number.bit_length() - 1, a.dtype))
    return None


def _rem(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b = args
    if b.op != "const" or a.dtype in FLOATS:
        return None
    number = b.attr[1]
    if number == 1:
        return builder.const(0, a.dtype)
    if a.dtype in _UNSIGNED and number > 0 and number & (number - 1) == 0:
        return builder.op("and", a, builder.const(number - 1, a.dtype))
    return None


def _fma(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a, b, c = args
    if _is(b, 1.0):
        return builder.op("add", a, c)
    if _is(a, 1.0):
        return builder.op("add", b, c)
    return builder.op("fma", b, a, c) if a.op == "const" and b.op != "const" else None


def _same_twice(op: str) -> Rule:
    """Rule of an operation that undoes itself."""

    def rule(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
        return args[0].args[0] if args[0].op == op else None

    return rule


def _not(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    (a,) = args
    if a.op == "not":
        return a.args[0]
    if a.op == "eq":
        return builder.op("ne", *a.args)
    if a.op == "ne":
        return builder.op("eq", *a.args)
    if a.op in ("lt", "le") and a.args[0].dtype not in FLOATS:
        return builder.op("le" if a.op == "lt" else "lt", a.args[1], a.args[0])
    return None


def _idempotent(op: str) -> Rule:
    """Rule of a rounding or |x|: applied twice it does nothing more."""

    def rule(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
        a = args[0]
        if a.op == op and a.attr == attr:
            return a
        return builder.op(op, a.args[0]) if op == "abs" and a.op == "neg" else None

    return rule


def _round_to(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    a = args[0]
    if a.op == "round_to" and a.attr == attr:
        return a
    if a.op in ("neg", "abs") and a.args[0].op == "round_to" and a.args[0].attr == attr:
        return a
    if a.op == "convert" and a.args[0].dtype == "bool":
        return a
    return None


def _extreme(op: str) -> Rule:
    def rule(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
        return args[0] if args[0] is args[1] else _order(builder, op, args)

    return rule


def _compare(op: str) -> Rule:
    def rule(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
        a, b = args
        if a is b and a.dtype not in FLOATS:
            return builder.const(op in ("le", "eq"), "bool")
        if a.dtype == "bool" and b.op == "const":
            return a if b.attr[1] == (op == "eq") else builder.op("not", a)
        if a.dtype in _UNSIGNED and op == "lt" and _is(b, 0):
            return builder.const(False, "bool")
        if a.dtype in _UNSIGNED and op == "le" and _is(a, 0):
            return builder.const(True, "bool")
        if op in ("eq", "ne"):
            return _order(builder, op, args)
        return None

    return rule


def _logic(op: str) -> Rule:
    """Rules of and / or / xor with a constant or with itself."""

    def rule(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
        a, b = args
        if a is b:
            return builder.const(0, a.dtype) if op == "xor" else a
        if b.op != "const":
            return _order(builder, op, args)
        ones_bits = 1 if a.dtype == "bool" else _mask(a.dtype)
        bits = int(b.attr[1]) & ones_bits
        ones = bits == ones_bits
        if bits == 0:
            return b if op == "and" else a
        if ones:
            return a if op == "and" else b if op == "or" else builder.op("not", a)
        return None

    return rule


def _shift(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    return args[0] if _is(args[1], 0) or _is(args[0], 0) else None


def _select(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    condition, a, b = args
    if a is b:
        return a
    if condition.op == "const":
        return a if condition.attr[1] else b
    if condition.op == "not":
        return builder.op("select", condition.args[0], b, a)
    if a.dtype == "bool" and (a.op == "const" or b.op == "const"):
        if a.op == "const":
            return builder.op("or", condition, b) if a.attr[1] else builder.op("and", builder.op("not", condition), b)
        return builder.op("or", builder.op("not", condition), a) if b.attr[1] else builder.op("and", condition, a)
    return None


# (from, by way of, to): integer conversions of which the second undoes the first, or needs it not.
_SAME_BITS = frozenset(
    [(a, b, c) for a, b in (("i32", "u32"), ("u32", "i32")) for c in ("i32", "u32", "bool")]
    + [(a, b, c) for a, b in (("i64", "u64"), ("u64", "i64")) for c in ("i32", "u32", "i64", "u64", "bool")]
    + [(a, b, c) for a in ("i32", "u32") for b in ("i64", "u64") for c in ("i32", "u32")]
)


def _convert(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    (a,) = args
    if a.dtype == attr:
        return a
    if a.op != "convert":
        return None
    # A bool is 0 or 1 in every type; i32 and u32 hold the same bits, so only the way to another kind or width tells them apart.
    inner = a.args[0]
    if inner.dtype == "bool" or (inner.dtype, a.dtype, attr) in _SAME_BITS:
        return inner if inner.dtype == attr else builder.op("convert", inner, attr=attr)
    return None


def _bitcast(builder: Builder, args: tuple[Value, ...], attr: Any) -> Value | None:
    (a,) = args
    if a.dtype == attr:
        return a
    if a.op == "bitcast":
        return a.args[0] if a.args[0].dtype == attr else builder.op("bitcast", a.args[0], attr=attr)
    return None


_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "rem": _rem,
    "fma": _fma,
    "neg": _same_twice("neg"),
    "not": _not,
    "abs": _idempotent("abs"),
    "floor": _idempotent("floor"),
    "ceil": _idempotent("ceil"),
    "trunc": _idempotent("trunc"),
    "round_even": _idempotent("round_even"),
    "round_to": _round_to,
    "min": _extreme("min"),
    "max": _extreme("max"),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "and": _logic("and"),
    "or": _logic("or"),
    "xor": _logic("xor"),
    "shl": _shift,
    "shr": _shift,
    "select": _select,
    "convert": _convert,
    "bitcast": _bitcast,
    "sqrt": lambda builder, args, attr: None,
    "popcount": lambda builder, args, attr: None,
    "clz": lambda builder, args, attr: None,
}
