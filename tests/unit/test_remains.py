"""What vLLM leaves in the temporary directory and in shared memory goes with its last process."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.operations import reaping
from engine_ctl.operations.context import Context
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import launch, orphans, remains
from engine_ctl.supervise.stop import stop
from tests.standin.rig import Rig, dirs_in, free_port, restart, rig, says, until

__all__ = ["rig"]

# Binds as vLLM does, and unlinks as little; `--child`: so does one that outlives it.
BINDS = """
import os, signal, socket, sys
def bind(name):
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.join(os.environ["VLLM_RPC_BASE_PATH"], name))
    return server
held = bind("11111111-2222-3333-4444-555555555555")
if "--child" in sys.argv:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        other = bind("child")
        print("child", os.getpid(), flush=True)
        signal.pause()
if "--meet" in sys.argv:
    name = "vllm_dist_" + os.path.basename(os.environ["TMPDIR"])
    path = f"{os.environ['TMPDIR']}/{name}"
    for each in (path, f"/dev/shm/{name}-tp:0-cpushm_0"):
        open(each, "w").close()
    for named in (path, sys.argv[-1], "/nonexistent/vllm_dist_1"):
        print(f"world_size=1 distributed_init_method=file://{named} backend=gloo", flush=True)
print("bound", os.environ["VLLM_RPC_BASE_PATH"], flush=True)
signal.pause()
"""


# Maps shared memory under a name that it never unlinks, and answers /health.
SHARES = """
import http.server, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
held = mmap.mmap(fd, 4096)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory with a short name, as TMPDIR."""
    made = tempfile.mkdtemp(prefix="st-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", made)
    monkeypatch.delenv(remains.VARIABLE, raising=False)
    yield Path(made)
    shutil.rmtree(made)


def started(rig: Rig, *options: str, **fields: Any) -> Run:
    run = rig.prepare(argv=[sys.executable, "-I", "-S", "-c", BINDS, *options], **fields)
    launch.launch(run)
    child = "--child" in options
    until(lambda: says(run, "bound") and (not child or says(run, "child")), "it has bound")
    return run


def words(run: Run, first: str) -> str:
    lines = run.log.read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(first))


def test_a_stop_takes_the_sockets_away(rig: Rig, place: Path) -> None:
    run = started(rig)
    directory = Path(words(run, "bound"))
    assert directory.parent == place and stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert len(os.fsencode(directory)) + 37 < 107
    assert list(directory.iterdir())
    stop(run)
    assert not any(place.iterdir()) and not (run.dir / remains.LINK).is_symlink()


def test_the_file_where_processes_met_goes_too(rig: Rig, place: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.touch()
    run = started(rig, "--meet", str(other))
    shared = Path(f"/dev/shm/vllm_dist_{place.name}-tp:0-cpushm_0")
    assert (place / f"vllm_dist_{place.name}").exists() and shared.exists()
    stop(run)
    assert not any(place.iterdir()) and not shared.exists() and other.exists()


@pytest.mark.parametrize("shim", ["killed too", "alive"])
def test_shared_memory_of_what_was_killed_at_once_goes(rig: Rig, place: Path, shim: str) -> None:
    shared, port = Path(f"/dev/shm/psm_{place.name}"), free_port()
    argv = [sys.executable, "-I", "-S", "-c", SHARES, str(shared), str(port)]
    run = rig.prepare(argv=argv, ready_url=f"http://127.0.0.1:{port}/health")
    launch.launch(run)
    until(lambda: (run.dir / remains.SHARED).exists(), "noted")
    who = run.identity()
    assert who is not None and shared.exists() and orphans.tidy(rig.store) == []
    if shim == "killed too":
        rig.kill_shim(run)
        assert orphans.tidy(rig.store) == [] and shared.exists()
    rig.kill(who.leader.pid)
    if shim == "killed too":
        until(lambda: rig.life(run) == "lost", "lost")
        assert orphans.tidy(rig.store) == [run.id]
    else:
        rig.ended(run)
    assert not shared.exists() and not (run.dir / remains.SHARED).exists()
    assert not any(place.iterdir())


def test_each_start_of_the_restart_policy_has_its_own(rig: Rig, place: Path) -> None:
    run = started(rig, restart=restart(max=1))
    who = run.identity()
    assert who is not None
    rig.kill(who.leader.pid)
    after = rig.next_run(run)
    until(lambda: says(after, "bound"), "the next has bound")
    assert [str(path) for path in place.iterdir()] == [words(after, "bound")]
    stop(after)
    assert not any(place.iterdir())


def test_a_start_that_fails_leaves_none(rig: Rig, place: Path) -> None:
    run = rig.prepare(argv=["/nonexistent"])
    with pytest.raises(launch.Failed):
        launch.launch(run)
    assert not any(place.iterdir())


def test_nothing_that_lives_loses_its_sockets_when_the_shim_was_killed(
    rig: Rig, place: Path
) -> None:
    run = started(rig, "--child")
    who = run.identity()
    assert who is not None
    rig.kill_shim(run)
    assert orphans.tidy(rig.store) == []
    rig.kill(who.leader.pid)
    until(lambda: rig.life(run) == "lost", "lost")
    assert orphans.tidy(rig.store) == [] and any(place.iterdir()), "its child is there"
    ctx = Context(rig.dirs)
    reaping.reap_pids(ctx, (int(words(run, "child")),))
    assert not any(place.iterdir())
    assert orphans.tidy(rig.store) == []


def test_a_stop_of_what_was_lost_takes_them_too(rig: Rig, place: Path) -> None:
    run = started(rig)
    who = run.identity()
    assert who is not None
    rig.kill_shim(run)
    rig.kill(who.leader.pid)
    until(lambda: rig.life(run) == "lost", "lost")
    stop(run)
    assert not any(place.iterdir())


def test_without_a_shim_a_stop_does_it(rig: Rig, place: Path) -> None:
    run = started(rig, "--child")
    rig.kill_shim(run)
    stop(run)
    assert not any(place.iterdir())


def test_a_copy_of_the_state_takes_nothing(rig: Rig, place: Path, tmp_path: Path) -> None:
    run = started(rig)
    shutil.copytree(rig.dirs.state, tmp_path / "copy" / "state", symlinks=True)
    copy = Store(dirs_in(tmp_path / "copy"))
    assert orphans.tidy(copy) == []
    copied = copy.run(run.id)
    # Even where its records say that it has ended.
    (copied.dir / "identity.json").unlink()
    assert orphans.tidy(copy) == [] and any(Path(words(run, "bound")).iterdir())
    stop(run)
    assert orphans.tidy(copy) == [run.id], "only the link is left there"


def test_a_link_to_something_else_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    run = rig.prepare()
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (run.dir / remains.LINK).symlink_to(other)
    assert remains.remove(str(run.dir)) and (other / "kept").exists()


def test_what_cannot_be_removed_keeps_no_end_from_its_record(rig: Rig, place: Path) -> None:
    run = started(rig)
    directory = Path(words(run, "bound"))
    (directory / "not a socket").mkdir()
    kept = place / "kept"
    kept.touch()
    noted = f'{{"schema": 1, "mapped": {{"{kept}": {kept.stat().st_ino}, "/dev/shm/\\u0000": 1}}}}'
    (run.dir / remains.SHARED).write_text(noted)
    (run.dir.parent / "9.bak").mkdir()
    (run.dir.parent / "9.bak" / remains.SHARED).write_text(noted)
    stopped = stop(run)
    assert stopped.exit is not None and stopped.exit.requested and kept.exists()
    assert orphans.tidy(rig.store) == [] and directory.exists()
    shutil.rmtree(run.dir.parent / "9.bak")
    shutil.rmtree(directory)
    (run.dir / remains.SHARED).write_text('{"mapped": [1]}')
    assert orphans.tidy(rig.store) == [run.id] and not remains.noted(str(run.dir))


def test_the_operators_own_place_stays(rig: Rig, place: Path, tmp_path: Path) -> None:
    run = started(rig, env={remains.VARIABLE: str(place)})
    assert words(run, "bound") == str(place) and not (run.dir / remains.LINK).is_symlink()
    stop(run)
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "m", "--distributed-executor-backend", "ray"],
        ["serve", "m", "--data-parallel-backend=ray"],
        ["serve", "m", "--config", "{config}"],
    ],
)
def test_none_for_ray_which_takes_the_variable_elsewhere(
    argv: list[str], place: Path, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text('distributed-executor-backend: "ray"\n')
    argv = [word.format(config=config) for word in argv]
    env = {"TMPDIR": str(place)}
    assert remains.provide(env, {"kind": "engine", "argv": argv}, str(tmp_path)) == env
    assert not any(place.iterdir())


@pytest.mark.parametrize("kind", ["standby", "front"])
def test_none_for_what_is_no_vllm(kind: str, place: Path, tmp_path: Path) -> None:
    env = {"TMPDIR": str(place)}
    assert remains.provide(env, {"kind": kind, "argv": []}, str(tmp_path)) == env


def test_a_long_temporary_directory_gives_way(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    env = remains.provide({"TMPDIR": str(long)}, {"kind": "engine", "argv": []}, str(tmp_path))
    assert env[remains.VARIABLE].startswith(f"/tmp/{remains.PREFIX}")
    assert remains.remove(str(tmp_path)) and not os.path.exists(env[remains.VARIABLE])


def test_asked_twice_it_is_the_same(place: Path, tmp_path: Path) -> None:
    spec = {"kind": "engine", "argv": []}
    first = remains.provide({"TMPDIR": str(place)}, spec, str(tmp_path))
    assert remains.provide({"TMPDIR": str(place)}, spec, str(tmp_path)) == first
    assert len(list(place.iterdir())) == 1
