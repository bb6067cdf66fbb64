"""What is read of logs of any size: bounded, and with the line that says the cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_ctl.logs import excerpt as module
from engine_ctl.logs.classify import classify, classify_file
from engine_ctl.logs.errors import joined
from engine_ctl.logs.excerpt import LONG_LINE, LONG_RECORD, excerpt, shortened
from engine_ctl.logs.lines import records_of

HEAD = (
    b"(APIServer pid=1) INFO 11-29 14:02:00 [api_utils.py:286] non-default args: {'model': 'x'}\n"
)
ERROR = b"(EngineCore pid=2) ERROR 11-29 14:02:06 [core.py:9] "
NOISE = b'(APIServer pid=1) INFO:     10.0.0.1:5 - "GET /health HTTP/1.1" 200 OK\n'
BIG = 3 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs need not be that big to be cut."""
    for name in ("HEAD_BYTES", "TAIL_BYTES", "BETWEEN_BYTES"):
        monkeypatch.setattr(module, name, 1 << 19)


def line_of(data: bytes, tmp_path: Path) -> str:
    path = tmp_path / "log"
    path.write_bytes(data)
    found = classify_file(path)
    assert found is not None
    return found.line


def test_short_lines_stay_as_they_are() -> None:
    data = HEAD + NOISE * 3000 + b"no end"
    assert shortened(data) is data


@pytest.mark.parametrize("end", [b"", b"\n", b"\nlast"])
def test_a_long_line_keeps_its_beginning_and_end(end: bytes) -> None:
    data = b"first\nbegins " + b"x" * (5 * LONG_LINE) + b" ends" + end
    short = shortened(data)
    assert short.startswith(b"first\nbegins ")
    assert short.endswith(b" ends" + end)
    assert len(short) < 2 * LONG_LINE


def test_long_json_stays_json() -> None:
    record = {"levelname": "ERROR", "message": 'a "quoted" word\n' * 100_000 + "ValueError: no"}
    short = shortened(json.dumps(record).encode() + b"\n")
    assert json.loads(short)["message"].endswith("ValueError: no")


@pytest.mark.parametrize(
    "data",
    [
        HEAD + ERROR + b"x" * BIG + b"\n" + ERROR + b"ValueError: no\n",
        HEAD
        + b"".join(ERROR + b"line %d of it\n" % n for n in range(BIG // 66))
        + ERROR
        + b"ValueError: no\n",
        HEAD
        + b"Traceback (most recent call last):\n"
        + b'  File "a.py", line 1, in f\n    do_it_again()\n' * (BIG // 46)
        + b"ValueError: no\n",
        HEAD
        + json.dumps(
            {"levelname": "ERROR", "message": "a b\n" * (BIG // 4) + "ValueError: no"}
        ).encode()
        + b"\n",
        HEAD + b"\rLoading:  10% 1/9 [00:00<?]" * (BIG // 28) + b"\nValueError: no\n",
    ],
    ids=["line", "joined", "traceback", "json", "bars"],
)
def test_one_record_of_many_megabytes(data: bytes, tmp_path: Path) -> None:
    assert line_of(data, tmp_path) == "ValueError: no"
    assert len(excerpt(tmp_path / "log")) < len(data)


def test_an_exception_in_the_middle_of_a_long_record_is_kept() -> None:
    frames = b'  File "a.py", line 1, in f\n    do_it_again()\n' * (LONG_RECORD // 46)
    data = (
        b"Traceback (most recent call last):\n"
        + frames
        + b"  ValueError: in a group\n"
        + frames
        + b"RuntimeError: last\n"
    )
    (record,) = joined(list(records_of(data)))
    assert len(record.message) < LONG_RECORD * 1.1
    assert "ValueError: in a group" in record.message
    assert record.message.endswith("RuntimeError: last")


def test_the_error_between_head_and_tail_is_not_missed(tmp_path: Path) -> None:
    noise = NOISE * ((2 << 20) // len(NOISE))
    data = HEAD + noise + ERROR + b"EngineCore failed to start.\n" + ERROR + b"ValueError: no\n"
    data += noise
    assert line_of(data, tmp_path) == "ValueError: no"


def test_a_flood_of_errors_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(HEAD + b"".join(ERROR + b"no %d\n" % n for n in range(100_000)))
    assert len(excerpt(path)) < 5 << 19


def test_bytes_and_files_agree_on_a_long_line(tmp_path: Path) -> None:
    data = HEAD + b"ValueError: " + b"z " * LONG_LINE + b"\n"
    path = tmp_path / "log"
    path.write_bytes(data)
    assert classify(data) == classify_file(path)
