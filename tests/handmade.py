"""Small programs built by hand, to test the runtime apart from the compiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from k3jit.lowering.emit import emit
from k3jit.lowering.program import Barrier, Buffer, Dispatch, HostLoop, Output, Program, Ref, Step
from k3jit.lowering.tile import Builder, Kernel
from k3jit.runtime.caps import DeviceCaps

SIZE = 1000
BYTES = 4 * SIZE


def lane_index(b: Builder, local_size: int, lanes: int) -> object:
    within = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(lanes)), b.builtin("lane"))
    return b.op("add", b.op("mul", b.builtin("group_x"), b.i32(local_size)), within)


def add_kernel(lanes: int, size: int = SIZE, name: str = "add", packed: bool = False) -> Kernel:
    """target[i] = source[i] + amount, i32."""
    b, local_size = Builder(), 8 * lanes
    source, target = b.param("source", "i32", size, "r"), b.param("target", "i32", size, "w")
    amount = b.param("amount", "i32", 0, "scalar")
    i = lane_index(b, local_size, lanes)
    with b.branch(b.op("lt", i, b.i32(size))) as inside:
        b.store(target, i, b.op("add", b.load(source, i), b.scalar(amount)))
        with inside.otherwise():
            pass
    return b.finish(name, local_size, packed=packed)


def below_kernel(lanes: int) -> Kernel:
    """flag[0] = value[0] < limit."""
    b = Builder()
    value, flag, limit = b.param("value", "i32", 1, "r"), b.param("flag", "bool", 1, "w"), b.param("limit", "i32", 0, "scalar")
    with b.branch(b.op("eq", lane_index(b, lanes, lanes), b.i32(0))) as first:
        b.store(flag, b.i32(0), b.op("lt", b.load(value, b.i32(0)), b.scalar(limit)))
        with first.otherwise():
            pass
    return b.finish("below", lanes)


def stray_kernel(lanes: int) -> Kernel:
    """target[i + far] = i: leaves its parameter."""
    b = Builder()
    target = b.param("target", "i32", lanes, "w")
    far = b.param("far", "i32", 0, "scalar")
    b.store(target, b.op("add", b.builtin("lane"), b.scalar(far)), b.builtin("lane"))
    return b.finish("stray", lanes, source=("user.py:7",))


def groups_for(lanes: int, size: int = SIZE) -> tuple[int, int, int]:
    return (-(-size // (8 * lanes)), 1, 1)


def program(
    caps: DeviceCaps,
    kernels: Sequence[Kernel],
    buffers: list[Buffer],
    steps: list[Step],
    inputs: int,
    outputs: Sequence[int],
    name: str = "handmade",
    checked: bool = False,
    **extra: object,
) -> Program:
    return Program(
        name=name,
        kernels=list(kernels),
        spirv=[emit(kernel, caps, checked=checked) for kernel in kernels],
        buffers=buffers,
        steps=steps,
        inputs=[((SIZE,), "i32")] * inputs,
        outputs=[Output(number, (SIZE,), "i32") for number in outputs],
        checked=checked,
        **extra,  # type: ignore[arg-type]
    )


def adding_program(caps: DeviceCaps, amount: int = 1, alias: int | None = None) -> Program:
    """result = argument + amount."""
    buffers = [Buffer("input", BYTES, index=0), Buffer("output", BYTES, index=0, alias=alias)]
    lanes = caps.subgroup_size
    step = Dispatch(0, groups_for(lanes), ((Ref(0, 0, BYTES), Ref(1, 0, BYTES), amount),))
    return program(caps, [add_kernel(lanes)], buffers, [step], 1, [1])


def chain_program(caps: DeviceCaps, length: int, size: int = SIZE, barriers: bool = True) -> Program:
    """result = argument + length, through two temporaries, one dispatch an addition."""
    nbytes, lanes = 4 * size, caps.subgroup_size
    room = -(-nbytes // 256) * 256
    buffers = [
        Buffer("input", nbytes, index=0),
        Buffer("output", nbytes, index=0),
        Buffer("temp", nbytes, offset=0),
        Buffer("temp", nbytes, offset=room),
    ]
    steps: list[Step] = []
    place = 0
    for number in range(length):
        target = 1 if number == length - 1 else 2 + number % 2
        row = (Ref(place, 0, nbytes), Ref(target, 0, nbytes), 1)
        steps.append(Dispatch(0, groups_for(lanes, size), (row,)))
        if barriers:
            steps.append(Barrier())
        place = target
    return program(caps, [add_kernel(lanes, size)], buffers, steps, 1, [1], arena_bytes=2 * room)


def counting_program(caps: DeviceCaps, limit: int) -> Program:
    """while value[0] < limit: value += 3, by a loop on the host."""
    lanes, whole = caps.subgroup_size, Ref(1, 0, BYTES)
    room = -(-BYTES // 256) * 256
    buffers = [
        Buffer("input", BYTES, index=0),
        Buffer("output", BYTES, index=0),
        Buffer("temp", BYTES, offset=0),
        Buffer("temp", 1 if 8 in caps.storage else 4, offset=room),
    ]
    flag = Ref(3, 0, buffers[3].nbytes)
    test = Dispatch(1, (1, 1, 1), ((Ref(1, 0, 4), flag, limit),))
    body = (
        Dispatch(0, groups_for(lanes), ((whole, Ref(2, 0, BYTES), 3),)),
        Barrier(),
        Dispatch(0, groups_for(lanes), ((Ref(2, 0, BYTES), whole, 0),)),
        Barrier(),
        test,
    )
    steps: list[Step] = [
        Dispatch(0, groups_for(lanes), ((Ref(0, 0, BYTES), whole, 0),)),
        Barrier(),
        test,
        HostLoop(flag, body),
    ]
    return program(caps, [add_kernel(lanes), below_kernel(lanes)], buffers, steps, 1, [1], arena_bytes=room + 256)


def packed_program(caps: DeviceCaps, rows: int) -> Program:
    """One dispatch adds row number + 1 to each of `rows` arguments."""
    lanes = caps.subgroup_size
    a_row = groups_for(lanes)[0]
    segments = np.repeat(np.arange(rows, dtype=np.uint32), a_row)
    buffers = [Buffer("input", BYTES, index=i) for i in range(rows)]
    buffers += [Buffer("output", BYTES, index=i) for i in range(rows)]
    buffers.append(Buffer("const", segments.nbytes, data=segments.tobytes()))
    table = tuple((Ref(i, 0, BYTES), Ref(rows + i, 0, BYTES), i + 1) for i in range(rows))
    step = Dispatch(0, (len(segments), 1, 1), table, segments=Ref(2 * rows, 0, segments.nbytes))
    return program(caps, [packed_add_kernel(lanes, rows)], buffers, [step], rows, range(rows, 2 * rows))


def packed_add_kernel(lanes: int, rows: int) -> Kernel:
    """As add_kernel on the row of the workgroup; workgroups of row r start at r times the groups of one row."""
    b, local_size = Builder(), 8 * lanes
    source, target = b.param("source", "i32", SIZE, "r"), b.param("target", "i32", SIZE, "w")
    amount = b.param("amount", "i32", 0, "scalar")
    a_row = groups_for(lanes)[0]
    first = b.op("mul", b.op("sub", b.scalar(amount), b.i32(1)), b.i32(a_row * local_size))
    i = b.op("sub", lane_index(b, local_size, lanes), first)
    with b.branch(b.op("lt", i, b.i32(SIZE))) as inside:
        b.store(target, i, b.op("add", b.load(source, i), b.scalar(amount)))
        with inside.otherwise():
            pass
    return b.finish("packed_add", local_size, packed=True)
