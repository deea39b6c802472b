"""A scan as one kernel computes what its turns do when dispatched one by one, and what JAX does; races are looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusion_programs import compare, flat
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from k3jit.lowering import hazards
from k3jit.lowering.compile import lower
from k3jit.lowering.dtypes import DTYPES
from k3jit.lowering.kernels import loop as loop_kernel
from k3jit.lowering.kernels.loop import Layout, shared_bytes
from k3jit.lowering.program import Program
from k3jit.runtime.caps import NULL_CAPS, DeviceCaps
from k3jit.runtime.null import NullDevice
from loop_programs import LOOPS, SMOOTH, Function, diagonal, loss_of, normal, rnn


class RaceChecked(NullDevice):
    """Raises where lanes of a workgroup race for its shared memory."""

    check_races = True


Run = tuple[list[np.ndarray], Program]


def run(function: Function, args: tuple[Any, ...], caps: DeviceCaps = NULL_CAPS, **options: bool) -> Run:
    """Flat results of `function` in the interpreter, and its program."""
    program = lower(jax.make_jaxpr(function)(*args), caps, name="program", checked=True, **options)
    hazards.check(program)
    device = RaceChecked(caps)
    buffers = device.load(program).run([device.upload(np.asarray(leaf)) for leaf in jax.tree.leaves(args)])
    results = []
    for buffer, output in zip(buffers, program.outputs, strict=True):
        count = int(np.prod(output.shape, dtype=int))
        results.append(device.download(buffer).view(DTYPES[output.dtype].numpy)[:count].reshape(output.shape))
    return results, program


def decisions(program: Program, action: str) -> list[str]:
    return [d for d in program.decisions if f" {action}:" in d]


def check(function: Function, args: tuple[Any, ...], tolerance: float = 2e-5, floor: float = 1.0) -> Program:
    """Compare both ways of running scans with each other and with JAX; returns the program with kernels of loops."""
    one, program = run(function, args)
    apart, _ = run(function, args, loops=False)
    compare(one, apart, tolerance, floor)
    compare(one, flat(jax.jit(function)(*args)), tolerance, floor)
    return program


@pytest.fixture(params=["lanes", "workgroups"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every scan that can be a kernel is one, laid out one way."""
    original = loop_kernel.layout_of

    def layout(turn: Any, caps: DeviceCaps) -> Layout | str:
        wanted = Layout(caps.subgroup_size * 2, together=request.param == "workgroups")
        chosen = original(turn, caps)
        return wanted if shared_bytes(turn, wanted) <= caps.shared_bytes else chosen

    monkeypatch.setattr(loop_kernel, "layout_of", layout)
    monkeypatch.setattr("k3jit.lowering.loop_fusion.layout_of", layout)
    return request.param


@pytest.mark.parametrize("name", list(LOOPS))
def test_loop(name: str, forced: str) -> None:
    program = check(*LOOPS[name])
    assert decisions(program, "one kernel") and not decisions(program, "dispatched")


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient(name: str, forced: str) -> None:
    function, args = LOOPS[name]
    check(jax.grad(loss_of(function), tuple(range(len(args)))), args, tolerance=2e-4)


@pytest.mark.parametrize("name", ["rnn", "delta rule", "indexed"])
def test_vmap(name: str, forced: str) -> None:
    function, args = LOOPS[name]
    batched = tuple(np.stack([a, a * 0.5, -a]) for a in args)
    check(jax.vmap(function), batched)


@pytest.mark.parametrize("name", ["diagonal", "rnn"])
def test_results_take_the_place_of_donated_arguments(name: str, forced: str) -> None:
    """The final state may lie where the first one did, the stacked results where the stacked arguments did."""
    function, args, donated = {
        "diagonal": (diagonal, (normal(7, 8, 8) * 0.5, normal(7, 8, 8)), (0, 1)),
        "rnn": (rnn, (normal(5, 5) * 0.3, normal(5, 5), normal(16, 5), normal(7, 16, 5)), (2, 3)),
    }[name]
    program = lower(jax.make_jaxpr(function)(*args), NULL_CAPS, name="program", donated=frozenset(donated), checked=True)
    assert any(buffer.alias is not None for buffer in program.buffers) or (forced, name) == ("workgroups", "diagonal")
    device = NullDevice()
    buffers = device.load(program).run([device.upload(a) for a in args], donate=set(donated))
    results = [device.download(b).view(np.float32) for b in buffers]
    wanted = flat(jax.jit(function)(*args))
    compare([r[: w.size].reshape(w.shape) for r, w in zip(results, wanted, strict=True)], wanted, 1e-5, 1.0)


