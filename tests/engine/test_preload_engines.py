"""Daemons and engines as they are run: the same output as from disk, and what a SIGKILL leaves."""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.identity import identify, wait_gone
from engine_ctl.logs.verdict import verdict_of
from engine_ctl.model import Kind, Phase, Verdict
from engine_ctl.operations.planning import Endpoint, engine_spec
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness
from engine_ctl.supervise.stop import stop
from engine_ctl.weights import daemons, records, sights, sockets
from engine_ctl.weights.ahead import weights_ahead
from engine_ctl.weights.spec import free_port
from profiles.model import Profile
from tests.engine.preload_bench import Bench, bench, serve_words
from tests.engine.world import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = ["An engine loads its weights", "Tokens per second, time", "The scheduler", "Measure"]


@pytest.fixture
def here(cpu_runtime: Any, tiny_model: Path, fork: daemons.Begin) -> Iterator[Bench]:
    with bench(cpu_runtime.runtime, cpu_runtime.full_env(), tiny_model, fork) as made:
        yield made


def _generate(b: Bench, load_format: str, tensor_parallel_size: int, **more: Any) -> dict[str, Any]:
    extra = {"socket_dir": str(b.sockets)} if load_format == "ipc_cache" else {}
    return b.harness.run(
        argv=serve_words(b.profile()),
        check=False,
        load=False,
        prompts=PROMPTS,
        env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        generate={
            "model": str(b.model),
            "max_model_len": 512,
            "enforce_eager": True,
            "tensor_parallel_size": tensor_parallel_size,
            "load_format": load_format,
            "model_loader_extra_config": extra,
            **more,
        },
    )


def _same_output(b: Bench, tensor_parallel_size: int) -> None:
    disk = _generate(b, "auto", tensor_parallel_size)
    mapped = _generate(b, "ipc_cache", tensor_parallel_size)
    assert disk["error"] is None, disk["log"][-3000:]
    assert mapped["error"] is None, mapped["log"][-3000:]
    assert verdict_of(mapped["log"].encode())[0] is Verdict.MAPPED, mapped["log"][-3000:]
    assert verdict_of(disk["log"].encode())[0] is Verdict.DISK
    assert len(disk["generated"]) == len(PROMPTS)
    assert all(len(answer["tokens"]) == 24 for answer in disk["generated"])
    assert mapped["generated"] == disk["generated"]


def test_tensor_parallel_pair(here: Bench) -> None:
    """Forecast, output and the loss of one rank of a daemon of two."""
    profile = here.profile(args={"tensor_parallel_size": 2, "max_model_len": 512})
    run = here.start_daemon("pair", profile)
    here.wait_ready(run)
    sight = sights.sight_of(here.store, "pair")
    assert sight is not None
    assert [(k.rank, k.device) for k in sight.record.keys] == [(0, "CPU-0"), (1, "CPU-1")]
    assert sights.complete(daemons.ask(sight)) == (Phase.READY, None)
    assert _forecast(here, profile).verdict is Verdict.MAPPED
    _same_output(here, 2)

    lost = sight.record.sockets[1]
    segments = [_segment_of(path) for path in sight.record.sockets]
    assert sights.lost_ranks(sight) == ()
    _kill(_owner(lost))
    until(lambda: [key.rank for key in sights.lost_ranks(sight)] == [1])
    _, trouble = sights.complete(daemons.ask(sight))
    assert trouble is not None and trouble.category == "wc_daemon_partial"
    assert "rank target 1 of 2" in trouble.line
    forecast = _forecast(here, profile)
    assert forecast.verdict is Verdict.FALLBACK
    assert [rank.reason is None for rank in forecast.ranks] == [True, False]
    daemons.stop(here.store, "pair")
    assert [_holders(segment) for segment in segments] == [[], []]
    assert not sockets.look(lost, strict=False).lock_held


