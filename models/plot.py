"""A line chart as a PNG file, with nothing but numpy and zlib."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_WIDTH, _HEIGHT = 800, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 30, 45
_INK, _GRID, _CURVE, _REFERENCE = (40, 40, 40), (225, 225, 225), (31, 119, 180), (214, 99, 40)
_GLYPHS = {  # three columns by five rows, one octal digit a row
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", ".": "00002", "-": "00700", " ": "00000", "a": "03557", "b": "44757", "c": "00747",
    "e": "07647", "g": "07571", "i": "20222", "l": "22223", "m": "00775", "n": "00655", "o": "00757", "p": "07574",
    "r": "00644", "s": "03626", "t": "27223", "u": "00557", "y": "05571", "d": "11757", "f": "34644", "h": "44755",
}  # fmt: skip


def line_chart(path: str | Path, values: Sequence[float], label: str, reference: float | None = None) -> None:
    """Draw ``values`` over 1, 2, 3, ... with axes, ticks and a label; ``reference`` is a horizontal line to compare with."""
    ys = np.asarray(values, np.float64)
    finite = ys[np.isfinite(ys)]
    shown = np.append(finite, reference) if reference is not None else finite
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    image = np.full((_HEIGHT, _WIDTH, 3), 255, np.uint8)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def row(value: float) -> int:
        return round(bottom - (value - low) / (high - low) * (bottom - _TOP))

    def column(step: float) -> int:
        return round(_LEFT + (step - 1) / max(len(ys) - 1, 1) * (right - _LEFT))

    for tick in _ticks(low, high):
        image[row(tick), _LEFT:right] = _GRID
        text = f"{tick:.4g}"
        _write(image, text, _LEFT - 8 - 8 * len(text), row(tick) - 5)
    for tick in _ticks(1, max(len(ys), 2)):
        if tick == int(tick):
            image[bottom : bottom + 6, column(tick)] = _INK
            _write(image, str(int(tick)), column(tick) - 4 * len(str(int(tick))), bottom + 10)
    if reference is not None:
        image[row(reference), _LEFT:right:2] = _REFERENCE
    image[_TOP : bottom + 1, _LEFT] = _INK
    image[bottom, _LEFT:right] = _INK
    _write(image, label, _LEFT, 10)
    _write(image, "step", right - 32, bottom + 26)
    points = [(column(i + 1), row(y)) for i, y in enumerate(ys) if np.isfinite(y)]
    for start, end in zip(points, points[1:] or points, strict=False):
        _segment(image, start, end)
    Path(path).write_bytes(_png(image))


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 6
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [float(round(i * step, 10)) for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def _segment(image: np.ndarray, start: tuple[int, int], end: tuple[int, int]) -> None:
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1) + 1
    columns = np.rint(np.linspace(start[0], end[0], count)).astype(int)
    rows = np.rint(np.linspace(start[1], end[1], count)).astype(int)
    image[rows, columns] = image[rows + 1, columns] = _CURVE


def _write(image: np.ndarray, text: str, x: int, y: int) -> None:
    for position, character in enumerate(text):
        rows = _GLYPHS.get(character, _GLYPHS[" "])
        bits = np.array([[int(digit) >> shift & 1 for shift in (2, 1, 0)] for digit in rows], bool)
        block = bits.repeat(2, axis=0).repeat(2, axis=1)
        left = x + 8 * position
        if left >= 0:
            image[y : y + 10, left : left + 6][block] = _INK


def _png(image: np.ndarray) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = image.shape
    scanlines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, width * 3)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(scanlines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
