"""Arithmetic of shells in pasted scripts."""

from __future__ import annotations

import pytest

from profiles.importing.arithmetic import arithmetic


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(8000 + 1)", 8001),
        ("($PORT+RANK)", 8003),
        ("(2*(3-5))", -4),
        ("(7/2)", 3),
        ("((0-7)/2)", -3),
        ("((0-7)%2)", -1),
        ("(9" + "9" * 400 + "/3)", int("9" + "9" * 400) // 3),
        ("(1/0)", None),
        ("(7%0)", None),
        ("(UNKNOWN+1)", None),
        ("(1.5+1)", None),
        ("(1+)", None),
        ("(__import__('os'))", None),
        ("(2**99999999)", None),
        ("(" * 5000 + "1" + ")" * 5000, None),
        ("(" + "-" * 20000 + "1)", None),
        ("1+1", None),
        ("()", None),
        ("(1\x00)", None),
    ],
)
def test_whole_numbers_and_known_names_only(text: str, value: int | None) -> None:
    assert arithmetic(text, {"PORT": 8000, "RANK": 3}) == value
