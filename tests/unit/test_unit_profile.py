"""Which profile a unit remembers: one that is found again from any working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import unit_for
from engine_ctl.paths import Dirs


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    names = ("STATE", "DATA", "CONFIG", "CACHE")
    return Context(Dirs.from_env({f"XDG_{n}_HOME": str(tmp_path / n.lower()) for n in names}))


def test_a_unit_remembers_a_file_by_its_absolute_path(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("one", "two"):
        (here / f"{name}.yaml").write_text("model: org/m\n")
    monkeypatch.chdir(here)
    record = unit_for(ctx, "u", "./one.yaml")
    assert record.profile == str(here / "one.yaml")
    assert unit_for(ctx, "u", "two.yaml").profile == str(here / "two.yaml")
    monkeypatch.chdir(tmp_path)
    assert ctx.profiles.load(record.profile).profile.model == "org/m"


def test_a_unit_remembers_a_known_profile_by_name(ctx: Context) -> None:
    ctx.dirs.profiles.mkdir(parents=True)
    (ctx.dirs.profiles / "mine.yaml").write_text("model: org/m\n")
    assert unit_for(ctx, "a", "mine").profile == "mine"
    assert unit_for(ctx, "b", str(ctx.dirs.profiles / "mine.yaml")).profile == "mine"
    assert unit_for(ctx, "chat", None).profile == "chat"
