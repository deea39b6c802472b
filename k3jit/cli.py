"""The `k3jit` command: devices, doctor, train, generate, inspect, bench."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from . import __version__
from .benchmarks.options import add_arguments as add_bench_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if arguments.traceback:
            raise
        print(f"k3jit {arguments.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="k3jit", description="JAX functions on Vulkan devices, and Kimi K3 on top.")
    parser.add_argument("--version", action="version", version=f"k3jit {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    devices = commands.add_parser("devices", help="list the Vulkan devices")
    devices.add_argument("--json", action="store_true", help="as JSON")
    devices.set_defaults(run=_devices)

    doctor = commands.add_parser("doctor", help="check this installation, and say what is missing and what to do")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)

    train = commands.add_parser("train", help="train a small K3 language model on text, and write a checkpoint")
    train.add_argument("--text", type=Path, help="a file or folder; default: this program's own sources and documents")
    train.add_argument("--out", type=Path, default=Path("out"), help="folder for checkpoint and loss curve (default: out)")
    train.add_argument("--steps", type=int, default=None, help="training steps")
    train.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    train.add_argument("--json", action="store_true", help="print the result as JSON")
    train.set_defaults(run=_train)

    generate = commands.add_parser("generate", help="continue a prompt with a trained checkpoint")
    generate.add_argument("checkpoint", type=Path, help="folder with config.json and safetensors files")
    generate.add_argument("--prompt", required=True, help="text to continue")
    generate.add_argument("--tokens", type=int, default=200, help="how many tokens to write (default: 200)")
    generate.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token (default: 0.8)")
    generate.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    generate.add_argument("--json", action="store_true", help="print the result as JSON")
    generate.set_defaults(run=_generate)

    inspect = commands.add_parser("inspect", help="what a function of a Python file becomes: kernels, costs, stages")
    inspect.add_argument("target", help="FILE.py:FUNCTION or package.module:FUNCTION")
    inspect.add_argument("shapes", nargs="*", help="argument types such as f32[64,256] or i32[]")
    inspect.add_argument("--stage", choices=("jaxpr", "graph", "groups", "tile", "spirv"), help="print a stage in full")
    inspect.add_argument("--html", type=Path, help="write a page with every stage")
    inspect.add_argument("--json", action="store_true", help="kernels and costs as JSON")
    inspect.set_defaults(run=_inspect)

    bench = commands.add_parser("bench", help="k3jit beside jax.jit on the CPU, IREE and hand-written kernels")
    add_bench_arguments(bench)
    bench.set_defaults(run=_bench)
    return parser


# -- devices -------------------------------------------------------------------------------------------------------------
def _device_record(device: Any) -> dict[str, Any]:
    return {
        "index": device.index,
        "name": device.name,
        "kind": device.kind,
        "driver": device.driver,
        "memory": device.memory,
        "missing": list(device.missing),
    }


def _devices(arguments: argparse.Namespace) -> int:
    from ._device import default_device, devices

    found = devices()
    chosen = default_device()
    if arguments.json:
        print(json.dumps([{**_device_record(d), "default": d is chosen} for d in found], indent=2))
        return 0
    for device in found:
        mark = "*" if device is chosen else " "
        print(f"{mark} {device.index}: {device.name}  [{device.kind}]  {device.memory / 2**30:.1f} GiB  {device.driver}")
        for lack in device.missing:
            print(f"     lacks {lack}")
    print("* is used by default; K3JIT_DEVICE=<index or part of the name> chooses another")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    checks: list[dict[str, Any]] = []

    def check(name: str, action: Any) -> None:
        try:
            checks.append({"check": name, "ok": True, "detail": str(action())})
        except Exception as error:
            checks.append({"check": name, "ok": False, "detail": f"{type(error).__name__}: {error}"})

    check("python", platform.python_version)
    check("jax", _check_jax)
    check("vulkan device", _check_device)
    check("compile and run", _check_run)
    check("cache folder", _check_cache)
    check("SPIR-V tools", _check_spirv)
    if arguments.json:
        print(json.dumps(checks, indent=2))
    else:
        for entry in checks:
            print(f"{'ok  ' if entry['ok'] else 'FAIL'}  {entry['check']}: {entry['detail']}")
    return 0 if all(entry["ok"] for entry in checks) else 1


def _check_jax() -> str:
    import jax

    from . import _jax_compat

    _jax_compat.require()
    return f"{jax.__version__} (tried: {_jax_compat.TESTED})"


def _check_device() -> str:
    from ._device import default_device

    device = default_device()
    return f"{device.name} [{device.kind}]" + "".join(f"; lacks {lack}" for lack in device.missing)


def _check_run() -> str:
    import numpy as np

    from .api import jit

    got = np.asarray(jit(lambda x: x * 2 + 1, name="doctor")(np.arange(5, dtype=np.float32)))
    if got.tolist() != [1.0, 3.0, 5.0, 7.0, 9.0]:
        raise RuntimeError(f"2 x + 1 came out as {got.tolist()}: the driver computes wrongly; update it")
    return "2 x + 1 is right"


def _check_cache() -> str:
    from .plan_cache import folder

    found = folder()
    if found is None:
        return "off (K3JIT_CACHE_DIR=off)"
    found.mkdir(parents=True, exist_ok=True)
    if not os.access(found, os.W_OK):
        raise PermissionError(f"{found} is not writable: set K3JIT_CACHE_DIR to a folder of yours")
    size = sum(p.stat().st_size for p in found.iterdir() if p.is_file())
    return f"{found}, {size / 2**20:.1f} MiB of plans"


def _check_spirv() -> str:
    from .lowering.spirv_tools import disassemble, validate

    return f"{validate.__name__} and {disassemble.__name__} are there"


# -- models --------------------------------------------------------------------------------------------------------------
def own_text() -> Path:
    """What `train` learns when no text is given: the checkout this package lies in, else the package itself."""
    package = Path(__file__).resolve().parent
    return package.parent if (package.parent / "pyproject.toml").exists() else package


def _train(arguments: argparse.Namespace) -> int:
    from .models.train import run_train

    # With --json the result alone goes to standard output.
    with redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        result = run_train(arguments.text or own_text(), arguments.out, steps=arguments.steps, seed=arguments.seed)
    if arguments.json:
        record = {
            "out": str(arguments.out),
            "steps": len(result.losses),
            "interrupted": result.interrupted,
            "seconds": result.seconds,
            "final_loss": result.final_loss,
            "losses": result.losses,
        }
        print(json.dumps(record))
    return 130 if result.interrupted else 0


def _generate(arguments: argparse.Namespace) -> int:
    from .models.generate import run_generate

    with redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        text = run_generate(
            arguments.checkpoint,
            arguments.prompt,
            max_new_tokens=arguments.tokens,
            temperature=arguments.temperature,
            seed=arguments.seed,
        )
    if arguments.json:
        print(json.dumps({"prompt": arguments.prompt, "text": text}))
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from .benchmarks.__main__ import run

    return run(arguments)


# -- inspect -------------------------------------------------------------------------------------------------------------
def parse_shape(text: str) -> Any:
    """A ShapeDtypeStruct from text such as f32[64,256], bool[] or int16[3]. Types of 64 bits count with JAX_ENABLE_X64=1."""
    import jax
    import jax.numpy as jnp

    from .lowering.dtypes import DTYPES

    name, bracket, rest = text.partition("[")
    if not bracket or not rest.endswith("]"):
        raise ValueError(f"{text!r} is not a type such as f32[64,256]")
    sizes = tuple(int(size) for size in rest[:-1].split(",") if size.strip())
    return jax.ShapeDtypeStruct(sizes, DTYPES[name].numpy if name in DTYPES else jnp.dtype(name))


def load_function(target: str) -> Any:
    """The function that FILE.py:NAME or package.module:NAME names."""
    import importlib
    import importlib.util

    place, colon, name = target.rpartition(":")
    if not colon:
        raise ValueError(f"{target!r} is not FILE.py:FUNCTION or package.module:FUNCTION")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(place)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function = module
    for part in name.split("."):
        function = getattr(function, part)
    return function


def _inspect(arguments: argparse.Namespace) -> int:
    from . import debug
    from .api import Jitted, jit
    from .stages import memory_of

    function = load_function(arguments.target)
    types = [parse_shape(shape) for shape in arguments.shapes]
    lowered = (function if isinstance(function, Jitted) else jit(function)).lower(*types)
    if arguments.html is not None:
        arguments.html.write_text(debug.view(function, *types))
    if arguments.stage is not None:
        print(lowered.as_text(arguments.stage))
        return 0
    kernels = [
        {
            "name": k.name,
            "dispatches": len(k.workgroups),
            "reads": k.reads,
            "writes": k.writes,
            "operations": list(k.operations),
            "source": list(k.source),
        }
        for k in lowered.kernels
    ]
    summary = {"kernels": kernels, "cost": lowered.cost_analysis(), "memory": memory_of(lowered.program)}
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return 0
    for kernel in kernels:
        print(
            f"{kernel['name']}: {kernel['dispatches']} dispatches, {kernel['reads']:,} B read, {kernel['writes']:,} B written"
        )
        print(f"    {' '.join(kernel['operations'])}  {', '.join(kernel['source'])}")
    print(lowered.explain())
    print(", ".join(f"{name} {value:,}" for name, value in lowered.cost_analysis().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
