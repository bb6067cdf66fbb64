"""What scripts may rely on: one JSON document, field names, exit codes, errors of one line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from console.main import run, stoker
from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.model import Event, Kind
from engine_ctl.observe.once import snapshot_once
from engine_ctl.operations.context import Context
from engine_ctl.operations.listing import ps, runs
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.probe import probe
from engine_ctl.state import events
from engine_ctl.state.records import ExitRecord, RunSpec
from engine_ctl.state.store import Store
from tests.standin.observed import Recorded, Written, recorded_log
from tests.standin.pages import page

ROOT = Path(__file__).parents[2]
Document = Callable[..., dict[str, Any]]


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return Dirs.from_env()


@pytest.fixture
def document(dirs: Dirs, capsys: pytest.CaptureFixture[str]) -> Document:
    """Run a command with --json: its document, when stdout holds that alone and stderr nothing."""

    def command(*words: str, status: int = 0) -> dict[str, Any]:
        assert run([*words, "--json"]) == status
        out, err = capsys.readouterr()
        assert err == ""
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    return command


def leaves(command: click.Command, path: str, ctx: click.Context) -> Iterator[tuple[str, set[str]]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from leaves(below, f"{path} {name}".strip(), ctx)
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield path, {option for parameter in command.params for option in parameter.opts}


COMMANDS = dict(leaves(stoker, "", click.Context(stoker)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json(name: str) -> None:
    assert "--json" in COMMANDS[name]


def test_what_asks_takes_yes() -> None:
    asking = {"remove", "reap", "undo", "profile remove", "runtime remove"}
    asking |= {f"preload {word}" for word in ("stop", "reload", "release")}
    assert all("--yes" in COMMANDS[name] for name in asking)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("", 2),
        ("pss", 2),
        ("start", 2),
        ("ps --nonsense", 2),
        ("phases", 3),
        ("runtime add nonsense", 2),
        ("profile lint chat --target latest", 2),
        ("ps nothing", 3),
        ("start nothing", 3),
        ("stop nothing", 3),
        ("restart nothing", 3),
        ("remove nothing --yes", 3),
        ("runs nothing", 3),
        ("logs nothing", 3),
        ("why nothing", 3),
        ("phases nothing", 3),
        ("starts nothing", 3),
        ("kernels nothing", 3),
        ("queues nothing", 3),
        ("preload plan nothing", 3),
        ("forecast nothing", 3),
        ("swap nothing chat", 3),
        ("undo nothing", 3),
        ("bench nothing", 3),
        ("profile show nothing", 3),
        ("runtime check nothing", 3),
        ("runtime remove nothing --yes", 3),
        ("profile import --from /nonexistent/file", 3),
    ],
)
@pytest.mark.parametrize("flag", ["", " --json"])
def test_errors_are_one_line_with_a_status_and_make_nothing(
    line: str, status: int, flag: str, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(line + (flag if line else ""))) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("stoker: ") and err.count("\n") == 1 and err.endswith("\n")
    assert not list(dirs.units.glob("*"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("start", "see: stoker start --help"),
        ("runtime add", "see: stoker runtime add --help"),
        ("preload frob", "see: stoker preload --help"),
        ("ps --jso", "Did you mean '--json'?"),
        ("stat", "Did you mean 'start'?"),
        ("live lora load red ./red", "the unit comes first: stoker live UNIT lora load red ./red"),
        ("logs chat-8", "did you mean chat-8b?"),
        ("remove chat-8 --yes", "did you mean chat-8b?"),
        ("logs chat-8b --run x", "a number of: stoker runs chat-8b"),
        ("profile remove chat --yes", "chat is built in and stays"),
        ("profile show nothing", "see: stoker profile list"),
    ],
)
def test_an_error_says_what_to_do(
    line: str, said: str, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    Context().store.create("chat-8b", Kind.ENGINE)
    assert run(shlex.split(line)) in {2, 3}
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/ls", "is no Python interpreter"),
        (sys.executable, "has no vLLM; name the Python"),
        (".", "is no program"),
    ],
)
def test_what_is_no_runtime_is_told_in_words(program: str, said: str) -> None:
    with pytest.raises(Failed, match=said):
        probe(program, {})


def test_rows_of_ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server here answers at once, but not on time when the machine is busy.
    monkeypatch.setitem(snapshot_once.__kwdefaults__, "timeout_s", 100.0)
    written = Written(tmp_path)
    try:
        written.unit("idle")
        written.unit("chat")
        with Recorded(page("cpu_1")) as server:
            started = written.run("chat", port=server.port, gpus=[0])
            written.log(started, recorded_log("h200-vllm-0.33.0/11_ipc")[0])
            written.ready(started)
            found = ps(Context(written.dirs))
    finally:
        written.close()
    rows = {row["unit"]: row for row in json.loads(json.dumps(found["units"], allow_nan=False))}
    promised = {
        "unit": str,
        "kind": str,
        "profile": str,
        "phase": str,
        "reasons": list,
        "model": str,
        "host": str,
        "port": int,
        "url": str,
        "pid": int,
        "gpus": list,
        "running": int | float,
        "waiting": int | float,
        "kv_cache_usage": float,
        "uptime_s": float,
        "start_s": float,
        "run": str,
        "drift": list,
    }
    for key, kind in promised.items():
        assert isinstance(rows["chat"][key], kind), key
    assert {"verdict", "tokens_per_second"} <= set(rows["chat"])
    assert rows["chat"]["run"] == "chat/1" and rows["chat"]["start_s"] == 9.5
    assert rows["chat"]["url"] == f"http://{rows['chat']['host']}:{rows['chat']['port']}"
    unknown = {k for k, v in rows["idle"].items() if v is None}
    assert {"phase", "verdict", "port", "url", "pid", "running", "kv_cache_usage", "run"} <= unknown


def test_rows_of_runs(tmp_path: Path) -> None:
    written = Written(tmp_path)
    try:
        written.unit("chat")
        first = written.run("chat")
        written.log(first, recorded_log("h200-vllm-0.33.0/37_nofallback")[0])
        written.exit(first, code=1)
        written.run("chat")
        found = runs(Context(written.dirs), "chat")
    finally:
        written.close()
    now, was = json.loads(json.dumps(found["runs"], allow_nan=False))
    names = {"run", "kind", "started", "ended", "exit", "phase", "verdict", "reasons", "forecast"}
    for row in (now, was):
        assert names | {"phases", "cause"} <= set(row)
    assert now["exit"] is None and now["ended"] is None
    assert was["run"] == "chat/1" and was["phase"] == "failed" and was["exit"]["code"] == 1
    assert {"phase", "start_s", "seconds"} <= set(was["phases"][0])
    assert was["cause"]["category"] and was["cause"]["hint"]


def test_documents_of_profiles(document: Document, dirs: Dirs, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("extends: chat\nargs: {swap_space: 4}\nenv: {HF_TOKEN: {from_env: T}}\n")
    shown = document("profile", "show", str(file))
    assert shown["argv"][:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert isinstance(shown["env"], dict) and "HF_TOKEN" in shown["env"]
    assert shown["provenance"]["args.swap_space"]["line"] == 2
    assert shown["profile"]["args"]["swap_space"] == 4
    found = document("profile", "lint", str(file), "--target", "0.33", status=1)["findings"]
    names = {"rule", "severity", "key", "message", "instead", "versions"}
    assert all(names <= set(finding) for finding in found)
    assert "gone-swap-space" in {finding["rule"] for finding in found}
    paste = tmp_path / "paste.sh"
    paste.write_text("vllm serve org/m --max-model-len 32k --api-key sk-topsecret | tee log\n")
    taken = document("profile", "import", "--from", str(paste), "--name", "mine")
    assert taken["profile"]["args"]["max_model_len"] == "32k" and taken["unrepresented"]
    assert "topsecret" not in json.dumps(taken) + (dirs.profiles / "mine.yaml").read_text()
    assert document("profile", "schema")["type"] == "object"
    assert {"key", "old", "new", "cost"} <= set(
        document("profile", "diff", "chat", "throughput")["changes"][0]
    )


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("ps", "units"),
        ("events", "events"),
        ("reap", "reaped"),
        ("weights", "daemons"),
        ("standby list", "standbys"),
        ("profile list", "profiles"),
        ("args kv", "arguments"),
        ("runtime list", "runtimes"),
        ("history", "entries"),
        ("demo --down", "removed"),
    ],
)
def test_an_empty_machine_answers_every_list(line: str, key: str, document: Document) -> None:
    assert key in document(*line.split())


def test_what_asks_refuses_without_a_terminal(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs.profiles.mkdir(parents=True)
    (dirs.profiles / "mine.yaml").write_text("model: org/m\n")
    assert run(["profile", "remove", "mine"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert (dirs.profiles / "mine.yaml").exists()
    assert run(["profile", "remove", "mine", "--yes"]) == 0
    assert not (dirs.profiles / "mine.yaml").exists()


def test_a_fault_of_our_own_is_one_line_too(
    dirs: Dirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("engine_ctl.operations.listing.ps", fails)
    assert run(["ps", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "RuntimeError: two lines" in err and "test_commands.py" in err
    monkeypatch.setenv("STOKER_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run(["ps"])


def test_events_are_filtered_by_what_an_operator_names(dirs: Dirs, document: Document) -> None:
    Store(dirs)
    events.record(dirs, "a", "started with profile p", by="anna")
    events.record(dirs, "a", "failed to start: oom", severity="error", by="anna")
    events.record(dirs, "b", "b/1 failed: killed by SIGKILL", severity="error", by="shim")

    def units(line: str) -> list[tuple[str, str]]:
        found = document("events", *line.split())["events"]
        return [(event["unit"], event["kind"]) for event in found]

    assert units("") == [("a", "start"), ("a", "failure"), ("b", "failure")]
    assert units("--by shim") == [("b", "failure")]
    assert units("--kind start --kind failure --unit a") == [("a", "start"), ("a", "failure")]
    assert units("--level warning+ --since 1h") == [("a", "failure"), ("b", "failure")]
    assert units("sigkill") == [("b", "failure")]
    assert units("--until yesterday") == []
    assert units("-n 1") == [("b", "failure")]


@pytest.mark.parametrize("words", [["events", "-f"], ["logs", "demo", "-f"]])
def test_following_is_ended_by_an_interrupt_without_a_word(
    words: list[str],
    dirs: Dirs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("engine_ctl.state.events.follow", interrupted)
    monkeypatch.setattr("engine_ctl.operations.logfile.follow", interrupted)
    monkeypatch.setattr("engine_ctl.operations.runs.run_of", lambda *_: None)
    assert run(words) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["--help"], ["ps"], ["ps", "--json"]])
def test_a_reader_that_has_gone_is_no_error(words: list[str], dirs: Dirs) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", "from console.main import main; main()", *words]
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("created", [1e25, -1e25])
def test_a_wall_time_that_no_calendar_has_is_said_as_unknown(
    dirs: Dirs, capsys: pytest.CaptureFixture[str], created: float
) -> None:
    store = Store(dirs)
    store.create("a", Kind.ENGINE)
    made = store.new_run(RunSpec(unit="a", kind=Kind.ENGINE, argv=["x"], created=created))
    store.set_current(made)
    atomic.write_record(made.dir / "exit.json", ExitRecord(ended=created, seconds=1.0, code=1))
    events.append(dirs, Event(at=created, unit="a", text="started"))
    for words in (["runs", "a"], ["history"], ["events"]):
        assert run(words) == 0
        out, err = capsys.readouterr()
        assert "N/A" in out and err == "", words
    for words in (["ps"], ["why", "a"], ["starts", "a"], ["phases", "a"]):
        run(words)
        assert "fault of Stoker" not in capsys.readouterr().err, words
