"""`k3jit.jit`: arguments, signatures, caching, donation, looking."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import k3jit
from k3jit import _device

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def counted() -> tuple[Any, list[int]]:
    """A function and how often Python ran its body."""
    runs = [0]

    def f(x: Any, scale: Any = 2.0, *, shift: Any = 0.0) -> Any:
        runs[0] += 1
        return x * scale + shift

    return f, runs


def test_retraces_only_for_a_new_signature() -> None:
    f, runs = counted()
    g = k3jit.jit(f)
    for _ in range(3):
        np.testing.assert_array_equal(g(X), X * 2)
    assert runs == [1]
    g(X[:1])
    g(X.astype(np.int32))
    g(X, 3.0)
    g(X, 4.0)  # a weak float is an argument, its value is none of the key
    assert runs == [4]
    g(X, np.float32(3))
    g(X, shift=1.0)
    assert runs == [6]
    g(k3jit.device_put(X))  # where an argument lies does not matter to the trace
    assert runs == [6]
    g.clear_cache()
    g(X)
    assert runs == [7]


def test_results_and_types_as_jax() -> None:
    cases = [(X, 2), (X, 2.0), (3, 4), (3, 4.0), (np.int32(3), 4.5), (X.astype(np.int8), 2), (True, 1), (np.float64(2), 1)]
    for a, b in cases:
        f, _ = counted()
        got, want = k3jit.jit(f)(a, b), jax.jit(f)(a, b)
        assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)
        np.testing.assert_array_equal(got, want)


def test_static_arguments() -> None:
    runs = [0]

    @functools.partial(k3jit.jit, static_argnums=1, static_argnames=("mode",))
    def f(x: Any, n: int, mode: str = "add") -> Any:
        runs[0] += 1
        return x + n if mode == "add" else x * n

    np.testing.assert_array_equal(f(X, 2), X + 2)
    np.testing.assert_array_equal(f(X, n=2), X + 2)
    np.testing.assert_array_equal(f(X, 3, "mul"), X * 3)
    np.testing.assert_array_equal(f(X, 3, mode="mul"), X * 3)
    before = runs[0]
    f(X, 3, mode="mul")
    assert runs[0] == before
    f(X, 3.0)
    f(X, True)
    assert runs[0] == before + 2  # equal values of other types are other arguments
    with pytest.raises(ValueError, match=r"static argument 1 is \[1\], of type list, which is not hashable"):
        f(X, [1])


def test_wrong_keywords_and_arguments() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        k3jit.jit(lambda x: x, no_such_option=1)
    with pytest.raises(ValueError, match="static_argnums=3"):
        k3jit.jit(lambda x: x, static_argnums=3)
    with pytest.raises(ValueError, match="no such parameter"):
        k3jit.jit(lambda x: x, static_argnames="y")
    with pytest.raises(TypeError, match="in_shardings"):
        k3jit.jit(lambda x: x, in_shardings=1)
    with pytest.raises(TypeError, match=r"'text' of type str is not an array"):
        k3jit.jit(lambda x: x)("text")
    with pytest.raises(k3jit.errors.UnsupportedDtype, match="complex64"):
        k3jit.jit(lambda x: x)(np.complex64(1))
    with pytest.raises(TypeError, match="takes a function"):
        k3jit.jit(3)


def test_methods_partials_and_pytrees() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = np.full(3, 2, np.float32)

        @k3jit.jit
        def shared(self_array: Any) -> Any:
            return self_array * 2

        @functools.partial(k3jit.jit, static_argnums=0)
        def call(self, x: Any) -> Any:
            return x * self.w

    layer = Layer()
    np.testing.assert_array_equal(layer.call(X), X * 2)
    assert Layer.call.__name__ == "call"

    @jax.tree_util.register_pytree_node_class
    class Module:
        def __init__(self, w: Any) -> None:
            self.w = w

        def __call__(self, x: Any) -> Any:
            return x @ self.w

        def tree_flatten(self) -> Any:
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    module = Module(np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(k3jit.jit(lambda m, x: m(x))(module, X), X @ module.w)
    np.testing.assert_array_equal(k3jit.jit(module)(X), X @ module.w)
    np.testing.assert_array_equal(k3jit.jit(functools.partial(jnp.multiply, 3.0))(X), X * 3)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        step: Any
        data: dict[str, Any]

    state = k3jit.jit(lambda s: State(s.step + 1, {k: v * 2 for k, v in s.data.items()}))(State(0, {"x": X}))
    assert int(state.step) == 1 and type(state.data["x"]) is k3jit.Array
    assert k3jit.jit(lambda x: (x, None, {}, []))(X)[1:] == (None, {}, [])


def test_closed_over_arrays_are_uploaded_once(device: Any) -> None:
    w = jnp.ones(3)
    f = k3jit.jit(lambda x: x * w)
    f(X)
    uploads = _device.counters["uploads"]
    f(X)
    f(X[:1])
    k3jit.jit(lambda x: x + w)(X)
    assert _device.counters["uploads"] == uploads + 3  # the arguments only
    held = k3jit.device_put(np.ones(3, np.float32))
    uploads = _device.counters["uploads"]
    np.testing.assert_array_equal(k3jit.jit(lambda x: x * held)(X), X)
    assert _device.counters["uploads"] == uploads + 1


def test_changing_a_numpy_argument_after_the_call_is_harmless() -> None:
    x = X.copy()
    y = k3jit.jit(lambda x: x * 1)(x)
    x[:] = 100
    np.testing.assert_array_equal(y, X)


def test_donation(device: Any) -> None:
    step = k3jit.jit(lambda p, g: p - g, donate_argnums=0, name="update")
    p = k3jit.device_put(X)
    q = step(p, X)
    assert device.calls[-1] == ("update", 2, (0,))
    assert p.is_deleted() and not q.is_deleted()
    for use in (np.asarray, lambda a: step(a, X), lambda a: a + 1, lambda a: a.block_until_ready()):
        with pytest.raises(k3jit.errors.DonatedBuffer, match="given away to a call of update"):
            use(p)
    assert "given away" in repr(p)
    with pytest.raises(k3jit.errors.DonatedBuffer, match="are the same device array"):
        step(q, q)
    np.testing.assert_array_equal(q, X * 0)
    by_name = k3jit.jit(lambda p, *, state: p + state["a"], donate_argnames="state")
    a = k3jit.device_put(X)
    by_name(X, state={"a": a})
    assert a.is_deleted()


def test_typed_keys(device: Any) -> None:
    key = jax.random.key(3)
    f = k3jit.jit(lambda k: (jax.random.split(k), jax.random.normal(k, (3,))))
    keys, values = f(key)
    want_keys, want = jax.random.split(key), jax.random.normal(key, (3,))
    assert keys.dtype == want_keys.dtype and keys.shape == (2,)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(want_keys))
    np.testing.assert_allclose(values, want)
    uploads = _device.counters["uploads"], _device.counters["host_reads"]
    k3jit.jit(lambda k: jax.random.split(k[0]))(keys)
    assert (_device.counters["uploads"], _device.counters["host_reads"]) == uploads  # the key stayed on the device
    np.testing.assert_allclose(
        k3jit.jit(lambda k: jax.random.uniform(k, (2,)))(jax.random.PRNGKey(0)), jax.random.uniform(jax.random.PRNGKey(0), (2,))
    )


def test_looking_without_running(device: Any) -> None:
    f = k3jit.jit(lambda x, n: {"y": x * n})
    assert f.eval_shape(X, 2.0)["y"].shape == (2, 3)
    lowered = f.lower(jax.ShapeDtypeStruct((2, 3), jnp.float32), 2.0)
    assert lowered.jaxpr.eqns[-1].primitive.name == "mul" and lowered.out_info["y"].shape == (2, 3)
    compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(X, 2.0)["y"], X * 2)
    with pytest.raises(TypeError, match=r"flat argument 0 is float32\[1,3\], compiled for float32\[2,3\]"):
        compiled(X[:1], 2.0)
    with pytest.raises(TypeError, match="structure"):
        compiled(X)
    assert f.__wrapped__ is not None and "lambda" in repr(f)
    assert jax.make_jaxpr(f)(X, 2.0).eqns[0].primitive.name == "k3_call"
    with jax.disable_jit():
        calls = len(device.calls)
        f(X, 2.0)
        assert len(device.calls) == calls


def test_devices_are_not_mixed(device: Any) -> None:
    other = type(device)("other")
    a, b = k3jit.device_put(X), k3jit.device_put(X, other)
    f = k3jit.jit(lambda x, y=1.0: x + y)
    assert f(b).vulkan_device is other and f(a).vulkan_device is device
    with pytest.raises(ValueError, match="live on two devices, 'fake' and 'other'"):
        f(a, b)
    with pytest.raises(ValueError, match="made for device 'other'"):
        k3jit.jit(lambda x: x, device=other)(a)
    assert k3jit.jit(lambda x: x, device=other)(X).vulkan_device is other


def test_settings_are_part_of_the_key() -> None:
    f, runs = counted()
    g = k3jit.jit(f)
    g(X)
    with k3jit.config.override(fuse=False):
        g(X)
    with jax.default_matmul_precision("highest"):
        g(X)
    g(X)
    assert runs == [3]


def test_cache_is_bounded_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    g = k3jit.jit(lambda x: x + 1, name="g")
    with k3jit.config.override(cache_entries=4, explain_cache_misses=True):
        for n in range(1, 9):
            g(np.zeros(n, np.float32))
    assert g._cache_size() == 4
    assert "g is traced: first call" in capsys.readouterr().err
    with k3jit.config.override(explain_cache_misses=True):
        g(np.zeros(20, np.float32))
    assert "leaf 0 was float32[5] and is float32[20]" in capsys.readouterr().err


def test_buffers_are_returned(device: Any) -> None:
    f = k3jit.jit(lambda x: (x + 1, x * 2))
    f(X)
    gc.collect()
    before = device.live_count
    for _ in range(10):
        f(f(X)[0])
    gc.collect()
    assert device.live_count == before


def test_threads() -> None:
    f, runs = counted()
    g = k3jit.jit(f)
    results: list[Any] = [None] * 8

    def work(i: int) -> None:
        results[i] = g(X, float(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert runs == [1]
    for i, r in enumerate(results):
        np.testing.assert_array_equal(r, X * i)


def test_training_step_leaves_xla_idle(device: Any) -> None:
    import optax
    from jax import monitoring

    device.zeros_only = True
    optimizer = optax.adamw(1e-3)

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(jax.nn.relu(x @ p["w"] + p["b"]) ** 2)

    params = {"w": np.ones((3, 4), np.float32), "b": np.zeros(4, np.float32)}
    init = k3jit.jit(optimizer.init)

    @functools.partial(k3jit.jit, donate_argnums=(0, 1))
    def step(p: Any, s: Any, x: Any, key: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x + jax.random.normal(key, x.shape))
        updates, s = optimizer.update(grads, s, p)
        return optax.apply_updates(p, updates), s, value, jax.random.split(key)[0]

    key = jax.random.key(0)
    transfers = _device.counters["eager_transfers"]
    jax.clear_caches()
    events: list[str] = []
    monitoring.register_event_duration_secs_listener(lambda event, duration, **_: events.append(event))
    try:
        state = init(params)
        params = k3jit.device_put(params)
        value: Any = None
        for _ in range(3):
            params, state, value, key = step(params, state, X, key)
        float(value)
    finally:
        monitoring.clear_event_listeners()
    assert not [e for e in events if "backend_compile" in e or "jaxpr_to_mlir" in e], events
    assert any("trace" in e for e in events)
    assert _device.counters["eager_transfers"] == transfers
