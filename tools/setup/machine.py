"""The parts of setup that belong to the system: a Vulkan loader and driver, and Python's venv module."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apt_sources
from steps import NoRights, Run, SetupError, Step, Write, apt, perform

PROBE = Path(__file__).with_name("vulkan_probe.py")
DRIVER_PACKAGES = ("libvulkan1", "mesa-vulkan-drivers")
LAYER = "VK_LAYER_KHRONOS_validation"
# Mesa before this loops over the lanes at each load: lavapipe 22.3.6 measures 5 to 10 times slower than 25.0.7.
OLDEST_FAST_MESA = 23
DRIVER_OVERRIDES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
# How other systems get a loader and a driver that needs no GPU, by the ID or ID_LIKE of os-release.
ADVICE = {
    "fedora": "dnf install vulkan-loader mesa-vulkan-drivers",
    "rhel": "dnf install vulkan-loader mesa-vulkan-drivers",
    "arch": "pacman -S vulkan-icd-loader vulkan-swrast",
    "suse": "zypper install libvulkan1 libvulkan_lvp",
    "alpine": "apk add vulkan-loader mesa-vulkan-swrast",
    "nixos": "nix-shell -p vulkan-loader mesa",
    "darwin": "brew install vulkan-loader molten-vk",
    "windows": "the driver of your GPU's maker, which brings Vulkan along",
}

LAYER_ADVICE = {
    "fedora": "dnf install vulkan-validation-layers",
    "rhel": "dnf install vulkan-validation-layers",
    "arch": "pacman -S vulkan-validation-layers",
    "suse": "zypper install vulkan-validationlayers",
    "alpine": "apk add vulkan-validation-layers",
    "nixos": "nix-shell -p vulkan-validation-layers",
    "darwin": "brew install vulkan-validationlayers",
    "windows": "the Vulkan SDK",
}


@dataclass(frozen=True)
class System:
    """What os-release says: `family` holds the ID and what it is like, most specific first."""

    family: tuple[str, ...]
    codename: str

    @property
    def has_apt(self) -> bool:
        return bool({"debian", "ubuntu"} & set(self.family)) and shutil.which("apt-get") is not None

    @property
    def wants_backports(self) -> bool:
        return self.family[:1] == ("debian",) and self.codename == "bookworm"


def read_system(os_release: Path = Path("/etc/os-release")) -> System:
    if sys.platform != "linux":
        return System((platform.system().lower(),), "")
    fields = {}
    if os_release.is_file():
        for line in os_release.read_text(errors="replace").splitlines():
            name, _, value = line.partition("=")
            fields[name] = value.strip().strip("'\"")
    return System((fields.get("ID", "linux"), *fields.get("ID_LIKE", "").split()), fields.get("VERSION_CODENAME", ""))


def find_devices() -> list[dict[str, str]]:
    """Vulkan devices of version 1.2 or later; a driver that crashes counts as none."""
    return _probe()


def find_layers() -> list[str]:
    """Names of the Vulkan layers that the loader knows."""
    return _probe("--layers")


def _probe(*options: str) -> list[Any]:
    probe = subprocess.run([sys.executable, "-B", str(PROBE), *options], capture_output=True, text=True, check=False)
    return json.loads(probe.stdout) if probe.returncode == 0 else []


def is_slow_lavapipe(device: dict[str, str]) -> bool:
    version = re.search(r"Mesa (\d+)\.", device["driver"])
    return device["name"].startswith("llvmpipe") and version is not None and int(version[1]) < OLDEST_FAST_MESA


def driver_steps(system: System, apt_directory: Path = Path("/etc/apt")) -> list[Step]:
    """Commands that install loader and driver, after one `apt-get update`.

    Debian 12 has its Mesa from backports when the machine's own sources tell where those are.
    """
    if not system.wants_backports:
        return [apt("update"), apt("install", "--no-install-recommends", *DRIVER_PACKAGES)]
    suite = f"{system.codename}-backports"
    sources = apt_sources.read_sources(apt_directory)
    entry: list[Step] = []
    if not apt_sources.has_suite(sources, suite):
        main = apt_sources.main_source(sources, system.codename)
        if main is None:
            return [apt("update"), apt("install", "--no-install-recommends", *DRIVER_PACKAGES)]
        entry = [Write(apt_sources.BACKPORTS_FILE, apt_sources.backports_entry(main, system.codename))]
    return [*entry, apt("update"), apt("install", "--no-install-recommends", "-t", suite, *DRIVER_PACKAGES)]


def plain_driver_steps() -> list[Step]:
    """The release's own driver, when backports cannot be reached; takes the entry for them away again."""
    return [
        Run(("rm", "-f", str(apt_sources.BACKPORTS_FILE))),
        apt("update"),
        apt("install", "--no-install-recommends", *DRIVER_PACKAGES),
    ]


