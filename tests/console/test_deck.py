"""The deck with Pilot, at the smallest and at a usual size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorType
from rich.style import Style
from textual.color import Color

from console import theme
from console.app import StokerApp
from console.screens.deck import DeckScreen
from console.view import machine
from console.view.spans import Span, plain, wrap
from console.widgets import eight_bit
from console.widgets.lines import Lines
from console.widgets.meanings import CLASSES, contrast, meaning
from engine_ctl.model import Phase
from tests.console import answers, fakes

SIZES = [(80, 24), (140, 45)]


def make(snapshot: Any = None, **more: Any) -> StokerApp:
    feed = fakes.Feed(fakes.gpu_snapshot() if snapshot is None else snapshot)
    return StokerApp(more.pop("ops", None) or answers.ops(), feed, **more)


def shown(app: StokerApp, id: str) -> str:
    return "\n".join(app.screen.query_one(f"#{id}", Lines).text)


def painted(app: StokerApp) -> str:
    """What is on the terminal, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.mark.parametrize("size", SIZES)
async def test_the_deck_answers_at_a_glance(size: tuple[int, int], until: Any) -> None:
    app = make()
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "chat-8b" in painted(app) and "hint " in painted(app))
        await pilot.pause()
        text = painted(app)
        assert "gpu-box" in text and "12:02:11" in text
        assert "GPU 0" in text and "GPU 1" in text
        assert "[o] reap" in text
        assert "57" in text and "3 412" in text and "mapped" in text
        assert "dtype: daemon bfloat16, engine float16" in text
        assert "max_num_seqs" in text.split("hint ")[1]
        assert len(text.split("\n")) == size[1]
        assert text.split("\n")[-1].strip().endswith("q leave")


@pytest.mark.parametrize("size", SIZES)
async def test_a_newcomer_is_told_what_to_do(size: tuple[int, int], until: Any) -> None:
    app = make(fakes.cpu_snapshot(units=()))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "stoker demo" in painted(app))
        assert "no GPU, 8 cores" in painted(app)
        assert "x stop" not in painted(app)


async def test_before_the_first_snapshot_there_is_a_frame() -> None:
    app = make()
    app.feed = fakes.Feed(None)
    async with app.run_test(size=(80, 24)):
        assert "STOKER" in painted(app) and "q leave" in painted(app)


async def test_only_changed_cells_are_painted(until: Any) -> None:
    app = make()
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "chat-8b" in painted(app))
        await pilot.pause()
        table = app.screen.query_one("#units", Lines)
        regions: list[Any] = []
        original = table.refresh

        def refresh(*found: Any, **more: Any) -> Any:
            regions.extend(found or ["all"])
            return original(*found, **more)

        table.refresh = refresh  # type: ignore[method-assign]
        chat = fakes.gpu_units()[0]
        assert chat.load is not None
        app.feed.change("chat-8b", load=replace(chat.load, waiting=61))  # type: ignore[attr-defined]
        await until(pilot, lambda: " 61 " in table.text[0])
        assert regions and "all" not in regions
        assert all(region.height == 1 and region.width <= 4 for region in regions)


