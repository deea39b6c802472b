"""Session set-up: a Vulkan device must be there, caches are the session's own, and warnings of this project are errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The reference is JAX on the CPU; a GPU build of JAX must not take part. Set before anything imports jax.
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import numpy as np
import pytest

TESTS = Path(__file__).parent
PROBE = TESTS.parent / "tools" / "setup" / "vulkan_probe.py"
# Tests below these need no Vulkan.
WITHOUT_DEVICE = (TESTS / "pure", TESTS / "null", TESTS / "api", TESTS / "conformance" / "test_runner.py")
NO_DEVICE_EXIT = 3

hypothesis.settings.register_profile(
    "k3jit",
    # The first example of a shape compiles a kernel, so time says nothing about the code under test.
    deadline=None,
    max_examples=25,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("k3jit")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", r"error:::k3jit(\.|$)")
    if hasattr(config, "workerinput"):  # a process of pytest-xdist: the first process has prepared all this
        return
    cache = tempfile.mkdtemp(prefix="k3jit-tests-")
    os.environ["K3JIT_CACHE_DIR"] = cache
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly or not needs_device(config):
        return
    if os.environ.get("K3JIT_DEVICE") == "null":
        pytest.exit("K3JIT_DEVICE=null is set, but these tests must run on a Vulkan device: unset it.", NO_DEVICE_EXIT)
    devices = find_devices()
    if not devices:
        pytest.exit("no Vulkan device was found; `make setup` installs a driver. tests/pure needs none.", NO_DEVICE_EXIT)
    for device in devices:
        print(f"Vulkan device: {device['name']} [{device['kind']}], {device['driver']}")


def needs_device(config: pytest.Config) -> bool:
    """Whether anything outside the folders that need none was asked for."""
    asked = [Path(config.invocation_params.dir, str(argument).split("::")[0]).resolve() for argument in config.args]
    return not all(any(path == free or free in path.parents for free in WITHOUT_DEVICE) for path in asked)


def find_devices() -> list[dict[str, str]]:
    probe = subprocess.run([sys.executable, "-B", str(PROBE)], capture_output=True, text=True, check=False)
    return json.loads(probe.stdout) if probe.returncode == 0 else []


@pytest.fixture(autouse=True)
def validation_layer_is_silent() -> Iterator[None]:
    """With K3JIT_VALIDATE set, a test fails on what the validation layer says while it runs."""
    yield
    if os.environ.get("K3JIT_VALIDATE"):
        messages = layer_messages()
        assert not messages, "\n".join(messages)


def layer_messages() -> list[str]:
    """What the layer has said in this process since the last call."""
    from k3jit.runtime import vk
    from k3jit.runtime.device import devices

    opened = vk.opened()
    if opened is None:
        return []
    for device in devices():
        device.wait_idle()
    messages = list(opened.messages)
    opened.messages.clear()
    return messages


@pytest.fixture
def jit() -> Callable[..., Any]:
    """The compiler under test."""
    import k3jit

    return k3jit.jit


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
