"""tools/setup: reading apt's sources, deriving the backports entry, planning, and what happens without the right to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "setup"
sys.path.insert(0, str(SETUP))

import apt_sources  # noqa: E402
import machine  # noqa: E402
import steps  # noqa: E402
from apt_sources import Source, backports_entry, main_source, parse_deb822, parse_one_line  # noqa: E402

DEB822 = """\
Types: deb
# a comment in between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
EMBEDDED_KEY = """\
Types: deb deb-src
URIs: https://a.example/debian https://b.example/debian
Suites: bookworm
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd
 -----END PGP PUBLIC KEY BLOCK-----
Check-Valid-Until: no
"""
ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb [arch=amd64,i386 signed-by=/etc/keys/debian.gpg] http://mirror.example/debian/ bookworm main non-free # note
deb https://elsewhere.example/tool stable main
"""


def test_deb822_entry() -> None:
    source = main_source(parse_deb822(DEB822), "bookworm")
    assert source is not None
    assert backports_entry(source, "bookworm").splitlines()[1:] == [
        "Types: deb",
        "URIs: http://mirror.example/debian",
        "Suites: bookworm-backports",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]


def test_deb822_keeps_embedded_keys_and_all_servers() -> None:
    source = main_source(parse_deb822(EMBEDDED_KEY), "bookworm")
    assert source is not None
    entry = backports_entry(source, "bookworm")
    assert "URIs: https://a.example/debian https://b.example/debian\n" in entry
    assert "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----\n" in entry
    assert "Check-Valid-Until: no\n" in entry
    # What is written can be read again, and says the same.
    assert parse_deb822(entry)[0].options == source.options


@pytest.mark.parametrize(
    "text", [DEB822.replace("Types: deb", "Types: deb-src"), DEB822.replace("Types: deb", "Enabled: no\nTypes: deb"), ""]
)
def test_deb822_entries_that_do_not_serve(text: str) -> None:
    assert parse_deb822(text) == []


def test_one_line_entry() -> None:
    source = main_source(parse_one_line(ONE_LINE), "bookworm")
    assert source is not None
    assert backports_entry(source, "bookworm").splitlines()[1:] == [
        "Types: deb",
        "URIs: http://mirror.example/debian/",
        "Suites: bookworm-backports",
        "Components: main",
        "Architectures: amd64 i386",
        "Signed-By: /etc/keys/debian.gpg",
    ]


def test_code_name_wins_over_role() -> None:
    by_role, by_name = (
        Source(("http://a.example",), ("stable",), ("main",)),
        Source(("http://b.example",), ("bookworm",), ("main",)),
    )
    assert main_source([by_role, by_name], "bookworm") == by_name
    assert main_source([by_role], "bookworm") == by_role
    assert main_source([], "bookworm") is None


@pytest.fixture
def apt_directory(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


BOOKWORM = machine.System(("debian",), "bookworm")


def commands(planned: list[steps.Step]) -> list[str]:
    return [step.as_shell("") for step in planned]


def test_plan_on_debian_12(apt_directory: Path) -> None:
    (apt_directory / "sources.list.d" / "debian.sources").write_text(DEB822)
    write, update, install = machine.driver_steps(BOOKWORM, apt_directory)
    assert isinstance(write, steps.Write) and write.path == apt_sources.BACKPORTS_FILE
    assert "http://mirror.example/debian\n" in write.text
    assert commands([update])[0].endswith(" update")
    assert commands([install])[0].endswith(
        " install --no-install-recommends -t bookworm-backports libvulkan1 mesa-vulkan-drivers"
    )


def test_plan_uses_a_backports_entry_that_is_there(apt_directory: Path) -> None:
    (apt_directory / "sources.list").write_text(ONE_LINE + "deb http://mirror.example/debian bookworm-backports main\n")
    planned = machine.driver_steps(BOOKWORM, apt_directory)
    assert not any(isinstance(step, steps.Write) for step in planned)
    assert "-t bookworm-backports" in commands(planned)[-1]


def test_plan_does_not_take_its_own_entry_for_the_machines(apt_directory: Path) -> None:
    (apt_directory / "sources.list").write_text(ONE_LINE)
    own = apt_directory / "sources.list.d" / apt_sources.BACKPORTS_FILE.name
    own.write_text(backports_entry(parse_one_line(ONE_LINE)[1], "bookworm"))
    assert isinstance(machine.driver_steps(BOOKWORM, apt_directory)[0], steps.Write)


@pytest.mark.parametrize(
    "system", [machine.System(("debian",), "trixie"), machine.System(("ubuntu", "debian"), "noble"), BOOKWORM]
)
def test_plan_without_backports(system: machine.System, apt_directory: Path) -> None:
    assert not any("-t " in command for command in commands(machine.driver_steps(system, apt_directory)))


def test_os_release(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('NAME="Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_CODENAME=wilma\n')
    if sys.platform == "linux":
        assert machine.read_system(file) == machine.System(("linuxmint", "ubuntu", "debian"), "wilma")


@pytest.mark.parametrize(
    ("driver", "slow"),
    [
        ("llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", True),
        ("llvmpipe Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", False),
        ("llvmpipe", False),
    ],
)
def test_old_lavapipe_is_recognised(driver: str, slow: bool) -> None:
    assert machine.is_slow_lavapipe({"name": "llvmpipe (LLVM 15.0.6, 256 bits)", "driver": driver}) == slow


def test_without_rights_the_commands_are_printed(monkeypatch: pytest.MonkeyPatch, apt_directory: Path) -> None:
    (apt_directory / "sources.list.d" / "debian.sources").write_text(DEB822)
    monkeypatch.setattr(steps, "privilege", lambda: None)
    with pytest.raises(steps.NoRights) as stopped:
        steps.perform(machine.driver_steps(BOOKWORM, apt_directory), "Installing")
    text = str(stopped.value)
    assert "sudo tee /etc/apt/sources.list.d/k3jit-backports.sources" in text
    assert "Suites: bookworm-backports" in text
    assert "sudo env DEBIAN_FRONTEND=noninteractive apt-get -y" in text


def test_printed_commands_are_what_would_be_done(tmp_path: Path) -> None:
    """The here-document writes the very text, whatever is in it."""
    target = tmp_path / "with space"
    step = steps.Write(target, "a $HOME `b` 'c'\n \\d\n")
    subprocess.run(["sh", "-c", step.as_shell("")], check=True)
    assert target.read_text() == step.text


def test_a_failing_command_is_shown_with_its_output() -> None:
    with pytest.raises(steps.SetupError, match=r"(?s)exit code 7.*reason"):
        steps.perform_one(steps.Run(("sh", "-c", "echo reason; exit 7")), ())


def stub_system(monkeypatch: pytest.MonkeyPatch, family: tuple[str, ...], devices: list[list[dict[str, str]]]) -> list[str]:
    """Answers of a pretended machine; the commands it was asked to run are collected."""
    done: list[str] = []
    answers = iter(devices)
    monkeypatch.setattr(machine, "read_system", lambda: machine.System(family, ""))
    monkeypatch.setattr(machine, "find_devices", lambda: next(answers))
    monkeypatch.setattr(machine, "perform", lambda planned, why: done.extend(commands(planned)))
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/" + name)
    for name in machine.DRIVER_OVERRIDES:
        monkeypatch.delenv(name, raising=False)
    return done


DEVICE = {"name": "Some GPU", "kind": "discrete", "driver": "some driver"}


def test_a_device_that_is_there_changes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done = stub_system(monkeypatch, ("debian",), [[DEVICE]])
    machine.ensure_device()
    assert done == []
    assert "Some GPU" in capsys.readouterr().out


def test_a_missing_device_is_installed_and_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = stub_system(monkeypatch, ("debian",), [[], [DEVICE]])
    machine.ensure_device()
    assert any("mesa-vulkan-drivers" in command for command in done)


def test_an_installation_that_brings_no_device_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_system(monkeypatch, ("debian",), [[], []])
    with pytest.raises(steps.SetupError, match="vulkaninfo"):
        machine.ensure_device()


@pytest.mark.parametrize(
    ("family", "advice"), [(("fedora",), "dnf install"), (("manjaro", "arch"), "pacman"), (("plan9",), "lavapipe")]
)
def test_other_systems_are_told_what_to_install(monkeypatch: pytest.MonkeyPatch, family: tuple[str, ...], advice: str) -> None:
    stub_system(monkeypatch, family, [[]])
    with pytest.raises(steps.SetupError, match=advice):
        machine.ensure_device()


def test_a_loader_override_is_named_instead_of_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    done = stub_system(monkeypatch, ("debian",), [[]])
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    with pytest.raises(steps.SetupError, match=r"VK_DRIVER_FILES=/nowhere\.json"):
        machine.ensure_device()
    assert done == []


def test_a_layer_that_is_there_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    done = stub_system(monkeypatch, ("debian",), [])
    monkeypatch.setattr(machine, "find_layers", lambda: [machine.LAYER])
    machine.ensure_layer()
    assert done == []


def test_a_missing_layer_is_installed_and_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = stub_system(monkeypatch, ("debian",), [])
    answers = iter([[], [machine.LAYER]])
    monkeypatch.setattr(machine, "find_layers", lambda: next(answers))
    machine.ensure_layer()
    assert done[-1].endswith("vulkan-validationlayers")


@pytest.mark.parametrize(("family", "advice"), [(("fedora",), "dnf install"), (("plan9",), "K3JIT_SKIP_DRIVER=1")])
def test_other_systems_are_told_how_to_get_the_layer(
    monkeypatch: pytest.MonkeyPatch, family: tuple[str, ...], advice: str
) -> None:
    stub_system(monkeypatch, family, [])
    monkeypatch.setattr(machine, "find_layers", list)
    with pytest.raises(steps.SetupError, match=advice):
        machine.ensure_layer()


def test_setup_without_a_device_fails_with_a_message() -> None:
    environment = {**os.environ, "VK_DRIVER_FILES": "/nowhere.json", "VK_ICD_FILENAMES": "/nowhere.json"}
    environment.pop("K3JIT_SKIP_DRIVER", None)
    done = subprocess.run([sys.executable, "-B", str(SETUP)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "setup stopped: no Vulkan device" in done.stderr
    assert "Traceback" not in done.stderr


def test_backports_that_cannot_be_reached_leave_the_releases_own_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def perform(planned: list[steps.Step], why: str) -> None:
        if any("-backports libvulkan1" in command for command in commands(planned)):
            raise steps.SetupError("no such suite")
        done.extend(commands(planned))

    monkeypatch.setattr(machine, "perform", perform)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(machine.apt_sources, "read_sources", lambda directory: parse_one_line(ONE_LINE))
    machine.install_driver(BOOKWORM)
    assert done[0] == f"rm -f {apt_sources.BACKPORTS_FILE}"
    assert done[-1].endswith("install --no-install-recommends libvulkan1 mesa-vulkan-drivers")
