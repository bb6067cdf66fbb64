"""The end of a log: growth, bursts, truncation, replacement, progress bars."""

from __future__ import annotations

import os
from pathlib import Path

from console.tail import Tail, TailThread
from tests.standin.rig import until


def test_lines_come_whole_and_a_part_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\npar")
    tail = Tail(str(path))
    assert tail.poll() and tail.lines == ("one", "two", "par")
    with path.open("ab") as file:
        file.write(b"tial\nnext\n")
    assert tail.poll() and tail.lines == ("one", "two", "partial", "next")
    assert not tail.poll()


def test_a_burst_costs_one_bounded_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(50_000)))
    tail = Tail(str(path))
    assert tail.poll()
    assert tail.lines[-1] == "line 49999" and len(tail.lines) <= 400
    assert all(text.startswith("line ") for text in tail.lines)


def test_truncation_and_replacement_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"long line\n" * 10)
    tail = Tail(str(path))
    tail.poll()
    path.write_bytes(b"new\n")
    assert tail.poll() and tail.lines == ("new",)
    other = tmp_path / "other"
    other.write_bytes(b"replaced, and longer than before\n")
    os.replace(other, path)
    assert tail.poll() and tail.lines == ("replaced, and longer than before",)
    path.unlink()
    assert tail.poll() and tail.lines == ()


def test_a_progress_bar_is_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\rload: 25%| 1/4\rload: 50%| 2/4\r\nINFO done\r\n")
    tail = Tail(str(path))
    tail.poll()
    assert tail.lines == ("load: 50%| 2/4", "INFO done")


def test_our_own_polls_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    poll = b'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK\n'
    path.write_bytes(b"start\n" + poll * 3 + poll.replace(b"200", b"503") + b"end\n")
    tail = Tail(str(path))
    tail.poll()
    assert [text[-6:] for text in tail.lines] == ["start", "503 OK", "end"]


def test_bytes_that_are_not_text_survive(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00bad\n")
    tail = Tail(str(path))
    assert tail.poll() and "bad" in tail.lines[0]


def test_the_thread_follows_what_it_is_told_and_ends(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("first\n")
    two.write_text("second\n")
    seen: list[tuple[str | None, tuple[str, ...]]] = []
    thread = TailThread(lambda path, lines: seen.append((path, lines)), every=0.01)
    thread.start()
    try:
        thread.watch(str(one))
        until(lambda: seen[-1:] == [(str(one), ("first",))], "the first file")
        thread.watch(str(two))
        until(lambda: seen[-1:] == [(str(two), ("second",))], "the second file")
    finally:
        thread.stop()
        thread.join(100)
    assert not thread.is_alive()
