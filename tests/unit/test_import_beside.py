"""Files that an imported one refers to: read where they are, said where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.errors import Usage
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import document, import_profile
from profiles.importing.beside import compose_variables, plain_variables, unit_variables
from profiles.model import EnvRef

COMPOSE = """\
services:
  llm:
    image: vllm/vllm-openai:v0.33.0
    env_file: [engine.env, {path: more.env, required: false, format: raw}, gone.env]
    environment: {VLLM_LOGGING_LEVEL: DEBUG}
    command: --model ${MODEL} --max-model-len ${CTX:-4096} --api-key ${API_KEY}
    ports: ["${PORT:-8000}:8000"]
    volumes: ["${STORE}:/models"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".env").write_text(
        "# where\nMODEL=/models/chat # ours\nCTX='8192'\nPORT=\"9000\"\nSTORE=/srv\n"
        "API_KEY=sk-abcdefgh\n"
    )
    (tmp_path / "engine.env").write_text(
        "export VLLM_LOGGING_LEVEL=INFO\nHF_TOKEN=hf_abcdefghij\nTEXT=\"a\\n$$b\"\nSAID='$x'\n"
    )
    (tmp_path / "more.env").write_text('RAW="$kept"\n')
    return tmp_path


def test_composes_variable_files(folder: Path) -> None:
    found = import_profile(COMPOSE, base=folder)
    profile = found.profile
    assert profile.model == "${MODEL:-/models/chat}"
    assert profile.args == {"max_model_len": "${CTX:-8192}"}
    assert (profile.host, profile.port) == ("0.0.0.0", 9000)
    assert profile.env == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "TEXT": "a\n$b",
        "SAID": "$x",
        "RAW": '"$kept"',
        "VLLM_API_KEY": EnvRef(from_env="API_KEY"),
    }
    said = "\n".join(found.unrepresented)
    assert "env_file gone.env: is not here" in said
    assert ".env beside the file gives API_KEY" in said
    assert "hf_abcdefghij" not in str(document(profile)) + said
    assert "sk-abcdefgh" not in str(document(profile)) + said
    assert "env_file engine.env: was read, its values are in `env`" in found.notes


@pytest.mark.parametrize("kind", EXPORTS)
def test_what_was_read_is_written_and_not_read_again(folder: Path, kind: str) -> None:
    first = import_profile(COMPOSE, base=folder).profile
    again = import_profile(export_profile(first, kind), base=folder)
    assert document(again.profile) == document(first)


def test_without_a_folder_nothing_is_read() -> None:
    found = import_profile(COMPOSE)
    assert found.profile.model == "${MODEL}"
    assert "env_file engine.env: is not here, its values were not read" in found.unrepresented


CHILD = """\
services:
  llm:
    extends: {file: sub/base.yaml, service: gpu}
    environment: {B: 3}
    command: [--model, /models/c]
"""


def test_a_service_of_a_file_beside_it_is_extended(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text(
        "services:\n  gpu:\n    extends: root\n    volumes: ['./m:/models']\n"
        "    env_file: x.env\n"
        "  root:\n    image: vllm/vllm-openai:v0.33.0\n    environment: [A=1, B=2]\n"
        "    deploy: {resources: {reservations: {devices: "
        "[{driver: nvidia, device_ids: ['1'], capabilities: [gpu]}]}}}\n"
    )
    (tmp_path / "sub" / "x.env").write_text("C=4\n")
    found = import_profile(CHILD, base=tmp_path)
    profile = found.profile
    assert profile.model == f"{tmp_path}/sub/m/c"
    assert profile.env == {"A": "1", "B": "3", "C": "4"}
    assert profile.gpus == (1,)
    assert any("sub/base.yaml beside the file was read" in text for text in found.notes)
    alone = import_profile(CHILD, "compose")
    assert any("not part of the text" in text for text in alone.unrepresented)


@pytest.mark.parametrize(
    "text",
    [
        "services: {a: {extends: b}, b: {extends: a, command: vllm serve m}}",
        "services: {a: {extends: a, command: vllm serve m}}",
        "services: {a: {extends: {file: c.yaml, service: a}, command: vllm serve m}}",
        "services: {a: {extends: {file: d.yaml, service: d0}, command: vllm serve m}}",
        "services: {a: {extends: {file: e.yaml, service: a}, command: vllm serve m}}",
    ],
)
def test_what_extends_itself_ends_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    chain = ", ".join(f"d{n}: {{extends: d{n + 1}}}" for n in range(99))
    (tmp_path / "d.yaml").write_text(f"services: {{{chain}, d99: {{image: vllm/x}}}}")
    (tmp_path / "e.yaml").write_text("services: {b: {image: x}}")
    with pytest.raises(Usage, match="extends") as caught:
        import_profile(text, "compose", base=tmp_path)
    assert "\n" not in str(caught.value)


def test_dockers_env_file(folder: Path) -> None:
    (folder / "d.env").write_text('# c\nA="x" y\nHOME\nB=$(id)\nVLLM_API_KEY=sk-secret99\n')
    text = (
        "docker run --env-file ./d.env --env-file gone.env -e B=2 vllm/vllm-openai:v0.33.0 "
        "--model org/m"
    )
    found = import_profile(text, base=folder)
    assert found.profile.env == {
        "A": '"x" y',
        "HOME": EnvRef(from_env="HOME"),
        "B": "2",
        "VLLM_API_KEY": EnvRef(from_env="VLLM_API_KEY"),
    }
    assert "--env-file gone.env: is not here, its values were not read" in found.unrepresented
    assert "sk-secret99" not in str(found)


def test_systemds_environment_file(folder: Path) -> None:
    (folder / "u.env").write_text('MODEL="org/m"\nLEN=81\\\n92\n; c\nHF_TOKEN=hf_abcdefghij\n')
    unit = (
        "[Service]\nEnvironment=MODEL=other\nEnvironmentFile=-{0}\n"
        "ExecStart=/usr/bin/vllm serve ${{MODEL}} --max-model-len $LEN\n"
    )
    found = import_profile(unit.format(folder / "u.env"), base=folder)
    assert (found.profile.model, found.profile.args) == ("org/m", {"max_model_len": 8192})
    assert found.profile.env["HF_TOKEN"] == EnvRef(from_env="HF_TOKEN")
    again = import_profile(export_profile(found.profile, "systemd"), base=folder)
    assert document(again.profile) == document(found.profile)
    gone = import_profile(unit.format(folder / "gone.env"), base=folder)
    assert gone.profile.model == "${MODEL}"
    assert any("a file on that machine" in text for text in gone.unrepresented)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (2 << 20)])
