"""What becomes of preload daemons while they are watched: ranks that nobody serves any more, and
engines whose daemon has gone. Asks no daemon. vLLM's own log line about it comes late."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine_ctl.errors import Failed, NotFound
from engine_ctl.model import Kind, Reason, Verdict
from engine_ctl.observe.rank_watch import RankWatch
from engine_ctl.observe.units import UnitWatch
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise.liveness import Liveness
from engine_ctl.weights import records, sights
from engine_ctl.weights.records import RankKey, WeightsRecord

LOST = "wc_daemon_lost"
_TICKS = os.sysconf("SC_CLK_TCK")


class WeightsWatch:
    """Keeps each run's weight record, and holds the daemons' processes; one thread owns it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: dict[str, WeightsRecord] = {}
        self._ranks = RankWatch()

    def fds(self) -> tuple[int, ...]:
        """Become readable when a daemon's process ends: then `settle`, and `look` again."""
        return self._ranks.fds()

    def settle(self) -> None:
        self._ranks.settle()

    def close(self) -> None:
        self._ranks.close()

    def look(self, watches: Sequence[UnitWatch]) -> None:
        """Set `weights_now` of every watch."""
        runs = {watch.run.id for watch in watches if watch.run is not None}
        self._records = {run: kept for run, kept in self._records.items() if run in runs}
        alive = {
            watch.run.id
            for watch in watches
            if watch.run is not None and watch.life is not None and not watch.life.ended
        }
        self._ranks.settle()
        self._ranks.keep(alive)
        for watch in watches:
            watch.weights_now = self._of(watch, alive)

    def _of(self, watch: UnitWatch, alive: set[str]) -> tuple[Reason, ...]:
        run, life = watch.run, watch.life
        if run is None or life is None or life.ended or not life.ready or watch.spec is None:
            return ()
        try:
            if watch.spec.kind is Kind.PRELOAD:
                return self._of_daemon(watch, life)
            if watch.spec.kind is not Kind.ENGINE or watch.facts is None:
                return ()
            if watch.facts.verdict is not Verdict.MAPPED:
                return ()
            return self._of_engine(run, life, self._record(watch), alive)
        except (Failed, NotFound, OSError):
            return ()

    def _of_daemon(self, watch: UnitWatch, life: Liveness) -> tuple[Reason, ...]:
        assert watch.run is not None and watch.spec is not None
        record = self._record(watch)
        sight = sights.DaemonSight(
            watch.unit, watch.run, watch.spec, record, alive=True, ready=True, phase=life.phase
        )
        ended = {s for s in record.sockets if not self._ranks.follow(watch.run.id, s)}
        silent = {key.socket for key in sights.lost_ranks(sight)}
        gone = [key for key in record.keys if key.socket in ended | silent]
        if not gone:
            return ()
        if not ended and all(_no_directory(key) for key in gone):
            return (sights.unreachable(sight, gone),)
        return (sights.partial(sight, gone),)

    def _of_engine(
        self, run: Run, life: Liveness, record: WeightsRecord, alive: set[str]
    ) -> tuple[Reason, ...]:
        who, ready = life.facts.identity, life.facts.ready
        since = None
        if who is not None and ready is not None:
            since = who.leader.start_ticks + int((ready.seconds + 1) * _TICKS)
        ended = [s for s in record.sockets if not self._ranks.follow(run.id, s, since)]
        daemon = record.daemon
        if daemon is not None and (ended or daemon not in alive):
            return (lost(daemon, self._serves_again(daemon, alive), part=daemon in alive),)
        if ended:
            return (lost_at(ended[0]),)
        return ()

    def _serves_again(self, daemon: str, alive: set[str]) -> bool:
        unit = daemon.rpartition("/")[0]
        return any(run.rpartition("/")[0] == unit for run in alive - {daemon})

    def _record(self, watch: UnitWatch) -> WeightsRecord:
        assert watch.run is not None and watch.spec is not None
        known = self._records.get(watch.run.id)
        if known is None:
            if watch.spec.kind is Kind.PRELOAD:
                known = sights.record_of(self._store, watch.run, watch.spec)
            else:
                known = records.read(watch.run) or WeightsRecord()
            self._records[watch.run.id] = known
        return known


def _no_directory(key: RankKey) -> bool:
    return key.socket is not None and not os.path.lexists(os.path.dirname(key.socket))


def lost(daemon: str, again: bool, part: bool = False) -> Reason:
    """What to say of an engine whose daemon's run has ended. `again`: another run serves now.
    `part`: the run lives, and a rank that the engine mapped has ended."""
    unit = daemon.rpartition("/")[0]
    hint = f"it keeps serving and owns the weights; before its next start: stoker start {unit}"
    if again:
        hint = "the engine owns the old weights' memory until its next start, which maps again"
    elif part:
        hint = f"it keeps serving and owns them; before its next start: stoker restart {unit}"
    what = "a rank of the daemon" if part else "the daemon"
    return Reason(LOST, hint, f"{what} {daemon} that it mapped has ended", maps_again=again)


def lost_at(path: str) -> Reason:
    """The same of a daemon that is not Stoker's, by its socket."""
    return Reason(
        LOST,
        "it keeps serving and owns the weights; its next start maps if a daemon serves there again",
        f"the daemon at {path} that it mapped has ended",
    )
