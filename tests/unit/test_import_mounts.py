"""Containers see paths and ports that the host does not: a profile has the host's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from profiles.exporting import EXPORTS, export_profile
from profiles.importing import Imported, document, import_profile
from profiles.model import EnvRef

COMMONEST = (
    "docker run --gpus all -v /data/models:/models -p 8001:8000 --ipc=host "
    "vllm/vllm-openai:v0.10 --model /models/X"
)


def take(options: str, words: str = "--model /models/X", base: Path | None = None) -> Imported:
    return import_profile(f"docker run {options} vllm/vllm-openai:v0.33.0 {words}", base=base)


def test_the_commonest_line_of_all() -> None:
    found = import_profile(COMMONEST)
    profile = found.profile
    assert (profile.model, profile.host, profile.port) == ("/data/models/X", "0.0.0.0", 8001)
    assert profile.served_name == ("/models/X",)
    assert "model: /models in the container is /data/models on the host" in found.notes
    assert any("port 8001" in text and "all interfaces" in text for text in found.notes)
    assert not any("8001" in text or "/models" in text for text in found.unrepresented)


@pytest.mark.parametrize("kind", EXPORTS)
def test_what_was_mounted_survives_every_export(kind: str) -> None:
    first = import_profile(COMMONEST).profile
    again = import_profile(export_profile(first, kind))
    assert document(again.profile) == document(first)
    assert again.notes == ()


def test_an_exported_container_has_the_hosts_paths_and_port() -> None:
    text = export_profile(import_profile(COMMONEST).profile, "compose")
    service = next(iter(yaml.safe_load(text)["services"].values()))
    assert service["volumes"] == ["/data/models:/models", "/data/models:/data/models"]
    assert service["ports"] == ["8001:8001"]
    assert "/data/models/X" in service["command"]


def test_another_port_stays_published_beside_the_engines() -> None:
    first = take("-p 127.0.0.1:8001:8000 -p 9000:9000").profile
    assert (first.host, first.port) == ("127.0.0.1", 8001)
    text = export_profile(first, "compose")
    service = next(iter(yaml.safe_load(text)["services"].values()))
    assert service["ports"] == ["9000:9000", "127.0.0.1:8001:8001"]
    assert "--host" not in service["command"]
    assert document(import_profile(text).profile) == document(first)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ("-v /data:/models", "/data/X"),
        ("-v /data:/models:ro,z", "/data/X"),
        ("-v/data/:/models/", "/data/X"),
        ("--volume=/data:/models", "/data/X"),
        ("--mount type=bind,src=/data,dst=/models", "/data/X"),
        ("--mount type=bind,source=/data,target=/models,readonly", "/data/X"),
        ("-v /all:/ -v /data:/models", "/data/X"),
        ("-v /data:/models -v /fast/X:/models/X", "/fast/X"),
        ("-v /data:/model", "/models/X"),
        ("-v ~/data:/models", "${HOME}/data/X"),
        ("-v $HOME/data:/models", "${HOME}/data/X"),
        ("-v ${STORE:-/data}:/models", "${STORE:-/data}/X"),
        ("-v $PWD/data:/models", "/srv/app/data/X"),
        ("-v ./data:/models", "/srv/app/data/X"),
        ("-v ../data:/models", "/srv/data/X"),
        ('-v "$(pwd)/data:/models"', "/srv/app/data/X"),
        ("-v `pwd`/data:/models", "/srv/app/data/X"),
        ("-v $(find-models):/models", "$(find-models)/X"),
        ("--mount 'type=bind,\"src=/a,b\",dst=/models'", "/a,b/X"),
        ("--mount $'type=bind\\r,src=/a,dst=/models'", "/models/X"),
        ("-v store:/models", "/models/X"),
        ("--mount type=volume,src=store,dst=/models", "/models/X"),
        ("-v /models", "/models/X"),
    ],
)
def test_spellings_of_a_mount(options: str, model: str) -> None:
    assert take(options, base=Path("/srv/app")).profile.model == model


def test_every_argument_that_is_a_path() -> None:
    profile = take(
        "-v /data:/models -v /t:/templates -e HF_HOME=/models/hf "
        "-e PYTHONPATH=/models/a:/templates",
        "--model /models/X --tokenizer /models/T --chat-template /templates/c.jinja "
        "--download-dir /models --lora-modules a=/models/a "
        '\'{"name": "b", "path": "/models/b"}\' --served-model-name chat --root-path /models '
        '--speculative-config \'{"model": "/models/draft"}\'',
    ).profile
    assert profile.served_name == ("chat",)
    assert profile.args == {
        "tokenizer": "/data/T",
        "chat_template": "/t/c.jinja",
        "download_dir": "/data",
        "lora_modules": ["a=/data/a", {"name": "b", "path": "/data/b"}],
        "root_path": "/models",
        "speculative_config": {"model": "/data/draft"},
    }
    assert profile.env == {"HF_HOME": "/data/hf", "PYTHONPATH": "/data/a:/t"}


def test_the_images_own_cache_elsewhere_on_the_host() -> None:
    moved = take("-v /data/hf:/root/.cache/huggingface", "--model org/m").profile
    assert moved.env == {"HF_HOME": "/data/hf"}
    usual = take("-v ~/.cache/huggingface:/root/.cache/huggingface", "--model org/m").profile
    assert usual.env == {}


def test_a_named_volume_is_said() -> None:
    found = take("-v store:/models")
    assert any(text.startswith("volume store: has no path") for text in found.unrepresented)
    assert found.profile.served_name == ()


@pytest.mark.parametrize(
    ("options", "words", "host", "port"),
    [
        ("-p 127.0.0.1:8001:8000", "", "127.0.0.1", 8001),
        ("-p localhost:8001:8000", "", "127.0.0.1", 8001),
        ("-p [::1]:8001:8000", "", "::1", 8001),
        ("-p 8001:8000/tcp", "", "0.0.0.0", 8001),
        ("-p 8001:9000", "--port 9000", "0.0.0.0", 8001),
        ("-p 8001:8000", "--host 127.0.0.1", "0.0.0.0", 8001),
        ("-p 8001-8003:7999-8001", "", "0.0.0.0", 8002),
        ("-p ${PORT:-8001}:8000", "", "0.0.0.0", 8001),
        ("-p 8000", "", "0.0.0.0", None),
        ("-p 8001:8000/udp", "", "0.0.0.0", None),
        ("-p 9000:9000", "", "0.0.0.0", None),
        ("--network host -p 8001:8000", "--port 8005", "0.0.0.0", 8005),
        ("--network host", "--host 127.0.0.1", "127.0.0.1", None),
        ("", "--port 8005", "0.0.0.0", 8005),
    ],
)
def test_published_ports(options: str, words: str, host: str, port: int | None) -> None:
    profile = take(options, f"--model org/m {words}").profile
    assert (profile.host, profile.port) == (host, port)


COMPOSE = """\
services:
  llm:
    image: vllm/vllm-openai:v0.33.0
    command: [--model, /models/X, --chat-template, /t/c.jinja, --download-dir, /cache]
    volumes:
      - ./models:/models:ro
      - {type: bind, source: ../t, target: /t}
      - {type: volume, source: store, target: /cache}
    ports:
      - {target: 8000, published: "8001", host_ip: 127.0.0.1}
