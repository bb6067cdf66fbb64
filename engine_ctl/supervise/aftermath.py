"""What memory was when a run ended unasked: the host, its cgroup, what is left of the run, GPUs.

The host is read in a millisecond. GPUs are asked for by `nvidia-smi`, which may take seconds or
hang: it runs beside the sweep and is only ever polled.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from engine_ctl.supervise.procs import Proc

# How long the answer is waited for once the exit record is written.
PATIENCE_S = 2.0
_MIB = 1 << 20
_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
_GPUS = "--query-gpu=index,uuid,memory.total,memory.used"
_APPS = "--query-compute-apps=gpu_uuid,pid,used_memory"
_LARGEST = 16


def sample() -> tuple[float, int | None, int | None]:
    """(monotonic seconds, bytes available, kills for want of memory since boot), for `before`."""
    return time.monotonic(), _meminfo().get("MemAvailable"), _counter("/proc/vmstat", "oom_kill")


class Aftermath:
    """One look, begun when the leader has ended. Nothing here raises or waits but `wait`."""

    def __init__(
        self,
        left: Iterable[Proc],
        before: tuple[float, int | None, int | None] | None,
        gpus: bool,
    ) -> None:
        self._began = time.monotonic()
        self.record: dict[str, Any] = {"schema": 1, "at": time.time()}
        self._queries: list[_Query] = []
        program = _program() if gpus else None
        if program is not None:
            self._queries = [_Query(program, what) for what in (_GPUS, _APPS)]
        info = _meminfo()
        self.record["host"] = {
            "total": info.get("MemTotal"),
            "available": info.get("MemAvailable"),
            "swap_total": info.get("SwapTotal"),
            "swap_free": info.get("SwapFree"),
        }
        self.record["cgroup"] = _cgroup()
        kills = _counter("/proc/vmstat", "oom_kill")
        if before is not None:
            self.record["before"] = {"seconds": self._began - before[0], "available": before[1]}
            if kills is not None and before[2] is not None:
                self.record["oom_kills"] = kills - before[2]
        sized = [(_resident(proc.pid), proc) for proc in left]
        sized.sort(key=lambda each: each[0] or 0, reverse=True)
        self.record["left"] = [
            {"pid": proc.pid, "name": proc.comm, "resident": size}
            for size, proc in sized[:_LARGEST]
        ]

    @property
    def pids(self) -> list[int]:
        """The processes that ask, which are none of the run's."""
        return [query.pid for query in self._queries if query.pid]

    def poll(self) -> bool:
        """Take what has been answered; True when nothing is to be waited for any more."""
        if "gpus" not in self.record and "gpu_note" not in self.record and self._queries:
            answered = [query.poll() for query in self._queries]
            if not all(answered):
                return False
            self._settle()
        return True

    def wait(self, seconds: float) -> None:
        """Wait so long for the GPUs, then end what hangs and say so."""
        if not _wait(self._queries, self.poll, seconds):
            waited = time.monotonic() - self._began
            self.record["gpu_note"] = f"nvidia-smi did not answer within {waited:.1f} s"

    def _settle(self) -> None:
        gpus = {gpu["uuid"]: gpu for gpu in _gpus_of(self._queries[0])}
        if not gpus:
            said = self._queries[0].text().strip().split("\n")[0][:200]
            self.record["gpu_note"] = f"nvidia-smi failed: {said or 'it said nothing'}"
            return
        for row in self._queries[1].rows():
            if len(row) == 3 and row[1].isdecimal() and row[0] in gpus:
                gpus[row[0]]["processes"].append({"pid": int(row[1]), "used": _mib(row[2])})
        self.record["gpus"] = list(gpus.values())
        self.record["gpus_after_s"] = time.monotonic() - self._began


def gpus(seconds: float) -> list[dict[str, Any]]:
    """The GPUs as in a record, without processes; [] where nothing is said within `seconds`."""
    program = _program()
    if program is None:
        return []
    query = _Query(program, _GPUS)
    return _gpus_of(query) if _wait([query], query.poll, seconds) else []


def _wait(queries: list[_Query], answered: Callable[[], bool], seconds: float) -> bool:
    """Whether it is answered within so many seconds; what hangs is ended."""
    deadline = time.monotonic() + seconds
    try:
        while not answered():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([query.fd for query in queries if query.fd >= 0], (), (), left)
        return True
    finally:
        for query in queries:
            query.end()


def _gpus_of(query: _Query) -> list[dict[str, Any]]:
    """The GPUs that an answer to _GPUS names."""
    return [
        {
            "index": int(row[0]),
            "uuid": row[1],
            "total": _mib(row[2]),
            "used": _mib(row[3]),
            "processes": [],
        }
        for row in query.rows()
        if len(row) == 4 and row[0].isdecimal()
    ]


class _Query:
    """One nvidia-smi whose answer comes through a pipe."""

    def __init__(self, program: str, what: str) -> None:
        self.pid = 0
        self.fd = -1
        self._pidfd = -1
        self._said = b""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("STOKER_")}
        read, write = os.pipe()
        try:
            self.pid = os.posix_spawn(
                program,
                [program, what, "--format=csv,noheader,nounits"],
                environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT),
            )
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            self._said = (error.strerror or str(error)).encode()
        os.close(write)
        if self.pid:
            os.set_blocking(read, False)
            self.fd = read
        else:
            os.close(read)

    def poll(self) -> bool:
        """True when the answer is complete, or there will be none."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            self._said += data
            if not data or len(self._said) > _MIB:
                os.close(self.fd)
                self.fd = -1
        return True

    def end(self) -> None:
        """Kill what still runs."""
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except OSError:
                pass
            os.close(self._pidfd)
            self._pidfd = -1
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def text(self) -> str:
        return self._said.decode(errors="replace")

    def rows(self) -> list[list[str]]:
        return [[cell.strip() for cell in line.split(",")] for line in self.text().splitlines()]


def _program() -> str | None:
    for place in (*os.environ.get("PATH", "").split(":"), *_PLACES):
        path = f"{place}/nvidia-smi"
        if place.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _mib(text: str) -> int | None:
    """MiB to bytes; None for `[N/A]` and the like."""
    return int(text) * _MIB if text.isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _meminfo(path: str = "/proc/meminfo") -> dict[str, int]:
    found = {}
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 3 and words[1].isdecimal() and words[2] == "kB":
            found[words[0].rstrip(":")] = int(words[1]) * 1024
    return found


def _resident(pid: int) -> int | None:
    return _meminfo(f"/proc/{pid}/status").get("VmRSS")


def _counter(path: str, name: str) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith(name + " "):
            number = line[len(name) + 1 :].strip()
            return int(number) if number.isdecimal() else None
    return None


def _cgroup(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> dict[str, int] | None:
    """The tightest memory limit above this process, what counts against it, and how many
    processes were killed for it so far; None without a limit. The shim shares its run's cgroup."""
    tightest: dict[str, int] | None = None
    for line in _read(f"{proc}/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        files = ("memory.max", "memory.current")
        base = root
        if controllers:
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            base = f"{root}/memory"
        while True:
            limit = _read(f"{base}{path}/{files[0]}").strip()
            used = _read(f"{base}{path}/{files[1]}").strip()
            if limit.isdecimal() and used.isdecimal() and int(limit) < 1 << 60:
                found = {"limit": int(limit), "used": int(used)}
                kills = _counter(f"{base}{path}/memory.events", "oom_kill")
                if kills is not None:
                    found["oom_kills"] = kills
                if tightest is None or found["limit"] < tightest["limit"]:
                    tightest = found
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
    return tightest
