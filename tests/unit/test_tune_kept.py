"""What is kept: journals, benches, the history, and what reports make of them."""

from __future__ import annotations

import html.parser
import os
import re
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.model import Kind
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.tune import history, journal, keeping, outcomes, records, rows
from engine_ctl.tune.goal import parse_goal
from engine_ctl.tune.history import Filter
from engine_ctl.tune.journal import Entry, SweepRecord, SweepState, replay
from engine_ctl.tune.operation import document, repeating_env, shown_profile, summary
from engine_ctl.tune.records import BenchRecord, StartSummary, statistics
from engine_ctl.tune.report import html as page
from engine_ctl.tune.report import markdown
from engine_ctl.tune.results import BenchResult
from engine_ctl.tune.settings import BenchSettings
from engine_ctl.tune.shapes import Dot, frontier, parameters, pareto
from engine_ctl.tune.svg import ticks
from profiles.model import EnvRef, Profile
from tests.standin.observed import Written


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    return Context(Dirs.from_env(env), by="test")


def result(rate: float, ttft: float) -> BenchResult:
    return BenchResult(
        seconds=1.0,
        completed=8,
        failed=0,
        output_tokens_per_s=rate,
        total_tokens_per_s=2 * rate,
        requests_per_s=rate / 10,
        latency_ms={"ttft": {"p50": ttft / 2, "p95": ttft}},
    )


def bench(ctx: Context, rates: list[float], ttft: float = 100.0, **changes: Any) -> BenchRecord:
    id, _ = records.allocate(ctx.dirs, "b")
    results = [result(rate, ttft) for rate in rates]
    record = BenchRecord(
        id=id,
        unit="chat",
        at=1000.0 + int(id[1:]),
        profile_name="p",
        profile={"model": "/m", "args": {"max_num_seqs": 64}},
        runtime={"name": "r", "version": "0.32.0", "platform": "cpu"},
        engine_run="chat/1",
        serve_command=["vllm", "serve", "/m", "--max-num-seqs", "64"],
        command=["vllm", "bench", "serve"],
        start=StartSummary(start_s=9.0),
        results=results,
        stats=statistics(results),
    )
    record = msgspec.structs.replace(record, **changes)
    records.save_bench(ctx.dirs, record)
    return record


def sweep(ctx: Context, points: list[dict[str, Any]], goal: str = "throughput") -> SweepRecord:
    made = SweepRecord(
        id="",
        unit="chat",
        at=1.0,
        goal=goal,
        axes={name: [] for name in points[0]},
        points=points,
        order=list(range(len(points))),
        base=Profile(name="p", model="/m", args={"max_num_seqs": 64}),
    )
    return journal.create(ctx.dirs, made)


def test_numbers_are_taken_once_and_ids_checked(ctx: Context) -> None:
    assert [records.allocate(ctx.dirs, "b")[0] for _ in range(3)] == ["b1", "b2", "b3"]
    assert records.ids(ctx.dirs, "b") == ["b1", "b2", "b3"]
    for bad in ("b0", "b", "x1", "../b1", "b1/..", "b01"):
        with pytest.raises(Usage):
            records.directory(ctx.dirs, bad)
    with pytest.raises(NotFound):
        records.load_bench(ctx.dirs, "b1")


def test_a_journal_replays_to_the_state_it_describes() -> None:
    state = replay(
        [
            Entry(at=0, what="begun"),
            Entry(at=1, what="refused", point=2, reason="no"),
            Entry(at=2, what="trying", point=0),
            Entry(at=3, what="done", point=0, bench="b1", wall_s=5.0),
            Entry(at=4, what="trying", point=1),
        ]
    )
    assert state.state == "interrupted"
    assert state.settled(0) and state.settled(2) and not state.settled(1)
    assert not state.settled(3) and not state.settled(0, rung=1)
    assert state.of(0).bench == "b1"  # type: ignore[union-attr]
    assert replay([Entry(at=0, what="begun"), Entry(at=1, what="stopped")]).state == "stopped"
    again = replay([Entry(at=0, what="stopped"), Entry(at=1, what="resumed")])
    assert again.state == "interrupted"


def test_a_cut_line_is_not_written_and_spoils_none(ctx: Context) -> None:
    made = sweep(ctx, [{"max_num_seqs": 1}])
    with journal.writing(ctx.dirs, made.id) as book:
        book.note("begun")
    path = records.directory(ctx.dirs, made.id) / "journal.jsonl"
    with path.open("ab") as file:
        file.write(b'{"at": 1, "what": "do')
    with journal.writing(ctx.dirs, made.id) as book:
        book.note("resumed")
        assert journal.state_of(ctx.dirs, made.id).state == "running"
        with pytest.raises(Busy), journal.writing(ctx.dirs, made.id):
            pass
    assert [e.what for e in journal.read_entries(ctx.dirs, made.id)] == ["begun", "resumed"]
    assert journal.state_of(ctx.dirs, made.id).state == "interrupted"
    assert journal.newest(ctx.dirs, "chat") == made.id and journal.newest(ctx.dirs, "x") is None


