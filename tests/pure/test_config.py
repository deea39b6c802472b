"""Settings: parsing, precedence, the key, and the page made from them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import k3jit
from k3jit import config

ROOT = Path(__file__).parents[2]


def test_page_is_current() -> None:
    assert (ROOT / "docs" / "env_vars.md").read_text() == config.markdown(), "run `make docs`"


def test_assignment_and_override() -> None:
    assert config.fuse is True
    with config.override(fuse=False, warn_transfer="1"):
        assert k3jit.config.fuse is False and config.warn_transfer == "warn"
    assert config.fuse is True and config.warn_transfer == "ignore"
    config.debug = 1
    assert config.value("debug") == 1
    config.debug = None
    assert config.debug == 0


def test_only_keyed_settings_change_the_key() -> None:
    before = config.key()
    with config.override(warn_transfer="warn", cache_mib=3):
        assert config.key() == before
    with config.override(check=not config.value("check")):
        assert config.key() != before
    assert config.key() == before


def test_wrong_names_and_values() -> None:
    with pytest.raises(AttributeError, match="no setting 'fusion'; there are debug, dump_to"):
        config.fusion = 1
    with pytest.raises(AttributeError, match="no setting"):
        _ = config.fusion
    with pytest.raises(ValueError, match=r"k3jit.config.debug=9 is not valid: it takes 0 to 5"):
        config.debug = 9
    with pytest.raises(ValueError, match="ignore, warn"):
        config.warn_transfer = "perhaps"


def test_environment() -> None:
    script = "from k3jit import config; print(config.debug, config.fuse, config.device)"
    environment = {**os.environ, "K3JIT_DEBUG": "3", "K3JIT_FUSE": "0", "K3JIT_DEVICE": "null"}
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["3", "False", "null"]
    environment["K3JIT_DEBUG"] = "x"
    wrong = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "K3JIT_DEBUG='x' is not valid: it takes 0 to 5" in wrong.stderr


def test_every_setting_is_described() -> None:
    for setting in config.SETTINGS.values():
        assert setting.help.endswith(".") and setting.accepts and setting.variable in config.markdown()
        assert setting.name in dir(config)
