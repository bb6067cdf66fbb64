"""A burst of 50,000 lines in one second under the open log view: how long keys wait. By hand:

python tests/bench/log_burst.py [lines a second] [seconds]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.log_lines import piece  # noqa: E402
from tests.bench.log_terminal import CONSOLE, Terminal, spread  # noqa: E402

# A process of its own: the writer is an engine, not a part of the console.
WRITER = """
import sys, time
sys.path.insert(0, {root!r})
from tests.bench.log_lines import piece
lines = piece(3, {rate}).splitlines(keepends=True)
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
with open({log!r}, "ab", buffering=0) as log:
    for second in range({seconds}):
        for tenth in range(100):
            log.write(b"".join(lines[tenth * {rate} // 100:(tenth + 1) * {rate} // 100]))
            time.sleep(max(begin + second + (tenth + 1) / 100 - time.monotonic(), 0))
print(time.monotonic() - begin)
"""


def burst(follow: bool, rate: int, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.write_bytes(piece(1, 20000))
        code = WRITER.format(root=str(ROOT), log=str(log), rate=rate, seconds=seconds)
        writer = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdin is not None and writer.stdout is not None
        terminal = Terminal([sys.executable, "-c", CONSOLE.format(root=str(ROOT), log=str(log))])
        terminal.wait("STOKER")
        terminal.quiet(1.0)
        terminal.send("l")
        terminal.wait("following")
        terminal.quiet()
        if not follow:
            terminal.send("g")
            terminal.quiet()
        writer.stdout.readline()
        writer.stdin.write("go\n")
        writer.stdin.flush()
        answers: list[float] = []
        while writer.poll() is None:
            if follow:
                # A key whose answer is its own: the screen moves all the time.
                terminal.seen = b""
                begin = terminal.send("w")
                answers.append(terminal.wait("wrapped", 10) - begin)
                terminal.send("w")
                time.sleep(0.05)
            if not follow:
                answers.append(terminal.answer("j" if len(answers) % 2 == 0 else "k"))
                time.sleep(0.02)
        took = float(writer.stdout.read())
        total = 20000 + rate * seconds
        terminal.send("G")
        begin = time.monotonic()
        while f"{total:,}".replace(",", " ") not in terminal.text():
            terminal.read(0.2)
            if time.monotonic() - begin > 20:
                raise SystemExit("the last line never came")
        print(
            f"{'following' if follow else 'scrolled up'}: {rate * seconds} lines in {took:.2f} s; "
            f"keys {spread(answers)}; {terminal.memory():.0f} MB resident"
        )
        terminal.end()


if __name__ == "__main__":
    rate = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for follow in (False, True):
        burst(follow, rate, seconds)
