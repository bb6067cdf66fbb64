"""What a shim does with its one run: begin it, watch it, end it, write down how it ended.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import os
import select
import signal
import struct
import time

from engine_ctl.supervise import (
    aftermath,
    base_environment,
    disk,
    policy,
    procs,
    remains,
    stale,
    trim,
)
from engine_ctl.supervise.readiness import Readiness, Said
from engine_ctl.supervise.spawn import Child, SpawnError, environment
from engine_ctl.supervise.sweep import TERM_S, reap, sweep
from engine_ctl.supervise.tie import Tie

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FAST_S = 0.25  # while starting: clock samples
READY_S = 0.05  # while nothing answers yet: whether something does
SLOW_S = 5.0  # afterwards: free space, size of the log, a request that came without a signal
# A run without a readiness address is sampled like a starting one for so long.
SETTLE_S = 120.0
# The stopping operation owns the ladder; the shim ends it when that operation has died.
LADDER_MARGIN_S = 3.0
SIGNALS = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
# What has to be written on a full disk too; the stopping operation fills request.json.
_LAST_WORDS = ("exit.json", "ready.json", "request.json")


class Watcher:
    """One run under this process. `watch`: the leader is not our child."""

    def __init__(self, run_dir: str, report: int | None) -> None:
        self.dir = run_dir
        self.unit_dir = os.path.dirname(os.path.dirname(run_dir))
        self.state = os.path.dirname(os.path.dirname(self.unit_dir))
        self._report = report
        self.spec: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.leader = 0
        self.watch = False
        self.status: int | None = None
        self.began = time.monotonic()
        self.error: str | None = None
        self.ready = False
        self.abandoned = False
        self._known: set[tuple[int, int]] = set()
        self.asked_by_signal = False
        self._before: tuple[float, int | None, int | None] | None = None
        self._steps: list[tuple[float, signal.Signals]] = []
        self._requested = False
        self._children: dict[int, int] = {}  # wait statuses of those that just ended
        self._said_stranger = False
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def path(self, name: str) -> str:
        return f"{self.dir}/{name}"

    def report(self, line: str) -> None:
        """Tell the launcher, once."""
        if self._report is not None:
            try:
                os.write(self._report, line.encode() + b"\n")
                os.close(self._report)
            except OSError:
                pass
            self._report = None

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.asked_by_signal = True

    # Beginning

    def begin(self, child: int | None, watch: bool) -> None:
        """Reserve the last words, start or take over the leader, record who is who.

        Raises SpawnError; the exit record is still to be written then."""
        spec = disk.read_json(self.path("spec.json"))
        if spec is None:
            raise SpawnError(f"{self.path('spec.json')} is missing or damaged")
        self.spec = spec
        try:
            for name in _LAST_WORDS:
                if not os.path.exists(self.path(name)):
                    disk.reserve(self.path(name))
            if not watch:
                self._keep_environment()
            if self.spec.get("uds") and not watch:
                stale.remove(self.spec["uds"])
            if watch:
                self._begin_watch()
            elif child is not None:
                self._begin_child(child)
            else:
                self._begin_spawn()
        except OSError as error:
            raise SpawnError(f"cannot write in {self.dir}: {error.strerror or error}") from None

    def _keep_environment(self) -> None:
        try:
            base_environment.keep(self.dir, os.environ, self.spec)
        except OSError as error:
            disk.complain(f"{base_environment.NAME}: {error}")

    def _begin_spawn(self) -> None:
        env = environment(self.spec, self.dir, dict(os.environ))
        env = remains.provide(env, self.spec, self.dir)
        child = Child(self.spec["argv"], env, self.spec.get("cwd"), self.path("log"))
        self.leader = child.pid
        try:
            # The child makes its own session before it waits, but maybe not yet.
            self._identify(session=child.pid)
        except OSError:
            child.abandon()
            os.waitpid(child.pid, 0)
            raise
        try:
            child.go()
        except SpawnError:
            os.waitpid(child.pid, 0)
            raise

    def _begin_child(self, pid: int) -> None:
        proc = procs.look(pid)
        if proc is None or proc.ppid != os.getpid():
            raise SpawnError(f"process {pid} is not a child of the shim")
        self.leader = pid
        self._identify(session=proc.sid)

    def _begin_watch(self) -> None:
        record = disk.read_json(self.path("identity.json")) or {}
        leader = record.get("leader") or {}
        if procs.find(leader, procs.table(), procs.boot_id()) is None:
            raise SpawnError("the run's process has ended already")
        self.watch = True
        self.leader = leader["pid"]
        self.began = record.get("monotonic", self.began)
        self.ready = os.path.exists(self.path("ready.json"))
        shim = procs.identity(os.getpid())
        self.identity = {**record, "shim": shim, "adopted": True, "dir": self.dir}
        disk.write_json(self.path("identity.json"), self.identity)
        self.tell("goes on under a new shim: its own had died", "warning")

    def _identify(self, session: int) -> None:
        self.began = time.monotonic()
        self.identity = {
            "schema": 1,
            "run": self.spec["run"],
            "shim": procs.identity(os.getpid()),
            "leader": procs.identity(self.leader),
            "session": session,
            "started": time.time(),
            "monotonic": self.began,
            "adopted": False,
            "dir": self.dir,
        }
        disk.write_json(self.path("identity.json"), self.identity)

    # Watching

    def run(self) -> None:
        """Return when the leader has ended, or (`abandoned`) an adopted run's directory."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if self.watch:
            try:
                poll.register(os.pidfd_open(self.leader), select.POLLIN)
            except OSError:
                return
        tie = Tie(self.spec.get("tied_to"), poll)
        asks = self._asks()
        settles = asks is None
        clock = _Clock(self.path("clock"), self.path("log"), self.began)
        slow_at = 0.0
        while not self._ended():
            now = time.monotonic()
            starting = asks is not None or (
                settles and not self.ready and now - self.began < SETTLE_S
            )
            if starting:
                clock.sample()
            if asks is not None and asks.step(self._children) and self._became_ready():
                clock.sample()
                asks = None
                starting = False
            gone = tie.broken()
            if gone is not None and not self._requested:
                self.request(f"the end of pid {gone}, which it was for")
                self._climb(now, self.spec.get("stop") or {}, ask=True)
            self._obey(now, asks)
            if now >= slow_at:
                slow_at = now + SLOW_S
                self._look_after()
            wait = FAST_S if starting else max(0.0, slow_at - time.monotonic())
            if asks is not None and not asks.why:
                wait = READY_S
            if self._steps:
                wait = max(0.0, min(wait, self._steps[0][0] - time.monotonic()))
            answers = asks.waits_for() if asks is not None else []
            for answer in answers:
                poll.register(*answer)
            poll.poll(int(wait * 1000) + 1)
            for answer in answers:
                poll.unregister(answer[0])
            self.drain()
            if self.watch and self._has_no_directory():
                self.abandoned = True
                break
        if asks is not None:
            asks.close()

    def _asks(self) -> Readiness | Said | None:
        """How readiness will be known; None when it is, or cannot be."""
        if self.ready:
            return None
        if self.spec.get("ready_log"):
            return Said(self.path("log"), self.spec["ready_log"])
        if not self.spec.get("ready_url"):
            return None
        try:
            return Readiness(self.spec, self._members)
        except ValueError as error:
            disk.complain(str(error))
            return None

    def _has_no_directory(self) -> bool:
        try:
            os.stat(self.dir)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def _members(self) -> set[int]:
        found = procs.members(self.dir, self.identity, known=self._known)
        return {self.leader, *(proc.pid for proc in found)}

    def _ended(self) -> bool:
        self._children = reap()
        if not self.watch:
            self.status = self._children.get(self.leader)
            return self.status is not None
        record = self.identity.get("leader")
        return procs.find(record, _one(self.leader), procs.boot_id()) is None

    def drain(self) -> None:
        try:
            while os.read(self.wake, 512):
                pass
        except BlockingIOError:
            pass

    def _became_ready(self) -> bool:
        now = time.monotonic()
        try:
            disk.fill(
                self.path("ready.json"),
                {"schema": 1, "wall": time.time(), "seconds": now - self.began},
            )
        except OSError:
            return False
        self.ready = True
        try:
            remains.note(self.dir, self._members())
        except OSError as error:
            disk.complain(f"what it shares is not noted: {error}")
        return True

    def _look_after(self) -> None:
        self._before = aftermath.sample()
        trim.trim(
            self.path("log"),
            self.spec.get("log_max_bytes", 1 << 30),
            self.spec.get("free_floor_bytes", 256 << 20),
        )
        if self.watch:
            processes = procs.table()
            self._known = {
                (pid, processes[pid].start)
                for pid in procs.descendants([self.leader], processes, ())
            }

    # Ending

    def _obey(self, now: float, asks: Readiness | Said | None) -> None:
        if self.asked_by_signal and not self._requested:
            self.request("a signal to the shim")
            self._climb(now, self.spec.get("stop") or {}, ask=True)
        elif not self._requested and os.path.exists(self.path("request.json")):
            request = disk.read_json(self.path("request.json")) or {}
            self._climb(now, request.get("stop") or {}, ask=False)
        limit = self.spec.get("ready_timeout_s") or 0.0
        if asks is not None and asks.strangers and not self._said_stranger:
            self._said_stranger = True
            self.tell(f"is not ready: {asks.why}", "error")
        late = asks is not None and limit and now - self.began > limit
        if late and not self._requested and self.error is None:
            self.error = f"not ready within {limit:g} s"
            if asks is not None and asks.why:
                self.error += f": {asks.why}"
            self._climb(now, self.spec.get("stop") or {}, ask=True)
            self._requested = False
        while self._steps and self._steps[0][0] <= now:
            _, number = self._steps.pop(0)
            proc = procs.find(self.identity["leader"], _one(self.leader), procs.boot_id())
            if proc is not None:
                procs.send(proc, number)

    def request(self, by: str) -> None:
        """Note that the run's end, or that it is not started again, was asked for."""
        path = self.path("request.json")
        if not os.path.exists(path):
            try:
                disk.fill(path, {"schema": 1, "at": time.time(), "by": by})
            except OSError:
                pass

    def _climb(self, now: float, stop: dict[str, Any], ask: bool) -> None:
        self._requested = True
        first = stop.get("ask_s", 10.0)
        both = first + stop.get("ask_again_s", 10.0)
        if ask:
            self._steps = [
                (now, signal.SIGTERM),
                (now + first, signal.SIGTERM),
                (now + both, signal.SIGKILL),
            ]
        else:
            last = now + stop.get("drain_s", 0.0) + both + LADDER_MARGIN_S
            self._steps = [(last, signal.SIGKILL)]

    def end(self) -> policy.Decision:
        """Sweep, write the exit record, and say whether the run is to be started again."""
        seconds = time.monotonic() - self.began
        ended = time.time()
        requested = self.asked_by_signal or os.path.exists(self.path("request.json"))
        code = number = None
        if self.status is not None and os.WIFEXITED(self.status):
            code = os.WEXITSTATUS(self.status)
        elif self.status is not None and os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
        swept: list[int] = []
        remaining: list[int] = []
        memory = None
        if self.identity:
            if self.leader and policy.failed(self.spec.get("kind", ""), requested, code):
                memory = self._look_at_memory()
            swept, remaining = sweep(
                lambda: self._left(memory),
                term_s=min(TERM_S, (self.spec.get("stop") or {}).get("ask_s", TERM_S)),
            )
        if not remaining:
            remains.remove(self.dir)
        decision = policy.NO
        if self.leader:
            decision = policy.again(
                self.spec.get("restart") or {},
                kind=self.spec.get("kind", ""),
                requested=requested,
                code=code,
                uptime_s=seconds,
                attempt=self.spec.get("attempt", 1),
            )
        record = {
            "schema": 1,
            "run": self.spec.get("run", ""),
            "code": code,
            "signal": number,
            "requested": requested,
            "swept": swept[:100],
            "remaining": remaining[:100],
            "ended": ended,
            "seconds": seconds,
            "ended_ticks": int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")),
            "boot": procs.boot_id(),
            "error": self.error,
            "restart_in_s": decision.delay_s,
            "gave_up": decision.gave_up,
        }
        if memory is not None:
            memory.poll()
            self._keep(memory)
        disk.fill(self.path("exit.json"), record)
        for name in _LAST_WORDS:
            if name != "request.json" or decision.delay_s is None:
                disk.release(self.path(name))
        if policy.failed(self.spec.get("kind", ""), requested, code):
            self.tell(_how(self.error, code, number, decision), "error")
        if memory is not None:
            known, now = memory.poll(), time.monotonic()
            delay = decision.delay_s
            memory.wait(aftermath.PATIENCE_S if delay is None else min(aftermath.PATIENCE_S, delay))
            if delay is not None:
                decision = decision._replace(delay_s=max(0.0, delay - (time.monotonic() - now)))
            if not known:
                self._keep(memory)
        return decision

    def owed(self) -> policy.Decision:
        """What the shim that wrote the run's exit record had decided, its delay from now on."""
        self.spec = disk.read_json(self.path("spec.json")) or {}
        record = disk.read_json(self.path("exit.json")) or {}
        if record.get("restart_in_s") is None:
            return policy.NO
        decision = policy.again(
            self.spec.get("restart") or {},
            kind=self.spec.get("kind", ""),
            requested=False,
            code=record.get("code"),
            uptime_s=record.get("seconds") or 0.0,
            attempt=self.spec.get("attempt", 1),
        )
        if decision.delay_s is None:
            return decision
        left = record["ended"] + record["restart_in_s"] - time.time()
        return decision._replace(delay_s=max(0.0, min(decision.delay_s, left)))

    def _left(self, memory: aftermath.Aftermath | None) -> list[procs.Proc]:
        """What is alive of the run."""
        asking: list[int] = []
        if memory is not None:
            memory.poll()
            asking = memory.pids
        return procs.members(self.dir, self.identity, known=self._known, exclude=asking)

    def _look_at_memory(self) -> aftermath.Aftermath | None:
        try:
            return aftermath.Aftermath(
                self._left(None), self._before, gpus=self.spec.get("platform") != "cpu"
            )
        except Exception as error:  # nothing here is worth an exit record
            disk.complain(f"memory at the end is not known: {error}")
            return None

    def _keep(self, memory: aftermath.Aftermath) -> None:
        try:
            disk.write_json(self.path("memory.json"), memory.record)
        except OSError as error:
            disk.complain(f"memory.json: {error}")

    def tell(self, text: str, severity: str = "info") -> None:
        run = self.spec.get("run", self.dir)
        disk.event(self.state, self.spec.get("unit", ""), f"{run} {text}", severity)


