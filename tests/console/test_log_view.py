"""The log view with Pilot: following, keeping the place, searching, choosing, folding, copying."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import StokerApp
from console.screens.form import FormScreen
from console.screens.log import LogScreen
from console.view.log import Row, row_line
from console.view.spans import plain
from console.widgets.filter import FilterInput, open_filter
from console.widgets.log_view import MOST_COPIED, LogLines
from console.widgets.log_view_search import LogSearch
from engine_ctl.logs import view_remote
from engine_ctl.logs.search import Query
from tests.console import answers, fakes
from tests.console.test_deck import painted

CPU = Path(__file__).parents[1] / "data" / "recordings" / "cpu-vllm-0.32.0"
Until = Callable[[Any, Callable[[], object]], Awaitable[None]]


def app_with(*logs: Path, theme: str = "textual-dark") -> StokerApp:
    units = list(fakes.gpu_units())
    for at, log in enumerate(logs):
        units[at] = replace(units[at], log=str(log))
    snapshot = replace(fakes.gpu_snapshot(), units=tuple(units))
    return StokerApp(answers.ops(), fakes.Feed(snapshot), theme=theme)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are kept."""
    place = tmp_path / "state"
    place.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    return place


class View:
    """A log screen that is open."""

    def __init__(self, app: StokerApp, pilot: Pilot[Any], until: Until) -> None:
        self.app = app
        self.pilot = pilot
        self.until = until

    @property
    def screen(self) -> LogScreen:
        assert isinstance(self.app.shown_screen, LogScreen)
        return self.app.shown_screen

    @property
    def lines(self) -> LogLines:
        return self.screen.body

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.settle()

    async def settle(self) -> None:
        def done() -> bool:
            state = self.screen.state
            hits = state.hits if state is not None else None
            return (
                state is not None
                and state.rows.complete
                and (hits is None or hits.complete)
                and self.lines._generation == state.generation
                and all(worker.is_finished for worker in self.app.workers)
            )

        await self.until(self.pilot, done)
        self.lines.sync()
        await self.pilot.pause()

    def seen(self) -> list[str]:
        """What stands on the screen, line by line."""
        height = self.lines.size.height
        return [self.lines.render_line(y).text.rstrip() for y in range(height)]

    @property
    def under_cursor(self) -> str:
        return self.seen()[self.lines.cursor - self.lines.top]

    def title(self, id: str) -> str:
        return "\n".join(self.screen.lines(id).text)


@asynccontextmanager
async def opened(until: Until, *logs: Path, size: tuple[int, int] = (120, 35)) -> Any:
    app = app_with(*logs)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.selected_unit)
        await pilot.press("l")
        view = View(app, pilot, until)
        await until(pilot, lambda: isinstance(app.shown_screen, LogScreen))
        await view.settle()
        yield view


def numbered(first: int, stop: int) -> bytes:
    head = b"(EngineCore pid=7) INFO 11-29 14:02:05 [core.py:10] "
    return b"".join(head + b"line %d\n" % n for n in range(first, stop))


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(numbered(0, 500))
    return path


