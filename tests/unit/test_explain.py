"""Cards say the memory of the moment; a fall back is explained though nothing failed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from console.main import run
from engine_ctl import atomic
from engine_ctl.answers import Fix
from engine_ctl.model import Cause, Kind, Phase, PhaseMark, Reason, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe.facts import RunFacts
from engine_ctl.operations import explain
from engine_ctl.operations.context import Context
from engine_ctl.operations.fixes import fixes_for
from engine_ctl.paths import Dirs
from engine_ctl.state.expected import FILE, ForecastRecord
from engine_ctl.state.records import ExitRecord, RunSpec
from engine_ctl.state.store import Run
from profiles.model import Profile
from tests.standin.observed import DATA, Written

OOM = (
    "(EngineCore pid=8310) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 "
    "MiB. GPU 0 has a total capacity of 139.80 GiB of which 410.00 MiB is free. Including "
    "non-PyTorch memory, this process has 123.81 GiB memory in use.\n"
)
EARLY = (
    "ValueError: Free memory on device cuda:0 (2.6/139.8 GiB) on startup is less than desired GPU "
    "memory utilization (0.92, 128.6 GiB).\n"
)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Dirs.from_env({"HOME": str(tmp_path)}), by="test")


def made(ctx: Context, log: str) -> Run:
    ctx.store.create("a", Kind.ENGINE, "p", "test")
    run = ctx.store.new_run(RunSpec(unit="a", kind=Kind.ENGINE, argv=["x"]))
    ctx.store.set_current(run)
    run.log.write_text(log)
    return run


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (OOM, "GPU 0: 410.00 MiB free of 139.80 GiB, 123.81 GiB of this process"),
        (EARLY, "cuda:0: 2.6 GiB free of 139.8 GiB when it started"),
    ],
)
def test_memory_at_that_moment(ctx: Context, log: str, said: str) -> None:
    run = made(ctx, log)
    expected = ForecastRecord(memory=["GPU 0 needs 128.6 GiB, 139.0 GiB will be free"])
    atomic.write_record(run.dir / FILE, expected)
    known = RunFacts(run=run.id, start={"weights_gib": 15.6, "kv_gib": 108.14})
    assert explain._memory(run, known) == (
        said,
        "its log: weights 15.6, KV cache 108.1 GiB",
        "expected: GPU 0 needs 128.6 GiB, 139.0 GiB will be free",
    )


def test_a_log_without_figures_says_nothing(ctx: Context) -> None:
    assert explain._memory(made(ctx, "INFO nothing\n"), RunFacts(run="a/1")) == ()


def test_a_fall_back_is_explained(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(ctx, "")
    reason = Reason("wc_fallback.key_mismatch", "reload it", "", (("dtype", "bf16", "fp16"),))
    known = RunFacts(run=run.id, verdict=Verdict.FALLBACK, reasons=(reason,))
    monkeypatch.setattr(run_facts, "derive_facts", lambda _: known)
    assert explain.fell_back(ctx, "a") == (reason,)
    mapped = msgspec.structs.replace(known, verdict=Verdict.MAPPED)
    monkeypatch.setattr(run_facts, "derive_facts", lambda _: mapped)
    assert explain.fell_back(ctx, "a") == ()


def test_a_fall_back_now_comes_before_a_failure_then(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(ctx.dirs.state.parents[2]))
    assert Context().dirs.state == ctx.dirs.state
    failed = made(ctx, OOM)
    atomic.write_record(failed.dir / "exit.json", ExitRecord(ended=1.0, seconds=1.0, code=1))
    now = ctx.store.new_run(RunSpec(unit="a", kind=Kind.ENGINE, argv=["x"]))
    ctx.store.set_current(now)
    reason = Reason("wc_fallback.released", "reload it", "unusable")
    fell = RunFacts(run=now.id, verdict=Verdict.FALLBACK, reasons=(reason,), ended=True)
    atomic.write_record(now.dir / "facts.json", fell)
    atomic.write_record(now.dir / "exit.json", ExitRecord(ended=2.0, seconds=1.0, requested=True))
    (now.dir / "request.json").write_text('{"at": 1.0}')
    assert run(["why", "a"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("a fell back to disk: wc_fallback.released")
    assert "before it: a/1 failed" in said and "stoker why a --run a/1" in said
    assert run(["why", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["category"] == "wc_fallback.released"
    bundles = Path(ctx.dirs.state)
    for which, number in (([], 2), (["--run", "1"], 1)):
        assert run(["why", "a", *which, "--bundle", str(bundles)]) == 0
        assert f"stoker-a-{number}.tar.gz" in capsys.readouterr().out
    (now.dir / "facts.json").unlink()
    assert run(["why", "a", "--bundle", str(bundles)]) == 0
    said = capsys.readouterr().out
    assert "stoker-a-1.tar.gz" in said and "a/1 failed" in said
    assert run(["why", "a", "--run", "1"]) == 0
    assert capsys.readouterr().out.startswith("a/1 failed")


def test_an_earlier_failure_is_told_with_what_serves_since(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.unit("chat")
    written.exit(written.run("chat"), code=1)
    run = written.run("chat")
    ctx = Context(written.dirs, by="test")
    card = explain.why(ctx, "chat")
    assert card is not None and card.run == "chat/1"
    assert explain.since(ctx, "chat", card) == "chat/2 starts since then"
    written.ready(run)
    assert str(explain.since(ctx, "chat", card)).startswith("chat/2 serves since then")
    assert explain.since(ctx, "chat", replace(card, run="chat/2")) is None
    written.exit(run, code=1)
    assert explain.since(ctx, "chat", card) is None


def test_what_mapping_saved_is_against_disk_of_the_same_model(ctx: Context) -> None:
    ctx.store.create("a", Kind.ENGINE, "p", "test")

    def started(model: str, via: str, verdict: Verdict, start_s: float | None) -> None:
        run = ctx.store.new_run(
            RunSpec(unit="a", kind=Kind.ENGINE, argv=["x"], model=model, via=via)
        )
        facts = RunFacts(run=run.id, verdict=verdict, start_s=start_s, ended=True)
        atomic.write_record(run.dir / "facts.json", facts)

    started("8b", "spawn", Verdict.DISK, 61.0)
    started("8b", "standby", Verdict.MAPPED, 10.0)
    started("1b", "standby", Verdict.MAPPED, 5.0)
    started("8b", "standby", Verdict.DISK, None)
    started("8b", "standby", Verdict.FALLBACK, 40.0)
    started("8b", "standby", Verdict.DISK, 42.0)
    started("8b", "spawn", Verdict.MAPPED, 30.0)
    references = {start.run: start.disk_s for start in explain.starts(ctx, "a")}
    assert references["a/2"] == 40.0
    assert references["a/3"] is None
    assert references["a/7"] == 61.0
    assert [len(explain.starts(ctx, "a", limit)) for limit in (0, 2, 99)] == [0, 2, 7]
    assert explain.starts(ctx, "a", 1)[0].disk_s == 61.0


def test_a_failure_is_explained_while_the_process_still_hangs(tmp_path: Path) -> None:
    written = Written(tmp_path)
    try:
        written.unit("a")
        run = written.run("a")
        ctx = Context(written.dirs, by="test")
        log = (DATA / "recordings/cpu-vllm-0.32.0/kvnone.log").read_bytes()
        written.log(run, log[: log.index(b"EngineCore failed to start")])
        assert explain.why(ctx, "a") is None
        written.log(run, log[log.index(b"EngineCore failed to start") :])
        card = explain.why(ctx, "a")
        assert card is not None and card.cause is not None
        assert card.cause.category == "kv_no_memory"
        assert card.outcome == "failed, its process has not ended yet"
    finally:
        written.close()


@pytest.mark.parametrize(
    ("marks", "ready", "asked", "phase"),
    [
        ((Phase.IMPORTING, Phase.LOADING, Phase.FAILED), False, False, Phase.LOADING),
        ((Phase.LOADING, Phase.STOPPING), False, False, Phase.LOADING),
        (
            (Phase.LOADING, Phase.DRAINING, Phase.STOPPING, Phase.EXITED),
            False,
            False,
            Phase.LOADING,
        ),
        ((Phase.LOADING, Phase.FAILED, Phase.STOPPING), False, True, Phase.LOADING),
        ((Phase.READY, Phase.STOPPING, Phase.FAILED), True, True, Phase.STOPPING),
        ((Phase.READY, Phase.STOPPING), True, False, Phase.READY),
        ((Phase.READY, Phase.SLEEPING, Phase.FAILED), True, False, Phase.SLEEPING),
        ((Phase.IMPORTING,), True, False, Phase.READY),
        ((Phase.IMPORTING, Phase.FAILED), False, False, Phase.IMPORTING),
        ((Phase.STOPPING,), False, False, None),
    ],
)
def test_the_phase_that_failed_is_named(
    marks: tuple[Phase, ...], ready: bool, asked: bool, phase: Phase | None
) -> None:
    phases = tuple(PhaseMark(mark, float(n), 1.0) for n, mark in enumerate(marks))
    known = RunFacts(run="a/1", phases=phases)
    assert explain._phase_before(known, ready, asked) is phase


def test_a_cache_given_in_bytes_is_not_mended_by_the_utilisation() -> None:
    cause = Cause(category="kv_no_memory", hint="", line="")
    fixed = Profile(name="p", args={"kv_cache_memory_bytes": "4k"})
    assert fixes_for(cause, fixed) == (Fix("kv_cache_memory_bytes", "4k", "null"),)
    assert fixes_for(cause, Profile(name="p"))[0].key == "gpu_memory_utilization"