class _Clock:
    """The `clock` file: (milliseconds since the start, log size) while the log grows."""

    def __init__(self, path: str, log: str, began: float) -> None:
        self._log = log
        self._began = began
        self._size = -1
        try:
            self._fd = os.open(path, disk.APPEND, 0o600)
        except OSError:
            self._fd = -1

    def sample(self) -> None:
        try:
            size = os.stat(self._log).st_size
            if size != self._size and self._fd >= 0:
                elapsed = int((time.monotonic() - self._began) * 1000)
                os.write(self._fd, struct.pack("<QQ", elapsed, size))
                self._size = size
        except OSError:
            pass  # a full disk, or a log that is gone: times are lost, nothing else


def _one(pid: int) -> dict[int, procs.Proc]:
    proc = procs.look(pid)
    return {} if proc is None else {pid: proc}


def _how(error: str | None, code: int | None, number: int | None, decision: policy.Decision) -> str:
    if error:
        text = f"failed: {error}"
    elif number is not None:
        text = f"failed: killed by {signal.Signals(number).name}"
    elif code is not None:
        text = f"failed: ended with status {code} without being asked to"
    else:
        text = "failed: ended without being asked to"
    if decision.delay_s is not None:
        text += f"; next start in {decision.delay_s:g} s"
    elif decision.gave_up:
        text += "; restarts are used up"
    return text
