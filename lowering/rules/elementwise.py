"""Scalar rules of the elementwise primitives.

Integer corners are those of XLA on CPU: x / 0 = -1, x rem 0 = x, MIN / -1 = MIN, shifts by the width or more give 0
(or the sign), float to integer saturates and NaN becomes 0. What must keep subnormals is done on the bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPES, FLOATS, same_width, width
from ..expr import Expr, copysign, where
from ..mathlib import FUNCTIONS, function, integer_pow
from ..scalar import scalar_rule
from ..tile import Builder, Value
from .bits import from_bits, is_zero, odd_f32, reduce_precision, to_bits

Params = dict[str, Any]
Types = tuple[str, ...]
_I2, _F2, _B1, _B2 = ("i32", "i32"), ("f32", "f32"), ("bool",), ("bool", "bool")
_SIGNED, _UNSIGNED = ("i32", "i64"), ("u32", "u64")


def _sign_bit(x: Expr) -> int:
    """The lowest number of the signed integer type as wide as `x`, whose only bit set is that of the sign."""
    return -(1 << (width(x.dtype) - 1))


def _simple(names: str, inputs: Types, function: Callable[..., Expr], output: str = "f32", exact: bool = False) -> None:
    """Register primitives whose rule looks at neither parameters nor element types."""

    @scalar_rule(*names.split(), inputs=inputs, output=output, exact=exact)
    def _(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
        return function(*(Expr(b, a) for a in args)).value


def _on_bool(boolean: str, number: str) -> Callable[[Expr, Expr], Expr]:
    """One operation for bool, another for numbers."""
    return lambda x, y: x.op(boolean if x.dtype == "bool" else number, y)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _div(x: Expr, y: Expr) -> Expr:
    if x.dtype in FLOATS:
        return x / y
    zero = y.eq(0)
    unsafe = zero | (x.eq(_sign_bit(x)) & y.eq(-1)) if x.dtype in _SIGNED else zero
    return where(zero, -1, x / where(unsafe, 1, y))


def _rem(x: Expr, y: Expr) -> Expr:
    if x.dtype in FLOATS:
        return x.op("rem", y)
    zero = y.eq(0)
    unsafe = zero | y.eq(-1) if x.dtype in _SIGNED else zero
    return where(zero, x, x.op("rem", where(unsafe, 1, y)))


def _sign(x: Expr) -> Expr:
    if x.dtype in _UNSIGNED:
        return x.ne(0).to(x.dtype)
    return where(x > 0, 1, where(x < 0, -1, x))  # keeps NaN and signed zeros


def _extreme(op: str, merge: str) -> Callable[[Expr, Expr], Expr]:
    """max or min; of two zeros the positive is the larger, which the tile operation does not promise."""

    def build(x: Expr, y: Expr) -> Expr:
        if x.dtype == "bool":
            return x.op("or" if op == "max" else "and", y)
        result = x.op(op, y)
        if x.dtype not in FLOATS or any(a.value.op == "const" and a.value.attr[1] != 0 for a in (x, y)):
            return result
        return where(x.eq(y), x.bits().op(merge, y.bits()).bits(x.dtype), result)

    return build


_max, _min = _extreme("max", "and"), _extreme("min", "or")
_simple("add add_any", _F2, _on_bool("or", "add"))
_simple("sub", _F2, _on_bool("xor", "sub"))
_simple("mul", _F2, _on_bool("and", "mul"))
_simple("div", _F2, _div)
_simple("rem", _F2, _rem)
_simple("neg", ("f32",), lambda x: -x)
_simple("abs", ("f32",), lambda x: x if x.dtype in _UNSIGNED else abs(x))
_simple("sign", ("f32",), _sign, exact=True)
_simple("square", ("f32",), lambda x: x if x.dtype == "bool" else x * x)
_simple("one_minus_square", ("f32",), lambda x: (x.lift(1) + x) * (x.lift(1) - x))  # of JAX 0.12
_simple("fma fmuladd", ("f32", "f32", "f32"), lambda x, y, z: x.fma(y, z))  # of JAX 0.12.1
_simple("max", _F2, _max, exact=True)
_simple("min", _F2, _min, exact=True)
_simple("clamp", ("f32", "f32", "f32"), lambda low, x, high: _min(_max(x, low), high), exact=True)
_simple("copy copy_p stop_gradient", ("f32",), lambda x: x, exact=True)
_simple("floor", ("f32",), lambda x: x.floor(), exact=True)
_simple("ceil", ("f32",), lambda x: x.op("ceil"), exact=True)
_simple("is_finite", ("f32",), lambda x: abs(x) < math.inf, output="bool")


@scalar_rule("round", exact=True, params={"rounding_method": 0})
def _round(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    x = Expr(b, args[0])
    if int(params["rounding_method"]) == 1:
        return x.op("round_even").value
    towards_zero = x.op("trunc")
    away = towards_zero + copysign(x.lift(1.0), x)
    return where(abs(x - towards_zero) >= 0.5, away, towards_zero).value


@scalar_rule("integer_pow", params={"y": 3})
def _integer_pow(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    return integer_pow(Expr(b, args[0]), params["y"]).value


@scalar_rule("polynomial", inputs=_F2)  # of JAX 0.12.1
def _polynomial(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    """args[1] + args[2] x + args[3] x**2 + ... by Horner's rule."""
    x, *coefficients = (Expr(b, a) for a in args)
    result = coefficients.pop()
    while coefficients:
        term = coefficients.pop()
        result = result.fma(x, term) if x.dtype in FLOATS else result * x + term
    return result.value


