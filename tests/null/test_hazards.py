"""Every barrier of a plan is needed: without any one of them the hazard checker objects. It also sees misuse in a dispatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from k3jit.lowering import hazards
from k3jit.lowering.compile import lower
from k3jit.lowering.program import Barrier, Dispatch, HostLoop, Program, Ref, Step
from k3jit.runtime.caps import NULL_CAPS
from tiny_step import batches, tiny_step


def plan(function: Callable[..., Any], *args: Any, donate: int = 0) -> Program:
    closed = jax.make_jaxpr(function)(*args)
    donated = frozenset(range(len(jax.tree.leaves(args[:donate]))))
    return lower(closed, NULL_CAPS, name="plan", donated=donated)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def attention_gradient() -> Program:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum((jax.nn.softmax(q @ k.T, axis=-1) @ v) ** 2)

    return plan(jax.grad(loss, (0, 1, 2)), shape(24, 16), shape(40, 16), shape(40, 8))


def dense_step() -> Program:
    def step(params: Any, momentum: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            for w, b in params[:-1]:
                x_next = jax.nn.gelu(x @ w + b)
            w, b = params[-1]
            return jnp.mean((x_next @ w + b - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    params = [(shape(16, 32), shape(32)), (shape(32, 8), shape(8))]
    return plan(step, params, params, shape(20, 16), shape(20, 8), donate=2)


def scanned() -> Program:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(state: jax.Array, row: jax.Array) -> Any:
            state = jnp.tanh(state @ w + row)
            return state, jnp.cumsum(state, axis=0)

        state, ys = lax.scan(body, jnp.ones((8, 8)), x)
        return jnp.sum(state) + jnp.sum(ys**2)

    return plan(jax.grad(loss, (0, 1)), shape(9, 8, 8), shape(8, 8))


def looped() -> Program:
    def body(state: Any) -> Any:
        turn, x = state
        x = lax.while_loop(lambda v: jnp.sum(v) < 10.0 * turn, lambda v: v @ v.T + 1.0, x)
        return turn + 1, x - jnp.sum(x, axis=0)

    return plan(lambda x: lax.while_loop(lambda s: s[0] < 5, body, (1, x))[1], shape(12, 12))


def model_step() -> Program:
    step, params, state = tiny_step()
    return plan(step, params, state, batches(1)[0], donate=2)


def without_each_barrier(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """What lies between the two barriers around each barrier, without it; also inside host loops.

    A barrier and a host loop wait for everything before them, so what lies further away has no part in it.
    """
    edges = [-1, *(i for i, s in enumerate(steps) if not isinstance(s, Dispatch)), len(steps)]
    for before, at, after in zip(edges, edges[1:], edges[2:], strict=False):
        if isinstance(steps[at], Barrier):
            yield [*steps[before + 1 : at], *steps[at + 1 : after]]
    for step in steps:
        if isinstance(step, HostLoop):
            yield from without_each_barrier(step.body)


@pytest.mark.parametrize("build", [attention_gradient, dense_step, scanned, looped, model_step], ids=lambda f: f.__name__)
def test_every_barrier_is_needed(build: Callable[[], Program]) -> None:
    program = build()
    hazards.check(program)
    removed = 0
    for steps in without_each_barrier(program.steps):
        with pytest.raises(hazards.HazardError):
            hazards.check(dataclasses.replace(program, steps=steps))
        removed += 1
    assert removed >= 3


def test_a_barrier_removed_from_the_whole_plan() -> None:
    program = dense_step()
    for i, step in enumerate(program.steps):
        if isinstance(step, Barrier):
            with pytest.raises(hazards.HazardError, match="may still use"):
                hazards.check(dataclasses.replace(program, steps=program.steps[:i] + program.steps[i + 1 :]))


def test_host_loops_are_looked_into() -> None:
    program = looped()
    inner = [s for s in program.steps if isinstance(s, HostLoop)]
    assert inner and any(isinstance(s, HostLoop) for s in inner[0].body)

    def strip(steps: Sequence[Step]) -> list[Step]:
        kept = [s for s in steps if not isinstance(s, Barrier)]
        return [dataclasses.replace(s, body=tuple(strip(s.body))) if isinstance(s, HostLoop) else s for s in kept]

    steps = [dataclasses.replace(s, body=tuple(strip(s.body))) if isinstance(s, HostLoop) else s for s in program.steps]
    with pytest.raises(hazards.HazardError):
        hazards.check(dataclasses.replace(program, steps=steps))


# -- within one dispatch -----------------------------------------------------------------------------------------------
def one_dispatch(**changes: Any) -> Program:
    """result = temporary + 1 where both are the same bytes of the arena; declared as an update in place unless changed."""
    program = handmade.chain_program(NULL_CAPS, 1)
    buffers = [*program.buffers, dataclasses.replace(program.buffers[2]), dataclasses.replace(program.buffers[2])]
    whole = buffers[2].nbytes
    source, target = Ref(4, 0, whole), Ref(5, 0, whole)
    declared = {"rows": ((source, target, 1),), "reads": (source,), "writes": (target,), "inplace": ((source, target),)}
    step = Dispatch(0, program.steps[0].groups, **(declared | changes))  # type: ignore[union-attr,arg-type]
    return dataclasses.replace(program, buffers=buffers, steps=[step], arena_bytes=2 * program.arena_bytes)


def test_update_in_place() -> None:
    hazards.check(one_dispatch())
    with pytest.raises(hazards.HazardError, match="while it writes them"):
        hazards.check(one_dispatch(inplace=()))


def test_update_in_place_of_part_of_what_is_read() -> None:
    program = one_dispatch()
    step = program.steps[0]
    assert isinstance(step, Dispatch)
    half = dataclasses.replace(step.writes[0], nbytes=step.writes[0].nbytes // 2)
    rows = ((step.reads[0], half, 1),)
    with pytest.raises(hazards.HazardError, match="may not update"):
        hazards.check(one_dispatch(rows=rows, writes=(half,), inplace=((step.reads[0], half),)))


def test_update_in_place_of_what_another_row_reads() -> None:
    program = one_dispatch()
    step = program.steps[0]
    assert isinstance(step, Dispatch)
    other = Ref(1, 0, step.writes[0].nbytes)
    rows = (step.rows[0], (step.reads[0], other, 2))
    with pytest.raises(hazards.HazardError, match="may not update"):
        hazards.check(one_dispatch(rows=rows, writes=(*step.writes, other)))


@pytest.mark.parametrize("what", ["reads", "writes"])
def test_undeclared_places(what: str) -> None:
    with pytest.raises(hazards.HazardError, match="not declared"):
        hazards.check(one_dispatch(**{what: (), "inplace": ()}))
