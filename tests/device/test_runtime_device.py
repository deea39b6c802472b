"""Finding, choosing and losing devices; copies; caches; what a process may and may not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import handmade
import numpy as np
import pytest
from k3jit.runtime import device as device_module
from k3jit.runtime import pipeline
from k3jit.runtime.device import Device, default_device, devices
from k3jit.runtime.errors import DeviceLost, NoDevice, OutOfDeviceMemory

TESTS = Path(__file__).parents[1]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, with this folder's helpers importable."""
    everything = {**os.environ, "PYTHONPATH": str(TESTS), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=everything, capture_output=True, text=True, timeout=120, check=False
    )


RUN = """
import handmade, numpy as np
from k3jit.runtime.device import default_device
device = default_device()
executable = device.load(handmade.chain_program(device.caps, 3))
data = np.arange(handmade.SIZE, dtype=np.int32)
(result,) = executable.run([device.upload(data)])
assert (device.download(result).view(np.int32) == data + 3).all()
"""


@pytest.fixture
def device() -> Device:
    found = default_device()
    assert isinstance(found, Device)
    return found


def test_attributes() -> None:
    for number, found in enumerate(devices()):
        assert isinstance(found, Device)
        assert found.index == number and found.name and found.driver and found.memory > 0
        assert found.kind in device_module.PREFERENCE
        assert all(": " in entry for entry in found.missing)
        assert found.caps.subgroup_size & (found.caps.subgroup_size - 1) == 0


def test_choice_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    first = devices()[0]
    for choice in ("0", first.name[:6].upper()):
        monkeypatch.setenv("K3JIT_DEVICE", choice)
        assert default_device() is first
    monkeypatch.setenv("K3JIT_DEVICE", "no such card")
    with pytest.raises(NoDevice, match=r"'no such card' matches no device. Present: 0: "):
        default_device()


@pytest.mark.parametrize("setting", ["1", "0"])
def test_copies(setting: str) -> None:
    """With K3JIT_MAP=0 the host can't see device memory, and everything goes through staging."""
    code = f"""
import numpy as np
from k3jit.runtime import transfer
transfer.CHUNK_BYTES = 1000
{RUN}
assert device.types.mapped == ({setting} == 1)
for size in (0, 1, 999, 1000, 1001, 12345):
    data = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    buffer = device.upload(data)
    assert (device.download(buffer) == data).all()
    assert (device.download(buffer, size // 2, size // 3) == data[size // 3:][:size // 2]).all()
    assert (device.view(buffer) is None) == (not device.types.cached)
executable = device.load(handmade.counting_program(device.caps, 5))
(result,) = executable.run([device.upload(np.zeros(handmade.SIZE, np.int32))])
assert (device.download(result).view(np.int32) == 6).all()
del buffer, result, executable
device.wait_idle()
"""
    ran = run_python(code, K3JIT_MAP=setting)
    assert ran.returncode == 0, ran.stderr


def test_upload_copies_any_layout(device: Device) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4).T
    buffer = device.upload(data)
    data[...] = 0
    np.testing.assert_array_equal(device.download(buffer).view(np.float32).reshape(4, 3)[1], [1, 5, 9])
    with pytest.raises(ValueError, match="download of 4 bytes at 45"):
        device.download(buffer, 4, 45)


def test_buffer_above_the_limit(device: Device) -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"the table of .* is larger than any buffer"):
        device.alloc(device.caps.max_buffer_bytes + 1, "the table")


def test_no_device_says_what_to_install() -> None:
    code = """
from k3jit.runtime.device import devices
from k3jit.runtime.errors import NoDevice
try:
    devices()
except NoDevice as error:
    print(error)
"""
    for environment in ({"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"},):
        ran = run_python(code, **environment)
        assert ran.returncode == 0 and "mesa-vulkan-drivers" in ran.stdout, ran.stdout + ran.stderr


