"""The table of phases."""

from __future__ import annotations

import itertools

import pytest

from engine_ctl.identity import Identity
from engine_ctl.model import EngineLoad, Kind, Phase, RankLoad
from engine_ctl.observe.phase import asleep, note_of, phase_of
from engine_ctl.state.records import ExitRecord, ReadyRecord, RunIdentity, StopRequest
from engine_ctl.supervise.liveness import Facts, Life, Liveness, judge

WHO = Identity("boot", 1, 1)
RUN = RunIdentity(run="u/1", shim=WHO, leader=WHO, session=1, started=0.0, monotonic=0.0)
READY = ReadyRecord(wall=0.0, seconds=5.0)
ASLEEP = EngineLoad(0.0, (RankLoad("0", sleep_state="discard_all"),))
AWAKE = EngineLoad(0.0, (RankLoad("0", sleep_state="awake"),))
HALF = EngineLoad(0.0, (RankLoad("0", sleep_state="awake"), RankLoad("1", sleep_state="x")))


def life(
    *,
    ready: bool = False,
    request: bool = False,
    exit: ExitRecord | None = None,
    shim: bool = True,
    leader: bool = True,
    identity: bool = True,
    launching: bool = False,
    kind: Kind = Kind.ENGINE,
) -> Liveness:
    return judge(
        Facts(
            kind=kind,
            shim_holds=shim,
            leader_alive=leader,
            launching=launching,
            same_boot=True,
            identity=RUN if identity else None,
            request=StopRequest(at=0.0) if request else None,
            ready=READY if ready else None,
            exit=exit,
        )
    )


def test_life_alone_decides() -> None:
    assert phase_of(life(identity=False, shim=False, launching=True)) is Phase.IMPORTING
    assert phase_of(life(request=True), Phase.LOADING) is Phase.STOPPING
    assert phase_of(life(request=True), Phase.DRAINING) is Phase.DRAINING
    assert phase_of(life(shim=False), Phase.READY) is Phase.ORPHANED
    assert phase_of(life(shim=False, leader=False)) is Phase.LOST
    fell = life(ready=True, leader=False)
    assert phase_of(fell, Phase.STOPPING, True) is Phase.FAILED
    assert note_of(fell, Phase.FAILED) == "its process has ended; what is left of it is being ended"


def test_exit_status_0_without_a_request_has_failed() -> None:
    ended = ExitRecord(ended=0.0, code=0, requested=False)
    assert phase_of(life(exit=ended, shim=False, leader=False), Phase.READY) is Phase.FAILED
    asked = ExitRecord(ended=0.0, code=1, requested=True)
    assert phase_of(life(exit=asked, shim=False, leader=False)) is Phase.EXITED


@pytest.mark.parametrize(
    ("log", "healthy", "ready", "load", "expected"),
    [
        (None, None, False, None, Phase.IMPORTING),
        (Phase.LOADING, None, False, None, Phase.LOADING),
        (Phase.CAPTURING, None, True, None, Phase.READY),
        # Logs at WARNING level show no phase: /health alone tells.
        (Phase.IMPORTING, True, False, None, Phase.READY),
        (None, None, True, None, Phase.READY),
        (Phase.READY, None, False, None, Phase.READY),
        (Phase.READY, False, False, None, Phase.CAPTURING),
        # A ready engine whose /health fails stays ready; the note says it.
        (Phase.READY, False, True, None, Phase.READY),
        (Phase.READY, True, True, ASLEEP, Phase.SLEEPING),
        (Phase.READY, True, True, HALF, Phase.READY),
        (Phase.SLEEPING, True, True, AWAKE, Phase.READY),
        (Phase.SLEEPING, True, True, None, Phase.SLEEPING),
        # Somebody else asked it to stop.
        (Phase.STOPPING, True, True, None, Phase.STOPPING),
        (Phase.DRAINING, True, True, None, Phase.DRAINING),
        # EngineCore is dead, the API server has not ended yet.
        (Phase.FAILED, False, True, None, Phase.FAILED),
        (Phase.FAILED, None, False, None, Phase.FAILED),
        (Phase.FAILED, True, True, None, Phase.READY),
    ],
)
def test_running(
    log: Phase | None,
    healthy: bool | None,
    ready: bool,
    load: EngineLoad | None,
    expected: Phase,
) -> None:
    assert phase_of(life(ready=ready), log, healthy, load) is expected


def test_every_combination_has_a_phase() -> None:
    logs = (None, *Phase)
    for log, healthy, load, ready, request in itertools.product(
        logs, (None, False, True), (None, ASLEEP, AWAKE), (False, True), (False, True)
    ):
        found = phase_of(life(ready=ready, request=request), log, healthy, load)
        assert isinstance(found, Phase)
        if request:
            assert found in (Phase.STOPPING, Phase.DRAINING)


def test_asleep_needs_every_rank() -> None:
    assert asleep(ASLEEP, None)
    assert not asleep(HALF, Phase.SLEEPING)
    assert not asleep(None, None)


def test_notes() -> None:
    ready = life(ready=True)
    assert note_of(ready, Phase.READY, healthy=True) == ""
    assert "engine core is likely dead" in note_of(ready, Phase.READY, healthy=False)
    assert note_of(ready, Phase.READY, Kind.PRELOAD, False).startswith("partial: a rank is gone")
    assert note_of(ready, Phase.READY, error="timed out") == "/health: timed out"
    assert note_of(ready, Phase.READY, Kind.STANDBY, error="refused") == ""
    assert note_of(life(), Phase.LOADING, error="refused") == ""
    assert "nobody watches" in note_of(life(shim=False), Phase.ORPHANED)
    assert note_of(life(), Phase.FAILED) == "failed, but its process has not ended yet"
    waits = ExitRecord(ended=0.0, code=1, restart_in_s=2.0)
    assert note_of(life(exit=waits), Phase.FAILED) == "restarts soon"
    assert life(exit=waits).life is Life.FAILED
