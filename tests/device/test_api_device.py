"""The interface on a real device: jit, transformations, plans on disk, looking, profiling, debugging, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_count import call_count

import k3jit
from k3jit import _device, cli, debug, plan_cache, testing

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
W = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)


def loss(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w) ** 2).mean()


def test_results_transformations_and_gradients() -> None:
    testing.assert_matches_jax(loss, W, X)
    testing.check_grads(loss, (W, X))
    with pytest.raises(AssertionError, match="vjp, result 0"):
        wrong = jax.custom_vjp(jnp.sin)
        wrong.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.where(jax.jit(lambda: True)(), ct, ct) * _fake_slope(),))
        testing.assert_matches_jax(wrong, X, transforms=("vjp",))


_slopes = iter([1.0, 2.0, 3.0, 4.0])


def _fake_slope() -> float:
    """Another constant at each trace: the two sides of the comparison differ."""
    return next(_slopes)


def test_eager_transformations_keep_residuals_on_the_device() -> None:
    f = k3jit.jit(loss)
    before = debug.counters()
    got = jax.grad(f)(W, X)
    after = debug.counters()
    assert after["eager_transfers"] == before["eager_transfers"] and after["host_reads"] == before["host_reads"]
    np.testing.assert_allclose(got, jax.grad(loss)(W, X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(f, (None, 0))(W, X), jax.vmap(loss, (None, 0))(W, X), rtol=1e-5)
    np.testing.assert_allclose(jax.hessian(f)(W, X), jax.hessian(loss)(W, X), rtol=1e-4, atol=1e-5)


def test_random_keys_are_those_of_jax() -> None:
    def draw(key: Any) -> Any:
        a, b = jax.random.split(key)
        return a, jax.random.bits(b, (7,)), jax.random.uniform(b, (5,)), jax.random.normal(a, (3, 3))

    key = jax.random.key(7)
    got, want = k3jit.jit(draw)(key), draw(key)
    np.testing.assert_array_equal(jax.random.key_data(got[0]), jax.random.key_data(want[0]))
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[2], want[2])
    np.testing.assert_allclose(got[3], want[3], rtol=1e-5, atol=1e-6)


def test_donated_memory_is_reused() -> None:
    step = k3jit.jit(lambda p: p * 0.5, donate_argnums=0)
    p = k3jit.device_put(X)
    address = p._buffer.address
    q = step(p)
    assert q._buffer.address == address
    exported = np.from_dlpack(q)  # a view: it pins the memory
    r = step(q)
    np.testing.assert_array_equal(exported, X / 2)
    np.testing.assert_array_equal(r, X / 4)


def test_identity_results_survive_donation() -> None:
    a, b = k3jit.jit(lambda x: (x, x))(k3jit.device_put(X))
    double = k3jit.jit(lambda x: x * 2, donate_argnums=0)
    np.testing.assert_array_equal(double(a), X * 2)
    np.testing.assert_array_equal(b, X)


def test_calls_leave_nothing_behind() -> None:
    f = k3jit.jit(jax.value_and_grad(loss))
    jax.block_until_ready(f(W, X))
    before = debug.live_buffers()
    for _ in range(100):
        jax.block_until_ready(f(W, X))  # calls that overlap would each keep a table of addresses for later ones
    after = debug.live_buffers()
    assert (after["buffers"], after["bytes"]) == (before["buffers"], before["bytes"])


def test_lowered_and_compiled() -> None:
    f = k3jit.jit(loss)
    lowered = f.lower(jax.ShapeDtypeStruct(W.shape, W.dtype), X)
    assert lowered.kernels and all(k.spirv[:4] == b"\x03\x02\x23\x07" for k in lowered.kernels)
    assert "OpEntryPoint" in lowered.kernels[0].as_text() and "tanh" in lowered.as_text("jaxpr") and lowered.as_text("tile")
    assert lowered.explain() and any("test_api_device.py" in line for k in lowered.kernels for line in k.source)
    compiled = lowered.compile()
    assert compiled.dispatches == compiled.cost_analysis()["dispatches"] == sum(len(k.workgroups) for k in compiled.kernels)
    memory = compiled.memory_analysis()
    assert memory["argument_size_in_bytes"] == W.nbytes + X.nbytes and memory["output_size_in_bytes"] == 4
    np.testing.assert_allclose(compiled(W, X), loss(W, X), rtol=1e-5)
    assert len(compiled.profile(W, X)) == compiled.dispatches
    assert "<table>" in compiled._repr_html_()


SCRIPT = """
import sys, jax, numpy as np, k3jit
from k3jit import plan_cache
def f(p, x, key):
    h = jax.nn.gelu(x @ p["w"]) * jax.random.uniform(key, (3,))
    h = jax.lax.scan(lambda c, r: (c + r, c), h[0], h)[1]
    return jax.checkpoint(lambda h: jax.nn.softmax(h))(h).sum() + np.arange(4.).sum()
