"""Options of `python -m k3jit.benchmarks` and of `k3jit bench`. No JAX here, so that `k3jit --help` is quick."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", help="names, or `thirteen` (default: all)")
    parser.add_argument("--peers", default="xla,hand,iree", help="comma-separated: xla, hand, iree (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each (default: 15)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for the samples of a pair, about (default: 10)")
    parser.add_argument("--cold", action="store_true", help="also cold compile times, each in a process of its own")
    parser.add_argument("--out", type=Path, help="folder for bench.json and bench.md")
    parser.add_argument("--json", action="store_true", help="print the record as JSON instead of tables")
