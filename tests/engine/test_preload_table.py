"""Forecast equals verdict: every way in which weights are or are not mapped, on the real runtime.

One real daemon, started as a unit. Each case forecasts first, then lets vLLM's own loader do what
it does, and compares. Expectations are written out, so that both being wrong alike is seen too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.logs.verdict import verdict_of
from engine_ctl.model import Verdict
from engine_ctl.weights import daemons, sights, sockets
from engine_ctl.weights.ahead import weights_ahead
from engine_ctl.weights.forecast import refine
from profiles.model import Profile
from tests.engine import preload_bench as lying
from tests.engine.preload_bench import Bench, bench, names, serve_on, serve_words, status_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MAPPED, COPIED, FALLBACK, DISK = Verdict.MAPPED, Verdict.COPIED, Verdict.FALLBACK, Verdict.DISK
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files to another user")


@dataclass
class Case:
    """One engine. `foreign`: the daemon behind its socket is asked by protocol, as a standby
    does, because no run of ours says what it holds. `hidden`: ours, but treated as foreign."""

    profile: Profile
    verdict: Verdict | None
    reasons: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    world: int = 1
    version: str | None = None
    foreign: bool = False
    refuse: str | None = None
    warns: str = ""
    waits: bool = False


@pytest.fixture(scope="module")
def table(cpu_runtime: Any, tiny_model: Path, fork: daemons.Begin) -> Iterator[Bench]:
    with bench(cpu_runtime.runtime, cpu_runtime.full_env(), tiny_model, fork) as made:
        run = made.start_daemon("weights", made.profile(), cold=True)
        try:
            _compare(made, _loading(made), loading=True)
        finally:
            made.clean()
        second = made.start_daemon("second", _second(made))
        made.wait_ready(run)
        made.wait_ready(second)
        yield made


def _second(b: Bench) -> Profile:
    """Another daemon on the same machine, in the same directory, for another device."""
    return b.profile(args={"dtype": "float32"}, gpus=(1,))


def _loading(b: Bench) -> Case:
    return Case(b.profile(), FALLBACK, ("wc_fallback.not_ready",))


def _compare(b: Bench, case: Case, loading: bool = False) -> None:
    words = serve_words(case.profile)
    answer = b.harness.run(
        argv=words, env=case.env, version=case.version, load=False, ask=case.foreign
    )
    check = answer["check"]
    assert check["ok"], check["error"]
    ahead = weights_ahead(
        b.store,
        case.profile,
        b.runtime,
        check,
        case.env,
        mismatches={a["socket"]: status_of(a) for a in answer.get("asked") or ()},
    )
    forecast = ahead.forecast
    done = b.harness.run(
        argv=words, env=case.env, version=case.version, world=case.world, check=False
    )
    log = "\n".join(done["logs"])
    verdict, reasons = verdict_of(log.encode())
    if loading:
        reasons = refine(reasons, loading=True)
    said = f"\nforecast {forecast}\nverdict {verdict} {reasons}\n{log[-2500:]}"
    assert verdict == case.verdict, said
    assert {r.category for r in reasons if r.category.startswith("wc_f")} == set(case.reasons), said
    if case.waits:
        assert forecast.verdict is None and forecast.waits_s is not None, said
        return
    assert forecast.verdict == verdict, said
    assert names(forecast.reasons) == names(reasons), said
    if case.fields:
        assert {f[0] for r in forecast.reasons for f in r.fields} == set(case.fields), said
    assert (forecast.refuse.category if forecast.refuse else None) == case.refuse, said
    assert case.warns in " ".join(forecast.warnings), said
    assert all(done["mapped"]) == (verdict is MAPPED), said
    if forecast.fails:
        assert all(done["errors"]), said


def _variant(b: Bench, name: str, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """A copy of the model with another config.json."""
    path = b.root / name
    shutil.copytree(b.model, path)
    b.later(lambda: shutil.rmtree(path))
    config = json.loads((path / "config.json").read_text())
    if change is not None:
        change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


def _other_layout(b: Bench) -> Path:
    """The same weights under a header with one more entry of metadata."""
    path = _variant(b, "layout")
    weights = path / "model.safetensors"
    data = weights.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {**header.get("__metadata__", {}), "revision": "two"}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path


def _other_content(b: Bench) -> Path:
    """The same layout with other numbers: what vLLM's key cannot tell apart."""
    path = _variant(b, "content")
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        tail = file.read(4096)
        file.seek(-4096, os.SEEK_END)
        file.write(tail[::-1])
    return path


