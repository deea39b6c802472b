"""Text as bytes: a file or a folder becomes one array of uint8 tokens, batches are random windows of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "build", "dist", "out", "venv"})
_LARGEST_FILE = 1 << 20
_BETWEEN_FILES = b"\n\n"


def load_text(path: str | Path) -> np.ndarray:
    """All text under ``path`` as uint8, files in sorted order.

    Of a folder, hidden entries, build outputs, files over 1 MiB and files that are not UTF-8 text are left out; a file given by
    name is taken as it is. Raises FileNotFoundError or ValueError where there is nothing to read.
    """
    path = Path(path)
    if path.is_file():
        data = path.read_bytes()
    elif path.is_dir():
        data = _BETWEEN_FILES.join(_contents(path))
    else:
        raise FileNotFoundError(f"no text at {path}: give a file or a folder")
    if not data:
        raise ValueError(f"no text in {path}: it holds no UTF-8 file of at most {_LARGEST_FILE} bytes")
    return np.frombuffer(data, np.uint8)


def _contents(folder: Path) -> Iterator[bytes]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS and not name.endswith("egg-info")
        )
        for name in sorted(files):
            file = Path(parent, name)
            if name.startswith(".") or not file.is_file() or not 0 < file.stat().st_size <= _LARGEST_FILE:
                continue
            data = file.read_bytes()
            if b"\0" in data:
                continue
            try:
                data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            yield data


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the single bytes in nats: the loss of a model that knows only how often each byte occurs."""
    counts = np.bincount(tokens.reshape(-1))
    shares = counts[counts > 0] / tokens.size
    return float(-np.sum(shares * np.log(shares)))


def sample_batch(tokens: np.ndarray, rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """``[batch, length]`` int32: windows of the text at random places."""
    if tokens.size < length:
        raise ValueError(
            f"the text has {tokens.size} bytes, fewer than one window of {length}: give more text or a smaller length"
        )
    starts = rng.integers(0, tokens.size - length + 1, batch)
    return np.stack([tokens[start : start + length] for start in starts]).astype(np.int32)
