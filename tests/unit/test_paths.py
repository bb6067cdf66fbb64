"""Where state is kept, and what is said when it cannot be."""

from __future__ import annotations

import io
import os
import pwd
import sys
from pathlib import Path

import pytest

from console.commands.console import unable
from console.main import run
from engine_ctl.errors import Failed
from engine_ctl.paths import Dirs, ensure_private


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_without_a_usable_home_the_password_database_says_where(home: str | None) -> None:
    env = {} if home is None else {"HOME": home}
    assert Dirs.from_env(env).state.is_relative_to(pwd.getpwuid(os.geteuid()).pw_dir)


@pytest.mark.parametrize("place", ["state", "state/stoker"])
def test_a_file_in_the_way_is_one_line(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / place
    blocked.parent.mkdir(exist_ok=True)
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(["ps"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"stoker: {tmp_path}/state/stoker ")
    assert said.count("\n") == 1


def test_what_others_can_write_to_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "state"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(Failed, match="chmod go-w"):
        ensure_private(open_to_all)


@pytest.mark.parametrize(
    ("term", "encoding", "said"),
    [("dumb", "utf-8", "TERM is dumb"), ("xterm", "iso8859-1", "needs UTF-8")],
)
def test_where_no_console_can_be_drawn_one_line_says_so(
    term: str, encoding: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal(io.BytesIO(), encoding=encoding))
    monkeypatch.setenv("TERM", term)
    assert said in (unable() or "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding="utf-8"))
    assert unable() is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert "without 2>" in (unable() or "")
    monkeypatch.setattr(sys, "stderr", None)
    assert "without 2>" in (unable() or "")
    monkeypatch.setattr(sys, "stdin", None)
    assert "needs a terminal" in (unable() or "")
