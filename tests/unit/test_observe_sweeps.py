"""A unit that a killed sweep left on one of its points is not shown as if all were well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_ctl.hardware.readings import NoGpus
from engine_ctl.model import Alert
from engine_ctl.observe.sampler import Sampler
from engine_ctl.operations.context import Context
from engine_ctl.operations.listing import ps
from engine_ctl.state.store import Run
from engine_ctl.tune import journal
from engine_ctl.tune.journal import SweepRecord
from profiles.model import Profile
from tests.standin.observed import Written

BASE = Profile(name="chat", model="/m", port=8000, args={"max_num_seqs": 64})
POINT = msgspec.structs.replace(BASE, args={"max_num_seqs": 8})
WORDS = (
    "chat runs a point of interrupted sweep s1; "
    "resume: stoker sweep --resume s1; back: stoker undo chat"
)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    world = Written(tmp_path)
    world.unit("chat")
    made = SweepRecord(id="", unit="chat", at=1.0, points=[{"max_num_seqs": 8}], base=BASE)
    journal.create(world.dirs, made)
    yield world
    world.close()


def runs(written: Written, purpose: str, profile: Profile) -> Run:
    run = written.run("chat", purpose=purpose)
    written.profile(run, profile)
    return run


def problems(written: Written) -> list[str]:
    found: list[str] = ps(Context(written.dirs))["problems"]
    return found


def alerts(written: Written) -> tuple[Alert, ...]:
    sampler = Sampler(written.dirs, NoGpus("none"))
    try:
        return sampler.sample_once().alerts
    finally:
        sampler.stop()


def test_it_is_said_when_nobody_works_on_the_sweep_any_more(written: Written) -> None:
    runs(written, "sweep s1", POINT)
    with journal.writing(written.dirs, "s1") as book:
        book.note("begun")
        book.note("trying", point=0)
        assert problems(written) == [] and alerts(written) == ()
    assert problems(written) == [WORDS]
    assert alerts(written) == (Alert(WORDS, action="undo", unit="chat"),)
    with journal.writing(written.dirs, "s1") as book:
        book.note("resumed")
        book.note("ended", reason="best: max_num_seqs 8")
    assert problems(written) == [] and alerts(written) == ()


def test_a_cut_line_is_no_end(written: Written) -> None:
    runs(written, "sweep s1", POINT)
    with journal.writing(written.dirs, "s1") as book:
        book.note("begun")
    with book.path.open("ab") as file:
        file.write(b'{"at": 1, "what": "ended')
    assert problems(written) == [WORDS]


@pytest.mark.parametrize(
    ("purpose", "profile"),
    [("undo", POINT), ("", POINT), ("sweep s2", POINT), ("sweep s1", BASE)],
    ids=["undone", "started", "forgotten", "put back"],
)
def test_other_runs_are_no_points_of_it(written: Written, purpose: str, profile: Profile) -> None:
    runs(written, purpose, profile)
    with journal.writing(written.dirs, "s1") as book:
        book.note("begun")
    assert problems(written) == []


def test_an_engine_that_has_ended_runs_no_point(written: Written) -> None:
    run = runs(written, "sweep s1", POINT)
    with journal.writing(written.dirs, "s1") as book:
        book.note("begun")
    assert problems(written) == [WORDS]
    written.request(run)
    written.exit(run)
    assert WORDS not in problems(written)
