"""Argsort in the interpreter, against jax.lax.sort."""

from dataclasses import replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from k3jit.lowering.dtypes import name_of
from k3jit.lowering.graph import Argsort, GraphBuilder
from k3jit.lowering.kernels import argsort
from k3jit.lowering.kernels.argsort import build_argsort
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from kernel_runs import WIDTH_NAMES, WIDTHS, group_of, run_calls

SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, np.float32(1e38), np.float32(-1e38)], np.float32)
widths = pytest.mark.parametrize("caps", WIDTHS, ids=WIDTH_NAMES)


def check(caps: DeviceCaps, keys: list[np.ndarray], dim: int, kernels: int | None = None) -> None:
    g = GraphBuilder()
    nodes = [g.input(k.shape, str(name_of(k.dtype))) for k in keys]
    node = g.node("argsort", nodes, keys[0].shape, "i32", Argsort(dim))
    calls = build_argsort(group_of("argsort", [node], nodes, node), caps)
    found = run_calls(calls, dict(zip(nodes, keys, strict=True)), caps)[node]
    position = lax.broadcasted_iota(jnp.int32, keys[0].shape, dim)
    expected = lax.sort((*map(jnp.asarray, keys), position), dimension=dim, is_stable=True, num_keys=len(keys))[-1]
    np.testing.assert_array_equal(found, np.asarray(expected))
    if kernels is not None:
        assert len(calls) == kernels


@widths
@pytest.mark.parametrize("shape", [(3, 1), (5, 2), (7, 17), (2, 64), (3, 65), (2, 127), (1, 300)])
def test_lengths(caps: DeviceCaps, shape: tuple[int, int], rng: np.random.Generator) -> None:
    check(caps, [rng.standard_normal(shape, np.float32)], 1)
    check(caps, [rng.integers(0, 5, shape).astype(np.int32)], 1)


@widths
def test_long_rows(caps: DeviceCaps, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(argsort, "BLOCK", 32)
    monkeypatch.setattr(argsort, "SINGLE", 40)
    for shape in ((2, 128), (3, 97), (1, 200)):
        check(caps, [rng.integers(-20, 20, shape).astype(np.int32)], 1)


def test_long_real(rng: np.random.Generator) -> None:
    check(NULL_CAPS, [rng.standard_normal(700, np.float32)], 0, kernels=1 + 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [40, 100])
def test_special_floats(dtype: type, length: int, rng: np.random.Generator) -> None:
    with np.errstate(over="ignore"):
        pool = SPECIAL.astype(dtype)
    check(NULL_CAPS, [rng.choice(pool, (2, length))], 1)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.uint32, np.int8, np.int32])
@pytest.mark.parametrize("length", [20, 70])
def test_integers(dtype: type, length: int, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype) if dtype != np.bool_ else None
    pool = np.array([0, 1] if info is None else [info.min, info.max, 0, 3, info.max - 1], dtype)
    check(NULL_CAPS, [rng.choice(pool, (2, length))], 1)


@pytest.mark.parametrize("length", [12, 90, 150])
def test_several_keys_and_any_dimension(length: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(argsort, "BLOCK", 64)
    monkeypatch.setattr(argsort, "SINGLE", 96)
    shape = (2, length, 3)
    keys = [rng.integers(0, 3, shape).astype(np.int32), rng.choice(SPECIAL, shape), rng.integers(0, 2, shape).astype(np.uint32)]
    check(NULL_CAPS, keys, 1)


def test_many_rows(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """More rows than workgroups along x."""
    caps = replace(NULL_CAPS, max_groups=(8, 64, 1))
    for length in (3, 70):
        check(caps, [rng.standard_normal((19, length), np.float32)], 1)
    monkeypatch.setattr(argsort, "BLOCK", 16)
    monkeypatch.setattr(argsort, "SINGLE", 16)
    check(caps, [rng.standard_normal((5, 70), np.float32)], 1)
