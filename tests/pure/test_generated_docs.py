"""Pages made from the code say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_generated_pages_are_up_to_date() -> None:
    script = Path(__file__).parents[2] / "tools" / "make_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
