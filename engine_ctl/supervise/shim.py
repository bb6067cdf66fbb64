"""The shim: one small process that watches one run from its start to its exit record.

    python -I -S shim.py RUN_DIR [--child PID | --watch] [--lock FD] [--report FD] [--detach]

`--child` takes over a child that this process has already (a standby's fork), `--watch` a process
that is nobody's child any more (adoption: its exit status stays unknown). `--lock` is an open
shim.lock that is held already, `--report` gets one line: `ok`, or `error` and why.

It asks little of the machine: after the run is ready it wakes up every five seconds. It never
talks to anybody: SIGUSR1 means "look at request.json again", SIGTERM "end your run". Standard
library only: it also runs under a runtime's interpreter (Python 3.10 and newer).
"""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from engine_ctl.supervise import disk, policy, procs, trim
from engine_ctl.supervise.probe import Probe
from engine_ctl.supervise.spawn import Child, SpawnError, environment
from engine_ctl.supervise.sweep import reap, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FAST_S = 0.25  # while starting: clock samples, readiness
SLOW_S = 5.0  # afterwards: free space, size of the log, a request that came without a signal
BACKOFF_LOOK_S = 0.5
# A run without a readiness address is sampled like a starting one for so long.
SETTLE_S = 120.0
# The stopping operation owns the ladder; the shim ends it when that operation has died.
LADDER_MARGIN_S = 5.0
LOCK_PATIENCE_S = 3.0
# What has to be written on a full disk too; the stopping operation fills request.json.
_LAST_WORDS = ("exit.json", "ready.json", "request.json")
_SUBREAPER = 36
_SIGNALS = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Shim:
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
        self._known: set[tuple[int, int]] = set()
        self._asked_by_signal = False
        self._steps: list[tuple[float, signal.Signals]] = []
        self._requested = False
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        for number in _SIGNALS:
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
            self._asked_by_signal = True

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
            if watch:
                self._begin_watch()
            elif child is not None:
                self._begin_child(child)
            else:
                self._begin_spawn()
        except OSError as error:
            raise SpawnError(f"cannot write in {self.dir}: {error.strerror or error}") from None

    def _begin_spawn(self) -> None:
        env = environment(self.spec, self.dir, dict(os.environ))
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
        self.identity = {**record, "shim": procs.identity(os.getpid()), "adopted": True}
        disk.write_json(self.path("identity.json"), self.identity)

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
        }
        disk.write_json(self.path("identity.json"), self.identity)

    # Watching

    def run(self) -> None:
        """Return when the leader has ended."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self.watch:
            try:
                poll.register(os.pidfd_open(self.leader), select.POLLIN)
            except OSError:
                return
        url = self.spec.get("ready_url")
        probe = None
        if url and not self.ready:
            try:
                probe = Probe(url)
            except ValueError as error:
                sys.stderr.write(f"{error}\n")
        clock = _Clock(self.path("clock"), self.path("log"), self.began)
        slow_at = 0.0
        while not self._ended():
            now = time.monotonic()
            starting = probe is not None or (
                not url and not self.ready and now - self.began < SETTLE_S
            )
            if starting:
                clock.sample()
            if probe is not None and probe.step() and self._became_ready():
                clock.sample()
                probe = None
                starting = False
            self._obey(now, starting=probe is not None)
            if now >= slow_at:
                slow_at = now + SLOW_S
                self._look_after()
            wait = FAST_S if starting else max(0.0, slow_at - time.monotonic())
            if self._steps:
                wait = max(0.0, min(wait, self._steps[0][0] - time.monotonic()))
            poll.poll(int(wait * 1000) + 1)
            self._drain()

    def _ended(self) -> bool:
        if not self.watch:
            self.status = reap().get(self.leader)
            return self.status is not None
        record = self.identity.get("leader")
        return procs.find(record, _one(self.leader), procs.boot_id()) is None

    def _drain(self) -> None:
        try:
            while os.read(self._wake, 512):
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
        return True

    def _look_after(self) -> None:
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

    def _obey(self, now: float, starting: bool) -> None:
        if self._asked_by_signal and not self._requested:
            self._request("a signal to the shim")
            self._climb(now, self.spec.get("stop") or {}, ask=True)
        elif not self._requested and os.path.exists(self.path("request.json")):
            request = disk.read_json(self.path("request.json")) or {}
            self._climb(now, request.get("stop") or {}, ask=False)
        limit = self.spec.get("ready_timeout_s") or 0.0
        late = starting and limit and now - self.began > limit
        if late and not self._requested and self.error is None:
            self.error = f"not ready within {limit:g} s"
            self._climb(now, self.spec.get("stop") or {}, ask=True)
            self._requested = False
        while self._steps and self._steps[0][0] <= now:
            _, number = self._steps.pop(0)
            proc = procs.find(self.identity["leader"], _one(self.leader), procs.boot_id())
            if proc is not None:
                procs.send(proc, number)

    def _request(self, by: str) -> None:
        path = self.path("request.json")
        if not os.path.exists(path):
            try:
                disk.write_json(path, {"schema": 1, "at": time.time(), "by": by})
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
        requested = self._asked_by_signal or os.path.exists(self.path("request.json"))
        swept: list[int] = []
        remaining: list[int] = []
        if self.identity:
            swept, remaining = sweep(
                lambda: procs.members(self.dir, self.identity, known=self._known)
            )
        code = number = None
        if self.status is not None and os.WIFEXITED(self.status):
            code = os.WEXITSTATUS(self.status)
        elif self.status is not None and os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
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
        disk.fill(self.path("exit.json"), record)
        for name in _LAST_WORDS:
            if name != "request.json" or decision.delay_s is None:
                disk.release(self.path(name))
        if policy.failed(self.spec.get("kind", ""), requested, code):
            self._tell(_how(self.error, code, number, decision), "error")
        return decision

    def _tell(self, text: str, severity: str = "info") -> None:
        run = self.spec.get("run", self.dir)
        disk.event(self.state, self.spec.get("unit", ""), f"{run} {text}", severity)

    # Again

    def start_again(self, decision: policy.Decision) -> None:
        """Wait for the delay, make the next run and become its shim. Returns when that is not
        wanted any more: a stop was asked for, or the unit has gone on to another run."""
        due = time.monotonic() + decision.delay_s
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while self._still_wanted():
            left = due - time.monotonic()
            if left <= 0:
                lock = _try_lock(f"{self.unit_dir}/lock", f"restart of {self.spec['run']}")
                if lock is not None:
                    try:
                        if self._still_wanted():
                            self._next_run(decision, lock)
                    except OSError as error:
                        sys.stderr.write(f"cannot start again: {error}\n")
                        due = time.monotonic() + SLOW_S
                    os.close(lock)
                left = 0.1
            poll.poll(int(min(left, BACKOFF_LOOK_S) * 1000) + 1)
            self._drain()

    def _still_wanted(self) -> bool:
        current = disk.read_json(f"{self.unit_dir}/current.json") or {}
        return (
            not self._asked_by_signal
            and not os.path.exists(self.path("request.json"))
            and current.get("run") == self.spec["run"]
        )

    def _next_run(self, decision: policy.Decision, unit_lock: int) -> None:
        """Replace this process by the next run's shim. Returns when the disk does not let it."""
        number, directory = _next_directory(f"{self.unit_dir}/runs")
        run = f"{self.spec['unit']}/{number}"
        try:
            lock = _try_lock(f"{directory}/shim.lock", None)
            disk.write_json(
                f"{directory}/spec.json",
                {
                    **self.spec,
                    "run": run,
                    "attempt": decision.attempt,
                    "created": time.time(),
                    "via": "spawn",
                    "standby": None,
                    "predecessor": self.spec["run"],
                    "by": "restart policy",
                },
            )
            disk.write_json(
                f"{self.unit_dir}/current.json", {"schema": 1, "run": run, "since": time.time()}
            )
        except OSError:
            for name in ("shim.lock", "spec.json"):
                disk.remove(f"{directory}/{name}")
            os.rmdir(directory)
            raise
        self._tell(f"is started again as {run}")
        os.ftruncate(unit_lock, 0)
        os.close(unit_lock)
        # A signal for the next run's shim waits until that one has its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        assert lock is not None
        os.set_inheritable(lock, True)
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), directory]
        os.execv(command[0], [*command, "--lock", str(lock)])


