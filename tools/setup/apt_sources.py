"""Reads apt's source lists (both formats) and derives the backports entry from the machine's own server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BACKPORTS_FILE = Path("/etc/apt/sources.list.d/k3jit-backports.sources")
# Fields that say what to fetch; all others (keyring, architectures, trust) say how, and are carried over.
SELECTING_FIELDS = ("types", "uris", "suites", "components", "enabled")
# A main suite may also be named by its role.
ROLE_SUITES = ("stable", "oldstable", "oldoldstable")


@dataclass(frozen=True)
class Source:
    """One entry for binary packages.

    `options` are the fields beside the selecting ones in deb822 spelling, with continuation lines as they stand.
    """

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


def parse_deb822(text: str) -> list[Source]:
    """Entries of a *.sources file; disabled ones and source-only ones left out."""
    sources = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        spelling: dict[str, str] = {}
        current = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and current:
                fields[current] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                current = name.strip().lower()
                spelling[current], fields[current] = name.strip(), value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        options = tuple((spelling[name], value) for name, value in fields.items() if name not in SELECTING_FIELDS)
        sources.append(
            Source(
                tuple(fields.get("uris", "").split()),
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                options,
            )
        )
    return sources


# Names of one-line options that differ from the deb822 field by more than capitals.
ONE_LINE_FIELDS = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}


def parse_one_line(text: str) -> list[Source]:
    """Entries of a *.list file: `deb [option=value ...] uri suite component...`."""
    sources = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<rest>.+)", line.partition("#")[0].strip())
        if match is None:
            continue
        uri, *words = match["rest"].split()
        if not words or uri.startswith("cdrom:"):
            continue
        options = []
        for item in shlex.split(match["options"] or ""):
            name, _, value = item.partition("=")
            if not name[-1:].isalnum():  # `arch+=...` only changes a default
                continue
            field = ONE_LINE_FIELDS.get(name.lower(), "-".join(part.capitalize() for part in name.split("-")))
            options.append((field, value.replace(",", " ")))
        sources.append(Source((uri,), (words[0],), tuple(words[1:]), tuple(options)))
    return sources


def read_sources(apt_directory: Path) -> list[Source]:
    """All entries below `apt_directory` (normally /etc/apt), apart from the one this project writes."""
    sources: list[Source] = []
    for path in sorted([apt_directory / "sources.list", *apt_directory.glob("sources.list.d/*")]):
        if path.name == BACKPORTS_FILE.name or not path.is_file():
            continue
        if path.suffix == ".sources":
            sources += parse_deb822(path.read_text(errors="replace"))
        elif path.suffix == ".list":
            sources += parse_one_line(path.read_text(errors="replace"))
    return sources


def has_suite(sources: Iterable[Source], suite: str) -> bool:
    return any(suite in source.suites for source in sources)


def main_source(sources: Iterable[Source], codename: str) -> Source | None:
    """The entry that serves the release itself, by its code name or else by its role."""
    serving = [source for source in sources if "main" in source.components and source.uris]
    for names in ((codename,), ROLE_SUITES):
        for source in serving:
            if any(suite in names for suite in source.suites):
                return source
    return None


def backports_entry(source: Source, codename: str) -> str:
    """A deb822 stanza for `<codename>-backports` on the same server, with the same keyring."""
    fields = [
        ("Types", "deb"),
        ("URIs", " ".join(source.uris)),
        ("Suites", f"{codename}-backports"),
        ("Components", "main"),
        *source.options,
    ]
    return "# Written by k3jit's `make setup` for a newer Mesa; safe to delete.\n" + "".join(
        f"{name}: {value}\n" if not value.startswith("\n") else f"{name}:{value}\n" for name, value in fields
    )
