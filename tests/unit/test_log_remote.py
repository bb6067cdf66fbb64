"""A log looked through by a process of its own: the same rows as here, whatever happens to it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine_ctl.logs import view_facts, view_merging, view_reader, view_remote
from engine_ctl.logs.blocks import EveryLine
from engine_ctl.logs.index import RowIndex
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.patience import TooSlow, at_most
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import WARNING, Choice, Opened, ViewScan, scan_for
from engine_ctl.logs.view_merge import MergedHits, MergedRows
from engine_ctl.logs.view_reader import LogReader
from engine_ctl.logs.view_remote import Part, Remote
from tests.bench.log_lines import piece
from tests.standin.rig import until


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("logs")
    for name, seeds in (("a", (1, 2)), ("b", (3,))):
        (folder / name).write_bytes(b"".join(piece(seed, 7000) for seed in seeds))
    return folder / "a", folder / "b"


@contextmanager
def remote() -> Iterator[Remote]:
    made = Remote()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def reading(*paths: Path) -> Iterator[LogReader]:
    reader = LogReader(paths, lambda: None)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()
        assert reader._thread is not None
        reader._thread.join(100)


def built(part: Part, there: Remote | None = None) -> None:
    while there.ask((part,)) if there is not None else part.step():
        if there is not None:
            there.take(20)


def places(rows: RowIndex | MergedRows) -> list[int | None]:
    return [rows.row(number) for number in range(rows.first, rows.stop)]


def test_rows_counted_apart_are_those_counted_here(logs: tuple[Path, Path]) -> None:
    file = LogFile(logs[0])
    scans = [
        EveryLine(),
        Query("KV cache is full"),
        Query(r"Preempted|ERROR", regex=True),
        ViewScan(Choice(level=WARNING), False, Opened()),
    ]
    with remote() as there:
        for scan in scans:
            apart, here = (RowIndex(file, scan, file.size // 2) for _ in range(2))
            built(apart, there)
            built(here)
            assert apart.complete
            assert apart.first == here.first
            assert places(apart) == places(here)


def test_merges_made_apart_are_those_made_here(
    logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_merging, "AT_ONCE", 3000)
    files = tuple(map(LogFile, logs))
    apart, here = (MergedRows(files, Choice()) for _ in range(2))
    with remote() as there:
        built(apart, there)
        built(here)
        assert places(apart) == places(here)
        assert len(apart) == 21000
        for number in range(0, 21000, 501):
            key = here.row(number)
            assert key is not None
            assert apart.at(key) == here.at(key) == number
        hits = [MergedHits(rows, Query("KV cache is full")) for rows in (apart, here)]
        built(hits[0], there)
        built(hits[1])
        assert len(hits[0]) == len(hits[1]) > 0
        assert hits[0].beside(0, True) == hits[1].beside(0, True)


def test_a_merge_whose_process_dies_has_every_row_once(
    logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_merging, "AT_ONCE", 3000)
    files = tuple(map(LogFile, logs))
    rows, anew = (MergedRows(files, Choice()) for _ in range(2))
    while not len(rows):
        rows.step()
    assert not rows.complete
    rows.ask_again()
    built(rows)
    built(anew)
    assert places(rows) == places(anew)


def test_a_merge_goes_on_as_its_logs_grow(tmp_path: Path) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    data = [b"".join(piece(7, 60).splitlines(True)[at::2]) for at in (0, 1)]
    for path, lines in zip(paths, data, strict=True):
        path.write_bytes(lines[:1000])
    files = tuple(map(LogFile, paths))
    rows = MergedRows(files, Choice())
    with remote() as there:
        built(rows, there)
        for path, lines in zip(paths, data, strict=True):
            with path.open("ab") as out:
                out.write(lines[1000:])
        for file in files:
            file.poll()
        built(rows, there)
    keys = [key for key in places(rows) if key is not None]
    assert len(keys) == len(set(keys)) == 60
    assert [rows.at(key) for key in keys] == list(range(60))


def test_what_grows_meanwhile_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = piece(4, 20000)
    path.write_bytes(data[:1_000_003])
    file = LogFile(path)
    rows = RowIndex(file, EveryLine(), 0)
    at = 1_000_003
    with remote() as there:
        while at < len(data):
            asked = there.ask((rows,))
            with path.open("ab") as out:
                out.write(data[at : at + 200_001])
            at += 200_001
            file.poll()
            rows.grow()
            assert not asked or there.take(20)
        built(rows, there)
    anew = RowIndex(file, EveryLine(), 0)
    built(anew)
    assert places(rows) == places(anew)
    assert len(rows) == data.count(b"\n")


def test_a_fold_opened_meanwhile_is_seen(logs: tuple[Path, Path]) -> None:
    file = LogFile(logs[1])
    opened = Opened()
    rows = RowIndex(file, scan_for(Choice(), True, opened), 0)
    with remote() as there:
        there.ask((rows,))
        number = next(n for n in range(rows.first, rows.stop) if rows.folded(n))
        start = rows.row(number)
        assert start is not None
        end = start
        for _ in range(1 + rows.folded(number)):
            end = file.line_end(end)
        rows.again(*opened.toggle(start, end))
        built(rows, there)
    anew = RowIndex(file, scan_for(Choice(), True, opened), 0)
    built(anew)
    assert places(rows) == places(anew)


def test_a_reader_goes_on_without_its_process(
    logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_reader, "_HERE", 0)
    with reading(logs[0]) as reader:
        until(lambda: reader._remote is not None or reader.state.rows.complete)
        there = reader._remote
        if there is not None:
            os.kill(there.pid, signal.SIGKILL)
        lines = reader.state.lines
        assert lines is not None
        until(lambda: lines.complete)
        assert len(lines) == 14000
        reader.search(Query("Error with request"), None)
        until(lambda: reader.state.hits is not None and reader.state.hits.complete)
        expected = logs[0].read_bytes().count(b"Error with request")
        assert reader.state.hits is not None
        assert len(reader.state.hits) == expected


def test_replaced_and_cut_files_are_looked_through_anew(
    logs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_reader, "_HERE", 0)
    path = tmp_path / "log"
    path.write_bytes(logs[0].read_bytes())

    def counted(lines: int) -> bool:
        now = reader.state.lines
        return now is not None and now.complete and len(now) == lines

    with reading(path) as reader:
        until(lambda: counted(14000))
        other = tmp_path / "other"
        other.write_bytes(logs[1].read_bytes())
        other.rename(path)
        until(lambda: counted(7000))
        os.truncate(path, len(b"".join(logs[1].read_bytes().splitlines(True)[:3000])))
        until(lambda: counted(3000))
        assert reader.state.replaced == 2


def test_questions_about_a_big_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    noise = b"".join(line for line in piece(5, 3000).splitlines(True) if b" ERROR " not in line)
    failure = (
        b"(EngineCore pid=2) ERROR 11-29 14:02:06 [core.py:9] EngineCore failed to start.\n"
        b"(EngineCore pid=2) ERROR 11-29 14:02:06 [core.py:9] ValueError: no such thing\n"
    )
    path.write_bytes(noise + failure + noise)
    file = LogFile(path)
    monkeypatch.setattr(view_facts, "_SMALL_BYTES", 1000)
    expected = len(noise) + failure.index(b"\n") + 1
    assert view_facts.asked(view_facts.first_error, file) == expected
    monkeypatch.setattr(view_remote.sys, "executable", "/nonexistent/python")
    assert view_facts.asked(view_facts.first_error, file) == expected


def test_no_process_can_be_had(logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_remote.sys, "executable", "/nonexistent/python")
    with reading(*logs) as reader:
        until(lambda: reader.state.rows.complete)
        assert len(reader.state.rows) == 21000


def test_a_search_without_end_does_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_reader, "_HERE", 0)
    path = tmp_path / "log"
    # The first block is harmless: it is looked at by the one who asks.
    path.write_bytes(b"a" * 60 + b"!\n" + b"harmless\n" * 60000)
    with reading(path) as reader:
        until(lambda: reader.state.rows.complete)
        reader.search(Query("(a+)+[b]", regex=True), None)
        until(lambda: reader._remote is not None and bool(reader._remote._open))
        reader.search(Query("harmless"), None)
        until(lambda: reader.state.hits is not None and reader.state.hits.complete)
        assert reader.state.hits is not None
        assert len(reader.state.hits) == 60000


ENDLESS = r"(x+x+)+y"


@pytest.fixture
def slow_log(tmp_path: Path) -> Path:
    """Lines that end a search, and one on which `ENDLESS` goes on for ages."""
    path = tmp_path / "slow"
    path.write_bytes(b"nothing here\n" * 20 + b"x" * 300 + b"\nlast words\n")
    return path


def test_which_expressions_may_not_end() -> None:
    def may(text: str) -> bool:
        return Query(text, regex=True).may_not_end

    assert not any(map(may, ("ERROR|WARN", r"\[core\.py:\d\d\d\]", "(?:a|b)c$", "^INFO")))
    assert all(map(may, (ENDLESS, "a*b", "(a|b)c?", r"(a)\1", "(?=a)b", "(a|aa)" * 20)))
    assert not Query("(x+x+)+y").may_not_end, "plain words"


def test_an_expression_without_end_is_given_up(
    slow_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_remote, "_HOPELESS_S", 0.5)
    with reading(slow_log) as reader:
        reader.search(Query(ENDLESS, regex=True), None)
        until(lambda: reader.state.trouble)
        assert reader.state.trouble == view_reader.TOO_SLOW
        assert (reader.state.query, reader.state.hits) == (None, None)
        reader.choose(Choice(query=Query(ENDLESS, regex=True)), False, None)
        assert reader.state.trouble == ""
        until(lambda: reader.state.trouble)
        assert reader.state.choice.everything
        assert len(reader.state.rows) == 22, "every line is shown again"
        # From here on a slow machine may take its time to start a process.
        monkeypatch.setattr(view_remote, "_HOPELESS_S", 100.0)
        reader.search(Query(r"last \w+", regex=True), None)
        until(lambda: reader.state.hits is not None and len(reader.state.hits) == 1)
        assert reader.state.trouble == ""


def test_a_look_up_of_an_expression_without_end_is_over_soon(slow_log: Path) -> None:
    rows = RowIndex(LogFile(slow_log), Query(ENDLESS, regex=True))
    assert len(rows) == 0, "the first block is left to the process"
    assert rows._look_up(0).rows == ()
    assert rows.too_slow
    query = Query(ENDLESS, regex=True)
    assert query.spans("x" * 300) == [] and query.unmarked


def test_an_expression_finds_what_is_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"one 1\n" * 3)
    with reading(path) as reader:
        reader.search(Query(r"one \d+", regex=True), None)
        for count in (5, 90, 400):
            with path.open("ab") as log:
                log.write(b"one 22\nother\none" * count)
            whole = path.read_bytes().count(b"one 22")
            until(lambda n=whole: reader.state.hits and len(reader.state.hits) == 3 + n)
        found = reader.state.hits
        assert found is not None and found.row(found.first) == 0


def test_no_process_for_an_expression(slow_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(view_remote.subprocess, "Popen", none)
    with reading(slow_log) as reader:
        reader.search(Query(ENDLESS, regex=True), None)
        until(lambda: reader.state.trouble == view_reader.NO_PROCESS)
        reader.search(Query("last"), None)
        until(lambda: reader.state.hits is not None and len(reader.state.hits) == 1)


def test_what_another_thread_uses_is_not_counted() -> None:
    def work() -> None:
        end = time.thread_time() + 0.15
        while time.thread_time() < end:
            sum(range(20_000))

    thread = threading.Thread(target=work)
    with at_most(0.05):
        thread.start()
        thread.join()
    with pytest.raises(TooSlow), at_most(0.05):
        work()


def test_a_machine_that_stands_still_takes_no_marks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query("a+b", regex=True)
    clock = itertools.count(1.0)
    monkeypatch.setattr("engine_ctl.logs.search.time.monotonic", lambda: next(clock))
    assert [query.spans("xaab") for _ in range(20)] == [[(1, 4)]] * 20


def test_a_timer_that_fires_late_ends_nothing() -> None:
    with at_most(60):
        pass
    signal.raise_signal(signal.SIGVTALRM)  # would end the process by default
