"""Compute pipelines: shared by content, compiled in a few threads, and kept on disk between processes."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import vk

PUSH_BYTES = 16  # address of the argument rows, address of the segments
THREADS = min(4, os.cpu_count() or 1)
FULL_SUBGROUPS = "PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT"
MAGIC = b"k3jit pipelines 1\n"
SLOW_SECONDS = 1.0  # a load that compiled this long is saved at once, not at exit
MAX_FILE_BYTES = 128 << 20


def cache_folder() -> Path | None:
    """Folder of the disk caches: K3JIT_CACHE_DIR, by default k3jit in the user's cache folder; None where it is "off"."""
    chosen = os.environ.get("K3JIT_CACHE_DIR", "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "k3jit"


def read_blob(path: Path) -> bytes:
    """Payload of a cache file, or b"" where it is absent, damaged or of another version."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    head = len(MAGIC) + 32
    payload = content[head:]
    sound = content[: len(MAGIC)] == MAGIC and content[len(MAGIC) : head] == hashlib.sha256(payload).digest()
    return payload if sound else b""


def write_blob(path: Path, payload: bytes) -> None:
    """Write a cache file so that no reader ever sees half of it. A folder that can't be written is no error."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, path)
    except OSError:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


class Pipeline:
    """A VkPipeline; destroyed after the last program that uses it is dropped and finished."""

    __slots__ = ("__weakref__", "_destroy", "handle")

    def __init__(self, handle: Any, destroy: Callable[[Any], None]) -> None:
        self.handle, self._destroy = handle, destroy

    def __del__(self) -> None:
        self._destroy(self.handle)


class Pipelines:
    """All pipelines of a device.

    Args:
        key: names driver and device in the file name.
        subgroup_size: lanes to require, or 0 where there is nothing to choose.
        full_subgroups: whether the device can promise that no subgroup has idle lanes.
        put_off: runs a function once the device is done with what is submitted.
    """

    def __init__(
        self,
        objects: vk.Objects,
        key: str,
        subgroup_size: int,
        full_subgroups: bool,
        put_off: Callable[[Callable[[], None]], None],
    ) -> None:
        self._objects, self._subgroup_size, self._put_off = objects, subgroup_size, put_off
        self._stage_flags = vk.constant(FULL_SUBGROUPS) if full_subgroups else 0
        self._known: weakref.WeakValueDictionary[bytes, Pipeline] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._unsaved = 0
        folder = cache_folder()
        self.path = folder / f"{key}.pipelines" if folder else None
        ranges = vk.struct("VkPushConstantRange", stageFlags=vk.constant("SHADER_STAGE_COMPUTE_BIT"), offset=0, size=PUSH_BYTES)
        self.layout = objects.create(
            "PipelineLayout", vk.struct("VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=ranges)
        )
        self._cache = self._make_cache(read_blob(self.path) if self.path else b"")

    def _make_cache(self, blob: bytes) -> Any:
        info = vk.struct("VkPipelineCacheCreateInfo", initialDataSize=len(blob), pInitialData=vk.ffi.from_buffer(blob))
        return self._objects.create("PipelineCache", info)

    def load(self, kernels: Sequence[tuple[str, bytes]]) -> list[Pipeline]:
        """Pipelines for (name, SPIR-V) pairs, compiled at once where they are new.

        Raises RuntimeError naming the kernel that the driver refuses.
        """
        hashes = [hashlib.sha256(spirv).digest() for _, spirv in kernels]
        found = {key: pipeline for key in hashes if (pipeline := self._known.get(key)) is not None}
        started = time.perf_counter()
        new = {key: kernel for key, kernel in zip(hashes, kernels, strict=True) if key not in found}
        if len(new) > 1 and THREADS > 1:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="k3jit-compile") as workers:
                made = list(workers.map(lambda kernel: self._compile(*kernel), new.values()))
        else:
            made = [self._compile(*kernel) for kernel in new.values()]
        save = time.perf_counter() - started > SLOW_SECONDS
        found.update(zip(new, made, strict=True))
        self._known.update({key: found[key] for key in new})
        self._unsaved += len(new)
        if save:
            self.save()
        return [found[key] for key in hashes]

    def _compile(self, name: str, spirv: bytes) -> Pipeline:
        code = vk.ffi.new("uint32_t[]", len(spirv) // 4)
        vk.ffi.memmove(code, spirv, len(code) * 4)
        module = self._objects.create("ShaderModule", vk.struct("VkShaderModuleCreateInfo", codeSize=len(code) * 4, pCode=code))
        try:
            chain = vk.ffi.NULL
            if self._subgroup_size:
                chain = vk.struct(
                    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=self._subgroup_size
                )
            stage = vk.struct(
                "VkPipelineShaderStageCreateInfo",
                pNext=chain,
                flags=self._stage_flags,
                stage=vk.constant("SHADER_STAGE_COMPUTE_BIT"),
                module=module,
                pName=vk.ffi.new("char[]", b"main"),
            )
            info = vk.struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self.layout, basePipelineIndex=-1)
            out = vk.ffi.new("VkPipeline*")
            result = vk.lib.vkCreateComputePipelines(self._objects.device, self._cache, 1, info, vk.ffi.NULL, out)
            vk.check(result, f"compiling kernel {name}")
        finally:
            self._objects.destroy("ShaderModule", module)
        self._objects.count("Pipeline", 1)
        return Pipeline(out[0], self._destroy_later)

    def _destroy_later(self, handle: Any) -> None:
        self._put_off(lambda: self._objects.destroy("Pipeline", handle))

    def save(self) -> None:
        """Write what was compiled since the last save, merged with what other processes wrote meanwhile."""
        with self._lock:
            if not self._unsaved or self.path is None:
                return
            self._unsaved = 0
            others = read_blob(self.path)
            if others:
                other = self._make_cache(others)
                sources = vk.ffi.new("VkPipelineCache[1]", [other])
                vk.check(vk.lib.vkMergePipelineCaches(self._objects.device, self._cache, 1, sources), "vkMergePipelineCaches")
                self._objects.destroy("PipelineCache", other)
            size = vk.ffi.new("size_t*")
            vk.check(
                vk.lib.vkGetPipelineCacheData(self._objects.device, self._cache, size, vk.ffi.NULL), "vkGetPipelineCacheData"
            )
            data = vk.ffi.new("char[]", size[0])
            vk.check(vk.lib.vkGetPipelineCacheData(self._objects.device, self._cache, size, data), "vkGetPipelineCacheData")
            # A cache that has outgrown its bound starts again with what this process compiles next.
            payload = bytes(vk.ffi.buffer(data, size[0])) if size[0] <= MAX_FILE_BYTES else b""
            write_blob(self.path, payload)
