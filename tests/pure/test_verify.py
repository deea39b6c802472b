"""The verifier accepts sound kernels and refuses each broken rule, naming the line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from k3jit.lowering.emit import emit
from k3jit.lowering.tile import Block, Builder, Kernel, Region, Value, to_text
from k3jit.lowering.verify import VerifyError, statement_lines, verify
from k3jit.runtime.caps import NULL_CAPS


def sound() -> tuple[Builder, Value]:
    """A kernel that uses memory, a loop, a branch, shared memory and a barrier."""
    b = Builder()
    x, y = b.param("x", "f32", 64, "r"), b.param("y", "bf16", 64, "w")
    n, tile = b.param("n", "i32", 0, "scalar"), b.shared("tile", "f32", 8)
    lane = b.builtin("lane")
    with b.loop(0, 4, 1, [b.f32(0)]) as loop:
        with b.branch(b.op("lt", loop.index, b.scalar(n))) as side:
            side.yield_(b.op("add", loop.carry[0], b.load(x, lane)))
            with side.otherwise():
                side.yield_(loop.carry[0])
        b.shared_store(tile, lane, side.results[0])
        b.barrier()
        loop.yield_(b.shared_load(tile, b.i32(0)))
    b.store(y, lane, b.op("round_to", loop.results[0], attr="bf16"))
    return b, lane


def kernel(b: Builder) -> Kernel:
    return b.finish("sound", 8)


def find(block: Block, op: str) -> Value:
    for value in block.values:
        if value.op == op:
            return value
        for inner in value.blocks if isinstance(value, Region) else ():
            try:
                return find(inner, op)
            except LookupError:
                pass
    raise LookupError(op)


def test_sound_kernel() -> None:
    verify(kernel(sound()[0]), NULL_CAPS)


def test_lines_are_those_of_the_text() -> None:
    built = kernel(sound()[0])
    text = to_text(built).splitlines()
    lines = statement_lines(built)
    assert len(set(lines.values())) == len(lines)
    for value, number in lines.items():
        assert f"{value.op} " in text[number] + " ", (value.op, text[number])


def append(b: Builder, op: str, dtype: str, args: tuple[Value, ...], attr: object = None) -> Value:
    """A value without the builder's checks, at the end of the outermost block."""
    value = Value(op, dtype, args, attr, b.root)
    b.root.values.append(value)
    return value


