from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.model import Kind
from engine_ctl.state.records import ExitRecord, RunSpec, UnitRecord
from engine_ctl.state.store import Store
from engine_ctl.supervise import disk
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import stop
from profiles.model import EnvRef
from tests.standin.rig import Rig, dirs_in, rig, until

__all__ = ["rig"]


def spec(unit: str = "demo") -> RunSpec:
    return RunSpec(unit=unit, kind=Kind.ENGINE, argv=["true"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(dirs_in(tmp_path))


def test_a_unit_comes_back_as_it_was_made(store: Store) -> None:
    made = store.create("chat-8b", Kind.ENGINE, profile="chat-8b", by="test")
    assert store.load("chat-8b") == made
    assert made.kind is Kind.ENGINE and made.desired == "stopped"
    assert store.list_units().units == (made,)
    assert stat.S_IMODE(os.stat(store.unit_dir("chat-8b") / "unit.json").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(store.root).st_mode) == 0o700


def test_a_name_can_be_taken_once(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    with pytest.raises(Busy, match="exists already"):
        store.create("demo", Kind.ENGINE)


@pytest.mark.parametrize("name", ["", "-x", ".x", "A", "a/b", "..", "a" * 65, "ü", "a b", "a\n"])
def test_names_that_cannot_be_units_are_refused(store: Store, name: str) -> None:
    with pytest.raises(Usage):
        store.create(name, Kind.ENGINE)
    assert list(store.units_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "x" * 64])
def test_names_that_can(store: Store, name: str) -> None:
    store.create(name, Kind.BENCH)
    assert store.load(name).kind is Kind.BENCH


def test_missing_things_are_not_found(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    for what in (
        lambda: store.load("other"),
        lambda: store.remove("other"),
        lambda: store.run("demo/7"),
        lambda: store.new_run(spec("other")),
        lambda: store.lock("other").__enter__(),
    ):
        with pytest.raises(NotFound):
            what()
    assert store.current("demo") is None and store.runs("demo") == []


def test_runs_are_numbered_in_order(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    runs = [store.new_run(spec()) for _ in range(11)]
    assert [run.id for run in store.runs("demo")] == [f"demo/{n}" for n in range(1, 12)]
    assert runs[10].spec().run == "demo/11" and runs[10].spec().created > 0
    store.set_current(runs[2])
    assert store.current("demo") == runs[2]
    assert store.run("3", unit="demo") == store.run("demo/3") == runs[2]
    assert runs[2].state == store.root
    for wrong in ("3", "demo/x", "demo/03", "demo/-1", "demo/", "/3"):
        with pytest.raises(Usage):
            store.run(wrong)


def test_numbers_are_given_out_once(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    ids: list[str] = []

    def make() -> None:
        ids.extend(store.new_run(spec()).id for _ in range(10))

    threads = [threading.Thread(target=make) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 50 == len(store.runs("demo"))


def test_a_spec_survives_a_round_trip(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    full = RunSpec(
        unit="demo",
        kind=Kind.ENGINE,
        argv=["vllm", "serve"],
        env={"A": "1"},
        env_refs={"HF_TOKEN": EnvRef(from_env="MY_TOKEN")},
        gpus=[0, "MIG-1"],
        port=8000,
        created=12.5,
    )
    run = store.new_run(full)
    read = run.spec()
    assert read.run == "demo/1"
    assert read.env_refs == full.env_refs and read.gpus == [0, "MIG-1"] and read.created == 12.5


def test_what_a_newer_stoker_wrote_can_be_read(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    path = store.unit_dir("demo") / "unit.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "schema": 2, "invented_later": [1]}))
    assert store.load("demo").unit == "demo"


@pytest.mark.parametrize("garbage", ["{", '{"unit": 3}', "\x00\x01", "[]", '{"unit": "demo", "kin'])
def test_a_damaged_record_is_one_line_and_harms_nobody_else(store: Store, garbage: str) -> None:
    store.create("bad", Kind.ENGINE)
    good = store.create("good", Kind.ENGINE)
    path = store.unit_dir("bad") / "unit.json"
    path.write_text(garbage)
    listing = store.list_units()
    assert listing.units == (good,)
    assert len(listing.problems) == 1 and str(path) in listing.problems[0]
    assert "\n" not in listing.problems[0]
    assert path.read_text() == garbage
    with pytest.raises(CorruptRecord):
        store.load("bad")


@pytest.mark.parametrize("lost", [None, "", "\0" * 99])
def test_a_unit_that_ran_and_lost_its_record_is_damaged(store: Store, lost: str | None) -> None:
    store.create("demo", Kind.ENGINE)
    run = store.new_run(spec())
    path = store.unit_dir("demo") / "unit.json"
    path.unlink()
    with pytest.raises(NotFound):
        store.load("demo")
    (run.dir / "identity.json").write_text("{}")
    if lost is not None:
        path.write_text(lost)
    with pytest.raises(CorruptRecord, match="to go on: stoker stop demo"):
        store.load("demo")
    assert "stoker stop demo" in store.list_units().problems[0]


def test_a_copied_unit_is_not_the_other(store: Store) -> None:
    made = store.create("demo", Kind.ENGINE)
    shutil.copytree(store.unit_dir("demo"), store.unit_dir("copy"))
    with pytest.raises(CorruptRecord, match=r"is of unit 'demo'; move .*copy away"):
        store.load("copy")
    listing = store.list_units()
    assert listing.units == (made,) and len(listing.problems) == 1


def test_a_damaged_unit_says_the_commands_that_go_on(store: Store) -> None:
    store.create("bad", Kind.ENGINE)
    (store.unit_dir("bad") / "unit.json").write_text("{")
    assert store.list_units().problems[0].endswith("to go on: stoker stop bad; stoker remove bad")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_a_damaged_record(
    store: Store, make: Callable[[Path], None]
) -> None:
    store.create("demo", Kind.ENGINE)
    path = store.new_run(spec()).dir / "spec.json"
    path.unlink()
    make(path)
    (run,) = store.runs("demo")
    with pytest.raises(CorruptRecord, match=r"spec\.json is damaged \(it is no regular file\)"):
        run.spec()
    assert disk.read_json(str(path)) is None


def test_other_damage_is_told_too(store: Store) -> None:
    good = store.create("good", Kind.ENGINE)
    (store.units_dir / "file").write_text("")
    (store.units_dir / "Odd Name").mkdir()
    store.create("headless", Kind.ENGINE)
    store.new_run(spec("headless"))
    (store.unit_dir("headless") / "unit.json").unlink()
    listing = store.list_units()
    assert listing.units == (good,)
    assert len(listing.problems) == 3


def test_a_run_with_damaged_records_says_which(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    run = store.new_run(spec())
    for name, read in (
        ("spec.json", run.spec),
        ("identity.json", run.identity),
        ("ready.json", run.ready),
        ("request.json", run.request),
        ("exit.json", run.exit),
    ):
        (run.dir / name).write_text("{")
        with pytest.raises(CorruptRecord, match=name):
            read()
    (run.dir / "exit.json").write_text(" " * 4096)
    assert run.exit() is None
    (run.dir / "exit.json").write_text('{"ended": 5.0}'.ljust(4096))
    assert run.exit() == ExitRecord(ended=5.0)
    (run.dir / "spec.json").unlink()
    (run.dir / "identity.json").unlink(missing_ok=True)
    with pytest.raises(NotFound):
        run.spec()
    (run.dir / "identity.json").write_text("{}")  # it executed, so its spec was there
    for lost in ("", "\0" * 100):
        with pytest.raises(CorruptRecord, match="stoker stop demo"):
            run.spec()
        (run.dir / "spec.json").write_text(lost)


def test_current_may_be_damaged_or_point_nowhere(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    path = store.unit_dir("demo") / "current.json"
    path.write_text('{"run": "demo/9"}')
    assert store.current("demo") is None
    path.write_text('{"run": "../../etc"}')
    assert store.current("demo") is None
    path.write_text("x")
    assert store.current("demo") is None
    first, second = store.new_run(spec()), store.new_run(spec())
    assert store.current("demo") == second
    (first.dir / "identity.json").write_text("{}")  # the second never executed
    assert store.current("demo") == first
    for lost in ("", "\0" * 62, '{"run": "demo/9"}', '{"run": "other/1"}'):
        path.write_text(lost)
        assert store.current("demo") == first
    path.unlink()
    assert store.current("demo") == first
    path.write_text('{"run": "demo/2"}')
    assert store.current("demo") == second
    (second.dir / "spec.json").unlink()  # whoever was making it was killed
    assert store.current("demo") == first


def test_removal_takes_everything(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    store.new_run(spec())
    (store.units_dir / ".removed-other-1-1" / "runs").mkdir(parents=True)  # its removal was killed
    with store.lock("demo"):
        store.remove("demo")
    assert list(store.units_dir.iterdir()) == []
    store.create("demo", Kind.ENGINE)
    assert store.runs("demo") == []


def test_saving_replaces(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    with store.lock("demo"):
        store.save(UnitRecord(unit="demo", desired="running"))
    assert store.load("demo").desired == "running"


def test_a_state_directory_of_others_is_refused(tmp_path: Path) -> None:
    store = Store(dirs_in(tmp_path))
    store.root.chmod(0o777)
    with pytest.raises(Failed, match="writable by others"):
        Store(dirs_in(tmp_path))
    store.root.chmod(0o700)
    store.units_dir.chmod(0o720)
    with pytest.raises(Failed, match="writable by others"):
        Store(dirs_in(tmp_path))


def test_the_lock_says_who_holds_it(rig: Rig) -> None:
    rig.store.create("demo", Kind.ENGINE)
    with rig.console(
        "with store.lock('demo', command='stoker stop demo'):\n"
        "    print('held', flush=True); time.sleep(1000)\n"
    ) as console:
        assert console.stdout is not None and console.stdout.readline()
        assert rig.store.locked("demo")
        with pytest.raises(Busy) as caught, rig.store.lock("demo"):
            pass
        assert f"pid {console.pid} (stoker stop demo)" in str(caught.value)
        assert caught.value.exit_code == 4
        console.kill()
    until(lambda: not rig.store.locked("demo"))
    with rig.store.lock("demo"):
        pass


def test_a_disk_that_was_made_read_only_keeps_no_engine_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rig.ready()
    really = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT) and str(path).startswith(str(rig.root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    with rig.store.lock("demo"):
        with pytest.raises(Busy), Store(rig.dirs).lock("demo"):
            raise AssertionError("two at once")
        stop(run)
    monkeypatch.undo()
    assert rig.ended(run).requested and rig.life(run) is Life.EXITED


def test_the_lock_excludes_threads_and_is_freed_by_errors(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    with store.lock("demo"):
        with pytest.raises(Busy), store.lock("demo"):
            pass
        assert store.locked("demo")
    with pytest.raises(ValueError, match="inside"), store.lock("demo"):
        raise ValueError("inside")
    assert not store.locked("demo")


def test_a_lock_of_a_unit_that_was_removed_meanwhile_is_not_taken(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    with store.lock("demo"):
        store.remove("demo")
        store.create("demo", Kind.ENGINE)
        with store.lock("demo"):
            assert store.locked("demo")


def test_a_run_whose_making_was_interrupted_is_none(store: Store) -> None:
    store.create("demo", Kind.ENGINE)
    (store.unit_dir("demo") / "runs" / "1").mkdir()
    run = store.new_run(RunSpec(unit="demo", kind=Kind.ENGINE, argv=["true"]))
    assert run.number == 2
    assert [found.number for found in store.runs("demo")] == [2]
