"""Who is timed: k3jit, `jax.jit` on the CPU, and IREE's Vulkan backend. Each makes a workload ready and runs it once."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .workloads import Workload

COMPILER_SECONDS = 600


@dataclass
class Ready:
    """A workload that has run once.

    Attributes:
        call: runs it again; returns when the work is done.
        results: the leaves of the first results.
        first_seconds: from the function to its first results.
        facts: what the compiler tells of it.
    """

    call: Callable[[], object]
    results: list[np.ndarray]
    first_seconds: float
    facts: dict[str, float] = field(default_factory=dict)


Contestant = Callable[[Workload], Ready]


def _ready(
    begin: float, run: Callable[..., Any], args: Sequence[Any], carried: int, to_host: Callable[[Any], np.ndarray] = np.array
) -> Ready:
    """`run` returns when its results are there; the first `carried` of them are its next arguments."""
    state = list(args)

    def call() -> Any:
        results = run(*state)
        state[:carried] = results[:carried] if carried else []
        return results

    first = call()
    seconds = time.perf_counter() - begin
    return Ready(call, [to_host(leaf) for leaf in jax.tree.leaves(first)], seconds)


def k3jit_vulkan(workload: Workload) -> Ready:
    import k3jit

    args = tuple(k3jit.device_put(arg) for arg in workload.args)
    begin = time.perf_counter()
    function = k3jit.jit(workload.function, donate_argnums=tuple(range(workload.carried)))
    ready = _ready(begin, lambda *a: k3jit.block_until_ready(function(*a)), args, workload.carried)
    compiled = function.lower(*workload.args).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    ready.facts = {
        "kernels": cost["kernels"],
        "dispatches": compiled.dispatches,
        "flops": cost["flops"],
        "temporary_bytes": memory["temp_size_in_bytes"],
    }
    return ready


def xla_cpu(workload: Workload) -> Ready:
    args = tuple(jax.device_put(arg, jax.local_devices(backend="cpu")[0]) for arg in workload.args)
    begin = time.perf_counter()
    compiled = jax.jit(workload.function, donate_argnums=tuple(range(workload.carried))).lower(*args).compile()
    memory = compiled.memory_analysis()
    ready = _ready(begin, lambda *a: jax.block_until_ready(compiled(*a)), args, workload.carried)
    if memory is not None:
        ready.facts = {"temporary_bytes": float(memory.temp_size_in_bytes)}
    return ready


def iree_vulkan(workload: Workload) -> Ready:
    """IREE (github.com/iree-org/iree) by its two PyPI packages, on the Vulkan device that it finds.

    Raises:
        RuntimeError: its compiler refuses the program; the end of what it says.
    """
    import iree.runtime

    config = iree.runtime.Config("vulkan")
    leaves, tree = jax.tree.flatten(workload.args)
    counted = len(jax.tree.leaves(workload.args[: workload.carried]))
    args = tuple(iree.runtime.asdevicearray(config.device, np.asarray(leaf)) for leaf in leaves)
    begin = time.perf_counter()

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(workload.function(*jax.tree.unflatten(tree, values)))

    text = str(jax.jit(flat, keep_unused=True).lower(*leaves).compiler_ir("stablehlo"))
    context = iree.runtime.SystemContext(config=config)
    module = iree.runtime.VmModule.copy_buffer(context.instance, _iree_compile(text))
    context.add_vm_module(module)
    main = context.modules[module.name]["main"]

    def run(*values: Any) -> list[Any]:
        results = main(*values)
        return list(results) if isinstance(results, tuple | list) else [results]

    return _ready(begin, run, args, counted, _to_host)


def _iree_compile(text: str) -> bytes:
    import iree.compiler.tools

    program = Path(iree.compiler.tools.__file__).parent.parent / "_mlir_libs" / "iree-compile"
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "a.mlir"), Path(folder, "a.vmfb")
        source.write_text(text)
        flags = ["--iree-input-type=stablehlo", "--iree-hal-target-device=vulkan"]
        command = [os.fspath(program), *flags, os.fspath(source), "-o", os.fspath(result)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_SECONDS)
        if done.returncode:
            raise RuntimeError(f"iree-compile ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return result.read_bytes()


def _to_host(array: Any) -> np.ndarray:
    """Through a staging buffer: `to_host` of iree-base-runtime 3.13 hands the driver memory that is not aligned as it asks."""
    import iree.runtime as rt

    if array._is_mappable():
        return np.array(array.to_host())
    device, source = array._device, array._buffer_view.get_buffer()
    staging = device.allocator.allocate_buffer(
        memory_type=int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    done = device.create_semaphore(0)
    wait, signal = rt.HalFence.create_at(done, 0), rt.HalFence.create_at(done, 1)
    device.queue_copy(source, staging, wait_semaphores=wait, signal_semaphores=signal)
    signal.wait()
    return np.array(staging.map().asarray(array._buffer_view.shape, array._get_raw_dtype()))


CONTESTANTS: dict[str, Contestant] = {"k3jit": k3jit_vulkan, "xla": xla_cpu, "iree": iree_vulkan}
