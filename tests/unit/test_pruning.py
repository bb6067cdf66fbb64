"""Old runs are forgotten at a start; what anything points at, or may still live, is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.errors import Failed, Usage
from engine_ctl.identity import boot_id
from engine_ctl.operations import pruning
from engine_ctl.operations.context import Context
from engine_ctl.operations.swapping import undo_target
from engine_ctl.paths import Dirs
from engine_ctl.state import events
from engine_ctl.state.store import Run
from engine_ctl.tune import history
from profiles.model import Profile
from tests.standin.observed import Written


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    world = Written(tmp_path)
    yield world
    world.close()


@pytest.fixture
def ctx(written: Written) -> Context:
    return Context(written.dirs, by="test")


def keep(ctx: Context, text: str) -> None:
    ctx.dirs.config.mkdir(exist_ok=True)
    (ctx.dirs.config / "runs.yaml").write_text(text)


def gone(run: Run) -> Run:
    """Its processes are no longer this very one."""
    path = run.dir / "identity.json"
    path.write_text(path.read_text().replace('"start_ticks": ', '"start_ticks": 9'))
    return run


def ended(written: Written, count: int, unit: str = "chat") -> list[Run]:
    runs = []
    for _ in range(count):
        run = gone(written.run(unit))
        written.exit(run, requested=True)
        runs.append(run)
    return runs


def left(ctx: Context, unit: str = "chat") -> list[int]:
    return [run.number for run in ctx.store.runs(unit)]


def test_the_newest_stay_the_numbers_go_on_and_the_history_has_the_rest(
    written: Written, ctx: Context
) -> None:
    keep(ctx, "keep: 3\n")
    written.unit("chat")
    written.unit("other")
    ended(written, 6)
    ended(written, 3, "other")
    assert pruning.prune(ctx) == ["chat/1", "chat/2", "chat/3"]
    assert left(ctx) == [4, 5, 6] and left(ctx, "other") == [1, 2, 3]
    assert sorted(path.name for path in (ctx.dirs.units / "chat/runs").iterdir()) == list("456")
    assert written.run("chat").number == 7
    with history.opened(ctx.dirs) as book:
        book.add_starts(ctx.store)
        rows = book.find(history.Filter(unit="chat"))
    assert sorted(row["run"] for row in rows) == [f"chat/{n}" for n in range(1, 8)]
    assert events.last(ctx.dirs, 1)[0].text == "forgot 3 old runs (runs.yaml: keep 3)"
    assert pruning.prune(ctx) == []


def test_a_live_or_unseen_end_is_never_forgotten(written: Written, ctx: Context) -> None:
    keep(ctx, "keep: 1\n")
    written.unit("chat")
    alive = written.run("chat")
    lost = gone(written.run("chat"))
    written.let_go(lost)
    stuck = gone(written.run("chat"))
    written.exit(stuck, remaining=[1], boot=boot_id())
    holding = gone(written.run("chat"))
    written.exit(holding)
    written.hold(holding)
    damaged = ended(written, 1)[0]
    (damaged.dir / "exit.json").write_text("{")
    rebooted = written.run("chat")
    written.let_go(rebooted)
    (rebooted.dir / "identity.json").write_text(
        (rebooted.dir / "identity.json").read_text().replace(boot_id(), "another")
    )
    ended(written, 3)
    kept = [run.number for run in (alive, lost, stuck, holding, damaged)]
    assert rebooted.id in pruning.prune(ctx)
    assert left(ctx) == [*kept, 9]


def test_what_undo_and_a_rollback_need_stays(written: Written, ctx: Context) -> None:
    keep(ctx, "keep: 2\n")
    written.unit("chat")
    for name in ("slow", "slow", "fast", "fast"):
        run = gone(written.run("chat"))
        written.profile(run, Profile(name=name, model="org/m"))
        written.ready(run)
        written.exit(run, requested=True)
    for run in ended(written, 4):
        written.profile(run, Profile(name="broken", model="org/m"))
    pruning.prune(ctx)
    assert left(ctx) == [2, 4, 7, 8]
    assert undo_target(ctx, "chat").profile.name == "fast"


@pytest.mark.parametrize(
    "place",
    [
        "tune/benches/1/bench.json",
        "tune/sweeps/1/journal.jsonl",
        "units/other/swap.json",
        "units/other/current.json",
    ],
)
def test_what_is_pointed_at_stays(written: Written, ctx: Context, place: str) -> None:
    keep(ctx, "keep: 1\n")
    written.unit("chat")
    written.unit("other")
    ended(written, 4)
    path = ctx.dirs.state / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"engine_run": "chat/2", "note": "chat/11", "x": 1}\n')
    assert pruning.prune(ctx) == ["chat/1", "chat/3"]


def test_what_a_live_run_came_from_stays(written: Written, ctx: Context) -> None:
    keep(ctx, "keep: 1\n")
    written.unit("chat")
    ended(written, 3)
    written.run("chat", predecessor="chat/1")
    assert pruning.prune(ctx) == ["chat/2"]


def test_the_setting(written: Written, ctx: Context) -> None:
    assert pruning.settings(ctx.dirs).keep == 50
    written.unit("chat")
    ended(written, 3)
    keep(ctx, "keep: all\n")
    assert pruning.prune(ctx) == []
    for text in ("keep: 0", "keep: many", "kept: 3", "[", "keep: [1]"):
        keep(ctx, text)
        with pytest.raises(Usage, match=r"runs\.yaml"):
            pruning.settings(ctx.dirs)
        assert pruning.prune(ctx) == []
    assert events.last(ctx.dirs, 1)[0].severity == "warning"


def test_a_history_that_cannot_be_written_keeps_the_runs(
    written: Written, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ctx, "keep: 1\n")
    written.unit("chat")
    ended(written, 3)

    def full(dirs: Dirs) -> None:
        raise Failed("the history cannot be written: disk full")

    monkeypatch.setattr(history, "opened", full)
    assert pruning.prune(ctx) == [] and left(ctx) == [1, 2, 3]


def test_a_start_forgets(written: Written, ctx: Context) -> None:
    from engine_ctl.swap.making import make_run
    from engine_ctl.swap.starting import Prepared

    keep(ctx, "keep: 1\n")
    written.unit("chat")
    spec = ended(written, 3)[0].spec()
    profile = Profile(name="chat", model="org/m")
    with ctx.store.lock("chat"):
        run = make_run(
            ctx, ctx.store.load("chat"), _prepared(Prepared, profile, spec), weighed=None
        )
    assert left(ctx) == [3, run.number]


def _prepared(kind: type, profile: Profile, spec: object) -> object:
    from dataclasses import fields

    values = {field.name: None for field in fields(kind)}
    return kind(**{**values, "profile": profile, "spec": spec})
