"""What `undo` goes back to, from the runs of a unit as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import NotFound
from engine_ctl.operations.context import Context
from engine_ctl.operations.facade import DirectOperations
from engine_ctl.operations.swapping import undo_target
from profiles.model import Profile
from tests.standin.observed import Written


class History:
    def __init__(self, root: Path) -> None:
        self.written = Written(root)
        self.written.unit("u", profile="one")
        self.ctx = Context(self.written.dirs, by="test")

    def ran(
        self, name: str, seats: int, *, ready: bool = True, pin: bool = False, **spec: Any
    ) -> None:
        """A run of profile `name` that is over, or stands as the current one until the next."""
        port = 8000 if pin else None
        run = self.written.run("u", profile=name, port=8000, **spec)
        args = {"max_num_seqs": seats}
        self.written.profile(run, Profile(name=name, model="/m", port=port, args=args))
        if ready:
            self.written.ready(run)

    def target(self) -> tuple[str, Any]:
        found = undo_target(self.ctx, "u").profile
        return found.name, found.args["max_num_seqs"]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path)
    yield made
    made.written.close()


def test_the_newest_that_served_with_something_else(history: History) -> None:
    history.ran("one", 1)
    history.ran("two", 2)
    history.ran("broken", 9, ready=False)
    history.ran("two", 2)
    assert history.target() == ("one", 1)


def test_a_changed_file_is_something_else(history: History) -> None:
    history.ran("one", 1)
    history.ran("one", 2)
    assert history.target() == ("one", 1)


def test_nothing_before_is_said(history: History) -> None:
    history.ran("one", 1)
    history.ran("one", 1)
    with pytest.raises(NotFound, match="nothing to undo: u has run with nothing but one before"):
        history.target()
    with pytest.raises(NotFound, match="nothing to undo"):
        DirectOperations(history.ctx).undo_profile("u")


def test_after_a_sweep_it_is_the_profile_before_it(history: History) -> None:
    history.ran("one", 1)
    for seats in (2, 3, 4):
        history.ran("one", seats, pin=True, purpose="sweep s1")
    assert history.target() == ("one", 1)
    # The best point was kept: three came after it, and one is measured again.
    history.ran("one", 3, pin=True, purpose="sweep s1")
    assert history.target() == ("one", 1)


def test_what_a_sweep_left_is_gone_back_to_like_any_other(history: History) -> None:
    history.ran("one", 1)
    for seats in (2, 3, 4):
        history.ran("one", seats, pin=True, purpose="sweep s1")
    history.ran("two", 9)
    assert history.target() == ("one", 4)
    # The next sweep leads back to what it found.
    history.ran("one", 4, pin=True, purpose="undo")
    for seats in (5, 6):
        history.ran("one", seats, pin=True, purpose="sweep s2")
    assert history.target() == ("one", 4)


def test_one_sweep_after_another_leads_to_what_the_first_left(history: History) -> None:
    history.ran("one", 1)
    for id, seats in (("s1", 2), ("s1", 3), ("s2", 4), ("s2", 5)):
        history.ran("one", seats, pin=True, purpose=f"sweep {id}")
    assert history.target() == ("one", 3)


def test_a_point_that_did_not_start_is_still_the_sweeps(history: History) -> None:
    history.ran("one", 1)
    history.ran("one", 2, pin=True, purpose="sweep s1")
    history.ran("one", 3, pin=True, purpose="sweep s1", ready=False)
    assert history.target() == ("one", 1)


def test_a_sweep_that_put_the_profile_back_changed_nothing(history: History) -> None:
    history.ran("zero", 7)
    history.ran("one", 1)
    history.ran("one", 2, pin=True, purpose="sweep s1")
    history.ran("one", 1, pin=True, purpose="sweep s1")
    assert history.target() == ("zero", 7)


def test_an_engine_that_a_swap_gave_up_was_not_good(history: History) -> None:
    history.ran("zero", 7)
    history.ran("one", 1)
    history.ran("mute", 5, operation="abc:new")
    history.ran("one", 1, operation="abc:old")
    assert history.target() == ("zero", 7)
