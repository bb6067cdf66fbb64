"""Exports: every kind says what its reader needs, and nothing secret."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from engine_ctl.errors import Usage
from profiles.argv import serve_argv
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import document, import_profile
from profiles.loading import ProfileStore
from profiles.model import EnvRef, Preload, Profile, Restart, Stop
from profiles.schema import shipped
from tests.unit.test_import_commands import SHAPES
from tests.unit.test_import_kinds import COMPOSE, DEPLOYMENT, SCRIPT

FULL = Profile(
    name="chat-8b",
    runtime="cuda-0.33",
    model="acme/chat-8b",
    served_name=("chat", "chat 8b"),
    gpus=(0, 1),
    host="127.0.0.1",
    port=8004,
    args={
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": False,
        "enable_log_requests": True,
        "chat_template": "a 'b' \"c\" 100% $5 $${X} ${TEMPLATE}\n\\d",
        "compilation_config": {"mode": 3, "custom_ops": ["+rms_norm"]},
        "allowed_origins": ["https://a.example"],
        "lora_modules": ["sql=/a", {"name": "x", "path": "/y"}],
        "middleware": ["pkg.A", "pkg.B"],
        "max_model_len": "${CTX:-32k}",
        "disable_log_stats": True,
        "my_plugin": ["a", "b"],
    },
    env={
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "VLLM_API_KEY": EnvRef(from_env="CHAT_KEY"),
        "OTHER": EnvRef(from_file="/run/secrets/a b"),
        "LMCACHE_X": "100% $5 \"q\" 'r'\\n",
        "EMPTY": "",
        "BASE": "${HOME}/x",
    },
    preload=Preload(mode="copy", state_timeout_s=600.0, args={"load_format": "auto"}),
    standby=False,
    restart=Restart(policy="on-failure", max=3, backoff_s=2.5),
    stop=Stop(drain_s=30.0),
    ready_timeout_s=60.0,
    bench={"requests": 8},
    notes="line\nnext: # 'quoted'",
    tags=("a", "b"),
)

ENGINES = {
    **SHAPES,
    "script": SCRIPT,
    "anchors": COMPOSE,
    "deployment": DEPLOYMENT,
    "key file": 'vllm serve m --api-key "$(cat /run/key)" --hf-token',
    "config elsewhere": "vllm serve --config /etc/vllm.yaml --port 80",
    "published": "docker run -p 127.0.0.1:8001:8000 --restart on-failure:3 img m --host 0.0.0.0",
    "host network": "docker run --network host img m --host 127.0.0.1 --port 8001",
    "open end": "[Service]\nExecStart=-/v/vllm serve ${M} $MORE\nRestart=on-abnormal\n",
}


def same(profile: Profile, kind: str, schema: str | None = None) -> None:
    target = shipped(schema) if schema else None
    text = export_profile(profile, kind, target)
    again = import_profile(text, schema=target)
    assert again.kind == kind
    assert msgspec.to_builtins(again.profile) == msgspec.to_builtins(profile)
    assert export_profile(again.profile, kind, target) == text


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_everything_comes_back(kind: str, version: str) -> None:
    profile = FULL
    if version == "0.32":
        profile = msgspec.structs.replace(FULL, gpus=("GPU-1a", "GPU-2b"), host="0.0.0.0")
    same(profile, kind, version)


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("shape", ENGINES)
def test_imports_come_back_from_every_kind(shape: str, kind: str) -> None:
    same(import_profile(ENGINES[shape]).profile, kind)


@pytest.mark.parametrize("kind", EXPORTS)
def test_the_least_profile(kind: str) -> None:
    same(Profile(name="m", model="acme/m"), kind)
    same(Profile(name="m", model="acme/m", host="::1", port=1234), kind)


@pytest.mark.parametrize("shape", ENGINES)
def test_an_import_is_a_profile_file(shape: str, tmp_path: Path) -> None:
    profile = import_profile(ENGINES[shape]).profile
    if not profile.model:
        return
    path = tmp_path / f"{profile.name}.yaml"
    path.write_text(yaml.safe_dump(document(profile), sort_keys=False))
    found = ProfileStore(tmp_path).load(path).profile
    assert msgspec.structs.replace(found, path=None) == profile


SECRETS = Profile(
    name="leaky",
    model="m",
    args={
        "api_key": ["sk-literal-one", "sk-literal-two"],
        "hf_token": "hf_literalliteral",
        "kv_transfer_config": {"kv_connector_extra_config": {"password": "literal-password"}},
        "watermark_config": {"secret_key": "literal-watermark"},
    },
    env={"HF_TOKEN": "hf_literalliteral", "DB": "redis://u:literal-pw@host/0"},
    preload=Preload(args={"seed_token": "literal-seed"}),
    origin={"container": {"environment": {"X_PASSWORD": "literal-origin"}}},
)


@pytest.mark.parametrize("kind", EXPORTS)
def test_secrets_never_leave_by_value(kind: str) -> None:
    text = export_profile(SECRETS, kind)
    assert "literal" not in text
    assert "VLLM_API_KEY" in text


@pytest.mark.parametrize("kind", ["shell", "compose", "systemd", "kubernetes", "config"])
def test_no_option_that_only_newer_versions_have(kind: str) -> None:
    profile = Profile(
        name="m", model="m", args={"enable_prefix_caching": False, "enable_log_requests": False}
    )
    text = export_profile(profile, kind, shipped("0.32"))
    assert "disable-" not in text
    assert "no-enable-prefix-caching" in text


def test_shell_words_are_the_argument_vector() -> None:
    profile = msgspec.structs.replace(FULL, preload=None, env={}, gpus=())
    profile = msgspec.structs.replace(
        profile, args={k: v for k, v in FULL.args.items() if "$" not in str(v)}
    )
    line = export_profile(profile, "shell").split("\nvllm ", 1)[1]
    assert shlex.split(line.replace("\\\n", " ")) == serve_argv(profile)


def test_shell_runs_the_daemon_before_the_engine() -> None:
    text = export_profile(FULL, "shell")
    assert text.index("vllm preload") < text.index("vllm serve")
    assert "--load-format ipc_cache" in text
    assert 'export VLLM_API_KEY="${CHAT_KEY}"' in text
    assert "export HF_TOKEN\n" in text


def compose(profile: Profile) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(export_profile(profile, "compose"))["services"]
    return services


def test_compose_has_the_daemon_with_its_health_check() -> None:
    profile = Profile(name="chat", model="m", preload=Preload(), gpus=(1,), port=8003)
    services = compose(profile)
    weights, engine = services["chat-weights"], services["chat"]
    assert weights["entrypoint"] == ["vllm", "preload"]
    assert "9300/health" in weights["healthcheck"]["test"][-1]
    assert engine["depends_on"] == {"chat-weights": {"condition": "service_healthy"}}
    assert weights["image"] == engine["image"] == "vllm/vllm-openai:v0.33.0"
    for service in (weights, engine):
        assert (service["ipc"], service["pid"]) == ("host", "host")
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "device_ids": ["1"], "capabilities": ["gpu"]}]
    assert engine["ports"] == ["127.0.0.1:8003:8003"]
    assert "--host" not in engine["command"]


def test_compose_keeps_container_and_interpolation() -> None:
    profile = import_profile(SHAPES["docker"]).profile
    service = compose(profile)["chat"]
    assert service["restart"] == "unless-stopped"
    assert service["ports"] == ["8001:8001"]
    assert service["volumes"] == ["~/.cache/huggingface:/root/.cache/huggingface"]
    assert service["image"] == "vllm/vllm-openai:v0.33.0"
    literal = compose(Profile(name="m", model="m", args={"chat_template": "$5 ${A:-b} $${C}"}))["m"]
    assert literal["command"][-1] == "$$5 ${A:-b} $${C}"


def test_an_edit_of_an_exported_file_counts() -> None:
    text = export_profile(Profile(name="m", model="m", args={"max_num_seqs": 8}), "compose")
    edited = text.replace("'8'", "'16'").replace("v0.33.0\n", "v0.34.0\n")
    profile = import_profile(edited).profile
    assert profile.args == {"max_num_seqs": 16}
    assert profile.origin == {"image": "vllm/vllm-openai:v0.34.0"}


def test_systemd_doubles_and_takes_no_secret() -> None:
    profile = import_profile(SHAPES["unit"]).profile
    text = export_profile(profile, "systemd")
    assert "100%%.jinja" in text
    assert "/srv/models/%i" in text
    assert "EnvironmentFile=-/etc/vllm/chat.env" in text
    assert "$${API_KEY}" in text
    plain = Profile(name="m", model="m", args={"chat_template": "50% $x"}, env={"A": "1%"})
    unit = export_profile(plain, "systemd")
    assert '"50%% $$x"' in unit
    assert "Environment=A=1%%" in unit
    assert "/bin/sh" not in unit


def test_kubernetes_has_secret_references_and_gpus() -> None:
    profile = msgspec.structs.replace(FULL, preload=None)
    document = yaml.safe_load(export_profile(profile, "kubernetes"))
    container = document["spec"]["template"]["spec"]["containers"][0]
    env = {item["name"]: item for item in container["env"]}
    assert env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "CHAT_KEY"
    assert env["LMCACHE_X"]["value"] == "100% $$5 \"q\" 'r'\\n"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    again = yaml.safe_load_all(export_profile(import_profile(DEPLOYMENT).profile, "kubernetes"))
    secret, deployment = list(again)
    assert secret["kind"] == "Secret"
    assert len(deployment["spec"]["template"]["spec"]["containers"]) == 2


def test_config_says_false_and_quotes_json() -> None:
    text = export_profile(FULL, "config")
    data = yaml.safe_load(text)
    assert data["no-enable-prefix-caching"] is True
    assert data["allowed-origins"] == '["https://a.example"]'
    assert data["lora-modules"] == ["sql=/a", '{"name": "x", "path": "/y"}']
    assert data["compilation-config"] == {"mode": 3, "custom_ops": ["+rms_norm"]}
    assert data["middleware"] == "pkg.A"
    assert "add to the command line: --middleware pkg.B" in text
    assert False not in data.values()


def test_what_cannot_be_exported() -> None:
    with pytest.raises(Usage, match="unknown kind 'helm'"):
        export_profile(FULL, "helm")
    with pytest.raises(Usage, match="names no model"):
        export_profile(Profile(name="x"), "shell")
    with pytest.raises(Usage, match="comment is damaged"):
        import_profile("# stoker: {not json}\nvllm serve m\n")


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_word_means_the_callers_variable_not_the_engines_of_that_name(kind: str) -> None:
    text = (
        "services: {llm: {image: vllm/vllm-openai:v0.33.0, environment: {MODEL: org/other},"
        " command: '--model ${MODEL:-org/m} --max-num-seqs 4'}}"
    )
    first = import_profile(text).profile
    written = export_profile(first, kind)
    if kind in ("shell", "systemd", "kubernetes"):
        assert "env MODEL=org/other vllm serve" in written
    assert document(import_profile(written).profile) == document(first)


@pytest.mark.parametrize("odd", ["x", "[1]", "{reservations: y}", "{reservations: {devices: 0}}"])
def test_an_odd_deploy_section_is_written_again(odd: str) -> None:
    text = f"services: {{v: {{image: vllm/x, command: m, deploy: {{resources: {odd}}}}}}}\n"
    written = export_profile(import_profile(text, "compose").profile, "compose")
    assert "device" in written


def test_an_exports_own_form_is_known_again() -> None:
    empty = msgspec.structs.replace(import_profile("vllm serve org/m\n").profile, model="")
    with_config = msgspec.structs.replace(empty, args={"config": "/c.yaml"})
    assert import_profile(export_profile(with_config, "config")).kind == "config"