def test_wide_types(forced: str) -> None:
    """64-bit state takes two words an element, in registers and in workgroup memory."""
    with jax.enable_x64(True):
        for name in ("diagonal", "rnn", "delta rule"):
            function, args = LOOPS[name]
            wide = tuple(a.astype(np.float64) for a in args)
            program = check(jax.grad(loss_of(function, np.float64), (0, 1)), wide, tolerance=1e-11)
            assert decisions(program, "one kernel")
        big = np.arange(35, dtype=np.int64).reshape(5, 7) << 33
        check(lambda x: lax.scan(lambda c, v: (c * 3 + v, c >> 1), x[0], x), (big,), tolerance=0.0)


# -- random bodies -----------------------------------------------------------------------------------------------------------
def _random_body(seed: int, batch: int, width: int) -> Function:
    """body(weights, (matrix, vector, count), row) -> the same state, stacked values. Shapes [batch, width], [batch], []."""
    rng = np.random.default_rng(seed)
    steps = [(int(rng.integers(14)), int(rng.integers(99)), int(rng.integers(99))) for _ in range(rng.integers(1, 7))]
    mixes = bool(rng.integers(4) == 0)

    def body(w: Any, state: Any, row: Any) -> Any:
        h, v, i = state
        pool, vectors = [h, h * 0.5 + v[:, None], row if row is not None else jnp.flip(h, 1)], [v]
        for op, a, b in steps:
            x, y, u = pool[a % len(pool)], pool[b % len(pool)], vectors[a % len(vectors)]
            if op == 0:
                pool.append(jnp.tanh(x @ w))
            elif op == 1:
                pool.append(x * jnp.cos(y))
            elif op == 2:
                pool.append(jnp.where(x > y, x, -y))
            elif op == 3:
                pool.append(x - jnp.mean(x, axis=1, keepdims=True))
            elif op == 4:
                pool.append(jnp.concatenate([y[:, 1:], x[:, :1]], axis=1))
            elif op == 5:
                vectors.append(jnp.max(x, axis=1) * 0.5 + u)
            elif op == 6:
                pool.append(x + u[:, None])
            elif op == 7:
                pool.append(jnp.tanh(jnp.einsum("bi,bj->bij", x, y) @ w[:, 0]))
            elif op == 8:
                pool.append(jnp.pad(x, ((0, 0), (2, 0)))[:, :width] * w[i % width])
            elif op == 9:
                pool.append(jnp.roll(x, 1, axis=0) if mixes else jnp.flip(x, 1))
            elif op == 10:
                pool.append(jnp.swapaxes(jnp.swapaxes(x, 0, 1) * w[:, :1], 0, 1).reshape(batch, width))
            elif op == 11:
                pool.append(jax.nn.softmax(x, axis=1))
            elif op == 12:
                vectors.append(u + jnp.sum(x, axis=1) / width)
            else:
                pool.append(x * lax.dynamic_slice(y, (0, i % width), (batch, 1)))
        out = jnp.tanh(pool[-1] + 0.25 * pool[len(pool) // 2])
        return (out, jnp.sin(vectors[-1]), i + 1), (pool[-1], vectors[-1], h)

    return body


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    length=st.sampled_from([0, 1, 5, 7, 8]),
    batch=st.sampled_from([1, 2, 9]),
    width=st.sampled_from([1, 5, 8]),
    reverse=st.booleans(),
    stacked=st.booleans(),
    way=st.sampled_from(["value", "gradient", "vmap", "nested"]),
)
def test_random_bodies(seed: int, length: int, batch: int, width: int, reverse: bool, stacked: bool, way: str) -> None:
    body = _random_body(seed, batch, width)
    h, v, w = normal(batch, width), normal(batch, seed=1), normal(width, width, seed=2) * 0.4
    rows = normal(length, batch, width, seed=3)

    def scan(h: Any, v: Any, w: Any, rows: Any) -> Any:
        xs = rows if stacked else None
        (h, v, _), ys = lax.scan(lambda s, x: body(w, s, x), (h, v, jnp.int32(1)), xs, length, reverse)
        return h, v, ys

    def nested(h: Any, v: Any, w: Any, rows: Any) -> Any:
        def outer(state: Any, _: Any) -> Any:
            h, v, ys = scan(*state, w, rows)
            return (h, v), jax.tree.map(lambda y: jnp.sum(y, 0), ys)

        return lax.scan(outer, (h, v), None, 5)

    args = (h, v, w, rows)
    function, tolerance = (nested if way == "nested" else scan), 1e-4
    if way == "gradient":
        function, tolerance = jax.grad(loss_of(scan), (0, 1, 2, 3)), 1e-3
    elif way == "vmap":
        function, args = jax.vmap(scan, (0, None, 0, None)), (np.stack([h, -h]), v, np.stack([w, w * 0.5]), rows)
    assume(_is_stable(function, args, tolerance))
    check(function, args, tolerance)


def _is_stable(function: Function, args: tuple[Any, ...], tolerance: float) -> bool:
    """Whether turn after turn makes no more of a rounding error than the tolerance allows: chaos has no right value."""
    compiled = jax.jit(function)
    try:
        compare(flat(compiled(*(a * np.float32(1 + 2.0**-22) for a in args))), flat(compiled(*args)), tolerance / 4, 1.0)
    except AssertionError:
        return False
    return True


# -- what is refused, and why ------------------------------------------------------------------------------------------------
REFUSED: dict[str, tuple[Function, tuple[Any, ...], str]] = {
    "sorts": (lambda x: lax.scan(lambda c, v: (jnp.sort(c + v), None), x[0], x)[0], (normal(6, 9),), "a schedule of its own"),
    "too large": (
        lambda w, x: lax.scan(lambda h, v: (jnp.tanh(h @ w + v), None), x[0], x)[0],
        (normal(1024, 1024) * 0.01, normal(5, 1, 1024)),
        "independent slices",
    ),
    "too much state": (
        lambda x: lax.scan(lambda c, v: (c[::-1] + v, None), jnp.zeros(9000), x)[0],
        (normal(5),),
        "bytes, and a workgroup has",
    ),
    "unknown length": (lambda x: lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + 1, x), (normal(3),), "how often"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals_are_stated(name: str) -> None:
    function, args, why = REFUSED[name]
    program = check(function, args)
    assert not decisions(program, "one kernel")
    assert any(why in d for d in decisions(program, "dispatched")), program.decisions


def test_setting_turns_them_off() -> None:
    function, args = LOOPS["diagonal"]
    _, program = run(function, args, loops=False)
    assert any("off" in d for d in decisions(program, "dispatched"))


@pytest.mark.parametrize("caps", [
    replace(NULL_CAPS, subgroup_size=4),
    replace(NULL_CAPS, subgroup_size=32, kind="discrete"),
    replace(NULL_CAPS, subgroup_ops=False),
    replace(NULL_CAPS, compact=True),
    replace(NULL_CAPS, max_groups=(3, 65535, 65535)),
    replace(NULL_CAPS, storage=()),
], ids=["4", "32", "no ops", "compact", "few groups", "wide storage"])  # fmt: skip
@pytest.mark.parametrize("name", ["rnn", "lstm", "delta rule", "counting"])
def test_devices(name: str, caps: DeviceCaps) -> None:
    function, args = LOOPS[name]
    results, _ = run(function, args, caps)
    compare(results, flat(jax.jit(function)(*args)), 1e-5, 1.0)
