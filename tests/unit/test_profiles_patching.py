"""Edits touch the lines of what they change and no other, whatever the file looks like."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from profiles.loading import MAX_DEPTH, ProfileStore
from profiles.patching import REMOVE, patched
from profiles.writing import create, edit, edited, save_text
from profiles.yaml_source import BadProfile, parse

SCALARS = [
    "1", "0.9", "yes", "no", "~", "text", '"quoted # no comment"', "'it''s'", "32k", "010",
    "2024-01-01", "'ü'", "[1, 2]", "{a: 1, b: [x, y]}", "[]", "{}", '"a\\tb"', "0x1F", ".inf",
]  # fmt: skip
NAMES = ["max_num_seqs", "max-model-len", "dtype", "ключ", "名前", "émo", "a.b", '"x y"', "-tp"]
VALUES: list[Any] = [
    5, "new text", "no", True, REMOVE, [1, 2], {"k": {"l": "v"}}, "two\nlines", "1e3", None, 0.5,
    "# hash", "'", "", "ends\n", "a: b", ["no", "1"], [{"k": 1}],
]  # fmt: skip


@st.composite
def blocks(draw: st.DrawFn, indent: int, step: int, depth: int) -> list[str]:
    """Lines of a map, with comments of their own in all the places that there are."""
    pad, lines = " " * indent, []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        note = draw(st.sampled_from(["", "", "  # nöte", " # a: b"]))
        lines += draw(st.sampled_from([[], [], [""], [pad + "# above"], ["# far left"]]))
        kind = draw(st.sampled_from(["scalar", "scalar", "map", "list", "text"]))
        if kind == "map" and depth < 2:
            lines += [f"{pad}{name}:{note}", *draw(blocks(indent + step, step, depth + 1))]
        elif kind == "list":
            inner = " " * (indent + draw(st.sampled_from([0, step])))
            lines += [f"{pad}{name}:{note}", f"{inner}- a{note}", f"{inner}- {{k: v}}"]
        elif kind == "text":
            lines += [f"{pad}{name}: |{note}", f"{pad}  one", f"{pad}  # text", f"{pad}  two"]
        else:
            lines.append(f"{pad}{name}: {draw(st.sampled_from(SCALARS))}{note}")
    return lines


@st.composite
def profiles(draw: st.DrawFn) -> str:
    step = draw(st.sampled_from([2, 3, 4]))
    head = draw(st.sampled_from([[], ["# My profile.", ""], ["---"]]))
    lines = [*head, "model: org/m  # which", "args:", *draw(blocks(step, step, 0))]
    lines += draw(st.sampled_from([[], ["", "# at the end"], ["env:", "  A: x   # a"]]))
    return draw(st.sampled_from(["\n", "\r\n"])).join([*lines, ""])


@settings(max_examples=250, deadline=None)
@given(profiles(), st.data())
def test_an_edit_touches_its_own_lines_only(text: str, data: st.DataObject) -> None:
    before = parse(text).data
    key = data.draw(st.sampled_from([*before["args"], "brand_new"]))
    value = data.draw(st.sampled_from(VALUES))
    after = edited(text, {("args", key): value})
    wanted = {k: v for k, v in before["args"].items() if k != key}
    got = parse(after).data
    assert {k: v for k, v in got["args"].items() if k != key} == wanted
    assert {k: v for k, v in got.items() if k != "args"} == {
        k: v for k, v in before.items() if k != "args"
    }
    assert (key in got["args"]) == (value is not REMOVE)
    assert value is REMOVE or got["args"][key] == value
    if value is REMOVE and not wanted:
        return
    # Every line that is not the value's own is there as it was, in its place.
    begun, ended = lines_of(text, key)
    rows, new = text.splitlines(keepends=True), after.splitlines(keepends=True)
    assert new[:begun] == rows[:begun]
    assert not rows[ended:] or new[-len(rows[ended:]) :] == rows[ended:]


def lines_of(text: str, key: str) -> tuple[int, int]:
    """The first line of an argument and the one after its last, by indentation alone."""
    rows = text.splitlines()
    start = rows.index("args:") + 1
    indent = re.match(r" *", next(r for r in rows[start:] if r.strip(" ") and r[0] == " "))
    pad = indent[0] if indent else ""
    names = (f"{pad}{key}:", f'{pad}"{key}":')
    own = next((n for n, row in enumerate(rows) if n >= start and row.startswith(names)), None)
    if own is None:
        end = next((n for n in range(start, len(rows)) if re.match(r"\w", rows[n])), len(rows))
        last = max(n for n in range(start, end) if rows[n].startswith(" "))
        while rows[last].lstrip().startswith("# above"):  # a comment is no value's
            last -= 1
        return last + 1, last + 1
    end = own + 1
    deeper = (pad + " ", pad + "- ")
    while end < len(rows) and (rows[end].startswith(deeper) or not rows[end].startswith(pad)):
        if re.match(r"\w", rows[end]):
            break
        end += 1
    while end > own + 1 and not rows[end - 1].startswith(deeper):
        end -= 1
    return own, end


@pytest.mark.parametrize(
    ("text", "keys", "value", "after"),
    [
        ("args: {a: 1, b: 2}\n", ("args", "a"), 3, "args: {a: 3, b: 2}\n"),
        ("args: {a: 1, b: 2}\n", ("args", "a"), REMOVE, "args: {b: 2}\n"),
        ("args: {a: 1, b: 2}\n", ("args", "b"), REMOVE, "args: {a: 1}\n"),
        ("args: {a: 1}\n", ("args", "c"), ["x"], "args: {a: 1, c: [x]}\n"),
        ("args: {}\n", ("args", "c"), {"k": "no"}, "args: {c: {k: 'no'}}\n"),
        ("args: {a: 1}\r\n", ("args", "c"), "x\ny\n", 'args: {a: 1, c: "x\\ny\\n"}\r\n'),
        ("args:\nport: 1\n", ("args", "c"), 1, "args:\n  c: 1\nport: 1\n"),
        ("args:\n    a: 1\n", ("args", "a"), REMOVE, "args: {}\n"),
        ("a: 1", ("b",), 2, "a: 1\nb: 2\n"),
        ("a: |\n  x\n\n# c\nb: 1\n", ("a",), 2, "a: 2\n\n# c\nb: 1\n"),
        ("a: 1  # c\nb: 1\n", ("a",), "x\ny", "a: |-  # c\n  x\n  y\nb: 1\n"),
        ("a:  # c\n- 1\n# d\nb: 1\n", ("a",), [2], "a: [2]  # c\n# d\nb: 1\n"),
        ("a:\n    b: 1\n", ("a", "c", "d"), 2, "a:\n    b: 1\n    c:\n        d: 2\n"),
        ("no: 1\n", ("x",), 1, None),
        ("a: &x {b: 1}\nc: *x\n", ("c", "b"), 2, None),
        ("? a\n: 1\n", ("a",), 2, None),
    ],
)
def test_patches(text: str, keys: tuple[str, ...], value: Any, after: str | None) -> None:
    if after is None and text.startswith("no"):
        with pytest.raises(BadProfile):
            edited(text, {keys: value})
        return
    assert patched(text, keys, value) == after


def test_a_mark_at_the_beginning_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: m\r\nport: 1 # c\r\n")
    edit(path, {("port",): 2})
    assert path.read_bytes() == b"\xef\xbb\xbfmodel: m\r\nport: 2 # c\r\n"


ADD = """
import sys
from pathlib import Path
from profiles import writing
writing._WAIT_S = 120.0
for number in range(12):
    writing.edit(Path(sys.argv[1]), {("args", f"{sys.argv[2]}_{number}"): number})
