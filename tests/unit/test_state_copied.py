"""A state directory that is a copy of one whose runs live: nothing of those is touched."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine_ctl.errors import Failed
from engine_ctl.model import Kind, Phase
from engine_ctl.observe.once import snapshot_once
from engine_ctl.operations import lifecycle, reaping
from engine_ctl.operations.context import Context
from engine_ctl.operations.listing import ps
from engine_ctl.state import events
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import copies, orphans, procs
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import stop
from tests.standin.rig import Rig, rig

__all__ = ["rig"]


def marked(run: Run) -> set[int]:
    return {pid for pid in procs.table() if procs.run_dir_of(pid) == str(run.dir)}


@pytest.mark.parametrize("known", ["by its record", "by its shim", "by its mark"])
def test_nothing_of_the_original_is_ended_from_a_copy(rig: Rig, tmp_path: Path, known: str) -> None:
    """Of a run of an earlier Stoker, its shim's command line or its mark says where it belongs."""
    run = rig.ready(children=1)
    pids = set(rig.pids(run).values())
    if known == "by its mark":
        rig.kill_shim(run)
    copy = Rig(tmp_path / "copy")
    shutil.copytree(rig.dirs.state, copy.dirs.state, dirs_exist_ok=True)
    copied = copy.store.current("demo")
    assert copied is not None
    if known != "by its record":
        record = json.loads((copied.dir / "identity.json").read_text())
        assert record.pop("dir") == str(run.dir)
        (copied.dir / "identity.json").write_text(json.dumps(record))
    ctx = Context(copy.dirs, by="test")
    told = f"demo/1 runs for {rig.dirs.state}, of which this state directory is a copy"
    for attempt in (
        lambda: lifecycle.stop(ctx, "demo"),
        lambda: lifecycle.restart(ctx, "demo", lambda _: None, wait=False),
        lambda: stop(copied),
    ):
        with pytest.raises(Failed) as refused:
            attempt()
        assert told in str(refused.value)
    assert "stoker stop demo" in str(refused.value) and "\n" not in str(refused.value)
    assert told in reaping.of_an_original(ctx) and reaping.orphans(ctx) == []
    assert copies.original(run, run.identity()) == ""
    assert marked(run) == pids and not (run.dir / "request.json").exists()
    assert not (copied.dir / "request.json").exists()
    (problem,) = ps(ctx)["problems"]
    assert told in problem and events.last(copy.dirs, 10, unit="demo") == []
    view = snapshot_once(copy.dirs, ["demo"]).units[0]
    assert view.phase is Phase.LOST and "is a copy" in view.note
    assert lifecycle.remove(ctx, "demo")["removed"]
    assert marked(run) == pids


def test_a_copy_of_a_unit_beside_it_ends_nothing(rig: Rig) -> None:
    run = rig.ready(children=1)
    pids = set(rig.pids(run).values())
    ctx = Context(rig.dirs, by="test")
    shutil.copytree(rig.store.unit_dir("demo"), rig.store.unit_dir("copy"))
    for attempt in (
        lambda: lifecycle.stop(ctx, "copy"),
        lambda: lifecycle.restart(ctx, "copy", lambda _: None, wait=False),
        lambda: lifecycle.remove(ctx, "copy"),
    ):
        with pytest.raises(Failed, match="away"):
            attempt()
    assert marked(run) == pids and not (run.dir / "request.json").exists()
    assert rig.life(run) is Life.RUNNING and len(ps(ctx)["problems"]) == 1
    shutil.rmtree(rig.store.unit_dir("copy"))


def test_a_state_directory_that_was_moved_is_no_copy(rig: Rig) -> None:
    run = rig.ready(children=1)
    pids = set(rig.pids(run).values())
    rig.kill_shim(run)
    rig.dirs.state.rename(rig.root / "elsewhere")
    try:
        moved = Store(replace(rig.dirs, state=rig.root / "elsewhere")).current("demo")
        assert moved is not None and rig.life(moved) is Life.ORPHANED
        fresh = Rig(rig.root)
        fresh.store.create("another", Kind.ENGINE)  # made where the old one was
        assert marked(run) == pids and orphans.find(fresh.store) == []
        assert rig.life(moved) is Life.ORPHANED
        assert stop(moved).how == "ask"
    finally:
        shutil.rmtree(rig.dirs.state)
        (rig.root / "elsewhere").rename(rig.dirs.state)
