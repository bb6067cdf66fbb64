"""Text from outside reaches a terminal as text, and a locale without dashes gets something near."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from console import terminal
from console.main import run
from engine_ctl.model import Event
from engine_ctl.paths import Dirs
from engine_ctl.state import events

ROOT = Path(__file__).parents[2]
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


def test_a_terminal_gets_no_escapes_and_a_pipe_gets_all(dirs: Dirs) -> None:
    events.append(dirs, Event(at=1.0, unit="u", text=EVIL))
    command = [sys.executable, "-c", "from console.main import main; main()", "events"]
    piped = subprocess.run(command, capture_output=True, cwd=ROOT, check=True, timeout=100)
    assert EVIL.encode() in piped.stdout
    ours, theirs = pty.openpty()
    try:
        done = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=ROOT)
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert done.wait(100) == 0
    finally:
        os.close(ours)
    assert b"\x1b" not in said and "␛]0;title␇b".encode() in said
