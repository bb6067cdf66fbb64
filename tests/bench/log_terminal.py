"""A program on a pseudo-terminal, for the benchmarks of the log view."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-B]|.)")
CONSOLE = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import replace
from console.app import StokerApp
from tests.console import answers, fakes
first, *rest = fakes.gpu_units()
units = (replace(first, log={log!r}), *rest)
StokerApp(answers.ops(), fakes.Feed(replace(fakes.gpu_snapshot(), units=units))).run()
"""


class Terminal:
    """Runs `argv` on a terminal of 120 × 35 cells. Times are `time.monotonic` seconds."""

    def __init__(self, argv: list[str]) -> None:
        self.started = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 35, 120, 0, 0))
        self.seen = b""

    def send(self, keys: str) -> float:
        """Type; the moment of it."""
        now = time.monotonic()
        os.write(self.fd, keys.encode())
        return now

    def read(self, limit: float) -> bytes:
        """What is written within `limit` seconds, as soon as anything is."""
        if not select.select([self.fd], [], [], limit)[0]:
            return b""
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return b""
        self.seen = (self.seen + data)[-400_000:]
        return data

    def wait(self, text: str, limit: float = 120.0) -> float:
        """The moment at which `text` has been written since the last `wait` or `forget`."""
        wanted = text.encode()
        end = time.monotonic() + limit
        while time.monotonic() < end:
            self.read(0.5)
            if wanted in ESCAPES.sub(b"", self.seen):
                self.seen = b""
                return time.monotonic()
        raise SystemExit(f"{text!r} was never written; last: {self.text()[-400:]!r}")

    def text(self) -> str:
        return ESCAPES.sub(b"", self.seen).decode("utf-8", "replace")

    def quiet(self, seconds: float = 0.3) -> None:
        """Until nothing is written for a while."""
        while self.read(seconds):
            pass
        self.seen = b""

    def answer(self, key: str, limit: float = 10.0) -> float:
        """Seconds from a key to the first thing written after it."""
        while self.read(0):
            pass
        at = self.send(key)
        if not self.read(limit):
            raise SystemExit(f"no answer to {key!r}")
        return time.monotonic() - at

    def memory(self, what: str = "VmRSS") -> float:
        """MB of the process and of those that it has started (VmHWM: at most so far)."""
        family = [self.pid]
        for pid in family:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    family += map(int, file.read().split())
        return sum(_memory(pid, what) for pid in family)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def _memory(pid: int, what: str) -> float:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(what):
                    return int(line.split()[1]) * 1024 / 1e6
    except FileNotFoundError:
        pass
    return 0.0


def spread(values: list[float]) -> str:
    """Median and worst in milliseconds."""
    if not values:
        return "no sample"
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2] * 1000
    return f"median {middle:.0f} ms, worst {ordered[-1] * 1000:.0f} ms of {len(ordered)}"
