"""A jitted function under every JAX transformation, from outside, eagerly."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import k3jit
from k3jit import _device


def loss(p: Any, x: Any) -> Any:
    h = jnp.tanh(x @ p["w"] + p["b"])
    return (h**2).sum(), h.mean()


PARAMS = {"w": np.full((3, 4), 0.1, np.float32), "b": np.zeros(4, np.float32)}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def check(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), got, want)


def test_call_gives_device_arrays(device: Any) -> None:
    got = k3jit.jit(loss)(PARAMS, X)
    assert all(type(a) is k3jit.Array for a in got)
    check(got, loss(PARAMS, X))


def test_eager_grad_is_two_calls_and_traces_once(device: Any) -> None:
    f = k3jit.jit(loss)
    check(jax.grad(lambda *a: f(*a)[0])(PARAMS, X), jax.grad(lambda *a: loss(*a)[0])(PARAMS, X))
    assert [name for name, *_ in device.calls] == ["loss_fwd", "loss_lin_T"]
    traces = _device.counters["traces"]
    jax.grad(lambda *a: f(*a)[0])(PARAMS, X)
    assert _device.counters["traces"] == traces


TRANSFORMS = {
    "value_and_grad": lambda f: jax.value_and_grad(f, has_aux=True)(PARAMS, X),
    "jvp": lambda f: jax.jvp(f, (PARAMS, X), (PARAMS, X)),
    "vjp": lambda f: jax.vjp(f, PARAMS, X)[1]((jnp.float32(1.0), jnp.float32(2.0))),
    "linearize": lambda f: jax.linearize(f, PARAMS, X)[1](PARAMS, X),
    "vmap": lambda f: jax.vmap(f, (None, 0))(PARAMS, X),
    "vmap_grad": lambda f: jax.vmap(jax.grad(lambda p, x: f(p, x)[0]), (None, 0))(PARAMS, X),
    "hessian": lambda f: jax.hessian(lambda x: f(PARAMS, x)[0])(X),
    "jacrev": lambda f: jax.jacrev(lambda x: f(PARAMS, x)[1])(X),
    "jacfwd": lambda f: jax.jacfwd(lambda x: f(PARAMS, x)[1])(X),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda p: f(p, X)[0]))(PARAMS),
    "grad_of_jit_of_grad": lambda f: jax.grad(lambda x: k3jit.jit(jax.grad(lambda y: f(PARAMS, y)[0]))(x).sum())(X),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, device: Any) -> None:
    check(TRANSFORMS[name](k3jit.jit(loss)), TRANSFORMS[name](loss))
    before = _device.counters["traces"], _device.counters["compiles"]
    if "jit_of" not in name:
        f = k3jit.jit(loss)
        TRANSFORMS[name](f)
        after = _device.counters["traces"], _device.counters["compiles"]
        TRANSFORMS[name](f)
        assert (_device.counters["traces"], _device.counters["compiles"]) == after != before


def test_eager_transforms_run_on_the_device(device: Any) -> None:
    f = k3jit.jit(loss)
    for transform in TRANSFORMS.values():
        device.calls.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # inlining would warn
            transform(f)
        assert device.calls


INLINED = {
    "jit": lambda f: jax.jit(lambda p, x: f(p, x)[0] * 2)(PARAMS, X),
    "jit_grad": lambda f: jax.jit(jax.grad(lambda p, x: f(p, x)[0]))(PARAMS, X),
    "scan": lambda f: jax.lax.scan(lambda c, _: (c + f(PARAMS, c)[0] * 0.01, None), X, None, length=3)[0],
    "grad_scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (c + f(PARAMS, c)[0] * 0.01, None), x, None, length=3)[0].sum()
    )(X),
    "cond": lambda f: jax.lax.cond(True, lambda x: f(PARAMS, x)[0], lambda x: x.sum(), X),
}


@pytest.mark.parametrize("name", INLINED)
def test_inlined_in_what_xla_compiles(name: str) -> None:
    with k3jit.config.override(warn_inline="ignore"):
        check(INLINED[name](k3jit.jit(loss)), INLINED[name](loss))


def test_inlining_warns_once_or_refuses() -> None:
    f = k3jit.jit(lambda x: x * 2, name="warns_once")
    with pytest.warns(UserWarning, match="warns_once is part of a computation"):
        jax.jit(lambda x: f(x) + 1)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda x: f(x) + 2)(X)
    with k3jit.config.override(warn_inline="error"), pytest.raises(k3jit.errors.TransferError):
        jax.jit(lambda x: f(x) + 3)(X)


def test_integer_arguments_and_results() -> None:
    f = k3jit.jit(lambda n, x: (x * n.astype(jnp.float32), n + 1))
    check(jax.grad(lambda x: f(jnp.int32(3), x)[0].sum())(X), np.full((2, 3), 3.0))
    _, tangent = jax.jvp(lambda x: f(jnp.int32(3), x), (X,), (X,))
    check(tangent[0], X * 3)
    assert tangent[1].dtype == jax.dtypes.float0


def test_custom_rules_inside() -> None:
    @jax.custom_vjp
    def g(x: Any) -> Any:
        return jnp.sin(x)

    g.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 7.0,))

    @jax.custom_jvp
    def h(x: Any) -> Any:
        return jnp.sin(x)

    h.defjvp(lambda x, t: (jnp.sin(x[0]), t[0] * 5.0))
    check(jax.grad(lambda x: k3jit.jit(lambda x: g(x).sum())(x))(X), np.full((2, 3), 7.0))
    check(jax.grad(lambda x: k3jit.jit(lambda x: h(x).sum())(x))(X), np.full((2, 3), 5.0))
    check(k3jit.grad(lambda x: g(x).sum())(X), np.full((2, 3), 7.0))


def test_custom_rules_outside() -> None:
    inner = k3jit.jit(jnp.sin)

    @jax.custom_vjp
    def g(x: Any) -> Any:
        return inner(x)

    g.defvjp(lambda x: (inner(x), x), lambda x, ct: (ct * 7.0,))
    check(jax.grad(lambda x: g(x).sum())(X), np.full((2, 3), 7.0))


def test_nested_and_closed_over_tracers(device: Any) -> None:
    inner = k3jit.jit(jnp.sin)
    outer = k3jit.jit(lambda x: inner(x) * 2)
    assert [eqn.primitive.name for eqn in outer.lower(X).jaxpr.eqns] == ["k3_call", "mul"]
    check(outer(X), np.sin(X) * 2)
    check(jax.grad(lambda w: k3jit.jit(lambda x: (x * w).sum())(X))(jnp.ones(3)), X.sum(0))


def test_vmap_axis_name() -> None:
    f = k3jit.jit(lambda x: x - jax.lax.pmean(x, "rows"))
    check(jax.vmap(f, axis_name="rows")(X), X - X.mean(0))


def test_vmap_of_unmapped_arguments_is_one_call(device: Any) -> None:
    f = k3jit.jit(jnp.sin, name="unmapped")
    check(jax.vmap(lambda x: x + f(X[0]))(X), X + np.sin(X[0]))
    assert [name for name, *_ in device.calls] == ["unmapped"]
