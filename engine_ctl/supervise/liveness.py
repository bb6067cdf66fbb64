"""Whether a run lives, and how it ended: `gather` looks, `judge` decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_ctl import identity
from engine_ctl.atomic import CorruptRecord
from engine_ctl.model import Kind, Phase
from engine_ctl.state.records import ExitRecord, ReadyRecord, RunIdentity, StopRequest
from engine_ctl.state.store import Run, is_locked
from engine_ctl.supervise import policy
from engine_ctl.supervise.copies import original


class Life(StrEnum):
    """RUNNING covers everything from the start to the request to end; see the log for phases."""

    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    FAILED = "failed"
    LOST = "lost"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class Facts:
    """What can be seen of a run. `launching`: an operation holds its unit. `same_boot`: the
    machine was not restarted since the run's start (True while that is unknown). `original`: the
    state directory whose run it is, where this one is a copy of that. `waits`: what its restart
    waits for, in words."""

    kind: Kind
    shim_holds: bool
    leader_alive: bool
    launching: bool
    same_boot: bool
    identity: RunIdentity | None
    request: StopRequest | None
    ready: ReadyRecord | None
    exit: ExitRecord | None
    original: str = ""
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The verdict over a run. `pending`: not yet executing. `restarting`: ended, and its shim
    waits to start the next run. `note` says what an operator should know, or is empty."""

    life: Life
    facts: Facts
    pending: bool = False
    restarting: bool = False
    note: str = ""

    @property
    def ended(self) -> bool:
        return self.life in (Life.EXITED, Life.FAILED, Life.LOST)

    @property
    def ready(self) -> bool:
        return self.facts.ready is not None

    @property
    def forsaken(self) -> bool:
        """Of a unit's current run: its shim was to start the next one, and is gone."""
        record = self.facts.exit
        return (
            record is not None
            and record.restart_in_s is not None
            and not self.facts.shim_holds
            and self.facts.request is None
        )

    @property
    def fell(self) -> bool:
        """Its process ended without being asked to, and its shim still ends what is left of it:
        it has failed, and will not be anything else again."""
        facts = self.facts
        return (
            self.life is Life.STOPPING
            and facts.request is None
            and policy.failed(facts.kind.value, requested=False, code=0)
        )

    @property
    def phase(self) -> Phase | None:
        """The phase where life alone decides it; None while running (its log decides)."""
        if self.fell:
            return Phase.FAILED
        return None if self.life is Life.RUNNING else Phase(self.life.value)


def judge(facts: Facts) -> Liveness:
    """Tell running, stopping, exited, failed, lost and orphaned apart. Pure."""
    if facts.exit is not None:
        return _ended(facts, facts.exit)
    if facts.identity is None:
        if facts.shim_holds or facts.launching:
            return Liveness(Life.RUNNING, facts, pending=True)
        return Liveness(Life.LOST, facts, note="its start was interrupted")
    if not facts.same_boot:
        return Liveness(Life.LOST, facts, note="the machine was restarted")
    if facts.shim_holds:
        asked = facts.request is not None or not facts.leader_alive
        return Liveness(Life.STOPPING if asked else Life.RUNNING, facts)
    if facts.original:
        note = f"it runs for {facts.original}, of which this state directory is a copy"
        return Liveness(Life.LOST, facts, note=note)
    if facts.leader_alive:
        return Liveness(Life.ORPHANED, facts, note="its shim is gone; nobody watches it")
    note = "shim and process are gone; nobody saw the end"
    if facts.request is not None:
        note = "it was asked to stop and is gone; nobody saw the end"
    return Liveness(Life.LOST, facts, note=note)


def _ended(facts: Facts, record: ExitRecord) -> Liveness:
    if not policy.failed(facts.kind.value, record.requested, record.code) and not record.error:
        return Liveness(Life.EXITED, facts, note=_remains(record))
    restarting = facts.shim_holds and record.restart_in_s is not None and facts.request is None
    note = record.error or ("restarts are used up" if record.gave_up else _remains(record))
    return Liveness(Life.FAILED, facts, restarting=restarting, note=note)


def _remains(record: ExitRecord) -> str:
    if not record.remaining:
        return ""
    return f"could not end pids {', '.join(map(str, record.remaining))}"


def gather(run: Run, kind: Kind, *, boot: str | None = None) -> Facts:
    """Look at a run: a few small files and one or two /proc entries. Changes nothing.

    Raises CorruptRecord when a record of the run is damaged."""
    lock = run.dir / "shim.lock"
    # The order matters: what is read later can only be newer. A shim that writes its record and
    # leaves between two looks must not look like one that vanished.
    holds = is_locked(lock)
    who = run.identity()
    lives = who is not None and identity.alive(who.leader)
    record = run.exit()
    waiting = record is None and who is None and not holds
    owes = holds and record is not None and record.restart_in_s is not None
    again = run.waits() if owes else None
    return Facts(
        kind=kind,
        shim_holds=holds,
        leader_alive=lives,
        launching=waiting and is_locked(run.dir.parents[1] / "lock"),
        same_boot=who is None or who.leader.boot == (boot or identity.boot_id()),
        identity=who,
        request=run.request(),
        ready=run.ready(),
        exit=record,
        original=original(run, who) if lives and not holds and record is None else "",
        waits=again.why if again is not None else "",
    )


def look(run: Run, kind: Kind | None = None) -> Liveness:
    """Gather and judge. Without `kind` it is read from the run's spec; a damaged spec counts as
    an engine's, so that what runs can still be seen and stopped."""
    if kind is None:
        try:
            kind = run.spec().kind
        except CorruptRecord:
            kind = Kind.ENGINE
    return judge(gather(run, kind))
