"""What is named on a command line: units that are not there, bad names, moments."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from console.main import run
from engine_ctl import atomic
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.operations.listing import ps
from engine_ctl.paths import Dirs
from engine_ctl.state.records import ExitRecord, RunSpec
from profiles.lint import lint
from profiles.model import Profile


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return Dirs.from_env()


@pytest.mark.parametrize("yes", ["", " --yes"])
@pytest.mark.parametrize("line", ["remove nothing", "preload release nothing"])
@pytest.mark.usefixtures("dirs")
def test_nothing_is_asked_about_a_unit_that_is_not_there(
    line: str, yes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(line + yes)) == 3
    out, err = capsys.readouterr()
    assert (out, err) == ("", "stoker: no unit named nothing; see: stoker ps\n")


def test_what_is_there_still_asks(dirs: Dirs, capsys: pytest.CaptureFixture[str]) -> None:
    store = Context().store
    store.create("a", Kind.ENGINE)
    for line in ("remove a", "preload release a"):
        assert run(shlex.split(line)) == 2
        assert "--yes" in capsys.readouterr().err
    assert run(["remove", "a", "nothing"]) == 3
    assert store.exists("a")


@pytest.mark.parametrize("line", ["start -- -x -z --json", "stop --json -- -x -z"])
@pytest.mark.usefixtures("dirs")
def test_bad_names_are_one_document(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    units = json.loads(out)["units"]
    assert [unit["unit"] for unit in units] == ["-x", "-z"]
    assert all("cannot name a unit" in unit["error"] for unit in units)
    assert err == ""


@pytest.mark.usefixtures("dirs")
def test_one_bad_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "--", "-x", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "'-x' cannot name a unit" in err and err.count("\n") == 1


@pytest.mark.parametrize("since", ["14:05", "today", "2h", "1.5d", "2026-08-01", "11-29 14:05"])
@pytest.mark.parametrize("command", ["history", "events"])
@pytest.mark.usefixtures("dirs")
def test_moments_are_the_same_everywhere(command: str, since: str) -> None:
    assert run([command, "--since", since]) == 0


@pytest.mark.parametrize("since", ["nonsense", ""])
@pytest.mark.parametrize("command", ["history", "events"])
@pytest.mark.usefixtures("dirs")
def test_what_is_no_moment_is_refused(
    command: str, since: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--since", since]) == 2
    assert "is no time" in capsys.readouterr().err


def test_an_upgrade_is_told_from_where_it_starts(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    def rules(*words: str) -> set[str]:
        assert run(["profile", "lint", "chat", "--target", "0.33", *words, "--json"]) == 0
        return {found["rule"] for found in json.loads(capsys.readouterr().out)["findings"]}

    assert "port-not-shared" in rules() - rules("--from", "0.25")  # which is where it changed
    assert run(["profile", "lint", "chat", "--from", "0.25"]) == 2
    assert run(["profile", "lint", "chat", "--from", "new", "--target", "0.33"]) == 2


def test_one_matter_is_one_finding() -> None:
    args = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    rules = [found.rule for found in lint(Profile(name="p", model="m", args=args), "0.33")]
    assert rules.count("strict-tool-calling-default") == 1
    assert rules.count("tool-strict-level-default") == 1


def test_what_is_neither_a_unit_nor_a_profile_has_no_forecast(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["forecast", "nothing"]) == 3
    assert "no unit 'nothing' and no profile of that name" in capsys.readouterr().err
    Context().store.create("a", Kind.ENGINE, "gone")
    assert run(["forecast", "a"]) == 3
    assert "no profile gone" in capsys.readouterr().err
    assert run(["preload", "stop", "a"]) == 3
    assert "unit a has no preload daemon" in capsys.readouterr().err


def test_no_lines_are_no_lines(dirs: Dirs, capsys: pytest.CaptureFixture[str]) -> None:
    store = Context().store
    store.create("a", Kind.ENGINE)
    made = store.new_run(RunSpec(unit="a", kind=Kind.ENGINE, argv=["x"]))
    store.set_current(made)
    for text in ("one\ntwo\n", "one\ntwo", ""):
        made.log.write_text(text)
        for lines, wanted in ((0, []), (1, text.split()[-1:]), (9, text.split())):
            assert run(["logs", "a", "-n", str(lines), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["lines"] == wanted
    assert run(["logs", "a", "-n", "-1"]) == 2


def test_a_removed_unit_takes_its_benches_unit_along(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Context().store
    for name, kind in (("a", Kind.ENGINE), ("bench-a", Kind.BENCH), ("b", Kind.ENGINE)):
        store.create(name, kind)
    store.create("bench-b", Kind.ENGINE)  # an engine that is called so
    assert run(["remove", "a", "b", "--yes"]) == 0
    assert [record.unit for record in store.list_units().units] == ["bench-b"]


def test_the_console_opens_on_no_unit_that_is_not_there(
    dirs: Dirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.commands.console.unable", lambda: None)
    for name, status in (("nothing", 3), ("../x", 2)):
        assert run(["--unit", name]) == status
        assert capsys.readouterr().err.count("\n") == 1


def test_what_is_to_be_known_beside_the_phase_is_said(
    dirs: Dirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Context().store.create("a", Kind.ENGINE)
    found = ps(Context())
    monkeypatch.setattr("engine_ctl.operations.listing.ps", lambda *_: found)
    for note, said in (("restarts soon", "  a: restarts soon\n"), ("failed", ""), ("", "")):
        found["units"][0].update(phase="failed", note=note)
        assert run(["ps"]) == 0
        assert capsys.readouterr().out.partition("\n")[2].partition("\n")[2] == said


LOOKS = ("why", "runs", "logs", "phases", "starts", "kernels")
KILLED = (
    "ValueError: Free memory on device cuda:0 (2.6/139.8 GiB) on startup is less than desired GPU "
    "memory utilization (0.92, 128.6 GiB).\n"
)


def started(unit: str, log: str, **fields: object) -> None:
    store = Context().store
    store.create(unit, Kind.ENGINE)
    made = store.new_run(RunSpec(unit=unit, kind=Kind.ENGINE, argv=["x"]))
    store.set_current(made)
    made.log.write_text(log)
    atomic.write_record(made.dir / "exit.json", ExitRecord(ended=1.0, seconds=1.0, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [*LOOKS, "forecast", "preload plan"])
def test_who_only_looks_need_not_name_the_only_unit(
    command: str, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    assert run(words) == 3
    assert "no unit yet; try: stoker demo" in capsys.readouterr().err
    started("a", KILLED, code=1)
    Context().store.create("a-weights", Kind.PRELOAD)
    named = run([*words, "a"])
    wanted = capsys.readouterr()
    assert run(words) == named
    assert capsys.readouterr() == wanted


@pytest.mark.parametrize("command", ["swap", "undo", "restart", "stop", "remove", "bench"])
def test_who_changes_anything_names_it(command: str, dirs: Dirs) -> None:
    started("a", KILLED, code=1)
    assert run([command]) == 2


def test_of_several_units_each_last_start_is_told(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    started("a", KILLED, code=1)
    started("b", "", requested=True, code=0)
    Context().store.create("c", Kind.ENGINE)
    assert run(["why"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["unit", "run", "now", "weights", "why"]
    assert rows[0].startswith("a     a/1  failed") and ": " in rows[0]
    assert rows[1].split() == ["b", "b/1", "exited", "–", "–"]
    assert rows[2].split() == ["c", "–", "–", "–", "–"]
    assert run(["why", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["units"]
    assert [(each["unit"], each["run"]) for each in found] == [
        ("a", "a/1"),
        ("b", "b/1"),
        ("c", None),
    ]
    assert (
        found[0]["category"] not in ("", "unknown")
        and found[0]["hint"]
        and found[1]["category"] == ""
    )
    for command in LOOKS[1:]:
        assert run([command]) == 2
        assert "name a unit, there are several: a, b, c" in capsys.readouterr().err
    assert run(["phases", "--run", "a/1"]) == 0


def test_who_removes_a_unit_is_told_of_its_daemon(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Context().store
    store.create("a", Kind.ENGINE)
    store.create("a-weights", Kind.PRELOAD)
    assert run(["remove", "a", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("removed with: stoker remove a-weights\n")
    assert run(["remove", "a-weights", "--yes"]) == 0
    assert capsys.readouterr().out == "a-weights: removed\n"
