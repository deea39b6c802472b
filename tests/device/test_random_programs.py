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
