"""The one sampling thread: everything that the console shows, once a second, as a `Snapshot`."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from engine_ctl.errors import Failed
from engine_ctl.hardware.readings import GpuSource
from engine_ctl.identity import boot_id
from engine_ctl.metrics.history import HOUR
from engine_ctl.metrics.scrape import Scraper
from engine_ctl.model import Event, HostView, Snapshot, UnitView
from engine_ctl.observe.alerts import alerts
from engine_ctl.observe.drift import DriftWatch, look_for_drift
from engine_ctl.observe.machine import MachineWatch
from engine_ctl.observe.units import UnitWatch, with_memory
from engine_ctl.observe.weights import WeightsWatch
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import RuntimeStore
from engine_ctl.state import events
from engine_ctl.state.store import Store

EVENTS = 200
# An engine answers within milliseconds; one that does not is taken up in the next tick.
SCRAPE_BUDGET_S = 0.35
SLOW_EVERY_S = 5.0

_log = logging.getLogger(__name__)


class Sampler:
    """Samples in a thread of its own between `start` and `stop`, or when `sample_once` is called
    (by one thread at a time). Keeps no connection and no file open while it is stopped."""

    def __init__(
        self,
        dirs: Dirs,
        gpu_source: GpuSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval: float = 1.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic seconds, `interval` seconds between samples. Without a
        `gpu_source` NVML is opened where there is a driver."""
        self._dirs = dirs
        self._clock = clock
        self._wall = wall
        self._interval = interval
        self._store = Store(dirs)
        self._scraper = Scraper(clock)
        self._drift = DriftWatch(dirs)
        self._runtime_store = RuntimeStore(dirs)
        if gpu_source is None:
            from engine_ctl.hardware.nvml import open_source

            gpu_source = open_source()
        self._machine = MachineWatch(self._store, gpu_source, clock)
        self._weights = WeightsWatch(self._store)
        self._watches: dict[str, UnitWatch] = {}
        self._slow_at: float | None = None
        self._runtimes: tuple[str, ...] = ()
        self._runtime_problems: tuple[str, ...] = ()
        self._events: tuple[Event, ...] = ()
        self._events_stamp: tuple[int, int] | None = None
        self._last: Snapshot | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._wake: tuple[int, int] | None = None

    # ------------------------------------------------------------------ the thread

    def start(self, callback: Callable[[Snapshot], None]) -> None:
        """Begin: `callback` gets each snapshot on the sampling thread and must return at once."""
        if self._thread is not None:
            return
        self._stopping.clear()
        self._wake = os.pipe()
        self._thread = threading.Thread(
            target=self._run, args=(callback,), name="stoker-sampler", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End. No call of the callback follows; waits at most for the sample in progress."""
        thread, self._thread = self._thread, None
        self._stopping.set()
        wake, self._wake = self._wake, None
        if wake is not None:
            os.write(wake[1], b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for fd in wake or ():
            os.close(fd)
        self._weights.close()
        self._scraper.close()
        self._machine.close()

    def _run(self, callback: Callable[[Snapshot], None]) -> None:
        due = self._clock()
        while not self._stopping.is_set():
            snapshot = self._guarded()
            if not self._stopping.is_set():
                callback(snapshot)
            due = max(due + self._interval, self._clock())
            self._sleep(max(0.0, due - self._clock()))
            due = min(due, self._clock())

    def _sleep(self, seconds: float) -> None:
        """Until then, until `stop`, or until the end of a daemon's process."""
        wake = self._wake
        if wake is None or self._stopping.is_set():
            return
        poll = select.poll()
        for fd in (wake[0], *self._weights.fds()):
            poll.register(fd, select.POLLIN)
        poll.poll(int(seconds * 1000))
        self._weights.settle()

    def _guarded(self) -> Snapshot:
        """A console that stops updating without a word is worse than one that says why."""
        try:
            return self.sample_once()
        except Exception as error:
            _log.exception("sampling failed")
            text = f"sampling failed, figures are old: {type(error).__name__}: {error}"
            last = self._last or Snapshot(at=self._wall(), host=HostView("", 0, None, 0, 0))
            return replace(last, problems=(text,))

    # ------------------------------------------------------------------ one sample

    def sample_once(self) -> Snapshot:
        """Look at everything once. Raises Failed when the state directory cannot be used."""
        boot = boot_id()
        listing = self._store.list_units()
        watches: list[UnitWatch] = []
        for record in listing.units:
            watch = self._watches.get(record.unit)
            if watch is None:
                watch = self._watches[record.unit] = UnitWatch(self._store, record.unit)
            watch.look(record, boot)
            watches.append(watch)
        for gone in self._watches.keys() - {record.unit for record in listing.units}:
            del self._watches[gone]
        self._slow(watches)
        self._scrape(watches)
        for watch in watches:
            watch.read_log()
        self._weights.look(watches)
        machine = self._machine.read(watches)
        now, wall = self._clock(), self._wall()
        views: list[UnitView] = []
        for watch in watches:
            view = watch.view(now, wall)
            held = machine.by_run.get(view.run or "")
            views.append(view if held is None else with_memory(view, *held))
        self._last = Snapshot(
            at=wall,
            host=machine.host,
            units=tuple(views),
            gpus=machine.gpus,
            events=self._read_events(),
            alerts=alerts(views, machine.orphans, machine.gpus, machine.resident),
            runtimes=self._runtimes,
            problems=(
                *listing.problems,
                *(watch.problem for watch in watches if watch.problem),
                *self._runtime_problems,
            ),
        )
        return self._last

    def history(self, unit: str, metric: str, seconds: int = HOUR) -> tuple[float, ...]:
        """Up to an hour of one metric (metrics.window.HISTORY), a value a second, NaN where
        unknown; empty for a unit without figures. May be called from any thread."""
        watch = self._watches.get(unit)
        if watch is None or watch.window is None:
            return ()
        return watch.window.history(metric, seconds)

    def _scrape(self, watches: list[UnitWatch]) -> None:
        endpoints = {
            watch.unit: endpoint for watch in watches if (endpoint := watch.endpoint()) is not None
        }
        answers = self._scraper.poll(endpoints, SCRAPE_BUDGET_S)
        now, wall = self._clock(), self._wall()
        for watch in watches:
            watch.take(answers.get(watch.unit), now, wall)

    def _slow(self, watches: list[UnitWatch]) -> None:
        """What changes by an operator's hand: profiles and runtimes."""
        now = self._clock()
        if self._slow_at is not None and now - self._slow_at < SLOW_EVERY_S:
            for watch in watches:
                if watch.run is not None and watch.spec is not None and not watch.drift_known:
                    self._look_for_drift(watch)
            return
        self._slow_at = now
        for watch in watches:
            self._look_for_drift(watch)
        runtimes, problems = self._runtime_store.all()
        self._runtimes = tuple(runtime.label for runtime in runtimes)
        self._runtime_problems = tuple(problems)

    def _look_for_drift(self, watch: UnitWatch) -> None:
        try:
            look_for_drift(self._drift, watch)
        except (Failed, OSError):
            watch.drift, watch.profile_problem, watch.sweep = (), "", ""
        watch.drift_known = True

    def _read_events(self) -> tuple[Event, ...]:
        """The newest events, oldest first; read again only when the file changed."""
        try:
            info = (self._dirs.state / "events.jsonl").stat()
            stamp = (info.st_ino, info.st_size)
        except OSError:
            return ()
        if stamp != self._events_stamp:
            self._events_stamp = stamp
            self._events = tuple(events.last(self._dirs, EVENTS))
        return self._events
