"""The private hooks of JAX that k3jit relies on, one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import k3jit
from k3jit import _jax_compat

X = np.arange(3, dtype=np.float32)


def test_nothing_is_missing_here() -> None:
    _jax_compat.require()


def test_missing_hooks_name_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax_compat, "_MISSING", "no module named jax._src.core")
    with pytest.raises(k3jit.errors.IncompatibleJax, match=r"k3jit works with JAX 0\.10\.2 to"):
        _jax_compat.require()


def test_trace_context_follows_settings_and_axes() -> None:
    plain = _jax_compat.trace_context()
    assert hash(plain) == hash(_jax_compat.trace_context()) and plain == _jax_compat.trace_context()
    with jax.default_matmul_precision("highest"):
        assert _jax_compat.trace_context() != plain
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.append(_jax_compat.trace_context())
        return x

    jax.vmap(f, axis_name="rows")(X)
    assert seen[0] != plain


def test_trace_state() -> None:
    assert _jax_compat.trace_state_clean()
    seen: list[bool] = []
    jax.grad(lambda x: seen.append(_jax_compat.trace_state_clean()) or x)(1.0)  # type: ignore[func-returns-value]
    jax.make_jaxpr(lambda x: seen.append(_jax_compat.trace_state_clean()) or x)(1.0)  # type: ignore[func-returns-value]
    assert seen == [False, False]


def test_array_hooks() -> None:
    x = k3jit.device_put(X)
    assert _jax_compat.installed(k3jit.Array)
    assert jax.typeof(x) == jax.typeof(jnp.asarray(X))  # abstract value
    np.testing.assert_array_equal(jax.jit(lambda a: a + 1)(x), X + 1)  # argument of XLA
    np.testing.assert_array_equal(jax.jit(lambda: x + 1)(), X + 1)  # constant of XLA


def test_placement_is_that_of_a_cpu_array() -> None:
    assert k3jit.device_put(X).sharding == jnp.asarray(X).sharding


def test_high_level_primitives_are_expanded() -> None:
    x = np.array([0.5, -3.0, 40.0, 0.0], np.float32)
    table = np.array([-1.0, 0.0, 2.5, 50.0], np.float32)

    def parts(x: Any) -> Any:
        mantissa, exponent = jnp.frexp(x)
        return jnp.ldexp(mantissa, exponent + 1)

    def f(x: Any) -> Any:
        scanned, _ = jax.lax.scan(lambda c, _: (parts(c), None), x, None, length=3)
        chosen = jax.lax.cond(x[0] > 0, parts, jnp.sin, x)
        remade = jax.checkpoint(lambda v: parts(v) * 2)(x)
        rows = jax.vmap(lambda v: jnp.frexp(v)[1])(jnp.stack([x, x + 1]))
        return scanned, chosen, remade, rows, jnp.searchsorted(table, x), jnp.nonzero(x, size=2)[0]

    for got, want in zip(k3jit.jit(f)(x), jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(got, want)

    def loss(x: Any) -> Any:
        return jnp.sum(jnp.ldexp(x * x, jnp.array([1, 2, 3, 4])))

    np.testing.assert_array_equal(jax.grad(k3jit.jit(loss))(x), jax.grad(loss)(x))


def test_high_level_primitives_inside_a_solver_are_expanded() -> None:
    def solution(x: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: v * 3, x)[0]

    np.testing.assert_allclose(k3jit.jit(solution)(X), X / 3, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: k3jit.jit(solution)(x).sum())(X), np.full_like(X, 1 / 3), rtol=1e-6)


def test_hoisted_constants_are_the_first_inputs() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    closed = jax.make_jaxpr(lambda a: (a @ table.T, a + table[0]))(X)
    hoisted, consts = _jax_compat.hoist(closed)
    assert len(consts) >= 1 and not hoisted.consts
    assert [a.shape for a in hoisted.in_avals] == [*(np.shape(c) for c in consts), (3,)]
    got = jax.core.eval_jaxpr(hoisted.jaxpr, (), *map(np.asarray, consts), X)
    np.testing.assert_allclose(got[0], X @ table.T)


def test_key_base_runs_nothing() -> None:
    key = jax.random.key(5)
    np.testing.assert_array_equal(_jax_compat.key_base(key), jax.random.key_data(key))


def test_user_line_names_this_file() -> None:
    eqn = jax.make_jaxpr(lambda x: jnp.sin(x))(X).eqns[0]
    assert "test_compat.py" in _jax_compat.user_line(eqn)
    np.testing.assert_allclose(_jax_compat.evaluate(eqn, [X])[0], np.sin(X), rtol=1e-6)