BROKEN: dict[str, tuple[Callable[[Builder, Value], object], str]] = {
    "unknown operation": (lambda b, lane: append(b, "frobnicate", "i32", (lane,)), "not an operation"),
    "too few arguments": (lambda b, lane: append(b, "add", "i32", (lane,)), "takes 2 arguments, has 1"),
    "type not accepted": (lambda b, lane: append(b, "sqrt", "i32", (lane,)), "does not take i32"),
    "mixed types": (lambda b, lane: append(b, "add", "i32", (lane, b.f32(1))), "of one type"),
    "wrong result": (lambda b, lane: append(b, "add", "f32", (lane, lane)), "gives i32, not f32"),
    "comparison gives bool": (lambda b, lane: append(b, "lt", "i32", (lane, lane)), "gives bool, not i32"),
    "select of two types": (
        lambda b, lane: append(b, "select", "i32", (b.const(True, "bool"), lane, b.f32(1))),
        "chooses between i32 and f32",
    ),
    "shift by float": (lambda b, lane: append(b, "shl", "i32", (lane, b.f32(1))), "shifts by an integer"),
    "float lane": (lambda b, lane: append(b, "shuffle", "i32", (lane, b.f32(1))), "its lane as i32"),
    "lane outside": (lambda b, lane: append(b, "broadcast", "i32", (lane,), 8), "not in a subgroup of 8"),
    "odd constant": (lambda b, lane: append(b, "const", "i32", (), ("i32", 1 << 31)), "not a constant of type i32"),
    "bool constant": (lambda b, lane: append(b, "const", "bool", (), ("bool", 1)), "True or False"),
    "unknown builtin": (lambda b, lane: append(b, "builtin", "i32", (), "thread"), "not one of"),
    "bitcast to bool": (lambda b, lane: append(b, "bitcast", "bool", (lane,), "bool"), "not the same number of bits"),
    "bitcast to another width": (lambda b, lane: append(b, "bitcast", "i64", (lane,), "i64"), "not the same number of bits"),
    "round to i8": (lambda b, lane: append(b, "round_to", "f32", (b.f32(1),), "i8"), "rounds to f16 or bf16"),
    "load of a written buffer": (lambda b, lane: append(b, "load", "f32", (lane,), ("f32", 1)), "mode is 'w'"),
    "store to a read buffer": (lambda b, lane: append(b, "store", "void", (lane, b.f32(1)), 0), "mode is 'r'"),
    "load of a literal": (lambda b, lane: append(b, "load", "i32", (lane,), ("i32", 2)), "mode is 'scalar'"),
    "literal of a buffer": (lambda b, lane: append(b, "scalar", "i32", (), ("i32", 0)), "mode is 'r'"),
    "no such parameter": (lambda b, lane: append(b, "load", "f32", (lane,), ("f32", 9)), "does not exist"),
    "load of another type": (lambda b, lane: append(b, "load", "i32", (lane,), ("i32", 0)), "holds f32, not i32"),
    "store of another type": (lambda b, lane: append(b, "store", "void", (lane, lane), 1), "holds f32, not i32"),
    "no such shared array": (lambda b, lane: append(b, "shared_load", "f32", (lane,), ("f32", 1)), "does not exist"),
    "shared array of another type": (lambda b, lane: append(b, "shared_store", "void", (lane, lane), 0), "holds f32"),
    "use before definition": (lambda b, lane: b.root.values.reverse(), "is not defined here"),
    "use outside the loop": (
        lambda b, lane: append(b, "floor", "f32", (find(b.root, "for").blocks[0].args[1],)),  # type: ignore[attr-defined]
        "is not defined here",
    ),
    "twice": (lambda b, lane: b.root.values.append(b.root.values[0]), "twice"),
    "foreign block": (lambda b, lane: setattr(lane, "block", Block(None, 0)), "another block"),
    "backward step": (lambda b, lane: setattr(find(b.root, "for"), "attr", (4, 0, -1)), "not positive"),
    "wrapping loop": (lambda b, lane: setattr(find(b.root, "for"), "attr", (0, 2**31 - 1, 2)), "range of i32"),
    "loop without bounds": (lambda b, lane: setattr(find(b.root, "for"), "attr", (0, 4)), "three integers"),
    "loop yields another type": (
        lambda b, lane: setattr(find(b.root, "for").blocks[0], "yields", (lane,)),  # type: ignore[attr-defined]
        r"yields \['i32'\]",
    ),
    "loop yields too little": (
        lambda b, lane: setattr(find(b.root, "for").blocks[0], "yields", ()),  # type: ignore[attr-defined]
        r"yields \[\]",
    ),
    "branch on a number": (lambda b, lane: setattr(find(b.root, "if"), "args", (lane,)), "takes one bool"),
    "negative size": (lambda b, lane: b.params.append(replace(b.params[0], size=-1)), "cannot be"),
    "unknown mode": (lambda b, lane: b.params.append(replace(b.params[0], mode="x")), "mode 'x'"),
    "huge buffer": (lambda b, lane: b.params.append(replace(b.params[0], size=1 << 32)), "split the buffer"),
    "float literal": (lambda b, lane: b.params.append(replace(b.params[2], dtype="f32")), "literal is i32 or u32"),
    "too much shared memory": (lambda b, lane: b.shared("big", "f32", 9000), "smaller tiles"),
    "narrow shared array": (lambda b, lane: b.shared("narrow", "bf16", 8), "cannot be bf16"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernels_are_refused(name: str) -> None:
    b, lane = sound()
    spoil, message = BROKEN[name]
    spoil(b, lane)
    with pytest.raises(VerifyError, match=message):
        verify(kernel(b), NULL_CAPS)


def test_barrier_under_a_branch() -> None:
    b = Builder()
    with b.branch(b.op("lt", b.builtin("lane"), b.i32(3))), b.loop(0, 2):
        b.barrier()
    with pytest.raises(VerifyError, match=r"'sound', line 6: a barrier under a branch.*\n  barrier"):
        verify(kernel(b), NULL_CAPS)


@pytest.mark.parametrize("size", [0, 4, 12, 2048])
def test_local_size(size: int) -> None:
    with pytest.raises(VerifyError, match="multiple of the subgroup size 8, at most 1024"):
        verify(sound()[0].finish("size", size), NULL_CAPS)


def test_subgroup_operations_need_the_device() -> None:
    b, lane = sound()
    b.op("subgroup_add", lane)
    verify(kernel(b), NULL_CAPS)
    with pytest.raises(VerifyError, match="no subgroup operations"):
        verify(kernel(b), replace(NULL_CAPS, subgroup_ops=False))


def test_checked_emission_verifies_first() -> None:
    b, lane = sound()
    append(b, "sqrt", "i32", (lane,))
    with pytest.raises(VerifyError):
        emit(kernel(b), NULL_CAPS, checked=True)
