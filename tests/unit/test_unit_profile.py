"""Which profile a unit remembers: one that is found again from any working directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine_ctl.errors import NotFound
from engine_ctl.model import Kind
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import unit_for
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from profiles.diff import diff
from profiles.yaml_source import BadProfile


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


def test_a_profile_that_is_gone_can_be_had_back(ctx: Context) -> None:
    ctx.dirs.profiles.mkdir(parents=True)
    file = ctx.dirs.profiles / "mine.yaml"
    file.write_text(
        "extends: chat\nmodel: org/m\nargs: {max_num_seqs: 7}\nrestart: {policy: always}\n"
        "env: {A: {from_env: B}}\npreload: {}\ngpus: [1]\n"
    )
    record = unit_for(ctx, "u", "mine")
    was = snapshots.of_unit(ctx, record).profile
    file.unlink()
    with pytest.raises(NotFound, match="no profile mine"):
        snapshots.of_unit(ctx, record)
    run = ctx.store.new_run(RunSpec(unit="u", kind=Kind.ENGINE, argv=["x"]))
    snapshots.save(ctx.store, run, was)
    with pytest.raises(NotFound, match="is gone") as caught:
        snapshots.of_unit(ctx, record)
    command = str(caught.value).partition("to have it back: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert not diff(was, snapshots.of_unit(ctx, record).profile)
    file.write_text("extends: gone\n")
    with pytest.raises(BadProfile, match="no profile gone"):
        snapshots.of_unit(ctx, record)
