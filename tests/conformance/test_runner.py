"""The runner notices wrong jits. Needs no Vulkan device: the jits under test are broken ones on JAX's CPU backend."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness.comparison import settle_ties  # noqa: E402
from harness.pool import WorkerHandle  # noqa: E402
from harness.worker import Worker  # noqa: E402
from run_harnesses import parse  # noqa: E402


def first_of(group: str, worker: Worker) -> str:
    return min(name for name, harness in worker.by_name.items() if harness.group_name == group and "float32" in name)


@pytest.fixture(autouse=True)
def keep_numpy_state():
    """Loading the harnesses seeds NumPy's global generator."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def judge(jit: str, *options: str) -> dict:
    worker = Worker(parse(["--jit", jit, "--path", str(HERE), *options]))
    return worker.run(first_of("cos", worker))


@pytest.mark.parametrize(
    ("jit", "options", "status", "kind"),
    [
        ("jax:jit", ["--require-cache"], "pass", None),
        ("jax:jit", ["--no-xla"], "fallback", None),
        ("broken_jits:zeros", [], "fail", "value"),
        ("broken_jits:frozen", [], "fail", "value"),
        ("broken_jits:low_precision", [], "fail", "value"),
        ("broken_jits:noop", ["--require-cache"], "fail", "retrace"),
    ],
)
def test_verdict(jit: str, options: list[str], status: str, kind: str | None) -> None:
    result = judge(jit, *options)
    assert (result["status"], result.get("kind")) == (status, kind), result


def test_half_precision_may_agree_with_float32_instead_but_not_with_nothing() -> None:
    worker = Worker(parse(["--jit", "broken_jits:zeros", "--path", str(HERE)]))
    halves = [name for name in worker.by_name if name.startswith("integer_pow") and "float16" in name and "y_4" in name]
    assert halves and all(worker.run(name)["status"] == "fail" for name in halves)


def test_a_refusal_is_not_a_failure() -> None:
    worker = Worker(parse(["--jit", "broken_jits:unsupported", "--path", str(HERE)]))
    assert worker.run(first_of("sort", worker))["status"] == "unsupported"


def test_a_crash_and_a_hang_cost_one_harness_each() -> None:
    name = first_of("cos", Worker(parse([])))
    for jit, status in (("broken_jits:crash", "crash"), ("broken_jits:hang", "timeout")):
        script = [sys.executable, str(HERE / "run_harnesses.py"), "--jit", jit, "--path", str(HERE), "--worker"]
        handle = WorkerHandle(script, start_timeout=120)
        try:
            assert handle.ask(name, timeout=2)["status"] == status
        finally:
            handle.stop()


def test_order_among_equal_keys_is_free_only_where_the_sort_is_unstable() -> None:
    keys, first, second = np.array([1, 1, 2, 2, 1]), np.array([5, 4, 3, 2, 1]), np.array([4, 5, 2, 3, 1])
    settled = [[array.tolist() for _, array in settle_ties([("k", keys), ("v", values)], 0, 1)] for values in (first, second)]
    # Keys keep their places, sorted or not: a wrong order of keys is still seen.
    assert settled[0] == settled[1] == [[1, 1, 2, 2, 1], [4, 5, 2, 3, 1]]
    worker = Worker(parse(["--jit", "broken_jits:zeros", "--path", str(HERE)]))
    unstable = [name for name in worker.by_name if name.startswith("sort_multiple_arrays") and "isstable_False" in name]
    assert unstable and all(worker.run(name)["status"] == "fail" for name in unstable)
