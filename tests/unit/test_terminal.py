"""Text from outside reaches a terminal as text, and a locale without dashes gets something near."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TextIO, cast

import pytest

from console import terminal
from console.main import run
from engine_ctl.model import Event
from engine_ctl.operations import logfile
from engine_ctl.paths import Dirs
from engine_ctl.state import events
from engine_ctl.supervise import trim
from tests.standin.observed import Written
from tests.standin.rig import PATIENCE_S

ROOT = Path(__file__).parents[2]
STOKER = (sys.executable, "-c", "from console.main import main; main()")
EVIL = "a\x1b]0;title\x07b\x1b[2J\x9b1mc\u202ed\x7f"


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    made = Dirs.from_env()
    made.units.mkdir(parents=True, mode=0o700)
    made.state.chmod(0o700)
    return made


def test_controls_are_made_visible() -> None:
    assert terminal.shown(EVIL) == "a␛]0;title␇b␛[2J\ufffd1mc\ufffdd␡"
    for harmless in ("plain", "tabs\tand\nlines\r", "größer → 三 é ☃", ""):
        assert terminal.shown(harmless) == harmless


def test_what_a_locale_lacks_has_something_near() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=terminal.NEAREST)
    print("4 → 8 – ±1 % ★ 三", file=out, flush=True)
    assert out.buffer.getvalue() == b"4 > 8 - ~1 % * ?\n"  # type: ignore[attr-defined]


def test_an_error_is_cleaned_everywhere(dirs: Dirs, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "--log", f"/nowhere/{EVIL}"]) == 3
    err = capsys.readouterr().err
    assert "\x1b" not in err and "␛]0;title␇b" in err


def on_a_terminal(*words: str) -> bytes:
    """What a `stoker` command writes to a terminal that is its output and its error output."""
    ours, theirs = pty.openpty()
    said = b""
    try:
        done = subprocess.Popen([*STOKER, *words], stdout=theirs, stderr=theirs, cwd=ROOT)
        os.close(theirs)
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        done.wait(100)
    finally:
        os.close(ours)
    return said


def test_a_ttygets_no_escapes_and_a_pipe_gets_all(dirs: Dirs) -> None:
    events.append(dirs, Event(at=1.0, unit="u", text=EVIL))
    piped = subprocess.run([*STOKER, "events"], capture_output=True, cwd=ROOT, timeout=100)
    assert EVIL.encode() in piped.stdout
    said = on_a_terminal("events")
    assert b"\x1b" not in said and "␛]0;title␇b".encode() in said


def test_nor_do_the_errors_of_several_units(dirs: Dirs) -> None:
    said = on_a_terminal("stop", EVIL, "b")
    assert b"\x1b" not in said and "␛]0;title␇b".encode() in said


def test_a_log_on_a_ttykeeps_its_colours_and_nothing_else(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.unit("u")
    run = written.run("u")
    written.log(run, b"\x1b[0;36m(APIServer)\x1b[0;0m ok\n10%\r20%\n" + EVIL.encode() + b"\n\x1b")
    written.close()
    env = {f"XDG_{name}_HOME": str(tmp_path) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    written.dirs.state.rename(tmp_path / "stoker")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        said = on_a_terminal("logs", "u").replace(b"\r\n", b"\n")
        piped = subprocess.run([*STOKER, "logs", "u"], capture_output=True, cwd=ROOT, timeout=100)
    shown = terminal.shown(EVIL).encode()
    assert said == (b"\x1b[0;36m(APIServer)\x1b[0;0m ok\n10%\r20%\n" + shown + "\n␛\x1b[m".encode())
    assert EVIL.encode() in piped.stdout


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_log_may_come_in_any_pieces(size: int) -> None:
    out = io.StringIO()
    log = terminal.Log(cast(TextIO, terminal.Terminal(out)))
    data = f"\x1b[31mrot\x1b[m größer \x1b[2J \x1b]8;;x\x1b\\ {EVIL}".encode()
    for at in range(0, len(data), size):
        log.write(data[at : at + size])
    log.close()
    expected = f"\x1b[31mrot\x1b[m größer ␛[2J ␛]8;;x␛\\ {terminal.shown(EVIL)}\x1b[m"
    assert out.getvalue() == expected


def test_of_the_trimmed_middle_of_a_log_there_is_one_line(tmp_path: Path) -> None:
    path, block = tmp_path / "log", 4096
    path.write_bytes(b"a\n" * block + b"b" * block * 4 + b"c\n" * block)
    fd = os.open(path, os.O_RDWR)
    try:
        if not trim._punch(fd, 2 * block, 4 * block):
            pytest.skip("this file system has no holes")
    finally:
        os.close(fd)
    note = b"\n... %d bytes were trimmed here ...\n" % (4 * block)
    assert b"".join(logfile.tail(path, None)) == b"a\n" * block + note + b"c\n" * block
    assert b"".join(logfile.tail(path, 2)) == b"c\nc\n"


# A shell's part: the console in a process group of its own on this terminal, brought back when it
# was stopped.
SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
console = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, console.pid)
_, status = os.waitpid(console.pid, os.WUNTRACED)
while os.WIFSTOPPED(status):
    os.tcsetpgrp(0, os.getpgrp())
    os.write(1, b"<stopped>")
    os.read(0, 1)
    os.tcsetpgrp(0, console.pid)
    os.kill(console.pid, signal.SIGCONT)
    _, status = os.waitpid(console.pid, os.WUNTRACED)
os.write(1, b"<ended %d>" % os.waitstatus_to_exitcode(status))
"""
LEFT = b"\x1b[?1049l"  # the terminal's own screen is back


def test_a_console_that_is_suspended_or_ended_gives_the_ttyback(dirs: Dirs) -> None:
    pid, tty = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-c", SHELL, *STOKER])
    said = b""

    def until_said(what: bytes) -> bytes:
        nonlocal said
        while what not in said:
            ready, _, _ = select.select([tty], [], [], PATIENCE_S)
            assert ready, f"{what!r} never came"
            said += os.read(tty, 65536)
        before, _, said = said.partition(what)
        return before

    try:
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        until_said(b"STOKER")
        os.write(tty, b"\x1a")
        assert LEFT in until_said(b"<stopped>")
        os.write(tty, b"\n")
        until_said(b"STOKER")
        os.kill(os.tcgetpgrp(tty), signal.SIGTERM)
        assert LEFT in until_said(b"<ended 0>")
    finally:
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(tty), signal.SIGKILL)
        os.close(tty)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
