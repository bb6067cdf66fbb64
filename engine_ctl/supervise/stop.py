"""The stop ladder: drain, ask, ask again, kill the tree, verify that it is gone.

Works with and without a shim. Hold the unit's lock: a shim that waits to restart needs it too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engine_ctl import identity
from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, Failed, NotFound
from engine_ctl.state.records import ExitRecord, RunIdentity, StopRequest
from engine_ctl.state.store import Run
from engine_ctl.supervise import copies, disk, liveness, procs, remains, segments
from engine_ctl.supervise.launch import end_unbegun, hold_shim_lock
from engine_ctl.supervise.liveness import Liveness
from engine_ctl.supervise.recover import mend
from engine_ctl.supervise.sweep import TERM_S, sweep
from profiles.model import Stop

_LOOK_S = 0.05
_GONE_S = 0.01  # another who looks may hold its lock for a moment
_PENDING_S = 10.0
# The shim's own sweep (grace, TERM, KILL) after the leader's end, and its disk.
_SHIM_S = 45.0
_GIVE_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the ladder as it begins. `name`: drain, ask, ask again, kill, verify, ended.
    `patience_s` is how long this step waits, `elapsed_s` since the stop began."""

    name: str
    detail: str
    patience_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """How it went. `how` is the last step that was needed, or `already` when the run had ended.
    `swept` are pids that outlived the leader."""

    run: str
    how: str
    seconds: float
    swept: tuple[int, ...] = ()
    exit: ExitRecord | None = None


class _Ladder:
    def __init__(self, run: Run, on_step: Callable[[Step], None] | None) -> None:
        self.run = run
        self.began = time.monotonic()
        self.how = "already"
        self._on_step = on_step

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def step(self, name: str, detail: str, patience_s: float = 0.0) -> None:
        if name not in ("verify", "ended"):
            self.how = name
        if self._on_step is not None:
            self._on_step(Step(name, detail, patience_s, self.elapsed))

    def result(self) -> Stopped:
        record = self.run.exit()
        swept = tuple(record.swept) if record else ()
        self.step("ended", f"{self.run.id} has ended")
        return Stopped(self.run.id, self.how, self.elapsed, swept, record)


