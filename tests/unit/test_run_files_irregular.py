"""A pipe, a directory or a device in the place of a file of a run keeps no command waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from console.main import run as command
from console.tail import Tail
from engine_ctl.atomic import NotRegular
from engine_ctl.logs.index_file import LogFile
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Store
from engine_ctl.supervise import launch
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import stop
from tests.standin.observed import Written, recorded_log
from tests.standin.rig import Rig, rig

__all__ = ["rig"]

pytestmark = pytest.mark.timeout(120)

Make = Callable[[Path], object]
WAYS: dict[str, Make] = {
    "pipe": os.mkfifo,
    "directory": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
}
FILES = (
    *("log", "clock", "shim.err", "ready.json", "request.json", "exit.json", "profile.json"),
    *("facts.json", "forecast.json", "weights.json", "memory.json", "lost.told", "shim.lock"),
)
LOOKS = ("ps", "runs chat", "why chat", "phases chat", "starts chat", "kernels chat", "logs chat")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failed", [True, False])
def test_every_look_goes_on(
    way: str,
    failed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    written = Written(tmp_path)
    written.dirs = Dirs.from_env()
    written.store = Store(written.dirs)
    written.unit("chat")
    run = written.run("chat")
    text, clock = recorded_log("h200-vllm-0.33.0/11_ipc")
    written.log(run, text)
    written.clock(run, clock)
    if failed:
        written.exit(run, code=1)
    try:
        for name in FILES:
            # Facts that are known would keep a look from reading anything.
            for derived in ("facts.json", "aside"):
                (run.dir / derived).unlink(missing_ok=True)
            path = run.dir / name
            if path.exists():
                path.rename(run.dir / "aside")
            WAYS[way](path)
            for line in (*LOOKS, f"why chat --bundle {tmp_path / 'out.tar.gz'}"):
                command(line.split())
                said = capsys.readouterr().err
                assert "Traceback" not in said and said.count("\n") <= 1, (name, line, said)
            path.rmdir() if way == "directory" else path.unlink()
            if (run.dir / "aside").exists():
                (run.dir / "aside").rename(path)
    finally:
        written.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_log_that_is_none_is_not_opened(way: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    WAYS[way](path)
    with pytest.raises(NotRegular, match="no regular file"):
        LogFile(path)
    tail = Tail(str(path))
    assert not tail.poll() and tail.lines == ()


@pytest.mark.parametrize("name", ["log", "clock", "shim.err"])
def test_a_run_with_pipes_is_adopted_and_stopped(rig: Rig, name: str) -> None:
    run = rig.start()
    rig.kill_shim(run)
    (run.dir / name).unlink(missing_ok=True)
    os.mkfifo(run.dir / name)
    try:
        launch.adopt(run)
        assert rig.life(run) in (Life.RUNNING, Life.ORPHANED)
        stop(run)
        assert rig.life(run) is Life.EXITED
    finally:
        (run.dir / name).unlink()
