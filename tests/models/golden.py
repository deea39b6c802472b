"""Reading the reference cases, and comparing within the bounds stated for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = Path(__file__).parent.parent / "cases"
TEXT_CASES = ("k3_kda", "k3_mla", "k3_hybrid", "k3_medium", "kimi_linear")


@lru_cache
def known_answers() -> dict[str, Any]:
    return json.loads((CASES / "known_answers.json").read_text())


@dataclass(frozen=True)
class Case:
    name: str
    meta: dict[str, Any]
    expected: dict[str, np.ndarray]

    @property
    def path(self) -> Path:
        return GOLDEN / self.name

    @property
    def input_ids(self) -> np.ndarray:
        return self.expected["input_ids"].astype(np.int32)

    @property
    def logits(self) -> np.ndarray:
        return self.expected.get("logits_f64", self.expected["logits"])

    @property
    def logits_bound(self) -> float:
        if "float_noise" not in self.meta:
            return max(1e-5 * float(np.abs(self.logits).max()), 1e-4)
        return max(4 * self.meta["float_noise"]["logits_f32_vs_f64_max"], 1e-5)

    @property
    def grad_bound(self) -> float:
        if "float_noise" not in self.meta:
            return 2e-4
        return max(4 * self.meta["float_noise"]["grad_f32_vs_f64_max_rel_to_tensor_max"], 2e-5)

    def stage_names(self) -> list[str]:
        """Keys of layer outputs, mixes, states and routing weights."""
        plain = {"embed", "output_mix", "final_hidden"}
        return [key for key in self.expected if key in plain or key.startswith(("layers.", "kda.")) or "topk_weights" in key]


@lru_cache
def load_case(name: str) -> Case:
    folder = GOLDEN / name
    return Case(name, json.loads((folder / "meta.json").read_text()), load_file(folder / "expected.safetensors"))


def summary(values: np.ndarray) -> np.ndarray:
    """Sum, sum of magnitudes, l2 norm, largest magnitude and a cosine-weighted sum."""
    flat = np.asarray(values, np.float64).reshape(-1)
    wave = np.cos(0.7 * np.arange(flat.size))
    return np.array([flat.sum(), np.abs(flat).sum(), np.sqrt((flat * flat).sum()), np.abs(flat).max(), (flat * wave).sum()])


def like(values: Any, reference: np.ndarray) -> np.ndarray:
    """In float64, with the padding of A_log cut off where the reference has none."""
    values = np.asarray(values, np.float64)
    if values.shape != reference.shape and values.ndim == reference.ndim == 1:
        values = values[: reference.shape[0]]
    assert values.shape == reference.shape
    return values


def relative_error(values: Any, reference: np.ndarray) -> float:
    """Largest difference as a share of the reference's largest entry."""
    difference = np.abs(like(values, reference) - reference).max()
    return float(difference / max(float(np.abs(reference).max()), 1e-30))


def failures(errors: dict[str, float], bound: float) -> dict[str, float]:
    """Those above the bound; NaN counts."""
    return {name: error for name, error in errors.items() if not error <= bound}
