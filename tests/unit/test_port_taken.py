"""A port that was free when it was chosen and is another program's when the engine binds it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.errors import Busy
from engine_ctl.model import Cause
from engine_ctl.operations import endpoints, explain, lifecycle, ports
from engine_ctl.operations.lifecycle import PortTaken
from tests.standin.rig import free_port, until
from tests.standin.serving import Serving

TAKEN = Cause("port_in_use", "port 1 is taken: stop who listens there", "[Errno 98]")


@pytest.fixture
def here() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        before = dict(os.environ)
        made = Serving(Path(root))
        os.environ.update(made.env)
        try:
            yield made
        finally:
            made.close()
            os.environ.clear()
            os.environ.update(before)


class Thief:
    """Takes the port of the first run between its choice and the start of its process."""

    def __init__(self, here: Serving) -> None:
        self.here = here
        self.server: socket.socket | None = None
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)
        if text.startswith("u: run 1,"):
            port = self.here.current("u").spec().port
            self.server = socket.create_server(("127.0.0.1", port))

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


@pytest.fixture
def thief(here: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Thief]:
    # Not from 8000 up: another test run may look there.
    monkeypatch.setattr(endpoints, "DEFAULT_PORT", free_port())
    made = Thief(here)
    yield made
    made.close()


def test_a_port_that_the_profile_leaves_open_is_chosen_once_more(
    here: Serving, thief: Thief
) -> None:
    here.profile("open", 1, port=None)
    run = lifecycle.start(here.ctx, "u", "open", thief)
    done = lifecycle.finish_start(here.ctx, run, True, thief)
    lost = run.spec().port
    assert (done["run"], done["ready"]) == ("u/2", True) and done["port"] != lost
    assert here.answers("u") == "1" and len(here.engines()) == 1
    assert any(f"another program took port {lost} meanwhile" in text for text in thief.said)


def test_a_port_that_the_profile_names_is_not_exchanged(here: Serving, thief: Thief) -> None:
    here.profile("named", 1)
    run = lifecycle.start(here.ctx, "u", "named", thief)
    with pytest.raises(PortTaken, match=f"pid {os.getpid()} "):
        lifecycle.ready_run(here.ctx, run, thief)
    assert [each.id for each in here.ctx.store.runs("u")] == ["u/1"]


def test_who_has_it_is_said_by_why(here: Serving, thief: Thief) -> None:
    here.profile("named", 1)
    lifecycle.start(here.ctx, "u", "named", thief)
    until(lambda: not here.live("u"), "it has given up")
    card = explain.why(here.ctx, "u")
    assert card is not None and card.cause is not None
    assert card.cause.category == "port_in_use"
    assert f"is taken (now by pid {os.getpid()} (" in card.cause.hint


def test_a_run_on_the_port_is_called_by_its_name(here: Serving) -> None:
    here.profile("named", 1)
    lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "named"), print)
    with pytest.raises(Busy, match=r"is in use by pid \d+ \(run u/1 of Stoker's\); stop it or"):
        lifecycle.start(here.ctx, "v", "named")


def test_only_what_is_known_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = Cause("port_in_use", f"port {port} is taken: stop who listens there", "[Errno 98]")
        # Whoever holds the port that the cause names, which need not be the engine's own.
        for own in (port, free_port()):
            assert f"now by pid {os.getpid()}" in ports.with_owner(taken, own).hint
        other = Cause("bad_value", TAKEN.hint, "")
        assert ports.with_owner(other, port) is other
        assert ports.with_owner(TAKEN, None) is TAKEN
