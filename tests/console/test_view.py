"""Pure view state: nothing wraps, nothing from outside is markup, alarms are never hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.color import Color

from console.view import (
    bars,
    confirm,
    deck,
    events,
    forecast,
    help,
    kernels,
    layout,
    ledger,
    machine,
    profiles,
    queues,
    spans,
    table,
    units,
    waterfall,
    weights,
    why,
)
from console.view import numbers as n
from console.widgets.meanings import contrast, readable
from engine_ctl.model import (
    Alert,
    EngineLoad,
    GpuView,
    Holder,
    Kind,
    Phase,
    Progress,
    RankLoad,
    UnitView,
    Verdict,
)
from tests.console import answers, fakes

WIDTHS = (60, 80, 93, 120, 160, 200, 250)
NASTY = "\x1b[31mred[/nope] [bold]\x00\u202e日本語 " * 6


def texts(found: list[spans.Item]) -> list[str]:
    return [spans.plain(line) for item in found for line in item.lines]


def deck_lines(snapshot: fakes.Snapshot, cells: int) -> list[spans.Line]:
    columns = units.columns_for(snapshot.units, cells)
    lines = [machine.header(snapshot, cells), units.title(columns)]
    lines += machine.machine(snapshot, cells, 4)
    lines += machine.alerts(snapshot, cells)
    lines += [li for item in units.items(snapshot.units, columns, cells) for li in item.lines]
    lines += deck.event_strip(snapshot, None, cells, 5)
    for unit in snapshot.units:
        lines.append(deck.footer(unit, cells))
        lines.append(deck.log_title(unit, True, cells))
        lines.append(deck.hint_line(unit, cells) or ())
    return lines


@pytest.mark.parametrize("cells", WIDTHS)
def test_no_line_of_the_deck_is_wider_than_the_terminal(cells: int) -> None:
    for snapshot in (fakes.gpu_snapshot(), fakes.cpu_snapshot(), nasty_snapshot()):
        for line in deck_lines(snapshot, cells):
            assert spans.width(line) <= cells, spans.plain(line)


def nasty_snapshot() -> fakes.Snapshot:
    snapshot = fakes.gpu_snapshot()
    named = tuple(
        replace(u, unit=NASTY + u.unit, profile=NASTY, note=NASTY, hints=(NASTY,), drift=(NASTY,))
        for u in snapshot.units
    )
    happened = tuple(replace(e, text=NASTY, unit=NASTY, by=NASTY) for e in snapshot.events)
    alarms = (Alert(NASTY, "reap", pids=(1,)), Alert(NASTY), Alert(NASTY, "no-such-action"))
    return replace(
        snapshot, units=named, events=happened, alerts=alarms, problems=(NASTY,), runtimes=(NASTY,)
    )


@pytest.mark.parametrize("cells", (80, 120, 200))
def test_no_detail_line_is_wider_than_the_terminal(cells: int) -> None:
    snapshot = fakes.gpu_snapshot()
    chat, failed, fell = snapshot.units[0], snapshot.units[3], snapshot.units[2]
    found = [
        *help.items(chat, cells),
        *ledger.items(snapshot, cells),
        *queues.items(chat, cells),
        *kernels.items(answers.KERNELS, cells),
        *weights.items(answers.DAEMONS, "m8b/0", cells),
        *why.items(answers.CARD, failed, fakes.NOON, cells),
        *why.items(None, fell, fakes.NOON, cells),
        *waterfall.items(answers.STARTS, "chat-8b/17", fakes.NOON, cells),
        *events.items(fakes.events(), fakes.NOON, cells),
        *profiles.listing(answers.PROFILES, cells),
        spans.Item(None, tuple(profiles.detail(answers.detail("chat-throughput"), cells))),
        spans.Item(None, tuple(forecast.body(answers.FORECAST, cells))),
    ]
    for item in found:
        for line in item.lines:
            assert spans.width(line) <= cells, spans.plain(line)


def test_no_control_character_reaches_a_line() -> None:
    for line in deck_lines(nasty_snapshot(), 120):
        assert "\x1b" not in spans.plain(line) and "\x00" not in spans.plain(line)
        assert "\u202e" not in spans.plain(line)


def test_markup_is_kept_as_text() -> None:
    assert "[/nope]" in spans.plain(deck.log_line("[/nope] [bold]x", 40))


def test_escape_sequences_are_stripped_whole() -> None:
    assert spans.clean("a\x1b[38;5;3mb\x1b[0m\x1b]0;title\x07c\x1b(Bd\te") == "abcd    e"
    assert spans.clean("\x1b[1;31mERROR\x1b[0m x") == "ERROR x"
    assert spans.clean("\x1b]8;;http://a\x1b\\link") == "link"


def test_clip_counts_cells_not_characters() -> None:
    assert cell_len(spans.clip("日本語日本語", 7)) <= 7
    assert spans.clip("abc", 3) == "abc" and spans.clip("abcd", 3) == "ab…"


@pytest.mark.parametrize("cells", (60, 80, 120, 200))
def test_alarms_keep_their_key_at_any_width(cells: int) -> None:
    for line in machine.alerts(fakes.gpu_snapshot(), cells):
        assert "[o] reap" in spans.plain(line)


@pytest.mark.parametrize("height", range(16, 70, 3))
@pytest.mark.parametrize("alerts", (0, 3))
def test_rows_add_up_and_alarms_are_whole(height: int, alerts: int) -> None:
    rows = layout.share(height, 2, alerts, 40, 10, True)
    gap = layout.gap_rows(height)
    used = (
        4 + rows.machine + rows.alerts + 2 * gap + rows.units + rows.events + rows.hint + rows.log
    )
    assert rows.alerts == alerts
    assert used <= max(height, 16) or rows.log == 1
    assert rows.units >= 1


def test_columns_drop_by_priority_and_the_eighty_column_set_is_right() -> None:
    keys = [c.key for c in units.columns_for(fakes.gpu_units(), 80)]
    assert keys == ["unit", "profile", "phase", "weights", "running", "waiting", "kv", "tokens"]
    wide = [c.key for c in units.columns_for(fakes.gpu_units(), 200)]
    assert wide == [c.key for c in units.COLUMNS]


def test_columns_never_jump_with_the_values() -> None:
    before = units.columns_for(fakes.gpu_units(), 120)
    changed = tuple(replace(u, load=None, phase=Phase.LOADING) for u in fakes.gpu_units())
    assert units.columns_for(changed, 120) == before


def test_a_starting_row_says_where_it_is_and_how_long() -> None:
    code = fakes.gpu_units()[1]
    text = texts(units.items((code,), units.columns_for((code,), 120), 120))[0]
    assert "capturing 31/51" in text and "6.1 of ~10.2 s" in text and "▓" in text


def test_reasons_stand_beneath_a_row() -> None:
    draft, failed = fakes.gpu_units()[2:4]
    found = texts(units.items((draft, failed), units.columns_for((draft,), 120), 120))
    assert any("└ dtype: daemon bfloat16, engine float16" in text for text in found)
    assert any("CUDA graphs did not fit" in text for text in found)
    assert any("[y] why" in text for text in found)


def test_unknown_is_a_dash_never_a_zero() -> None:
    bare = UnitView("u", Kind.ENGINE, "p", Phase.READY)
    text = texts(units.items((bare,), units.columns_for((bare,), 120), 120))[0]
    assert "0" not in text and "–" in text
    gpu = GpuView(0, "GPU-x", "NVIDIA GB10", None, None, None)
    assert "N/A" in spans.plain(machine.gpu_line(gpu, 100))
    assert n.gib(None) == n.count(None) == n.seconds(None) == n.percent(None) == "–"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.05, "50 ms"),
        (12.44, "12.4 s"),
        (190, "3 m 10 s"),
        (7800, "2 h 10 m"),
        (99.96, "1 m 40 s"),
    ],
)
def test_durations(value: float, said: str) -> None:
    assert n.seconds(value) == said


def test_a_stacked_bar_is_exact_and_hides_no_part() -> None:
    parts = [
        bars.Part(140.0, "engine", ("engine 140.0", "E")),
        bars.Part(0.1, "orphan", ("orphan 0.1", "!")),
        bars.Part(0.2, "free", ("free 0.2", "F")),
    ]
    for cells in (12, 40, 100):
        bar = bars.stacked(parts, 140.3, cells)
        assert spans.width(bar) == cells
        assert {span.style for span in bar} >= {"bar-engine", "bar-orphan", "bar-free"}


def test_bars_differ_without_colour() -> None:
    bar = spans.plain(machine.gpu_line(fakes.gpus()[1], 160))
    assert ("!" in bar and "O 6" in bar) or "other" in bar
    assert "free 130.0" in bar


def test_the_fullest_gpus_are_shown_where_not_all_fit() -> None:
    base = fakes.gpus()[0]
    many = tuple(
        replace(base, index=i, used=i * fakes.GIB, free=(139 - i) * fakes.GIB, holders=())
        for i in range(16)
    )
    lines = machine.machine(replace(fakes.gpu_snapshot(), gpus=many), 120, 6)
    assert len(lines) == 6
    assert "GPU 15" in spans.plain(lines[4]) and "+ 11 GPUs" in spans.plain(lines[5])


def test_unified_memory_and_hidden_processes_do_not_break_the_bar() -> None:
    holders = (Holder(1, "engine", None, "u"), Holder(2, "other", None))
    line = machine.memory_bar(holders, 100 * fakes.GIB, 40 * fakes.GIB, 60 * fakes.GIB, 60)
    assert spans.width(line) == 60 and "in use 60.0" in spans.plain(line)


def test_sparklines_keep_peaks() -> None:
    assert bars.sparkline([0.0] * 99 + [9.0], 10)[-1] == "█"
    assert bars.sparkline([], 10) == "" and bars.sparkline([0.0, 0.0], 5) == "▁▁"


def test_a_table_row_is_as_wide_as_its_heading() -> None:
    columns = table.fit(units.COLUMNS, 140)
    assert spans.width(table.row(columns, {})) == spans.width(table.heading(columns))


def test_the_footer_offers_only_what_is_allowed() -> None:
    ready, stopped = fakes.gpu_units()[0], fakes.gpu_units()[4]
    assert "x stop" in spans.plain(deck.footer(ready, 120))
    assert "x stop" not in spans.plain(deck.footer(stopped, 120))
    assert "s start" in spans.plain(deck.footer(stopped, 120))
    for unit in fakes.gpu_units():
        assert spans.plain(deck.footer(unit, 80)).rstrip().endswith("q leave")


def test_the_best_start_is_marked_and_the_saving_said() -> None:
    found = texts(waterfall.items(answers.STARTS, "chat-8b/17", fakes.NOON, 120))
    assert sum("★" in text for text in found) == 1
    assert next(text for text in found if "★" in text).split()[1] == "15"
    assert any("saved 37.8 s against disk" in text for text in found)
    assert any("silent: import, spawn" in text for text in found)


def test_the_failure_card_says_what_to_do() -> None:
    found = texts(why.items(answers.CARD, fakes.gpu_units()[3], fakes.NOON, 120))
    whole = "\n".join(found)
    assert "failed while capturing, 18.2 s after its start" in whole
    assert "gpu_memory_utilization  0.95 → 0.93" in whole and "[a] apply" in whole


def test_a_refused_forecast_says_why() -> None:
    whole = "\n".join(spans.plain(line) for line in forecast.body(answers.REFUSED, 100))
    assert "✗ tensor_parallel_size 2 needs 2 GPUs" in whole and "accepts it" not in whole
    assert "tp_size: daemon 1, engine 2" in whole


def test_differing_fingerprint_fields_show_both_values() -> None:
    whole = "\n".join(texts(weights.items(answers.DAEMONS, "m8b/0", 120)))
    row = next(text for text in whole.split("\n") if text.strip().startswith("dtype"))
    assert "bfloat16" in row and "✗ float16" in row and "=" in row
    assert "socket missing" not in whole and "when it is ready" in whole, "it loads still"
    lost = (answers.DAEMONS[0], replace(answers.DAEMONS[1], phase=Phase.READY))
    assert "✗ socket missing" in "\n".join(texts(weights.items(lost, "m8b/0", 120)))


def test_verdicts_have_a_style_each() -> None:
    assert set(units.VERDICTS) == set(Verdict)


@pytest.mark.parametrize("ground", ["#121212", "#e0e0e0", "#fdf6e3", "#2e3440"])
@pytest.mark.parametrize("text", ["#ffa62b", "#4ebf71", "#ba3c5b", "#0178d4", "#808080"])
def test_every_colour_is_readable_on_every_ground(text: str, ground: str) -> None:
    before, under = Color.parse(text), Color.parse(ground)
    found = readable(before, under, 4.5)
    assert contrast(found, under) >= 4.5
    if contrast(before, under) >= 4.5:
        assert found == before


def test_contrast_is_that_of_wcag() -> None:
    black, white = Color.parse("#000000"), Color.parse("#ffffff")
    assert contrast(black, white) == pytest.approx(21.0)
    assert contrast(Color.parse("#767676"), white) == pytest.approx(4.54, abs=0.01)


def test_a_long_consequence_is_folded_under_its_beginning() -> None:
    whole = (spans.Span("⚠ ", "warn"), spans.Span("one two three four five", "warn"))
    assert [spans.plain(part) for part in spans.fold(whole, 12)] == [
        "⚠ one two",
        "  three four",
        "  five",
    ]
    assert spans.fold(whole, 40) == [whole]


def test_the_header_counts_units_by_state() -> None:
    wide = spans.plain(machine.header(fakes.gpu_snapshot(), 140))
    assert "4 ready" in wide and "1 starting" in wide and "1 failed" in wide
    small = spans.plain(machine.header(fakes.gpu_snapshot(), 80))
    assert "● 4" in small and "✗ 1" in small and len(small) == 80


def test_phases_lie_where_they_lay_in_the_start() -> None:
    found = texts(waterfall.items(answers.STARTS, "chat-8b/18", fakes.NOON, 120))
    bars = [text[text.index(" s  ", 35) + 3 :] for text in found if " at " in text]
    begins = [len(bar) - len(bar.lstrip()) for bar in bars]
    assert begins == sorted(begins) and begins[-1] > begins[0]
    assert max(bar.count("━") for bar in bars) == bars[5].count("━")


def test_a_profile_that_cannot_be_read_is_marked_on_the_deck() -> None:
    snapshot = fakes.gpu_snapshot()
    first = replace(
        snapshot.units[0], drift=("file",), profile_problem="/home/op/chat.yaml:3: no mapping"
    )
    columns = units.columns_for((first,), 140)
    found = texts(units.items((first,), columns, 140))
    assert f"{first.profile[:13]}…!" in found[0] or f"{first.profile}!" in found[0]
    assert any("its profile cannot be read: /home/op/chat.yaml:3: no mapping" in t for t in found)
    assert not any("changed on disk" in text for text in found)


@pytest.mark.parametrize("cells", [1, 3, 7, 40])
def test_a_history_with_gaps_is_drawn_with_gaps(cells: int) -> None:
    gap = float("nan")
    for values in ((gap,) * 20, (gap, 1.0, gap, 4.0, gap), (0.0, gap), tuple(range(30))):
        drawn = bars.sparkline(values, cells)
        assert len(drawn) == min(cells, len(values))
    assert bars.sparkline((gap, 1.0, gap, 4.0), 4) == " ▃ █"
    assert bars.sparkline((gap, 0.0), 2) == " ▁"
    assert bars.sparkline((float("inf"), 1.0, 2.0), 3) == "█▅█"
    assert bars.sparkline((float("inf"),), 1) == "▁"


def test_a_unit_whose_history_begins_unknown_is_a_row() -> None:
    load = replace(fakes.load(), history={"tokens_per_second": (float("nan"),) * 120})
    unit = replace(fakes.gpu_units()[0], load=load)
    columns = units.columns_for((unit,), 200)
    assert "trend" in [column.key for column in columns]
    assert all(spans.width(line) <= 200 for line in units.unit_lines(unit, columns, 199, True))
    assert queues.items(replace(unit, load=load), 200)


def test_an_engine_that_ended_maps_nothing() -> None:
    chat, *_, daemon, _ = fakes.gpu_units()
    for phase, told in ((Phase.READY, True), (Phase.EXITED, False), (None, False)):
        snapshot = replace(fakes.gpu_snapshot(), units=(replace(chat, phase=phase), daemon))
        whole = " ".join(spans.plain(x) for x in confirm.question("reload", daemon, snapshot))
        assert ("chat-8b keeps the old weights until it restarts" in whole) is told


def test_the_tail_has_a_line_for_the_route_list() -> None:
    head = "(APIServer pid=7) INFO 11-29 12:02:00 [launcher.py:46] "
    routes = [f"{head}Route: /v1/{name}, Methods: POST" for name in "abc"]
    found = [spans.plain(x) for x in deck.tail([head + "one", *routes, head + "two"], 80)]
    assert [text.split()[-1] for text in found] == ["one", "routes", "two"]
    assert "3 routes" in found[1] and "12:02:00" in found[0] and "launcher" not in found[0]


def test_names_that_differ_at_their_ends_stay_apart() -> None:
    names = [f"summarise-conversations-overnight-eu-west-3-{end}" for end in "ab"]
    for cells in (80, 120, 200):
        views = tuple(replace(fakes.gpu_units()[0], unit=name, profile=name) for name in names)
        columns = units.columns_for(views, cells)
        rows = [units.unit_lines(view, columns, cells, False)[0] for view in views]
        assert all(spans.width(row) <= cells for row in rows)
        assert len({spans.plain(row) for row in rows}) == 2
    assert spans.clip_middle("abcdefghijkl", 9) == "abcd…ijkl"
    assert spans.width((spans.Span(spans.clip_middle("日本語のとても長い名前です", 11)),)) <= 11
    assert machine.short_host("gpu-node-0123.cluster.example.internal") == "gpu-node-0123"
    assert machine.short_host("192.168.100.200.example.org") == "192.168.100.200.example.org"


def test_answers_that_are_alike_are_one_line() -> None:
    line = 'INFO:     127.0.0.1:{} - "POST /v1/{} HTTP/1.1" 200 OK'
    log = [line.format(n, "completions") for n in range(16)]
    log += [line.format(99, "tokenize"), "(EngineCore pid=7) INFO 11-29 12:00:00 [a.py:1] busy"]
    found = [spans.plain(each) for each in deck.tail(log, 100)]
    assert len(found) == 3
    assert found[0].endswith("200 OK  × 16") and "tokenize" in found[1] and "×" not in found[1]


def test_counts_agree_with_their_nouns() -> None:
    one = replace(fakes.gpu_units()[0], load=replace(fakes.load(), running=1, waiting=0))
    said = "\n".join(spans.plain(each) for each in confirm.question("stop", one, None))
    assert "1 request running and 0 waiting" in said
    assert "1 request of others runs" in spans.plain(confirm.question("bench", one, None)[2])
    assert spans.plain(confirm.reap(["x"], (1,))[0]) == "End 1 orphaned process?"
    assert spans.plain(confirm.reap(["x"], (1, 2))[0]) == "End 2 orphaned processes?"


def test_a_figure_in_a_bar_has_no_stroke_at_its_end() -> None:
    parts = [bars.Part(6, "other", ("other 6.2", "O 6")), bars.Part(94, "free", ("free",))]
    for cells in range(8, 120):
        text = spans.plain(bars.stacked(parts, 100, cells))
        assert "6/" not in text and "2/" not in text


def test_memory_that_is_not_known_is_nobody_s_claim() -> None:
    lost = replace(fakes.gpus()[0], holders=(), used=None, free=None, total=None)
    whole = "\n".join(texts(ledger.items(fakes.gpu_snapshot(gpus=(lost,)), 120)))
    assert "is not known" in whole and "nobody holds" not in whole
    heads = [t for t in texts(ledger.items(fakes.gpu_snapshot(), 120)) if t.strip()[:4] == "who "]
    assert len(heads) == 3 and len(set(heads)) == 1, "columns stand beneath each other"


def test_a_built_in_profile_of_a_taken_name_is_not_chosen() -> None:
    own, builtin = answers.PROFILES[0], replace(answers.PROFILES[0], builtin=True, problem="hidden")
    found = profiles.listing((own, builtin), 60)
    assert [item.key for item in found if item.key] == [own.name]
    assert "yours of that name counts" in "\n".join(texts(found))


def test_the_event_that_is_chosen_is_there_in_full() -> None:
    event = replace(fakes.events()[0], text="a long story " * 20 + "with an end")
    (_, item) = events.items((event,), fakes.NOON, 80)
    assert len(item.lines) == 1
    (_, item) = events.items((event,), fakes.NOON, 80, item.key)
    assert "with an end" in spans.plain(item.lines[-1])


def test_history_is_as_high_as_there_is_room() -> None:
    unit = fakes.gpu_units()[0]
    low = texts(queues.items(unit, 120))
    high = texts(queues.items(unit, 120, 50))
    assert len(low) < len(high) <= 50
    assert "most 12" in "\n".join(high) and "of 100 %" in "\n".join(high)
    rows = bars.tall_sparkline([0.0, 50.0, 100.0, float("nan")], 4, 2, 100.0)
    assert rows == ["  █ ", "▁██ "]
    assert bars.tall_sparkline([], 4, 2) == ["", ""]


@pytest.mark.parametrize("cells", (30, 40, 50, 70))
def test_a_forecast_is_read_whole_on_a_narrow_terminal(cells: int) -> None:
    lines = forecast.body(answers.FORECAST, cells)
    whole = " ".join(" ".join(spans.plain(each).split()) for each in lines)
    for told in ("accepts it, with 1 warning.", "22 of 22 fields agree)", "(10.0 s)."):
        assert told in whole
    if cells >= 40:
        assert all(spans.width(each) <= cells for each in lines)
        assert "first time only)" in whole


@pytest.mark.parametrize("cells", (60, 80, 120, 200))
def test_ranks_stand_beneath_each_other(cells: int) -> None:
    (one,) = fakes.load().ranks
    nan = float("nan")
    several = (
        replace(one, engine="0", waiting=1234567, kv_cache_usage=0.99),
        replace(one, engine="1", sleep_state="level 1", percentiles={}, tokens_per_second=nan),
        replace(one, engine="2", over=("ttft.p95",), under={"queue.p95": 0.3}),
    )
    unit = replace(fakes.gpu_units()[0], load=replace(fakes.load(), ranks=several, waiting=99))
    told = texts(queues.items(unit, cells, 40))
    at = next(index for index, text in enumerate(told) if text.startswith(" rank  "))
    rows = [text.split() for text in told[at : at + 5]]
    assert [row[0] for row in rows] == ["rank", "0", "1", "2", "all"]
    assert rows[0][1:5] == ["run", "wait", "kv%", "tok/s"]
    assert (
        rows[1][1:4] == ["12", "1.2M", "99"] and rows[2][1] == "z" and rows[4][1:3] == ["12", "99"]
    )
    assert cells < 80 or "> 431 ms" in told[at + 3]
    assert cells < 120 or "< 300 ms" in told[at + 3]
    means = replace(one, means={"ttft": 0.2, "queue": 0.002}, under={"queue.p50": 0.3})
    alone = replace(unit, load=replace(fakes.load(), ranks=(means,)))
    (row,) = [text for text in texts(queues.items(alone, cells, 40)) if "in the queue" in text]
    assert row.split()[3:6] == ["2", "ms", "<"] and "< 300 ms" in row
    assert all(cell_len(text) <= cells for text in told[at : at + 5])
    # The figures of each are there whole, beneath.
    assert sum(text.startswith(" rank ") for text in told) == 4
    alone = texts(queues.items(fakes.gpu_units()[0], cells, 40))
    assert not any(text.startswith(" rank ") for text in alone)


def test_what_is_wrong_with_stoker_itself_is_read_whole() -> None:
    problem = "the state directory cannot be read: " + "/very/long" * 6 + ": Permission denied"
    lines = [spans.plain(x) for x in machine.alerts(fakes.gpu_snapshot(problems=(problem,)), 60)]
    assert "denied" in " ".join(lines) and all(cell_len(text) <= 60 for text in lines)


def test_an_engine_whose_health_fails_is_not_shown_as_ready() -> None:
    first, *rest = fakes.gpu_units()
    note = "/health fails: the engine core is likely dead"
    sick = replace(first, load=replace(fakes.load(), healthy=False), note=note)
    columns = units.columns_for((sick,), 120)
    (item,) = units.items((sick,), columns, 120)
    row, told = (spans.plain(line) for line in item.lines)
    assert "⚠ chat-8b" in row and "unhealthy" in row and "ready" not in row and note in told
    assert item.lines[1][1].style == "error"
    header = spans.plain(machine.header(fakes.gpu_snapshot(units=(sick, *rest)), 140))
    assert "3 ready" in header and "1 unhealthy" in header


def test_a_bench_is_a_row_until_it_is_over() -> None:
    def listed(phase: Phase | None) -> list[str]:
        bench = UnitView("bench-chat", Kind.BENCH, "chat", phase)
        return [unit.unit for unit in units.ordered((bench, *fakes.gpu_units()))]

    assert "bench-chat" not in listed(Phase.EXITED) and "bench-chat" not in listed(None)
    assert "bench-chat" in listed(Phase.READY) and "bench-chat" in listed(Phase.FAILED)


def test_what_to_do_about_a_failure_is_on_the_deck_whole() -> None:
    failed = fakes.gpu_units()[3]
    for cells in (80, 120):
        columns = units.columns_for((failed,), cells)
        _, *told = texts(units.items((failed,), columns, cells - 1))
        assert "lower gpu_memory_utilization 0.95 → 0.93" in " ".join(" ".join(told).split())
        assert sum("└" in text for text in told) == 1 and len(told) == (2 if cells == 80 else 1)


def test_a_table_without_room_loses_columns_not_letters() -> None:
    busy = fakes.gpu_units()
    for cells in range(24, 66):
        columns = units.columns_for(busy, cells)
        assert sum(c.cells + 1 for c in columns) - 1 <= max(cells - 5, 12)
        for text in texts(units.items(busy, columns, cells, details=False)):
            assert cell_len(text) <= max(cells, 18), text


def test_a_narrow_column_stays_where_a_wide_one_had_to_go() -> None:
    long = (replace(fakes.gpu_units()[0], unit="standby-aba267c578"),)
    keys = [column.key for column in units.columns_for(long, 100)]
    assert "port" in keys and "up" not in keys and "start" not in keys
    for cells in range(60, 220):
        kept = units.columns_for(long, cells)
        names = {column.key for column in kept}
        assert [c.key for c in kept] == [c.key for c in units.COLUMNS if c.key in names]
        assert sum(c.cells + 1 for c in kept) - 1 <= cells - 5


def test_a_history_that_is_short_ends_at_now() -> None:
    load = replace(fakes.load(), history={"running": (3.0,) * 60, "ttft_p95": (6.944,)})
    told = texts(queues.items(replace(fakes.gpu_units()[0], load=load), 120))
    bar = next(text for text in told if text.startswith("   running")).rstrip()
    drawn = bar[36:]
    assert drawn.endswith("█") and drawn.startswith(" ")
    assert drawn.count("█") == pytest.approx(len(drawn) / 2, abs=1), "half of two minutes"
    assert any("first token p95" in text and "6.9 s" in text for text in told)


def test_a_figure_is_never_cut_to_a_smaller_one() -> None:
    said = {5: "5", 1024: "1024", 123456: "123k", 999999: "1.0M", 1234567: "1.2M"}
    assert {value: n.counted_in(value, 4) for value in said} == said
    assert n.counted_in(123456, 7) == "123 456" and n.counted_in(None, 4) == "–"
    assert all(len(n.counted_in(10**digits + 1, 4)) <= 4 for digits in range(15))
    many = replace(fakes.load(), running=1024, waiting=123456, tokens_per_second=1234567.0)
    busy = replace(fakes.gpu_units()[0], load=many)
    for cells in (60, 80, 120, 200):
        columns = units.columns_for((busy,), cells)
        (row,) = texts(units.items((busy,), columns, cells))
        assert "123k" in row and "…" not in row.split("mapped")[1], row


def test_a_count_that_does_not_fit_is_a_share() -> None:
    loading = replace(
        fakes.gpu_units()[1], phase=Phase.LOADING, progress=Progress("shards", 12, 163)
    )
    assert units.phase_words(loading, 14).text == "loading 12/163"
    assert units.phase_words(loading, 13).text == "loading 7 %"


def test_many_gpus_are_a_range() -> None:
    assert n.ranges((0, 1, 2, 3, 6)) == "0-3,6" and n.ranges((2, 3)) == "2,3"
    for gpus, said in (((*range(8),), " 0-7 "), ((0, 2, 4, 6), " × 4 "), ((), " – ")):
        unit = replace(fakes.gpu_units()[0], gpus=gpus)
        columns = units.columns_for((unit,), 200)
        assert said in texts(units.items((unit,), columns, 200))[0]


def test_a_figure_stays_with_its_unit() -> None:
    assert spans.wrap("others 0.0, free 0.4 GiB", 22) == ["others 0.0, free", "0.4 GiB"]
    assert spans.wrap("up to 3 m 10 s or 3 412 tok/s", 12) == [
        "up to",
        "3 m 10 s or",
        "3 412 tok/s",
    ]
    assert spans.wrap("a\u00a0b c", 4) == ["a b", "c"]
    assert spans.wrap("3 412 tok/s", 5) == ["3 412", "tok/s"], "a narrow line parts it all the same"
    told = texts(queues.items(fakes.gpu_units()[0], 80))
    assert any("finished by stop 4 012" in text for text in told)


def test_a_unit_that_is_being_started_says_so() -> None:
    waits = UnitView("x", Kind.ENGINE, "p", note="importing vLLM once, in a standby", doing=True)
    columns = units.columns_for((waits,), 120)
    (row,) = texts(units.items((waits,), columns, 120))
    assert "◐ x" in row and "preparing" in row and "importing vLLM" in row and "stopped" not in row
    failed = replace(fakes.gpu_units()[3], doing=True, note="preparing the start")
    whole = texts(units.items((failed,), columns, 120))
    assert len(whole) == 1 and "failed" not in whole[0]


def test_an_uptime_does_not_tick() -> None:
    said = {None: "–", 12.5: "12 s", 60: "1 m", 3599: "59 m", 7811: "2 h 10 m"}
    assert {value: n.uptime(value) for value in said} == said


def test_an_empty_log_says_why() -> None:
    never, runs = UnitView("x", Kind.ENGINE, "p"), UnitView("x", Kind.ENGINE, "p", run="x/1")
    assert "s starts it" in spans.plain(deck.no_tail(never)[0])
    assert "Nothing written yet" in spans.plain(deck.no_tail(runs)[0])
    assert deck.no_tail(replace(never, doing=True)) == []


@pytest.mark.parametrize("cells", (80, 120))
def test_the_first_key_of_a_newcomer_is_in_the_footer(cells: int) -> None:
    assert "n new" in spans.plain(deck.footer(None, cells))


def test_other_holders_are_named_by_their_command() -> None:
    whole = "\n".join(texts(ledger.items(fakes.gpu_snapshot(), 120)))
    assert "python train.py" in whole and "kv 98.1" in whole


def test_where_the_time_of_a_request_goes_and_what_drafting_gives() -> None:
    extra: dict[str, float | str] = {"prefill_mean_s": 0.41, "decode_mean_s": 6.2}
    extra |= {"tokens_per_step": 512.3, "spec_acceptance": 0.613}
    extra |= {f"spec_acceptance_at_{place}": share for place, share in enumerate((0.82, 0.4))}
    extra |= {"kv_transfer_failures": 3.0, "kv_transfer_bytes_per_second": 1.5 * 2**30}
    load = EngineLoad(0.0, ranks=(RankLoad("0", extra=extra),))
    unit = UnitView("u", Kind.ENGINE, "p", phase=Phase.READY, load=load)
    said = " ".join(texts(queues.items(unit, 200))).replace("\u00a0", " ")
    assert "prefill, mean 410 ms · decode, mean 6.2 s · tokens a step 512 ·" in said
    assert "speculation accepted 61.3 % (82 40 by position)" in said
    assert "KV from and to engines 1.5 GiB/s · failed KV transfers 3" in said
