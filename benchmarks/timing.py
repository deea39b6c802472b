"""Interleaved timing: every round calls each candidate, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

SAMPLE_SECONDS = 0.002
"""A sample lasts at least this long: quick calls are repeated inside it."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call: median and minimum of wall time, median of CPU time over all threads; number of samples."""

    median: float
    minimum: float
    cpu: float
    samples: int

    def record(self) -> dict[str, float]:
        return asdict(self)


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 15, least_rounds: int = 5, budget: float = 15.0
) -> dict[str, Times]:
    """Time calls that return when their work is done.

    Args:
        rounds: samples of each; fewer, but at least `least_rounds`, once `budget` seconds are used up.
    """
    repeats: dict[str, int] = {}
    for name, call in candidates.items():
        call()
        begin = time.perf_counter()
        call()
        repeats[name] = max(1, min(200, int(SAMPLE_SECONDS / max(time.perf_counter() - begin, 1e-7))))
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for number in range(rounds):
        for name, call in candidates.items():
            used, begin = time.process_time(), time.perf_counter()
            for _ in range(repeats[name]):
                call()
            wall[name].append((time.perf_counter() - begin) / repeats[name])
            cpu[name].append((time.process_time() - used) / repeats[name])
        if number + 1 >= least_rounds and time.perf_counter() - start > budget:
            break
    return {
        name: Times(statistics.median(samples), min(samples), statistics.median(cpu[name]), len(samples))
        for name, samples in wall.items()
    }
