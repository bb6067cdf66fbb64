"""What can be seen each second of preload daemons: ranks that nobody serves any more, and engines
whose daemon has gone. Looks only; asks no daemon. vLLM's own log line about it comes late."""

from __future__ import annotations

from collections.abc import Sequence

from engine_ctl.errors import Failed, NotFound
from engine_ctl.model import Kind, Reason, Verdict
from engine_ctl.observe.units import UnitWatch
from engine_ctl.state.store import Store
from engine_ctl.weights import records, sights
from engine_ctl.weights.records import WeightsRecord

LOST = "wc_daemon_lost"


class WeightsWatch:
    """Keeps each run's weight record; one thread owns it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: dict[str, WeightsRecord] = {}

    def look(self, watches: Sequence[UnitWatch]) -> None:
        """Set `weights_now` of every watch."""
        runs = {watch.run.id for watch in watches if watch.run is not None}
        self._records = {run: kept for run, kept in self._records.items() if run in runs}
        alive = {
            watch.run.id
            for watch in watches
            if watch.run is not None and watch.life is not None and not watch.life.ended
        }
        for watch in watches:
            watch.weights_now = self._of(watch, alive)

    def _of(self, watch: UnitWatch, alive: set[str]) -> tuple[Reason, ...]:
        run, life = watch.run, watch.life
        if run is None or life is None or life.ended or not life.ready or watch.spec is None:
            return ()
        try:
            if watch.spec.kind is Kind.PRELOAD:
                record = self._record(watch)
                sight = sights.DaemonSight(
                    watch.unit, run, watch.spec, record, alive=True, ready=True, phase=life.phase
                )
                gone = sights.lost_ranks(sight)
                return (sights.partial(sight, gone),) if gone else ()
            if watch.spec.kind is not Kind.ENGINE or watch.facts is None:
                return ()
            daemon = self._record(watch).daemon
            mapped = watch.facts.verdict is Verdict.MAPPED
            if not mapped or daemon is None or daemon in alive:
                return ()
            return (lost(daemon, self._serves_again(daemon, alive)),)
        except (Failed, NotFound, OSError):
            return ()

    def _serves_again(self, daemon: str, alive: set[str]) -> bool:
        unit = daemon.rpartition("/")[0]
        return any(run.rpartition("/")[0] == unit for run in alive)

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


def lost(daemon: str, again: bool) -> Reason:
    """What to say of an engine whose daemon's run has ended. `again`: another run serves now."""
    unit = daemon.rpartition("/")[0]
    hint = (
        "the engine owns the old weights' memory until its next start, which maps again"
        if again
        else f"it keeps serving and owns the weights; before its next start: stoker start {unit}"
    )
    return Reason(LOST, hint, f"the daemon {daemon} that it mapped has ended")
