"""Rules of the code base: sizes of files, who may import what, no machine's own paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("k3jit", "lowering", "runtime", "models", "benchmarks")
CODE_FOLDERS = (*PACKAGE_FOLDERS, "tests", "tools", "examples")
MOST_LINES = 600
# Roots of absolute paths that exist on someone's machine only, and a bare user's home.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|work|Users|home/[a-z_][\w-]*|tmp/[a-z]/)[/\s\"'`]")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """Name under which a file is installed: lowering/rules/dot.py is k3jit.lowering.rules.dot."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "k3jit" else ("k3jit", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports, wherever in the file; for `from a import b` both a and a.b."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def is_below(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def importers(module: str) -> set[str]:
    files = python_files(*PACKAGE_FOLDERS)
    return {str(path.relative_to(ROOT)) for path in files if any(is_below(name, module) for name in imports(path))}


def test_no_source_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files(*CODE_FOLDERS)}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_private_jax_is_imported_in_one_file() -> None:
    assert importers("jax._src") <= {"k3jit/_jax_compat.py"}


def test_vulkan_is_imported_in_one_file() -> None:
    assert importers("vulkan") == {"runtime/vk.py"}


def test_lowering_knows_of_the_runtime_only_its_capabilities() -> None:
    allowed = {"k3jit.runtime", "k3jit.runtime.caps"}
    for path in python_files("lowering"):
        for name in imports(path):
            if is_below(name, "k3jit.runtime"):
                assert name in allowed or is_below(name, "k3jit.runtime.caps"), f"{path.relative_to(ROOT)} imports {name}"
            assert not is_below(name, "k3jit.models"), f"{path.relative_to(ROOT)} imports {name}"


def test_runtime_does_not_know_the_models_or_the_front() -> None:
    for path in python_files("runtime"):
        for name in imports(path):
            assert not is_below(name, "k3jit.models"), f"{path.relative_to(ROOT)} imports {name}"
            assert not is_below(name, "k3jit.api"), f"{path.relative_to(ROOT)} imports {name}"


def test_models_are_plain_jax() -> None:
    """The model functions run under any jit: of k3jit they may use no compiler or runtime internals."""
    for path in python_files("models"):
        for name in imports(path):
            assert not is_below(name, "k3jit.lowering"), f"{path.relative_to(ROOT)} imports {name}"
            assert not is_below(name, "k3jit.runtime"), f"{path.relative_to(ROOT)} imports {name}"


def test_lowering_imports_without_vulkan() -> None:
    modules = [module_name(path) for path in python_files("lowering")]
    script = f"import sys; sys.modules['vulkan'] = None\nimport importlib\nfor m in {modules!r}: importlib.import_module(m)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_k3jit_changes_nothing_in_jax() -> None:
    script = (
        "import jax\n"
        "from jax._src import core, dtypes\n"
        "from jax._src.interpreters import pxla\n"
        "count = lambda: (len(core.pytype_aval_mappings), len(pxla.shard_arg_handlers), jax.config.values.copy())\n"
        "before = count()\n"
        "import k3jit\n"
        "assert count() == before\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_packages_in_pyproject_are_the_folders_there_are() -> None:
    import tomllib

    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {module_name(path) for path in python_files(*PACKAGE_FOLDERS) if path.name == "__init__.py"}
    assert set(setuptools["packages"]) == found
    folder_of = {
        module_name(path): str(path.parent.relative_to(ROOT))
        for path in python_files(*PACKAGE_FOLDERS[1:])
        if path.name == "__init__.py"
    }
    assert setuptools["package-dir"] == folder_of


def test_names_of_test_files_are_unique() -> None:
    """Folders of tests are no packages, so two files of one name would be one module."""
    names = [path.name for path in python_files("tests") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))


def text_files() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".sh", ".ipynb", ""}
    inside = [path for folder in (*CODE_FOLDERS, "docs", ".ci") for path in (ROOT / folder).rglob("*")]
    return sorted(
        path for path in (*inside, *ROOT.iterdir()) if path.is_file() and path.suffix in kinds and path.name != ".git"
    )


def documents() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".md"]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_files_that_exist(document: Path) -> None:
    text = document.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (document.parent / link).exists()]
    # Files named as code, such as `lowering/fuse.py`, count from the root of the repository.
    named = re.findall(rf"`((?:{'|'.join((*CODE_FOLDERS, 'docs'))})/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_no_placeholder_is_left_in_a_document() -> None:
    found = {str(path.relative_to(ROOT)): re.findall(r"TBD-[A-Z-]+", path.read_text()) for path in documents()}
    assert {name: tokens for name, tokens in found.items() if tokens} == {}


def test_no_path_of_some_machine_is_written_down() -> None:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [("see /" + "root/x", True), ('"/' + 'home/ann/x"', True), ("a/work/b", False), ("/usr/share", False), ("/etc/apt", False)],
)
def test_machine_paths_are_recognised(line: str, bad: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) == bad
