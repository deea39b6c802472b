#!/usr/bin/env python3
"""Run JAX's primitive test harnesses through an alternative ``jit``.

The harnesses are the ones the JAX team wrote and ships inside its own wheel
(``jax/_src/internal_test_util/test_harnesses.py``); nothing of them is copied
here.  For each harness this program

  1. draws two sets of inputs (A and B) from the harness's own generators,
  2. calls ``jit_under_test(fun)(*A)`` and then ``(*B)`` on the same callable,
  3. computes the reference with ``jax.jit`` on the CPU backend,
  4. compares tree structure, dtype, shape and values with JAX's tolerances,
     and exactly where an op only moves, selects or rounds data.

Set B is there so that a jit which bakes its inputs in, or hands back a cached
answer, is found out.  The harness body is counted each time it is traced, and
XLA compilations that happen while the jit under test is running are counted
too, so a jit that just forwards to XLA or to eager JAX shows up as such.

Every harness runs in a worker process with its own deadline: a hang or a
crash (device lost, segfault in a driver) costs one harness, not the run.

Examples
  run_harnesses.py --jit k3jit:jit --json out.json
  run_harnesses.py --jit k3jit:jit --group reduce_sum,dot_general --dtype f32,bf16
  run_harnesses.py --jit k3jit:jit --shard 2/4 --baseline conformance.json
  run_harnesses.py --jit k3jit:jit --transform vjp --tier core
  run_harnesses.py --list --tier core          # names only
  run_harnesses.py --primitives                # primitives reached, with counts

Statuses
  pass         equal within tolerance, twice
  fail         ran, but structure, dtype, shape or values differ
  unsupported  refused with NotImplementedError, a class whose name contains
               "Unsupported", or a class given with --unsupported
  error        any other exception
  fallback     (only with --no-xla) right answer, but XLA compiled something
  timeout      no answer within --timeout seconds
  crash        the worker process died
  skip         JAX itself does not implement it on CPU, the reference fails, or
               the harness has nothing to test in this mode
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from harness.pool import run_all
from harness.report import BAD, STATUSES, baseline_of, compare_baseline, markdown, summarise
from harness.selection import dtype_name, list_primitives, load_harness_module, select_harnesses, setup_jax
from harness.worker import worker_main


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--jit", default="jax:jit", metavar="MODULE:FUNCTION", help="the jit under test (default jax:jit, the self-check)"
    )
    p.add_argument("--jit-kwargs", default="{}", metavar="JSON", help="keyword arguments for it")
    p.add_argument(
        "--path", action="append", default=[os.getcwd()], help="put this folder on sys.path (repeatable; cwd is on it)"
    )
    p.add_argument(
        "--source", default="auto", metavar="auto|wheel|PATH", help="harnesses of the installed jax, or of this checkout"
    )
    p.add_argument("--filter", metavar="REGEX", help="keep names that match")
    p.add_argument("--exclude", metavar="REGEX", help="drop names that match")
    p.add_argument("--group", metavar="G1,G2", help="keep these groups")
    p.add_argument("--dtype", metavar="f32,i32,bool,...", help="keep these dtypes")
    p.add_argument("--tier", default="all", choices=["all", "core", "smallint", "exotic", "linalg"])
    p.add_argument("--shard", metavar="i/n", help="the i-th of n disjoint parts")
    p.add_argument("--sample", type=int, metavar="N", help="a fixed pseudo-random N of those left")
    p.add_argument("--spread", type=int, metavar="N", help="a fixed N of those left, from all groups in turn")
    p.add_argument(
        "--transform",
        default="none",
        choices=["none", "vjp", "jvp", "vmap"],
        help="apply this JAX transformation inside the jit under test",
    )
    p.add_argument("--x64", action="store_true", help="enable 64-bit types")
    p.add_argument("--tol-scale", type=float, default=1.0, help="multiply JAX's tolerances (default 1: JAX's own)")
    p.add_argument("--jax-tolerances", action="store_true", help="JAX's tolerances even where the exact answer is known")
    p.add_argument("--no-xla", action="store_true", help="a harness during which XLA compiles is no pass")
    p.add_argument("--require-cache", action="store_true", help="a second call that traces again is no pass")
    p.add_argument(
        "--unsupported", action="append", default=[], metavar="MODULE:CLASS", help="exception that means unsupported"
    )
    p.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds for one harness (default 60)")
    p.add_argument("--start-timeout", type=float, default=120, metavar="S")
    p.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    p.add_argument("--recycle", type=int, default=1500, metavar="N", help="restart a worker after N harnesses (0: never)")
    p.add_argument("--reference-cache", metavar="DIR", help="keep reference results here and use them again")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--markdown", metavar="FILE")
    p.add_argument("--baseline", metavar="FILE", help="an earlier --json: name what passed then and does not now")
    p.add_argument("--write-baseline", metavar="FILE", help="keep the status of each harness here, for --baseline")
    p.add_argument("--strict", action="store_true", help="unsupported counts as a failure")
    p.add_argument("--allow-bad", action="store_true", help="with --baseline: only lost passes make the exit code 1")
    p.add_argument("--list", action="store_true", help="print names and leave")
    p.add_argument("--primitives", action="store_true", help="print the primitives reached, with counts, and leave")
    p.add_argument("--show-bad", action="store_true", help="print failures as they come")
    p.add_argument("-v", "--verbose", action="store_true", help="print every result")
    p.add_argument("-q", "--quiet", action="store_true")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args(argv)


def main(argv=None):
    argv = list(sys.argv[1:] if argv is None else argv)
    a = parse(argv)
    if a.worker:
        return worker_main(a)
    jax = setup_jax(a.x64)
    module, origin = load_harness_module(a.source)
    selected = select_harnesses(module.all_harnesses, a)
    if a.list:
        for h in selected:
            print(f"{h.group_name}\t{dtype_name(h)}\t{h.fullname}")
        print(f"# {len(selected)} harnesses", file=sys.stderr)
        return 0
    if a.primitives:
        list_primitives(a, selected)
        return 0
    if not selected:
        print("no harness selected", file=sys.stderr)
        return 2
    me = [sys.executable, os.path.abspath(__file__), *argv, "--worker"]
    results, wall = run_all(a, selected, me)
    report = summarise(a, results, wall, origin, jax.__version__)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(report, f, indent=1)
    if a.write_baseline:
        with open(a.write_baseline, "w") as f:
            json.dump(baseline_of(report), f, indent=1)
            f.write("\n")
    if a.markdown:
        with open(a.markdown, "w") as f:
            f.write(markdown(report))
    t = report["totals"]
    if not a.quiet:
        worst = sorted(report["by_group"].items(), key=lambda kv: -sum(kv[1].get(s, 0) for s in (*BAD, "unsupported")))
        for g, v in worst[:25]:
            if any(v.get(s) for s in (*BAD, "unsupported")):
                print(f"  {g:28s} " + "  ".join(f"{k} {n}" for k, n in v.items()))
        print(
            f"{wall:.0f} s; "
            + "  ".join(f"{s} {t[s]}" for s in STATUSES)
            + f"; XLA compiled in {report['xla_compiling']}"
            + f", traced again in {report['retracing']}"
        )
    code = 0
    bad = sum(t[s] for s in BAD) + (t["unsupported"] if a.strict else 0)
    if a.baseline:
        lost, won = compare_baseline(a.baseline, results)
        print(f"against {a.baseline}: {len(won)} newly pass, {len(lost)} lost")
        for n in lost[:50]:
            print("  lost", n)
        code = 1 if lost else 0
    if bad and not (a.baseline and a.allow_bad):
        code = 1
    print(f"conformance: {t['pass']} passed, {bad} failed, {t['skip'] + (0 if a.strict else t['unsupported'])} skipped")
    return code


if __name__ == "__main__":
    sys.exit(main())
