"""Settings: each declared once, with type, default and help; read from K3JIT_<NAME>; settable as `k3jit.config.<name> = value`.

The module itself is the settings object: reading an attribute gives the value, assigning checks and sets it, and
`with k3jit.config.override(fuse=False):` sets it for a while. `docs/env_vars.md` is printed by `markdown()`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A declared setting.

    Attributes:
        name: attribute name; the environment variable is K3JIT_ and the name in capitals.
        parse: turns text (or a value) into the value; raises ValueError with what is accepted.
        default: value when neither set nor in the environment.
        keyed: changes what is compiled, so it is part of every cache key.
        accepts: what may be written, for the table.
        help: one or two sentences.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    keyed: bool
    accepts: str
    help: str

    @property
    def variable(self) -> str:
        return f"K3JIT_{self.name.upper()}"


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("1", "true", "on", "yes"):
        return True
    if text in ("0", "false", "off", "no", ""):
        return False
    raise ValueError("0 or 1")


def _level(value: Any) -> int:
    level = int(value)
    if not 0 <= level <= 5:
        raise ValueError("a number from 0 to 5")
    return level


def _text(value: Any) -> str | None:
    return None if value is None or str(value).strip() == "" else str(value)


def _size(value: Any) -> int:
    size = int(value)
    if size < 0:
        raise ValueError("a number of mebibytes, not below 0")
    return size


def _choice(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = {"1": "warn", "true": "warn", "0": "ignore", "false": "ignore", "": "ignore"}.get(
            str(value).lower(), str(value).lower()
        )
        if text not in names:
            raise ValueError(" or ".join(names))
        return text

    return parse


_ACTION = _choice("ignore", "warn", "error")
SETTINGS: dict[str, Setting] = {}


def _declare(name: str, parse: Callable[[Any], Any], default: Any, accepts: str, help: str, keyed: bool = False) -> None:
    SETTINGS[name] = Setting(name, parse, default, keyed, accepts, help)


_declare(
    "debug", _level, 0, "0 to 5",
    "Prints, each level with those below: 1 every compilation (name, time, kernels), 2 the time of each kernel of each call, "
    "3 fusion decisions with their reasons, 4 tile IR, 5 SPIR-V assembly.",
)  # fmt: skip
_declare("dump_to", _text, None, "a folder", "Writes every stage of each compilation into NNN_function/ below it.")
_declare(
    "check", _flag, False, "0 or 1",
    "Checked mode: verifiers after each pass, spirv-val, the hazard checker, and kernels that test every address against the "
    "buffer's range.",
    keyed=True,
)  # fmt: skip
_declare(
    "check_nan", _flag, False, "0 or 1",
    "Looks at the results of every call and raises FloatingPointError when one holds a NaN. Waits for the device each time.",
)  # fmt: skip
_declare(
    "fuse", _flag, True, "0 or 1",
    "0 gives each operation its own kernel: slow, to find out whether fusion is at fault.",
    keyed=True,
)  # fmt: skip
_declare(
    "compact", _flag, False, "0 or 1",
    "1 writes short kernels: loops stay loops and little is fused. For tools that multiply code, such as GPU-assisted "
    "validation, and for drivers that compile slowly.",
    keyed=True,
)  # fmt: skip
_declare(
    "loops", _flag, True, "0 or 1",
    "0 dispatches every turn of a scan by itself instead of making one kernel of the scan where its slices are independent.",
    keyed=True,
)  # fmt: skip
_declare(
    "device", _text, None, "index, part of a name, or null",
    "Device used by default; `null` needs no Vulkan and interprets kernels. Default: discrete, integrated, virtual, cpu, in "
    "this order.",
    keyed=True,
)  # fmt: skip
_declare(
    "cache_dir", _text, None, "a folder, or off",
    "Where plans, SPIR-V and pipelines are kept between processes. Default: $XDG_CACHE_HOME/k3jit or ~/.cache/k3jit.",
)  # fmt: skip
_declare(
    "cache_mib", _size, 1024, "mebibytes",
    "Bound on the plans kept in the cache folder; the least recently used go first.",
)  # fmt: skip
_declare(
    "cache_entries", _size, 4096, "a number",
    "Bound on the signatures that one jitted function keeps in memory; the oldest go first.",
)  # fmt: skip
_declare(
    "validate", _text, None, "1 (core, sync), all, or a list of core, sync, gpu",
    "Turns on the Khronos validation layer when Vulkan is first used. Read from the environment only.",
)  # fmt: skip
_declare(
    "warn_transfer", _ACTION, "ignore", "ignore, warn (or 1), error",
    "What to do when an eager operation copies a device array to the CPU.",
)  # fmt: skip
_declare(
    "warn_inline", _ACTION, "warn", "ignore, warn (or 1), error",
    "What to do when a k3jit function is compiled by an outer jax.jit or an eager scan, cond or while_loop, and so leaves the "
    "Vulkan device.",
)  # fmt: skip
_declare("explain_cache_misses", _flag, False, "0 or 1", "Says at each retrace which part of the key was new.")


class _Config(ModuleType):
    """The type of this module: attributes are settings."""

    def __getattr__(self, name: str) -> Any:
        if name in SETTINGS:
            return value(name)
        raise AttributeError(f"k3jit.config has no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __setattr__(self, name: str, new: Any) -> None:
        if name in SETTINGS:
            update(name, new)
        elif name.startswith("_"):
            super().__setattr__(name, new)
        else:
            raise AttributeError(f"k3jit.config has no setting {name!r}; there are {', '.join(SETTINGS)}")

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *SETTINGS])


_values: dict[str, Any] = {}
_key: list[tuple[Any, ...] | None] = [None]


def value(name: str) -> Any:
    """Value of a setting: what was assigned, else the environment's, else the default.

    Raises:
        ValueError: the environment variable does not hold what the setting accepts.
    """
    if name not in _values:
        setting = SETTINGS[name]
        text = os.environ.get(setting.variable)
        _values[name] = setting.default if text is None else _parsed(setting, text, setting.variable)
    return _values[name]


def update(name: str, new: Any) -> None:
    """Set `name`; `None` goes back to the environment or the default."""
    if name not in SETTINGS:
        raise AttributeError(f"k3jit.config has no setting {name!r}; there are {', '.join(SETTINGS)}")
    _key[0] = None
    if new is None:
        _values.pop(name, None)
    else:
        _values[name] = _parsed(SETTINGS[name], new, f"k3jit.config.{name}")


@contextmanager
def override(**settings: Any) -> Iterator[None]:
    """Set some settings inside a `with` block."""
    before = {name: value(name) for name in settings}
    try:
        for name, new in settings.items():
            update(name, new)
        yield
    finally:
        for name, old in before.items():
            _values[name] = old
        _key[0] = None


def key() -> tuple[Any, ...]:
    """Values of all settings that decide generated code."""
    found = _key[0]
    if found is None:
        found = _key[0] = tuple(value(s.name) for s in SETTINGS.values() if s.keyed)
    return found


def markdown() -> str:
    """The settings as a Markdown page."""
    lines = [
        "# Settings",
        "",
        "Each is an environment variable and an attribute of `k3jit.config`. This page is generated: `make docs`.",
        "",
        "| variable | attribute | accepts | default | recompiles | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for s in SETTINGS.values():
        default = "none" if s.default is None else f"{int(s.default) if isinstance(s.default, bool) else s.default}"
        lines.append(f"| `{s.variable}` | `{s.name}` | {s.accepts} | {default} | {'yes' if s.keyed else 'no'} | {s.help} |")
    return "\n".join(lines) + "\n"


def _parsed(setting: Setting, new: Any, where: str) -> Any:
    try:
        return setting.parse(new)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}={new!r} is not valid: it takes {setting.accepts} ({error})") from None


sys.modules[__name__].__class__ = _Config

if __name__ == "__main__":
    print(markdown(), end="")
