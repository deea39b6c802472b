"""float64, int64 and uint64 on the device, against JAX on the CPU under x64: every kind of kernel, and indices of 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import k3jit

WIDE = ("float64", "int64", "uint64")
OTHERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", *WIDE)
EXACT = 0.0
SUMS = 1e-12  # of the largest result: sums in another order


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def same(function: Callable[..., Any], *args: Any, tolerance: float = EXACT, signs: bool = False) -> None:
    """Integers, and floats at tolerance 0, are equal; NaN equals NaN, and -0 equals 0 unless `signs`."""
    found, expected = (jax.tree.leaves(jit(function)(*args)) for jit in (k3jit.jit, jax.jit))
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"result {number}"
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.weak_type == b.weak_type, f"result {number}"
        mine, theirs = np.asarray(a), np.asarray(b)
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs, err_msg=f"result {number}")
            continue
        mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        if tolerance:
            largest = float(np.max(np.abs(theirs[np.isfinite(theirs)]), initial=0.0))
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * largest, err_msg=f"result {number}")
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=f"result {number}")
            if signs:
                np.testing.assert_array_equal(np.signbit(mine) & (mine == 0), np.signbit(theirs) & (theirs == 0))


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random values of the whole range, with special ones at the front of the last row."""
    rng = np.random.default_rng(seed)
    if dtype == "float64":
        out = rng.standard_normal(shape) * 2.0 ** rng.integers(-40, 40, shape)
        special: list[Any] = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e300, 0.1]
    else:
        limits = np.iinfo(dtype)
        out = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        special = [0, 1, 2, 5, limits.max, limits.max - 1, limits.min, limits.min + 1]
    count = min(shape[-1], len(special))
    out[-1, :count] = special[:count]
    return out


def calm(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", WIDE)
def test_elementwise(dtype: str) -> None:
    def function(x: jax.Array, y: jax.Array) -> Any:
        arithmetic = x + y, x - y, x * y, -x, lax.max(x, y), lax.min(x, y), lax.rem(x, y), lax.div(x, y), lax.sign(x)
        order = x == y, x != y, x < y, x <= y, x > y, x >= y
        return *arithmetic, *order, jnp.where(x > y, x, y), lax.clamp(x, y, lax.max(x, y)), x**3, x * 0

    same(function, values(dtype, (11, 13)), values(dtype, (11, 13), 1), signs=True)
    same(function, values(dtype, (11, 13)), values(dtype, (11, 13))[::-1], signs=True)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_bits(dtype: str) -> None:
    def function(x: jax.Array, amount: jax.Array) -> Any:
        shifts = [f(x, amount) for f in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)]
        return *shifts, ~x, x & amount, x | amount, x ^ amount, lax.population_count(x), lax.clz(x), lax.clz(x >> 40)

    amounts = np.arange(11 * 13).reshape(11, 13).astype(dtype) - np.array(3, dtype)
    same(function, values(dtype, (11, 13)), amounts)


def test_floats_in_parts() -> None:
    def function(x: jax.Array) -> Any:
        rounded = jnp.floor(x), jnp.ceil(x), jnp.trunc(x), lax.round(x), jnp.rint(x), lax.reduce_precision(x, 8, 23)
        return *rounded, lax.nextafter(x, x + 1), lax.is_finite(x), jnp.copysign(x, -x), abs(x), jnp.frexp(x), jnp.sqrt(abs(x))

    same(function, values("float64", (11, 13)), signs=True)


def test_bitcasts() -> None:
    def function(x: jax.Array) -> Any:
        names = ("int64", "uint64", "int32", "uint16", "uint8", "float32")
        parts = [lax.bitcast_convert_type(x, jnp.dtype(name)) for name in names]
        return *parts, *(lax.bitcast_convert_type(p, jnp.float64) for p in parts)

    with np.errstate(invalid="ignore"):  # some parts are NaN, which NumPy converts for the comparison
        same(function, calm((5, 7)))


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("other", OTHERS)
def test_conversions(wide: str, other: str) -> None:
    x = values(wide, (11, 13))
    same(lambda x: x.astype(other), x)
    with np.errstate(all="ignore"):
        same(lambda x: x.astype(wide), x.astype(jnp.dtype(other)))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("shape", [(1, 17), (8, 40), (2, 3000), (700, 9)])
