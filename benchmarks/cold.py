"""Time from a function to its first results, in a process of its own, with no cache of ours, of JAX or of the driver.

`python -m k3jit.benchmarks.cold WORKLOAD CONTESTANT` measures in this process, with the caches that it finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from .contestants import CONTESTANTS
from .workloads import make

SECONDS = 900
CACHES = (
    "K3JIT_CACHE_DIR",
    "XDG_CACHE_HOME",
    "MESA_SHADER_CACHE_DIR",
    "AMD_SHADER_DISK_CACHE_PATH",
    "__GL_SHADER_DISK_CACHE_PATH",
)


def first_seconds(workload: str, contestant: str) -> float:
    """Seconds to the first results, imports and the choice of a device left out.

    Raises:
        RuntimeError: the process failed; the end of what it said.
        subprocess.TimeoutExpired: it took longer than `SECONDS`.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
        environment |= {name: folder for name in CACHES}
        command = [sys.executable, "-m", __name__, workload, contestant]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{contestant} failed on {workload}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(CONTESTANTS[sys.argv[2]](make(sys.argv[1])).first_seconds))
