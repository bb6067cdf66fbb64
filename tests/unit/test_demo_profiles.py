"""The demo's two profiles: one that maps its daemon's weights, and one that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.operations import demo
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.store import Runtime
from tests.standin.rig import dirs_in


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    made = Context(dirs_in(tmp_path))
    made.store.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return made


def written(ctx: Context, platform: str) -> demo.Made:
    note = demo.made(ctx)
    runtime = Runtime(name="rt", python="/rt/bin/python", version="0.33.0", platform=platform)
    demo._profile(ctx, note, Path("/models/demo"), runtime)
    return demo.made(ctx)


def test_the_second_profile_is_the_first_in_another_dtype(ctx: Context) -> None:
    written(ctx, "cpu")
    first = ctx.profiles.load(demo.UNIT).profile
    other = ctx.profiles.load(demo.OTHER).profile
    assert (other.model, other.runtime) == (first.model, first.runtime) == ("/models/demo", "rt")
    assert first.preload is not None and other.preload == first.preload
    assert other.args == {**first.args, "dtype": "float32"}
    assert other.notes.startswith("Swap the demo to it")


def test_without_a_weight_cache_there_is_one(ctx: Context) -> None:
    assert written(ctx, "xpu").profiles == []
    assert not (ctx.dirs.profiles / f"{demo.OTHER}.yaml").exists()


def test_down_removes_both_and_nothing_of_the_operators(ctx: Context) -> None:
    ctx.dirs.profiles.mkdir(parents=True)
    own = ctx.dirs.profiles / "mine.yaml"
    own.write_text("model: m\n")
    note = written(ctx, "cpu")
    assert len(note.profiles) == 1
    removed = demo.down(ctx, lambda _: None)
    assert [path.name for path in ctx.dirs.profiles.iterdir()] == ["mine.yaml"]
    assert {Path(path).name for path in removed} == {"demo.yaml", f"{demo.OTHER}.yaml"}


def test_a_profile_that_the_operator_edited_stays(ctx: Context) -> None:
    ctx.dirs.profiles.mkdir(parents=True)
    (ctx.dirs.profiles / f"{demo.OTHER}.yaml").write_text("model: mine\n")
    assert written(ctx, "cpu").profiles == []
    demo.down(ctx, lambda _: None)
    assert (ctx.dirs.profiles / f"{demo.OTHER}.yaml").exists()
