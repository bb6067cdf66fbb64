"""Engines under supervision, from start to every kind of end, with real vLLM on the CPU."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from engine_ctl.errors import Busy, Failed, NotFound
from engine_ctl.model import Phase
from engine_ctl.observe.once import snapshot_once
from engine_ctl.operations import explain, lifecycle
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness, procs, remains
from engine_ctl.supervise.liveness import Life
from tests.engine.world import World, complete, free_port, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def here(installation: World) -> World:
    return installation


def tree_of(here: World, unit: str) -> list[procs.Proc]:
    """Processes of the unit's current run, shim left out."""
    import msgspec

    run = here.current(unit)
    return procs.members(str(run.dir), msgspec.to_builtins(run.identity()))


def pid_named(here: World, unit: str, name: str) -> int:
    for proc in tree_of(here, unit):
        title = Path(f"/proc/{proc.pid}/cmdline").read_bytes().decode(errors="replace")
        if name in title:
            return proc.pid
    raise AssertionError(f"no process of {unit} is called {name}")


def outside(run: Run) -> list[Path]:
    """What a ready run has outside of its directory: vLLM unlinks none of it when it is killed."""
    until(lambda: (run.dir / remains.SHARED).exists())
    sockets = Path(os.readlink(run.dir / remains.LINK))
    assert all(path.is_socket() for path in sockets.iterdir()) and any(sockets.iterdir())
    (meeting,) = remains._meetings(str(run.log))
    mapped = json.loads((run.dir / remains.SHARED).read_text())["mapped"]
    assert any("/psm_" in path for path in mapped)
    return [sockets, Path(meeting), *map(Path, mapped)]


def test_start_serve_restart_stop(here: World) -> None:
    here.profile("plain")
    run = lifecycle.start(here.ctx, "a", "plain")
    here.wait_ready(run)
    port = run.spec().port
    assert port is not None
    first = complete(port, str(here.model))
    with pytest.raises(Busy, match="runs already"):
        lifecycle.start(here.ctx, "a")
    done = lifecycle.restart(here.ctx, "a", lambda _: None, wait=True)
    assert done["port"] == port and done["run"] == "a/2"
    assert complete(port, str(here.model)) == first
    (view,) = snapshot_once(here.dirs, ["a"], timeout_s=100.0).units
    assert view.phase is Phase.READY and view.load is not None and view.load.running == 0
    left = outside(here.ctx.store.run("a/2"))
    stopped = lifecycle.stop(here.ctx, "a")
    assert not any(path.exists() for path in left)
    log = (here.ctx.store.run("a/2").dir / "log").read_text(errors="replace")
    assert '"POST /v1/completions' in log  # an operator's own requests are in it,
    assert "GET /health" not in log and "GET /metrics" not in log  # what Stoker polls is not
    assert stopped["how"] in ("ask", "ask again")
    assert here.live_runs("a") == []
    assert lifecycle.stop(here.ctx, "a")["how"] == "already"


def test_a_cold_start_without_standby_stopped_while_it_loads(here: World) -> None:
    here.profile("cold", standby=False)
    run = lifecycle.start(here.ctx, "cold", "cold")
    until(lambda: b"non-default args" in run.log.read_bytes())
    lifecycle.stop(here.ctx, "cold")
    assert liveness.look(run).life is Life.EXITED
    assert explain.why(here.ctx, "cold") is None


def test_a_killed_engine_core_is_a_failure_although_the_exit_status_is_zero(here: World) -> None:
    here.profile("plain")
    run = lifecycle.start(here.ctx, "core", "plain")
    here.wait_ready(run)
    os.kill(pid_named(here, "core", "EngineCore"), signal.SIGKILL)
    seen: list[Phase | None] = []

    def ended() -> bool:
        over = run.exit() is not None
        seen.append(snapshot_once(here.dirs, ["core"], timeout_s=100.0).units[0].phase)
        return over

    until(ended)
    # One way: not stopping, nor ready again, once it has failed.
    assert set(seen[seen.index(Phase.FAILED) :]) == {Phase.FAILED}, seen
    record = run.exit()
    assert record is not None and not record.requested
    assert liveness.look(run).life is Life.FAILED
    card = explain.why(here.ctx, "core")
    assert card is not None and card.cause is not None
    assert card.cause.category == "engine_core_killed"


def test_a_killed_api_server_leaves_no_children(here: World) -> None:
    here.profile("plain")
    run = lifecycle.start(here.ctx, "api", "plain")
    here.wait_ready(run)
    left = outside(run)
    who = run.identity()
    assert who is not None
    os.kill(who.leader.pid, signal.SIGKILL)
    until(lambda: run.exit() is not None)
    assert not any(path.exists() for path in left)
    record = run.exit()
    assert record is not None and record.signal == signal.SIGKILL and record.swept
    assert record.remaining == []
    assert liveness.look(run).life is Life.FAILED


def test_what_is_in_the_way_is_one_line_and_starts_nothing(here: World, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no profile of that name"):
        lifecycle.start(here.ctx, "nothing")
    here.profile("gone", model=str(tmp_path / "gone"))
    with pytest.raises(Failed, match="does not exist"):
        lifecycle.start(here.ctx, "gone")
    with socket.create_server(("127.0.0.1", free_port())) as server:
        port = server.getsockname()[1]
        here.profile("taken", port=port)
        with pytest.raises(Busy, match=f"port {port} is in use by pid {os.getpid()}"):
            lifecycle.start(here.ctx, "taken")
    here.profile("typo", args={"max_modle_len": 512})
    with pytest.raises(Failed, match="max-modle-len"):
        lifecycle.start(here.ctx, "typo")
    for unit in ("gone", "taken", "typo"):
        assert here.ctx.store.runs(unit) == []


def test_commands_say_the_same(here: World) -> None:
    found = here.document("ps")
    rows = {row["unit"]: row for row in found["units"]}
    assert rows["core"]["phase"] == "failed" and rows["a"]["phase"] == "exited"
    assert any(row["kind"] == "standby" for row in rows.values())
    history = here.document("runs", "a")["runs"]
    assert [r["run"] for r in history] == ["a/2", "a/1"]
    assert all(r["phases"] for r in history)
    process = here.command("start", "nothing")
    assert process.returncode == 3
    assert process.stderr is not None and process.stderr.read().count("\n") == 1


def test_restarted_by_policy_from_the_standby_and_without_it(here: World) -> None:
    here.profile("again", restart={"policy": "on-failure", "backoff_s": 0.2})
    run = lifecycle.start(here.ctx, "again", "again")
    here.wait_ready(run)
    os.kill(pid_named(here, "again", "EngineCore"), signal.SIGKILL)
    until(lambda: here.current("again").number == 2)
    second = here.current("again")
    here.wait_ready(second)
    assert (second.spec().attempt, second.spec().via) == (2, "standby")
    assert complete(second.spec().port or 0, str(here.model))
    # The same once more, when the standby has gone.
    for standing in standbys.listing(here.ctx.store):
        assert standing.hello is not None
        os.kill(standing.hello.pid, signal.SIGKILL)
    os.kill(pid_named(here, "again", "EngineCore"), signal.SIGKILL)
    until(lambda: here.current("again").number == 3)
    third = here.current("again")
    until(lambda: third.identity() is not None)
    assert third.spec().via == "spawn"
    assert here.live_runs("again") == ["again/3"]
    lifecycle.stop(here.ctx, "again")
    assert here.live_runs("again") == []
