"""First paint, idle CPU and RSS of the console, in a pseudo-terminal. Run by hand:

    python tests/bench/first_paint.py [rounds] [idle seconds]

Three programs: a bare Textual app, the console on a feed of a busy GPU machine once a second (no
engine needed), and `stoker` itself on the state of the caller's XDG directories.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = """
import sys, threading, time
from dataclasses import replace
sys.path.insert(0, {root!r})
from console.app import StokerApp
class Feed:
    def start(self, callback):
        self.on = True
        threading.Thread(target=self.run, args=(callback,), daemon=True).start()
    def run(self, callback):
        from tests.console.fakes import gpu_snapshot
        now = gpu_snapshot()
        while self.on:
            callback(now)
            time.sleep(1)
            first = now.units[0]
            load = replace(first.load, tokens_per_second=3000 + time.time() % 900, running=12)
            units = (replace(first, load=load, uptime_s=first.uptime_s + 1), *now.units[1:])
            now = replace(now, at=now.at + 1, units=units)
    def stop(self):
        self.on = False
StokerApp(None, Feed()).run()
"""
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("STOKER")
Bare().run()
"""


def spawn(code: str, columns: int = 120, rows: int = 35) -> tuple[int, int]:
    """A child that runs `code` on a terminal of that size: (pid, terminal)."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(sys.executable, [sys.executable, "-c", code])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return pid, terminal


def wait_for(terminal: int, text: bytes, limit: float = 20.0) -> float:
    """Monotonic time at which `text` was first seen."""
    seen = b""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            seen = seen[-64:] + os.read(terminal, 65536)
            if text in seen:
                return time.monotonic()
    raise SystemExit("nothing was painted")


def drain(terminal: int, seconds: float) -> int:
    """Read for some time; bytes read."""
    count = 0
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            count += len(os.read(terminal, 65536))
    return count


def finish(pid: int, terminal: int) -> None:
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os.close(terminal)


def paint(code: str) -> float:
    begun = time.monotonic()
    pid, terminal = spawn(code)
    took = wait_for(terminal, b"STOKER") - begun
    finish(pid, terminal)
    return took


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(code: str, seconds: float) -> tuple[float, float, float]:
    """Share of a core, RSS in MB, bytes written a second, while nothing but the feed happens."""
    pid, terminal = spawn(code)
    wait_for(terminal, b"STOKER")
    drain(terminal, 3)
    before, begun = cpu_seconds(pid), time.monotonic()
    written = drain(terminal, seconds)
    took = time.monotonic() - begun
    share = (cpu_seconds(pid) - before) / took
    rss = next(
        int(row.split()[1])
        for row in Path(f"/proc/{pid}/status").read_text().splitlines()
        if row.startswith("VmRSS")
    )
    finish(pid, terminal)
    return share, rss / 1000, written / took


COMMAND = "import sys; sys.argv = ['stoker']; from console.main import main; main()"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    console = CONSOLE.format(root=str(ROOT))
    paint(BARE), paint(console), paint(COMMAND)
    bare = statistics.median(paint(BARE) for _ in range(rounds))
    ours = statistics.median(paint(console) for _ in range(rounds))
    print(f"first paint: bare Textual {bare * 1000:.0f} ms, console {ours * 1000:.0f} ms")
    command = statistics.median(paint(COMMAND) for _ in range(rounds))
    print(f"first paint of the command: {command * 1000:.0f} ms")
    for name, code in (("console on a feed", console), ("stoker", COMMAND)):
        share, rss, rate = idle(code, seconds)
        print(f"{name}: idle {share:.2%} of a core, RSS {rss:.0f} MB, {rate:.0f} B/s written")


if __name__ == "__main__":
    main()
