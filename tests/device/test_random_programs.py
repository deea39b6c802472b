"""Random programs and random arrays on the device, against JAX on the CPU."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from k3jit import testing


@settings(max_examples=10)
@given(testing.programs(max_ops=8))
def test_random_programs(example: testing.Example) -> None:
    testing.assert_matches_jax(example.fun, *example.args, rtol=2e-4, atol=2e-4, transforms=("none",))


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