def test_a_full_disk_is_said(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sweep(ctx, [{"max_num_seqs": 1}])

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with journal.writing(ctx.dirs, made.id) as book:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(Failed, match="No space left"):
            book.note("begun")
        assert book.entries == []
    monkeypatch.undo()
    monkeypatch.setattr("engine_ctl.atomic.write_record", full)
    with pytest.raises(Failed, match="No space left"):
        bench(ctx, [1.0])


# History


def test_history_finds_by_every_filter(ctx: Context) -> None:
    with history.opened(ctx.dirs) as book:
        book.add_bench(bench(ctx, [100.0, 110.0, 105.0]))
        book.add_bench(bench(ctx, [50.0], unit="other", profile_name="q", sweep="s1"))
        book.add_bench(bench(ctx, [], problem="the engine died 100%_x", failed=True))
        assert [e["id"] for e in book.find(Filter())] == ["b3", "b2", "b1"]
        assert [e["id"] for e in book.find(Filter(unit="other"))] == ["b2"]
        assert [e["id"] for e in book.find(Filter(profile="p", limit=1))] == ["b3"]
        assert [e["id"] for e in book.find(Filter(since=1002.5))] == ["b3"]
        assert [e["id"] for e in book.find(Filter(words=("died", "ENGINE")))] == ["b3"]
        assert [e["id"] for e in book.find(Filter(words=("100%_x",)))] == ["b3"]
        assert book.find(Filter(words=("100%_y",))) == []
        assert book.find(Filter(kind="start")) == []
        (entry,) = book.find(Filter(words=("s1",)))
        assert entry["throughput"] == 50.0 and entry["detail"]["args"] == {"max_num_seqs": 64}
        (failed,) = book.find(Filter(words=("b3",)))
        assert failed["outcome"] == "failed" and failed["throughput"] is None


@pytest.mark.parametrize("damage", [b"not a database at all" * 50, None])
def test_a_damaged_history_is_moved_aside_and_made_again(
    ctx: Context, damage: bytes | None
) -> None:
    with history.opened(ctx.dirs) as book:
        for rate in range(40):
            book.add_bench(bench(ctx, [float(rate)]))
    path = ctx.dirs.state / "history.sqlite"
    if damage is None:
        data = bytearray(path.read_bytes())
        data[4096 : 4096 * 3] = os.urandom(4096 * 2)
        path.write_bytes(data)
    else:
        path.write_bytes(damage)
    said: list[str] = []
    with history.opened(ctx.dirs, said.append) as book:
        assert len(book.find(Filter())) == 40
    assert len(said) == 1 and "damaged" in said[0]
    assert list(ctx.dirs.state.glob("history.sqlite.damaged-*"))


def test_a_history_that_somebody_holds_or_that_has_no_room_is_not_damaged(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    with history.opened(ctx.dirs) as book:
        book.add_bench(bench(ctx, [1.0]))
    path = ctx.dirs.state / "history.sqlite"
    monkeypatch.setattr(history, "BUSY_S", 0.0)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Failed, match="database is locked"), history.opened(ctx.dirs):
        pass
    connection.close()
    no_room = sqlite3.OperationalError("unable to open database file")
    no_room.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    with monkeypatch.context() as patch:
        patch.setattr(history, "_open", Mock(side_effect=no_room))
        with pytest.raises(Failed, match="cannot be opened"), history.opened(ctx.dirs):
            pass
    assert not list(ctx.dirs.state.glob("history.sqlite.damaged-*"))
    with history.opened(ctx.dirs) as book:
        assert len(book.find(Filter())) == 1


def test_a_newer_schema_is_left_alone(ctx: Context) -> None:
    with history.opened(ctx.dirs):
        pass
    path = ctx.dirs.state / "history.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Failed, match="newer Stoker"), history.opened(ctx.dirs):
        pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_secret_is_kept(ctx: Context) -> None:
    profile = Profile(
        name="p",
        model="/m",
        args={"api_key": "sesame-1"},
        env={"HF_TOKEN": "sesame-2", "PLAIN": "1", "K": EnvRef(from_env="MY_KEY")},
    )
    shown = shown_profile(profile)
    assert "sesame" not in str(shown) and shown["env"]["PLAIN"] == "1"
    assert shown["env"]["K"] == "from env MY_KEY"
    ctx.store.create("chat", Kind.ENGINE, "p", "test")
    argv = ["vllm", "serve", "/m", "--api-key", "sesame-3"]
    ctx.store.new_run(RunSpec(unit="chat", kind=Kind.ENGINE, argv=argv, display_argv=argv))
    with history.opened(ctx.dirs) as book:
        book.add_starts(ctx.store)
        (entry,) = book.find(Filter(kind="start"))
    assert entry["outcome"] == "lost" and "sesame" not in str(entry)
    assert entry["detail"]["command"][:3] == ["vllm", "serve", "/m"]


def test_a_start_enters_with_what_ended_it_though_its_facts_are_older(tmp_path: Path) -> None:
    written = Written(tmp_path)
    try:
        written.unit("chat")
        run = written.run("chat")
        written.log(run, b"")
        written.ready(run, 9.5)
        assert run_facts.refresh(run.dir) is not None
        written.exit(run, code=-9, requested=False)
        with history.opened(written.dirs) as book:
            book.add_starts(written.store)
            (entry,) = book.find(Filter(kind="start"))
        assert entry["outcome"] == "ready" and entry["detail"]["cause"]["category"]
    finally:
        written.close()


# Comparing


def tuned(ctx: Context, goal: str = "throughput where ttft_p95<500ms") -> rows.Comparison:
    made = sweep(ctx, [{"max_num_seqs": n} for n in (32, 64, 128, 256, 512)], goal)
    figures = {0: ([100.0, 102.0], 200.0), 1: ([103.0, 101.0], 300.0), 2: ([150.0], 600.0)}
    with journal.writing(ctx.dirs, made.id) as book:
        book.note("begun")
        for index, (rates, ttft) in figures.items():
            done = bench(ctx, rates, ttft, sweep=made.id)
            book.note("done", point=index, bench=done.id, wall_s=10.0, vllm_s=9.9)
        book.note("refused", point=3, reason="vLLM refuses it: <b>too many</b>")
        book.note("failed", point=4, reason="out of memory | really")
        book.note("ended", reason="best")
    return rows.of_sweep(ctx, made.id)


def test_the_best_point_meets_the_goal_and_noise_is_named(ctx: Context) -> None:
    found = tuned(ctx)
    assert [row.state for row in found.rows] == ["done", "done", "done", "refused", "failed"]
    best = found.best
    assert best is not None and best.point == {"max_num_seqs": 64}
    assert found.rows[0].noise is True and found.rows[2].missed == ("ttft_p95",)
    assert "within noise of it: max_num_seqs 32" in found.sentence()
    assert found.own_share == pytest.approx(0.01)
    said = rows.document(found)
    assert said["best"] == {"max_num_seqs": 64} and said["refused"] == 1 and said["failed"] == 1
    assert said["points"][2]["figures"]["start_s"] == 9.0


def test_a_goal_that_nothing_meets_is_said_with_the_nearest(ctx: Context) -> None:
    found = tuned(ctx, "throughput where ttft_p95<50ms")
    assert found.best is None
    assert found.sentence().startswith("no point meets the goal throughput where ttft_p95 < 50 ms")
    assert "nearest: max_num_seqs" in found.sentence()
    with pytest.raises(NotFound, match="no point meets"):
        keeping.save_best(ctx, found, "x")


def test_the_best_point_becomes_a_profile_that_extends_the_tuned_one(ctx: Context) -> None:
    ctx.dirs.profiles.mkdir(parents=True)
    (ctx.dirs.profiles / "p.yaml").write_text("model: /m\nargs: {max_num_seqs: 64, seed: 3}\n")
    found = tuned(ctx)
    path = Path(keeping.save_best(ctx, found, "fast"))
    saved = ctx.profiles.load("fast").profile
    assert saved.args == {"max_num_seqs": 64, "seed": 3} and "extends: p" in path.read_text()
    with pytest.raises(Usage, match="already"):
        keeping.save_best(ctx, found, "fast")
    keeping.save_best(ctx, found, "fast", force=True)
    with pytest.raises(Usage, match="was tuned"):
        keeping.save_best(ctx, found, "p", force=True)


def test_benches_side_by_side(ctx: Context) -> None:
    one = bench(ctx, [100.0, 101.0])
    other = bench(ctx, [200.0, 202.0], profile={"args": {"max_num_seqs": 128}})
    found = rows.compare(ctx, [one.id, other.id])
    assert found.axes == ("max_num_seqs",) and found.best is not None
    assert found.best.bench == other.id and found.rows[0].noise is False
    with pytest.raises(NotFound):
        rows.compare(ctx, ["b99"])
    with pytest.raises(Usage):
        rows.compare(ctx, [])


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_escapes_what_comes_from_outside(ctx: Context) -> None:
    text = page(tuned(ctx), {"model": "<script>alert(1)</script>"}, at=0.0)
    assert not re.search(r"(?:\bsrc=|\bhref=|url\(|@import|https?:)", text)
    read = _Page()
    read.feed(text)
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags and "b" not in tags and tags.count("svg") == 2
    assert "<script>alert(1)</script>" in read.text and "<b>too many</b>" in read.text
    assert "vllm serve /m --max-num-seqs 64" in read.text
    assert "prefers-color-scheme: dark" in text
    circles = [attrs for tag, attrs in read.tags if tag == "circle"]
    assert sum(a["class"] == "best" for a in circles) == 2


def test_the_markdown_report(ctx: Context, tmp_path: Path) -> None:
    found = tuned(ctx)
    text = markdown(found, {})
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({re.sub(r"\\\|", "", line).count("|") for line in table}) == 1
    assert "out of memory \\| really" in text and "600 ✗" in text
    keeping.write_report(ctx, found, tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith("# sweep s1 of chat")
    with pytest.raises(Usage, match=r"\.html or a \.md"):
        keeping.write_report(ctx, found, tmp_path / "r.pdf")
    with pytest.raises(Failed, match="cannot write"):
        keeping.write_report(ctx, found, tmp_path / "none" / "r.md")


def test_the_frontier_and_the_lines(ctx: Context) -> None:
    dots = [Dot(1, 1, 0), Dot(2, 3, 1), Dot(2, 2, 2), Dot(3, 3, 3), Dot(4, 9, 4)]
    assert [d.row for d in frontier(dots)] == [0, 1, 4]
    found = tuned(ctx)
    chart = pareto(found)
    assert chart is not None and chart.title == "throughput against ttft_p95"
    (line,) = parameters(found)
    assert [x for x, _ in line.line] == [32.0, 64.0, 128.0]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 9861), (3, 3), (-5, 5), (0.001, 0.002)])