volumes: {store: {}}
"""


def test_compose_mounts_count_from_the_files_folder() -> None:
    found = import_profile(COMPOSE, base=Path("/srv/app"))
    profile = found.profile
    assert profile.model == "/srv/app/models/X"
    assert profile.args == {"chat_template": "/srv/t/c.jinja", "download_dir": "/cache"}
    assert (profile.host, profile.port) == ("127.0.0.1", 8001)
    assert any(text.startswith("volume store:") for text in found.unrepresented)


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: v
    image: vllm/vllm-openai:v0.33.0
    args: [--model, /models/X, --download-dir, /cache]
    volumeMounts:
    - {name: m, mountPath: /models, subPath: llm}
    - {name: c, mountPath: /cache}
  volumes:
  - {name: m, hostPath: {path: /data}}
  - {name: c, persistentVolumeClaim: {claimName: c}}
"""


def test_kubernetes_host_paths() -> None:
    found = import_profile(POD)
    assert found.profile.model == "/data/llm/X"
    assert found.profile.args == {"download_dir": "/cache"}
    assert any(text.startswith("volume c: has no path") for text in found.unrepresented)
    assert not any("kept as it is" in text for text in found.unrepresented)
    again = import_profile(export_profile(found.profile, "kubernetes"))
    assert document(again.profile) == document(found.profile)