async def test_cursor_and_scroll_stay_when_rows_change(until: Any) -> None:
    app = make()
    async with app.run_test(size=(80, 17)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("end")
        table = app.screen.query_one("#units", Lines)
        await until(pilot, lambda: table.key == "standby" and table.scroll_offset.y > 0)
        before = table.scroll_offset.y
        app.feed.change("vision", phase=Phase.IMPORTING, phase_s=0.4)  # type: ignore[attr-defined]
        await until(pilot, lambda: "importing" in shown(app, "units"))
        assert (table.key, table.scroll_offset.y) == ("standby", before)
        assert app.snapshot is not None
        fewer = tuple(u for u in app.snapshot.units if u.unit != "standby")
        app.feed.give(replace(app.snapshot, units=fewer))  # type: ignore[attr-defined]
        await until(pilot, lambda: table.key == "m8b")


async def test_keys_move_and_jump(until: Any) -> None:
    app = make(select="draft-1b")
    async with app.run_test(size=(140, 45)) as pilot:
        table = app.screen.query_one("#units", Lines)
        await until(pilot, lambda: table.key == "draft-1b")
        await pilot.press("down")
        assert table.key == "long-ctx"
        await pilot.press("1")
        assert table.key == "chat-8b"
        await pilot.press("end", "down")
        assert table.key == "standby"


async def test_the_filter_narrows_and_goes(until: Any) -> None:
    app = make()
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "chat-8b" in shown(app, "units"))
        await pilot.press("slash", "d", "r", "a", "f", "t")
        await until(pilot, lambda: "chat-8b" not in shown(app, "units"))
        assert "draft-1b" in shown(app, "units")
        field, footer = app.screen.query_one(".filter"), app.screen.query_one("#footer")
        assert field.region.bottom <= footer.region.y, "what is typed can be seen"
        assert "keep it" in shown(app, "footer") and "restart" not in shown(app, "footer")
        await pilot.press("enter")
        await until(pilot, lambda: "restart" in shown(app, "footer"))
        assert "1 of 7 units contain “draft”  esc shows all" in shown(app, "units")
        await pilot.press("escape")
        await until(pilot, lambda: "chat-8b" in shown(app, "units"))


async def test_the_mouse_selects_presses_and_opens(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "chat-8b" in shown(app, "units"))
        await pilot.pause()
        table = app.screen.query_one("#units", Lines)
        row = next(i for i, text in enumerate(table.text) if "m8b" in text and "✗" not in text)
        await pilot.click("#units", offset=(10, row))
        assert table.key == "m8b"
        alerts = app.screen.query_one("#alerts", Lines)
        await pilot.click("#alerts", offset=(alerts.text[0].index("[o]") + 1, 0))
        await until(pilot, lambda: "End 1 orphaned" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: ("reap", (48122,)) in ops.calls)
        footer = app.screen.query_one("#footer", Lines)
        await pilot.click("#footer", offset=(footer.text[-1].index("? help"), len(footer.text) - 1))
        await until(pilot, lambda: "never stops an engine" in painted(app))


async def test_a_burst_of_the_log_is_shown_and_a_key_is_answered(
    tmp_path: Path, until: Any
) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    units = fakes.gpu_units()
    snapshot = replace(fakes.gpu_snapshot(), units=(replace(units[0], log=str(log)), *units[1:]))
    app = make(snapshot)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "first" in painted(app))
        with log.open("a") as file:
            file.writelines(f"(Core pid=7) INFO line {i} [/nope] \x1b[31m\n" for i in range(50_000))
        await pilot.press("down")
        assert app.screen.query_one("#units", Lines).key == "code-32b"
        await pilot.press("up")
        await until(pilot, lambda: "line 49999 [/nope]" in painted(app))
        assert len(app.screen.query_one("#log", Lines).text) <= 400


async def test_a_reader_who_scrolled_up_is_not_pulled_back(tmp_path: Path, until: Any) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(300)))
    units = fakes.gpu_units()
    snapshot = replace(fakes.gpu_snapshot(), units=(replace(units[0], log=str(log)), *units[1:]))
    app = make(snapshot)
    async with app.run_test(size=(80, 24)) as pilot:
        tail = app.screen.query_one("#log", Lines)
        await until(pilot, lambda: "line 299" in painted(app))
        tail.scroll_to(y=5, animate=False)
        await until(pilot, lambda: tail.scroll_offset.y == 5)
        with log.open("a") as file:
            file.write("newest\n")
        await until(pilot, lambda: any("newest" in text for text in tail.text))
        assert tail.scroll_offset.y == 5


@pytest.mark.parametrize("size", [(40, 10), (60, 16), (80, 24), (100, 30), (200, 60), (300, 90)])
async def test_any_size_is_survived(size: tuple[int, int], until: Any) -> None:
    app = make()
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "STOKER" in painted(app))
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: len(painted(app).split("\n")) == 24)
        await until(pilot, lambda: "q leave" in painted(app))


