"""Equal programs give equal plans: caches, and whoever compares two runs, rely on it."""

from __future__ import annotations

import jax
import pytest
from k3jit.lowering.compile import lower
from k3jit.lowering.program import Program
from k3jit.runtime.caps import NULL_CAPS
from tiny_step import batches, tiny_step


@pytest.mark.parametrize("compact", [False, True])
def test_lowering_twice_gives_the_same_program(compact: bool) -> None:
    step, params, state = tiny_step()
    closed = jax.make_jaxpr(step)(params, state, batches(1)[0])

    def lowered() -> Program:
        return lower(closed, NULL_CAPS, name="step", donated=frozenset(range(3)), compact=compact)

    first = lowered()
    addresses_taken = [object() for _ in range(12345)]
    second = lowered()
    del addresses_taken
    assert first.spirv == second.spirv
    assert first.buffers == second.buffers
    assert first.steps == second.steps