def stop(
    run: Run,
    *,
    by: str = "",
    reason: str = "",
    ladder: Stop | None = None,
    drained: Callable[[], bool] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Stopped:
    """End a run and everything that belongs to it. Idempotent; blocks for the ladder's time.

    `ladder` defaults to the run's own. `drained` is asked during `drain_s` whether requests are
    done; without it there is no drain. A step of 0 s is left out. `on_step` is called as steps
    begin. Damaged records are set aside. Raises Failed when something of the run could not be
    ended (which, and why), and when this state directory is a copy of that which it runs for."""
    mend(run)
    copies.refuse(run, f"stoker stop {run.unit}")
    times = ladder or _own_ladder(run)
    climb = _Ladder(run, on_step)
    life = _settled(run)
    if life.ended:
        if life.restarting:
            _cancel_restart(run, life, by, reason, times)
        elif life.facts.exit is None:
            _sweep_lost(run, life.facts.identity, climb)
        return climb.result()
    who = life.facts.identity
    if who is None:
        _give_up(run)
        return climb.result()
    # An engine that is asked to end kills its workers, which then leave their shared memory.
    shared: dict[str, int] = {}
    members = procs.members(str(run.dir), msgspec.to_builtins(who))
    segments.note(shared, [proc.pid for proc in members])
    _request(run, who, by, reason, times)
    _climb(run, who, times, climb, drained)
    climb.step("verify", "waiting until nothing of it is left")
    _verify(run, who, times)
    segments.remove_abandoned(shared)
    return climb.result()


def _own_ladder(run: Run) -> Stop:
    try:
        return run.spec().stop
    except (CorruptRecord, NotFound):
        return Stop()


def _settled(run: Run) -> Liveness:
    """The run's liveness, once it executes or has ended, or surely nobody starts it."""
    deadline = time.monotonic() + _PENDING_S
    while True:
        life = liveness.look(run)
        if not life.pending or time.monotonic() > deadline:
            return life
        holder = disk.read_json(str(run.dir.parents[1] / "lock")) or {}
        if not life.facts.shim_holds and holder.get("pid") == os.getpid():
            return life  # it is this stop that holds the unit
        time.sleep(_LOOK_S)


def settle_unbegun(run: Run | None) -> None:
    """Write down the end of a unit's current run whose maker was killed before beginning it: it
    would keep the next start away. Hold the unit's lock: then nobody else is about to begin it.

    Raises Busy or Failed when it begins all the same."""
    life = liveness.look(run) if run is not None else None
    if run is not None and life is not None and life.pending and not life.facts.shim_holds:
        _give_up(run)


def _give_up(run: Run) -> None:
    """Write down the end of a run that was made and never begun: now nothing can begin in it."""
    record = ExitRecord(run=run.id, requested=True, ended=time.time(), boot=identity.boot_id())
    begun = False
    try:
        begun = not end_unbegun(run, record)
    except Busy:
        raise Failed(f"{run.id} does not get started; see {run.dir / 'shim.err'}") from None
    except OSError:
        pass  # a full disk: nothing can begin in it either
    if begun:
        raise Busy(f"{run.id} is being started; try again")


def _request(run: Run, who: RunIdentity, by: str, reason: str, times: Stop) -> None:
    """Leave request.json (the first one stays) and tell the shim."""
    word = signal.SIGUSR1
    if not (run.dir / "request.json").exists():
        record = StopRequest(at=time.time(), by=by, reason=reason, stop=times)
        try:
            disk.fill(str(run.dir / "request.json"), msgspec.to_builtins(record))
        except OSError:
            word = signal.SIGTERM  # the shim then remembers that the end was asked for
    _signal(who.shim, word)


def _climb(
    run: Run,
    who: RunIdentity,
    times: Stop,
    climb: _Ladder,
    drained: Callable[[], bool] | None,
) -> None:
    leader = who.leader
    if times.drain_s > 0 and drained is not None:
        climb.step("drain", "waiting for running requests", times.drain_s)
        deadline = time.monotonic() + times.drain_s
        while time.monotonic() < deadline and identity.alive(leader) and not drained():
            time.sleep(0.1)
    for name, patience in (("ask", times.ask_s), ("ask again", times.ask_again_s)):
        if patience <= 0 or not identity.alive(leader):
            continue
        climb.step(name, f"SIGTERM to pid {leader.pid}", patience)
        _signal(leader, signal.SIGTERM)
        if identity.wait_gone(leader, patience):
            return
    if not identity.alive(leader):
        return
    climb.step("kill", f"SIGKILL to pid {leader.pid} and all that belongs to it", times.kill_s)
    for proc in procs.members(str(run.dir), msgspec.to_builtins(who)):
        procs.send(proc, signal.SIGKILL)
    if not identity.wait_gone(leader, max(times.kill_s, 1.0)):
        fields = identity.stat_fields(leader.pid)
        state = fields[0] if fields else "?"
        raise Failed(
            f"{run.id}: pid {leader.pid} outlives SIGKILL (state {state}); "
            "it hangs in the kernel, look at dmesg and the GPU driver"
        )


def _verify(run: Run, who: RunIdentity, times: Stop) -> None:
    """Wait for the shim's exit record. One that is stuck (suspended, on a disk that hung) is ended;
    without a shim, sweep and write the record ourselves."""
    _await_end(run, who, times, _SHIM_S)
    if run.exit() is None and identity.send_signal(who.shim, signal.SIGKILL):
        _await_end(run, who, times, _GIVE_UP_S)
    # The shim leaves right after its record; whoever starts the next run may rely on that.
    identity.wait_gone(who.shim, 2.0)
    record = run.exit()
    if record is None:
        raise Failed(f"{run.id}: its shim (pid {who.shim.pid}) cannot be ended; try again")
    if record.remaining:
        pids = ", ".join(map(str, record.remaining))
        raise Failed(f"{run.id}: pids {pids} outlive SIGKILL; they hang in the kernel")


def _await_end(run: Run, who: RunIdentity, times: Stop, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while run.exit() is None and time.monotonic() < deadline:
        try:
            lock = hold_shim_lock(run, patience_s=0.0)
        except Busy:
            if identity.wait_gone(who.shim, _LOOK_S):
                time.sleep(_GONE_S)
            continue
        try:
            if run.exit() is None:
                _finish(run, who, times)
        finally:
            os.close(lock)


def _finish(run: Run, who: RunIdentity, times: Stop) -> None:
    plain = msgspec.to_builtins(who)
    swept, remaining = sweep(
        lambda: procs.members(str(run.dir), plain), term_s=min(TERM_S, times.ask_s)
    )
    if not remaining:
        remains.remove(str(run.dir))
    record = ExitRecord(
        run=run.id,
        requested=True,
        swept=swept[:100],
        remaining=remaining[:100],
        ended=time.time(),
        seconds=time.monotonic() - who.monotonic,
        ended_ticks=int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")),
        boot=identity.boot_id(),
    )
    try:
        disk.fill(str(run.dir / "exit.json"), msgspec.to_builtins(record))
    except OSError as error:
        raise Failed(f"{run.id} has ended, but its end cannot be written: {error}") from error


def _cancel_restart(run: Run, life: Liveness, by: str, reason: str, times: Stop) -> None:
    who = life.facts.identity
    if who is None:
        return
    _request(run, who, by, reason, times)
    if not identity.wait_gone(who.shim, _PENDING_S):
        raise Failed(f"{run.id}: its shim (pid {who.shim.pid}) does not give up the restart")


def _sweep_lost(run: Run, who: RunIdentity | None, climb: _Ladder) -> None:
    """End what a run has left behind whose end nobody saw. It stays lost."""
    if who is None or who.leader.boot != identity.boot_id():
        return
    plain = msgspec.to_builtins(who)
    if procs.members(str(run.dir), plain, strict=True):
        climb.step("kill", "ending what the run left behind")
        _, remaining = sweep(lambda: procs.members(str(run.dir), plain, strict=True))
        if remaining:
            return
    remains.remove(str(run.dir))


def _signal(who: identity.Identity, number: signal.Signals) -> None:
    try:
        identity.send_signal(who, number)
    except PermissionError:
        raise Failed(
            f"not allowed to signal pid {who.pid}; it belongs to another user: use sudo"
        ) from None
