"""Training steps under the Khronos validation layer and in checked mode: neither has anything to say.

GPU-assisted validation wraps each memory access in a search and a report, and lavapipe's compile time grows with the square of
a kernel's accesses. So a whole step under it asks for short kernels (K3JIT_COMPACT), and still takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STEPS = """
import numpy as np
import k3jit
from k3jit.runtime import vk
from tiny_step import batches, tiny_step

rows, length = {shape}
step, params, state = tiny_step()
compiled = k3jit.jit(step, donate_argnums=(0, 1))
for batch in batches(10):
    params, state, loss = compiled(params, state, batch[:rows, :length])
    assert np.isfinite(float(loss))
k3jit.devices()[0].wait_idle()
print(vk.instance().validate, vk.instance().messages)
"""
PROGRAMS = """
import jax, jax.numpy as jnp, numpy as np
import k3jit
from jax import lax
from k3jit.runtime import vk

x = np.linspace(-1, 1, 12 * 40, dtype=np.float32).reshape(12, 40)
ids = np.array([3, 0, 3, 11], np.int32)

def loop(x):
    return lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(40), x)

functions = {
    "softmax": (jax.nn.softmax, x),
    "product": (lambda x: jnp.tanh(x[:, :3] @ x[:3, :8]), x),
    "gather": (lambda x, i: x[i], x, ids),
    "scatter-add": (lambda x, i: x.at[i].add(1), x, ids),
    "sort": (lambda x: jnp.sort(x[:2], axis=1), x),
    "cumulative": (lambda x: jnp.cumsum(x, axis=1), x),
    "loop": (loop, x),
    "host loop": (lambda x: lax.while_loop(lambda c: c.sum() < 99, lambda c: c + jnp.abs(x[0]), x[1]), x),
    "narrow": (lambda x: (x.astype(jnp.bfloat16) * 2, x > 0, x.astype(jnp.int8)), x),
    "packed": (lambda x: [x[:, :k] + k for k in (5, 20, 33)], x),
}
for name, (function, *arguments) in functions.items():
    for a, b in zip(jax.tree.leaves(k3jit.jit(function)(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments))):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=1e-5, err_msg=name)
k3jit.devices()[0].wait_idle()
print(vk.instance().validate, vk.instance().messages)
"""
STRAY = """
import handmade
from k3jit.lowering.program import Buffer, Dispatch, Ref
from k3jit.runtime.device import default_device

device = default_device()
lanes = device.caps.subgroup_size
step = Dispatch(0, (1, 1, 1), ((Ref(0, 0, 4 * lanes), 1 << 28),))
buffers = [Buffer("output", 4 * lanes, index=0)]
device.load(handmade.program(device.caps, [handmade.stray_kernel(lanes)], buffers, [step], 0, [0])).run([])
device.wait_idle()
print(device.messages)
"""
# Less work for a driver that compiles on the CPU; no other driver looks at these.
QUICK = {"LP_NATIVE_VECTOR_WIDTH": "128", "GALLIVM_PERF": "nopt"}


def run_python(code: str, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "PYTHONPATH": str(TESTS), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=everything, capture_output=True, text=True, timeout=timeout, check=False
    )


def silent(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("[]"), ran.stdout
    assert "validation layer" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("checked", ["0", "1"])
def test_ten_training_steps(checked: str) -> None:
    silent(run_python(STEPS.format(shape=(2, 33)), K3JIT_VALIDATE="core,sync", K3JIT_CHECK=checked))


def test_programs_under_gpu_assisted_validation() -> None:
    silent(run_python(PROGRAMS, K3JIT_VALIDATE="gpu", **QUICK))


if "gpu" in os.environ.get("K3JIT_VALIDATE", ""):  # minutes long, so for `make validate` only

    def test_ten_training_steps_under_gpu_assisted_validation() -> None:
        silent(run_python(STEPS.format(shape=(1, 33)), timeout=3600, K3JIT_VALIDATE="gpu", K3JIT_COMPACT="1", **QUICK))


def test_gpu_assisted_validation_follows_our_addresses() -> None:
    """Without this, its silence would prove nothing."""
    ran = run_python(STRAY, K3JIT_VALIDATE="gpu", K3JIT_CHECK="0", **QUICK)
    assert ran.returncode == 0 and "out of bounds" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [("core,wrong", "must be 1, all, or some of core, sync, gpu"), ("2", "K3JIT_VALIDATE='2'")],
)
def test_unknown_settings(setting: str, words: str) -> None:
    ran = run_python("import k3jit; k3jit.devices()", K3JIT_VALIDATE=setting)
    assert ran.returncode and words in ran.stderr, ran.stderr


def test_missing_layer_is_an_error(tmp_path: Path) -> None:
    hidden = {"VK_LAYER_PATH": str(tmp_path), "VK_ADD_LAYER_PATH": ""}
    ran = run_python("import k3jit; k3jit.devices()", K3JIT_VALIDATE="1", **hidden)
    assert ran.returncode and "apt-get install vulkan-validationlayers" in ran.stderr, ran.stderr