async def test_the_end_is_followed_until_the_reader_goes_up(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        assert view.seen()[-1].endswith("line 499")
        with growing.open("ab") as out:
            out.write(numbered(500, 600))
        await until(view.pilot, lambda: view.seen()[-1].endswith("line 599"))
        await view.press("pageup")
        before = view.seen()
        assert "‖" in view.title("log-title")
        with growing.open("ab") as out:
            out.write(numbered(600, 900))
        await until(view.pilot, lambda: view.screen.state.rows.stop >= 900)
        await until(view.pilot, lambda: "300 new below" in view.title("log-title"))
        assert view.seen() == before
        await view.press("f")
        assert view.seen()[-1].endswith("line 899")
        assert "▾ following" in view.title("log-title")
        # The wheel is the reader's hand too.
        view.lines.post_message(wheel_up(view.lines))
        await until(view.pilot, lambda: not view.lines.follow)


def wheel_up(widget: LogLines) -> Any:
    from textual import events

    return events.MouseScrollUp(widget, 1, 1, 0, -1, 0, False, False, False)


async def test_the_ends_and_a_line_number(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        await view.press("g")
        assert view.under_cursor.endswith("line 0")
        assert "line 1 of 500" in view.title("log-title")
        await view.press("down", "down", "pagedown")
        assert not view.lines.follow
        await view.press("G")
        assert view.under_cursor.endswith("line 499")
        assert view.lines.follow


async def test_a_search_as_one_types(until: Until) -> None:
    async with opened(until, CPU / "killcore.log") as view:
        await view.press("g", "slash", *"MPClient")
        assert "MPClient" in view.under_cursor
        assert "1 of 6 lines" in view.title("log-choice")
        first = view.lines.key
        await view.press("enter", "n", "n")
        assert "3 of 6" in view.title("log-choice")
        await view.press("N", "N")
        assert view.lines.key == first
        await view.press("N")
        assert "6 of 6" in view.title("log-choice")
        assert "From the end again" in view.title("said")
        # Only matches, and back to the place.
        place = view.lines.key
        await view.press("ampersand")
        assert len(view.screen.state.rows) == 6
        await view.press("ampersand")
        assert view.lines.key == place
        assert "esc drop the search" in view.title("log-title")
        await view.press("escape")
        assert view.screen.state.query is None
        assert "esc deck" in view.title("log-title")


async def test_an_expression_and_case(until: Until) -> None:
    async with opened(until, CPU / "killcore.log") as view:
        await view.press("slash", "ctrl+r", *"error|failed")
        any_case = len(view.screen.state.hits)
        await view.press("ctrl+t")
        assert 0 < len(view.screen.state.hits) < any_case
        assert "match case" in view.title("log-choice")
        await view.press("left_parenthesis")
        assert "not a regular expression" in view.title("said")
        await view.press("escape")
        assert isinstance(view.app.shown_screen, LogScreen)


async def test_an_expression_without_end_holds_nobody_up(
    until: Until, growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_remote, "_HOPELESS_S", 0.5)
    with growing.open("ab") as log:
        log.write(b"x" * 300 + b"\nlast words\n")
    async with opened(until, growing) as view:
        await view.pilot.press("slash", "ctrl+r", *"(x+x+)+y")
        given_up = lambda: view.screen.state.query is None  # noqa: E731
        await until(view.pilot, lambda: given_up() and "takes too long" in view.title("said"))
        await view.press("enter")
        # From here on a slow machine may take its time to start a process.
        monkeypatch.setattr(view_remote, "_HOPELESS_S", 100.0)
        await view.press("slash", "ctrl+r", *r"line \d+5$", "enter")
        assert "of 49 lines" in view.title("log-choice")
        assert "takes too long" not in view.title("said")


async def test_a_match_in_a_fold_opens_it(until: Until) -> None:
    async with opened(until, CPU / "killcore.log") as view:
        await view.press("g", "slash", *"Route: /v1/models", "enter")
        assert "Route: /v1/models" in view.under_cursor
        # The lines of the fold are not new, nor those that a choice hid.
        assert "new" not in view.title("log-title")
        await view.press("4", "1")
        await view.settle()
        assert "‖ not following" in view.title("log-title")


async def test_choices_keep_the_place(until: Until) -> None:
    async with opened(until, CPU / "killcore.log") as view:
        await view.press("e")
        place = view.lines.key
        assert "engine core exited unexpectedly" in view.under_cursor
        whole = len(view.screen.state.rows)
        await view.press("3")
        assert view.lines.key == place
        assert 0 < len(view.screen.state.rows) < whole
        assert all(" WARN " in row or " ERROR " in row or not row for row in view.seen())
        await view.press("4")
        assert "errors" in view.title("log-choice")
        await view.press("1")
        assert len(view.screen.state.rows) == whole
        await view.press("p")
        await view.pilot.press("down", "enter")
        await view.settle()
        assert {row[16:26] for row in view.seen() if row.strip()} == {"EngineCore"}
        await view.press("escape", "P")
        await view.pilot.press("down", "down", "enter")
        await view.settle()
        assert "phase loading" in view.title("log-choice")
        assert "esc show all" in view.title("log-title")
        assert "Starting to load model" in view.seen()[0]
        await view.press("escape")
        assert view.screen.state.choice.everything


async def test_folds_open_and_close(until: Until) -> None:
    async with opened(until, CPU / "killcore.log") as view:
        await view.press("g", "slash", *"Available routes", "enter")
        assert view.under_cursor.endswith("35 routes")
        await view.press("enter")
        after = view.seen()[view.lines.cursor - view.lines.top + 1]
        assert "Route: " in after
        await view.press("enter")
        assert view.under_cursor.endswith("35 routes")
        await view.press("z")
        assert len(view.screen.state.rows) == len(view.screen.state.lines)


async def test_marked_lines_are_copied(until: Until, growing: Path, state: Path) -> None:
    async with opened(until, growing) as view:
        await view.press("g", "v", "down", "down", "y")
        await until(view.pilot, lambda: "3 lines copied" in view.title("said"))
        assert view.app.clipboard == numbered(0, 3).decode().rstrip("\n")
        kept = state / "stoker" / "copied.log"
        assert kept.read_bytes() == numbered(0, 3)
        assert kept.stat().st_mode & 0o777 == 0o600
        await view.press("v", "down")
        assert "2 marked" in view.title("log-choice")
        await view.press("escape")
        assert view.lines.mark is None


async def test_more_than_a_clipboard_takes_is_in_the_file(
    until: Until, tmp_path: Path, state: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(numbered(0, 6000))
    async with opened(until, path) as view:
        await view.press("g", "v", "G", "y")
        await until(view.pilot, lambda: "6000 lines in" in view.title("said"))
        assert len(view.app.clipboard) == MOST_COPIED
        assert (state / "stoker" / "copied.log").read_bytes() == numbered(0, 6000)


async def test_copies_without_a_place_for_the_file(
    until: Until, growing: Path, state: Path
) -> None:
    (state / "stoker").write_text("in the way")
    async with opened(until, growing) as view:
        await view.press("g", "y")
        await until(view.pilot, lambda: "1 line copied." in view.title("said"))
        assert view.app.clipboard == numbered(0, 1).decode().rstrip("\n")


async def test_a_fold_is_copied_whole_and_without_escapes(until: Until) -> None:
    async with opened(until, CPU / "color.log") as view:
        await view.press("g", "slash", *"Available routes", "enter", "y")
        await until(view.pilot, lambda: view.app.clipboard)
        copied = view.app.clipboard
        assert copied.count("\n") >= 30 and "Route: /health" in copied
        assert "\x1b" not in copied and "\r" not in copied


async def test_truncated_and_replaced_files_are_read_anew(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        growing.write_bytes(numbered(900, 910))
        await until(view.pilot, lambda: view.screen.state.replaced)
        # It may be seen empty first: writing anew is truncation, then growth.
        await until(view.pilot, lambda: view.seen()[9].endswith("line 909"))
        other = growing.with_name("other")
        other.write_bytes(numbered(70, 80))
        other.rename(growing)
        await until(view.pilot, lambda: view.screen.state.replaced == 2)
        await until(view.pilot, lambda: view.seen()[0].endswith("line 70"))
        await until(view.pilot, lambda: "replaced" in view.title("log-title"))


async def test_runs_of_the_unit(until: Until, tmp_path: Path) -> None:
    for number in (3, 4, 5):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        (folder / "log").write_bytes(numbered(number * 10, number * 10 + 2))
    async with opened(until, tmp_path / "runs" / "4" / "log") as view:
        assert "run 4" in view.title("log-title")
        await view.press("left_curly_bracket")
        assert view.seen()[0].endswith("line 30")
        assert "5 is the newest" in view.title("log-title")
        await view.press("left_curly_bracket")
        assert "no earlier run" in view.title("said")
        await view.press("right_curly_bracket", "right_curly_bracket")
        assert view.seen()[0].endswith("line 50")


async def test_starts_in_one_log(until: Until, tmp_path: Path) -> None:
    data = (CPU / "killcore.log").read_bytes()
    log = tmp_path / "foreign.log"
    log.write_bytes(data + data.replace(b"pid=24448", b"pid=777"))
    async with opened(until, log) as view:
        for said in ("Start 2 of 2", "Start 1 of 2", "no earlier start"):
            await view.press("left_curly_bracket")
            assert said in view.title("said")
        assert "APIServer" in view.under_cursor
        await view.press("right_curly_bracket")
        assert "Start 2 of 2" in view.title("said")
        await view.pilot.press("P")
        await until(view.pilot, lambda: "start 2  ready" in painted(view.app))
        await view.pilot.press("escape")


async def test_another_file_is_opened(until: Until, growing: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.log"
    foreign.write_bytes(numbered(7000, 7003))
    async with opened(until, growing) as view:
        await view.pilot.press("o")
        await until(view.pilot, lambda: "Read a log file" in painted(view.app))
        await view.pilot.press(*f"{foreign}x", "enter")
        await until(view.pilot, lambda: "there is no such file" in painted(view.app))
        await view.pilot.press("backspace", "enter")
        await until(view.pilot, lambda: "foreign.log" in view.title("log-title"))
        await view.settle()
        assert view.seen()[0].endswith("line 7000")


async def test_a_new_run_is_followed(until: Until, tmp_path: Path) -> None:
    old, new = tmp_path / "runs" / "1" / "log", tmp_path / "runs" / "2" / "log"
    for number, path in enumerate((old, new), 1):
        path.parent.mkdir(parents=True)
        path.write_bytes(numbered(number, number + 1))
    async with opened(until, old) as view:
        feed = view.app.feed
        feed.change(view.screen.unit.unit, log=str(new))  # type: ignore[attr-defined]
        await until(view.pilot, lambda: "run 2" in view.title("log-title"))
        await view.settle()
        assert view.seen()[0].endswith("line 2")


async def test_units_merged_by_time(until: Until, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    line = "(EngineCore pid=7) INFO 11-29 14:02:{:02d} [core.py:10] {}\n"
    one.write_text("".join(line.format(s, f"a{s}") for s in (1, 3, 5)) + "   more of a5\n")
    two.write_text("".join(line.format(s, f"b{s}") for s in (2, 3, 6)))
    async with opened(until, one, two) as view:
        await view.press("m")
        await view.pilot.press("down", "space", "enter")
        await view.settle()
        await until(view.pilot, lambda: len(view.screen.state.rows) == 7)
        said = [row.split()[-1] for row in view.seen() if row]
        assert said == ["a1", "b2", "a3", "b3", "a5", "a5", "b6"]
        with one.open("a") as out:
            out.write(line.format(7, "a7"))
        await until(view.pilot, lambda: view.seen()[7].endswith("a7"))
        await view.press("g", "slash", *"b", "enter")
        await until(view.pilot, lambda: view.under_cursor.endswith("b2"))
        await view.press("n")
        assert view.under_cursor.endswith("b3")
        assert "2 of 3" in view.title("log-choice")


async def test_long_lines_say_that_they_go_on(until: Until) -> None:
    async with opened(until, CPU / "killcore.log", size=(80, 24)) as view:
        await view.press("g")
        rows = [line.rstrip() for line in painted(view.app).split("\n")[3:20]]
        long = [row for row in rows if "…" in row]
        assert long and all(row.index("…") >= 77 for row in long)
        await view.press("right")
        assert len([row for row in view.seen() if "…" in row]) <= len(long)


async def test_wrapped_lines(until: Until) -> None:
    async with opened(until, CPU / "killcore.log", size=(80, 24)) as view:
        await view.press("g", "w")
        text = " ".join(" ".join(row.split()) for row in view.seen())
        assert "exceeds" in text and "ulimit -n" in text
        await view.press("G")
        assert view.lines.follow
        await view.press("w", "g", "right")
        assert view.seen()[0].startswith("›")
        assert view.lines.left > 0


async def test_the_same_key_and_escape_lead_back(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        await view.pilot.press("l")
        assert view.app.shown_screen is view.app.deck
        await view.pilot.press("l")
        await view.settle()
        await view.pilot.press("escape")
        assert view.app.shown_screen is view.app.deck


async def test_a_unit_whose_log_is_gone(until: Until, tmp_path: Path) -> None:
    app = app_with(tmp_path / "nothing")
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit)
        await pilot.press("l")
        await pilot.press("e", "slash", "n", "z", "3", "v", "y", "p", "m", "escape")
        await pilot.press("G", "g", "down", "enter", "w", "f")
        assert isinstance(app.shown_screen, LogScreen)
        assert "There is no log yet" in plain(app.shown_screen.body.empty)


async def test_help_has_the_keys_of_the_log(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        log = view.screen
        await view.pilot.press("question_mark")
        body = view.app.shown_screen.lines("body")
        text = "\n".join(body.text)
        assert text.index("Log, the screen that you come from") < text.index("Run")
        assert "first error" in text and "only matches" in text and "Open or close the fold" in text
        # A key in the help is pressed on the screen that it is about; escape leads back there.
        row = next(y for y, told in enumerate(body.text) if told.strip().startswith("w  "))
        await view.pilot.click("#body", offset=(2, row))
        await until(view.pilot, lambda: view.app.screen is log)
        assert view.lines.wrap
        await view.pilot.press("question_mark")
        assert "esc log" in view.app.shown_screen.lines("log-title").text[0]
        await view.pilot.press("escape")
        assert view.app.screen is log
        # The palette has them too.
        await view.pilot.press("ctrl+p")
        await view.pilot.press(*"wrap")
        await until(view.pilot, lambda: "Wrap long lines" in painted(view.app))
        while view.app.screen.id == "--command-palette":
            await view.pilot.press("enter")
        await until(view.pilot, lambda: not view.lines.wrap)


def test_text_is_data() -> None:
    raw = b"(EngineCore pid=7) ERROR 11-29 14:02:05 [core.py:10] [/nope] \x1b]52;c;aGk=\x07[red]x"
    spans = row_line(Row(raw), 100, Query("red"))
    assert "[/nope] [red]x" in plain(spans)
    assert "\x1b" not in plain(spans)
    assert [span.text for span in spans if span.style == "match"] == ["red"]
    assert "ERROR" in plain(spans)


def test_bars_show_their_last_state() -> None:
    raw = b"\rLoading:  10% 1/9 [00:00<?]\rLoading:  90% 8/9 [00:01<?]"
    assert "90%" in plain(row_line(Row(raw, written=True), 100))


def test_snapshot_of_the_log(snap_compare: Any, tmp_path: Path) -> None:
    log = tmp_path / "runs" / "18" / "log"
    log.parent.mkdir(parents=True)
    shutil.copy(CPU / "killcore.log", log)

    async def run(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, StokerApp)
        while app.selected_unit is None:
            await pilot.pause(0.01)
        await pilot.press("l")
        await pilot.press("e")
        screen = app.shown_screen
        assert isinstance(screen, LogScreen)
        while screen.body.follow:
            await pilot.pause(0.01)
        await pilot.press("slash", *"shutdown", "enter")
        while not (screen.state and screen.state.hits and screen.state.hits.complete):
            await pilot.pause(0.01)
        screen.body.sync()
        await pilot.pause()

    assert snap_compare(app_with(log), terminal_size=(120, 35), run_before=run)


async def test_opened_at_a_place(until: Until) -> None:
    log = CPU / "killcore.log"
    offset = log.read_bytes().find(b"AsyncLLM output_handler failed")
    app = app_with(log)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit)
        unit = app.selected_unit
        assert unit is not None
        app.open_log(unit.unit, None, offset)
        view = View(app, pilot, until)
        await until(pilot, lambda: isinstance(app.shown_screen, LogScreen))
        await view.settle()
        assert "AsyncLLM output_handler failed" in view.under_cursor
        assert not view.lines.follow


async def test_dragging_marks(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        await view.press("g")
        await view.pilot.mouse_down("#lines", offset=(5, 2))
        await view.pilot.hover("#lines", offset=(5, 4))
        await view.pilot.mouse_up("#lines", offset=(5, 4))
        assert view.lines.marked == (view.lines.top + 2, view.lines.top + 5)
        await view.press("y")
        await until(view.pilot, lambda: view.app.clipboard.endswith("line 4"))


async def test_a_field_opens_again_while_the_one_before_closes(until: Until, growing: Path) -> None:
    async with opened(until, growing) as view:
        await view.press("slash", "4")
        view.screen.query_one(LogSearch).close()
        view.screen.do_search()
        await until(view.pilot, lambda: len(view.screen.query(LogSearch)) == 1)
        assert not view.screen.query_one(LogSearch).closing
        await view.pilot.press("escape", "escape")
        await until(view.pilot, lambda: view.app.shown_screen is view.app.deck)
        await view.pilot.press("slash")
        view.app.deck.query_one(FilterInput).close()
        open_filter(view.app.deck)
        await until(view.pilot, lambda: len(view.app.deck.query(FilterInput)) == 1)


@pytest.mark.parametrize("path", ["~nobody-of-that-name/log", "n" * 300, "/dev/null", "nowhere"])
async def test_a_path_that_cannot_be_read_is_said(until: Until, growing: Path, path: str) -> None:
    async with opened(until, growing) as view:
        await view.pilot.press("o")
        await until(view.pilot, lambda: isinstance(view.app.screen, FormScreen))
        view.app.screen.query_one(Input).value = path
        await until(view.pilot, lambda: "✗ file: " in painted(view.app))
        await view.pilot.press("enter")
        assert isinstance(view.app.screen, FormScreen)
