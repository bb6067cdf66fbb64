"""The identity of weight files: what is read, what is noticed, what is not read again."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.errors import Failed
from engine_ctl.weights import content


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "a.safetensors").write_bytes(bytes(range(256)) * 4096)
    (path / "b.safetensors").write_bytes(b"b" * 5000)
    (path / "model.safetensors.index.json").write_text("{}")
    (path / "config.json").write_text("{}")
    (path / "old.bin").write_bytes(b"left over")
    return path


@given(st.integers(min_value=0, max_value=1 << 50))
def test_ranges(size: int) -> None:
    ranges = content.sample_ranges(size)
    assert sum(length for _, length in ranges) <= content.SAMPLE_LIMIT
    assert all(at >= 0 and at + length <= size for at, length in ranges)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ranges))
    if size:
        assert ranges[0][0] == 0 and sum(ranges[-1]) == size
    if size <= content.SAMPLE_LIMIT:
        assert sum(length for _, length in ranges) == size
    assert ranges == content.sample_ranges(size)


def test_a_large_file_is_sampled_at_both_ends_and_between(tmp_path: Path) -> None:
    size = 3 << 30
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.truncate(size)
    first = content.record("m", tmp_path)
    ranges = content.sample_ranges(size)
    for place in (0, size - 1, ranges[len(ranges) // 2][0]):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        now = content.record("m", tmp_path)
        assert content.differences(first, now) == (
            "m.safetensors has other content than the daemon loaded",
        )
        first = now


def test_same_files_are_the_same(model: Path) -> None:
    record = content.record("m", model)
    assert [f.name for f in record.files] == [
        "a.safetensors",
        "b.safetensors",
        "model.safetensors.index.json",
    ]
    assert content.differences(record, content.record("m", model)) == ()
    assert not content.needs_reading(record, model)


def test_a_copy_elsewhere_is_the_same(model: Path, tmp_path: Path) -> None:
    import shutil

    record = content.record("m", model)
    shutil.copytree(model, tmp_path / "copy")
    now = content.record("m", tmp_path / "copy")
    assert content.needs_reading(record, tmp_path / "copy")
    assert content.differences(record, now) == ()


def test_touched_files_are_read_again_and_found_the_same(model: Path) -> None:
    record = content.record("m", model)
    os.utime(model / "a.safetensors", (1, 1))
    assert content.needs_reading(record, model)
    assert content.differences(record, content.record("m", model, record)) == ()


def test_unchanged_files_are_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = content.record("m", model)
    monkeypatch.setattr(content, "_sample", lambda fd, size: pytest.fail("it was read"))
    assert content.record("m", model, record) == record


def test_every_kind_of_change_is_said(model: Path) -> None:
    record = content.record("m", model)
    data = bytearray((model / "a.safetensors").read_bytes())
    data[1000] ^= 1
    (model / "a.safetensors").write_bytes(data)
    (model / "b.safetensors").write_bytes(b"b" * 5001)
    (model / "c.safetensors").write_bytes(b"c")
    (model / "model.safetensors.index.json").unlink()
    assert content.differences(record, content.record("m", model)) == (
        "model.safetensors.index.json is gone",
        "c.safetensors is new",
        "a.safetensors has other content than the daemon loaded",
        "b.safetensors has 5001 bytes, the daemon loaded 5000",
    )


def test_a_symlink_is_followed(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "a.safetensors").symlink_to(model / "a.safetensors")
    (file,) = content.record("m", snapshot).files
    assert file.path == str(model / "a.safetensors")


def test_replaced_while_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model / "a.safetensors"
    original = os.pread

    def replacing(fd: int, count: int, offset: int) -> bytes:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"other")
        fresh.rename(path)
        monkeypatch.setattr(os, "pread", original)
        return original(fd, count, offset)

    monkeypatch.setattr(os, "pread", replacing)
    with pytest.raises(content.Replaced, match="changed while it was read") as caught:
        content.record("m", model)
    assert "\n" not in str(caught.value)


def test_vanishing_while_listed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = content.weight_files

    def vanishing(directory: Path) -> list[Path]:
        found = original(directory)
        (model / "b.safetensors").unlink()
        return found

    monkeypatch.setattr(content, "weight_files", vanishing)
    with pytest.raises(content.Replaced, match="vanished"):
        content.record("m", model)


def test_growing_while_read(model: Path) -> None:
    """A checkpoint that is still being copied in."""
    stop = threading.Event()

    def copy() -> None:
        with (model / "a.safetensors").open("ab") as file:
            while not stop.is_set():
                file.write(b"x" * 4096)
                file.flush()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        with pytest.raises(content.Replaced, match="wait until the copy is complete"):
            for _ in range(1000):
                content.record("m", model)
    finally:
        stop.set()
        thread.join()


def test_nothing_to_identify(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="no weight files"):
        content.record("m", tmp_path)
    with pytest.raises(Failed, match="cannot be read"):
        content.record("m", tmp_path / "nowhere")


def test_model_directory(tmp_path: Path) -> None:
    assert content.model_directory(str(tmp_path), None, {}) == tmp_path
    env = {"HF_HOME": str(tmp_path / "hf")}
    assert content.model_directory("org/name", None, env) is None
    repository = tmp_path / "hf" / "hub" / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc\n")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "def").mkdir()
    assert content.model_directory("org/name", None, env) == repository / "snapshots" / "abc"
    assert content.model_directory("org/name", "def", env) == repository / "snapshots" / "def"
    assert content.model_directory("org/name", "nope", env) is None
    assert content.model_directory("/not/here", None, env) is None
