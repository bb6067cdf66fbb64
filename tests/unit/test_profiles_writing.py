"""Saving: comments and order stay, what was meant is what is read, nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.errors import Busy, Failed, Usage
from profiles import writing
from profiles.writing import REMOVE, create, edit, edited, new_text, save_text
from profiles.yaml_source import BadProfile, parse

TEXT = """\
# My chat profile.
extends: chat      # the usual
model: org/m

# Engine.
args:
    max-num-seqs: 64     # tuned on Monday
    -tp: 2
    no-enable-prefix-caching: true
    odd: no
    text: 1e3
    octal: 010
    list:
      - a    # first
      - b
env:
    A: "yes"
"""


def test_only_what_was_changed_changes() -> None:
    got = edited(TEXT, {("args", "odd"): True})
    assert got == TEXT.replace("odd: no", "odd: true")


def test_an_argument_is_changed_where_it_stands() -> None:
    got = edited(
        TEXT,
        {
            ("args", "max_num_seqs"): 128,
            ("args", "tensor_parallel_size"): REMOVE,
            ("args", "enable_prefix_caching"): True,
        },
    )
    assert "max-num-seqs: 128     # tuned on Monday" in got
    assert "-tp" not in got
    assert "no-enable-prefix-caching: false" in got
    assert "# Engine." in got


def test_new_keys_and_sections_come_last() -> None:
    got = edited(TEXT, {("preload", "mode"): "copy", ("tags",): ["a"], ("env", "B"): "x"})
    assert got.startswith(TEXT)
    assert got.removeprefix(TEXT) == "    B: x\npreload:\n    mode: copy\ntags: [a]\n"


@pytest.mark.parametrize(
    "value",
    [
        "no",
        "1e3",
        "12:30",
        "~",
        "",
        "a: b",
        "# x",
        "2024-01-01",
        "ü",
        "a\tb",
        " x ",
        "x\n",
        "x\ny",
        "x\n\ny\n\n",
        "'",
        '"',
        "{",
        "- a",
        "\u2028",
        "\x85",
        "null",
        "0x10",
        "=",
        "<<",
        "*a",
        "!t",
        "%",
    ],
)
def test_texts_are_read_back_as_they_were(value: str) -> None:
    assert parse(edited("model: m\n", {("notes",): value})).data["notes"] == value
    assert parse(new_text({"notes": value})).data["notes"] == value


PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co")), max_size=12),
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1, max_size=8).filter(
    lambda name: (
        name.strip("-_") == name and parse(f"{name}: 1") is not None
        if name not in ("y", "n", "no", "on", "off", "yes", "true", "false", "null")
        else False
    )
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_whatever_is_written_is_read_back(args: dict[str, Any]) -> None:
    try:
        text = new_text({"model": "m", "args": args})
    except Failed:
        return  # refused, not written wrongly
    assert parse(text).data == {"model": "m", "args": args}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["max_num_seqs", "odd", "text", "new"]), VALUES)
def test_an_edit_changes_one_value(name: str, value: Any) -> None:
    try:
        after = parse(edited(TEXT, {("args", name): value})).data
    except Failed:
        return
    before = parse(TEXT).data
    key = "max-num-seqs" if name == "max_num_seqs" else name
    assert after == {**before, "args": {**before["args"], key: value}}


def test_files_keep_their_line_ends_mode_and_links(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_bytes(b"model: m # c\r\nport: 1\r\n")
    real.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    edit(link, {("port",): 2})
    assert real.read_bytes() == b"model: m # c\r\nport: 2\r\n"
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640


def test_an_editor_does_not_overwrite_what_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: a\n")
    with pytest.raises(Busy, match="changed by somebody else"):
        save_text(path, "model: b\n", expected=b"model: other\n")
    with pytest.raises(Busy):
        edit(path, {("port",): 1}, expected=b"model: other\n")
    assert path.read_text() == "model: a\n"
    save_text(path, "model: b\n", expected=b"model: a\n")
    assert path.read_text() == "model: b\n"


def test_text_that_is_no_profile_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: a\n")
    with pytest.raises(BadProfile, match=r"x\.yaml:2: model: is set twice"):
        save_text(path, "model: a\nmodel: b\n")
    assert path.read_text() == "model: a\n"


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: a\n")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Failed, match="No space left on device"):
        save_text(path, "model: b\n")
    assert path.read_text() == "model: a\n"
    assert os.listdir(tmp_path) == ["x.yaml"]


def test_an_edit_that_would_change_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "base: &b {x: 1}\nargs: *b\n"
    with pytest.raises(Failed, match="edit it by hand"):
        edited(text, {("args", "x"): 2})
    assert writing.edited(text, {("port",): 2}).endswith("port: 2\n")


def test_create_does_not_replace(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.yaml"
    create(path, new_text({"model": "m"}, "Made for a test."))
    assert path.read_text() == "# Made for a test.\nmodel: m\n"
    with pytest.raises(Usage, match="exists"):
        create(path, "model: n\n")