def _socket(b: Bench) -> str:
    sight = sights.sight_of(b.store, "weights")
    assert sight is not None
    return sight.record.sockets[0]


def _name(b: Bench) -> str:
    return os.path.basename(_socket(b))


def _in(directory: Path | str) -> dict[str, Any]:
    return {"socket_dir": str(directory)}


def _linked(b: Bench, directory: Path) -> Path:
    """The daemon's socket under a second name."""
    os.link(_socket(b), directory / _name(b))
    return directory


def _default_dir(b: Bench, mode: int) -> dict[str, str]:
    """An environment whose default socket directory holds the daemon's socket."""
    temporary = b.directory("t")
    directory = temporary / f"vllm_weight_cache_{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    _linked(b, directory)
    return {"TMPDIR": str(temporary)}


def _lying(b: Bench, behave: Callable[..., None], **preload: Any) -> dict[str, Any]:
    directory = b.directory("l")
    serve_on(b, str(directory / _name(b)), behave)
    return _in(directory) | preload


def _given_away(b: Bench, what: str) -> Path:
    directory = _linked(b, b.directory("g"))
    if what == "directory":
        os.chown(directory, 12345, -1)
        return directory
    (directory / _name(b)).unlink()
    serve_on(b, str(directory / _name(b)), lying.hang_up)
    os.chown(directory / _name(b), 12345, -1)
    return directory


def _stale(b: Bench) -> Path:
    import socket

    directory = b.directory("d")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(directory / _name(b)))
    dead.close()
    return directory


def _symlinked_dir(b: Bench) -> Path:
    link = b.root / "link"
    link.symlink_to(b.sockets)
    b.later(link.unlink)
    return link


def _symlinked_socket(b: Bench) -> Path:
    directory = b.directory("y")
    (directory / _name(b)).symlink_to(_socket(b))
    return directory


def _plain_file(b: Bench) -> Path:
    directory = b.directory("f")
    (directory / _name(b)).write_text("")
    return directory


def _dir_is_file(b: Bench) -> Path:
    path = b.root / "notadir"
    path.write_text("")
    b.later(path.unlink)
    return path


def _renamed(config: dict[str, Any]) -> None:
    config["architectures"] = ["MistralForCausalLM"]
    config["model_type"] = "mistral"


FB = "wc_fallback."

