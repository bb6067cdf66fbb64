"""Failures and healthy runs written against the rules by somebody who had not read them.

The wordings follow the sources of vLLM 0.30 to 0.33, torch, NCCL and the hub's client; the files
are dressed as containers, journald, Kubernetes, JSON and colour dress them. `hint` are words that
the advice must carry: the numbers and names of the text, and the knob to turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl.logs.classify import classify, classify_file

CASES: list[dict[str, Any]] = [
    msgspec.json.decode(line)
    for line in (Path(__file__).parents[1] / "data/adversary/logs.jsonl").read_bytes().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_adversary(case: dict[str, Any]) -> None:
    cause = classify(case["log"])
    if case["category"] is None:
        assert cause is None
        return
    assert cause is not None
    assert cause.category == case["category"]
    assert [word for word in case["hint"] if word not in cause.hint] == []
    assert cause.line.strip()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 4096,
        b"\x7fELF" + bytes(range(256)) * 64,
        b"\xff\xfe" + "EngineCore failed to start.\n".encode("utf-16-le"),
        b"\x1f\x8b\x08" + bytes(range(255, -1, -1)) * 64,
        b"\n" * 10_000,
        b"\r" * 10_000,
        b"{" * 10_000 + b"}",
        b"(" * 10_000,
        b"Traceback (most recent call last):",
        b"a" * 3_000_000,
    ],
    ids=[
        "empty",
        "nul",
        "elf",
        "utf16",
        "gzip",
        "newlines",
        "returns",
        "json",
        "paren",
        "cut",
        "1",
    ],
)
def test_what_is_no_log_has_no_known_cause(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    cause = classify_file(tmp_path / "log")
    assert cause is None or cause.category == "unknown"
