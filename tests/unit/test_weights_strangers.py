"""Daemons that this Stoker did not start are shown as such, with what can be seen of them."""

from __future__ import annotations

import hashlib
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.view import weights as view
from engine_ctl.model import Kind, Phase
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.operations.weights import other_daemons
from engine_ctl.operations.weights_views import views
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Store
from engine_ctl.weights import daemons, records
from engine_ctl.weights.records import RankKey, WeightsRecord
from engine_ctl.weights.strangers import Stranger, strangers
from profiles.model import Profile
from tests.standin.observed import Written, recorded_log
from tests.standin.ranks import serving
from tests.standin.rig import dirs_in


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        yield Path(root)


def path_in(directory: Path, device: str, role: str = "") -> str:
    name = hashlib.md5(device.encode(), usedforsecurity=False).hexdigest()
    return str(directory / f"vllm_weight_cache_{name}{role}.sock")


def here(directory: Path, ours: tuple[str, ...] = ()) -> list[Stranger]:
    """Those in this directory: the machine may have others."""
    found = strangers(ours, ["GPU-7", "CPU-3"])
    return [each for each in found if each.socket.startswith(f"{directory}/")]


def test_a_daemon_started_by_hand(directory: Path) -> None:
    path = path_in(directory, "CPU-3", "_draft")
    with serving(path) as pid:
        (found,) = here(directory)
        assert (found.device, found.role, found.pid) == ("CPU-3", "draft", pid)
        assert (found.uid, found.model, found.key) == (os.geteuid(), "acme/8b", None)
        assert found.user == pwd.getpwuid(os.geteuid()).pw_name
        assert found.words == (
            f"not this Stoker's: started by hand, pid {pid}, model acme/8b, "
            "its fingerprint is not known"
        )
        assert here(directory, (path,)) == [], "ours"
    assert here(directory) == [], "nobody listens any more"


def test_a_daemon_of_another_stoker_has_its_fingerprint(directory: Path, tmp_path: Path) -> None:
    path = path_in(directory, "GPU-7")
    store = Store(dirs_in(tmp_path))
    store.create("w", Kind.PRELOAD)
    run = store.new_run(RunSpec(unit="w", kind=Kind.PRELOAD, argv=["x"]))
    key = RankKey(socket=path, fields={"dtype": "bf16"})
    records.write(run, WeightsRecord(keys=[key]))
    with serving(path, STOKER_RUN_DIR=str(run.dir)):
        (found,) = here(directory)
        (own,) = (s for s in strangers((), (), store.units_dir) if s.socket == path)
    assert (found.run, found.key, found.device) == ("w/1", key, "GPU-7")
    assert "another Stoker's (w/1)" in found.words and "not known" not in found.words
    assert own.words == f"pid {own.pid}, left by w/1, which has ended; run: stoker reap"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files to another user")
def test_another_users(directory: Path) -> None:
    path = path_in(directory, "an unknown device")
    with serving(path):
        os.chown(path, 12345, -1)
        (found,) = here(directory)
    assert (found.uid, found.user, found.device) == (12345, "uid 12345", None)
    assert "of user uid 12345" in found.words


def test_other_sockets_are_no_daemons(directory: Path) -> None:
    with serving(str(directory / "vllm_weight_cache_zz.sock")), serving(str(directory / "x.sock")):
        assert here(directory) == []


def test_the_screen_and_the_command_show_them(directory: Path, tmp_path: Path) -> None:
    with serving(path_in(directory, "CPU-3")) as pid:
        found = [v for v in views(Context(dirs_in(tmp_path))) if v.pid == pid]
    (shown,) = found
    assert (shown.unit, shown.phase, shown.role) == ("", Phase.READY, "target")
    assert shown.name == f"pid {pid}/target" and shown.clients == ()
    lines = [line for item in view.items([shown], None, 200) for line in item.lines]
    text = "\n".join("".join(span.text for span in line) for line in lines)
    assert f"not this Stoker's: started by hand, pid {pid}" in text
    assert path_in(directory, "CPU-3") in text and "✗" not in text


def test_a_daemon_on_the_same_device_is_said_before_and_when_one_is_made(
    directory: Path, tmp_path: Path
) -> None:
    ctx = Context(dirs_in(tmp_path))
    mine, other = RankKey(device="CPU-3"), RankKey(device="CPU-4")
    with serving(path_in(directory, "CPU-3")) as pid:
        said = [line for line in other_daemons(ctx, [mine]) if f"pid {pid}" in line]
        assert len(said) == 1 and said[0].startswith("CPU-3 holds other weights as well: ")
        assert not [line for line in other_daemons(ctx, [other]) if f"pid {pid}" in line]


def test_a_daemon_that_has_ended_claims_neither_the_socket_nor_the_starts_of_the_next(
    directory: Path, tmp_path: Path
) -> None:
    """Two units of one device follow each other at one socket."""
    path = path_in(directory, "CPU-3")
    written = Written(tmp_path)
    try:
        for unit, ended in (("aa-weights", False), ("zz-weights", True)):
            written.unit(unit, Kind.PRELOAD)
            run = written.run(unit)
            written.ready(run)
            records.write(run, WeightsRecord(keys=[RankKey(socket=path, fields={"dtype": unit})]))
            if ended:
                written.request(run)
                written.exit(run, requested=True)
        written.unit("aa")
        run = written.run("aa")
        log = recorded_log("h200-vllm-0.33.0/11_ipc")[0]
        written.log(run, log[: log.index(b"startup complete.") + 18])
        written.ready(run, 3.0)
        key = RankKey(socket=path, fields={"dtype": "aa-weights"})
        records.write(run, WeightsRecord(keys=[key], daemon="aa-weights/1"))
        run_facts.refresh(run.dir)
        shown = {v.unit: v for v in views(Context(written.dirs)) if v.unit}
        assert shown["aa-weights"].verdicts == (("mapped", 1),)
        assert shown["aa-weights"].clients == ("aa/1",)
        ended = shown["zz-weights"]
        assert (ended.verdicts, ended.socket_state, ended.clients) == ((), "", ())
        behind = daemons.behind(written.store, Profile(name="p"), [key], "/no/python", {}, False)
        assert behind[path].key == key and behind[path].run == "aa-weights/1"
    finally:
        written.close()
