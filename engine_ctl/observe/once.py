"""One look without a thread, for `stoker ps`: few imports, parallel scrapes, short time-outs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from engine_ctl.identity import boot_id
from engine_ctl.model import HostView, Kind, Snapshot
from engine_ctl.observe.units import UnitWatch
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Store

TIMEOUT_S = 0.5
# Token rates need two samples. Taken only when some engine works at all.
AGAIN_AFTER_S = 0.2


def snapshot_once(
    dirs: Dirs,
    units: Iterable[str] | None = None,
    *,
    scrape: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> Snapshot:
    """Units as they are now. GPUs, the host, events, alerts and hints are left out: they cost
    imports and time (see Sampler.sample_once).

    `units` restricts to these names.
    """
    store = Store(dirs)
    boot = boot_id()
    listing = store.list_units()
    wanted = None if units is None else set(units)
    watches = []
    for record in listing.units:
        if wanted is None or record.unit in wanted:
            watch = UnitWatch(store, record.unit, remember=False)
            watch.look(record, boot)
            watch.read_log()
            watches.append(watch)
    if scrape:
        _scrape(watches, timeout_s)
    _look_for_drift(dirs, watches)
    if units is None and any(watch.spec and watch.spec.kind is Kind.PRELOAD for watch in watches):
        from engine_ctl.observe.weights import WeightsWatch

        weights = WeightsWatch(store)
        weights.look(watches)
        weights.close()
    now, wall = time.monotonic(), time.time()
    problems = (*listing.problems, *(watch.problem for watch in watches if watch.problem))
    return Snapshot(
        at=wall,
        host=HostView("", 0, None, 0, 0),
        units=tuple(watch.view(now, wall) for watch in watches),
        problems=problems,
    )


def _scrape(watches: list[UnitWatch], timeout_s: float) -> None:
    endpoints = {
        watch.unit: endpoint for watch in watches if (endpoint := watch.endpoint()) is not None
    }
    if not endpoints:
        return
    from engine_ctl.metrics.scrape import Scraper

    scraper = Scraper()
    by_unit = {watch.unit: watch for watch in watches}
    busy: dict[str, UnitWatch] = {}
    try:
        for attempt in range(2):
            answers = scraper.poll(endpoints, timeout_s)
            now, wall = time.monotonic(), time.time()
            for unit, answer in answers.items():
                by_unit[unit].take(answer, now, wall)
            busy = {unit: by_unit[unit] for unit in answers if _busy(by_unit[unit], now, wall)}
            if attempt or not busy:
                break
            endpoints = {unit: endpoints[unit] for unit in busy}
            time.sleep(AGAIN_AFTER_S)
    finally:
        scraper.close()


def _busy(watch: UnitWatch, now: float, wall: float) -> bool:
    load = watch.load(now, wall)
    return load is not None and bool(load.running or load.waiting)


def _look_for_drift(dirs: Dirs, watches: list[UnitWatch]) -> None:
    from engine_ctl.observe.drift import DriftWatch, look_for_drift

    drift = DriftWatch(dirs)
    for watch in watches:
        look_for_drift(drift, watch)
