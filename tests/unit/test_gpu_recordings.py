"""What real vLLM 0.33 printed on two H200s when Stoker started it from a standby."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine_ctl.logs.classify import classify
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.logs.verdict import verdict_of
from engine_ctl.model import Kind, Phase, Verdict
from engine_ctl.state.aftermath import MemoryRecord, words
from engine_ctl.tune.results import parse_result

DATA = Path(__file__).parents[1] / "data"


def log(name: str) -> bytes:
    return (DATA / "gpu" / f"{name}.log").read_bytes()


@pytest.mark.parametrize("name", ["big", "tp2"])
def test_an_engine_forked_by_a_standby_maps_its_weights(name: str) -> None:
    assert verdict_of(log(name))[0] is Verdict.MAPPED
    timeline = StartTimeline(Kind.ENGINE)
    timeline.feed(log(name))
    timeline.finish()
    phases = [mark.phase for mark in timeline.marks()]
    assert Phase.MAPPING in phases and Phase.READY in phases
    assert phases.index(Phase.MAPPING) < phases.index(Phase.READY)
    assert timeline.facts.version == "0.33.0"


def test_a_tensor_parallel_pair_reports_both_ranks() -> None:
    text = log("tp2")
    assert text.count(b"from the weight cache daemon") >= 2


def test_a_restart_beside_which_no_daemon_had_room_took_the_disk() -> None:
    verdict, reasons = verdict_of(log("no-room"))
    assert verdict is Verdict.FALLBACK
    assert [reason.category for reason in reasons] == ["wc_fallback.stale_socket"]


def test_the_daemons_of_a_pair_become_ready() -> None:
    timeline = StartTimeline(Kind.PRELOAD)
    timeline.feed(log("tp2-weights"))
    timeline.finish()
    assert timeline.ready_seen


def test_healthy_starts_have_no_cause() -> None:
    text = log("big")
    served = (
        text[: text.rfind(b"Application startup complete")] + b"Application startup complete.\n"
    )
    assert classify(served) is None


def test_a_bench_result_of_vllm_0_33() -> None:
    found = parse_result((DATA / "bench" / "vllm-0.33-h200-random-32.json").read_bytes())
    assert (found.completed, found.failed) == (32, 0)
    assert found.output_tokens_per_s == pytest.approx(906.15, abs=0.01)
    assert set(found.latency_ms) >= {"ttft", "itl", "e2el"}


@pytest.mark.parametrize(
    ("day", "count", "passed"),
    [
        ("2026-11-29", 25, 22),
        ("2026-11-30", 31, 29),
        ("2026-11-30-one-gpu", 26, 26),
        ("2026-11-30-two-gpus", 9, 9),
    ],
)
def test_the_acceptance_lines_are_whole(day: str, count: int, passed: int) -> None:
    lines = (DATA / "gpu" / f"acceptance-{day}.jsonl").read_text().splitlines()
    checks = [json.loads(line) for line in lines]
    assert len(checks) == count
    assert sum(check.get("ok") is True for check in checks) == passed


def test_memory_followed_the_utilization_through_twenty_swaps_with_the_startup_plan() -> None:
    lines = (DATA / "gpu" / "acceptance-2026-11-30-one-gpu.jsonl").read_text().splitlines()
    (found,) = [c for c in map(json.loads, lines) if c["check"] == "4 twenty restarts"]
    used = {float(share): figures for share, figures in found["used_mib"].items()}
    assert sum(len(figures) for figures in used.values()) == 20
    assert all(max(figures) - min(figures) < 64 for figures in used.values())
    assert sorted(used) == sorted(used, key=lambda share: min(used[share]))


def test_the_memory_of_both_gpus_when_an_engine_core_was_killed() -> None:
    record = msgspec.json.decode((DATA / "gpu" / "memory.json").read_bytes(), type=MemoryRecord)
    assert record.gpus is not None
    held = [[process.used for process in gpu.processes] for gpu in record.gpus]
    # A daemon and its engine on one; on the other the daemon is left, the engine's is free again.
    assert held == [[16_752_050_176, 121_393_643_520], [3_147_825_152]]
    assert any("GPU 1: 2.9 GiB used of 140.4 GiB" in line for line in words(record))
