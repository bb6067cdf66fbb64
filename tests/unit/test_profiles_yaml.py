"""Reading profile files: YAML as vLLM reads it, and every way in which a file can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.errors import NotFound
from profiles.yaml_source import MAX_BYTES, BadProfile, parse, read

LAUGHS = "\n".join(
    [
        "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]",
        *(
            f"{n}: &{n} [{', '.join([f'*{p}'] * 9)}]"
            for p, n in zip("abcdefg", "bcdefgh", strict=True)
        ),
    ]
)


def test_values_mean_what_they_mean_to_vllm() -> None:
    text = "a: no\nb: 1e3\nc: 32k\nd: 010\ne: 1.5e3\nf: 1_000\ng: ~\nh: 12:30\ni: 'no'\n"
    assert parse(text).data == yaml.safe_load(text)
    assert parse(text).data["a"] is False
    assert parse(text).data["b"] == "1e3"
    assert parse(text).data["c"] == "32k"
    assert parse(text).data["d"] == 8


def test_dates_become_the_text_that_vllm_passes_on() -> None:
    assert parse("a: 2024-01-02").data == {"a": "2024-01-02"}


def test_a_bom_and_windows_line_ends_are_fine() -> None:
    source = parse(b"\xef\xbb\xbfmodel: x\r\nargs:\r\n  dtype: auto\r\n")
    assert source.data == {"model": "x", "args": {"dtype": "auto"}}
    assert source.line("args", "dtype") == 3


def test_places_and_texts_of_keys() -> None:
    source = parse("model: x\nargs:\n  a:\n    b: yes\n")
    assert source.places["args", "a", "b"] == (4, 5)
    assert source.texts["args", "a", "b"] == "yes"
    assert source.line("args", "a", "nothing") == 3


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("a: 1\na: 2", 2, "a", "set twice"),
        ("args:\n  x: 1\n  x: 2", 3, "args.x", "set twice"),
        ("a: {b: {c: 1, c: 2}}", 1, "a.b.c", "set twice"),
        ("a:\n\tb: 1", 2, "", "tab"),
        ("a:\tb", 1, "", "tab"),
        ("\ta: 1", 1, "", "tab"),
        ("no: 1", 1, "", 'write "no"'),
        ("x: 1\n3: y", 2, "", 'write "3"'),
        ("? [a]\n: b", 1, "", "plain word"),
        (b"x: 1\na: \xff\xfe", 2, "", "0xff is not UTF-8"),
        (b"x\xe9: 1", 1, "", "not UTF-8"),
        ("a: \x07", 1, "", "not allowed"),
        ("a: !!python/object/apply:os.system [id]", 1, "", "not allowed"),
        ("a: !!binary aGk=", 1, "a", "not allowed"),
        ("a: !!set {b}", 1, "a", "not allowed"),
        ("a: 1\n---\nb: 2", 2, "", "more than one"),
        ("- a", 1, "", "must be a map"),
        ("x", 1, "", "must be a map"),
        ("a: &a [*a]", 1, "", "contains itself"),
        ("a: &a {b: *a}", 1, "", "contains itself"),
        ("a: *nothing", 1, "", "undefined alias"),
        ("a: 'x", 1, "", "end of stream"),
        ("a: b: c", 1, "", "not allowed here"),
        ("x: 1\na: 2024-99-99", 2, "a", "quote it"),
        pytest.param("x: 1\na: " + "1" * 5000, 2, "a", "quote it", id="digits"),
        pytest.param(LAUGHS, 5, "", "expands to more than", id="laughs"),
    ],
)
def test_bad_files_are_named_with_line_and_key(
    text: str | bytes, line: int, key: str, words: str
) -> None:
    with pytest.raises(BadProfile) as caught:
        parse(text, "chat.yaml")
    assert str(caught.value).startswith(f"chat.yaml:{line}: {key}")
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "a: " + "[" * 3000, "{" * 3000, b"\0" * 9])
def test_hopeless_files_are_refused(text: str | bytes) -> None:
    with pytest.raises(BadProfile, match=r"f\.yaml"):
        parse(text, "f.yaml")


def test_merge_keys_keep_the_places_of_what_overrides() -> None:
    source = parse("x: &x {p: 1, q: 2}\ny:\n  p: 3\n  <<: *x\n")
    assert source.data["y"] == {"p": 3, "q": 2}
    assert source.line("y", "p") == 3
    assert source.line("y", "q") == 1


def test_huge_and_missing_files(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(BadProfile, match="larger than 1 MiB"):
        read(big)
    with pytest.raises(NotFound, match=r"gone\.yaml"):
        read(tmp_path / "gone.yaml")
    with pytest.raises(BadProfile):
        read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("model: x")
    path.chmod(0)
    with pytest.raises(BadProfile, match="Permission denied"):
        read(path)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text("a:-[]{}&*!|>'\"#%@`, \n\t<=?0.", max_size=40)))
def test_no_input_crashes_the_reader(text: bytes | str) -> None:
    try:
        source = parse(text, "f.yaml")
    except BadProfile as error:
        assert str(error).startswith("f.yaml")
    else:
        assert isinstance(source.data, dict)
