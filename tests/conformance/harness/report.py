"""Results as tables, JSON, Markdown, and a baseline to hold later runs against."""

from __future__ import annotations

import collections
import json

BAD = ("fail", "error", "fallback", "timeout", "crash")
STATUSES = ("pass", "fail", "unsupported", "error", "fallback", "timeout", "crash", "skip")


def tabulate(results, key):
    table = {}
    for r in results:
        keys = r.get(key, [])
        for k in keys if isinstance(keys, list) else [keys]:
            table.setdefault(k, collections.Counter())[r["status"]] += 1
    return {k: {s: v[s] for s in STATUSES if v[s]} for k, v in sorted(table.items())}


def summarise(a, results, wall, origin, jax_version):
    count = collections.Counter(r["status"] for r in results)
    by_prim = tabulate(results, "primitives")
    return {
        "meta": {
            "jit": a.jit,
            "jax": jax_version,
            "harness_source": origin,
            "transform": a.transform,
            "x64": a.x64,
            "tol_scale": a.tol_scale,
            "tier": a.tier,
            "dtype": a.dtype,
            "filter": a.filter,
            "shard": a.shard,
            "no_xla": a.no_xla,
            "wall_seconds": round(wall, 1),
            "harnesses": len(results),
        },
        "totals": {s: count[s] for s in STATUSES},
        "by_group": tabulate(results, "group"),
        "by_dtype": tabulate(results, "dtype"),
        "by_primitive": by_prim,
        "unsupported_reasons": dict(
            collections.Counter(r.get("message", "") for r in results if r["status"] == "unsupported").most_common()
        ),
        # Passing twice without ever compiling is what a real backend looks like.
        "xla_compiling": sum(1 for r in results if r.get("xla_compiles")),
        "retracing": sum(1 for r in results if r["status"] == "pass" and r.get("traces", 1) > 1),
        "results": results,
    }


def baseline_of(report):
    """What is kept of a report to hold later runs against: the selection, the counts, and what does not pass.

    All that is not named must pass, a harness that comes with a later JAX included.
    """
    return {
        "meta": {k: report["meta"][k] for k in ("jit", "jax", "tier", "dtype", "filter", "transform", "no_xla")},
        "totals": report["totals"],
        "by_group": report["by_group"],
        "not_passing": {r["name"]: r["status"] for r in report["results"] if r["status"] != "pass"},
    }


def compare_baseline(path, results):
    """Names that passed in the earlier report or baseline and don't now, and the other way round."""
    with open(path) as f:
        kept = json.load(f)
    now = {r["name"]: r["status"] for r in results}
    if "not_passing" in kept:
        old = {name: kept["not_passing"].get(name, "pass") for name in now}
    else:
        old = {r["name"]: r["status"] for r in kept["results"]}
    lost = sorted(n for n, s in old.items() if s == "pass" and now.get(n, "pass") != "pass")
    won = sorted(n for n, s in now.items() if s == "pass" and old.get(n) not in (None, "pass"))
    return lost, won


def markdown(report):
    m, t = report["meta"], report["totals"]
    lines = [
        f"# Conformance of `{m['jit']}`",
        "",
        f"jax {m['jax']}, transform {m['transform']}, tier {m['tier']}, "
        f"x64 {'on' if m['x64'] else 'off'}, {m['harnesses']} harnesses, "
        f"{m['wall_seconds']} s",
        "",
        "| status | count |",
        "|---|---|",
    ]
    lines += [f"| {s} | {t[s]} |" for s in STATUSES if t[s]]
    for title, key in (("group", "by_group"), ("primitive", "by_primitive"), ("dtype", "by_dtype")):
        used = [s for s in STATUSES if any(s in v for v in report[key].values())]
        lines += ["", f"## By {title}", "", f"| {title} | " + " | ".join(used) + " |", "|---|" + "---|" * len(used)]
        lines += [f"| {k} | " + " | ".join(str(v.get(s, 0)) for s in used) + " |" for k, v in report[key].items()]
    if report["unsupported_reasons"]:
        lines += ["", "## Why unsupported", ""]
        lines += [f"- {n} x {msg}" for msg, n in list(report["unsupported_reasons"].items())[:40]]
    return "\n".join(lines) + "\n"
