"""Daemon units: what is refused before anything is started, what a stop says, what a run keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.model import Kind, Phase, Reason, Verdict
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state import events
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.weights import client, content, daemons, records, sights, spec
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.records import RankKey, WeightsRecord
from engine_ctl.weights.refusals import CacheFeatures, QuantizationSupport
from engine_ctl.weights.sights import DaemonSight, EngineUse
from engine_ctl.weights.sockets import Node, SocketFacts
from profiles.model import EnvRef, Preload, Profile

RUNTIME = Runtime(name="r", python="/rt/bin/python", version="0.33.0", platform="cuda")
PROFILE = Profile(name="p", model="m", preload=Preload(socket_dir="/d", health_port=9))


def _key(rank: int = 0, **fields: str | None) -> RankKey:
    return RankKey(
        rank=rank, device=f"GPU-{rank}", socket=f"/d/{rank}.sock", fields={"dtype": "bf16"} | fields
    )


def _sight(**changes: Any) -> DaemonSight:
    run = Run("w", 1, Path("/state/units/w/runs/1"))
    made = DaemonSight(
        unit="w",
        run=run,
        spec=RunSpec(unit="w", kind=Kind.PRELOAD, argv=[], profile="p"),
        record=WeightsRecord(keys=[_key(0), _key(1)]),
        alive=True,
        ready=True,
    )
    return replace(made, **changes)


def _use(**changes: Any) -> EngineUse:
    return replace(EngineUse("chat", "chat/1", True, Verdict.MAPPED, ("/d/0.sock",)), **changes)


def _answers(*states: str) -> dict[str, DaemonStatus]:
    return {
        f"/d/{n}.sock": DaemonStatus(socket=f"/d/{n}.sock", state=state, message=state)
        for n, state in enumerate(states)
    }


# The command


def test_the_spec_of_a_daemon() -> None:
    found = spec.preload_spec("w", PROFILE, RUNTIME, None, by="me", predecessor="w/1")
    assert found.kind is Kind.PRELOAD and found.argv[:3] == ["/rt/bin/python", *spec.CLI]
    words = found.display_argv
    assert words[:4] == ["vllm", "preload", "--model", "m"]
    assert words[words.index("--weight-cache-health-host") + 1] == "127.0.0.1"
    assert found.ready_url == "http://127.0.0.1:9/health" and found.stop.drain_s == 0


def test_a_seed_token_is_never_in_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "s3cret")
    preload = Preload(health_port=9, seed_token=EnvRef(from_env="SEED"))
    found = spec.preload_spec("w", msgspec.structs.replace(PROFILE, preload=preload), RUNTIME, None)
    assert found.env_refs[spec.TOKEN_ENV] == EnvRef(from_env="SEED")
    assert found.display_argv[-2:] == ["--seed-token", '"$SEED"']
    assert b"s3cret" not in msgspec.json.encode(found)
    assert spec.token_reference(EnvRef(from_file="/f")) == '"$(cat /f)"'


def test_the_token_moves_to_the_arguments_inside_the_process(tmp_path: Path) -> None:
    """With a stand-in for vllm's own command line that tells what it was given."""
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for directory in (package, *package.parents[:2]):
        (directory / "__init__.py").write_text("")
    (package / "main.py").write_text(
        "import json, os, sys\n"
        "def main():\n"
        "    print(json.dumps([sys.argv, 'STOKER_SEED_TOKEN' in os.environ]))\n"
    )
    done = subprocess.run(
        [sys.executable, str(spec.WITH_TOKEN), "preload", "--model", "m"],
        env={"PYTHONPATH": str(tmp_path), spec.TOKEN_ENV: "s3cret"},
        capture_output=True,
        text=True,
        check=True,
    )
    argv, visible = json.loads(done.stdout)
    assert argv == ["vllm", "preload", "--model", "m", "--seed-token=s3cret"] and not visible


def test_a_health_port_is_found() -> None:
    free = spec.with_health_port(Profile(name="p", model="m", preload=Preload()))
    assert free.preload is not None and free.preload.health_port
    assert spec.with_health_port(PROFILE) is PROFILE
    with pytest.raises(Usage, match="no preload section"):
        spec.with_health_port(Profile(name="p", model="m"))
    with pytest.raises(Usage, match="health port"):
        spec.preload_spec("w", Profile(name="p", model="m", preload=Preload()), RUNTIME, None)