g = k3jit.jit(jax.value_and_grad(f))
x = np.ones((4, 6), np.float32); p = {"w": np.ones((6, 3), np.float32)}
lowered = g.lower(p, x, jax.random.key(0))
print(plan_cache.key(lowered.jaxpr, k3jit.devices()[0].caps, "f", frozenset()))
print(float(g(p, x, jax.random.key(0))[0]))
"""


def test_plans_are_found_by_another_process(tmp_path: Path) -> None:
    environment = {**os.environ, "K3JIT_CACHE_DIR": str(tmp_path), "K3JIT_DEBUG": "1"}
    runs = []
    for seed in ("1", "2"):
        environment["PYTHONHASHSEED"] = seed
        command = [sys.executable, "-c", SCRIPT]
        runs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False))
        assert runs[-1].returncode == 0, runs[-1].stderr
    assert runs[0].stdout == runs[1].stdout
    assert "read from the plan cache" not in runs[0].stderr and "read from the plan cache" in runs[1].stderr
    assert len(list((tmp_path / "plans").glob("*.plan"))) == 1


def test_plan_keys_tell_computations_apart() -> None:
    caps = _device.default_device().caps

    def key(fun: Any, *args: Any, donated: frozenset[int] = frozenset()) -> str:
        found = plan_cache.key(k3jit.jit(fun).lower(*args).jaxpr, caps, "f", donated)
        assert found is not None
        return found

    table = np.arange(5, dtype=np.float32)
    variants = [
        key(lambda x: x + 1, X),
        key(lambda x: x + 2, X),
        key(lambda x: x - 1, X),
        key(lambda x: x + 1, X[:2]),
        key(lambda x: x + 1, X.astype(np.int32)),
        key(lambda x: x.sum(0), X),
        key(lambda x: x.sum(1), X),
        key(lambda x: x + 1, X, donated=frozenset({0})),
        key(lambda x: x[0, :5] + table, X),
        key(lambda x: jax.lax.scan(lambda c, r: (c + r, c), x[0], x)[0], X),
        key(lambda x: jax.lax.scan(lambda c, r: (c * r, c), x[0], x)[0], X),
    ]
    assert len(set(variants)) == len(variants)
    assert key(lambda x: x + 1, X) == variants[0]


def test_damaged_plans_are_misses(tmp_path: Path) -> None:
    with k3jit.config.override(cache_dir=str(tmp_path)):
        np.testing.assert_array_equal(k3jit.jit(lambda x: x * 3)(X), X * 3)
        (plan,) = (tmp_path / "plans").iterdir()
        whole = plan.read_bytes()
        for damage in (b"", whole[: len(whole) // 2], whole[:40] + b"\0" + whole[41:]):
            plan.write_bytes(damage)
            np.testing.assert_array_equal(k3jit.jit(lambda x: x * 3)(X), X * 3)
        assert plan.read_bytes() == whole
        for number in range(5):
            (tmp_path / "plans" / f"{number}.plan").write_bytes(bytes(1 << 20))
        plan_cache.trim(tmp_path / "plans", 2 << 20)
        assert sum(p.stat().st_size for p in (tmp_path / "plans").iterdir()) <= 2 << 20


def test_canonical_text_is_made_in_linear_time() -> None:
    def program(length: int) -> Any:
        def f(x: Any) -> Any:
            for _ in range(length):
                x = jnp.sin(x) * 2 + x
            return x

        return jax.make_jaxpr(f)(X)

    small, large = (call_count(plan_cache.canonical, program(length)) for length in (500, 1000))
    assert large < 2.2 * small


def test_dump_and_debug_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with k3jit.config.override(dump_to=str(tmp_path), debug=5, cache_dir="off"):
        np.testing.assert_allclose(k3jit.jit(loss, name="my loss")(W, X), loss(W, X), rtol=1e-5)
    shown = capsys.readouterr().err
    assert "k3jit: my loss compiled in" in shown and "OpEntryPoint" in shown and "ms on the device" in shown
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("_my_loss")
    names = {p.name for p in folder.iterdir()}
    assert {"jaxpr.txt", "tile.txt", "explain.txt"} <= names and any(n.endswith(".spv") for n in names)


def test_profile(tmp_path: Path) -> None:
    f = k3jit.jit(loss)
    f(W, X)
    with k3jit.profile(tmp_path / "trace.json") as profile:
        f(W, X)
    assert profile.calls == 1 and profile.seconds > 0 and "on the device" in str(profile) and "<table>" in profile._repr_html_()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == f.lower(W, X).compile().dispatches


def test_check_nans_and_bisect() -> None:
    def f(x: Any) -> Any:
        return jnp.sqrt(x - 10.0) * 2

    found = debug.check_nans(f, X)
    assert found is not None and found.startswith("sqrt at ") and "test_api_device.py" in found
    assert debug.check_nans(jnp.sin, X) is None
    with k3jit.config.override(check_nan=True), pytest.raises(FloatingPointError, match="holds a NaN"):
        k3jit.jit(f)(X)
    assert debug.bisect(loss, W, X) is None
    page = debug.view(loss, W, X)
    assert page.startswith("<!doctype html>") and "OpEntryPoint" in page and "http" not in page.replace("http-equiv", "")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert any(d["default"] for d in listed) and {"index", "name", "kind", "driver", "memory", "missing"} <= listed[0].keys()
    assert cli.main(["devices"]) == 0
    assert cli.main(["doctor"]) == 0
    assert "FAIL" not in capsys.readouterr().out
    source = tmp_path / "mine.py"
    source.write_text(
        textwrap.dedent("""
        import jax.numpy as jnp
        def f(x, n):
            return jnp.exp(x).sum() * n
    """)
    )
    assert cli.main(["inspect", f"{source}:f", "f32[4,8]", "i32[]", "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] and (tmp_path / "page.html").exists()
    assert cli.main(["inspect", f"{source}:f", "f32[4,8]", "i32[]", "--stage", "jaxpr"]) == 0
    assert "exp" in capsys.readouterr().out
    assert cli.main(["inspect", f"{source}:g"]) == 1
    assert "has no attribute 'g'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["nonsense"])