"""


def test_edits_of_two_processes_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: m # c\nargs:\n  a: 1\n")
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD, str(path), who], stderr=subprocess.PIPE)
        for who in ("x", "y")
    ]
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    assert len(parse(path.read_text()).data["args"]) == 25
    assert os.listdir(tmp_path) == ["x.yaml"]


def test_of_two_that_create_one_does(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.symlink_to(tmp_path / "not there")
    with pytest.raises(Usage, match="exists"):
        create(path, "model: m\n")
    create(path, "model: m\n", replace=True)
    assert (tmp_path / "not there").read_text() == "model: m\n"


FULL = """
import resource, sys
from pathlib import Path
from engine_ctl.errors import Failed
from profiles.writing import create, edit, save_text
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
path = Path(sys.argv[1])
for write in (
    lambda: edit(path, {("notes",): "x" * 100}),
    lambda: save_text(path, "model: " + "n" * 100),
    lambda: create(path.parent / "new.yaml", "model: " + "n" * 100),
):
    try:
        write()
    except Failed as error:
        assert "\\n" not in str(error), error
        print("refused")
"""


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: m\n")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["refused"] * 3, "")
    assert path.read_text() == "model: m\n"
    assert os.listdir(tmp_path) == ["x.yaml"]


@pytest.mark.parametrize("place", ["dir", "loop", "pipe", "gone", "below a file"])
def test_what_cannot_be_written_is_one_line(tmp_path: Path, place: str) -> None:
    path = tmp_path / "x.yaml"
    if place == "dir":
        path.mkdir()
    elif place == "loop":
        path.symlink_to(path)
    elif place == "pipe":
        os.mkfifo(path)
    elif place == "below a file":
        (tmp_path / "f").write_text("")
        path = tmp_path / "f" / "x.yaml"
    with pytest.raises(StokerError) as caught:
        edit(path, {("port",): 2})
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, NotFound) == (place == "gone")
    if place == "below a file":
        with pytest.raises(Failed, match="cannot be made"):
            create(path, "model: m\n")


def test_a_folder_that_somebody_locked_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "x.yaml"
    path.write_text("model: m\n")
    monkeypatch.setattr("profiles.writing._WAIT_S", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="locked by another process"):
            save_text(path, "model: n\n")
    finally:
        os.close(folder)
    save_text(path, "model: n\n")


def chain(folder: Path, count: int) -> ProfileStore:
    for number in range(count):
        above = f"extends: c{number + 1}\n" if number < count - 1 else "model: org/m\n"
        (folder / f"c{number}.yaml").write_text(f"{above}args: {{max_num_seqs: {number}}}\n")
    return ProfileStore(folder)


def test_a_deep_chain_of_parents(tmp_path: Path) -> None:
    got = chain(tmp_path, 50).load("c0")
    assert (got.profile.model, got.profile.args) == ("org/m", {"max_num_seqs": 0})
    assert len(got.files) == 50
    (tmp_path / "far").mkdir()
    with pytest.raises(BadProfile, match=f"more than {MAX_DEPTH} files in a row"):
        chain(tmp_path / "far", 1200).load("c0")


def test_parents_that_multiply_end(tmp_path: Path) -> None:
    for number in range(30):
        for letter in "ab":
            both = f"extends: [a{number + 1}, b{number + 1}]\n" if number < 29 else "model: m\n"
            (tmp_path / f"{letter}{number}.yaml").write_text(both)
    store = ProfileStore(tmp_path)
    with pytest.raises(BadProfile, match=r"a\d+\.yaml: .*extends more than"):
        store.load("a0")
    assert store.load("a25").profile.model == "m"


@pytest.mark.parametrize("kind", ["pipe", "loop", "dir", "socket"])
def test_what_is_no_file_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    import socket

    path = tmp_path / "x.yaml"
    store = ProfileStore(tmp_path)
    made = socket.socket(socket.AF_UNIX)
    try:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "dir":
            path.mkdir()
        else:
            made.bind(os.path.relpath(path))
        assert "x" in store.names()
        with pytest.raises(StokerError, match=r"x\.yaml"):
            store.load(path)
        with pytest.raises(NotFound, match=r"x\.yaml is no file that can be read"):
            store.load("x")
    finally:
        made.close()


def test_a_linked_folder_of_profiles(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    (real / "base.yaml").write_text("model: org/m\n")
    (real / "x.yaml").write_text("extends: [base, ./base.yaml]\nport: 1\n")
    (real / "y.yaml").write_text("extends: ./y.yaml\n")
    store = ProfileStore(link)
    got = store.load("x")
    assert (got.profile.model, store.reference(got.profile)) == ("org/m", "x")
    with pytest.raises(BadProfile, match="extends itself"):
        store.load("y")
    edit(link / "x.yaml", {("port",): 2})
    assert (real / "x.yaml").read_text().endswith("port: 2\n")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "a/../a", "🙂", "X", "x" * 300, "x\n", "~no-such-user/x", "a\0b"]
)
def test_odd_names_are_found_or_not(tmp_path: Path, name: str) -> None:
    for own in ("-x", "🙂", "x", "X"):
        (tmp_path / f"{own}.yaml").write_text(f"model: 'm{own}'\n")
    store = ProfileStore(tmp_path)
    try:
        assert store.load(name).profile.model == f"m{name}"
    except NotFound as error:
        assert name not in ("-x", "🙂", "X")
        assert "\n" not in str(error).replace(name, "")
