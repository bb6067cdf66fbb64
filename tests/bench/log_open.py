"""The log view beside less and toolong on the same log of a gigabyte. Run by hand:

python tests/bench/log_open.py [FILE] [--rounds N] [--toolong PATH_OF_TL] [--alone]

The programs take turns (A B C A B C …), each on a terminal of its own and in a session of its own;
printed are medians over the rounds, with the least and the most. A search and its `grep -c` are
timed one after the other and compared pair by pair. Without FILE a log of 10 million lines is made
in a temporary directory first. The file is read once before: all begin with it in memory.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.log_lines import make  # noqa: E402
from tests.bench.log_terminal import CONSOLE, Terminal  # noqa: E402

LIMIT_S = 300.0
"""How long to wait for anything: on a busy machine everything takes long."""
SEARCHES = (
    ("KV cache is full", False),
    ("ERROR", False),
    ("POST /v1", False),
    ("nowhere to be found", False),
    (r"Running: 12\d reqs", True),
    (r"Preempted|ERROR", True),
)


class Figures:
    """What was measured in all rounds, by program and what it is."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, program: str, what: str, *values: float) -> None:
        self._of[program, what] += values

    def show(self) -> None:
        """One line a figure: median (least to most)."""
        last = ""
        for (program, what), values in self._of.items():
            if program != last:
                print(program)
                last = program
            unit = what.rpartition(", ")[2]
            digits = {"ms": 0, "MB": 0, "s": 2}.get(unit, 1)
            low, middle, high = min(values), median(values), max(values)
            print(
                f"  {what:<48} {middle:>8.{digits}f}   ({low:.{digits}f} to {high:.{digits}f},"
                f" {len(values)} values)"
            )


def grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def grep(path: Path, text: str, regex: bool) -> tuple[int, float]:
    """(lines, seconds)"""
    kind = "-F" if not regex else "-P" if "\\d" in text else "-E"
    begin = time.monotonic()
    done = subprocess.run(
        ["grep", "-c", kind, "-e", text, str(path)],
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    return int(done.stdout), time.monotonic() - begin


def keys_until(terminal: Terminal, text: str) -> list[float]:
    """Press a key again and again until something stands there: the seconds that each took."""
    answers: list[float] = []
    begin = time.monotonic()
    while text not in terminal.text():
        answers.append(terminal.answer("k" if len(answers) % 2 else "j", LIMIT_S) * 1000)
        if time.monotonic() - begin > LIMIT_S:
            raise SystemExit(f"{text!r} was never written")
    return answers


def stoker(path: Path, lines: int, figures: Figures) -> None:
    def add(what: str, *values: float) -> None:
        figures.add("stoker", what, *values)

    terminal = Terminal([sys.executable, "-c", CONSOLE.format(root=str(ROOT), log=str(path))])
    terminal.wait("STOKER", LIMIT_S)
    terminal.quiet(1.5)
    begin = terminal.send("l")
    add("first screen after the key, ms", (terminal.wait("following", LIMIT_S) - begin) * 1000)
    answers = keys_until(terminal, f"of {grouped(lines)}")
    add("fully indexed, s", time.monotonic() - begin)
    add("key while indexing, ms", *answers)
    add("worst key while indexing, ms", max(answers, default=0.0))
    terminal.quiet()
    begin = terminal.send("g")
    add("to the first line, ms", (terminal.wait("line 1 of", LIMIT_S) - begin) * 1000)
    begin = terminal.send("G")
    add("to the last line, ms", (terminal.wait("following", LIMIT_S) - begin) * 1000)
    for text, regex in SEARCHES:
        count, before = grep(path, text, regex)
        if not count:
            continue  # "0 lines" is written at once, and stays
        terminal.send("/")
        terminal.quiet()
        if regex:
            terminal.send("\x12")
        terminal.send("\x14")
        terminal.quiet()
        begin = terminal.send(text)
        took = terminal.wait(f"{grouped(count)} line", LIMIT_S) - begin
        terminal.send("\x1b")
        terminal.quiet()
        _, after = grep(path, text, regex)
        add(f"search {text}, s", took)
        add(f"search {text}, times grep -c", took * 2 / (before + after))
    terminal.send("3")
    answers = [terminal.answer("k" if n % 2 else "j", LIMIT_S) * 1000 for n in range(40)]
    add("key while filtering, ms", *answers)
    terminal.send("1")
    terminal.quiet()
    terminal.send("z")
    answers = [terminal.answer("k" if n % 2 else "j", LIMIT_S) * 1000 for n in range(60)]
    add("key while folding, ms", *answers)
    add("memory at most, its process included, MB", terminal.memory("VmHWM"))
    terminal.end()


def engine(path: Path, figures: Figures) -> None:
    """The same searches without the console, with the time that its index takes alone."""
    from engine_ctl.logs.blocks import EveryLine
    from engine_ctl.logs.index import RowIndex
    from engine_ctl.logs.index_file import LogFile
    from engine_ctl.logs.search import Query

    def built(rows: RowIndex) -> float:
        begin = time.monotonic()
        while rows.step():
            pass
        return time.monotonic() - begin

    file = LogFile(path)
    figures.add("engine", "index alone, s", built(RowIndex(file, EveryLine())))
    for text, regex in SEARCHES:
        count, took = grep(path, text, regex)
        rows = RowIndex(file, Query(text, regex=regex))
        figures.add("engine", f"search {text}, times grep -c", built(rows) / took)
        if len(rows) != count:
            raise SystemExit(f"{text!r}: {len(rows)} lines, grep says {count}")


def less(path: Path, figures: Figures) -> None:
    def add(what: str, value: float) -> None:
        figures.add("less -n", what, value)

    # -n: it does not count lines, which would make each jump a matter of half a minute.
    terminal = Terminal(["less", "-n", "-S", str(path)])
    add("first screen, ms", (terminal.wait("APIServer", LIMIT_S) - terminal.started) * 1000)
    terminal.quiet()
    begin = terminal.send("G")
    add("to the last line, ms", (terminal.wait("(END)", LIMIT_S) - begin) * 1000)
    terminal.send("g")
    terminal.quiet()
    begin = terminal.send("/nowhere to be found\r")
    add("search nowhere to be found, s", terminal.wait("not found", LIMIT_S) - begin)
    add("memory, MB", terminal.memory())
    terminal.end()


def toolong(path: Path, program: str, figures: Figures) -> None:
    def add(what: str, *values: float) -> None:
        figures.add("toolong", what, *values)

    terminal = Terminal([program, str(path)])
    add("first screen, ms", (terminal.wait("APIServer", LIMIT_S) - terminal.started) * 1000)
    answers: list[float] = []
    scanned = time.monotonic()
    while time.monotonic() - scanned < 3 or time.monotonic() - terminal.started < 6:
        answers.append(terminal.answer("k" if len(answers) % 2 else "j", LIMIT_S) * 1000)
        if "Scanning" in terminal.text():
            scanned, terminal.seen = time.monotonic(), b""
        time.sleep(0.02)
    add("fully indexed, s", scanned - terminal.started)
    add("key while indexing, ms", *answers)
    add("worst key while indexing, ms", max(answers))
    add("memory at most, MB", terminal.memory("VmHWM"))
    terminal.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--toolong", default=shutil.which("tl"))
    parser.add_argument("--alone", action="store_true", help="without less and toolong")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(chosen.file) if chosen.file else Path(folder) / "log"
        if not path.exists():
            make(path)
        lines = int(subprocess.run(["wc", "-l", str(path)], capture_output=True).stdout.split()[0])
        load = Path("/proc/loadavg").read_text().split()[0]
        print(f"{path.stat().st_size / 1e9:.2f} GB, {grouped(lines)} lines, load {load} before")
        if not chosen.alone and shutil.which("less") is None:
            print("less is not installed")
        figures = Figures()
        try:
            for number in range(chosen.rounds):
                print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr)
                stoker(path, lines, figures)
                if not chosen.alone and shutil.which("less"):
                    less(path, figures)
                if not chosen.alone and chosen.toolong:
                    toolong(path, chosen.toolong, figures)
                engine(path, figures)
        finally:
            # Also of rounds that were broken off.
            figures.show()
        print(f"load {Path('/proc/loadavg').read_text().split()[0]} after")


if __name__ == "__main__":
    main()
