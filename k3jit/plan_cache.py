"""Compiled programs kept on disk between processes, found by what decides them: the jaxpr, types, device and settings.

A jaxpr is written in a canonical form: variables by order of appearance, parameters by name, nested jaxprs once, functions left
out (they matter only to transformations, which have happened). A damaged or foreign file is a miss.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from . import config

_FORMAT = 1
_TRIM_EVERY = 16
_stores = [0]


def folder() -> Path | None:
    """Where plans are kept, or None when the cache is off."""
    setting = config.value("cache_dir")
    if setting == "off":
        return None
    root = Path(setting) if setting else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "k3jit"
    return root / "plans"


@functools.cache
def compiler_version() -> str:
    """Hash of the compiler's own sources, so that changing it makes every plan stale."""
    digest = hashlib.sha256(f"{_FORMAT} {jax.__version__} {np.__version__}".encode())
    from . import lowering

    for root in lowering.__path__:
        for path in sorted(Path(root).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key(closed: Any, caps: Any, name: str, donated: frozenset[int]) -> str | None:
    """Name of a plan, or None when the cache is off."""
    if folder() is None:
        return None
    digest = hashlib.sha256()
    settings = tuple(config.value(name) for name in ("check", "fuse", "compact", "loops"))
    # What lowering reads of JAX's state: the layout of random bits, and what Python numbers are in rules written as functions.
    state: Any = jax.config
    traced = (state.jax_threefry_partitionable, state.jax_enable_x64)
    digest.update(repr((compiler_version(), caps.to_json(), name, sorted(donated), settings, traced)).encode())
    digest.update(canonical(closed).encode())
    return digest.hexdigest()


def load(name: str) -> Any:
    """The Program stored under `name`, or None."""
    root = folder()
    if root is None:
        return None
    path = root / f"{name}.plan"
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            raise ValueError("damaged")
        program = pickle.loads(data[32:])
        os.utime(path)
    except FileNotFoundError:
        return None
    except Exception:  # whatever a damaged or foreign pickle raises: compile again
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return program


def store(name: str, program: Any) -> None:
    """Keep a Program; never fails: a full disk or a read-only folder only means no cache."""
    root = folder()
    if root is None:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        data = pickle.dumps(without_bodies(program), protocol=pickle.HIGHEST_PROTOCOL)
        handle, temporary = tempfile.mkstemp(dir=root, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest())
                file.write(data)
            os.replace(temporary, root / f"{name}.plan")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _stores[0] += 1
        if _stores[0] % _TRIM_EVERY == 1:
            trim(root, config.value("cache_mib") << 20)
    except (OSError, pickle.PicklingError, RecursionError, TypeError, AttributeError):
        return


def without_bodies(program: Any) -> Any:
    """A copy whose kernels have no tile IR: the device needs their SPIR-V only, and the IR is most of the size."""
    import dataclasses

    from .lowering.tile import Block

    kernels = [dataclasses.replace(kernel, body=Block(None, 0)) for kernel in program.kernels]
    return dataclasses.replace(program, kernels=kernels, texts={})


def trim(root: Path, limit: int) -> None:
    """Remove the least recently used plans beyond `limit` bytes, and leftovers of killed processes."""
    files = []
    for path in root.iterdir():
        with contextlib.suppress(OSError):
            stat = path.stat()
            if path.suffix == ".tmp":
                if time.time() - stat.st_mtime > 3600:
                    path.unlink()
            else:
                files.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


# -- canonical text ------------------------------------------------------------------------------------------------------
def canonical(closed: Any) -> str:
    """Text that is equal for equal computations, in every process.

    Raises nothing: a parameter of unknown kind is written by its repr when that holds no address, else by its type.
    """
    return _Writer().closed(closed)


class _Writer:
    def __init__(self) -> None:
        self._jaxprs: dict[int, str] = {}
        self._avals: dict[Any, str] = {}
        self._kept: list[Any] = []  # keeps ids valid while writing

    def closed(self, closed: Any) -> str:
        inner = closed.jaxpr
        consts = " ".join(self.value(c) for c in closed.consts)
        return f"{self.jaxpr(inner)}({consts})"

    def jaxpr(self, jaxpr: Any) -> str:
        """Text at the first appearance, a hash afterwards: layers share their jaxprs."""
        known = self._jaxprs.get(id(jaxpr))
        if known is not None:
            return known
        numbers: dict[Any, int] = {}

        def define(variable: Any) -> str:
            number = numbers[variable] = len(numbers)
            return f"{number}:{self.aval(variable.aval)}"

        def use(atom: Any) -> str:
            if isinstance(atom, Literal):
                return f"{self.value(atom.val)}:{self.aval(atom.aval)}"
            return str(numbers[atom])

        lines = [" ".join(map(define, [*jaxpr.constvars, *jaxpr.invars]))]
        for eqn in jaxpr.eqns:
            arguments = " ".join(map(use, eqn.invars))
            params = eqn.params
            text = ",".join(f"{k}={self.value(params[k])}" for k in sorted(params)) if params else ""
            lines.append(f"{' '.join(map(define, eqn.outvars))}={eqn.primitive.name}[{text}]{arguments}")
        lines.append(" ".join(map(use, jaxpr.outvars)))
        text = "\n".join(lines)
        self._jaxprs[id(jaxpr)] = hashlib.sha256(text.encode()).hexdigest()
        self._kept.append(jaxpr)
        return f"{{{text}}}"

    def aval(self, aval: Any) -> str:
        found = self._avals.get(aval)
        if found is None:
            weak = "*" if getattr(aval, "weak_type", False) else ""
            found = f"{aval.dtype}{list(aval.shape)}{weak}" if hasattr(aval, "shape") else str(aval)
            self._avals[aval] = found
        return found

    def value(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        if isinstance(value, float | complex):
            return repr(value)
        if isinstance(value, tuple | list):
            if type(value) is tuple or type(value) is list:
                return f"({' '.join(map(self.value, value))})"
            return f"{type(value).__name__}({' '.join(map(self.value, value))})"
        if isinstance(value, Mapping):
            return f"{{{' '.join(f'{k!r}:{self.value(v)}' for k, v in sorted(value.items(), key=lambda item: repr(item[0])))}}}"
        if isinstance(value, frozenset | set):
            return f"{{{' '.join(sorted(map(self.value, value)))}}}"
        if isinstance(value, np.dtype | type):
            return str(value)
        if hasattr(value, "eqns") and hasattr(value, "invars"):
            closed = getattr(value, "consts", None)
            return self.closed(value) if closed is not None else self.jaxpr(value)
        if hasattr(value, "jaxpr") and hasattr(value, "consts"):
            return self.closed(value)
        if isinstance(value, jax.Array | np.ndarray | np.generic) or hasattr(value, "__array__"):
            return self.array(value)
        text = "" if callable(value) else repr(value)
        return text if text and " at 0x" not in text else type(value).__name__

    def array(self, value: Any) -> str:
        if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        host = np.asarray(value)
        if host.ndim == 0:
            return f"{host.dtype}:{host.tobytes().hex()}"
        return f"{host.dtype}{list(host.shape)}:{hashlib.sha256(np.ascontiguousarray(host).tobytes()).hexdigest()}"