def test_ticks_cover_the_values(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 12
    assert found == sorted(set(found))


def test_what_scripts_get_of_a_bench(ctx: Context) -> None:
    record = bench(ctx, [100.0, 110.0, 105.0], seconds=12.5)
    found = document(record)
    assert found["throughput"]["output_tokens_per_s"] == 105.0
    assert found["throughput"]["total_tokens_per_s"] == 210.0
    assert found["ttft"]["p95"] == 100.0 and found["seconds"] == 12.5
    assert summary(record) == "105 tok/s ±5%, ttft p95 100 ms" == found["summary"]
    assert parse_goal("throughput").meets(record.stats)


def test_a_command_to_repeat_has_the_environment_but_no_secret() -> None:
    env: dict[str, str | EnvRef] = {
        "VLLM_USE_X": "1 2",
        "HF_TOKEN": "hf_secret",
        "OTHER": EnvRef(from_env="OTHER"),
    }
    profile = Profile(name="p", model="/m", gpus=[1], env=env)
    words = repeating_env(profile)
    assert words[0] == "env" and "VLLM_USE_X=1 2" in words and "CUDA_VISIBLE_DEVICES=1" in words
    assert not any("TOKEN" in word or "OTHER" in word for word in words)
    assert repeating_env(Profile(name="p", model="/m")) == [] == repeating_env(None)


def test_a_limit_is_drawn_where_it_is_near(ctx: Context) -> None:
    benches = [bench(ctx, [100.0], 100.0).id, bench(ctx, [200.0], 400.0).id]
    for limit, drawn in ((500, 500.0), (50, 50.0), (5000, None)):
        chart = pareto(rows.compare(ctx, benches, f"throughput where ttft_p95<{limit}ms"))
        assert chart is not None and chart.limit == drawn


def test_the_time_of_a_sweep_is_forecast_by_earlier_ones(ctx: Context) -> None:
    made = sweep(ctx, [{"max_num_seqs": 1}, {"max_num_seqs": 2}])
    nothing = outcomes.forecast_of(ctx, made, SweepState())
    assert nothing.seconds is None and nothing.restarts == 3
    earlier = sweep(ctx, [{"max_num_seqs": 8}])
    with journal.writing(ctx.dirs, earlier.id) as book:
        book.note("done", point=0, swap_s=4.0, wall_s=9.0, vllm_s=8.0)
    asked = BenchSettings(requests=32, repeats=3)
    bench(ctx, [100.0], seconds=10.0, settings=asked)
    # Two points of twice the requests, and three restarts.
    assert outcomes.forecast_of(ctx, made, SweepState()).seconds == 3 * 4.0 + 2 * 20.0


def test_stokers_share_is_that_of_all_steps() -> None:
    state = replay(
        [
            Entry(at=0, what="begun"),
            Entry(at=1, what="checked", wall_s=2.0, vllm_s=1.5),
            Entry(at=2, what="failed", point=1, wall_s=9.0),
            Entry(at=3, what="done", point=0, bench="b1", wall_s=20.0, vllm_s=19.5),
            Entry(at=4, what="ended", wall_s=3.0, vllm_s=2.5),
        ]
    )
    assert (state.wall_s, state.vllm_s) == (25.0, 23.5)