async def test_every_theme_keeps_text_apart_from_its_ground() -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        for theme in sorted(app.available_themes):
            app.theme = theme
            await pilot.pause()
            screen = app.screen
            assert isinstance(screen, DeckScreen)
            ground = screen.query_one("#units", Lines).background_colors[1]
            for name in CLASSES:
                style: Style = meaning(screen, name.removeprefix("s-"), ground)
                # Reversed is the terminal's own text on its own ground.
                assert style.color != style.bgcolor or style.reverse, (theme, name)
            assert "chat-8b" in painted(app)


async def test_every_theme_is_read_in_256_colours() -> None:
    """As over ssh, where COLORTERM does not travel: a ground of greys stays one, and text keeps
    its contrast on what its ground becomes."""
    panel, nord = (36, 47, 56), (46, 52, 64)
    for grey in (panel, nord, (0, 0, 0), (255, 255, 255)):
        red, green, blue = eight_bit._PALETTE[eight_bit.nearest(grey)]
        assert red == green == blue and abs(red - sum(grey) / 3) <= 6
    app = make()
    app._reduced = [eight_bit.EightBit()]
    async with app.run_test(size=(100, 30)) as pilot:
        for theme in ("textual-dark", "textual-light", "nord", "solarized-light", "tokyo-night"):
            app.theme = theme
            await pilot.pause()
            ground = app.screen.query_one("#units", Lines).background_colors[1]
            for name in CLASSES:
                before = meaning(app.screen, name.removeprefix("s-"), ground)
                after = eight_bit._style(before)
                assert after.color is not None and after.bgcolor is not None
                assert after.color.number is not None and after.bgcolor.number is not None
                pairs = (
                    contrast(*(Color(*style_color.get_truecolor()) for style_color in both))
                    for both in ((before.color, before.bgcolor), (after.color, after.bgcolor))
                )
                had, has = pairs
                assert has >= min(had, 4.5) - 0.01, (theme, name)
                assert after.bold == before.bold and after.underline == before.underline
        assert "chat-8b" in painted(app)
        used = {
            segment.style.bgcolor.type
            for strip in app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None and segment.style.bgcolor is not None
        }
        assert used == {ColorType.EIGHT_BIT}


def test_colours_are_reduced_only_where_they_must() -> None:
    from console.app import _reduced

    assert [len(_reduced(system)) for system in ("truecolor", "256", "standard", None)] == [
        0,
        1,
        0,
        0,
    ]


@pytest.mark.draws_badly
async def test_a_screen_that_cannot_be_drawn_says_so_and_lives_on(
    until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: "chat-8b" in painted(app))
        with monkeypatch.context() as broken:
            broken.setattr("console.view.units.items", lambda *_: 1 / 0)
            app.feed.change("chat-8b", port=8009)  # type: ignore[attr-defined]
            await until(pilot, lambda: "not drawn, figures are old: ZeroDivision" in painted(app))
            assert "chat-8b" in painted(app)
        app.feed.change("chat-8b", port=8010)  # type: ignore[attr-defined]
        await until(pilot, lambda: "8010" in painted(app) and "not drawn" not in painted(app))


async def test_the_unit_that_the_console_is_opened_on_is_in_view(until: Any) -> None:
    chat = fakes.gpu_units()[0]
    many = tuple(replace(chat, unit=f"chat-{i:03d}") for i in range(60))
    app = make(fakes.gpu_snapshot(units=many), select="chat-055")
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "chat-055 " in painted(app))
        assert app.screen.query_one("#units", Lines).key == "chat-055"


@pytest.mark.parametrize("size", [(20, 5), (10, 3), (1, 1)])
async def test_the_palette_stays_up_where_it_has_no_room(size: tuple[int, int], until: Any) -> None:
    app = make()
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.snapshot is not None)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: app.screen.id == "--command-palette")
        await pilot.press("pagedown", "pageup", "home", "end", "up", "down", "escape")
        await until(pilot, lambda: isinstance(app.screen, DeckScreen))