def install_driver(system: System) -> None:
    if not system.has_apt:
        known = next((ADVICE[name] for name in system.family if name in ADVICE), None)
        raise SetupError(
            "no Vulkan device was found. Install a Vulkan loader and a driver"
            + (f":\n  {known}" if known else " (Mesa's lavapipe needs no GPU).")
            + "\nand run make again. K3JIT_SKIP_DRIVER=1 skips this check."
        )
    steps = driver_steps(system)
    try:
        perform(steps, "Installing a Vulkan loader and Mesa's drivers")
    except NoRights:
        raise
    except SetupError as error:
        if not system.wants_backports:
            raise
        print(f"  {error}\nThe backports cannot be used; taking the driver of the release, which is slower.", file=sys.stderr)
        perform(plain_driver_steps(), "Installing the release's Vulkan driver")


def ensure_device() -> None:
    """Finds a Vulkan device, installs a driver when there is none, and prints what was found.

    Raises:
        SetupError: there is none and none can be installed from here.
    """
    system = read_system()
    devices = find_devices()
    if not devices:
        overrides = [f"{name}={os.environ[name]}" for name in DRIVER_OVERRIDES if os.environ.get(name)]
        if overrides:
            raise SetupError(f"no Vulkan device was found with {', '.join(overrides)} set; unset this or correct it.")
        install_driver(system)
        devices = find_devices()
        if not devices:
            raise SetupError(
                "the Vulkan driver was installed, but no device with Vulkan 1.2 answers. "
                "`vulkaninfo --summary` (package vulkan-tools) shows what the loader sees."
            )
    elif all(is_slow_lavapipe(device) for device in devices) and system.wants_backports and system.has_apt:
        devices = upgrade_lavapipe(system) or devices
    for device in devices:
        print(f"Vulkan device: {device['name']} [{device['kind']}], {device['driver']}", flush=True)


def ensure_layer() -> None:
    """Finds the Khronos validation layer, which the tests need, or installs it.

    Raises:
        SetupError: there is none and none can be installed from here.
    """
    if LAYER in find_layers():
        return
    system = read_system()
    if not system.has_apt:
        known = next((LAYER_ADVICE[name] for name in system.family if name in LAYER_ADVICE), None)
        raise SetupError(
            f"the tests need the Vulkan layer {LAYER}. Install it"
            + (f":\n  {known}" if known else "")
            + "\nand run make again. K3JIT_SKIP_DRIVER=1 skips this check."
        )
    package = "vulkan-validationlayers"
    perform([apt("update"), apt("install", "--no-install-recommends", package)], "Installing the Khronos validation layer")
    if LAYER not in find_layers():
        raise SetupError(f"{package} was installed, but the Vulkan loader does not list {LAYER}.")


def upgrade_lavapipe(system: System) -> list[dict[str, str]]:
    """Takes a faster Mesa where possible; the old one also works, so nothing here stops setup."""
    print("The only Vulkan device is an old lavapipe, 5 to 10 times slower than the one in the backports.", flush=True)
    try:
        install_driver(system)
    except SetupError as error:
        print(f"Going on with the old one: {error}", file=sys.stderr)
    return find_devices()


def ensure_venv_module() -> None:
    """Debian splits what `python -m venv` needs into a package of its own: installs it when it is missing."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    system = read_system()
    if not system.has_apt:
        raise SetupError(f"{sys.executable} lacks the modules venv and ensurepip; install them, or use another Python.")
    if apt_knows(package):
        perform([apt("install", "--no-install-recommends", package)], "Installing Python's venv module")
    else:
        perform([apt("update"), apt("install", "--no-install-recommends", package)], "Installing Python's venv module")
    importlib.invalidate_caches()
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(f"{package} was installed, but {sys.executable} still has no ensurepip; use another Python.")


def apt_knows(package: str) -> bool:
    """Whether the package lists on disk hold a version to install."""
    shown = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True, check=False)
    return shown.returncode == 0 and f"Package: {package}" in shown.stdout