def test_reductions(dtype: str, shape: tuple[int, int]) -> None:
    x = calm(shape) if dtype == "float64" else values(dtype, shape)
    same(lambda x: [x.sum(), x.sum(0), x.sum(1), x.prod(0), (x * x).sum(-1)], x, tolerance=SUMS)
    x = values(dtype, shape)
    same(lambda x: [x.argmax(1), x.argmin(0), jnp.any(x > 3, 1)], x)
    extremes = k3jit.jit(lambda x: [x.max(), x.min(0), x.max(1)])(x)  # XLA loses NaN in some of them
    for found, expected in zip(extremes, (x.max(), x.min(0), x.max(1)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected)
    if dtype != "float64":
        same(lambda x: [lax.reduce_and(x, (1,)), lax.reduce_or(x, (0,)), lax.reduce_xor(x, (0, 1))], x)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("shape", [(3, 21), (2, 1500), (300, 7)])
def test_cumulative(dtype: str, shape: tuple[int, int]) -> None:
    x = calm(shape) if dtype == "float64" else values(dtype, shape)
    same(lambda x: [lax.cumsum(x, 0), lax.cumsum(x, 1, reverse=True), lax.cumprod(x, 1)], x, tolerance=SUMS)
    same(lambda x: [lax.cummax(x, 1), lax.cummin(x, 0)], values(dtype, shape))
    if dtype == "float64":
        same(lambda x: lax.cumlogsumexp(x, 1), x, tolerance=SUMS)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("sizes", [(5, 3, 4), (37, 65, 50), (1, 900, 33), (64, 128, 96), (4, 2000, 1)])
def test_products(dtype: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = (calm(s) if dtype == "float64" else values(dtype, s) for s in ((m, k), (k, n)))
    same(lambda a, b: [a @ b, jnp.einsum("mk,kn->nm", a, b), a.T @ a], a, b, tolerance=SUMS)


def test_products_of_other_types() -> None:
    a, b = calm((9, 40)).astype(np.float32), calm((40, 7)).astype(np.float32)

    def function(a: Any, b: Any) -> Any:
        return jnp.matmul(a, b, preferred_element_type=jnp.float64)

    same(function, a, b, tolerance=SUMS)
    same(function, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), tolerance=SUMS)
    integers = values("int64", (9, 40)).astype(np.int8), values("int64", (40, 7)).astype(np.int8)
    same(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int64), *integers)
    image, kernel = calm((2, 3, 9, 8)), calm((4, 3, 3, 3))
    same(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"), image, kernel, tolerance=SUMS)
    same(jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1)), calm((9, 40)), calm((40, 7)), tolerance=SUMS)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("shape", [(3, 40), (2, 700), (2, 5)])
def test_order(dtype: str, shape: tuple[int, int]) -> None:
    x = np.sort(values(dtype, (shape[0], shape[1] + 8)), 1)[:, ::-1][:, : shape[1]]
    x = np.concatenate([x, x[:, :3]], 1)
    same(lambda x: [jnp.sort(x, 0), jnp.sort(x, 1), jnp.argsort(x, 1), lax.top_k(x, 3), jnp.sort(x.reshape(-1))], x)
    same(lambda x, y: lax.sort((x, y, y + 1), num_keys=2), (x.astype(np.float64) > 0).astype(dtype), x)


@pytest.mark.parametrize("dtype", WIDE)
def test_gather_and_scatter(dtype: str) -> None:
    x = values(dtype, (30, 17))
    indices = np.array([3, 0, -1, 29, 30, 2**31, 2**40, -(2**40), 2**63 - 1, -(2**63), 5, 5])
    for mode in ("fill", "clip", "promise_in_bounds"):
        inside = indices if mode != "promise_in_bounds" else indices[:4]
        same(lambda x, i, mode=mode: [x.at[i].get(mode=mode), x.at[:, i].get(mode=mode)], x, inside)
    for mode in ("drop", "clip"):
        same(lambda x, i, mode=mode: [x.at[i].set(7, mode=mode), x.at[:, i].max(x[:, :12], mode=mode)], x, indices)
        if dtype != "float64":
            same(lambda x, i, mode=mode: [x.at[i].add(3, mode=mode), x.at[i, 2].mul(5, mode=mode)], x, indices)
    unsigned = np.array([3, 0, 29, 30, 2**31, 2**32 + 1, 2**64 - 1], np.uint64)
    same(lambda x, i: [x.at[i].get(mode="fill"), x.at[i].get(mode="clip"), x.at[i].set(1, mode="drop")], x, unsigned)


def test_sums_of_scattered_doubles() -> None:
    segments = np.random.default_rng(2).integers(0, 12, 500)
    same(lambda x, s: jax.ops.segment_sum(x, s, 12), calm((500, 3)), segments, tolerance=SUMS)
    same(jax.grad(lambda table, i: (table[i] ** 2).sum()), calm((17, 5)), segments[:40], tolerance=SUMS)