async def test_columns_sort_by_key_and_mouse(until: Any) -> None:
    app = make(select="draft-1b")
    async with app.run_test(size=(140, 45)) as pilot:
        table = app.screen.query_one("#units", Lines)
        await until(pilot, lambda: table.key == "draft-1b")
        own = table.keys
        titles = app.screen.query_one("#titles", Lines)
        place = (titles.text[-1].index("tok/s") + 1, len(titles.text) - 1)
        await pilot.click("#titles", offset=place)
        assert table.keys[:2] == ("chat-8b", "draft-1b") and "▾" in titles.text[-1]
        await pilot.click("#titles", offset=place)
        assert table.keys[:2] == ("draft-1b", "chat-8b") and "▴" in titles.text[-1]
        await pilot.click("#titles", offset=place)
        assert table.keys == own and table.key == "draft-1b"
        await pilot.press("greater_than_sign")
        assert table.keys == tuple(sorted(own))
        await pilot.press("1")
        assert table.key == min(own)
        await pilot.press("less_than_sign")
        assert table.keys == own


async def test_keys_of_cards_and_fields_are_pressed_by_mouse(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("S")
        await until(pilot, lambda: "esc back" in painted(app))
        keys = app.screen.query_one("#keys", Lines)
        await pilot.click("#keys", offset=(keys.text[-1].index("esc"), len(keys.text) - 1))
        await until(pilot, lambda: app.screen is app.deck)
        await pilot.press("slash", "c", "o")
        await until(pilot, lambda: "show all again" in painted(app))
        footer = app.screen.query_one("#footer", Lines)
        await pilot.click("#footer", offset=(footer.text[0].index("esc"), 0))
        await until(pilot, lambda: not app.screen.query(".filter"))
        assert app.deck.word == "" and "restart" in shown(app, "footer")


async def test_the_tail_goes_on_when_it_has_less_room(until: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(60)))
    first, *rest = fakes.gpu_units()
    snapshot = fakes.gpu_snapshot(units=(replace(first, log=str(log), hints=()), *rest))
    app = make(snapshot)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: "line 59" in painted(app))
        high = app.screen.query_one("#log").size.height
        app.feed.change("chat-8b", hints=("one row less for the log",))  # type: ignore[attr-defined]
        await until(pilot, lambda: app.screen.query_one("#log").size.height < high)
        await until(pilot, lambda: "line 59" in painted(app))
        with log.open("a") as out:
            out.write("a last line\n")
        await until(pilot, lambda: "a last line" in painted(app))
        # A reader who went up is left there.
        app.screen.query_one("#log").scroll_to(y=5, animate=False, immediate=True)
        with log.open("a") as out:
            out.write("one more\n")
        await until(pilot, lambda: "one more" in shown(app, "log"))
        assert "one more" not in painted(app) and "line 6" in painted(app)


async def test_the_selected_unit_stays_in_view_where_the_order_changes(until: Any) -> None:
    chat = fakes.gpu_units()[0]
    many = tuple(replace(chat, unit=f"chat-{i:03d}", port=9000 - i) for i in range(60))
    app = make(fakes.gpu_snapshot(units=many), select="chat-000")
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: "chat-000 " in painted(app))
        app.deck.sort_by("port")
        await until(pilot, lambda: app.deck.lines("units").scroll_offset.y > 0)
        assert app.selected_unit is not None and app.selected_unit.unit == "chat-000"
        assert "chat-000 " in painted(app)
        app.deck.sort_by("port")
        app.deck.sort_by("port")
        await until(pilot, lambda: app.deck.lines("units").scroll_offset.y == 0)
        assert "chat-000 " in painted(app)


