"""`profile import`: names that are none, and texts that are too large to start an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console.main import run
from engine_ctl.paths import Dirs
from profiles.importing import MAX_BYTES, import_profile


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return Dirs.from_env()


@pytest.fixture
def paste(tmp_path: Path) -> Path:
    file = tmp_path / "paste.sh"
    file.write_text("docker run -v ./m:/models vllm/vllm-openai:v0.33.0 --model /models/X\n")
    return file


@pytest.mark.parametrize(
    "name", ["../../x", "-x", "--name", "a b", ".x", "a/b", "", "a\nb", "a:b", "x" * 300 + " "]
)
@pytest.mark.usefixtures("dirs")
def test_what_cannot_name_a_profile(
    name: str, paste: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["profile", "import", "--from", str(paste), f"--name={name}"])
    out, err = capsys.readouterr()
    if not name:  # no name: printed, not saved
        assert status == 0
        return
    assert (status, out) == (2, "")
    assert "letters, digits, . _ -" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["x", "a-b_c.d", "0", "été"])
def test_what_can_name_a_profile(name: str, paste: Path, dirs: Dirs) -> None:
    assert run(["profile", "import", "--from", str(paste), "--name", name]) == 0
    assert (dirs.profiles / f"{name}.yaml").exists()


def test_an_odd_file_of_the_operators_own_can_be_removed(dirs: Dirs) -> None:
    dirs.profiles.mkdir(parents=True)
    file = dirs.profiles / "a b.yaml"
    file.write_text("model: m\n")
    assert run(["profile", "remove", "a b", "--yes"]) == 0
    assert not file.exists()


def test_relative_mounts_count_from_the_files_folder(
    paste: Path, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "import", "--from", str(paste)]) == 0
    out, err = capsys.readouterr()
    assert f"model: {paste.parent}/m/X\n" in out
    assert f"note: model: /models in the container is {paste.parent}/m on the host\n" in err


@pytest.mark.parametrize("text", [b"echo x\n" * 200_000, b"x" * (MAX_BYTES + 1)])
@pytest.mark.usefixtures("dirs")
def test_a_text_too_large_is_refused_in_one_line(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large"
    file.write_bytes(text)
    assert run(["profile", "import", "--from", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "at most 4 MiB" in err and err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
@pytest.mark.usefixtures("dirs")
def test_an_endless_file_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "import", "--from", "/dev/zero"]) == 2
    assert "at most 4 MiB" in capsys.readouterr().err


def test_what_names_no_model_is_saved_as_a_file_that_reads(
    tmp_path: Path, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrapper.sh"
    file.write_text('exec vllm serve "$@"\n')
    assert run(["profile", "import", str(file), "--name", "open"]) == 0
    assert run(["profile", "show", "open"]) == 0
    assert "names no model" in capsys.readouterr().out


def test_a_file_that_ends_in_yml_is_the_operators_too(
    dirs: Dirs, paste: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs.profiles.mkdir(parents=True)
    file = dirs.profiles / "old.yml"
    file.write_text("model: m\n")
    assert run(["profile", "import", str(paste), "--name", "old"]) == 2
    assert run(["profile", "import", str(paste), "--name", "old", "--force"]) == 0
    assert "served_name" in file.read_text()
    assert run(["profile", "remove", "old", "--yes"]) == 0
    assert list(dirs.profiles.iterdir()) == []


def test_characters_of_private_use_are_text() -> None:
    command = "--model m\ue000 --chat-template \ue0009\ue002 $X"
    profile = import_profile(f"services: {{v: {{image: vllm/x, command: '{command}'}}}}").profile
    assert (profile.model, profile.args["chat_template"]) == ("m\ue000", "\ue0009\ue002")
