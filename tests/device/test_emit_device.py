"""Kernels on the device against NumPy and against the interpreter of the tile IR, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from device_kernels import Array, apply, element_index, elementwise, run_on_device, subgroup_size
from hypothesis import given, settings
from hypothesis import strategies as st
from k3jit.lowering.dtypes import COMPUTE_TYPES, DTYPES, FLOATS, WIDE, width
from k3jit.lowering.interp import run_dispatch
from k3jit.lowering.tile import OPS, Builder, Kernel, Value

F32_SPECIALS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-3, 1e20, -1e20, 3.4e38, 2.0**-126, 65504, 65520, np.inf, -np.inf, np.nan],
    np.float32,
)
I32_SPECIALS = np.array([0, 1, -1, 2, 3, -7, 31, 255, -(2**31), 2**31 - 1, 0x5A5A5A5A, -65536], np.int32)
U32_SPECIALS = I32_SPECIALS.view(np.uint32)
F64_SPECIALS = np.concatenate([F32_SPECIALS.astype(np.float64), [0.1, 1e300, -1e-300, 2.0**-1022, 2.0**53 + 2, 2.0**63]])
I64_SPECIALS = np.concatenate([I32_SPECIALS.astype(np.int64), [-(2**63), 2**63 - 1, 2**32, -(2**33) - 5, 63, 40]])
SPECIALS = {
    "f32": F32_SPECIALS,
    "i32": I32_SPECIALS,
    "u32": U32_SPECIALS,
    "bool": np.array([False, True]),
    "f64": F64_SPECIALS,
    "i64": I64_SPECIALS,
    "u64": I64_SPECIALS.view(np.uint64),
}
# Rounding may differ from the interpreter's: units in the last place.
INEXACT = {"fma": 2**31, "sqrt": 4, "div": 4}
WIDTHS = [None, ()]


def assert_same(got: Array, expected: Array, ulp: int = 0, flushed: bool = False) -> None:
    """Equal bits, but any NaN equals any other. `flushed`: values below the normal range may be zeros."""
    assert got.dtype == expected.dtype
    if expected.dtype.kind not in "fV" and expected.dtype != ml_dtypes.bfloat16:
        np.testing.assert_array_equal(got, expected)
        return
    got_nan, expected_nan = np.isnan(got), np.isnan(expected)
    np.testing.assert_array_equal(got_nan, expected_nan)
    kind = f"i{got.itemsize}"
    distance = np.abs(got.view(kind).astype(np.int64) - expected.view(kind))
    bad = (distance > ulp) & ~expected_nan
    if flushed and got.dtype in (np.float32, np.float64):
        with np.errstate(invalid="ignore"):
            bad &= ~(np.abs(got.astype(np.float64) - expected) < np.finfo(got.dtype).tiny)
    assert not bad.any(), f"{got[bad][:5]} instead of {expected[bad][:5]} ({int(bad.sum())} of {bad.size})"


def pairs(values: Array, other: Array | None = None) -> tuple[Array, Array]:
    left, right = np.meshgrid(values, values if other is None else other)
    return left.ravel().copy(), right.ravel().copy()


def random_bits(rng: np.random.Generator, count: int, dtype: str = "float32") -> Array:
    return rng.integers(0, 1 << 32, count, dtype=np.uint32).view(dtype)


# -- element types ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("storage", WIDTHS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_narrow_float_widens_exactly(name: str, storage: tuple[int, ...] | None) -> None:
    every = np.arange(1 << 16).astype(np.uint16).view(DTYPES[name].numpy)
    wide, same = apply(lambda b, x: (x, x), [every], ["f32", name], storage=storage)
    assert_same(wide, every.astype(np.float32))
    np.testing.assert_array_equal(same.view(np.uint16), every.view(np.uint16))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_floats_narrow_to_the_nearest(name: str, rng: np.random.Generator) -> None:
    every = np.arange(1 << 16).astype(np.uint16).view(DTYPES[name].numpy).astype(np.float32).view(np.uint32)
    near = np.concatenate([every + d for d in (0, 1, 0x1000, 0xFFF, 0x1001, 0x8000, 0x7FFF, 0x8001)]).view(np.float32)
    powers = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
    x = np.concatenate([near, random_bits(rng, 50_000), F32_SPECIALS, powers])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(DTYPES[name].numpy)
    stored, rounded, both = apply(
        lambda b, v: (v, b.op("round_to", v, attr=name), b.op("round_to", v, attr=name)), [x], [name, "f32", name]
    )
    assert_same(stored, expected)
    assert_same(rounded, expected.astype(np.float32))
    assert_same(both, expected)


@pytest.mark.parametrize("storage", WIDTHS)
@pytest.mark.parametrize("name", ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "f32", *sorted(WIDE)])
def test_elements_keep_their_values(name: str, storage: tuple[int, ...] | None, rng: np.random.Generator) -> None:
    dtype = DTYPES[name]
    x = rng.integers(0, 2, 999).astype(bool) if name == "bool" else random_bits(rng, 250, dtype.numpy.name)
    wide, same = apply(lambda b, v: (v, v), [x], [dtype.compute, name], storage=storage)
    assert_same(wide, x.astype(DTYPES[dtype.compute].numpy))
    assert_same(same, x)


# -- operations ------------------------------------------------------------------------------------------------------
def test_float_remainder_is_exact(rng: np.random.Generator) -> None:
    x, y = pairs(F32_SPECIALS)
    tiny = np.array([1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0x1000003, 0x7F7FFFFF], np.uint32).view(np.float32)
    a, c = pairs(tiny)
    x = np.concatenate([x, a, random_bits(rng, 20_000), rng.standard_normal(2000).astype(np.float32) * 100])
    y = np.concatenate([y, c, random_bits(rng, 20_000), rng.standard_normal(2000).astype(np.float32)])
    (got,) = apply(lambda b, v, w: (b.op("rem", v, w),), [x, y], ["f32"])
    with np.errstate(all="ignore"):
        assert_same(got, np.fmod(x, y))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_roundings_are_exact_at_every_magnitude(dtype: str, rng: np.random.Generator) -> None:
    """A driver was seen to leave doubles above 2**24 as they were."""
    floats = DTYPES[dtype].numpy
    x = rng.standard_normal(20_000) * 2.0 ** rng.uniform(-4, 60, 20_000)
    x = np.concatenate([x, np.rint(x) + 0.5, np.arange(-10, 10) + 0.5]).astype(floats)
    operations = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint}
    results = apply(lambda b, v: [b.op(name, v) for name in operations], [x], [dtype] * len(operations))
    for got, rounded in zip(results, operations.values(), strict=True):
        assert_same(got, rounded(x))


def test_remainder_of_doubles_is_exact(rng: np.random.Generator) -> None:
    x, y = pairs(F64_SPECIALS)
    any_bits = rng.integers(0, 1 << 64, (2, 20_000), dtype=np.uint64).view(np.float64)
    any_bits = np.where(np.abs(any_bits) < 2.0**-1022, 1.0, any_bits)
    x = np.concatenate([x, any_bits[0], rng.standard_normal(2000) * 100])
    y = np.concatenate([y, any_bits[1], rng.standard_normal(2000)])
    (got,) = apply(lambda b, v, w: (b.op("rem", v, w),), [x, y], ["f64"])
    with np.errstate(all="ignore"):
        assert_same(got, np.fmod(x, y))


@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_and_constants_do_not_hide_it(op: str) -> None:
    x, y = pairs(np.array([0.0, 1.0, -2.0, np.inf, -np.inf, np.nan], np.float32))
    both, left, right = apply(
        lambda b, v, w: (b.op(op, v, w), b.op(op, b.f32(0.5), v), b.op(op, v, b.f32(0.5))), [x, y], ["f32"] * 3
    )
    function = np.minimum if op == "min" else np.maximum
    assert_same(both, function(x, y))
    assert_same(left, function(np.float32(0.5), x))
    assert_same(right, function(x, np.float32(0.5)))


def _arguments(op: str, dtype: str) -> list[Array]:
    """Special values of each argument, without those that the operation leaves undefined."""
    values = SPECIALS[dtype]
    if op == "select":
        x, y = pairs(values)
        return [np.arange(x.size) % 3 == 0, x, y]
    if OPS[op].arity == 1:
        return [values.copy()]
    if OPS[op].arity == 3:
        return [np.repeat(values, values.size), np.tile(values, values.size), np.resize(values, values.size**2)]
    x, y = pairs(values)
    keep = np.ones(x.size, bool)
    if op in ("div", "rem") and dtype not in FLOATS:
        keep = (y != 0) & ~((y == -1) & (x == np.iinfo(x.dtype).min)) if dtype in ("i32", "i64") else y != 0
    if op in ("shl", "shr"):
        keep = (y >= 0) & (y < width(dtype))
    if op in ("min", "max") and dtype in FLOATS:
        keep = (x != 0) | (y != 0)  # which zero is the smaller one is open
    return [x[keep], y[keep]]


PURE = [
    (op, dtype)
    for op, info in OPS.items()
    if info.pure and info.arity and op not in ("convert", "bitcast", "round_to")
    for dtype in (SPECIALS if op == "select" else info.types.split())
]


def compare(
    kernel: Kernel, groups: int, inputs: list[Array], results: list[str], ulp: int = 0, flushed: bool = False, **options: object
) -> None:
    """Run on the device and in the interpreter and compare all results."""
    got, expected = ([np.zeros(inputs[0].size, DTYPES[r].numpy) for r in results] for _ in range(2))
    run_on_device(kernel, (groups, 1, 1), [[*inputs, *got]], **options)  # type: ignore[arg-type]
    run_dispatch(kernel, (groups, 1, 1), [[*inputs, *expected]], subgroup_size=subgroup_size())
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b, ulp, flushed)


@pytest.mark.parametrize(("op", "dtype"), PURE)
def test_operation_on_special_values(op: str, dtype: str) -> None:
    inputs = _arguments(op, dtype)
    result = {"bool": "bool"}.get(OPS[op].result, dtype)
    kernel, groups = elementwise(lambda b, *args: (b.op(op, *args),), inputs, [result])
    if op == "fma":  # may be rounded twice: infinities and NaN are compared, and values that need no rounding
        inputs = [np.trunc(a) if np.isfinite(a).all() else a for a in inputs]
        finite = np.abs(np.nan_to_num(np.stack(inputs), nan=0, posinf=0, neginf=0)).max(0) < 1e4
        inputs = [a[finite].copy() for a in inputs]
        kernel, groups = elementwise(lambda b, *args: (b.op(op, *args),), inputs, [result])
    ulp = 1 if op == "fma" else INEXACT.get(op, 0) if dtype in FLOATS else 0
    compare(kernel, groups, inputs, [result], ulp, flushed=op in ("mul", "div", "fma"))


@pytest.mark.parametrize("source", SPECIALS)
def test_conversions(source: str) -> None:
    x, kind = SPECIALS[source], DTYPES[source].numpy
    if source in FLOATS:
        x = np.array([0, -0.0, 1, -1, 0.9, -0.9, 2.5, -2.5, 1e9, -1e9, 65535.5], kind)
    targets = [t for t in COMPUTE_TYPES if source not in FLOATS or t not in ("u32", "u64")]
    kernel, groups = elementwise(lambda b, v: [b.op("convert", v, attr=t) for t in targets], [x], targets)
    compare(kernel, groups, [x], targets)
    if source in FLOATS:
        for target, largest in (("u32", 4294967040), ("u64", 2.0**64 - 2.0**40), ("i64", 2.0**63 - 2.0**39)):
            positive = np.array([0, 1, 0.9, 2.5, 3e9, largest], kind)
            kernel, groups = elementwise(lambda b, v, t=target: [b.op("convert", v, attr=t)], [positive], [target])
            compare(kernel, groups, [positive], [target])
        x, targets = SPECIALS[source], sorted(FLOATS)
        kernel, groups = elementwise(lambda b, v: [b.op("convert", v, attr=t) for t in targets], [x], targets)
        compare(kernel, groups, [x], targets, flushed=True)
    if source != "bool":
        x = SPECIALS[source]
        targets = [t for t in COMPUTE_TYPES if t != "bool" and width(t) == width(source)]
        kernel, groups = elementwise(lambda b, v: [b.op("bitcast", v, attr=t) for t in targets], [x], targets)
        compare(kernel, groups, [x], targets)


def test_float_rules_are_kept_in_chains() -> None:
    """What fast-math compilers fold away: x - x, x * 0, x + 0, -(a - b), not (a < b), products that contract."""
    x, y = pairs(F32_SPECIALS)

    def make(b: Builder, v: Value, w: Value) -> list[Value]:
        zero = b.f32(0)
        return [
            b.op("sub", v, v),
            b.op("mul", v, zero),
            b.op("add", v, zero),
            b.op("neg", b.op("sub", v, w)),
            b.op("convert", b.op("not", b.op("lt", v, w)), attr="f32"),
            b.op("convert", b.op("ne", v, v), attr="f32"),
            b.op("sub", b.op("add", b.op("mul", v, w), v), b.op("mul", v, w)),
            b.op("select", b.op("eq", v, zero), zero, b.op("div", zero, v)),
        ]

    kernel, groups = elementwise(make, [x, y], ["f32"] * 8)
    compare(kernel, groups, [x, y], ["f32"] * 8)


@pytest.mark.parametrize("constant", [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "rem", "fma", "lt", "le", "eq", "ne"])
def test_constant_operands_change_nothing(op: str, constant: float) -> None:
    """Drivers have shortcuts for constants; here they must hold for NaN, infinities and signed zeros too."""

    def make(b: Builder, x: Value, y: Value) -> list[Value]:
        c = b.f32(constant)
        if op == "fma":
            return [b.op(op, c, x, y), b.op(op, x, c, y), b.op(op, x, y, c), b.op(op, x, c, c)]
        return [b.op(op, c, x), b.op(op, x, c), b.op(op, x, x), b.op(op, b.op("neg", x), x)]

    # Few digits, so that fma rounds nowhere.
    x, y = pairs(np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, 1024, np.inf, -np.inf, np.nan], np.float32))
    results = [{"bool": "bool"}.get(OPS[op].result, "f32")] * 4
    kernel, groups = elementwise(make, [x, y], results)
    compare(kernel, groups, [x, y], results, 1 if op == "div" else 0)


@pytest.mark.parametrize("dtype", SPECIALS)
def test_subgroup_operations(dtype: str, rng: np.random.Generator) -> None:
    size = subgroup_size()
    x = np.resize(np.array([1, 2, -3, 4, 7, 11, 0, 5]), 8 * size).astype(DTYPES[dtype].numpy)
    lane = rng.integers(0, size, x.size).astype(np.int32)

    def make(b: Builder, v: Value, at: Value) -> list[Value]:
        results = [b.op("broadcast", v, attr=size - 1), b.op("shuffle", v, at)]
        if dtype != "bool" and dtype not in WIDE:
            results += [b.op(f"subgroup_{name}", v) for name in ("add", "min", "max")]
        return results

    results = [dtype] * (2 if dtype == "bool" or dtype in WIDE else 5)
    kernel, groups = elementwise(make, [x, lane], results)
    compare(kernel, groups, [x, lane], results)


# -- structure -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("bounds", [(0, 4, 1), (0, 1, 1), (3, 3, 1), (5, 2, 1), (0, 7, 3), (-4, 4, 5), (2, 5, 9)])
def test_loops_branches_and_shared_memory(bounds: tuple[int, int, int], checked: bool) -> None:
    size = subgroup_size()
    local = 4 * size
    b = Builder()
    x, y, n = b.param("x", "f32", 2 * local, "r"), b.param("y", "f32", 2 * local, "rw"), b.param("n", "i32", 0, "scalar")
    tile = b.shared("tile", "f32", local)
    index = element_index(b, local, size)
    place = b.op("sub", index, b.op("mul", b.builtin("group_x"), b.i32(local)))
    b.store(y, index, b.f32(0))
    with b.loop(*bounds, [b.f32(1), b.f32(2)]) as outer:
        b.shared_store(tile, place, b.op("add", outer.carry[0], b.load(x, index)))
        b.barrier()
        mirrored = b.shared_load(tile, b.op("sub", b.i32(local - 1), place))
        with b.loop(0, 3, 1, [mirrored]) as inner:
            inner.yield_(b.op("add", inner.carry[0], b.load(x, inner.index)))
        with b.branch(b.op("lt", b.op("add", outer.index, place), b.scalar(n))) as side:
            side.yield_(inner.results[0], b.f32(2))
            with side.otherwise():
                b.store(y, index, b.op("add", b.load(y, index), b.f32(1)))
                side.yield_(b.f32(0.5), b.f32(3))
        b.barrier()
        outer.yield_(outer.carry[1], b.op("mul", side.results[0], side.results[1]))
    b.store(y, index, b.op("add", b.load(y, index), b.op("add", outer.results[0], outer.results[1])))
    kernel = b.finish("loops", local)
    data = np.arange(2 * local, dtype=np.float32)
    got, expected = np.zeros_like(data), np.zeros_like(data)
    run_on_device(kernel, (2, 1, 1), [[data, got, 9]], checked=checked)
    run_dispatch(kernel, (2, 1, 1), [[data, expected, 9]], subgroup_size=size)
    assert_same(got, expected)


def test_groups_of_three_axes() -> None:
    size = subgroup_size()
    b = Builder()
    y = b.param("y", "i32", 24 * size, "w")
    x_id, y_id, z_id = (b.builtin(f"group_{axis}") for axis in "xyz")
    flat = b.op("add", x_id, b.op("mul", b.i32(2), b.op("add", y_id, b.op("mul", b.i32(3), z_id))))
    value = b.op("add", b.op("mul", z_id, b.i32(100)), b.op("add", b.op("mul", y_id, b.i32(10)), x_id))
    b.store(y, b.op("add", b.op("mul", flat, b.i32(size)), b.builtin("lane")), value)
    kernel = b.finish("axes", size)
    got, expected = np.zeros(24 * size, np.int32), np.zeros(24 * size, np.int32)
    run_on_device(kernel, (2, 3, 4), [[got]])
    run_dispatch(kernel, (2, 3, 4), [[expected]], subgroup_size=size)
    assert_same(got, expected)


@pytest.mark.parametrize("checked", [False, True])
def test_packed_rows(checked: bool) -> None:
    size = subgroup_size()
    b = Builder()
    x, y = b.param("x", "bf16", size, "r"), b.param("y", "f32", size, "w")
    n = b.param("n", "u32", 0, "scalar")
    lane = b.builtin("lane")
    b.store(y, lane, b.op("add", b.load(x, lane), b.op("convert", b.scalar(n), attr="f32")))
    kernel = b.finish("packed", size, packed=True)
    bf16 = DTYPES["bf16"].numpy
    rows = [[np.full(size, i, bf16), np.zeros(size, np.float32), 10 * i] for i in range(3)]
    run_on_device(kernel, (3, 1, 1), rows, np.array([2, 0, 1]), checked=checked)
    for i, row in enumerate(rows):
        assert_same(row[1], np.full(size, 11 * i, np.float32))


def _outside(store: bool) -> Kernel:
    """Reads half as many elements as a subgroup has lanes, from -1 on, or writes so many."""
    b = Builder()
    size = subgroup_size()
    half = size // 2
    x, y = b.param("x", "f32", half, "r"), b.param("y", "f32", half if store else size, "w")
    lane = b.builtin("lane")
    value = b.load(x, b.i32(0) if store else b.op("sub", lane, b.i32(1)))
    b.store(y, lane, value)
    return b.finish("outside", size)


@pytest.mark.parametrize("store", [False, True])
def test_checked_kernels_report_an_index_outside(store: bool) -> None:
    kernel, size = _outside(store), subgroup_size()
    x, y = np.arange(1, size // 2 + 1, dtype=np.float32), np.full(size, -1, np.float32)
    with pytest.raises(RuntimeError, match="'y'" if store else "'x'") as caught:
        run_on_device(kernel, (1, 1, 1), [[x, y]], checked=True)
    index = int(str(caught.value).split("index ")[1].split()[0])
    assert index in range(size // 2, size) or (index == -1 and not store)
    with pytest.raises(IndexError):
        run_dispatch(kernel, (1, 1, 1), [[x, y]], subgroup_size=size)


# -- random kernels ----------------------------------------------------------------------------------------------------
_BINARY = {
    "f32": ["add", "sub", "mul", "min", "max", "rem"],
    "i32": ["add", "sub", "mul", "min", "max", "and", "or", "xor"],
    "u32": ["add", "sub", "mul", "min", "max", "and", "or", "xor"],
    "bool": ["and", "or", "xor", "eq"],
}
_BINARY |= {f"{kind}64": _BINARY[f"{kind}32"] for kind in "fiu"}
_UNARY = {
    "f32": ["neg", "abs", "floor", "ceil", "trunc", "round_even"],
    "i32": ["neg", "abs", "not", "popcount", "clz"],
    "u32": ["neg", "not", "popcount", "clz"],
    "bool": ["not"],
}
_UNARY |= {f"{kind}64": _UNARY[f"{kind}32"] for kind in "fiu"}


@st.composite
def random_kernel(draw: st.DrawFn) -> Kernel:
    """A kernel that mixes operations of all types in nested loops and branches, and stores one value of each type."""
    b = Builder()
    size = subgroup_size()
    sources = [b.param(f"in_{t}", t, 4 * size, "r") for t in SPECIALS]
    targets = [b.param(f"out_{t}", t, 4 * size, "w") for t in SPECIALS]
    index = element_index(b, 2 * size, size)
    values = {t: [b.load(source, index)] for t, source in zip(SPECIALS, sources, strict=True)}

    def pick(dtype: str) -> Value:
        return draw(st.sampled_from(values[dtype][-6:]))

    def step(depth: int) -> None:
        dtype = draw(st.sampled_from(sorted(SPECIALS)))
        form = draw(st.integers(0, 9))
        if form < 4:
            new = b.op(draw(st.sampled_from(_BINARY[dtype])), pick(dtype), pick(dtype))
        elif form == 4:
            new = b.op(draw(st.sampled_from(_UNARY[dtype])), pick(dtype))
        elif form == 5:
            new = b.op("select", pick("bool"), pick(dtype), pick(dtype))
        elif form == 6:
            source = draw(st.sampled_from(["i32", "u32", "i64", "u64"]))
            new = b.op("lt", pick("f32"), pick("f32")) if dtype == "bool" else b.op("convert", pick(source), attr=dtype)
        elif form == 7 and dtype == "f32":
            new = b.op("round_to", pick("f32"), attr=draw(st.sampled_from(["f16", "bf16"])))
        elif form == 8 and depth < 2:
            with b.loop(0, draw(st.integers(0, 3)), 1, [pick(dtype), pick("i32")]) as loop:
                saved = {t: list(v) for t, v in values.items()}
                values[dtype].append(loop.carry[0])
                values["i32"] += [loop.carry[1], loop.index]
                for _ in range(draw(st.integers(1, 3))):
                    step(depth + 1)
                loop.yield_(pick(dtype), pick("i32"))
                values.clear()
                values.update(saved)
            values["i32"].append(loop.results[1])
            new = loop.results[0]
        elif form == 9 and depth < 2:
            with b.branch(pick("bool")) as branch:
                saved = {t: list(v) for t, v in values.items()}
                for _ in range(draw(st.integers(0, 2))):
                    step(depth + 1)
                branch.yield_(pick(dtype))
                values.clear()
                values.update({t: list(v) for t, v in saved.items()})
                with branch.otherwise():
                    for _ in range(draw(st.integers(0, 2))):
                        step(depth + 1)
                    branch.yield_(pick(dtype))
                values.clear()
                values.update(saved)
            new = branch.results[0]
        else:
            return
        values[new.dtype].append(new)

    for _ in range(draw(st.integers(1, 25))):
        step(0)
    for dtype, target in zip(SPECIALS, targets, strict=True):
        b.store(target, index, values[dtype][-1])
    return b.finish("random", 2 * size)


@settings(max_examples=40)
@given(kernel=random_kernel(), seed=st.integers(0, 1000), checked=st.booleans())
def test_random_kernels(kernel: Kernel, seed: int, checked: bool) -> None:
    count, rng = 4 * subgroup_size(), np.random.default_rng(seed)
    # Small integers as floats: no subnormals, which a device may flush, and no product beyond f32.
    inputs = {
        "bool": rng.integers(0, 2, count).astype(bool),
        "i32": rng.integers(-(2**31), 2**31, count).astype(np.int32),
        "u32": rng.integers(0, 2**32, count).astype(np.uint32),
        "f32": rng.choice(np.array([0.5, 1, -1, 3, -2.5, 7, np.inf, -np.inf, np.nan, 1e6], np.float32), count),
        "f64": rng.choice(np.array([0.5, 1, -1, 3, -2.5, 7, np.inf, -np.inf, np.nan, 1e6]), count),
        "i64": rng.integers(-(2**63), 2**63, count, endpoint=False),
        "u64": rng.integers(0, 2**64, count, np.uint64, endpoint=False),
    }
    arguments = [inputs[t] for t in SPECIALS]
    got, expected = ([np.zeros(count, DTYPES[t].numpy) for t in SPECIALS] for _ in range(2))
    run_on_device(kernel, (2, 1, 1), [[*arguments, *got]], checked=checked)
    run_dispatch(kernel, (2, 1, 1), [[*arguments, *expected]], subgroup_size=subgroup_size())
    for a, e in zip(got, expected, strict=True):
        assert_same(a, e)
