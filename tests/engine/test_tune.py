"""Benches and sweeps against real engines: results, deaths, kills, resumption, what is left."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.operations import lifecycle, snapshots
from engine_ctl.supervise import liveness, procs
from engine_ctl.tune import (
    history,
    journal,
    measure,
    operation,
    planning,
    records,
    rows,
    sweep,
)
from engine_ctl.tune.history import Filter
from engine_ctl.tune.progress import BenchProgress
from tests.engine.world import World, complete, free_port, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SMALL = {"requests": 8, "input_len": 32, "output_len": 16, "concurrency": 4, "warmups": 1}
QUICK = {"repeats": 1}


@pytest.fixture(scope="module")
def here(installation: World) -> World:
    return installation


@pytest.fixture(scope="module")
def port(here: World) -> int:
    chosen = free_port()
    here.profile("tuned", port=chosen, bench=SMALL)
    here.wait_ready(lifecycle.start(here.ctx, "a", "tuned"))
    return chosen


def serves(here: World, port: int, max_num_seqs: int) -> bool:
    """The unit serves, and with which setting."""
    profile = snapshots.require(here.current("a"))
    complete(port, str(here.model))
    return bool(profile.args["max_num_seqs"] == max_num_seqs)


def test_a_bench_is_measured_repeated_and_kept(here: World, port: int) -> None:
    seen: list[BenchProgress] = []
    done = operation.bench(
        here.ctx, "a", {"repeats": 2, "goodput": {"ttft": 60000}}, told=seen.append
    )
    assert [r.completed for r in done.results] == [8, 8] and done.problem is None
    throughput = done.stats["throughput"]
    assert throughput.n == 2 and throughput.low <= throughput.median <= throughput.high
    for metric in ("ttft", "itl", "tpot", "e2el"):
        p50, p95, p99 = (done.stats[f"{metric}_p{p}"].median for p in (50, 95, 99))
        assert 0 < p50 <= p95 <= p99
    assert done.stats["goodput"].median > 0
    assert done.start is not None and done.start.start_s and done.start.phases
    assert done.hardware["cores"] and done.runtime["version"] == here.runtime.runtime.version
    assert done.samples[-1].t > 0 and done.samples[-1].running == 0
    # How often progress is seen depends on the machine; it never steps back and ends complete.
    assert [now.rank for now in seen] == sorted(now.rank for now in seen)
    assert seen[-1] == BenchProgress("measuring", 8, 8, 2, 2)
    # New prompts for each repeat: the prefix cache does not answer in the engine's place.
    assert done.prefix_hit_rate is not None and done.prefix_hit_rate < 0.5
    specs = [r.spec() for r in here.ctx.store.runs("bench-a")]
    assert [s.via for s in specs] == ["standby"] and specs[0].predecessor == "a/1"
    kept = records.load_bench(here.dirs, done.id)
    assert kept.stats == done.stats and kept.samples == done.samples
    assert kept.results == done.results and kept.settings == done.settings
    assert here.live_runs("bench-a") == []


def test_the_command_prints_one_document_and_the_history_has_it(here: World, port: int) -> None:
    found = here.document("bench", "a", "--requests", "4", "--repeats", "1")
    assert found["throughput"]["output_tokens_per_s"] > 0
    assert found["throughput"]["total_tokens_per_s"] > found["throughput"]["output_tokens_per_s"]
    assert found["throughput"]["requests_per_s"] > 0 and found["seconds"] > 0 and found["summary"]
    for metric in ("ttft", "itl", "e2el"):
        assert {"p50", "p95", "p99"} <= set(found[metric])
    entries = here.document("history", "--unit", "a")["entries"]
    assert [e["kind"] for e in entries[:2]] == ["bench", "bench"]
    assert entries[-1]["kind"] == "start"
    assert entries[-1]["seconds"] > 0 and entries[-1]["outcome"] == "ready"
    (row,) = [u for u in here.document("ps")["units"] if u["unit"] == "bench-a"]
    assert row["kind"] == "bench" and row["phase"] == "exited" and row["cause"] is None


def test_a_sharegpt_file(here: World, port: int, tmp_path: Path) -> None:
    talk = [{"value": "What does an engine do all day long?"}, {"value": "It makes tokens, many."}]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([{"conversations": talk}] * 6))
    done = operation.bench(
        here.ctx, "a", {**QUICK, "path": str(path), "requests": 6, "output_len": 4}
    )
    assert done.settings.dataset == "sharegpt" and done.results[0].completed == 6
    assert done.results[0].output_tokens is not None and done.results[0].output_tokens <= 24


def test_recorded_requests(here: World, port: int, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    lines = [{"prompt": f"An engine, {n}", "output_tokens": 3 + n} for n in range(6)]
    path.write_text("\n".join(map(json.dumps, lines)))
    done = operation.bench(here.ctx, "a", {**QUICK, "path": str(path), "requests": 6})
    assert done.settings.dataset == "recorded" and done.results[0].completed == 6
    assert done.results[0].output_tokens == sum(range(3, 9)), "answers are as long as recorded"


def test_what_is_wrong_is_said_before_anything_runs(here: World, port: int) -> None:
    before = len(here.ctx.store.runs("bench-a"))
    with pytest.raises(Usage, match="do not fit in the engine's max_model_len 512"):
        operation.bench(here.ctx, "a", {"input_len": 1000})
    with pytest.raises(NotFound):
        operation.bench(here.ctx, "nothing")
    with operation.measuring(here.ctx, "a"), pytest.raises(Busy, match="being measured by test"):
        operation.bench(here.ctx, "a")
    with pytest.raises(Usage, match="did you mean max_num_seqs"):
        planning.plan(here.ctx, "a", ["max_num_seq=1,2"])
    assert len(here.ctx.store.runs("bench-a")) == before
    with pytest.raises(Failed, match=r"vllm bench serve failed: .*unrecognized arguments: --bogus"):
        operation.bench(here.ctx, "a", {**QUICK, "extra": {"bogus": 1}})
    assert serves(here, port, 8)


def test_a_bench_that_hangs_is_ended(here: World, port: int) -> None:
    """The benchmark process is frozen; the engine serves on."""
    frozen = threading.Event()

    def freeze(now: BenchProgress) -> None:
        if not frozen.is_set() and now.stage != "preparing":
            who = here.current("bench-a").identity()
            assert who is not None
            os.kill(who.leader.pid, signal.SIGSTOP)
            frozen.set()

    asked = {**QUICK, "requests": 200, "output_len": 64, "stall_s": 8.0}
    with pytest.raises(Failed, match="the bench hangs: no request and no token for 8 s"):
        operation.bench(here.ctx, "a", asked, told=freeze)
    assert frozen.is_set() and here.live_runs("bench-a") == []
    assert serves(here, port, 8)


def _processes_named(here: World, unit: str, name: str) -> list[procs.Proc]:
    import msgspec

    run = here.current(unit)
    members = procs.members(str(run.dir), msgspec.to_builtins(run.identity()))
    return [
        p for p in members if name in Path(f"/proc/{p.pid}/cmdline").read_bytes().decode("latin1")
    ]


def start_sweep(here: World, *words: str) -> Any:
    return here.command("sweep", "a", *words, "--json", wait=False)


def test_a_sweep_killed_in_the_middle_goes_on_where_it_was(here: World, port: int) -> None:
    """Three points, one of which vLLM refuses; SIGKILL while the second is measured."""
    process = start_sweep(
        here,
        "--set",
        "max_num_seqs=2,4,100000",
        "--goal",
        "throughput where e2el_p95<60s",
        "--keep",
        "best",
        "--repeats",
        "1",
        "--requests",
        "48",
    )
    id = "s1"

    def entries() -> list[journal.Entry]:
        return journal.read_entries(here.dirs, id)

    def benching() -> bool:
        state = journal.replay(entries())
        tried = [o.state for o in state.outcomes.values()]
        left = measure.leftover(here.ctx, "a")
        return sorted(tried) == ["done", "refused", "trying"] and left is not None

    until(lambda: benching() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # The bench ends too, which is for nobody now.
    until(lambda: measure.leftover(here.ctx, "a") is None)
    assert journal.state_of(here.dirs, id).state == "interrupted"
    before = rows.of_sweep(here.ctx, id)
    assert before.count("done") == 1 and before.count("refused") == 1
    first = next(row for row in before.rows if row.state == "done")

    done = here.document("sweep", "a", "--resume", id)
    assert done["state"] == "ended" and done["done"] == 2 and done["refused"] == 1
    points = {p["point"]["max_num_seqs"]: p for p in done["points"]}
    assert points[2]["bench"] == first.bench, "what was done is not done again"
    assert "max_num_seqs" in points[100000]["reason"]
    best = done["best"]["max_num_seqs"]
    assert best in (2, 4) and serves(here, port, best)
    assert here.live_runs("bench-a") == [] and len(here.live_runs("a")) == 1
    with history.opened(here.dirs) as book:
        assert len(book.find(Filter(kind="bench", words=(id,)))) >= 2


def test_a_stopped_sweep_puts_the_unit_back(here: World, port: int) -> None:
    profile = snapshots.require(here.current("a"))
    process = start_sweep(here, "--set", "max_num_seqs=3,5", "--requests", "400", "--repeats", "2")
    until(lambda: measure.leftover(here.ctx, "a") is not None or process.poll() is not None)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert json.loads(out)["state"] == "stopped" and json.loads(out)["left"] == 2
    assert serves(here, port, profile.args["max_num_seqs"])
    assert here.live_runs("bench-a") == []


def test_a_point_that_fails_does_not_end_the_sweep(here: World, port: int) -> None:
    """A KV cache too small for the model is found out by the engine only, after the check."""
    before = snapshots.require(here.current("a")).args["max_num_seqs"]
    made = planning.plan(
        here.ctx,
        "a",
        ["num_gpu_blocks_override=1,default"],
        "throughput where ttft_p50<0.001ms",
        options={**QUICK, "requests": 4},
    )
    said: list[str] = []
    made = sweep.start(here.ctx, made, said.append)
    found = rows.of_sweep(here.ctx, made.id)
    assert {row.point["num_gpu_blocks_override"]: row.state for row in found.rows} == {
        1: "failed",
        None: "done",
    }
    (failed,) = [row for row in found.rows if row.state == "failed"]
    assert "failed" in failed.reason and failed.bench is None
    assert found.best is None and "no point meets the goal" in found.sentence()
    assert any("no point met the goal" in text for text in said)
    assert serves(here, port, before)


def test_an_engine_that_dies_during_a_bench_is_the_cause(here: World, port: int) -> None:
    def kill(now: BenchProgress) -> None:
        if now.stage == "measuring" and now.done >= 1:
            for proc in _processes_named(here, "a", "EngineCore"):
                os.kill(proc.pid, signal.SIGKILL)

    asked = {**QUICK, "requests": 400, "output_len": 64}
    with pytest.raises(
        Failed, match=r"the engine a/\d+ ended during the bench: engine_core"
    ) as why:
        operation.bench(here.ctx, "a", asked, told=kill)
    assert "stoker why a" in str(why.value)
    assert here.live_runs("bench-a") == []
    assert liveness.look(here.current("a")).ended
    with history.opened(here.dirs) as book:
        newest = book.find(Filter(kind="bench", limit=1))[0]
    assert newest["outcome"] == "failed" and "ended during the bench" in newest["detail"]["problem"]