def test_no_loader_says_what_to_install() -> None:
    code = """
import sys, types
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "vulkan":
            raise OSError("Cannot find Vulkan SDK version")
sys.meta_path.insert(0, Broken())
from k3jit.runtime.device import default_device
from k3jit.runtime.errors import NoDevice
try:
    default_device()
except NoDevice as error:
    print(error)
import os
os.environ["K3JIT_DEVICE"] = "null"
print(default_device())
"""
    ran = run_python(code)
    assert ran.returncode == 0 and "libvulkan1" in ran.stdout and "NullDevice" in ran.stdout, ran.stdout + ran.stderr


def test_fork_is_refused() -> None:
    code = f"""
{RUN}
import os, sys
child = os.fork()
if child == 0:
    try:
        executable.run([result])
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
(result,) = executable.run([result])
assert (device.download(result).view(np.int32) == data + 6).all()
"""
    ran = run_python(code)
    assert ran.returncode == 0, ran.stderr


def test_pipeline_cache_survives_damage(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    ran = run_python(RUN, K3JIT_CACHE_DIR=str(folder))
    assert ran.returncode == 0, ran.stderr
    (path,) = folder.glob("*.pipelines")
    good = path.read_bytes()
    assert pipeline.read_blob(path)
    for bad in (b"", b"rubbish", good[:-1], good[:40] + b"\xff" + good[41:], good + b"x"):
        path.write_bytes(bad)
        assert pipeline.read_blob(path) == b""
        ran = run_python(RUN, K3JIT_CACHE_DIR=str(folder))
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        assert pipeline.read_blob(path), "the damaged file was not replaced"
    assert list(folder.iterdir()) == [path], "temporary files were left behind"


def test_caches_off(tmp_path: Path) -> None:
    ran = run_python(RUN, K3JIT_CACHE_DIR="off", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert ran.returncode == 0 and not (tmp_path / "k3jit").exists(), ran.stderr


@pytest.mark.parametrize("mode", ["core", "sync", "gpu", "all"])
def test_validation_layer_is_silent(mode: str) -> None:
    code = f"""
{RUN}
executable.profile([result])
executable = device.load(handmade.counting_program(device.caps, 5))
(result,) = executable.run([device.upload(data)])
packed = device.load(handmade.packed_program(device.caps, 3))
packed.run([device.upload(data) for _ in range(3)])
del executable, packed, result
device.wait_idle()
print(device.live())
assert not device.messages, device.messages
"""
    for mapping in "10":
        ran = run_python(code, K3JIT_VALIDATE=mode, K3JIT_MAP=mapping)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_validation_layer_is_heard() -> None:
    code = """
from k3jit.runtime import vk
from k3jit.runtime.device import default_device
device = default_device()
device.alloc(8)
device.objects.create("Buffer", vk.struct("VkBufferCreateInfo", size=0, usage=32))
print(device.messages)
assert device.messages
"""
    ran = run_python(code, K3JIT_VALIDATE="core")
    assert ran.returncode == 0 and "VUID" in ran.stdout, ran.stdout + ran.stderr


def test_helper_programs_are_valid(device: Device) -> None:
    from k3jit.lowering.spirv_tools import validate

    for made in (handmade.counting_program(device.caps, 3), handmade.packed_program(device.caps, 2)):
        for code in made.spirv:
            validate(code)


def test_full_heap_lists_owners(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = device.alloc(1 << 20, "the weights")
    device.pool.trim()
    monkeypatch.setattr(device.types, "_heaps", [taken + (1 << 20) for taken in device.types._taken])
    with pytest.raises(OutOfDeviceMemory, match=r"no room for 100.0 MiB \(the cache\).*the weights 1.0 MiB.*The heap holds"):
        device.alloc(100 << 20, "the cache")
    assert kept.nbytes == 1 << 20
    assert device.alloc(1000).nbytes == 1000, "the device stays usable"


def test_lost_device_names_the_programs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = device.load(handmade.adding_program(device.caps))
    executable.run([device.upload(np.zeros(handmade.SIZE, np.int32))])
    device.wait_idle()
    monkeypatch.setattr(device.stream, "_lost", "")
    monkeypatch.setattr(device.stream, "_finished", device.stream.submitted - 1)
    with pytest.raises(DeviceLost, match="was lost while waiting; in flight: handmade"):
        device.stream._fail(-4, "waiting")
