"""Each state directory has its own directory of daemon sockets, short, private and told."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl.errors import Failed
from engine_ctl.model import Kind
from engine_ctl.operations import catalogue
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Store
from engine_ctl.weights import sights, socket_dir
from engine_ctl.weights.ahead import loader_config
from profiles.argv import preload_argv, serve_argv
from profiles.model import Preload, Profile
from tests.standin.observed import Written
from tests.standin.rig import dirs_in

PROFILE = Profile(name="p", model="m", preload=Preload())


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What stands for /tmp; short, as /tmp is."""
    with tempfile.TemporaryDirectory(prefix="") as root:
        monkeypatch.setattr(socket_dir, "SHARED", Path(root))
        yield Path(root)


def store(root: Path) -> Store:
    dirs = dirs_in(root)
    dirs.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Store(dirs)


def private(dirs: Dirs, **env: str) -> Path:
    return socket_dir.private_dir(dirs, env)


def test_two_state_directories_of_one_user_share_no_sockets(tmp_path: Path, shared: Path) -> None:
    one, two = store(tmp_path / "one"), store(tmp_path / "two")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert private(one.dirs) != private(two.dirs)
    assert private(one.dirs) == private(store(tmp_path / "link").dirs)
    assert private(one.dirs).parent == shared


def test_daemon_and_engine_get_the_same_directory(tmp_path: Path, shared: Path) -> None:
    made = store(tmp_path)
    profile = socket_dir.concrete(made, PROFILE, {})
    directory = str(private(made.dirs))
    assert profile.preload is not None and profile.preload.socket_dir == directory
    words = preload_argv(profile)
    assert words[words.index("--weight-cache-socket-dir") + 1] == directory
    assert f'"socket_dir":"{directory}"' in serve_argv(profile)[-1]
    assert loader_config(profile).explicit


@pytest.mark.parametrize(
    "profile",
    [
        msgspec.structs.replace(PROFILE, preload=None),
        msgspec.structs.replace(PROFILE, preload=Preload(socket_dir="/d")),
        msgspec.structs.replace(PROFILE, preload=Preload(args={"weight-cache-socket-dir": "/d"})),
        msgspec.structs.replace(
            PROFILE, args={"model_loader_extra_config": {"socket_path": "/d/x.sock"}}
        ),
        msgspec.structs.replace(
            PROFILE, args={"model_loader_extra_config": '{"socket_dir": "/d"}'}
        ),
    ],
)
def test_what_the_operator_says_stays(tmp_path: Path, shared: Path, profile: Profile) -> None:
    assert socket_dir.with_socket_dir(store(tmp_path), profile, {}) is profile


def test_it_leaves_room_for_the_longest_socket(tmp_path: Path, shared: Path) -> None:
    dirs = store(tmp_path / ("deep" * 20)).dirs
    env = {"XDG_RUNTIME_DIR": "/" + "long" * 20}
    for path in socket_dir.candidates(dirs, env):
        assert len(os.fsencode(path)) + len(socket_dir.LONGEST) <= socket_dir.PATH_LIMIT
    assert not any(str(p).startswith("/longlong") for p in socket_dir.candidates(dirs, env))
    with socket.socket(socket.AF_UNIX) as server:
        socket_dir.ensure(dirs, str(private(dirs)))
        server.bind(str(private(dirs)) + socket_dir.LONGEST)


def test_it_stays_when_the_environment_changes(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = store(tmp_path).dirs
    runtime = shared / "r"
    runtime.mkdir(mode=0o700)
    first = private(dirs)
    first.symlink_to(runtime)  # somebody was there first
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    chosen = private(dirs, XDG_RUNTIME_DIR=str(runtime))
    assert chosen.parent == runtime
    socket_dir.ensure(dirs, str(chosen))
    first.unlink()
    assert private(dirs) == chosen, "that is where its daemons are"
    chosen.rmdir()
    runtime.rmdir()
    assert private(dirs) == first, "the session's directory is gone"


def test_it_is_made_for_its_owner_alone(tmp_path: Path, shared: Path) -> None:
    dirs = store(tmp_path).dirs
    path = private(dirs)
    socket_dir.ensure(dirs, str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o775)
    socket_dir.ensure(dirs, str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    socket_dir.ensure(dirs, str(tmp_path / "the-operators"))
    assert not (tmp_path / "the-operators").exists(), "vLLM makes those"


def test_a_planted_link_is_refused(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = store(tmp_path).dirs
    path = private(dirs)
    path.symlink_to(tmp_path)
    monkeypatch.setattr(socket_dir, "candidates", lambda *_: (path,))
    with pytest.raises(Failed, match="is a symlink; remove it"):
        socket_dir.ensure(dirs, str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files to another user")
def test_somebody_elses_directory_is_passed_over(tmp_path: Path, shared: Path) -> None:
    dirs = store(tmp_path).dirs
    path = private(dirs)
    path.mkdir()
    os.chown(path, 12345, -1)
    (shared / "r").mkdir()
    assert private(dirs, XDG_RUNTIME_DIR=str(shared / "r")).parent == shared / "r"


def test_a_daemon_in_the_old_place_is_used_until_it_is_reloaded(
    tmp_path: Path, shared: Path
) -> None:
    written = Written(tmp_path)
    try:
        written.unit("w", Kind.PRELOAD)
        written.run("w", argv=["python", "-m", "vllm", "preload"], profile="p")
        old = socket_dir.with_socket_dir(written.store, PROFILE, {})
        assert old.preload is not None and old.preload.socket_dir is None
        for profile, reload in (
            (PROFILE, True),
            (msgspec.structs.replace(PROFILE, name="other"), False),
        ):
            new = socket_dir.with_socket_dir(written.store, profile, {}, reload=reload)
            assert new.preload is not None and new.preload.socket_dir is not None
    finally:
        written.close()


def test_the_effective_view_says_where_it_comes_from(tmp_path: Path, shared: Path) -> None:
    ctx = Context(store(tmp_path).dirs)
    ctx.dirs.profiles.mkdir(parents=True)
    (ctx.dirs.profiles / "p.yaml").write_text("model: m\npreload: {}\n")
    shown = catalogue.effective(ctx, "p").document()
    directory = str(private(ctx.dirs))
    (row,) = [row for row in shown["values"] if row["key"] == "preload.socket_dir"]
    assert row == {
        "key": "preload.socket_dir",
        "value": directory,
        "origin": "Stoker: this state directory's own",
        "given": True,
    }
    assert shown["preload_argv"][-1] == directory and directory in shown["argv"][-1]
    assert shown["profile"]["preload"]["socket_dir"] == directory


def test_it_is_removed_with_nothing_in_it(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store(tmp_path)
    path = private(made.dirs)
    assert socket_dir.discard(made) is None
    socket_dir.ensure(made.dirs, str(path))
    (path / "vllm_weight_cache_CPU-0.sock.lock").touch()
    alive: Any = type("Sight", (), {"alive": True})
    with monkeypatch.context() as patch:
        patch.setattr(sights, "daemons", lambda _: (alive,))
        assert socket_dir.discard(made) is None and path.is_dir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "vllm_weight_cache_CPU-0.sock"))
        server.listen()
        assert socket_dir.discard(made) is None, "somebody else serves there"
    assert socket_dir.discard(made) == str(path) and not path.exists()
    assert not (made.dirs.state / socket_dir.NOTE).exists()
