"""Recorded requests: what is one, what is not, and how long their answers are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine_ctl.errors import Failed, Usage
from engine_ctl.paths import Dirs
from engine_ctl.runtimes import manage, readers
from engine_ctl.runtimes.store import Runtime, RuntimeStore
from engine_ctl.tune.recorded import lengths_known, with_lengths
from engine_ctl.tune.settings import DEFAULT_OUTPUT, Target, bench_words, settings


def written(folder: Path, text: str, name: str = "asked.jsonl") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_answers_are_as_long_as_recorded_unless_told_otherwise(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b", "x": 1}\n')
    assert not lengths_known(path)
    made = with_lengths(settings({"path": str(path)}))
    assert made.dataset == "recorded" and made.output_len == DEFAULT_OUTPUT
    written(tmp_path, '{"prompt": "a", "output_tokens": 3}\n{"prompt": "b", "output_tokens": 9}')
    assert lengths_known(path)
    made = with_lengths(settings({"path": str(path)}))
    words = bench_words(made, Target(host="h", port=1, model="m", served_name="m"), 0, ".", "r")
    at = words.index("--custom-output-len")
    assert words[at + 1] == "-1" and "--output-len" not in words and "--ignore-eos" in words
    asked = settings({"path": str(path), "output_len": 7})
    assert with_lengths(asked) == asked


def test_lengths_meant_for_other_prompts_do_not_count(tmp_path: Path) -> None:
    path = str(written(tmp_path, '{"prompt": "a"}'))
    profile = {"input_len": 512, "output_len": 16, "concurrency": 4}
    made = settings(profile, {"path": path})
    assert (made.input_len, made.output_len, made.concurrency) == (None, None, 4)
    assert settings(profile, {"path": path, "output_len": 9}).output_len == 9
    assert settings({**profile, "path": path}, {"requests": 5}).output_len == 16
    assert settings(profile, {"requests": 5}).output_len == 16


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ('{"prompt": "a"}\n{"question": "b"}\n', "asked.jsonl", "line 2 is no request"),
        ("hello", "asked.jsonl", "line 1 is no request"),
        ('{"prompt": 3}', "asked.jsonl", "line 1 is no request"),
        ("\n\n", "asked.jsonl", "holds no request"),
        ('{"prompt": "a"}', "asked.txt", r"called \*.jsonl"),
    ],
)
def test_what_is_no_file_of_requests(tmp_path: Path, text: str, name: str, said: str) -> None:
    with pytest.raises(Usage, match=said):
        lengths_known(written(tmp_path, text, name))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="No such file"):
        lengths_known(tmp_path / "asked.jsonl")


def runtime(python: str) -> Runtime:
    return Runtime(
        name="mine", python=python, version="0.32.0", platform="cpu", torch="2", managed=True
    )


def test_what_a_runtime_lacks_is_found_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "READERS", ("json", "no_such_module"))
    here = runtime(sys.executable)
    assert readers.lacking(here) == ("no_such_module",)
    # What lies in the operator's directory is not in the runtime.
    (tmp_path / "no_such_module.py").touch()
    monkeypatch.chdir(tmp_path)
    assert readers.lacking(here) == ("no_such_module",)
    said = readers.remedy(here, ("no_such_module",))
    assert said.endswith(f"run: {sys.executable} -m pip install no_such_module")
    with pytest.raises(Failed, match="cannot be run"):
        readers.lacking(runtime("/no/such/python"))


def test_a_check_of_a_runtime_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = Dirs.from_env({"HOME": str(tmp_path)})
    here = runtime(sys.executable)
    RuntimeStore(dirs).save(here)
    monkeypatch.setattr(manage, "missing", lambda _: None)
    monkeypatch.setattr(manage, "verified", lambda *_, **__: here)
    monkeypatch.setattr("engine_ctl.runtimes.arguments.read", lambda *_: None)
    monkeypatch.setattr(readers, "READERS", ("json",))
    assert manage.check(dirs, "mine") == (here, [])
    monkeypatch.setattr(readers, "READERS", ("no_such_module",))
    (said,) = manage.check(dirs, "mine")[1]
    assert "no_such_module, with which vLLM reads recorded requests" in said
