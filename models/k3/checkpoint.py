"""Checkpoints under the released names: safetensors files beside a config.json, one file or sharded with an index."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike
from safetensors import safe_open
from safetensors.numpy import save_file

from .config import Config
from .params import Params, Tensor, assemble, lookup, tensors

_FORMATS = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_INDEX = "model.safetensors.index.json"
_STAGING = ".writing"


def to_named(params: Params, config: Config) -> dict[str, Any]:
    """``{released name: array}`` of a parameter tree (or of anything shaped like one, such as gradients)."""
    named: dict[str, Any] = {}
    for item in tensors(config):
        leaf = lookup(params, item.path)
        named.update({name: leaf[row] for row, name in enumerate(item.names)} if item.stacked else {item.names[0]: leaf})
    return named


def from_named(named: Mapping[str, Any], config: Config) -> Params:
    """The parameter tree of ``{released name: array}``; missing, left-over or wrongly shaped tensors raise ValueError."""
    _check_names(set(named), config)
    leaves = {}
    for item in tensors(config):
        parts = [named[name] for name in item.names]
        for name, part in zip(item.names, parts, strict=True):
            _check_shape(name, tuple(part.shape), item, config)
        stack = np.stack if all(isinstance(part, np.ndarray) for part in parts) else jnp.stack
        leaves[item.path] = stack(parts) if item.stacked else parts[0]
    return assemble(config, leaves)


def load_params(path: str | Path, config: Config, dtype: DTypeLike = jnp.float32, keep_packed: bool = False) -> Params:
    """Read a checkpoint folder into a parameter tree; tensors the format keeps in float32 stay so.

    Raises ValueError where names or shapes do not fit the configuration.
    """
    if keep_packed:
        raise NotImplementedError("load_params: keep_packed needs MXFP4 experts, which are not built yet")
    with ExitStack() as stack:
        readers = {name: file for file in _open_files(Path(path), stack) for name in file.keys()}  # noqa: SIM118
        if any(name.endswith("weight_packed") for name in readers):
            raise NotImplementedError(f"load_params: {path} holds packed MXFP4 experts, which are not built yet")
        _check_names(set(readers), config)
        leaves = {}
        for item in tensors(config):
            target = np.dtype(np.float32) if item.wide and np.dtype(dtype).itemsize < 4 else np.dtype(dtype)
            parts = [readers[name].get_tensor(name).astype(target) for name in item.names]
            for name, part in zip(item.names, parts, strict=True):
                _check_shape(name, part.shape, item, config)
            leaves[item.path] = jnp.asarray(np.stack(parts) if item.stacked else parts[0])
    return assemble(config, leaves)


def iter_named(params: Params, config: Config, format: str = "float32") -> Iterator[tuple[str, np.ndarray]]:
    """One released tensor at a time, on the host, as it is stored in the given format ("float32" or "bfloat16")."""
    for item in tensors(config):
        host = np.asarray(lookup(params, item.path))
        stored = _FORMATS["float32"] if item.wide else _format(format)
        if item.stacked:
            for row, name in enumerate(item.names):
                yield name, np.ascontiguousarray(host[row].astype(stored))
        else:
            yield item.names[0], np.ascontiguousarray(host.astype(stored))


def save_pretrained(
    path: str | Path, params: Params, config: Config, format: str = "float32", max_shard_size: int = 5 * 2**30
) -> None:
    """Write ``config.json`` and ``model.safetensors`` (or shards of at most ``max_shard_size`` bytes and their index).

    All files are written aside and then renamed into place, so an interrupted save leaves the old checkpoint loadable.
    """
    _format(format)
    folder = Path(path)
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    shards: list[list[str]] = []
    pending: dict[str, np.ndarray] = {}
    pending_size = total = 0

    def flush() -> None:
        save_file(pending, staging / f"{len(shards)}", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, array in iter_named(params, config, format):
        if pending and pending_size + array.nbytes > max_shard_size:
            flush()
            pending_size = 0
        pending[name] = array
        pending_size += array.nbytes
        total += array.nbytes
    flush()
    config_text = json.dumps(config.to_dict(format), indent=2) + "\n"
    (staging / "config.json").write_text(config_text, encoding="utf-8")
    os.replace(staging / "config.json", folder / "config.json")
    count = len(shards)
    files = ["model.safetensors"] if count == 1 else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for shard, file in enumerate(files):
        os.replace(staging / f"{shard}", folder / file)
    if count > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (staging / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        os.replace(staging / _INDEX, folder / _INDEX)
    else:
        (folder / _INDEX).unlink(missing_ok=True)
    for stale in set(folder.glob("model*.safetensors")) - {folder / file for file in files}:
        stale.unlink()
    shutil.rmtree(staging)


def _format(format: str) -> np.dtype:
    if format == "mxfp4":
        raise NotImplementedError("format 'mxfp4': packed experts are not built yet; use 'float32' or 'bfloat16'")
    if format not in _FORMATS:
        raise ValueError(f"format {format!r} is not one of {sorted(_FORMATS)}")
    return _FORMATS[format]


def _open_files(folder: Path, stack: ExitStack) -> list[Any]:
    index = folder / _INDEX
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise FileNotFoundError(f"checkpoint {folder}: {', '.join(missing)} is missing")
    return [stack.enter_context(safe_open(folder / file, framework="numpy")) for file in files]


def _check_names(found: set[str], config: Config) -> None:
    wanted = {name for item in tensors(config) for name in item.names}
    for problem, names in (("missing", sorted(wanted - found)), ("not of this model", sorted(found - wanted))):
        if names:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise ValueError(f"checkpoint does not fit the configuration: {len(names)} tensors {problem}: {shown}")


def _check_shape(name: str, shape: tuple[int, ...], item: Tensor, config: Config) -> None:
    wanted = item.shape[1:] if item.stacked else item.shape
    heads = config.kda_num_heads
    # A_log is stored as [h], padded, or [1, 1, h, 1].
    decay_shape = shape == (1, 1, heads, 1) or (len(shape) == 1 and shape[0] >= heads)
    if not (decay_shape if item.init == "decay" else shape == wanted):
        raise ValueError(f"checkpoint does not fit the configuration: {name} has shape {list(shape)}, expected {list(wanted)}")
