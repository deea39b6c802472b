"""A fixed sample of JAX's own harnesses, from every core group, computed by k3jit without any help of XLA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
SAMPLE = ["--tier", "core", "--dtype", "f32,i32,u32,bool", "--spread", "120"]


def run(*options: str, report: Path) -> dict:
    command = [sys.executable, str(HERE / "run_harnesses.py"), *options, "--quiet", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False)
    assert report.is_file(), f"the runner wrote no report:\n{done.stdout}\n{done.stderr}"
    return json.loads(report.read_text())


def test_sample_loses_nothing_against_the_baseline(tmp_path: Path) -> None:
    expected = json.loads(BASELINE.read_text())["not_passing"]
    report = run("--jit", "k3jit:jit", *SAMPLE, "--no-xla", "--require-cache", "--jobs", "1", report=tmp_path / "report.json")
    assert len(report["results"]) == 120
    lost = [
        f"{result['name']}: {result['status']} {result.get('message', '')}"
        for result in report["results"]
        if result["status"] != "pass" and expected.get(result["name"], "pass") == "pass"
    ]
    assert not lost, "\n".join(lost)


def test_baseline_holds_no_wrong_answer() -> None:
    """What is not supported is refused with its own error: nothing may fail, hang or crash."""
    totals = json.loads(BASELINE.read_text())["totals"]
    assert {status: totals.get(status, 0) for status in ("fail", "error", "fallback", "timeout", "crash")} == dict.fromkeys(
        ("fail", "error", "fallback", "timeout", "crash"), 0
    )
    assert totals["pass"] > 0
