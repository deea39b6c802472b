"""The programs of the fusion tests on the device, with their gradients, against JAX on the CPU."""

from __future__ import annotations

import jax
import pytest
from fusion_programs import PROGRAMS, compare, flat

import k3jit


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    program = PROGRAMS[name]
    args = program.args()
    both = program.with_gradient if program.differentiable else program.fun
    compare(flat(k3jit.jit(both)(*args)), flat(jax.jit(both)(*args)), 10 * program.tolerance)


@pytest.mark.parametrize("name", ["attention", "scan", "routing"])
def test_without_fusion(name: str) -> None:
    program = PROGRAMS[name]
    args = program.args()
    with k3jit.config.override(fuse=False):
        apart = k3jit.jit(program.fun)(*args)
    compare(flat(apart), flat(k3jit.jit(program.fun)(*args)), program.tolerance)