@pytest.mark.parametrize("start", [3, -2, 2**40, -(2**40), 2**63 - 1, -(2**63)])
def test_slices_at_computed_places(start: int) -> None:
    def function(x: jax.Array, i: jax.Array) -> Any:
        return lax.dynamic_slice(x, (i, i + 1), (3, 4)), lax.dynamic_update_slice(x, x[:2, :3], (i, i)), x[i % 9]

    same(function, calm((10, 9)), np.int64(start))
    same(function, calm((10, 9)), np.int64(start).astype(np.uint64))


@pytest.mark.parametrize("partitionable", [True, False])
def test_random_numbers(partitionable: bool) -> None:
    def function(seed: jax.Array) -> Any:
        key = jax.random.key(seed)
        bits = [jax.random.bits(key, (7, 3), f"uint{width}") for width in (8, 16, 32, 64)]
        drawn = jax.random.uniform(key, (9,)), jax.random.randint(key, (50,), -(2**50), 2**50), jax.random.permutation(key, 13)
        return *bits, *drawn, jax.random.split(key, 3), jax.random.fold_in(key, 2**31 + 5)

    with jax.threefry_partitionable(partitionable):
        for seed in (0, -1, 2**33 + 7):
            same(function, np.int64(seed))


def test_normal_numbers() -> None:
    same(lambda seed: jax.random.normal(jax.random.key(seed), (500,)), np.int64(5), tolerance=1e-14)


def test_loops() -> None:
    def function(x: jax.Array, n: jax.Array) -> Any:
        counted = lax.fori_loop(0, n, lambda i, c: c + x[i] * i, x[0])
        fixed = lax.fori_loop(0, 50, lambda i, c: c * 0.99 + i, x[1])
        scanned = lax.scan(lambda c, row: (c + row, (c[0], row.astype(jnp.int64))), x[0], x)
        waited = lax.while_loop(lambda s: s[1] < 2**40, lambda s: (s[0] * 0.5, s[1] * 3), (x, jnp.int64(1)))
        return counted, fixed, scanned, waited, lax.cond(n > 4, jnp.negative, jnp.abs, x), lax.switch(n, [abs, jnp.square], x)

    same(function, 10 * calm((12, 7)), np.int64(9), tolerance=SUMS)


def test_ranges_and_scalars() -> None:
    same(lambda: [lax.iota(d, 99) for d in WIDE] + [jnp.arange(0, 2, 0.1), jnp.eye(5), jnp.full(3, 2**40)])
    compiled = k3jit.jit(lambda a, b: (a + b, a * 2.5))
    for a, b in ((1, 2), (1.5, 2), (2**40, 1), (True, 3)):
        results, expected = compiled(a, b), jax.jit(lambda a, b: (a + b, a * 2.5))(a, b)
        assert [(r.dtype, r.weak_type, r.item()) for r in results] == [(e.dtype, e.weak_type, e.item()) for e in expected]


def test_arrays_and_donation() -> None:
    host = values("int64", (9, 10))
    array = k3jit.device_put(host)
    assert array.dtype == np.int64 and array.nbytes == 8 * 90
    np.testing.assert_array_equal(np.asarray(array), host)
    doubled = k3jit.jit(lambda x: x + x, donate_argnums=0)(array)
    np.testing.assert_array_equal(np.asarray(doubled), host + host)
    with pytest.raises(k3jit.errors.DonatedBuffer):
        np.asarray(array)


def test_narrow_values_stay_narrow_under_x64() -> None:
    """Types of 32 bits and less are computed as without x64, and mix with Python numbers without widening."""

    def function(x: jax.Array, half: jax.Array) -> Any:
        return x * 2.5 + 1, half * 3, jnp.where(x > 0, x, 0.0), x.astype(jnp.float64) * 0.1, half.astype(jnp.float64) + x.sum()

    same(function, calm((9, 5)).astype(np.float32), calm((4, 4)).astype(jnp.bfloat16), tolerance=1e-6)


def test_wide_arrays_outside_x64() -> None:
    """Traced without x64 an array of 64 bits would be taken for one of 32."""
    array = k3jit.device_put(calm((4,)))
    with jax.enable_x64(False):
        with pytest.raises(k3jit.errors.UnsupportedDtype, match=r"float64\[4\], made under jax_enable_x64, which is off now"):
            k3jit.jit(lambda x: x + 1)(array)
        np.testing.assert_array_equal(np.asarray(array[1:]), np.asarray(array)[1:])
