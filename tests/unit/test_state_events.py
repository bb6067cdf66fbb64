from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from engine_ctl.model import Event
from engine_ctl.paths import Dirs
from engine_ctl.state import events
from engine_ctl.state.store import Store
from engine_ctl.supervise import disk
from tests.standin.rig import dirs_in


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    made = dirs_in(tmp_path)
    Store(made)
    return made


def test_the_last_events_in_order(dirs: Dirs) -> None:
    for number in range(20):
        unit = "a" if number % 2 else "b"
        events.append(dirs, Event(at=float(number), unit=unit, text=f"n{number}", by="test"))
    assert [event.text for event in events.last(dirs, 3)] == ["n17", "n18", "n19"]
    assert [event.text for event in events.last(dirs, 2, unit="b")] == ["n16", "n18"]
    assert len(events.last(dirs, 1000)) == 20


def test_none_yet(dirs: Dirs) -> None:
    assert events.last(dirs, 5) == []


def test_text_with_newlines_stays_one_record(dirs: Dirs) -> None:
    made = events.record(dirs, "a", "two\nlines", severity="error", by="me")
    assert events.last(dirs, 5) == [made]


def test_damaged_lines_are_skipped(dirs: Dirs) -> None:
    events.record(dirs, "a", "one")
    with (dirs.state / "events.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "unit"\n\xff\xfe\n{}\n')
    events.record(dirs, "a", "two")
    assert [event.text for event in events.last(dirs, 5)] == ["one", "two"]


def test_the_shim_writes_the_same_shape(dirs: Dirs) -> None:
    disk.event(str(dirs.state), "demo", "demo/1 failed", "error")
    (event,) = events.last(dirs, 5)
    assert (event.unit, event.text, event.severity, event.by) == (
        "demo",
        "demo/1 failed",
        "error",
        "shim",
    )


def test_rotation_keeps_the_newest(dirs: Dirs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROTATE_BYTES", 2000)
    monkeypatch.setattr(events, "_CHUNK", 64)
    for number in range(100):
        assert events.append(dirs, Event(at=float(number), unit=None, text=f"n{number}"))
    names = sorted(path.name for path in dirs.state.glob("events*"))
    assert names == ["events.jsonl", "events.jsonl.1"]
    assert sum(path.stat().st_size for path in dirs.state.glob("events*")) < 2 * 2000 + 200
    last = [event.text for event in events.last(dirs, 30)]
    assert last == [f"n{number}" for number in range(70, 100)]


def test_writers_do_not_mix_their_lines(dirs: Dirs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROTATE_BYTES", 40_000)

    def write(name: str) -> None:
        for number in range(50):
            events.record(dirs, name, f"{name}{number}" + "x" * 200)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = events.last(dirs, 1000)
    assert len(read) >= 100
    for name in "abcd":
        texts = [event.text for event in read if event.unit == name]
        assert texts == sorted(texts, key=lambda text: int(text[1:].rstrip("x")))


def test_a_full_disk_loses_events_and_nothing_else(
    dirs: Dirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.record(dirs, "a", "kept")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if data.startswith(b"{"):
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    assert not events.append(dirs, Event(at=0.0, unit="a", text="lost"))
    disk.event(str(dirs.state), "a", "lost too")
    monkeypatch.setattr(os, "write", real)
    assert [event.text for event in events.last(dirs, 5)] == ["kept"]


def test_following_gives_the_last_ones_then_each_new_one_across_rotation(
    dirs: Dirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        events.append(dirs, Event(at=float(number), unit="a", text=f"n{number}"))
    seen = events.follow(dirs, 2, lambda event: event.unit == "a", pause_s=0.001)
    assert [next(seen).text, next(seen).text] == ["n3", "n4"]
    events.append(dirs, Event(at=5.0, unit="b", text="another's"))
    events.append(dirs, Event(at=5.0, unit="a", text="n5"))
    assert next(seen).text == "n5"
    monkeypatch.setattr(events, "ROTATE_BYTES", 1)
    events.append(dirs, Event(at=6.0, unit="a", text="n6"))
    monkeypatch.setattr(events, "ROTATE_BYTES", 1 << 20)
    events.append(dirs, Event(at=7.0, unit="a", text="n7"))
    assert next(seen).text == "n6"
    assert next(seen).text == "n7"
    seen.close()


def test_following_begins_before_there_is_a_file(dirs: Dirs) -> None:
    seen = events.follow(dirs, 10, pause_s=0.001)
    writer = threading.Thread(target=events.record, args=(dirs, "a", "first"))
    writer.start()
    try:
        assert next(seen).text == "first"
    finally:
        writer.join()
        seen.close()


def test_a_pipe_in_the_place_of_the_events_keeps_nobody_waiting(dirs: Dirs) -> None:
    os.mkfifo(dirs.state / "events.jsonl")
    assert not events.append(dirs, Event(at=0.0, unit="a", text="lost"))
    disk.event(str(dirs.state), "a", "lost too")
    assert events.last(dirs, 5) == []
