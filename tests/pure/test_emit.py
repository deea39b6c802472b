"""SPIR-V of every operation and form of kernel, judged by the Khronos validator. No device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from call_count import call_count
from k3jit.lowering.dtypes import COMPUTE_TYPES, DTYPES, missing, width
from k3jit.lowering.emit import InvalidSpirv, disassemble, emit, live_values, validate
from k3jit.lowering.tile import OPS, Builder, Kernel, Value
from k3jit.lowering.verify import VerifyError
from k3jit.runtime.caps import NULL_CAPS

WORDS_ONLY = replace(
    NULL_CAPS, storage=(), float_controls=False, int64=False, float64=False, float16=False, int8=False, int16=False
)
ALL_CAPS = [NULL_CAPS, WORDS_ONLY, replace(NULL_CAPS, storage=(16,))]
CONVERTIBLE = COMPUTE_TYPES


def lane(b: Builder) -> Value:
    return b.op("add", b.op("mul", b.builtin("group_x"), b.i32(8)), b.builtin("lane"))


def attributes(op: str, dtype: str) -> list:
    return {
        "convert": list(CONVERTIBLE),
        "bitcast": [t for t in CONVERTIBLE if t != "bool" and width(t) == width(dtype)],
        "round_to": ["f16", "bf16"],
        "broadcast": [3],
    }.get(op, [None])


def operation_kernel(op: str, dtype: str, attr: object, constant: int | None = None) -> Kernel:
    """out = op(in0, in1, ...) of elements of `dtype`; argument `constant` is a literal."""
    b = Builder()
    index = lane(b)
    types = [dtype] * (OPS[op].arity or 0)
    if op == "select":
        types = ["bool", dtype, dtype]
    if op == "shuffle":
        types[1] = "i32"
    args = [b.load(b.param(f"in{i}", t, 64, "r"), index) for i, t in enumerate(types)]
    if constant is not None:
        args[constant] = b.const(1, types[constant])
    result = b.op(op, *args, attr=attr)
    b.store(b.param("out", result.dtype, 64, "w"), index, result)
    return b.finish(op, 8)


PURE = [
    (op, dtype, attr)
    for op, info in OPS.items()
    if op
    not in (
        "arg",
        "result",
        "const",
        "builtin",
        "load",
        "store",
        "shared_load",
        "shared_store",
        "scalar",
        "barrier",
        "for",
        "if",
    )
    for dtype in (CONVERTIBLE if op == "select" else info.types.split())
    for attr in attributes(op, dtype)
]


@pytest.mark.parametrize("op", sorted({op for op, _, _ in PURE}))
def test_every_operation_and_type(op: str) -> None:
    for name, dtype, attr in PURE:
        if name == op:
            for caps in ALL_CAPS:
                if dtype not in missing(caps):
                    validate(emit(operation_kernel(op, dtype, attr), caps))
            validate(emit(operation_kernel(op, dtype, attr), NULL_CAPS, checked=True, debug=True))
            if op in ("min", "max"):
                for constant in (0, 1):
                    validate(emit(operation_kernel(op, dtype, attr, constant), NULL_CAPS))


def copy_kernel(source: str, target: str, packed: bool = False) -> Kernel:
    b = Builder()
    index = lane(b)
    value = b.load(b.param("x", source, 64, "r"), index)
    wanted = DTYPES[target].compute
    if value.dtype != wanted:
        value = b.op("convert", value, attr=wanted)
    if target in ("f16", "bf16") and source != target:
        value = b.op("round_to", value, attr=target)
    b.store(b.param("y", target, 64, "w"), index, value)
    return b.finish("copy", 8, packed=packed)


@pytest.mark.parametrize("source", DTYPES)
def test_storage_of_every_pair_of_types(source: str) -> None:
    for target in DTYPES:
        for caps in ALL_CAPS:
            if not missing(caps) & {source, target}:
                for checked in (False, True):
                    validate(emit(copy_kernel(source, target, packed=checked), caps, checked=checked))


@pytest.mark.parametrize("dtype", ["i64", "u64", "f64"])
def test_wide_types_ask_for_what_they_take(dtype: str) -> None:
    text = disassemble(emit(copy_kernel(dtype, dtype), NULL_CAPS))
    assert f"OpCapability {'Float64' if dtype == 'f64' else 'Int64'}" in text
    assert ("SignedZeroInfNanPreserve 64" in text) == (dtype == "f64")
    with pytest.raises(VerifyError, match=f"does not compute with {dtype}"):
        emit(copy_kernel(dtype, dtype), WORDS_ONLY, checked=True)


def test_wide_values_are_exchanged_as_words() -> None:
    text = disassemble(emit(operation_kernel("shuffle", "i64", None), NULL_CAPS))
    assert "OpGroupNonUniformShuffle %v2uint" in text


def test_capabilities_follow_the_types_used() -> None:
    text = disassemble(emit(copy_kernel("f32", "f32"), NULL_CAPS))
    assert "StorageBuffer16BitAccess" not in text and "StorageBuffer8BitAccess" not in text
    assert "SignedZeroInfNanPreserve" in text and "Int64" not in text
    text = disassemble(emit(copy_kernel("bf16", "bool"), NULL_CAPS))
    assert "OpCapability StorageBuffer16BitAccess" in text and "OpCapability StorageBuffer8BitAccess" in text
    assert "OpCapability Int8" not in text and "OpCapability Int16" not in text
    text = disassemble(emit(copy_kernel("bf16", "bool"), WORDS_ONLY))
    assert "StorageBuffer" not in text.replace("PhysicalStorageBuffer", "") and "SignedZero" not in text


def test_float_arithmetic_is_not_contracted() -> None:
    for op in ("add", "mul", "div", "lt", "eq"):
        assert "NoContraction" in disassemble(emit(operation_kernel(op, "f32", None), NULL_CAPS))
    assert "NoContraction" not in disassemble(emit(operation_kernel("add", "i32", None), NULL_CAPS))


def loops_kernel(start: int, stop: int, step: int) -> Kernel:
    """Nested loops with swapped carries, a branch with results and one without, shared memory, a literal."""
    b = Builder()
    x, y = b.param("x", "f32", 64, "r"), b.param("y", "f32", 64, "rw")
    n, tile = b.param("n", "i32", 0, "scalar"), b.shared("tile", "f32", 8)
    index = lane(b)
    with b.loop(start, stop, step, [b.f32(0), b.f32(1)]) as outer:
        b.shared_store(tile, b.builtin("lane"), outer.carry[0])
        b.barrier()
        with b.loop(0, 3, 1, [outer.carry[0]]) as inner:
            element = b.load(x, b.op("add", inner.index, outer.index))
            inner.yield_(b.op("add", inner.carry[0], element))
        with b.branch(b.op("lt", outer.index, b.scalar(n))) as side:
            side.yield_(inner.results[0], b.f32(2))
            with side.otherwise():
                b.store(y, index, b.f32(7))
                side.yield_(b.shared_load(tile, b.i32(0)), b.f32(3))
        b.barrier()
        outer.yield_(outer.carry[1], b.op("mul", side.results[0], side.results[1]))
    with b.branch(b.op("lt", index, b.i32(5))):
        b.store(y, index, b.op("add", outer.results[0], outer.results[1]))
    return b.finish("loops", 8)


@pytest.mark.parametrize("bounds", [(0, 4, 1), (0, 1, 1), (3, 3, 1), (5, 2, 1), (0, 7, 3), (-4, 4, 5), (2, 5, 9)])
def test_loops_and_branches(bounds: tuple[int, int, int]) -> None:
    kernel = loops_kernel(*bounds)
    for packed in (False, True):
        for checked in (False, True):
            for debug in (False, True):
                validate(emit(replace(kernel, packed=packed), NULL_CAPS, checked=checked, debug=debug))


def test_branch_with_nothing_to_run_becomes_a_select() -> None:
    b = Builder()
    x = b.load(b.param("x", "f32", 8, "r"), lane(b))
    with b.branch(b.op("lt", x, b.f32(0))) as side:
        side.yield_(b.f32(1))
        with side.otherwise():
            side.yield_(x)
    b.store(b.param("y", "f32", 8, "w"), lane(b), side.results[0])
    spirv = emit(b.finish("select", 8), NULL_CAPS)
    validate(spirv)
    assert "OpSelect " in disassemble(spirv)


def test_dead_values_are_not_written() -> None:
    b = Builder()
    x, y = b.param("x", "f32", 8, "r"), b.param("y", "f32", 8, "w")
    unused = b.param("unused", "bf16", 8, "r")
    index = lane(b)
    value = b.load(x, index)
    dead = b.op("sqrt", b.load(unused, index))
    with b.loop(0, 4, 1, [value, dead]) as loop:
        loop.yield_(b.op("add", loop.carry[0], value), b.op("floor", loop.carry[1]))
    with b.loop(0, 4, 1, [value]) as dead_loop:
        dead_loop.yield_(b.op("ceil", dead_loop.carry[0]))
    b.store(y, index, loop.results[0])
    kernel = b.finish("dead", 8)
    spirv = emit(kernel, NULL_CAPS)
    validate(spirv)
    text = disassemble(spirv)
    assert not any(word in text for word in ("Sqrt", "Floor", "Ceil", "StorageBuffer16"))
    assert text.count("OpLoopMerge") == 1 and dead not in live_values(kernel)


def test_equal_kernels_give_equal_bytes() -> None:
    first, second = emit(loops_kernel(0, 4, 1), NULL_CAPS), emit(replace(loops_kernel(0, 4, 1), name="other"), NULL_CAPS)
    assert first == second
    assert first != emit(loops_kernel(0, 5, 1), NULL_CAPS)


def test_debug_names_and_lines() -> None:
    b = Builder()
    b.source = "train.py:41 (loss)"
    b.store(b.param("weights", "f32", 8, "w"), lane(b), b.f32(1))
    spirv = emit(b.finish("softmax", 8), NULL_CAPS, debug=True)
    validate(spirv)
    text = disassemble(spirv)
    assert '"train.py"' in text and " 41 0" in text and '"weights"' in text and '"softmax"' in text


def test_validator_refuses_garbage() -> None:
    spirv = bytearray(emit(copy_kernel("f32", "f32"), NULL_CAPS))
    spirv[-8:-4] = b"\x01\x00\x01\x00"
    with pytest.raises(InvalidSpirv):
        validate(bytes(spirv))


def test_emission_is_linear() -> None:
    small, large = (call_count(emit, _long_kernel(turns), NULL_CAPS) for turns in (1000, 2000))
    assert large < 2.2 * small


def _long_kernel(turns: int) -> Kernel:
    """A kernel of 4 * turns instructions."""
    b = Builder()
    x, y = b.param("x", "f32", 1 << 20, "r"), b.param("y", "f32", 1 << 20, "w")
    index = lane(b)
    value = b.load(x, index)
    for i in range(turns):
        other = b.load(x, b.op("add", index, b.i32(i)))
        value = b.op("fma", b.op("add", value, other), other, value)
    b.store(y, index, value)
    return b.finish("big", 8)
