"""The log view beside less and toolong on the same log of a gigabyte. Run by hand:

python tests/bench/log_open.py [FILE] [--toolong PATH_OF_TL]

Without FILE a log of 10 million lines is made in a temporary directory first.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.log_lines import make  # noqa: E402
from tests.bench.log_terminal import CONSOLE, Terminal, spread  # noqa: E402

SEARCHES = (
    ("KV cache is full", False),
    ("ERROR", False),
    ("POST /v1", False),
    ("nowhere to be found", False),
    (r"Running: 12\d reqs", True),
    (r"Preempted|ERROR", True),
)


def grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def grep(path: Path, text: str, regex: bool) -> tuple[int, float]:
    """(lines, seconds), the better of two."""
    best, count = float("inf"), 0
    for _ in range(2):
        begin = time.monotonic()
        kind = "-F" if not regex else "-P" if "\\d" in text else "-E"
        done = subprocess.run(
            ["grep", "-c", kind, "-e", text, str(path)], capture_output=True, text=True
        )
        best = min(best, time.monotonic() - begin)
        count = int(done.stdout)
    return count, best


def stoker(path: Path, lines: int) -> None:
    terminal = Terminal([sys.executable, "-c", CONSOLE.format(root=str(ROOT), log=str(path))])
    terminal.wait("STOKER")
    terminal.quiet(1.5)
    print(f"  console before        {terminal.memory():.0f} MB resident")
    begin = terminal.send("l")
    shown = terminal.wait("following")
    answers: list[float] = []
    total = f"of {grouped(lines)}"
    while total not in terminal.text():
        answers.append(terminal.answer("k" if len(answers) % 2 else "j"))
        if time.monotonic() - begin > 60:
            raise SystemExit("never indexed")
    indexed = time.monotonic()
    print(f"  first screen          {(shown - begin) * 1000:.0f} ms after the key")
    print(f"  fully indexed         {indexed - begin:.2f} s")
    print(f"  keys while indexing   {spread(answers)}")
    terminal.quiet()
    begin = terminal.send("g")
    print(f"  to the first line     {(terminal.wait('line 1 of') - begin) * 1000:.0f} ms")
    begin = terminal.send("G")
    print(f"  to the last line      {(terminal.wait('following') - begin) * 1000:.0f} ms")
    for text, regex in SEARCHES:
        count, took = grep(path, text, regex)
        if not count:
            continue  # "0 lines" is written at once, and stays
        terminal.send("/")
        terminal.quiet()
        if regex:
            terminal.send("\x12")
        terminal.send("\x14")
        terminal.quiet()
        answers = []
        begin = terminal.send(text)
        done = terminal.wait(f"{grouped(count)} line") - begin
        terminal.send("\x1b")
        terminal.quiet()
        kind = "expression" if regex else "search"
        print(
            f"  {kind:<10} {text:<20} {done:.2f} s in the console, grep -c {took:.2f} s: "
            f"{done / took:.1f} times, {grouped(count)} lines"
        )
    terminal.send("3")
    answers = [terminal.answer("k" if n % 2 else "j") for n in range(40)]
    print(f"  keys while filtering  {spread(answers)}")
    terminal.send("1")
    terminal.quiet()
    terminal.send("z")
    answers = [terminal.answer("k" if n % 2 else "j") for n in range(60)]
    print(f"  keys while folding    {spread(answers)}")
    print(
        f"  memory                {terminal.memory():.0f} MB resident, at most "
        f"{terminal.memory('VmHWM'):.0f} MB"
    )
    terminal.end()


def engine(path: Path) -> None:
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
    print(f"  index alone           {built(RowIndex(file, EveryLine())):.2f} s")
    for text, regex in SEARCHES:
        count, took = grep(path, text, regex)
        rows = RowIndex(file, Query(text, regex=regex))
        alone = built(rows)
        assert len(rows) == count, (text, len(rows), count)
        print(f"  search alone {text:<20} {alone:.2f} s, grep -c {took:.2f} s: {alone / took:.1f}")


def less(path: Path) -> None:
    if shutil.which("less") is None:
        print("  less is not installed")
        return
    # -n: it does not count lines, which would make each jump a matter of half a minute.
    terminal = Terminal(["less", "-n", "-S", str(path)])
    shown = terminal.wait("APIServer") - terminal.started
    print(f"  first screen          {shown * 1000:.0f} ms")
    terminal.quiet()
    begin = terminal.send("G")
    terminal.wait("(END)")
    print(f"  to the last line      {(time.monotonic() - begin) * 1000:.0f} ms")
    terminal.send("g")
    terminal.quiet()
    begin = terminal.send("/nowhere to be found\r")
    terminal.wait("not found")
    print(f"  search, no match      {time.monotonic() - begin:.2f} s")
    print(f"  memory                {terminal.memory():.0f} MB resident")
    terminal.end()


def toolong(path: Path, program: str) -> None:
    terminal = Terminal([program, str(path)])
    print(
        f"  first screen          {terminal.wait('APIServer') - terminal.started:.2f} s from start"
    )
    answers: list[float] = []
    scanned = time.monotonic()
    while time.monotonic() - scanned < 3 or time.monotonic() - terminal.started < 6:
        answers.append(terminal.answer("k" if len(answers) % 2 else "j", 60))
        if "Scanning" in terminal.text():
            scanned, terminal.seen = time.monotonic(), b""
        time.sleep(0.02)
    print(f"  fully indexed         {scanned - terminal.started:.1f} s")
    print(f"  keys while indexing   {spread(answers)}")
    print(
        f"  memory                {terminal.memory():.0f} MB resident, at most "
        f"{terminal.memory('VmHWM'):.0f} MB"
    )
    terminal.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?")
    parser.add_argument("--toolong", default=shutil.which("tl"))
    parser.add_argument("--alone", action="store_true", help="without less and toolong")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(chosen.file) if chosen.file else Path(folder) / "log"
        if not path.exists():
            make(path)
        lines = int(subprocess.run(["wc", "-l", str(path)], capture_output=True).stdout.split()[0])
        print(f"{path.stat().st_size / 1e9:.2f} GB, {grouped(lines)} lines")
        print("stoker")
        stoker(path, lines)
        engine(path)
        if chosen.alone:
            return
        print("less")
        less(path)
        if chosen.toolong:
            print("toolong")
            toolong(path, chosen.toolong)


if __name__ == "__main__":
    main()
