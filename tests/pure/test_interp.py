"""The interpreter of the tile IR, and the folding the builder does on the way."""

import ml_dtypes
import numpy as np
import pytest
from k3jit.lowering.interp import RaceError, run_dispatch
from k3jit.lowering.tile import Builder, Kernel, Value, to_text


def lane_index(b: Builder, local_size: int, subgroup: int = 8) -> Value:
    lane = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(subgroup)), b.builtin("lane"))
    return b.op("add", b.op("mul", b.builtin("group_x"), b.i32(local_size)), lane)


def scale_kernel(n: int, dtype: str = "f32") -> Kernel:
    b = Builder()
    x, y = b.param("x", dtype, n, "r"), b.param("y", dtype, n, "w")
    index = lane_index(b, 32)
    with b.branch(b.op("lt", index, b.i32(n))) as br:
        b.store(y, index, b.op("mul", b.load(x, index), b.f32(2.0)))
        br.yield_()
    return b.finish("scale", 32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_masked_elementwise(dtype: type) -> None:
    x = np.arange(77).astype(dtype)
    y = np.zeros(77, dtype)
    name = {np.float32: "f32", np.float16: "f16", ml_dtypes.bfloat16: "bf16"}[dtype]
    run_dispatch(scale_kernel(77, name), (3, 1, 1), [[x, y]])
    np.testing.assert_array_equal(y, (x.astype(np.float32) * 2).astype(dtype))


def test_many_batches() -> None:
    x = np.arange(100_000, dtype=np.float32)
    y = np.zeros_like(x)
    run_dispatch(scale_kernel(x.size), ((x.size + 31) // 32, 1, 1), [[x, y]])
    np.testing.assert_array_equal(y, x * 2)


def test_outside_names_kernel_parameter_and_index() -> None:
    b = Builder()
    x, y = b.param("x", "f32", 40, "r"), b.param("y", "f32", 64, "w")
    index = lane_index(b, 32)
    b.store(y, index, b.load(x, index))
    with pytest.raises(IndexError, match=r"'copy'.*'x'.*index 40, size 40"):
        run_dispatch(b.finish("copy", 32), (2, 1, 1), [[np.zeros(40, np.float32), np.zeros(64, np.float32)]])


def test_loop_and_uniform_branch() -> None:
    b = Builder()
    y = b.param("y", "i32", 16, "w")
    index = lane_index(b, 8)
    with b.loop(0, 10, 3, [b.i32(0)]) as loop:
        with b.branch(b.op("lt", loop.index, b.builtin("group_x"))) as br:
            br.yield_(b.op("sub", loop.carry[0], b.i32(100)))
            with br.otherwise():
                br.yield_(b.op("add", loop.carry[0], b.op("mul", loop.index, index)))
        loop.yield_(br.results[0])
    b.store(y, index, loop.results[0])
    got = np.zeros(16, np.int32)
    run_dispatch(b.finish("loop", 8), (2, 1, 1), [[got]])
    lanes = np.arange(16)
    np.testing.assert_array_equal(got, np.where(lanes < 8, 18 * lanes, 18 * lanes - 100))


def shared_kernel(barrier: bool) -> Kernel:
    b = Builder()
    y = b.param("y", "i32", 32, "w")
    s = b.shared("s", "i32", 16)
    lane = b.op("add", b.op("mul", b.builtin("subgroup"), b.i32(8)), b.builtin("lane"))
    b.shared_store(s, lane, lane_index(b, 16))
    if barrier:
        b.barrier()
    b.store(y, lane_index(b, 16), b.shared_load(s, b.op("sub", b.i32(15), lane)))
    return b.finish("mirror", 16)


def test_shared_memory_and_races() -> None:
    got = np.zeros(32, np.int32)
    run_dispatch(shared_kernel(True), (2, 1, 1), [[got]], check_races=True)
    np.testing.assert_array_equal(got, np.r_[15:-1:-1, 31:15:-1])
    with pytest.raises(RaceError, match="reads what another lane wrote"):
        run_dispatch(shared_kernel(False), (2, 1, 1), [[got]], check_races=True)


def test_shared_memory_starts_as_garbage() -> None:
    b = Builder()
    y, s = b.param("y", "f32", 8, "w"), b.shared("s", "f32", 8)
    b.store(y, b.builtin("lane"), b.shared_load(s, b.builtin("lane")))
    got = np.zeros(8, np.float32)
    run_dispatch(b.finish("raw", 8), (1, 1, 1), [[got]])
    assert np.isnan(got).all()


def test_divergent_barrier() -> None:
    b = Builder()
    with b.branch(b.op("lt", b.builtin("lane"), b.i32(3))) as br:
        b.barrier()
        br.yield_()
    with pytest.raises(ValueError, match="divergent"):
        run_dispatch(b.finish("bad", 8), (1, 1, 1), [[]])


@pytest.mark.parametrize("subgroup", [4, 8, 32])
def test_subgroup_operations(subgroup: int) -> None:
    b = Builder()
    x = b.param("x", "i32", 32, "r")
    outs = [b.param(name, "i32", 32, "w") for name in ("add", "max", "first", "swap", "masked")]
    index = lane_index(b, 32, subgroup)
    value = b.load(x, index)
    swapped = b.op("shuffle", value, b.op("xor", b.builtin("lane"), b.i32(1)))
    for out, result in zip(
        outs,
        (b.op("subgroup_add", value), b.op("subgroup_max", value), b.op("broadcast", value, attr=1), swapped),
        strict=False,
    ):
        b.store(out, index, result)
    with b.branch(b.op("lt", b.builtin("lane"), b.i32(2))) as br:
        b.store(outs[4], index, b.op("subgroup_add", value))
        br.yield_()
    data = np.random.default_rng(0).integers(-99, 99, 32).astype(np.int32)
    got = [np.zeros(32, np.int32) for _ in outs]
    run_dispatch(b.finish("sub", 32), (1, 1, 1), [[data, *got]], subgroup_size=subgroup)
    rows = data.reshape(-1, subgroup)
    np.testing.assert_array_equal(got[0], rows.sum(1).repeat(subgroup))
    np.testing.assert_array_equal(got[1], rows.max(1).repeat(subgroup))
    np.testing.assert_array_equal(got[2], rows[:, 1].repeat(subgroup))
    np.testing.assert_array_equal(got[3], data.reshape(-1, 2)[:, ::-1].ravel())
    np.testing.assert_array_equal(got[4].reshape(-1, subgroup)[:, :2], rows[:, :2].sum(1)[:, None].repeat(2, 1))


def test_packed_rows_and_literals() -> None:
    b = Builder()
    x, add = b.param("x", "f32", 8, "rw"), b.param("add", "i32", 0, "scalar")
    index = b.builtin("lane")
    b.store(x, index, b.op("add", b.load(x, index), b.op("convert", b.scalar(add), attr="f32")))
    kernel = b.finish("packed", 8, packed=True)
    arrays = [np.zeros(8, np.float32) for _ in range(3)]
    rows = [[array, literal] for array, literal in zip(arrays, (1, -2, 3), strict=True)]
    run_dispatch(kernel, (3, 1, 1), rows, np.array([2, 0, 1], np.uint32))
    assert [a[0] for a in arrays] == [1.0, -2.0, 3.0]
    with pytest.raises(ValueError, match="segments"):
        run_dispatch(kernel, (3, 1, 1), rows)


def one(build, *columns: np.ndarray, out: str) -> np.ndarray:
    """Apply `build(b, *values)` to columns of i32 / u32 / f32 / bool."""
    b = Builder()
    n = columns[0].size
    names = {np.dtype(np.int32): "i32", np.dtype(np.uint32): "u32", np.dtype(np.float32): "f32", np.dtype(np.bool_): "bool"}
    params = [b.param(f"x{i}", names[c.dtype], n, "r") for i, c in enumerate(columns)]
    y = b.param("y", out, n, "w")
    index = lane_index(b, 8)
    b.store(y, index, build(b, *[b.load(p, index) for p in params]))
    got = np.zeros(n, {v: k for k, v in names.items()}[out])
    assert n % 8 == 0
    run_dispatch(b.finish("one", 8), (n // 8, 1, 1), [[*columns, got]])
    return got


EDGE = np.array(
    [0, 1, 2, 3, 5, 7, 31, 32, 100, 12345, 65536, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32
)
COMPARE = ("lt", "le", "eq", "ne")
INTEGER_OPS = ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr", *COMPARE)


def defined(op: str, x: int, y: int) -> bool:
    """Whether an operation on integers has a defined result."""
    if op in ("div", "rem"):
        return y != 0 and (x, y) != (-(2**31), -1)
    return op not in ("shl", "shr") or 0 <= y < 32


@pytest.mark.parametrize("dtype", ["i32", "u32"])
@pytest.mark.parametrize("op", INTEGER_OPS)
def test_integers_and_constant_folding_agree(op: str, dtype: str) -> None:
    """Folding two constants, folding against one, and running give the same bits wherever the operation is defined."""
    edges = EDGE.view(np.int32 if dtype == "i32" else np.uint32)
    x, y = (g.ravel() for g in np.meshgrid(edges, edges))
    out = "bool" if op in COMPARE else dtype
    plain = dict(zip(zip(x.tolist(), y.tolist(), strict=True), one(lambda b, u, v: b.op(op, u, v), x, y, out=out), strict=True))
    for number in edges.tolist():
        right = one(lambda b, u, n=number: b.op(op, u, b.const(n, dtype)), edges, out=out)
        left = one(lambda b, v, n=number: b.op(op, b.const(n, dtype), v), edges, out=out)
        for other, with_right, with_left in zip(edges.tolist(), right, left, strict=True):
            if defined(op, other, number):
                assert with_right == plain[other, number], (op, other, number)
                b = Builder()
                folded = b.op(op, b.const(other, dtype), b.const(number, dtype))
                assert folded.op == "const" and folded.attr[1] == with_right, (op, other, number)
            if defined(op, number, other):
                assert with_left == plain[number, other], (op, number, other)


def test_folding_keeps_signed_zero_and_nan() -> None:
    b = Builder()
    x = b.load(b.param("x", "f32", 1, "r"), b.i32(0))
    zero, one_ = b.f32(0.0), b.f32(1.0)
    assert b.op("add", x, zero).op == "add"
    assert b.op("mul", x, zero).op == "mul"
    assert b.op("sub", x, x).op == "sub"
    assert b.op("eq", x, x).op == "eq"
    assert b.op("add", x, b.f32(-0.0)) is x
    assert b.op("mul", x, one_) is x
    assert b.op("neg", b.op("neg", x)) is x
    assert b.op("bitcast", b.f32(-0.0), attr="u32").attr[1] == 0x80000000
    assert np.isnan(b.op("max", b.f32(np.nan), one_).attr[1])


def test_integer_identities() -> None:
    b = Builder()
    x = b.load(b.param("x", "i32", 1, "r"), b.i32(0))
    assert b.op("add", x, b.i32(0)) is x
    assert b.op("sub", x, x).attr == ("i32", 0)
    assert b.op("mul", x, b.i32(8)).op == "shl"
    assert b.op("and", x, b.i32(-1)) is x
    assert b.op("not", b.op("not", x)) is x
    assert b.op("bitcast", b.op("bitcast", x, attr="f32"), attr="i32") is x
    assert b.op("select", b.const(True, "bool"), x, b.i32(1)) is x
    assert b.op("add", b.op("add", x, b.i32(3)), b.i32(4)) is b.op("add", b.i32(7), x)


def test_text_is_stable() -> None:
    assert to_text(scale_kernel(5), names=False) == to_text(scale_kernel(5), names=False)
    assert scale_kernel(5).key() != scale_kernel(6).key()
