"""The example a newcomer tries first works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[2] / "README.md"


def test_first_example(capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {"__name__": "example"}
    exec(compile(blocks[0], str(README), "exec"), names)
    printed = capsys.readouterr().out
    # tanh(0) - 1 squared.
    assert printed.startswith("1.0\n")
    gradient = names["jax"].grad(names["loss"])(names["w"], names["x"], names["y"])
    np.testing.assert_allclose(gradient, np.full((3, 2), -1.0), rtol=1e-6)
