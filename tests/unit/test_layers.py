"""The core imports neither the console nor a runtime, and the command line starts light."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import engine_ctl
import profiles

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"textual", "textual_plotext", "vllm", "torch", "console"}


def modules(package: object) -> list[str]:
    path, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    found = [m.name for m in pkgutil.walk_packages(path, f"{name}.")]
    return [m for m in found if not m.startswith("engine_ctl.inside")]


def imported_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ["engine_ctl", "profiles"])
def test_no_file_of_the_core_names_a_forbidden_package(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        if "inside" not in file.parts:
            assert not imported_names(file) & FORBIDDEN, file


def test_importing_the_whole_core_loads_none_of_them() -> None:
    names = modules(engine_ctl) + modules(profiles)
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & FORBIDDEN


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom console.main import run\nrun(['--help'])\n"
        "print(*sorted(m for m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & {
        "textual",
        "rich",
        "psutil",
        "msgspec",
        "httpx",
        "yaml",
        "engine_ctl.model",
    }
    assert not [m for m in loaded if m.startswith("console.commands")]