def test_device_numbers_of_a_cpu() -> None:
    given = msgspec.structs.replace(PROFILE, gpus=(2, 3))
    assert spec.device_environment(given, "cpu") == {"STOKER_CPU_DEVICES": "2,3"}
    assert spec.device_environment(given, "cuda") == {}
    assert spec.device_environment(PROFILE, "cpu") == {}


# What can be seen


def test_ready_means_that_every_rank_answers() -> None:
    assert sights.complete(_sight(statuses=_answers("serving", "serving"))) == (Phase.READY, None)
    assert sights.complete(_sight(ready=False)) == (None, None)


@pytest.mark.parametrize("state", ["missing", "stale", "gone"])
def test_a_lost_rank_is_said(state: str) -> None:
    phase, trouble = sights.complete(_sight(statuses=_answers("serving", state)))
    assert phase is Phase.READY and trouble is not None
    assert trouble.category == "wc_daemon_partial" and "target 1 of 2" in trouble.line


@pytest.mark.parametrize("state", ["silent", "garbage", "unsafe"])
def test_a_rank_that_hangs_is_said(state: str) -> None:
    _, trouble = sights.complete(_sight(statuses=_answers(state, "serving")))
    assert trouble is not None and trouble.line == state


def test_lost_ranks_by_a_look() -> None:
    assert [key.rank for key in sights.lost_ranks(_sight())] == [0, 1]
    assert sights.lost_ranks(_sight(ready=False)) == ()


def test_clients() -> None:
    uses = [
        _use(),
        _use(unit="dead", alive=False),
        _use(unit="disk", verdict=Verdict.FALLBACK),
        _use(unit="copied", verdict=Verdict.COPIED),
        _use(unit="elsewhere", sockets=("/e/0.sock",)),
        _use(unit="earlier", daemon="w/0"),
        _use(unit="same", daemon="w/1"),
    ]
    assert [use.unit for use in sights.clients(_sight(), uses)] == ["chat", "same"]


def test_what_a_stop_means() -> None:
    assert sights.consequences([]) == ()
    one = " ".join(sights.consequences([_use()]))
    assert "chat runs on these weights" in one and "it keeps serving" in one
    two = " ".join(sights.consequences([_use(), _use(unit="b")]))
    assert "chat, b run on these weights" in two and "they keep serving" in two


def _facts(**changes: Any) -> SocketFacts:
    node = Node("missing")
    return replace(SocketFacts("/d/0.sock", node, node, True, 0), **changes)


def test_a_place_that_is_taken() -> None:
    keys = [_key(0)]
    ours = sights.occupied(keys, {}, [_sight(ready=False)])
    assert ours is not None and ours.category == "wc_daemon_duplicate" and "w holds" in ours.line
    assert sights.occupied(keys, {}, [_sight(alive=False)]) is None
    assert sights.occupied([_key(5)], {}, [_sight()]) is None
    held = sights.occupied(keys, {"/d/0.sock": _facts(lock_held=True, lock_pid=7)}, [])
    assert held is not None and "pid 7" in held.line
    listening = sights.occupied(keys, {"/d/0.sock": _facts(listening=True)}, [])
    assert listening is not None and "not Stoker's" in listening.line
    assert sights.occupied(keys, {"/d/0.sock": _facts()}, []) is None
    assert sights.occupied([msgspec.structs.replace(_key(), socket=None)], {}, [_sight()]) is None


def test_twice_the_same_fall_back() -> None:
    dtype = Reason("wc_fallback.key_mismatch", "reload it", "", (("dtype", "a", "b"),))
    fell = (Verdict.FALLBACK, (dtype,))
    assert sights.repeated_fallback([fell]) is None
    assert sights.repeated_fallback([fell, (Verdict.MAPPED, ())]) is None
    other = (Verdict.FALLBACK, (Reason("wc_fallback.released", "h"),))
    assert sights.repeated_fallback([other, fell]) is None
    said = sights.repeated_fallback([(Verdict.MAPPED, ()), fell, fell])
    assert said == "loaded from disk twice in a row: key mismatch (dtype); reload it"