def test_a_pod_that_is_written_again_sees_the_hosts_paths() -> None:
    pod = yaml.safe_load(export_profile(import_profile(POD).profile, "kubernetes"))
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "m", "mountPath": "/data/llm", "subPath": "llm"} in mounts


PAIR = """\
services:
  weights:
    image: vllm/vllm-openai:v0.33.0
    entrypoint: [vllm, preload]
    command: [--model, /models/X, --tokenizer, /models/T, --weight-cache-health-port, "9300"]
    volumes: ["/data:/models"]
    ports: ["9300:9300"]
  engine:
    image: vllm/vllm-openai:v0.33.0
    command: [--model, /models/X, --tokenizer, /models/T, --load-format, ipc_cache]
    volumes: ["/data:/models"]
    depends_on: {weights: {condition: service_healthy}}
"""


def test_a_daemon_beside_the_engine_has_the_same_paths() -> None:
    found = import_profile(PAIR)
    profile = found.profile
    assert (profile.model, profile.args) == ("/data/X", {"tokenizer": "/data/T"})
    assert profile.preload is not None and profile.preload.args == {}
    assert "service weights: ports: 9300:9300" in found.unrepresented
    text = export_profile(profile, "compose")
    for service in yaml.safe_load(text)["services"].values():
        assert service["volumes"] == ["/data:/models", "/data:/data"]
    assert document(import_profile(text).profile) == document(profile)


@pytest.mark.parametrize("key", ["volumes", "ports"])
@pytest.mark.parametrize("value", ["8000", "x", "{a: b}", "[[1], null, {a: 1}, true]"])
def test_what_is_no_list_of_mounts_or_ports_ends_nothing(key: str, value: str) -> None:
    text = f"services: {{v: {{image: vllm/vllm-openai:v0.33.0, command: m, {key}: {value}}}}}\n"
    profile = import_profile(text, "compose").profile
    assert (profile.model, profile.port) == ("m", None)


def test_without_a_folder_relative_sources_stay_as_they_are() -> None:
    assert take("-v ./data:/models").profile.model == "./data/X"
    assert take("-v $PWD/data:/models").profile.model == "${PWD}/data/X"


SWAPPED = take("-v /a:/b -v /b:/a -v /c:/d", "--model /a/m --tokenizer /b/t").profile


def test_mounts_that_swap_their_paths_are_the_hosts_when_written_again() -> None:
    assert (SWAPPED.model, SWAPPED.args) == ("/b/m", {"tokenizer": "/a/t"})
    text = export_profile(SWAPPED, "compose")
    service = next(iter(yaml.safe_load(text)["services"].values()))
    assert service["volumes"] == ["/c:/d", "/b:/b", "/a:/a"]
    assert "/b/m" in service["command"]
    assert document(import_profile(text).profile) == document(SWAPPED)


def test_a_chain_of_mounts_too() -> None:
    profile = take("-v /a:/b -v /b:/c", "--model /c/m").profile
    assert profile.model == "/b/m"
    text = export_profile(profile, "compose")
    service = next(iter(yaml.safe_load(text)["services"].values()))
    assert service["volumes"] == ["/b:/c", "/b:/b"]
    assert document(import_profile(text).profile) == document(profile)


