"""The report: a record that JSON can hold, and Markdown tables of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .workloads import THIRTEEN

PEERS = {"xla": "XLA on the CPU", "iree": "IREE on Vulkan", "hand": "hand-written"}
Record = dict[str, Any]


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def ratio(entry: Mapping[str, Any], peer: str) -> float | None:
    """Our median time over the peer's, from the rounds in which both took turns; None where either has none."""
    pair = entry.get("against", {}).get(peer, {})
    return pair["k3jit"]["median"] / pair[peer]["median"] if peer in pair else None


def summary(workloads: Mapping[str, Record]) -> Record:
    """Geometric means over the thirteen: our time over each peer's, warm and cold."""
    out: Record = {}
    for peer in PEERS:
        ratios = [r for name in THIRTEEN if name in workloads and (r := ratio(workloads[name], peer)) is not None]
        cold = [
            seconds["k3jit"] / seconds[peer]
            for name in THIRTEEN
            if name in workloads and {"k3jit", peer} <= (seconds := workloads[name].get("cold_seconds", {})).keys()
        ]
        out[peer] = {
            "workloads": len(ratios),
            "time_ratio": geometric_mean(ratios),
            "slowest_ratio": max(ratios, default=None),
            "cold_ratio": geometric_mean(cold),
        }
    return out


def markdown(record: Record) -> str:
    """Tables of a record: the machine, ceilings, every workload, and means."""
    lines = [f"{record['device']}, {record['cpu_count']} CPU cores, jax {record['jax']}.", ""]
    lines += ["| ceiling | |", "|---|---|"]
    for name, ceiling in record["ceilings"].items():
        lines.append(f"| {name} | {_rate(ceiling)} |")
    lines += [
        "",
        "Medians in milliseconds; a ratio is our time over the peer's, taken in turns; MiB of temporary memory.",
        "",
        "| workload | k3jit | CPU time | XLA | IREE | hand-written | dispatches | reached | MiB (XLA) | cold s (XLA, IREE) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, entry) for name, entry in record["workloads"].items()]
    means = record["summary"]
    lines += ["", "| over the thirteen | geometric mean of ratios | worst | cold |", "|---|---|---|---|"]
    for peer, title in PEERS.items():
        found = means[peer]
        if found["workloads"]:
            lines.append(
                f"| {title} ({found['workloads']}) | {_number(found['time_ratio'])} | {_number(found['slowest_ratio'])} "
                f"| {_number(found['cold_ratio'])} |"
            )
    return "\n".join(lines) + "\n"


def _row(name: str, entry: Record) -> str:
    facts, cold = entry.get("facts", {}), entry.get("cold_seconds", {})
    ours, theirs = facts.get("k3jit", {}), facts.get("xla", {})
    times = next((pair["k3jit"] for pair in entry.get("against", {}).values()), None)
    cells = [name, *([f"{times['median'] * 1e3:.3f}", f"{times['cpu'] * 1e3:.3f}"] if times else ["-", "-"])]
    for peer in PEERS:
        found = ratio(entry, peer)
        refused = entry.get("refused", {}).get(peer)
        cells.append("refused" if refused else "-" if found is None else f"{found:.2f}")
    cells.append(f"{ours['dispatches']:.0f}" if ours else "-")
    cells.append(_rate(entry) or "-")
    memory = [f"{f['temporary_bytes'] / 2**20:.1f}" if "temporary_bytes" in f else "-" for f in (ours, theirs)]
    cells.append(f"{memory[0]} ({memory[1]})")
    seconds = [f"{cold[who]:.1f}" if who in cold else "-" for who in ("k3jit", "xla", "iree")]
    cells.append(f"{seconds[0]} ({seconds[1]}, {seconds[2]})")
    return f"| {' | '.join(cells)} |"


def _rate(entry: Mapping[str, Any]) -> str:
    parts = []
    if entry.get("gflops"):
        parts.append(f"{entry['gflops']:.1f} GFLOP/s")
    if entry.get("gbytes"):
        parts.append(f"{entry['gbytes']:.1f} GB/s")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
