"""Random programs and random arrays on the device, against JAX on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from fusion_programs import compare, flat
from hypothesis import given, settings
from hypothesis import strategies as st

import k3jit
from k3jit import testing


@settings(max_examples=10)
@given(testing.programs(max_ops=8))
def test_random_programs(example: testing.Example) -> None:
    got, wanted = (flat(jit(example.fun)(*example.args)) for jit in (k3jit.jit, jax.jit))
    compare(got, wanted, 2e-4, floor=1.0)


@settings(max_examples=10)
@given(st.data())
def test_random_programs_of_doubles(data: st.DataObject) -> None:
    with jax.enable_x64(True):
        example = data.draw(testing.programs(max_ops=8, dtype=jnp.float64))
        got, wanted = (flat(jit(example.fun)(*example.args)) for jit in (k3jit.jit, jax.jit))
        assert any(g.dtype == np.float64 for g in got)
        compare(got, wanted, 1e-11, floor=1.0)


@settings(max_examples=10)
@given(st.data())
def test_random_values_of_wide_types(data: st.DataObject) -> None:
    with jax.enable_x64(True):
        x, y = (data.draw(testing.arrays(data.draw(st.sampled_from(WIDE)), (6, 11))) for _ in range(2))

        def function(x: jax.Array, y: jax.Array) -> object:
            z = y.astype(x.dtype)
            order = jnp.sort(x, 1), jnp.argsort(z, 0), jax.lax.top_k(x, 3), jnp.argmax(z, 1), jax.lax.cummax(x, axis=1)
            moved = x.at[y[0].astype(jnp.int64)].set(z[0], mode="drop"), x[y[:, 0].astype(jnp.int64) % 6]
            return z, x * z, x - z, jnp.where(x < z, x, z), jnp.clip(x, 0, 3), order, moved, x.astype(jnp.int32)

        jax.tree.map(np.testing.assert_array_equal, k3jit.jit(function)(x, y), jax.jit(function)(x, y))


WIDE = [jnp.dtype(name) for name in ("float64", "int64", "uint64")]


@settings(max_examples=5)
@given(testing.arrays(jnp.float32, (5, 7)))
def test_special_values(values: np.ndarray) -> None:
    testing.assert_matches_jax(lambda x: (jnp.abs(x), x > 0, jnp.maximum(x, 1.0), -x), values, transforms=("none", "vmap"))


@settings(max_examples=10)
@given(st.data())
def test_strategies_cover_the_types(data: st.DataObject) -> None:
    for dtype in (jnp.bool_, jnp.int8, jnp.uint32, jnp.bfloat16, jnp.float16):
        array = data.draw(testing.arrays(dtype, (3, 4)))
        assert array.shape == (3, 4) and array.dtype == jnp.dtype(dtype)