class _Clock:
    """The `clock` file: (milliseconds since the start, log size) while the log grows."""

    def __init__(self, path: str, log: str, began: float) -> None:
        self._log = log
        self._began = began
        self._size = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
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


def _next_directory(runs: str) -> tuple[int, str]:
    number = max((int(name) for name in os.listdir(runs) if name.isdecimal()), default=0)
    while True:
        number += 1
        try:
            os.mkdir(f"{runs}/{number}", 0o700)
            return number, f"{runs}/{number}"
        except FileExistsError:
            pass


def _try_lock(path: str, command: str | None) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if command is not None:
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b'{"pid": %d, "command": "%s"}' % (os.getpid(), command.encode()), 0)
        except OSError:
            pass
    return fd


def _hold_lock(run_dir: str) -> bool:
    # Observers hold it shared for a moment when they look.
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while _try_lock(f"{run_dir}/shim.lock", None) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _streams(run_dir: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        os.dup2(os.open(f"{run_dir}/shim.err", flags, 0o600), 2)
    except OSError:
        os.dup2(null, 2)
    os.chdir("/")


def main(arguments: list[str]) -> int:
    run_dir = os.path.realpath(arguments[0])
    option: dict[str, int] = {}
    flags = set()
    rest = iter(arguments[1:])
    for name in rest:
        if name in ("--watch", "--detach"):
            flags.add(name)
        elif name in ("--child", "--lock", "--report"):
            option[name] = int(next(rest))
        else:
            sys.stderr.write(f"unknown argument {name}\n")
            return 2
    for name in ("--lock", "--report"):
        if name in option:
            os.set_inheritable(option[name], False)
    if "--detach" in flags and os.fork() != 0:
        os._exit(0)
    try:
        os.setsid()
    except PermissionError:
        pass  # a session leader already
    _streams(run_dir)
    _become_subreaper()
    shim = Shim(run_dir, option.get("--report"))
    if "--lock" not in option and not _hold_lock(run_dir):
        shim.report(f"error another shim watches {run_dir}")
        return 1
    try:
        shim.begin(option.get("--child"), "--watch" in flags)
    except SpawnError as error:
        if "--watch" not in flags:
            shim.error, shim.leader = str(error), 0
            shim.end()
        shim.report(f"error {error}")
        return 1
    shim.report("ok")
    shim.run()
    decision = shim.end()
    if decision.delay_s is not None:
        shim.start_again(decision)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
