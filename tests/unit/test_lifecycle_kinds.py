"""Start, stop and restart on a unit that is no engine do what its kind means, or say what does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Busy, Usage
from engine_ctl.model import Kind
from engine_ctl.operations import lifecycle, weights
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec


def quiet(_: str) -> None:
    pass


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    made = Context(Dirs.from_env({"HOME": str(tmp_path)}), by="test")
    made.store.create("a-weights", Kind.PRELOAD, "p", "test")
    run = made.store.new_run(RunSpec(unit="a-weights", kind=Kind.PRELOAD, argv=["x"]))
    made.store.set_current(run)
    made.store.create("standby-1", Kind.STANDBY, "cpu", "test")
    return made


def test_a_daemons_unit_starts_its_daemon(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ctx.store.current("a-weights")
    asked: list[str] = []

    def preload_start(ctx: Context, unit: str, tell: Any) -> Any:
        asked.append(unit)
        return run

    monkeypatch.setattr(weights, "preload_start", preload_start)
    assert lifecycle.start(ctx, "a-weights") is run
    assert asked == ["a-weights"]
    with pytest.raises(Usage, match="no engine"):
        lifecycle.start(ctx, "a-weights", "p")


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_a_daemon_that_is_mapped_is_not_ended_unasked(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(*_: Any, **given: Any) -> Any:
        assert not given.get("confirmed")
        raise Busy("a runs on these weights")

    monkeypatch.setattr(weights, "preload_stop", refuse)
    monkeypatch.setattr(weights, "preload_reload", refuse)
    with pytest.raises(Busy, match="a runs on these weights; to go on: stoker preload"):
        if verb == "stop":
            lifecycle.stop(ctx, "a-weights")
        else:
            lifecycle.restart(ctx, "a-weights", quiet, wait=False)


def test_a_standby_is_not_started_as_an_engine(ctx: Context) -> None:
    with pytest.raises(Usage, match="stoker standby start"):
        lifecycle.start(ctx, "standby-1")
    with pytest.raises(Usage, match="stoker standby start"):
        lifecycle.restart(ctx, "standby-1", quiet, wait=False)