# Operations


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    home = tmp_path / "home"
    yield Store(Dirs.from_env({"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}))


@pytest.fixture
def asked(tmp_path: Path) -> daemons.Asked:
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"weights")
    (tmp_path / "s").mkdir(mode=0o700)
    preload = Preload(socket_dir=str(tmp_path / "s"), health_port=1)
    profile = Profile(name="p", model=str(model), preload=preload)
    python = str(tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o700)
    return daemons.Asked("w", profile, msgspec.structs.replace(RUNTIME, python=python))


def _check(asked: daemons.Asked, error: str | None = None, **fields: str) -> daemons.Check:
    directory = asked.profile.preload.socket_dir if asked.profile.preload else None
    key = msgspec.to_builtins(_key(0, **fields)) | {"socket": f"{directory}/0.sock"}

    def check(words: list[str], env: Mapping[str, str]) -> dict[str, Any]:
        assert words[0] == "preload"
        return {
            "ok": error is None,
            "error": None if error is None else {"message": error},
            "keys": [key],
            "keys_note": "one",
        }

    return check


def test_a_plan_says_what_the_daemon_will_hold(store: Store, asked: daemons.Asked) -> None:
    record = daemons.plan(store, asked, _check(asked))
    assert record.keys[0].fields == {"dtype": "bf16"} and record.note == "one"
    assert record.content is not None and record.content.files[0].name == "a.safetensors"
    assert record.health_port == 1


def test_the_files_of_a_draft_model_are_the_daemons_too(
    store: Store, asked: daemons.Asked, tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "d.safetensors").write_bytes(b"draft weights")
    given = {"speculative_config": json.dumps({"method": "eagle", "model": str(draft)})}
    profile = msgspec.structs.replace(asked.profile, args=given)
    asking = replace(asked, profile=profile)
    answer = dict(_check(asked)(["preload"], {}))
    assert daemons.plan(store, asking, lambda *_: answer).draft is None, "no daemon of its own"
    answer["keys"] = [*answer["keys"], {**answer["keys"][0], "role": "draft", "socket": "/d/d"}]
    record = daemons.plan(store, asking, lambda *_: answer)
    assert record.draft is not None and record.draft.files[0].name == "d.safetensors"
    assert daemons._changed(record, profile, {}) == ()
    (draft / "d.safetensors").write_bytes(b"other weights")
    (line,) = daemons._changed(record, profile, {})
    assert line.startswith("draft: d.safetensors")
    now = daemons.plan(store, asking, lambda *_: answer)
    assert daemons.reload_needed(record, record.keys, now.content, now.draft) == (line,)


def test_refused_before_anything_is_started(store: Store, asked: daemons.Asked) -> None:
    with pytest.raises(Failed, match="w: the model is not there"):
        daemons.start(store, asked, _check(asked, "the model is not there"))
    no_cache = CacheFeatures(version="0.29.0", platform="cuda")
    with pytest.raises(Failed, match=r"0\.29\.0 has no weight cache"):
        daemons.start(store, replace(asked, features=no_cache), _check(asked))
    directory = Path(asked.profile.preload.socket_dir or "") if asked.profile.preload else Path()
    directory.chmod(0o770)
    with pytest.raises(Failed, match="writable by its group"):
        daemons.start(store, asked, _check(asked))
    directory.chmod(0o700)
    (Path(asked.profile.model) / "a.safetensors").unlink()
    with pytest.raises(Failed, match="no weight files"):
        daemons.start(store, asked, _check(asked))
    assert not store.exists("w")
    store.create("w", Kind.PRELOAD, "p", "")
    with pytest.raises(Failed, match="no weight files"):
        daemons.start(store, asked, _check(asked))
    assert store.exists("w") and store.runs("w") == []


def test_a_quantization_that_would_end_the_daemon_is_refused_before(
    store: Store, asked: daemons.Asked
) -> None:
    """vLLM finds out when it has built the model."""
    cache = CacheFeatures(
        version="0.33.0", platform="cuda", preload=True, ipc_cache=True, platform_supported=True
    )
    answer = {**_check(asked)(["preload"], {}), "effective": {"quantization": "gptq_marlin"}}
    support = {"gptq_marlin": "none", "fp8": "all"}

    def ask(method: str) -> QuantizationSupport:
        return QuantizationSupport(method=method, support=support[method])

    asking = replace(asked, features=cache, support=ask)
    with pytest.raises(Failed, match="gptq_marlin does not take pre-processed weights"):
        daemons.plan(store, asking, lambda *_: answer)
    answer["effective"] = {"quantization": "fp8"}
    assert daemons.plan(store, asking, lambda *_: answer).keys

    said = {"method": "awq_marlin", "support": "none", "classes": {"AWQ": False}}
    answer |= {"effective": {"quantization": "awq_marlin"}, "quantization": said}
    with pytest.raises(Failed, match="awq_marlin does not take pre-processed weights"):
        daemons.plan(store, asking, lambda *_: answer)


def test_start_stop_and_what_is_kept(store: Store, asked: daemons.Asked) -> None:
    run = daemons.start(store, asked, _check(asked))
    try:
        sight = sights.sight_of(store, "w")
        assert sight is not None and sight.alive and sight.loading
        assert sight.record == records.read(run) and sights.daemons(store) == (sight,)
        with pytest.raises(Busy, match="runs already"):
            daemons.start(store, asked, _check(asked))
        with pytest.raises(Busy, match="w holds the weights of GPU-0 already"):
            daemons.start(store, replace(asked, unit="second"), _check(asked))
        use = _use(sockets=sight.record.sockets)
        with pytest.raises(Busy, match="chat runs on these weights"):
            daemons.stop(store, "w", [use])
        with pytest.raises(Busy, match="chat runs on these weights"):
            daemons.reload(store, asked, _check(asked), [use])
        with pytest.raises(Failed, match="no such argument"):
            daemons.reload(store, asked, _check(asked, "no such argument"), [use], confirmed=True)
        assert sights.sight_of(store, "w") == sight, "a mistake leaves the daemon as it is"
        again = daemons.reload(store, asked, _check(asked, dtype="fp32"), [use], confirmed=True)
        assert again.number == 2 and run.exit() is not None
    finally:
        stopped = daemons.stop(store, "w", confirmed=True)
    assert stopped.run == "w/2" and store.load("w").desired == "stopped"
    # One that has ended, and may wait to be started again: nothing follows for who maps it.
    assert daemons.stop(store, "w", [use]).how == "already"
    said = [event.text for event in events.last(store.dirs, 10)]
    assert any("preload of" in text for text in said) and "stopped" in said[-1]
    with pytest.raises(NotFound):
        daemons.release(store, "w")


def test_a_start_that_was_killed_before_it_began_keeps_no_other_away(
    store: Store, asked: daemons.Asked
) -> None:
    class Killed(BaseException):
        pass

    def killed(_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        daemons.start(store, asked, _check(asked), killed)
    again = daemons.start(store, asked, _check(asked))
    assert again.number == 2
    daemons.stop(store, "w", confirmed=True)


def test_a_run_that_its_shim_started_again_has_its_predecessors_record(
    store: Store, asked: daemons.Asked
) -> None:
    first = daemons.start(store, asked, _check(asked))
    daemons.stop(store, "w")
    restarted = msgspec.structs.replace(first.spec(), attempt=2, predecessor=first.id, run="")
    store.set_current(store.new_run(restarted))
    sight = sights.sight_of(store, "w")
    assert sight is not None and sight.record == records.read(first)


def test_what_is_behind_a_socket(
    store: Store, asked: daemons.Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.start(store, asked, _check(asked))
    try:
        keys = records.keys_of(_check(asked)(["preload"], {}))
        monkeypatch.setattr(client, "statuses", lambda python, paths, env=None: ())
        path = keys[0].socket or ""
        found = daemons.behind(store, asked.profile, keys, "python", {}, False)[path]
        assert found.loading and found.unit == "w" and found.content == ()
        assert found.judgement.refusal is not None
        (Path(asked.profile.model) / "a.safetensors").write_bytes(b"weightz")
        found = daemons.behind(store, asked.profile, keys, "python", {}, False)[path]
        assert found.content == ("a.safetensors has other content than the daemon loaded",)
    finally:
        daemons.stop(store, "w")


def test_reload_is_needed_when_the_profile_says_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"one")
    before = content.record("m", tmp_path)
    record = WeightsRecord(keys=[_key(0)], content=before)
    assert daemons.reload_needed(record, [_key(0)], before) == ()
    assert daemons.reload_needed(record, [_key(0, dtype="fp32")], None) == (
        "dtype is fp32, the daemon has bf16",
    )
    assert daemons.reload_needed(record, [_key(0), _key(1)], None) == (
        "target rank 1 is not in the daemon",
    )
    (tmp_path / "a.safetensors").write_bytes(b"two")
    (line,) = daemons.reload_needed(record, [_key(0)], content.record("m", tmp_path))
    assert "other content" in line


def test_asking_a_daemon_that_has_ended_changes_nothing() -> None:
    sight = _sight(alive=False)
    assert daemons.ask(sight) is sight