@scalar_rule("pow", inputs=_F2)
def _pow(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    x = Expr(b, args[0])
    return function("pow", x.dtype)(x, Expr(b, args[1]).to(x.dtype)).value


def _of_its_type(name: str) -> Callable[..., Expr]:
    return lambda *args: function(name, args[0].dtype)(*args)


for _name in FUNCTIONS:
    if _name != "pow":
        _simple(_name, _F2 if _name in ("atan2", "atan2pi") else ("f32",), _of_its_type(_name))


# -- comparison and choice ---------------------------------------------------------------------------------------------


def _compare(op: str, on_bool: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: on_bool(x, y) if x.dtype == "bool" else x.op(op, y)


_less, _less_equal = _compare("lt", lambda x, y: ~x & y), _compare("le", lambda x, y: ~x | y)
_simple("eq", _F2, lambda x, y: x.eq(y), output="bool")
_simple("ne", _F2, lambda x, y: x.ne(y), output="bool")
_simple("lt", _F2, _less, output="bool")
_simple("le", _F2, _less_equal, output="bool")
_simple("gt", _F2, lambda x, y: _less(y, x), output="bool")
_simple("ge", _F2, lambda x, y: _less_equal(y, x), output="bool")


@scalar_rule("select_n", inputs=("bool", "f32", "f32"), exact=True)
def _select_n(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    which, *cases = args
    if which.dtype == "bool":
        return cases[0] if len(cases) == 1 else b.op("select", which, cases[1], cases[0])
    result = cases[-1]  # an index outside picks the nearest case
    for number in range(len(cases) - 2, -1, -1):
        result = b.op("select", b.op("lt", which, b.const(number + 1, which.dtype)), cases[number], result)
    return result


# -- bits --------------------------------------------------------------------------------------------------------------

_simple("and", _I2, lambda x, y: x & y, output="i32", exact=True)
_simple("or", _I2, lambda x, y: x | y, output="i32", exact=True)
_simple("xor", _I2, lambda x, y: x ^ y, output="i32", exact=True)
_simple("not", ("i32",), lambda x: ~x, output="i32")


def _unsigned(x: Expr, dtype: str) -> Expr:
    """The bits of an integer of element type `dtype`, zero-extended."""
    bits = DTYPES[dtype].bits
    x = x.bits(same_width("u", x.dtype))
    return x if bits == width(x.dtype) else x & ((1 << bits) - 1)


def _amount(b: Builder, value: Value) -> tuple[Expr, Expr]:
    """A shift amount inside the width, unsigned, and whether the true one is; negative amounts count as large."""
    amount, bits = Expr(b, value).bits(same_width("u", value.dtype)), width(value.dtype)
    return amount & (bits - 1), amount < bits


@scalar_rule("shift_left", inputs=_I2, output="i32")
def _shift_left(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    x = Expr(b, args[0])
    amount, inside = _amount(b, args[1])
    return where(inside, x << amount.bits(x.dtype), 0).value


@scalar_rule("shift_right_logical", inputs=_I2, output="i32")
def _shift_right_logical(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    amount, inside = _amount(b, args[1])
    return where(inside, _unsigned(Expr(b, args[0]), in_dtypes[0]) >> amount, 0).bits(args[0].dtype).value


@scalar_rule("shift_right_arithmetic", inputs=_I2, output="i32")
def _shift_right_arithmetic(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    x, bits = Expr(b, args[0]).bits(), width(args[0].dtype)
    spare = bits - DTYPES[in_dtypes[0]].bits
    if spare and args[0].dtype == "u32":
        x = (x << spare) >> spare
    amount, inside = _amount(b, args[1])
    return (x >> where(inside, amount, bits - 1).bits()).bits(args[0].dtype).value


@scalar_rule("population_count", inputs=("i32",), output="i32")
def _population_count(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    return _unsigned(Expr(b, args[0]), in_dtypes[0]).op("popcount").bits(args[0].dtype).value


@scalar_rule("clz", inputs=("i32",), output="i32")
def _clz(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    zeros = _unsigned(Expr(b, args[0]), in_dtypes[0]).op("clz") - (width(args[0].dtype) - DTYPES[in_dtypes[0]].bits)
    return zeros.bits(args[0].dtype).value


# -- conversion --------------------------------------------------------------------------------------------------------


def _float_to_integer(x: Expr, dtype: str) -> Expr:
    """Truncates, saturates at the limits of the element type; NaN becomes 0."""
    info = DTYPES[dtype]
    low = -(1 << (info.bits - 1)) if info.kind == "i" else 0
    high = (1 << info.bits - (info.kind == "i")) - 1
    above = x >= float(high + 1)
    # Convert only what is inside: the rest is undefined. NaN fails both comparisons.
    inside = where((x > float(low - 1)) & ~above, x, 0.0) if info.bits < 32 else where((x >= float(low)) & ~above, x, 0.0)
    result = inside.to(info.compute)
    return where(above, high, where(x < float(low), low, result) if low else result)


@scalar_rule("convert_element_type", inputs=("i32",))
def _convert(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    x = Expr(b, args[0])
    target = DTYPES[out_dtype]
    if x.dtype in FLOATS and target.kind == "b":
        return (~is_zero(x)).value
    if x.dtype in FLOATS and target.kind in "iu":
        return _float_to_integer(x, out_dtype).value
    if x.dtype == "f64" and out_dtype in ("f16", "bf16"):
        return odd_f32(x).value
    return x.to(target.compute).value


@scalar_rule("bitcast_convert_type", output="i32")
def _bitcast(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    source, target = DTYPES[in_dtypes[0]], DTYPES[out_dtype]
    if max(8, source.bits) != max(8, target.bits):
        raise ValueError(f"bitcast of {source.name} to {target.name} as a scalar: their widths differ")
    if source.name == target.name:
        return args[0]
    return from_bits(to_bits(Expr(b, args[0]), source.name), target.name).value


@scalar_rule("reduce_precision", params={"exponent_bits": 5, "mantissa_bits": 10})
def _reduce_precision(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    return reduce_precision(Expr(b, args[0]), params["exponent_bits"], params["mantissa_bits"]).value


@scalar_rule("nextafter", inputs=_F2, exact=True)
def _nextafter(b: Builder, args: tuple[Value, ...], params: Params, in_dtypes: Types, out_dtype: str) -> Value:
    """One step in the order of the numbers, which is that of their bits taken as sign and magnitude."""
    x, y = (Expr(b, a) for a in args)
    step = 1 << (width(x.dtype) - DTYPES[out_dtype].bits)
    shift = 16 if out_dtype == "f16" else 0
    x_bits, y_bits = (to_bits(v, "f16").bits("i32") << 16 if shift else v.bits() for v in (x, y))
    x_order, y_order = (where(bits < 0, _sign_bit(x) - bits, bits) for bits in (x_bits, y_bits))
    stepped = x_order + where(x_order < y_order, step, x_order.lift(-step))
    # Stepping onto zero keeps the sign of x.
    magnitude = where(stepped < 0, 0 - stepped, stepped)
    sign = where(stepped.eq(0), x_bits & _sign_bit(x), stepped & _sign_bit(x))
    bits = where(x_order.eq(y_order), y_bits, magnitude | sign)
    result = from_bits(bits.bits("u32") >> 16, "f16") if shift else bits.bits(x.dtype)
    return where(x.is_nan() | y.is_nan(), math.nan, result).value
