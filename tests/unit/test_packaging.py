"""What an installed Stoker reads beside its modules is in the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
    "package-data"
]


@pytest.mark.parametrize("package", ["console", "engine_ctl", "profiles"])
def test_every_file_of_a_package_is_packed(package: str) -> None:
    """setuptools takes modules by itself and other files by pattern only; its `**` and ours are
    the same glob."""
    folder = ROOT / package
    packed = {path for pattern in PATTERNS[package] for path in folder.glob(pattern)}
    files = {
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".pyi"}
    }
    assert files
    assert not files - packed


def test_every_folder_with_modules_is_a_package() -> None:
    """`packages.find` passes over a folder that has no `__init__.py`."""
    folders = {
        path.parent
        for package in ("console", "engine_ctl", "profiles")
        for path in (ROOT / package).rglob("*.py")
    }
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