async def test_the_theme_that_is_chosen_is_kept(
    until: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    assert theme.remembered() is None
    app = make(theme=None, theme_chosen=theme.remember)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        assert theme.remembered() is None, "nobody chose one"
        app.theme = "nord"
        await until(pilot, lambda: theme.remembered() == "nord")
    again = make(theme=theme.remembered())
    async with again.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: again.theme == "nord")
    monkeypatch.setenv("TEXTUAL_THEME", "textual-light")
    assert theme.remembered() is None
    theme.remember("x" * 9)
    (tmp_path / "stoker" / "theme").unlink()
    (tmp_path / "stoker").rmdir()
    (tmp_path / "stoker").write_text("in the way")
    theme.remember("nord")


async def test_the_selected_line_has_a_sign(until: Any) -> None:
    """Its ground alone would say nothing without colours."""
    app = make()
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)

        def marked() -> list[str]:
            return [row[:14].strip() for row in painted(app).splitlines() if row[0] == "›"]

        await until(pilot, lambda: marked() == ["›● chat-8b"])
        await pilot.press("down")
        await until(pilot, lambda: marked() == ["›◐ code-32b"])
        await pilot.press("W")
        await until(pilot, lambda: [row.split()[1] for row in marked()] == ["18"])


@pytest.mark.parametrize("name", ["ansi-dark", "ansi-light"])
async def test_the_selected_line_is_read_in_the_terminal_s_own_colours(
    name: str, until: Any
) -> None:
    """They have no tints: on a ground of the sixteen a word of the sixteen may be lost."""
    app = make(theme=name)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None and app.theme == name)
        table = app.deck.lines("units")

        def styles() -> list[Style]:
            return [s.style for s in table.render_line(0) if s.text.strip() and s.style]

        await until(pilot, lambda: all(style.reverse for style in styles()))
        assert len({(style.color, style.bgcolor) for style in styles()}) == 1


async def test_lines_that_pass_are_not_kept(until: Any) -> None:
    """A clock is another line every second: what has been drawn of it is not memory for ever."""
    feed = fakes.Feed(fakes.gpu_snapshot())
    app = StokerApp(answers.ops(), feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        header = app.deck.lines("header")
        for second in range(500):
            header.set_lines([(Span(f"{second}"),)])
            header.render_line(0)
        assert len(header._strips) <= 201


def best_row(app: StokerApp) -> str:
    """The first row beneath what is typed into the palette."""
    rows = painted(app).splitlines()
    at = next((i for i, row in enumerate(rows) if row.strip() == "kern"), len(rows))
    return next((row for row in rows[at + 1 :] if any(c.isalpha() for c in row)), "")


async def test_the_palette_has_a_row_for_each_action(until: Any) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Replace the engine" in painted(app))
        rows = painted(app).splitlines()
        (at,) = [i for i, row in enumerate(rows) if "swap" in row and "Replace the engine" in row]
        assert rows[at].split()[:2] == ["S", "swap"] and "…" in rows[at]
        assert rows[at + 1].split()[:2] == ["u", "undo"]
        await pilot.press(*"kern")
        await until(pilot, lambda: best_row(app).split()[:2] == ["k", "kernels"])


async def test_many_problems_leave_the_units_in_sight(until: Any) -> None:
    words = "unit.json is empty or gone; to go on: stoker stop damaged; stoker remove damaged"
    problems = tuple(f"unit-{n}: /home/me/.local/state/stoker/{words}" for n in range(8))
    snapshot = fakes.gpu_snapshot(problems=problems)
    told = [plain(line) for line in machine.alerts(snapshot, 80)]
    assert sum(text.startswith(" ✗ unit-") and text.endswith("…") for text in told) == 8
    app = StokerApp(answers.ops(), fakes.Feed(snapshot))
    async with app.run_test(size=(80, 24)) as pilot:
        units, footer = app.deck.lines("units"), app.deck.lines("footer")
        await until(pilot, lambda: units.keys and 0 < units.region.bottom < footer.region.y)


@pytest.mark.parametrize("cells", range(1, 12))
def test_a_wide_word_is_broken_without_loss(cells: int) -> None:
    word = "模型路径a模型b路径cc"
    assert "".join(wrap(word, cells)) == word
