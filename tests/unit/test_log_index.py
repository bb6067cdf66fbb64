"""The index against a naive reading of the same bytes: from any place, in any order of steps,
with holes, carriage returns, growth, truncation and replacement. Blocks are made small."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_ctl.errors import Usage
from engine_ctl.logs import blocks, index, view_merge, view_merging
from engine_ctl.logs.blocks import EveryLine
from engine_ctl.logs.index import RowIndex
from engine_ctl.logs.index_file import Change, LogFile
from engine_ctl.logs.search import Query, _literals
from engine_ctl.logs.view import ERROR, WARNING, Choice, Opened, ViewScan, part, scan_for

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings" / "cpu-vllm-0.32.0"

LINES = st.sampled_from(
    [
        b"",
        b"x",
        b"\rbar 10%\rbar 20%",
        b"\0\0\0after a hole",
        b'INFO:     10.0.0.1:4 - "GET /health HTTP/1.1" 200 OK',
        b'INFO:     10.0.0.1:5 - "GET /health HTTP/1.1" 200 OK',
        b"(EngineCore pid=7) INFO 11-29 14:02:05 [core.py:10] hello",
        b"(EngineCore pid=7) WARNING 11-29 14:02:05 [core.py:11] the KV cache is full",
        b"(APIServer pid=8) ERROR 11-29 14:02:06 [async_llm.py:9] Traceback (most recent:\r",
        b'(APIServer pid=8) ERROR 11-29 14:02:06 [async_llm.py:9]   File "a.py"\r',
        b"(APIServer pid=8) ERROR 11-29 14:02:06 [async_llm.py:9] ValueError: no",
        b"Traceback (most recent call last):",
        b'  File "a.py", line 1, in f',
        b"ValueError: no",
        b"\x1b[0;36m(EngineCore pid=7)\x1b[0;0m \x1b[33mWARNING\x1b[0m \x1b[90m11-29 14:02:05"
        b"\x1b[0m \x1b[90m[core.py:11]\x1b[0m coloured",
        b'{"asctime": "2026-11-29 14:02:05,1", "levelname": "ERROR", "message": "json"}',
        b"[W1129 17:31:23.6 utils.cpp:68] native",
    ]
)
LOGS = st.tuples(st.lists(LINES, max_size=60), st.booleans()).map(
    lambda drawn: b"\n".join(drawn[0]) + (b"\n" if drawn[1] and drawn[0] else b"")
)


@contextmanager
def small_blocks(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, index, view_merge, view_merging):
            patch.setattr(module, "BLOCK", size)
        patch.setattr(blocks, "_MORE", 16)
        patch.setattr(blocks, "FEW", 2)
        patch.setattr(index, "_AT_ONCE", 2)
        patch.setattr(blocks._buffers, "data", bytearray(blocks.LOOKBACK + size + 16))
        yield


@contextmanager
def logged(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        yield path


def naive(data: bytes) -> list[tuple[int, bytes]]:
    """(position, line) of every line."""
    out, at = [], 0
    for line in data.split(b"\n"):
        if at < len(data):
            out.append((at, line))
        at += len(line) + 1
    return out


def positions(rows: RowIndex) -> list[int | None]:
    return [rows.row(number) for number in range(rows.first, rows.stop)]


def build(rows: RowIndex) -> RowIndex:
    while rows.step():
        pass
    assert rows.complete
    return rows


@given(data=LOGS, size=st.integers(24, 300), share=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_every_line_from_any_place(data: bytes, size: int, share: float) -> None:
    with small_blocks(size), logged(data) as path:
        file = LogFile(path)
        rows = RowIndex(file, EveryLine(), int(len(data) * share))
        seen: dict[int, int | None] = {}
        more = True
        while more:
            # A number that is known never means another line.
            for number in range(rows.first, rows.stop):
                place = rows.row(number)
                assert seen.setdefault(number, place) == place
            more = rows.step()
        expected = naive(data)
        assert positions(rows) == [at for at, _ in expected]
        for number, (at, line) in enumerate(expected, rows.first):
            assert rows.at(at) == number
            assert rows.at(at + len(line)) == number
            assert file.line(at) == line.replace(b"\0", b"")
            assert file.line_end(at) == min(at + len(line) + 1, len(data))


@given(parts=st.lists(LOGS, min_size=1, max_size=6), size=st.integers(24, 300))
@example([b"a" * 52, b"b" * 52 + b"\n" + b"c" * 115, b"\rbar 10%\rbar 20%"], 106)
@settings(max_examples=100, deadline=None)
def test_growth_gives_the_same_as_reading_anew(parts: list[bytes], size: int) -> None:
    scans = [EveryLine(), Query("KV cache"), ViewScan(Choice(level=WARNING), False, Opened())]
    with small_blocks(size), logged(parts[0]) as path:
        file = LogFile(path)
        grown = [RowIndex(file, scan) for scan in scans]
        for piece in parts[1:]:
            with path.open("ab") as out:
                out.write(piece)
            if file.poll() is Change.GREW:
                for rows in grown:
                    rows.step()
                    rows.grow()
        for rows, scan in zip(grown, scans, strict=True):
            assert positions(build(rows)) == positions(build(RowIndex(file, scan, 0)))


@given(data=LOGS, size=st.integers(24, 300), fold=st.booleans(), level=st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_choices_and_folds_do_not_depend_on_blocks(
    data: bytes, size: int, fold: bool, level: int
) -> None:
    choice = Choice(level=level)
    with logged(data) as path:
        file = LogFile(path)
        whole = ViewScan(choice, fold, Opened())
        start, end = 0, len(data)
        found = whole._scan(start, data, b"") if end else None
        with small_blocks(size):
            rows = build(RowIndex(file, ViewScan(choice, fold, Opened()), end // 2))
            expected = list(found.rows) if found else []
            assert positions(rows) == expected
            if fold and found:
                assert [rows.folded(n) for n in range(rows.first, rows.stop)] == list(found.more)


@given(
    data=LOGS,
    size=st.integers(24, 300),
    text=st.sampled_from(["KV", "kv cache", "ERROR", "e", "(", 'File "a', "é", "Trace"]),
    regex=st.booleans(),
    case=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_plain_searches(data: bytes, size: int, text: str, regex: bool, case: bool) -> None:
    query = Query(re.escape(text) if regex else text, regex=regex, case=case)
    expected = []
    for at, line in naive(data):
        shown = line if case else line.lower()
        if (text if case else text.lower()).encode() in shown:
            expected.append(at)
    with small_blocks(size), logged(data) as path:
        rows = build(RowIndex(LogFile(path), query, len(data) // 2))
        assert positions(rows) == expected
    assert query.count_in(data) == len(expected)
    assert list(query.starts(data)) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        r"KV.*full",
        r"^\(EngineCore",
        r"no$",
        r"(WARN|ERR)\w+ \d",
        r"hello|json",
        r"[Hh]ello",
        r"x*",
        r"^$",
        r"a(?=\.py)",
        r"(?i)kv CACHE",
        r"(Value)(Error)",
        r"T\w+\s",
        r"[^K]V cache",
        r"(?:KV )?cache",
        r"l{2}o",
        r"\bno\b",
    ],
)
@given(data=LOGS)
@settings(max_examples=40, deadline=None)
def test_expressions_match_line_by_line(pattern: str, data: bytes) -> None:
    expected = [at for at, line in naive(data) if re.search(pattern.encode(), line)]
    query = Query(pattern, regex=True)
    assert list(query.starts(data)) == expected
    dense = data * 8
    with logged(dense) as path:
        rows = build(RowIndex(LogFile(path), query))
        assert len(rows) == sum(bool(re.search(pattern.encode(), ln)) for _, ln in naive(dense))


def test_literals_that_every_match_contains() -> None:
    assert _literals("Running: \\d+ reqs", 0) == [(b"Running: ",), (b" reqs",)]
    assert _literals("ab|cde", 0) == [(b"ab", b"cde")]
    assert _literals("(abc)?x", 0) == []
    assert _literals("a|.*", 0) == []
    assert _literals("KV", re.IGNORECASE) == [(b"kv",)]


def test_a_bad_expression_is_said_in_one_line() -> None:
    with pytest.raises(Usage, match="not a regular expression"):
        Query("(", regex=True)


def test_truncation_and_replacement_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    file = LogFile(path)
    assert file.poll() is Change.SAME
    with path.open("ab") as out:
        out.write(b"three\n")
    assert file.poll() is Change.GREW
    os.truncate(path, 4)
    assert file.poll() is Change.REPLACED
    # Cut and grown past its old size between two looks: told by what stood at its end.
    file = LogFile(path)
    path.write_bytes(b"something quite different and longer\n")
    assert file.poll() is Change.REPLACED
    file = LogFile(path)
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    other.rename(path)
    assert file.poll() is Change.REPLACED
    # A deleted file can still be read.
    file = LogFile(path)
    path.unlink()
    assert file.poll() is Change.SAME
    assert file.line(0).startswith(b"something")


def test_a_punched_middle_is_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = b"(EngineCore pid=7) INFO 11-29 14:02:05 [core.py:10] %06d\n"
    path.write_bytes(b"".join(line % n for n in range(60000)))
    file = LogFile(path)
    before = len(build(RowIndex(file, EveryLine())))
    assert before == 60000
    length = 2 << 20
    done = subprocess.run(
        ["fallocate", "-p", "-o", str(1 << 20), "-l", str(length), str(path)], capture_output=True
    )
    if done.returncode:
        pytest.skip("this file system punches no holes")
    assert file.poll() is Change.REPLACED
    file = LogFile(path)
    assert file.sparse
    rows = build(RowIndex(file, EveryLine()))
    data = path.read_bytes()
    assert positions(rows) == [at for at, _ in naive(data)]
    around = file.line(rows.row(rows.at(2 << 20)) or 0).decode()
    assert "2.0 MiB of this log were trimmed" in around
    assert around.startswith("(EngineCore pid=7)")
    found = build(RowIndex(file, Query("(EngineCore pid=7) INFO 11-29 14:02:05 [core.py:10] 059")))
    assert len(found) == 1000


def test_a_very_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short\n" + b"x" * (3 << 20) + b"\nlast\n")
    file = LogFile(path)
    rows = build(RowIndex(file, EveryLine()))
    assert len(rows) == 3
    assert file.line(6).endswith(b"KiB more")
    assert file.line(rows.row(rows.stop - 1) or 0) == b"last"


def test_folds_of_a_recorded_log() -> None:
    file = LogFile(RECORDINGS / "killcore.log")
    rows = build(RowIndex(file, scan_for(Choice(), True)))
    folds = {
        file.line(rows.row(n) or 0).decode()[-30:]: rows.folded(n)
        for n in range(rows.first, rows.stop)
        if rows.folded(n)
    }
    assert folds["cher.py:186] Available routes are:"[-30:]] == 35
    assert folds["AsyncLLM output_handler failed.\r"[-30:]] == 7
    shown = len(rows) + sum(rows.folded(n) for n in range(rows.first, rows.stop))
    assert shown == len(build(RowIndex(file, EveryLine())))


def test_an_opened_fold_shows_its_lines() -> None:
    file = LogFile(RECORDINGS / "killcore.log")
    opened = Opened()
    rows = build(RowIndex(file, scan_for(Choice(), True, opened)))
    number = next(n for n in range(rows.first, rows.stop) if rows.folded(n) == 35)
    start, end = rows.row(number) or 0, rows.row(number + 1) or 0
    before = len(rows)
    rows.again(*opened.toggle(start, end))
    assert len(rows) == before + 35
    rows.again(*opened.toggle(start, end))
    assert len(rows) == before


@pytest.mark.parametrize("name", ["killcore", "color", "json", "debug", "tp2"])
def test_levels_by_words_are_the_levels_line_by_line(name: str) -> None:
    file = LogFile(RECORDINGS / f"{name}.log")
    data = file.read(0, file.size)
    for level in (WARNING, ERROR):
        scan = ViewScan(Choice(level=level), False, Opened())
        assert list(scan.find(file, 0).rows) == list(scan._scan(0, data, b"").rows)


@pytest.mark.parametrize(
    ("line", "who", "level"),
    [
        (b"(EngineCore pid=7) INFO 11-29 14:02:05 [core.py:10] x", b"EngineCore", 1),
        (b'(APIServer pid=7) INFO:     10.0.0.1:4 - "GET / HTTP/1.1" 200 OK', b"APIServer", 1),
        (b"node-3: (EngineCore pid=7) ERROR 11-29 14:02:05 [core.py:1] x", b"EngineCore", 3),
        (b"vllm-1  | (EngineCore pid=7) WARNING 11-29 14:02:05 [core.py:1] x", b"EngineCore", 2),
        (b"[rank0]:[E1129 17:31:23.6 x.cpp:68] native", b"", 3),
        (b'{"levelname": "WARNING", "message": "m", "vllm_process_name": "Worker"}', b"Worker", 2),
        (b"lib/a.py:138: FutureWarning: old", b"", 2),
        (b"no level at all", b"", None),
    ],
)
def test_parts_of_a_line(line: bytes, who: bytes, level: int | None) -> None:
    found = part(line)
    assert (found.who, found.level) == (who, level)
