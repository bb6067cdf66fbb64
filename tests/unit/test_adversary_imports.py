"""What operators paste, in shapes that nobody had in mind, and what is no command at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl.errors import StokerError
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import KINDS, document, import_profile

CASES: list[dict[str, Any]] = [
    msgspec.json.decode(line)
    for line in (Path(__file__).parents[1] / "data/adversary/imports.jsonl")
    .read_bytes()
    .splitlines()
]
SECRETS = ("SECRETVALUE", "SECRETTOKEN")


def _plain(imported: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(document(imported.profile))))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_adversary_import(case: dict[str, Any]) -> None:
    found = import_profile(case["text"])
    plain = _plain(found)
    keys = ("model", "served_name", "gpus", "host", "port", "args", "env")
    assert found.kind == case["kind"]
    assert {key: plain[key] for key in keys if key in plain} == case["profile"]
    assert len(found.unrepresented) == case["unrepresented"]
    written = json.dumps(plain) + " ".join(found.unrepresented)
    assert not [secret for secret in SECRETS if secret in written]


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_adversary_round_trip(case: dict[str, Any], kind: str) -> None:
    profile = import_profile(case["text"]).profile
    text = export_profile(profile, kind)
    assert not [secret for secret in SECRETS if secret in text]
    again = import_profile(text)
    first, second = document(profile), document(again.profile)
    first.pop("origin", None)
    second.pop("origin", None)
    assert second == first


GARBAGE = {
    "empty": b"",
    "spaces": b" \n\t\n",
    "nul": b"vllm serve m\0--port 1",
    "binary": bytes(range(256)) * 8,
    "elf": b"\x7fELF\x02\x01" + b"\0" * 64,
    "utf16": "vllm serve m".encode("utf-16"),
    "prose": b"please start the server with more memory",
    "deep yaml": b"a: " + b"[" * 3000 + b"]" * 3000,
    "deep map": b"".join(b" " * n + b"a:\n" for n in range(400)),
    "laughs": b"a: &a [x, x]\n"
    + b"".join(b"%c: &%c [*%c, *%c]\n" % (n, n, n - 1, n - 1) for n in range(98, 123)),
    "one line": b"x" * 2_000_000,
    "quotes": b"vllm serve 'm",
    "parens": b"vllm serve m $(" * 500,
    "braces": b"{" * 5000,
    "no model": b"vllm serve --port",
}


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_in_one_line_or_read(name: str, kind: str | None) -> None:
    try:
        import_profile(GARBAGE[name], kind)
    except StokerError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
