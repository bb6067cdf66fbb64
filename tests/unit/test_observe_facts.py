"""Facts of a run out of its log and records: at readiness, at the end, from big and cut logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl import atomic
from engine_ctl.model import Kind, Phase, PhaseMark, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe.facts import (
    RunFacts,
    derive_facts,
    kernel_choices,
    medians,
    refresh,
    typical,
)
from engine_ctl.state.store import Run
from tests.standin.observed import Written, recorded_log

H200 = "h200-vllm-0.33.0"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    world = Written(tmp_path)
    world.unit("chat")
    yield world
    world.close()


def start_of(written: Written, name: str, *, up_to_ready: bool = False) -> Run:
    run = written.run("chat")
    log, clock = recorded_log(f"{H200}/{name}")
    if up_to_ready:
        log = log[: log.index(b"startup complete.") + 18]
    written.log(run, log)
    written.clock(run, clock)
    return run


def test_a_mapped_start(written: Written) -> None:
    run = start_of(written, "11_ipc")
    written.ready(run, 43.91)
    facts = derive_facts(run.dir)
    assert facts.start_s == 43.91
    assert facts.verdict is Verdict.MAPPED
    assert not facts.ended and facts.cause is None and facts.standby is False
    phases = {mark.phase: mark.seconds for mark in facts.start_phases()}
    assert {Phase.IMPORTING, Phase.CONFIGURING, Phase.MAPPING, Phase.CAPTURING} <= phases.keys()
    assert sum(seconds or 0 for seconds in phases.values()) == pytest.approx(43.9, abs=0.5)
    assert facts.start["kv_gib"] == 111.22
    assert facts.start["external_weights_gib"] == 14.99
    assert facts.compile_cache == "hit"
    kernels = {kernel.what: kernel for kernel in kernel_choices(facts)}
    assert kernels["attention"].choice == "FLASH_ATTN"
    assert kernels["attention"].line
    assert not (run.dir / "facts.json").exists()


def test_who_asks_too_early_settles_nothing(written: Written) -> None:
    run = written.run("chat")
    written.log(run, b"")
    early = refresh(run.dir)
    assert early is not None and early.verdict is None
    assert run_facts.load(run.dir) is None
    log, clock = recorded_log(f"{H200}/11_ipc")
    written.log(run, log)
    written.clock(run, clock)
    written.ready(run, 43.91)
    late = refresh(run.dir)
    assert late is not None and late.verdict is Verdict.MAPPED and late == run_facts.load(run.dir)


def test_facts_that_were_kept_too_early_are_taken_anew(written: Written) -> None:
    run = start_of(written, "11_ipc")
    written.ready(run, 43.91)
    atomic.write_record(run.dir / run_facts.FILE, RunFacts(run=run.id, kind=Kind.ENGINE))
    found = refresh(run.dir)
    assert found is not None and found.verdict is Verdict.MAPPED and found.log_bytes


def test_what_was_known_at_readiness_survives_a_trimmed_log(written: Written) -> None:
    run = start_of(written, "11_ipc", up_to_ready=True)
    written.ready(run, 43.91)
    first = refresh(run.dir)
    assert first is not None and first == run_facts.load(run.dir)
    run.log.write_bytes(b"")
    written.request(run)
    written.exit(run, requested=True, seconds=100.0)
    last = refresh(run.dir)
    assert last is not None
    assert last.ended and last.seconds == 100.0 and last.cause is None
    assert last.verdict is Verdict.MAPPED
    assert last.start_phases() == first.start_phases()
    assert last.phases[-1].phase is Phase.READY
    assert last.phases[-1].seconds == pytest.approx(100.0 - last.phases[-1].start_s, abs=0.01)
    # Once over, it is not derived again.
    run.log.write_bytes(b"something else\n")
    assert derive_facts(run.dir) == last


def test_a_fallback_has_its_reason(written: Written) -> None:
    facts = derive_facts(start_of(written, "32_not_ready").dir)
    assert facts.verdict is Verdict.FALLBACK
    assert facts.reasons[0].category.startswith("wc_fallback.")
    assert "refused" in facts.reasons[0].line.lower()


def test_a_killed_engine_core_ends_with_status_0_and_has_failed(written: Written) -> None:
    run = start_of(written, "40_load")
    written.ready(run, 59.9)
    refresh(run.dir)
    written.exit(run, code=0, seconds=80.0)
    facts = derive_facts(run.dir)
    assert facts.ended
    assert facts.cause is not None
    assert facts.cause.category == "engine_core_killed"


def test_the_shims_own_error_is_the_cause(written: Written) -> None:
    run = written.run("chat")
    written.exit(run, code=None, error="cannot start /no/python: no such file")
    facts = derive_facts(run.dir)
    assert facts.cause is not None and facts.cause.hint.startswith("cannot start")


def test_a_log_larger_than_what_is_read(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_facts, "HEAD_BYTES", 1 << 16)
    monkeypatch.setattr(run_facts, "TAIL_BYTES", 1 << 14)
    run = start_of(written, "11_ipc", up_to_ready=True)
    with run.log.open("ab") as file:
        for number in range(20000):
            file.write(b"(EngineCore pid=7016) INFO 11-29 17:49:14 [x.py:1] noise %d\n" % number)
        file.write(
            b"(APIServer pid=1) WARNING 11-29 18:49:14 [core_client.py:839] [shutdown] MPClient: "
            b"engine core exited unexpectedly; starting cleanup\n"
        )
    written.exit(run, code=0)
    facts = derive_facts(run.dir)
    assert facts.verdict is Verdict.MAPPED
    assert facts.start_s == pytest.approx(43.9, abs=0.5)
    assert facts.cause is not None and facts.cause.category == "engine_core_killed"


def test_an_end_that_nothing_explains_is_not_guessed(written: Written) -> None:
    run = written.run("chat")
    written.log(run, b"one\nthe last line\n")
    written.exit(run, code=0)
    cause = derive_facts(run.dir).cause
    assert cause is not None
    assert (cause.category, cause.line) == ("unknown", "the last line")
    assert "with exit status 0, unasked" in cause.hint


def test_no_log_at_all(written: Written) -> None:
    facts = derive_facts(written.run("chat").dir)
    assert facts.verdict is None and facts.start_s is None


def test_a_damaged_cache_is_derived_again(written: Written) -> None:
    run = start_of(written, "11_ipc")
    (run.dir / "facts.json").write_text("{")
    assert run_facts.load(run.dir) is None
    assert derive_facts(run.dir).verdict is Verdict.MAPPED


def test_medians_count_a_phase_only_where_it_occurred() -> None:
    def start(ready: float | None, loading: float | None) -> RunFacts:
        marks = () if loading is None else (PhaseMark(Phase.LOADING, 1.0, loading),)
        return RunFacts(run="u/1", start_s=ready, phases=marks)

    found = medians([start(10.0, 2.0), start(20.0, None), start(90.0, 4.0)])
    assert found.start_s == 20.0
    assert found.phases == {Phase.LOADING: 3.0}
    assert medians([]).start_s is None


def test_typical_prefers_starts_of_the_same_kind(written: Written) -> None:
    def ended(seconds: float, **spec: str) -> None:
        run = written.run("chat", **spec)
        written.ready(run, seconds)
        written.exit(run, requested=True)

    ended(40.0, profile="chat")
    ended(42.0, profile="chat")
    ended(9.0, profile="chat", via="standby")
    ended(70.0, profile="other")
    run = written.run("chat", profile="chat")
    store, spec = written.store, run.spec()
    assert typical(store, run, spec).start_s is None  # nobody derived them yet
    assert typical(store, run, spec, derive=True).start_s == 41.0
    assert typical(store, run, spec).start_s == 41.0
    by_standby = written.run("chat", profile="new", via="standby")
    assert typical(store, by_standby, by_standby.spec()).start_s == 9.0
    assert spec.kind is Kind.ENGINE
