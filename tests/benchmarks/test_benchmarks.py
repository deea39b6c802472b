"""The suite of `make bench`: hand-written kernels are right, wrong results are noticed, the record can be read. No speeds."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from k3jit.benchmarks import report
from k3jit.benchmarks.__main__ import largest_difference, main
from k3jit.benchmarks.contestants import CONTESTANTS, Ready
from k3jit.benchmarks.handwritten import BOUND_BY_MEMORY, CEILINGS, Handwritten
from k3jit.benchmarks.timing import interleave
from k3jit.benchmarks.workloads import THIRTEEN, Workload, make, names


def ready(*results: np.ndarray) -> Ready:
    return Ready(lambda: None, list(results), 0.0)


def test_names_are_whole_and_the_thirteen_come_first() -> None:
    assert names()[:13] == THIRTEEN
    assert len(names()) == 35
    with pytest.raises(KeyError, match="matmul_512"):
        make("matmul_511")


@pytest.mark.parametrize("name", THIRTEEN)
def test_workloads_make_the_same_inputs_each_time(name: str) -> None:
    for a, b in zip(jax.tree.leaves(make(name).args), jax.tree.leaves(make(name).args), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in BOUND_BY_MEMORY if name != "adamw_200"])
def test_handwritten_kernels_compute_the_workload(name: str) -> None:
    workload = make(name)
    kernel = Handwritten(BOUND_BY_MEMORY[name](workload))
    kernel()
    expected = np.asarray(workload.function(*workload.args))
    np.testing.assert_allclose(kernel.results()[0], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_handwritten_adamw() -> None:
    launch = BOUND_BY_MEMORY["adamw_200"](make("adamw_200"))
    kernel = Handwritten(launch)
    kernel()
    params, grads = (np.asarray(launch.row[i], np.float64) for i in (0, 3))
    expected = params - 1e-3 * (grads / (np.abs(grads) + 1e-8) + 0.1 * params)  # after one step the moments are g and g squared
    np.testing.assert_allclose(kernel.results()[0], expected, rtol=0, atol=1e-6)


def test_the_ceiling_of_matmul_is_a_matrix_product() -> None:
    launch = CEILINGS["matmul_512"]()
    kernel = Handwritten(launch)
    kernel()
    a, b = (np.asarray(operand, np.float64) for operand in launch.row[:2])
    np.testing.assert_allclose(kernel.results()[0], a @ b, rtol=0, atol=1e-3)


@pytest.mark.parametrize("contestant", ["k3jit", "xla"])
def test_donated_state_moves_on(contestant: str) -> None:
    """What is carried is replaced by the results at each call, as in training."""
    start, step = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    found = CONTESTANTS[contestant](Workload(lambda state, step: (state + step, state.sum()), (start, step), carried=1))
    np.testing.assert_array_equal(found.results[0], start + 1)
    for calls in (2, 3):
        total = found.call()[1]  # type: ignore[index]
        np.testing.assert_array_equal(total, start.sum() + 6 * (calls - 1))
    assert found.first_seconds > 0


def test_differences_are_noticed() -> None:
    x = np.array([1.0, -4.0, np.nan], np.float32)
    assert largest_difference(ready(x), ready(x)) == 0
    assert largest_difference(ready(x + np.float32(0.4)), ready(x)) == pytest.approx(0.1)
    assert largest_difference(ready(np.nan_to_num(x)), ready(x)) == np.inf
    assert largest_difference(ready(x[:2]), ready(x)) == np.inf


def test_interleave_counts_every_candidate() -> None:
    calls: list[str] = []
    times = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert {name: entry.samples for name, entry in times.items()} == {"a": 3, "b": 3}
    assert all(0 < entry.minimum <= entry.median for entry in times.values())


def test_means_are_geometric_and_leave_out_what_was_not_measured() -> None:
    def entry(ours: float, theirs: float) -> report.Record:
        return {"against": {"xla": {"k3jit": {"median": ours}, "xla": {"median": theirs}}}}

    found = report.summary(
        {"axpb_1m": entry(1.0, 2.0), "chain_1m": entry(8.0, 1.0), "sort_1m": entry(1e6, 1.0), "attn_fwd": {}}
    )
    assert found["xla"]["time_ratio"] == pytest.approx(2.0)
    assert found["xla"]["slowest_ratio"] == 8.0
    assert found["iree"] == {"workloads": 0, "time_ratio": None, "slowest_ratio": None, "cold_ratio": None}


def test_the_command_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "axpb_1m",
        "normal_1m",
        "--peers",
        "xla,hand",
        "--rounds",
        "5",
        "--seconds",
        "1",
        "--cold",
        "--out",
        str(tmp_path),
    ]
    assert main([*options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "bench.json").read_text())
    assert set(record["workloads"]) == {"axpb_1m", "normal_1m"}
    assert set(record["workloads"]["axpb_1m"]["against"]) == {"xla", "hand"}
    assert set(record["workloads"]["normal_1m"]["against"]) == {"xla"}
    assert set(record["workloads"]["axpb_1m"]["cold_seconds"]) == {"k3jit", "xla"}
    assert record["ceilings"]["fma"]["gflops"] > 0
    table = (tmp_path / "bench.md").read_text()
    assert "| axpb_1m |" in table and "GB/s" in table


def test_the_command_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matmul_511"]) == 2
    assert "matmul_512" in capsys.readouterr().err
