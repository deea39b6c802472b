"""Text, training and its outputs."""

from __future__ import annotations

import csv
import os
import signal
import struct
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from k3jit.models import k3, text
from k3jit.models import train as training
from k3jit.models.generate import decode, encode, verify_cache
from k3jit.models.plot import line_chart

from .test_model import small


def tiny_text() -> np.ndarray:
    return np.frombuffer(b"the cat sat on the mat. " * 40, np.uint8)


def narrow() -> k3.Config:
    return small(vocab_size=260, num_hidden_layers=2, kda_layers=(1,), full_attn_layers=(2,), pad_token_id=258)


def test_load_text(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("second")
    (tmp_path / "a.txt").write_text("first é")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe latin")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_text("no")
    assert bytes(text.load_text(tmp_path)).decode() == "first é\n\nsecond"
    assert bytes(text.load_text(tmp_path / "c.bin")) == b"\0\1\2"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no text"):
        text.load_text(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        text.load_text(tmp_path / "missing")


def test_batches_and_entropy() -> None:
    tokens = np.arange(10, dtype=np.uint8)
    batch = text.sample_batch(tokens, np.random.default_rng(0), 50, 9)
    assert batch.shape == (50, 9)
    assert batch.dtype == np.int32
    assert set(batch[:, 0]) == {0, 1}
    np.testing.assert_allclose(text.unigram_entropy(tokens), np.log(10), rtol=1e-6)
    with pytest.raises(ValueError, match="fewer than one window"):
        text.sample_batch(tokens, np.random.default_rng(0), 1, 11)


def test_prompt_bytes() -> None:
    assert decode(encode("héllo")[0]) == "héllo"
    assert decode(np.asarray([104, 257, 105])) == "hi"
    with pytest.raises(ValueError, match="empty"):
        encode("")


def test_training_learns_and_writes_a_loadable_checkpoint(tmp_path: Path) -> None:
    result = training.train(
        narrow(), tiny_text(), steps=30, batch=4, length=32, lr=1e-2, out_dir=tmp_path, jit=jax.jit, progress=False
    )
    assert result.losses[0] > 4.5
    assert result.final_loss < result.losses[0] - 1.5
    assert k3.Config.from_pretrained(tmp_path) == narrow()
    assert verify_cache(tmp_path, jit=jax.jit) <= 1e-5
    with (tmp_path / "loss.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "loss"]
    assert len(rows) == 31
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "loss.csv", "loss.png", "model.safetensors"]


def test_interrupt_finishes_the_step_and_saves(tmp_path: Path) -> None:
    calls = []

    def interrupting(function, **options):
        compiled = jax.jit(function, **options)

        def step(*args):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return compiled(*args)

        return step

    before = signal.getsignal(signal.SIGINT)
    result = training.train(
        narrow(), tiny_text(), steps=50, batch=2, length=16, lr=1e-3, out_dir=tmp_path, jit=interrupting, progress=False
    )
    assert result.interrupted
    assert len(result.losses) == 3
    assert signal.getsignal(signal.SIGINT) is before
    loaded = k3.load_params(tmp_path, narrow())
    jax.tree.map(np.testing.assert_array_equal, loaded, jax.tree.map(np.asarray, result.params))


def test_untrained_parameters_stay(tmp_path: Path) -> None:
    config = narrow()
    result = training.train(
        config, tiny_text(), steps=2, batch=2, length=16, lr=1e-2, out_dir=tmp_path, jit=jax.jit, progress=False
    )
    first = result.params["layers"][0]
    np.testing.assert_array_equal(first["self_attention_res_norm"], np.ones(config.hidden_size))
    assert not np.any(result.params["layers"][1]["block_sparse_moe"]["e_score_correction_bias"])
    assert np.any(first["mlp_res_norm"] != 1)


def test_chart_is_a_valid_png(tmp_path: Path) -> None:
    line_chart(tmp_path / "a.png", [5.0, 4.0, float("nan"), 3.0], "loss", reference=3.5)
    data = (tmp_path / "a.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    (size,) = struct.unpack(">I", data[start - 4 : start])
    pixels = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + size]), np.uint8).reshape(height, 1 + 3 * width)
    assert not pixels[:, 0].any()
    assert len(np.unique(pixels[:, 1:].reshape(-1, 3), axis=0)) == 5
    line_chart(tmp_path / "one.png", [2.0], "loss")
