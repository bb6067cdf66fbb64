"""The console on the core: what runs as a command of its own, and orphans that it adopts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console import wiring
from engine_ctl.answers import Fix
from engine_ctl.errors import Busy, Failed
from engine_ctl.model import HostView, Kind, Phase, Snapshot, UnitView


class Here:
    """What would be done in the console's own process."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def write_fixes(self, unit: str, fixes: tuple[Fix, ...]) -> None:
        self.written.append((unit, fixes))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def detached(*words: str) -> Any:
        found.append(words)
        unit = {"run": "u/2", "port": 8000, "seconds": 1.5, "start_s": 2.0, "how": "ask"}
        return {**unit, "units": [unit], "to": "fast", "unit": "u", "done": "did it"}

    monkeypatch.setattr(wiring, "detached", detached)
    return found


@pytest.mark.parametrize(
    ("call", "words", "said"),
    [
        (lambda ops: ops.start("u"), "start u --no-wait", "u/2 started on port 8000"),
        (lambda ops: ops.stop("u"), "stop u --yes", "u/2 stopped in 1.5 s"),
        (lambda ops: ops.restart("u"), "restart u --wait", "u/2 ready in 2.0 s"),
        (lambda ops: ops.swap("u", "fast"), "swap u fast", "u runs fast after 1.5 s"),
        (lambda ops: ops.undo("u"), "undo u --yes", "u runs fast again after 1.5 s"),
        (lambda ops: ops.lora_load("u", "red", "/r"), "live u lora load red /r", "u: did it"),
        (lambda ops: ops.lora_unload("u", "red"), "live u lora unload red", "u: did it"),
        (lambda ops: ops.reset_prefix_cache("u"), "live u reset-prefix-cache", "u: did it"),
        (lambda ops: ops.sleep("u", 2), "live u sleep --level 2 --yes", "u: did it"),
        (lambda ops: ops.wake("u"), "live u wake", "u: did it"),
        (lambda ops: ops.preload_stop("u"), "preload stop u --yes", "u stopped in 1.5 s"),
    ],
)
def test_changes_run_as_commands_of_their_own(
    asked: list[tuple[str, ...]],
    call: Callable[[wiring.ConsoleOperations], str],
    words: str,
    said: str,
) -> None:
    assert call(wiring.ConsoleOperations()) == said
    assert asked == [tuple(words.split())]


def test_a_fix_is_written_here_and_applied_by_a_command(asked: list[tuple[str, ...]]) -> None:
    ops = wiring.ConsoleOperations()
    here = Here()
    ops.__dict__["_here"] = here
    fix = Fix("max_num_seqs", "256", "192")
    assert ops.apply("u", (fix,)) == "u/2 ready in 2.0 s"
    assert here.written == [("u", (fix,))] and asked == [("restart", "u", "--wait")]


@pytest.mark.parametrize(("code", "error"), [(4, Busy), (1, Failed)])
def test_an_exit_code_and_its_line_are_an_error(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    class Done:
        returncode, stdout, stderr = code, "", "noise\nstoker: unit u is busy; try again\n"

    monkeypatch.setattr(wiring.subprocess, "run", lambda *_, **__: Done)
    with pytest.raises(error, match=r"^unit u is busy; try again$"):
        wiring.detached("start", "u")


def test_packages_in_the_operators_directory_are_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("console", "profiles", "click"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    assert wiring.detached("profile", "list")["profiles"]


class Context:
    dirs = None


def test_an_orphan_is_adopted_as_soon_as_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Semaphore(0)
    given: list[Snapshot] = []

    class Sampler:
        def __init__(self, dirs: object) -> None:
            pass

        def start(self, callback: Callable[[Snapshot], None]) -> None:
            self.callback = callback

    monkeypatch.setattr("engine_ctl.observe.sampler.Sampler", Sampler)
    monkeypatch.setattr("engine_ctl.operations.resuming.resume_in_background", lambda ctx: None)
    monkeypatch.setattr("engine_ctl.operations.context.Context", Context)
    monkeypatch.setattr("engine_ctl.operations.runs.adopt_orphans", lambda ctx: tried.release())
    feed = wiring.LazyFeed()
    feed.start(given.append)
    assert tried.acquire(blocking=False)  # once at the start

    def show(phase: Phase) -> None:
        unit = UnitView("u", Kind.ENGINE, "p", phase)
        feed._sampler.callback(Snapshot(1.0, HostView("h", 1, None, 1, 1), (unit,)))

    show(Phase.READY)
    assert not tried.acquire(blocking=False)
    show(Phase.ORPHANED)
    assert tried.acquire(timeout=60)
    assert len(given) == 2
