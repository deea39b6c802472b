"""`k3jit.profile`: where the time of compiled calls goes, kernel by kernel."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import config

_active: list[Profile] = []
_lock = threading.Lock()


@dataclass
class Row:
    """One kernel of one function.

    Attributes:
        function, kernel: names.
        dispatches: how often it ran.
        seconds: device time of all of them.
        nbytes: bytes they read and wrote.
        source: the user's lines.
    """

    function: str
    kernel: str
    dispatches: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    source: tuple[str, ...] = ()


@dataclass
class Profile:
    """What ran inside a `with k3jit.profile() as p:` block; print it, or look at `rows`."""

    events: list[tuple[str, str, float]] = field(default_factory=list)
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    calls: int = 0

    def add(self, loaded: Any, times: list[tuple[str, float]]) -> None:
        """Take in one timed call."""
        from .stages import kernels_of

        known = {kernel.name: kernel for kernel in kernels_of(loaded.program)}
        self.calls += 1
        for name, seconds in times:
            row = self.rows.setdefault((loaded.name, name), Row(loaded.name, name))
            row.dispatches += 1
            row.seconds += seconds
            kernel = known.get(name)
            if kernel is not None and kernel.workgroups:
                row.nbytes += (kernel.reads + kernel.writes) // len(kernel.workgroups)
                row.source = kernel.source
            self.events.append((loaded.name, name, seconds))

    @property
    def seconds(self) -> float:
        """Device time of everything."""
        return sum(row.seconds for row in self.rows.values())

    def sorted(self) -> list[Row]:
        """Rows, slowest first."""
        return sorted(self.rows.values(), key=lambda row: -row.seconds)

    def __str__(self) -> str:
        lines = [f"{'function':20} {'kernel':40} {'times':>6} {'ms':>9} {'share':>6} {'GB/s':>7}  source"]
        total = self.seconds or 1.0
        for row in self.sorted():
            rate = row.nbytes / row.seconds / 1e9 if row.seconds else 0.0
            lines.append(
                f"{row.function[:20]:20} {row.kernel[:40]:40} {row.dispatches:6} {row.seconds * 1e3:9.3f} "
                f"{row.seconds / total:6.1%} {rate:7.2f}  {', '.join(row.source[:2])}"
            )
        lines.append(f"{self.calls} calls, {len(self.events)} dispatches, {self.seconds * 1e3:.3f} ms on the device")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(r.function)}</td><td>{escape(r.kernel)}</td><td>{r.dispatches}</td><td>{r.seconds * 1e3:.3f}</td>"
            f"<td>{r.nbytes / r.seconds / 1e9 if r.seconds else 0:.2f}</td><td>{escape(', '.join(r.source))}</td></tr>"
            for r in self.sorted()
        )
        return f"<table><tr><th>function<th>kernel<th>times<th>ms<th>GB/s<th>source</tr>{rows}</table>"

    def save(self, path: str | Path) -> None:
        """Write a Chrome trace (also read by Perfetto): kernels end to end, in the order they ran."""
        events, now = [], 0.0
        for function, kernel, seconds in self.events:
            events.append(
                {
                    "name": kernel,
                    "cat": function,
                    "ph": "X",
                    "ts": now * 1e6,
                    "dur": seconds * 1e6,
                    "pid": 1,
                    "tid": 1,
                    "args": {"function": function},
                }
            )
            now += seconds
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


@contextmanager
def profile(path: str | Path | None = None) -> Iterator[Profile]:
    """Time every kernel of the calls inside.

    Each call waits for the device, and runs a second time with timestamps around its dispatches before the counted results
    are made, so the block as a whole takes longer. Donated arguments are used up once, as usual.

    Args:
        path: where to write a Chrome trace.

    Raises:
        RuntimeError: the device has no timestamps, or interprets kernels.
    """
    found = Profile()
    with _lock:
        _active.append(found)
    try:
        yield found
    finally:
        with _lock:
            _active.remove(found)
    if path is not None:
        found.save(path)


def wanted() -> bool:
    """Whether calls are to be timed."""
    return bool(_active) or config.value("debug") >= 2


def time_call(loaded: Any, buffers: list[Any]) -> None:
    """Run a call with timestamps, before it runs for its results, and report it."""
    times = loaded.executable.profile(buffers)
    for taken in list(_active):
        taken.add(loaded, times)
    if config.value("debug") >= 2:
        shown = Profile()
        shown.add(loaded, times)
        print(shown, file=sys.stderr)
