"""Paths of arguments that vLLM reads only at the end of a start are looked at before it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_ctl.operations.checking import Checked
from engine_ctl.operations.local_files import disk_problem, files_problem
from engine_ctl.standby.client import Check
from profiles.model import EnvRef, Profile


def problem(**args: Any) -> str | None:
    return files_problem(Profile(name="p", model="m", args=args))


@pytest.mark.parametrize(
    "value",
    [
        ["x=/nope/lora"],
        "x=/nope/lora",
        ['{"name": "x", "path": "/nope/lora", "base_model_name": "m"}'],
        json.dumps([{"name": "x", "path": "/nope/lora"}]),
        [{"name": "x", "path": "/nope/lora"}],
        {"x": "/nope/lora"},
    ],
)
@pytest.mark.parametrize("spelling", ["lora_modules", "lora-modules"])
def test_an_adapter_that_is_not_there(spelling: str, value: Any) -> None:
    assert problem(**{spelling: value}) == (
        "profile p: the LoRA adapter x: /nope/lora does not exist"
    )


@pytest.mark.parametrize("path", ["./nope", "../nope", "~/nope", "${HOME}/nope"])
def test_local_paths_in_other_words(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = problem(lora_modules=[f"x={path}"])
    assert found is not None and "nope does not exist" in found


@pytest.mark.parametrize(
    "name", ["chat_template", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "tokenizer"]
)
def test_files_and_the_tokenizer(name: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert problem(**{name: str(there)}) == f"profile p: {name}: {there} does not exist"
    there.write_text("")
    assert problem(**{name: str(there)}) is None


@pytest.mark.parametrize(
    "args",
    [
        {"lora_modules": ["x=acme/lora", '{"name": "y", "path": "acme/lora"}']},
        {"lora_modules": ["not to be read here"]},
        {"lora_modules": ["x=${NOT_SET_ANYWHERE}/lora"]},
        {"chat_template": "/* {{ messages }} */"},
        {"chat_template": "tool_chat_template.jinja"},
        {"tokenizer": "acme/tokenizer"},
        {"tokenizer": "/nope", "skip_tokenizer_init": True},
        {},
    ],
)
def test_what_is_no_path_of_this_machine_is_left_to_vllm(args: dict[str, Any]) -> None:
    assert problem(**args) is None


def test_a_check_says_it_beside_what_vllm_says() -> None:
    missing = problem(lora_modules=["x=/nope/lora"])
    found = Checked(Check(ok=True), "0.33.0", missing)
    assert found.errors == (missing,) and found.document()["errors"] == [missing]
    assert found.text().startswith("vLLM 0.33.0 accepts it, but its start would fail:\n  profile p")
    assert Checked(Check(ok=True), "0.33.0").text() == "vLLM 0.33.0 accepts it:"


def test_a_secret_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"

    def found(reference: EnvRef) -> str | None:
        return files_problem(Profile(name="p", model="m", env={"HF_TOKEN": reference, "A": "b"}))

    monkeypatch.delenv("STOKER_TEST_TOKEN", raising=False)
    assert found(EnvRef(from_env="STOKER_TEST_TOKEN")) == (
        "profile p: HF_TOKEN comes from the variable STOKER_TEST_TOKEN, which is not set"
    )
    assert "cannot be read: No such file" in str(found(EnvRef(from_file=str(file))))
    file.write_text("x")
    monkeypatch.setenv("STOKER_TEST_TOKEN", "")
    assert found(EnvRef(from_file=str(file))) is None
    # Its shim is in no directory of the operator's.
    monkeypatch.chdir(tmp_path)
    assert "no absolute path" in str(found(EnvRef(from_file=file.name)))
    assert found(EnvRef(from_env="STOKER_TEST_TOKEN")) is None


@pytest.mark.parametrize(
    ("blocks", "files", "total", "said"),
    [
        (1024, 64, 100, None),
        (1023, 64, 100, "has 4092 KiB left"),
        (1024, 63, 100, "room for 63 files"),
        (1024, 0, 0, None),
    ],
)
def test_a_disk_without_room_for_a_start(
    monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, total: int, said: str | None
) -> None:
    disk = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=total, f_favail=files)
    monkeypatch.setattr("os.statvfs", lambda _: disk)
    found = disk_problem(Path("/s"))
    assert found is None if said is None else said in str(found)


def test_a_disk_that_does_not_say() -> None:
    assert disk_problem(Path("/nowhere/at/all")) is None
