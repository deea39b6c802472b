"""`k3jit.Array` as a jax.Array: with NumPy, jnp, lax, transformations, optax, equinox, pickle, dlpack."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import k3jit
from k3jit import _device, _jax_compat

VALUES = np.arange(1, 7, dtype=np.float32).reshape(2, 3)

USES: dict[str, Callable[[Any], Any]] = {
    "jnp.sin": jnp.sin,
    "jnp.asarray": jnp.asarray,
    "jnp.dot": lambda x: jnp.dot(x, x.T),
    "jnp.stack": lambda x: jnp.stack([x, x]),
    "lax.add": lambda x: jax.lax.add(x, x),
    "jit argument": jax.jit(lambda y: y * 2),
    "jit closure": lambda x: jax.jit(lambda y: y * x)(jnp.ones(3)),
    "grad": jax.grad(lambda y: (y * y).sum()),
    "vmap": jax.vmap(lambda y: y * 2),
    "scan": lambda x: jax.lax.scan(lambda c, a: (c + a.sum(), a * 2), 0.0, x),
    "device_put": jax.device_put,
    "jax.device_get": jax.device_get,
    "np.asarray": np.asarray,
    "np.sin": np.sin,
    "iterate": lambda x: [row + 1 for row in x],
    "in": lambda x: np.asarray(3.0 in x.reshape(-1)),
    "at": lambda x: x.at[0].set(1),
    "index": lambda x: x[1, ::2],
    "index by itself": lambda x: x[x > 2],
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "reshape": lambda x: x.reshape(-1),
    "astype": lambda x: x.astype(jnp.int32),
    "T": lambda x: x.T,
    "item": lambda x: np.float32(x[0, 0].item()),
    "tolist": lambda x: np.asarray(x.tolist(), np.float32),
    "block_until_ready": lambda x: jax.block_until_ready(x),
    "tree map": lambda x: jax.tree.map(lambda a: a + 1, {"a": x}),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "jnp.from_dlpack": jnp.from_dlpack,
    "np.from_dlpack": np.from_dlpack,
    "eqx.filter_jit": eqx.filter_jit(lambda y: y * 2),
    "eqx.filter_grad": eqx.filter_grad(lambda y: (y * 2).sum()),
    "optax": lambda x: optax.adamw(1e-3).update({"w": x}, optax.adamw(1e-3).init({"w": x}), {"w": x})[0],
    "ShapeDtypeStruct": lambda x: np.zeros(jax.eval_shape(lambda y: y, x).shape),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom": lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
}


@pytest.mark.parametrize("use", USES)
def test_use(use: str) -> None:
    got, want = USES[use](k3jit.device_put(VALUES)), USES[use](jnp.asarray(VALUES))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)
    assert [a.dtype for a in jax.tree.leaves(got)] == [a.dtype for a in jax.tree.leaves(want)]


OPERATORS = "+ - * / // % ** @ < <= > >= == !=".split()


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: str) -> None:
    square = VALUES[:, :2]
    x, y = k3jit.device_put(square), jnp.asarray(square)
    others = [(x, y), (y + 1, y + 1), (np.asarray(y + 1), np.asarray(y + 1))] + ([] if op == "@" else [(2, 2), (2.5, 2.5)])
    for other, reference in others:
        for expression in (f"a {op} b", f"b {op} a"):
            got, want = eval(expression, {"a": x, "b": other}), eval(expression, {"a": y, "b": reference})
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype
    with pytest.raises(TypeError):
        eval(f"a {op} 'text'", {"a": x}) if op not in ("==", "!=") else x + "text"


def test_integer_operators_and_scalars() -> None:
    x, y = k3jit.device_put(np.int32(5)), jnp.int32(5)
    for expression in (
        "a & 3",
        "a | 8",
        "a ^ 1",
        "a << 2",
        "a >> 1",
        "~a",
        "-a",
        "+a",
        "abs(a)",
        "divmod(a, 3)",
        "round(a)",
        "3 & a",
    ):
        np.testing.assert_array_equal(eval(expression, {"a": x}), eval(expression, {"a": y}))
    assert (int(x), float(x), bool(x), complex(x), [0, 1, 2, 3, 4, 6][x], f"{x:03d}") == (5, 5.0, True, 5 + 0j, 6, "005")
    with pytest.raises(TypeError, match="only a scalar"):
        float(k3jit.device_put(VALUES))
    with pytest.raises(TypeError, match="immutable"):
        k3jit.device_put(VALUES)[0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_description() -> None:
    x = k3jit.device_put(VALUES)
    assert isinstance(x, jax.Array) and eqx.is_array(x)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == ((2, 3), np.float32, 2, 6, 24, 4, 2)
    assert x.aval == jnp.asarray(VALUES).aval and not x.weak_type and x.devices() == {jax.devices("cpu")[0]}
    assert repr(x).startswith("k3jit.Array([[1., 2., 3.],") and "float32[2,3]" in x._repr_html_()
    weak = k3jit.jit(lambda: 2.0)()
    assert (
        weak.weak_type
        and pickle.loads(pickle.dumps(weak)).weak_type
        and (weak + jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    )


def test_every_method_of_a_jax_array_is_there() -> None:
    theirs = type(jax.device_put(np.float32(1)))
    # Of XLA's own buffers, or gone from JAX.
    other = "traceback platform clone device_buffer device_buffers unsafe_buffer_pointer unsafe_raw_buffer".split()
    missing = []
    for name in dir(theirs):
        if name.startswith("_") or name in other:
            continue
        if name not in dir(k3jit.Array) or getattr(k3jit.Array, name) is getattr(jax.Array, name, None):
            missing.append(name)
    assert not missing


def test_host_copy_is_lazy_cached_and_read_only() -> None:
    y = k3jit.jit(lambda x: x + 1)(VALUES)
    reads = _device.counters["host_reads"]
    _ = y.shape, y.aval, y.is_deleted()
    assert _device.counters["host_reads"] == reads
    first, second = np.asarray(y), np.asarray(y)
    assert _device.counters["host_reads"] == reads + 1 and first is second
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    assert np.array(y, copy=True).flags.writeable and np.asarray(y, np.float64).dtype == np.float64


def test_eager_operations_are_counted_and_can_be_refused() -> None:
    x = k3jit.device_put(VALUES)
    before = _device.counters["eager_transfers"]
    jnp.sin(x)
    assert _device.counters["eager_transfers"] > before
    with k3jit.config.override(warn_transfer="warn"), pytest.warns(UserWarning, match="copies float32\\[2,3\\]") as caught:
        jnp.sin(x)
    assert caught[0].filename == __file__
    with k3jit.config.override(warn_transfer="error"), pytest.raises(k3jit.errors.TransferError):
        x * 2
    with k3jit.config.override(warn_transfer="error"):
        np.asarray(x)
        k3jit.jit(lambda y: x * y)(x)


def test_element_types(device: Any) -> None:
    import dataclasses

    for caps in (device.caps, dataclasses.replace(device.caps, storage=())):
        place = type(device)()
        place.caps = caps
        for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"):
            values = (
                np.asarray([0, 1, 1, 0, 1]).astype(dtype)
                if dtype == "bool"
                else np.asarray([0, 1, -2, 100, 3]).astype(jnp.dtype(dtype))
            )
            x = k3jit.device_put(values, place)
            np.testing.assert_array_equal(np.asarray(x), values)
            assert x.dtype == jnp.dtype(dtype) and x._buffer.nbytes == x.on_device_size_in_bytes()
            strided = k3jit.device_put(values[::2], place)
            np.testing.assert_array_equal(np.asarray(strided), values[::2])


def test_memory_goes_back_when_the_array_does(device: Any) -> None:
    x = k3jit.device_put(VALUES)
    alive = weakref.ref(x)
    count = device.live_count
    del x
    gc.collect()
    assert alive() is None and device.live_count == count - 1
    y = k3jit.device_put(VALUES)
    y.delete()
    assert y.is_deleted() and device.live_count == count - 1
    with pytest.raises(k3jit.errors.DonatedBuffer, match=r"given away to Array.delete\(\)"):
        np.asarray(y)


def test_device_put_keeps_what_is_there_and_takes_keys() -> None:
    x = k3jit.device_put({"a": VALUES, "b": [1, 2.0]})
    assert k3jit.device_put(x)["a"] is x["a"] and x["b"][0].weak_type
    key = k3jit.device_put(jax.random.key(1))
    assert type(_jax_compat.key_base(key)) is k3jit.Array
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(1)))
    with pytest.raises(TypeError, match="not made directly"):
        k3jit.Array()
    with pytest.raises(k3jit.errors.UnsupportedDtype, match="complex64 arrays cannot live"):
        k3jit.device_put(np.complex64(1))


def test_importing_changes_nothing_in_jax() -> None:
    script = (
        "import jax\n"
        "from jax._src import core, dtypes\n"
        "from jax._src.interpreters import pxla\n"
        "before = len(core.pytype_aval_mappings), len(pxla.shard_arg_handlers)\n"
        "import k3jit; k3jit.jit(lambda x: x).lower; k3jit.Array; k3jit.errors; k3jit.testing\n"
        "assert (len(core.pytype_aval_mappings), len(pxla.shard_arg_handlers)) == before\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
