"""Under `sudo make`, files of a tree that belongs to the caller should stay the caller's.

As a script it runs a command that way: python owner.py COMMAND ARGUMENT...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def become_owner(root: Path = ROOT) -> None:
    """Gives root's rights up for good when sudo was called by the user who owns `root`; else does nothing."""
    caller = int(os.environ.get("SUDO_UID", "0"))
    if os.name != "posix" or os.geteuid() != 0 or caller == 0 or root.stat().st_uid != caller:
        return
    import pwd

    account = pwd.getpwuid(caller)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(caller)
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)


if __name__ == "__main__":
    become_owner()
    os.execvp(sys.argv[1], sys.argv[1:])