SWAPPED_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: v
    image: vllm/vllm-openai:v0.33.0
    args: [--model, /a/m, --tokenizer, /b/t]
    volumeMounts: [{name: one, mountPath: /b}, {name: two, mountPath: /a}]
  volumes:
  - {name: one, hostPath: {path: /a}}
  - {name: two, hostPath: {path: /b}}
"""


def test_a_pod_with_swapped_paths() -> None:
    profile = import_profile(SWAPPED_POD).profile
    assert (profile.model, profile.args) == ("/b/m", {"tokenizer": "/a/t"})
    text = export_profile(profile, "kubernetes")
    mounts = yaml.safe_load(text)["spec"]["containers"][0]["volumeMounts"]
    assert mounts == [{"name": "one", "mountPath": "/a"}, {"name": "two", "mountPath": "/b"}]
    assert document(import_profile(text).profile) == document(profile)


@pytest.mark.parametrize(
    ("text", "file"),
    [
        # The container's own shell reads the file: it is under the mount.
        (
            "docker run -v /srv/keys:/run/keys:ro --entrypoint bash vllm/vllm-openai:v0.33.0 -c "
            "'export VLLM_API_KEY=$(cat /run/keys/a); vllm serve org/m'",
            "/srv/keys/a",
        ),
        (
            "docker run -v /srv/keys:/run/keys --entrypoint sh vllm/vllm-openai:v0.33.0 -c "
            "'vllm serve org/m --api-key \"$(< /run/keys/a)\"'",
            "/srv/keys/a",
        ),
        # The shell that starts the container reads it: it is the host's.
        (
            "docker run -v /srv/keys:/run/keys vllm/vllm-openai:v0.33.0 --model org/m "
            '--api-key "$(cat /run/keys/a)"',
            "/run/keys/a",
        ),
        (
            "docker run -v /srv/keys:/run/keys --entrypoint sh vllm/vllm-openai:v0.33.0 -c "
            '"vllm serve org/m --api-key $(cat /run/keys/a)"',
            "/run/keys/a",
        ),
        (
            "docker run -v /srv/keys:/run/keys -e VLLM_API_KEY=$(cat /run/keys/a) "
            "vllm/vllm-openai:v0.33.0 --model org/m",
            "/run/keys/a",
        ),
    ],
)
def test_a_file_that_a_shell_reads_is_whose_shell_it_is(text: str, file: str) -> None:
    found = import_profile(text)
    assert found.profile.env == {"VLLM_API_KEY": EnvRef(from_file=file)}
    for kind in EXPORTS:
        again = import_profile(export_profile(found.profile, kind))
        assert document(again.profile) == document(found.profile), kind


SECRETS = """\
services:
  llm:
    image: vllm/vllm-openai:v0.33.0
    entrypoint: [sh, -c]
    command: ["HF_TOKEN=$$(cat /run/secrets/hub) VLLM_API_KEY=$$(cat /etc/key) vllm serve org/m"]
    secrets: [hub, {source: key, target: /etc/key}, unused]
secrets:
  hub: {file: ./hub.txt}
  key: {environment: KEY}
  unused: {file: ./unused.txt}
"""


def test_composes_secret_files() -> None:
    found = import_profile(SECRETS, base=Path("/srv/app"))
    assert found.profile.env == {
        "HF_TOKEN": EnvRef(from_file="/srv/app/hub.txt"),
        "VLLM_API_KEY": EnvRef(from_file="/etc/key"),
    }
    assert any(t.startswith("secret key: has no path") for t in found.unrepresented)
    assert "secrets: unused" in found.unrepresented


def test_a_file_of_the_container_that_nothing_mounts_is_said() -> None:
    found = import_profile(
        "docker run --entrypoint sh vllm/vllm-openai:v0.33.0 -c "
        "'vllm serve org/m --api-key $(cat /opt/key)'"
    )
    assert found.profile.env == {"VLLM_API_KEY": EnvRef(from_file="/opt/key")}
    assert any("api_key: /opt/key is a file of the container" in t for t in found.unrepresented)