def test_a_file_that_is_no_text_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "engine.env").write_bytes(content)
    found = import_profile(COMPOSE, base=tmp_path)
    assert any("env_file engine.env: is not here" in text for text in found.unrepresented)


def test_variables_in_their_notations() -> None:
    assert compose_variables('A=1\nB: 2\n C = \'x\ny\' \nD="q\\"r" # c\nE=a#b\nF\nG=\n') == [
        ("A", "1"),
        ("B", "2"),
        ("C", "x\ny"),
        ("D", 'q"r'),
        ("E", "a#b"),
        ("G", ""),
    ]
    assert plain_variables("A= 1 \n#c\nB\n\n") == [("A", " 1 "), ("B", None)]
    assert unit_variables("A='1'\n;c\nB=x y\nnot this\n") == [("A", "1"), ("B", "x y")]


def test_included_files_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "llm.yaml").write_text(
        "include: [more.yaml]\nservices:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n"
        "    command: --model /models/c\n    volumes: ['./m:/models']\n"
    )
    (tmp_path / "sub" / "more.yaml").write_text("services: {web: {image: web}}\n")
    text = "include: [{path: sub/llm.yaml}, gone.yaml]\n"
    found = import_profile(text, base=tmp_path)
    assert found.profile.model == f"{tmp_path}/sub/m/c"
    assert "include sub/llm.yaml: was read beside the file" in found.notes
    assert "other services: web" in found.unrepresented
    assert any(text.startswith("top level: include") for text in found.unrepresented)
    with pytest.raises(Usage):
        import_profile(text)
    (tmp_path / "own.yaml").write_text("include: [own.yaml]\nservices: {a: {image: x}}\n")
    with pytest.raises(Usage, match="no service"):
        import_profile("include: [own.yaml]\n", base=tmp_path)


def test_what_a_daemons_service_reads_is_said(tmp_path: Path) -> None:
    (tmp_path / "w.env").write_text("A=1\n")
    text = (
        "services:\n  w: {image: v, entrypoint: [vllm, preload], env_file: w.env, "
        "command: [--model, org/m]}\n"
        "  e: {image: vllm/x, command: [org/m, --load-format, ipc_cache]}\n"
    )
    found = import_profile(text, base=tmp_path)
    assert found.profile.env == {"A": "1"}
    assert any(note.startswith("service w: env_file w.env") for note in found.notes)


def test_paths_and_files_of_other_folders_count_from_there(tmp_path: Path) -> None:
    base = "services: {base: {image: vllm/vllm-openai, env_file: one.env, volumes: ['./m:/m']}}"
    for folder, value in ((tmp_path, "wrong"), (tmp_path / "sub", "right")):
        folder.mkdir(exist_ok=True)
        (folder / "common.yml").write_text(base)
        (folder / "one.env").write_text(f"WHO={value}\n")
    file = tmp_path / "sub" / "common.yml"
    (tmp_path / "sub" / "all.yml").write_text(
        "services: {llm: {extends: {file: common.yml, service: base}, command: --model /m/a}}"
    )
    whole = (
        f"services: {{llm: {{extends: {{file: {file}, service: base}}, command: --model /m/a}}}}"
    )
    for text in (whole, "include: [sub/all.yml]\nservices: {}\n"):
        profile = import_profile(text, base=tmp_path).profile
        assert profile.env == {"WHO": "right"}
        assert profile.model == f"{tmp_path}/sub/m/a"


def test_what_is_empty_in_the_variables_file_takes_the_default(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=\nNAME=a}b\n")
    text = """services:
  llm:
    image: vllm/vllm-openai
    command: --model a/b --port ${PORT:-8123} --served-model-name ${NAME}
"""
    found = import_profile(text, base=tmp_path)
    assert (found.profile.port, found.profile.served_name) == (8123, ("${NAME}",))
    assert any("gives NAME: set it" in said for said in found.unrepresented)


def test_blanks_before_a_line_of_dockers_env_file() -> None:
    assert plain_variables("  # said\n  A=1 \n\tB\n \n") == [("A", "1 "), ("B", None)]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("echo -n chat", "chat"),
        ("printf '%s' chat", "chat"),
        ("printf 'chat\\n'", "chat"),
        ("hostname", "$(cat p)"),
        ("echo -e 'a\\tb'", "$(cat p)"),
    ],
)
def test_what_a_script_writes_and_reads_again(written: str, name: str) -> None:
    text = f'echo old > p\n{written} > p\nvllm serve a/b --served-model-name "$(cat p)"\n'
    assert import_profile(text).profile.served_name == (name,)
