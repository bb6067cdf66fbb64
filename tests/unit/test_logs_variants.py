"""A cause does not depend on the shape of the log: every case in every shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_ctl.logs.classify import classify
from tests.unit.test_logs_cases import CASES

DATA = Path(__file__).parents[1] / "data"
_LINE = re.compile(
    r"\((\S+) pid=(\d+)\) (\w+) (\d\d-\d\d \d\d:\d\d:\d\d) \[([\w.]+):(\d+)\] (.*)", re.DOTALL
)


def each(log: str, change: Callable[[str, re.Match[str] | None], str]) -> str:
    lines = []
    for line in log.split("\n"):
        bare = line.rstrip("\r")
        lines.append(change(bare, _LINE.fullmatch(bare)) + line[len(bare) :])
    return "\n".join(lines)


def prefix_on_every_line(log: str) -> str:
    """0.23 to 0.30: tracebacks and everything else carry the process too."""

    def change(line: str, found: re.Match[str] | None) -> str:
        plain = found is None and line.strip() and not re.match(r"usage|[\w. ]+: error: ", line)
        return f"(APIServer pid=4101) {line}" if plain else line

    return each(log, change)


def coloured(log: str) -> str:
    def change(line: str, found: re.Match[str] | None) -> str:
        if found is None:
            return line
        name, pid, level, time, file, number, text = found.groups()
        return (
            f"\x1b[0;36m({name} pid={pid})\x1b[0;0m \x1b[31m{level}\x1b[0m \x1b[90m{time}\x1b[0m "
            f"\x1b[90m[{file}:{number}]\x1b[0m {text}"
        )

    return each(log, change)


def as_json(log: str) -> str:
    out: list[str] = []
    open_record: dict[str, object] | None = None
    goes_on = False
    for line in log.split("\n"):
        found = _LINE.fullmatch(line.rstrip("\r"))
        if found is not None and open_record is not None and goes_on:
            key = "exc_info" if "exc_info" in open_record or "Traceback" in found[7] else "message"
            open_record[key] = "\n".join(filter(None, [str(open_record.get(key, "")), found[7]]))
            goes_on = line.endswith("\r")
            continue
        if open_record is not None:
            out.append(json.dumps(open_record))
            open_record = None
        if found is None:
            out.append(line)
            continue
        open_record = {
            "asctime": f"2026-{found[4]},123",
            "levelname": found[3],
            "name": f"vllm.some.package.{found[5].removesuffix('.py')}",
            "processName": "MainProcess",
            "process": int(found[2]),
            "message": found[7],
            "vllm_process_name": found[1],
        }
        goes_on = line.endswith("\r")
    if open_record is not None:
        out.append(json.dumps(open_record))
    return "\n".join(out)


SHAPES: dict[str, Callable[[str], str]] = {
    "as it is": lambda log: log,
    "0.30": prefix_on_every_line,
    "colour": coloured,
    "json": as_json,
    "debug paths": lambda log: re.sub(r"\[(\w+\.py):", r"[v1/.../engine/\1:", log),
    "another line number": lambda log: re.sub(r"(\.py):(\d+)\]", r"\1:99\2]", log),
    "crlf": lambda log: re.sub(r"\r?\n", "\r\n", log),
    "carriage returns lost": lambda log: log.replace("\r\n", "\n"),
    "logging prefix": lambda log: each(log, lambda line, found: f"blue {line}" if found else line),
    "docker compose": lambda log: each(log, lambda line, _: f"vllm-1  | {line}"),
    "kubernetes": lambda log: each(log, lambda line, _: f"2026-11-20T09:14:02.1Z stderr F {line}"),
    "noise around": lambda log: (
        "Triton is installed, but without a driver.\n"
        "lib/x.py:3: FutureWarning: old\n"
        f'{log}\nnanobind: leaked 4 instances!\n - leaked type "x"\n'
    ),
    "no last newline": lambda log: log.rstrip("\n"),
}
RECORDED = [
    (case["id"], case["expected_category"], case["log"])
    for case in map(json.loads, (DATA / "failures.jsonl").read_text().splitlines())
]
# A converted file has lost which lines are one record; two records of one second from one line
# of source then look like one. What only noise is told by needs the absence of other noise.
EXCEPT = {
    ("crlf", "budget by the old rule"),
    ("crlf", "two servers on one port"),
    ("noise around", "empty"),
    ("noise around", "only imports"),
}


def category(log: str) -> str | None:
    cause = classify(log)
    return cause.category if cause is not None else None


@pytest.mark.parametrize("shape", SHAPES)
def test_every_recorded_failure_in_every_shape(shape: str) -> None:
    change = SHAPES[shape]
    wrong = {}
    for name, expected, log in RECORDED:
        if name[0] == "N" or name in ("F55", "W22"):
            continue
        got = category(change(log))
        if got != expected:
            wrong[name] = (expected, got)
    assert not wrong


@pytest.mark.parametrize("shape", SHAPES)
def test_every_other_wording_in_every_shape(shape: str) -> None:
    change = SHAPES[shape]
    wrong = {}
    for name, expected, log in CASES:
        if (shape, name) in EXCEPT or (shape == "noise around" and expected is None):
            continue
        got = category(change(log))
        if got != expected:
            wrong[name] = (expected, got)
    assert not wrong


@pytest.mark.parametrize(
    ("name", "expected", "log"), [pytest.param(*case, id=case[0]) for case in RECORDED]
)
def test_the_recorded_failures(name: str, expected: str, log: str) -> None:
    cause = classify(log)
    assert cause is not None and cause.category == expected
    assert cause.hint and "\n" not in cause.hint


def test_a_head_that_is_cut_off_leaves_the_cause() -> None:
    """Logs are rotated: half of each failure's lines may be gone, if its exception is not."""
    for name, expected, log in RECORDED:
        lines = log.split("\n")
        places = [i for i, line in enumerate(lines) if re.search(r"\w+Error: |Value error", line)]
        if not places or name in ("F01", "F02", "F03", "F04", "F48", "F49"):
            continue  # told by what came before, which is the point of cutting it
        cut = "\n".join(lines[min(places) :])
        assert category(cut) == expected, name
