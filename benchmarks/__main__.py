"""`python -m k3jit.benchmarks`: k3jit beside `jax.jit` on the CPU, IREE on Vulkan and kernels written by hand.

k3jit meets one peer at a time, in turns, so that no other peer's threads disturb the two. Every first result is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import jax
import numpy as np

from . import cold, report
from .contestants import CONTESTANTS, Ready
from .handwritten import BOUND_BY_MEMORY, CEILINGS, Handwritten
from .options import add_arguments
from .timing import interleave
from .workloads import THIRTEEN, Workload, make, names

ALIKE = 2e-3  # of the largest value; a step of AdamW takes the sign of gradients that may be nothing but rounding
Record = dict[str, Any]


def run(arguments: argparse.Namespace) -> int:
    """Measure, write and print. Returns 1 when results differ or nothing was measured, 2 for arguments that name nothing."""
    peers = [peer for peer in arguments.peers.split(",") if peer]
    chosen = [w for name in arguments.workloads for w in (THIRTEEN if name == "thirteen" else [name])] or names()
    wrong = [*(peer for peer in peers if peer not in report.PEERS), *(name for name in chosen if name not in names())]
    if wrong:
        print(f"k3jit bench: no {', '.join(wrong)}; there are {', '.join([*report.PEERS, *names()])}", file=sys.stderr)
        return 2
    with redirect_stdout(sys.stderr):
        record = measure(chosen, peers, arguments)
    text = report.markdown(record)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, content in (("bench.json", json.dumps(record, indent=2) + "\n"), ("bench.md", text)):
            beside = arguments.out / f".{name}.new"
            beside.write_text(content)
            os.replace(beside, arguments.out / name)
    print(json.dumps(record) if arguments.json else text)
    differing = [name for name, entry in record["workloads"].items() if entry["differs"]]
    if differing:
        print(f"k3jit bench: results differ from XLA's in {', '.join(differing)}", file=sys.stderr)
    return int(bool(differing))


def measure(chosen: Sequence[str], peers: Sequence[str], arguments: argparse.Namespace) -> Record:
    """The whole record. Against XLA first, while nothing else has threads in this process; IREE last."""
    from k3jit.runtime.device import default_device

    device = default_device()
    record: Record = {
        "device": f"{device.caps.name} ({device.caps.kind})",
        "cpu_count": os.cpu_count(),
        "jax": jax.__version__,
        "ceilings": {},
        "workloads": {name: {"against": {}, "facts": {}, "refused": {}, "cold_seconds": {}, "differs": {}} for name in chosen},
    }
    for name, maker in CEILINGS.items():
        launch = maker()
        best = interleave({name: Handwritten(launch)}, rounds=arguments.rounds, budget=arguments.seconds)[name].minimum
        record["ceilings"][name] = {"gflops": launch.flops / best / 1e9, "gbytes": launch.bytes / best / 1e9}
    for peer in sorted(peers, key=["xla", "hand", "iree"].index):
        for name in chosen:
            if peer == "hand" and name not in BOUND_BY_MEMORY:
                continue
            print(f"{name} against {report.PEERS[peer]}", flush=True)
            _pair(record["workloads"][name], name, peer, arguments)
    if arguments.cold:
        for name in chosen:
            for contestant in ("k3jit", *(peer for peer in peers if peer in CONTESTANTS)):
                if contestant not in record["workloads"][name]["refused"]:
                    print(f"{name} cold: {contestant}", flush=True)
                    record["workloads"][name]["cold_seconds"][contestant] = cold.first_seconds(name, contestant)
    record["summary"] = report.summary(record["workloads"])
    return record


def _pair(entry: Record, name: str, peer: str, arguments: argparse.Namespace) -> None:
    """Time k3jit and a peer in turns."""
    workload = make(name)
    ours = CONTESTANTS["k3jit"](workload)
    entry["facts"]["k3jit"] = ours.facts
    other: Callable[[], object]
    if peer == "hand":
        other = Handwritten(BOUND_BY_MEMORY[name](workload))
    else:
        try:
            theirs = CONTESTANTS[peer](workload)
        except (ImportError, RuntimeError) as problem:
            entry["refused"][peer] = str(problem)[-500:]
            print(f"  {type(problem).__name__}: {str(problem)[:200]}")
            return
        other, entry["facts"][peer] = theirs.call, theirs.facts
        difference = largest_difference(ours, theirs)
        if difference > ALIKE:
            entry["differs"][peer] = difference
            print(f"  results differ by {difference:.1e} of the largest value")
    times = interleave({"k3jit": ours.call, peer: other}, rounds=arguments.rounds, budget=arguments.seconds)
    entry["against"][peer] = {who: t.record() for who, t in times.items()}
    _rates(entry, workload, times["k3jit"].median)


def _rates(entry: Record, workload: Workload, seconds: float) -> None:
    for key, amount in (("gflops", workload.flops), ("gbytes", workload.bytes)):
        if amount is not None and key not in entry:
            entry[key] = amount / seconds / 1e9


def largest_difference(ours: Ready, theirs: Ready) -> float:
    """Over all results, relative to the largest value of each; infinite where only one is finite or shapes differ."""
    worst = 0.0
    for a, b in zip(ours.results, theirs.results, strict=True):
        if a.shape != b.shape:
            return float("inf")
        x, y = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return float("inf")
        finite = np.isfinite(x)
        scale = np.max(np.abs(y[finite]), initial=0.0)
        worst = max(worst, float(np.max(np.abs(x[finite] - y[finite]), initial=0.0) / (scale or 1.0)))
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m k3jit.benchmarks", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
