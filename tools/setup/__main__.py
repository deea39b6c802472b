"""`make setup`: a Vulkan device, then a virtual environment. Quick when both are there; standard library only.

With --layer the Khronos validation layer too, which the tests need. Other arguments name extras of pyproject.toml.
"""

from __future__ import annotations

import os
import sys

import machine
import virtual_environment
from owner import become_owner
from steps import SetupError


def main(arguments: list[str]) -> int:
    extras = [argument for argument in arguments if argument != "--layer"]
    try:
        if os.environ.get("K3JIT_SKIP_DRIVER") != "1":
            machine.ensure_device()
            if "--layer" in arguments:
                machine.ensure_layer()
        machine.ensure_venv_module()
        become_owner()
        virtual_environment.ensure_environment(extras)
    except SetupError as error:
        print(f"\nsetup stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
