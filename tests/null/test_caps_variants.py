"""Kernels for devices unlike the one at hand: other subgroups, narrow storage missing, small limits. Interpreted, against JAX.

Every kernel is also verified against the capabilities and written as SPIR-V that the validator accepts, and the
interpreter reports races in workgroup memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from k3jit.lowering import hazards
from k3jit.lowering.emit import emit, validate
from k3jit.lowering.verify import verify
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from k3jit.runtime.null import NullDevice

import k3jit

VARIANTS: dict[str, DeviceCaps] = {
    "subgroup 4": replace(NULL_CAPS, subgroup_size=4),
    "subgroup 16": replace(NULL_CAPS, subgroup_size=16, kind="integrated"),
    "subgroup 32": replace(NULL_CAPS, subgroup_size=32, kind="discrete"),
    "subgroup 64": replace(NULL_CAPS, subgroup_size=64, kind="discrete"),
    "no subgroup operations": replace(NULL_CAPS, subgroup_ops=False),
    "words only": replace(NULL_CAPS, storage=()),
    "16-bit storage only": replace(NULL_CAPS, storage=(16,)),
    "least limits": replace(
        NULL_CAPS,
        subgroup_size=32,
        subgroup_ops=False,
        max_local_size=128,
        shared_bytes=16384,
        storage=(),
        int64=False,
        float64=False,
        float16=False,
        int8=False,
        int16=False,
        float_controls=False,
    ),
    "small grids": replace(NULL_CAPS, max_groups=(48, 48, 48)),
    "small shared memory": replace(NULL_CAPS, shared_bytes=2048),
}


@dataclass(frozen=True)
class Case:
    fun: Callable[..., Any]
    shapes: tuple[Any, ...]  # a shape (of floats), or (dtype, shape)
    tolerance: float = 2e-5

    def args(self) -> list[np.ndarray]:
        rng = np.random.default_rng(11)
        return [_random(rng, *(entry if isinstance(entry[0], str) else ("float32", entry))) for entry in self.shapes]


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("float32", "float16", "bfloat16"):
        return rng.standard_normal(shape).astype(jnp.dtype(dtype))
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -1000), min(info.max, 1000), shape, endpoint=True).astype(dtype)


def _narrow_types(i8: Any, u8: Any, i16: Any, u16: Any, flag: Any, half: Any, brain: Any) -> Any:
    return (
        i8 + i8 * 3,
        (u8 >> 1) - u8,
        jnp.where(flag, i16, -i16),
        u16 * u16,
        flag ^ (i8 > 0),
        half * half + 1,
        jnp.tanh(brain),
        brain.astype(jnp.float32) + half,
        lax.bitcast_convert_type(half, jnp.uint16),
        jnp.sum(i8, axis=0, dtype=jnp.int32),
        flag[::-1],
    )


def _norm(x: Any, weight: Any) -> Any:
    mean, variance = jnp.mean(x, axis=-1, keepdims=True), jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * weight


def _norm_gradient(x: Any, weight: Any) -> Any:
    return jax.value_and_grad(lambda x, w: jnp.sum(_norm(x, w) ** 3), (0, 1))(x, weight)


def _embedding(table: Any, ids: Any) -> Any:
    ids = ids % table.shape[0]
    return jax.value_and_grad(lambda t: jnp.sum(jnp.sin(t[ids])))(table)


def _orders(x: Any, ties: Any) -> Any:
    return (
        lax.top_k(x, 5),
        jnp.sort(x, axis=0),
        jnp.argsort(ties, axis=1),
        jnp.argmax(ties, axis=1),
        jnp.cumsum(x, axis=1),
        lax.cummax(x, axis=0),
    )


def _loops(x: Any) -> Any:
    def body(state: Any, row: Any) -> Any:
        state = 0.5 * state + row
        return state, jnp.tanh(state)

    last, rows = lax.scan(body, jnp.zeros(x.shape[1]), x)
    doubled = lax.while_loop(lambda s: jnp.sum(s) < 100, lambda s: 2 * s + 1, jnp.abs(last))
    return rows, doubled, lax.cond(last[0] > 0, jnp.sin, jnp.cos, last)


def _shapes(x: Any, y: Any) -> Any:
    joined = jnp.concatenate([x, jnp.flip(y, 1), x[:, ::2]], axis=1)
    padded = jnp.pad(joined.T, ((2, 1), (0, 3)), constant_values=1.5)
    moved = lax.dynamic_update_slice(padded, x, (3, 1))
    return moved, lax.dynamic_slice(moved, (2, 2), (5, 4)), moved.reshape(-1, 2) @ y[:2]


def _convolve(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1,), [(3, 0)], feature_group_count=x.shape[1])


def _adamw(*leaves: Any) -> Any:
    optimizer = optax.adamw(1e-2)
    updates, state = optimizer.update([jnp.sin(v) for v in leaves], optimizer.init(list(leaves)), list(leaves))
    return optax.apply_updates(list(leaves), updates), state


def _low_precision(x: Any, w: Any) -> Any:
    h = jax.nn.relu(x @ w)
    return jnp.sum(h.astype(jnp.float32), axis=0), (h @ w.T).astype(jnp.float32)


CASES: dict[str, Case] = {
    "narrow types": Case(
        _narrow_types,
        tuple((t, (9, 21)) for t in ("int8", "uint8", "int16", "uint16", "bool", "float16", "bfloat16")),
        tolerance=1e-2,
    ),
    "softmax": Case(jax.nn.softmax, ((5, 300),)),
    "norm and gradient": Case(_norm_gradient, ((6, 96), (96,)), tolerance=1e-4),
    "matmul with epilogue": Case(lambda x, w, b: jax.nn.gelu(x @ w + b), ((37, 65), (65, 50), (50,))),
    "batched matmul": Case(lambda a, b: jnp.einsum("bij,bkj->bik", a, b), ((3, 7, 11), (3, 5, 11))),
    "matmul of one row": Case(lambda x, w: x @ w, ((1, 520), (520, 33)), tolerance=1e-4),
    "narrow floats": Case(_low_precision, (("bfloat16", (12, 40)), ("bfloat16", (40, 24))), tolerance=2e-2),
    "embedding and gradient": Case(_embedding, ((17, 12), ("int32", (40,)))),
    "orders": Case(_orders, ((7, 50), ("int8", (5, 70)))),
    "loops": Case(_loops, ((6, 40),)),
    "shapes": Case(_shapes, ((4, 6), (4, 8))),
    "short convolution": Case(_convolve, ((2, 6, 20), (6, 1, 4))),
    "random numbers": Case(lambda seed: jax.random.uniform(jax.random.key(seed[0]), (33, 5)), (("uint32", (1,)),)),
    "long reductions": Case(lambda x: (jnp.sum(x), jnp.max(x, axis=0), jnp.min(x, axis=1)), ((2500, 3),), tolerance=1e-4),
    "many elements": Case(lambda x: jnp.cos(x) * 2, ((70_001,),)),
    "many rows": Case(lambda x: x - jnp.sum(x, axis=1, keepdims=True), ((5000, 20),)),
    "packed updates": Case(_adamw, ((3,), (70, 11), (5, 5), (130,))),
}


def _wide_types(x: Any, y: Any, i: Any, u: Any) -> Any:
    order = jnp.sort(i, 1), jnp.argsort(u, 0), lax.top_k(x, 4), jnp.argmax(i, 1), jnp.max(x, 1), lax.cummax(u, axis=0)
    sums = jax.nn.softmax(x), x @ y, jnp.sum(i), jnp.cumsum(x, 1), i @ i.T, jnp.prod(u, 0)
    moved = x.at[i[:, 0] % 9].add(1.5), x[i[0]], lax.bitcast_convert_type(x, jnp.uint16), u.astype(jnp.float32)
    return (
        order,
        sums,
        moved,
        lax.rem(x, x + 3),
        lax.population_count(u),
        lax.clz(i),
        jax.random.bits(jax.random.key(3), (5,), "uint64"),
    )


def _wide_arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(12)
    i = rng.integers(-(2**63), 2**63, (9, 70), endpoint=False)
    return [rng.standard_normal((9, 65)), rng.standard_normal((65, 7)), i, i.view(np.uint64)]


class RaceChecked(NullDevice):
    """Raises where lanes of a workgroup race for its shared memory."""

    check_races = True


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("name", list(CASES))
def test_variant(name: str, variant: str) -> None:
    case = CASES[name]
    check(case.fun, case.args(), case.tolerance, VARIANTS[variant])


@pytest.mark.parametrize("variant", [name for name, caps in VARIANTS.items() if caps.float64])
def test_wide_types(variant: str) -> None:
    with jax.enable_x64(True):
        check(_wide_types, _wide_arguments(), 1e-13, VARIANTS[variant])


@pytest.mark.parametrize(
    ("dtype", "lacking"), [("float64", "float64"), ("float64", "int64"), ("int64", "int64"), ("uint64", "int64")]
)
def test_types_that_a_device_lacks_are_refused(dtype: str, lacking: str) -> None:
    device = NullDevice(replace(NULL_CAPS, **{lacking: False}))
    with jax.enable_x64(True):
        for fun, x in ((lambda x: x + 1, np.ones(3, dtype)), (lambda x: x.astype(dtype).sum(), np.ones(3, np.float32))):
            with pytest.raises(k3jit.errors.UnsupportedDtype, match=f"{dtype[0]}.*64"):
                k3jit.jit(fun, device=device)(x)
        with pytest.raises(k3jit.errors.UnsupportedDtype, match=f"{dtype} arrays cannot live on this Vulkan device"):
            k3jit.device_put(np.ones(3, dtype), device)


def check(fun: Callable[..., Any], args: list[np.ndarray], tolerance: float, caps: DeviceCaps) -> None:
    device = RaceChecked(caps)
    compiled = k3jit.jit(fun, device=device)
    got, wanted = jax.tree.leaves(compiled(*args)), jax.tree.leaves(jax.jit(fun)(*args))
    assert len(got) == len(wanted)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        mine, theirs = np.asarray(a), np.asarray(b)
        if jnp.issubdtype(b.dtype, jnp.floating):
            mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
            largest = float(np.max(np.abs(theirs), initial=0))
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * largest, err_msg=f"result {number}")
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=f"result {number}")
    for executable in device.executables:
        hazards.check(executable.program)
        for kernel in executable.program.kernels:
            verify(kernel, device.caps)
            validate(emit(kernel, device.caps))