def _draft_of(model: Path, out: Path) -> Path:
    """An EAGLE draft of one layer with random weights for a Llama-shaped model."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (hidden, hidden),
        "layers.0.self_attn.k_proj.weight": (kv, hidden),
        "layers.0.self_attn.v_proj.weight": (kv, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, hidden),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "layers.0.post_attention_layernorm.weight": (hidden,),
    }
    generator, header, data = random.Random(7), {}, array.array("f")
    for name, shape in shapes.items():
        begin = len(data) * 4
        data.extend(generator.uniform(-0.03, 0.03) for _ in range(math.prod(shape)))
        where = [begin, len(data) * 4]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": where}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    out.mkdir()
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data.tobytes())
    (out / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    return out


def test_a_draft_model_has_daemons_of_its_own(here: Bench) -> None:
    """A speculative pair: two roles with a socket each, both mapped; without the draft's daemon the
    draft alone comes from disk, with the same output."""
    draft = _draft_of(here.model, here.root / "draft")
    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    profile = here.profile(args={"speculative_config": speculative, "max_model_len": 512})
    run = here.start_daemon("pair", profile)
    here.wait_ready(run)
    keys = {key.role: key for key in _record(run).keys}
    assert set(keys) == {"target", "draft"} and keys["draft"].fields["is_draft"] == "True"
    for role, key in keys.items():
        line = f"Weight cache {role} daemon rank 0 serving on {key.socket}"
        assert line in run.log.read_text(), "what was computed is what vLLM does"
    sight = sights.sight_of(here.store, "pair")
    assert sight is not None and sights.complete(daemons.ask(sight)) == (Phase.READY, None)
    forecast = _forecast(here, profile)
    assert forecast.verdict is Verdict.MAPPED and len(forecast.ranks) == 2
    mapped = _generate(here, "ipc_cache", 1, speculative_config=speculative)
    assert mapped["error"] is None, mapped["log"][-3000:]
    assert verdict_of(mapped["log"].encode())[0] is Verdict.MAPPED, mapped["log"][-3000:]
    assert mapped["log"].count("tensors from the weight cache daemon") == 2

    _kill(_owner(str(keys["draft"].socket)))
    forecast = _forecast(here, profile)
    assert [(r.key.role, r.reason is None) for r in forecast.ranks] == [
        ("target", True),
        ("draft", False),
    ]
    started = _generate(here, "ipc_cache", 1, speculative_config=speculative)
    assert started["error"] is None, started["log"][-3000:]
    verdict, reasons = verdict_of(started["log"].encode())
    assert verdict is forecast.verdict is Verdict.FALLBACK
    assert {r.category for r in reasons} == {r.category for r in forecast.reasons}
    assert started["generated"] == mapped["generated"]


def test_kill_matrix(here: Bench) -> None:
    """What is killed, and what is left: no lock in the way, no segment, no lie."""
    before = set(os.listdir("/dev/shm"))
    run = here.start_daemon("weights", here.profile())
    here.wait_ready(run)
    _same_output(here, 1)
    (path,) = _record(run).sockets
    first = _segment_of(path)

    engine = _serve(here, here.profile())
    text = _complete(engine)
    assert verdict_of(engine.log.read_bytes())[0] is Verdict.MAPPED
    uses = sights.engines(here.store, lambda r: verdict_of(r.log.read_bytes())[0])
    with pytest.raises(daemons.Busy, match="engine runs on these weights"):
        daemons.stop(here.store, "weights", uses)

    # The daemon's rank under a serving engine: same text, said in the log, the lock is free.
    _kill(_owner(path))
    assert _complete(engine) == text
    _wait(lambda: b"exited. This engine keeps serving" in engine.log.read_bytes())
    assert not sockets.look(path, strict=False).lock_held
    assert _forecast(here, here.profile()).reasons[0].category == "wc_fallback.stale_socket"
    stopped = daemons.stop(here.store, "weights", uses, confirmed=True)
    assert stopped.exit is not None
    assert _holders(first) != [], "the engine keeps its maps"
    assert _complete(engine) == text

    # The same socket again, then the whole engine: nothing of it stays mapped.
    again = here.start_daemon("weights", here.profile())
    leader = engine.identity()
    assert leader is not None
    _kill(leader.leader.pid)
    _wait(lambda: liveness.look(engine).ended)
    assert not liveness.look(engine).facts.exit.requested  # type: ignore[union-attr]
    assert _holders(first) == []
    here.wait_ready(again)
    second = _segment_of(path)
    assert _forecast(here, here.profile()).verdict is Verdict.MAPPED
    done = here.harness.run(argv=serve_words(here.profile()), check=False)
    assert verdict_of(done["logs"][0].encode())[0] is Verdict.MAPPED

    # The launcher: its shim ends the ranks, which vLLM leaves behind.
    launcher = again.identity()
    assert launcher is not None
    _kill(launcher.leader.pid)
    _wait(lambda: liveness.look(again).ended)
    assert liveness.look(again).phase is Phase.FAILED
    facts = sockets.look(path, strict=False)
    assert not facts.lock_held and not facts.listening
    assert _holders(second) == []
    forecast = _forecast(here, here.profile())
    assert forecast.reasons[0].category == "wc_fallback.stale_socket"
    # Engines of other tests begin and end beside this one.
    _wait(lambda: _abandoned(before) == set())


def _forecast(b: Bench, profile: Profile) -> Any:
    check = b.harness.check(serve_words(profile), {})
    assert check["ok"], check["error"]
    return weights_ahead(b.store, profile, b.runtime, check, {}).forecast


def _record(run: Run) -> records.WeightsRecord:
    found = records.read(run)
    assert found is not None
    return found


def _serve(b: Bench, profile: Profile) -> Run:
    """A real `vllm serve` under its shim, as the lifecycle operations start it."""
    b.store.create("engine", Kind.ENGINE, profile.name)
    spec = engine_spec("engine", profile, b.runtime, None, Endpoint("127.0.0.1", free_port()), "t")
    ahead = weights_ahead(
        b.store, profile, b.runtime, b.harness.check(serve_words(profile), {}), {}
    )
    run = b.store.new_run(spec)
    records.write(run, ahead.record)
    b.store.set_current(run)
    b.begin(run)
    b.later(lambda: stop(run))
    b.wait_ready(run)
    return run


def _complete(run: Run) -> str:
    spec = run.spec()
    body = {"model": spec.served_name, "prompt": PROMPTS[0], "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"http://{spec.host}:{spec.port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def _owner(path: str) -> int:
    pid = sockets.look(path, strict=False).lock_pid
    assert pid is not None
    return pid


def _kill(pid: int) -> None:
    who = identify(pid)
    assert who is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(who, 100.0)


def _segment_of(path: str) -> int:
    """The inode of the segment behind a socket: no other segment of this boot has it."""
    for fd in Path(f"/proc/{_owner(path)}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:stoker-weights" in os.readlink(fd):
                return fd.stat().st_ino
    raise AssertionError("the daemon holds no segment")


def _holders(segment: int) -> list[int]:
    """Processes that map or hold a segment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            maps = (entry / "maps").read_text().splitlines()
            mapped = any(
                "memfd:stoker-weights" in line and int(line.split()[4]) == segment for line in maps
            )
            if mapped or segment in (_inode(fd) for fd in (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found


def _inode(fd: Path) -> int | None:
    with contextlib.suppress(OSError):
        if "memfd:stoker-weights" in os.readlink(fd):
            return fd.stat().st_ino
    return None


def _abandoned(before: set[str]) -> set[str]:
    """New shared memory in /dev/shm that no process maps. Named semaphores (32 bytes, which live
    processes do not always map) are not memory."""
    new = {n for n in set(os.listdir("/dev/shm")) - before if _size(n) > 4096}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and new:
            with contextlib.suppress(OSError):
                maps = (entry / "maps").read_text()
                new = {name for name in new if f"/dev/shm/{name}" not in maps}
    return {name for name in new if os.path.exists(f"/dev/shm/{name}")}


def _size(name: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/dev/shm/{name}").st_size
    return 0


def _wait(condition: Any, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
