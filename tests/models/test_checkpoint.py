"""Configurations and checkpoints: what is read, written and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from k3jit.models import k3
from safetensors.numpy import load_file

from .golden import GOLDEN, TEXT_CASES
from .test_model import random_ids, small


@pytest.mark.parametrize("name", TEXT_CASES)
def test_released_names_and_values_come_back(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / name
    config = k3.Config.from_pretrained(folder)
    assert k3.Config.from_dict(config.to_dict()) == config
    params = k3.load_params(folder, config)
    k3.save_pretrained(tmp_path, params, config)
    assert k3.Config.from_pretrained(tmp_path) == config
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value.astype(np.float32))
    count = sum(value.size for key, value in before.items() if not key.endswith("A_log"))
    assert count == k3.count_parameters(config) - config.kda_num_heads * len(config.kda_layers)


def test_shards_and_formats(tmp_path: Path) -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    k3.save_pretrained(tmp_path, params, config, max_shard_size=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    assert set(index["weight_map"]) == set(k3.to_named(params, config))
    jax.tree.map(np.testing.assert_array_equal, k3.load_params(tmp_path, config), params)
    k3.save_pretrained(tmp_path, params, config, format="bfloat16")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".json"] == ["model.safetensors"]
    narrow = k3.load_params(tmp_path, config)
    rounded = np.asarray(params["lm_head"]).astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(narrow["lm_head"], rounded)
    np.testing.assert_array_equal(narrow["layers"][0]["self_attn"]["dt_bias"], params["layers"][0]["self_attn"]["dt_bias"])
    for format in ("mxfp4", "float8"):
        with pytest.raises((NotImplementedError, ValueError), match=format):
            k3.save_pretrained(tmp_path, params, config, format=format)


def test_a_log_padding_is_kept_and_never_used(tmp_path: Path) -> None:
    config = small()
    params = k3.init_params(config, jax.random.key(0))
    stored = np.full(128, np.nan, np.float32)
    stored[:2] = 0.5
    params["layers"][0]["self_attn"]["A_log"] = stored
    k3.save_pretrained(tmp_path, params, config)
    loaded = k3.load_params(tmp_path, config)
    np.testing.assert_array_equal(loaded["layers"][0]["self_attn"]["A_log"], stored)
    assert np.isfinite(k3.forward(loaded, config, random_ids(config, 1, 4))).all()


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    config = small()
    named = {name: np.asarray(value) for name, value in k3.to_named(k3.init_params(config, jax.random.key(0)), config).items()}
    head = "language_model.lm_head.weight"
    with pytest.raises(ValueError, match=r"1 tensors missing: language_model\.lm_head\.weight"):
        k3.from_named({name: value for name, value in named.items() if name != head}, config)
    with pytest.raises(ValueError, match="not of this model: extra"):
        k3.from_named(named | {"extra": np.zeros(1)}, config)
    with pytest.raises(ValueError, match=r"lm_head\.weight has shape \[16, 32\], expected \[32, 16\]"):
        k3.from_named(named | {head: named[head].T}, config)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        k3.load_params(tmp_path, config)


def changed(**changes: Any) -> dict[str, Any]:
    raw = json.loads((GOLDEN / "k3_hybrid" / "config.json").read_text())
    for key, value in changes.items():
        target = (
            raw["text_config"]["linear_attn_config"] if key in raw["text_config"]["linear_attn_config"] else raw["text_config"]
        )
        target[key] = value
    return raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (changed(some_new_switch=True), r"unknown fields \['some_new_switch'\] in text_config"),
        (changed() | {"surprise": 1}, r"unknown fields \['surprise'\]"),
        (changed(kda_layers=[1, 2, 3]), "each of the layers 1..7 once"),
        (changed(kda_layers=[1, 2, 3, 4, 5, 6]), "each of the layers 1..7 once"),
        (changed(hidden_act="gelu"), "hidden_act 'gelu'"),
        (changed(num_experts_per_token=9), "between 1 and num_experts 5"),
        (changed(num_key_value_heads=1), "num_key_value_heads is 1; only 2"),
        (changed(mla_use_nope=False), "mla_use_nope is False"),
        (changed(topk_method="greedy"), "topk_method is 'greedy'"),
        (changed(num_nextn_predict_layers=1), "num_nextn_predict_layers is 1"),
        (changed(bos_token_id=7), "bos_token_id is 1 at the top and 7 in text_config"),
        (changed(num_expert_group=2), "does not divide into 2 groups"),
        (changed(gate_lower_bound=5.0), "gate_lower_bound must be negative"),
        (changed() | {"model_type": "llama"}, "model_type is 'llama'"),
        (changed() | {"text_config": None}, "needs a text_config"),
    ],
)
def test_config_errors(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        k3.Config.from_dict(raw)


def test_config_that_asks_for_more() -> None:
    with pytest.raises(NotImplementedError, match="vision"):
        k3.Config.from_dict(changed() | {"vision_config": {"depth": 2}})
    with pytest.raises(NotImplementedError, match="MXFP4"):
        k3.Config.from_dict(changed(quantization_config={"format": "mxfp4-pack-quantized"}))
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        k3.Config.from_pretrained("/nonexistent")


def test_tiny_has_every_part() -> None:
    config = k3.tiny()
    assert 1_000_000 <= k3.count_parameters(config) <= 2_000_000
    layers = range(config.num_hidden_layers)
    assert {config.is_kda(layer) for layer in layers} == {config.is_moe(layer) for layer in layers} == {True, False}
    assert sum(config.opens_block(layer) for layer in layers) == 2
    assert config.hidden_act == "situ"
    assert config.num_shared_experts > 0