CASES: dict[str, Callable[[Bench], Case]] = {
    "same": lambda b: Case(b.profile(), MAPPED),
    "from disk": lambda b: Case(b.profile(preload=None), DISK),
    "dtype float32": lambda b: Case(
        b.profile(args={"dtype": "float32"}), FALLBACK, (FB + "key_mismatch",), ("dtype",)
    ),
    "dtype float16": lambda b: Case(
        b.profile(args={"dtype": "float16"}), FALLBACK, (FB + "key_mismatch",), ("dtype",)
    ),
    "checkpoint": lambda b: Case(
        b.profile(model=_other_layout(b)), FALLBACK, (FB + "key_mismatch",), ("checkpoint",)
    ),
    "architecture": lambda b: Case(
        b.profile(model=_variant(b, "arch", _renamed)),
        FALLBACK,
        (FB + "key_mismatch",),
        ("model_arch",),
    ),
    "revision": lambda b: Case(
        b.profile(args={"revision": "v2"}), FALLBACK, (FB + "key_mismatch",), ("revision",)
    ),
    "vllm version": lambda b: Case(
        b.profile(), FALLBACK, (FB + "key_mismatch",), ("vllm_version",), version="0.32.9"
    ),
    "version and dtype": lambda b: Case(
        b.profile(args={"dtype": "float32"}),
        FALLBACK,
        (FB + "key_mismatch",),
        ("dtype", "vllm_version"),
        version="0.32.9",
    ),
    "tensor parallel 2": lambda b: Case(
        b.profile(args={"tensor_parallel_size": 2}),
        FALLBACK,
        (FB + "key_mismatch",),
        ("dtype", "tp_rank", "tp_size"),
        world=2,
    ),
    "pipeline parallel 2": lambda b: Case(
        b.profile(args={"pipeline_parallel_size": 2}),
        FALLBACK,
        (FB + "key_mismatch",),
        ("dtype", "pp_rank", "pp_size"),
        world=2,
    ),
    "draft role": lambda b: Case(
        b.profile(
            preload=None,
            args={
                "load_format": "ipc_cache",
                "model_loader_extra_config": {"is_draft": True, "socket_dir": str(b.sockets)},
            },
        ),
        FALLBACK,
        (FB + "role",),
    ),
    "copy of the model": lambda b: Case(b.profile(model=_variant(b, "copy")), MAPPED),
    "other weights, same layout": lambda b: Case(
        b.profile(model=_other_content(b)), MAPPED, refuse="lint.wc_same_layout_other_model"
    ),
    "other length and sequences": lambda b: Case(
        b.profile(args={"max_model_len": 512, "max_num_seqs": 4}), MAPPED
    ),
    "other rope": lambda b: Case(
        b.profile(
            model=_variant(b, "rope", lambda c: c["rope_parameters"].update(rope_theta=50000.0))
        ),
        MAPPED,
    ),
    "other served name and port": lambda b: Case(b.profile(served_name=("x",), port=8123), MAPPED),
    "directory missing": lambda b: Case(
        b.profile(preload=_in(b.root / "nowhere")), FALLBACK, (FB + "socket_missing",)
    ),
    "directory empty": lambda b: Case(
        b.profile(preload=_in(b.directory("e"))), FALLBACK, (FB + "socket_missing",)
    ),
    "directory symlinked": lambda b: Case(
        b.profile(preload=_in(_symlinked_dir(b))), FALLBACK, (FB + "permissions",)
    ),
    "directory is a file": lambda b: Case(
        b.profile(preload=_in(_dir_is_file(b))), FALLBACK, (FB + "permissions",)
    ),
    "directory of the group, named": lambda b: Case(
        b.profile(preload=_in(_linked(b, b.directory("w", 0o770)))),
        MAPPED,
        warns="writable by its group",
    ),
    "default directory": lambda b: Case(
        b.profile(preload={}), MAPPED, env=_default_dir(b, 0o700), foreign=True
    ),
    "default directory open": lambda b: Case(
        b.profile(preload={}), FALLBACK, (FB + "permissions",), env=_default_dir(b, 0o755)
    ),
    "socket stale": lambda b: Case(
        b.profile(preload=_in(_stale(b))), FALLBACK, (FB + "stale_socket",)
    ),
    "socket symlinked": lambda b: Case(
        b.profile(preload=_in(_symlinked_socket(b))), FALLBACK, (FB + "permissions",)
    ),
    "socket is a file": lambda b: Case(
        b.profile(preload=_in(_plain_file(b))), FALLBACK, (FB + "stale_socket",)
    ),
    "socket path": lambda b: Case(
        b.profile(
            preload=None,
            args={
                "load_format": "ipc_cache",
                "model_loader_extra_config": {"socket_path": _socket(b)},
            },
        ),
        MAPPED,
    ),
    "socket path of another device": lambda b: Case(
        b.profile(
            preload=None,
            args={
                "load_format": "ipc_cache",
                "model_loader_extra_config": {"socket_path": _socket(b)},
            },
        ),
        FALLBACK,
        (FB + "gpu_uuid",),
        env={"STOKER_CPU_DEVICES": "7"},
    ),
    "the second daemon's device": lambda b: Case(
        _second(b), MAPPED, env={"STOKER_CPU_DEVICES": "1"}
    ),
    "the second daemon's device, its dtype not": lambda b: Case(
        b.profile(),
        FALLBACK,
        (FB + "key_mismatch",),
        ("dtype",),
        env={"STOKER_CPU_DEVICES": "1"},
    ),
    "another device": lambda b: Case(
        b.profile(), FALLBACK, (FB + "socket_missing",), env={"STOKER_CPU_DEVICES": "7"}
    ),
    "garbage": lambda b: Case(
        b.profile(preload=_lying(b, lying.garbage)), FALLBACK, (FB + "ipc_failed",), foreign=True
    ),
    "nonsense": lambda b: Case(
        b.profile(preload=_lying(b, lying.nonsense)), FALLBACK, (FB + "ipc_failed",), foreign=True
    ),
    "hangs up": lambda b: Case(
        b.profile(preload=_lying(b, lying.hang_up)), FALLBACK, (FB + "ipc_failed",), foreign=True
    ),
    "never answers": lambda b: Case(
        b.profile(preload=_lying(b, lying.silent, state_timeout_s=1.0)),
        FALLBACK,
        (FB + "not_ready",),
        foreign=True,
    ),
    "other protocol": lambda b: Case(
        b.profile(preload=_lying(b, lying.other_protocol)),
        FALLBACK,
        (FB + "version_skew",),
        foreign=True,
    ),
    "daemon that is not ours": lambda b: Case(
        b.profile(preload=_in(_linked(b, b.directory("o")))), MAPPED, foreign=True
    ),
    "dtype, daemon that is not ours": lambda b: Case(
        b.profile(preload=_in(_linked(b, b.directory("o"))), args={"dtype": "float32"}),
        FALLBACK,
        (FB + "key_mismatch",),
        ("dtype",),
    ),
    "no fallback, mismatch": lambda b: Case(
        b.profile(preload=_in(b.sockets) | {"fallback": False}, args={"dtype": "float32"}),
        None,
        (FB + "key_mismatch",),
        ("dtype",),
    ),
    "no fallback, missing": lambda b: Case(
        b.profile(
            preload=_in(b.root / "nowhere") | {"fallback": False, "state_timeout_s": 1.0},
        ),
        None,
        (FB + "socket_missing", FB + "not_ready"),
        waits=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_forecast_equals_verdict(table: Bench, name: str) -> None:
    try:
        _compare(table, CASES[name](table))
    finally:
        table.clean()


@ROOT_ONLY
@pytest.mark.parametrize("what", ["directory", "socket"])
def test_another_users(table: Bench, what: str) -> None:
    try:
        profile = table.profile(preload=_in(_given_away(table, what)))
        _compare(table, Case(profile, FALLBACK, ("wc_fallback.permissions",)))
    finally:
        table.clean()


def test_a_second_daemon_is_refused_before_it_loads(table: Bench) -> None:
    with pytest.raises(daemons.Busy, match="weights holds the weights of CPU-0 already"):
        table.start_daemon("third", table.profile(args={"dtype": "float32"}))
    assert table.store.runs("third") == []


def test_the_end_of_a_daemon(table: Bench) -> None:
    """In this order: copied and released, released, killed."""
    sight = sights.sight_of(table.store, "weights")
    assert sight is not None
    copy = table.profile(preload=_in(table.sockets) | {"mode": "copy"})
    done = table.harness.run(argv=serve_words(copy), check=False)
    ahead = table.harness.check(serve_words(copy), {})
    assert ahead["ok"]
    assert verdict_of(done["logs"][0].encode())[0] is COPIED
    _compare(table, Case(table.profile(), FALLBACK, ("wc_fallback.released",)))
    statuses = daemons.ask(sight).statuses
    assert [s.state for s in statuses.values()] == ["released"]
    (path,) = statuses
    facts = sockets.look(path, strict=False)
    assert facts.lock_held and facts.lock_pid and facts.listening
    os.kill(facts.lock_pid, signal.SIGKILL)
    while sockets.look(path, strict=False).listening:
        time.sleep(0.02)
    _compare(table, Case(table.profile(), FALLBACK, ("wc_fallback.stale_socket",)))
    assert sockets.look(path, strict=False).lock_held is False
