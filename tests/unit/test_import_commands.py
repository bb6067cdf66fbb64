"""The command lines that people paste: each shape's traps, read as vLLM and the shell read them."""

from __future__ import annotations

import pytest

from engine_ctl.errors import Usage
from profiles.importing import Imported, import_profile
from profiles.model import EnvRef, Preload
from profiles.schema import shipped


def take(text: str, kind: str | None = None) -> Imported:
    found = import_profile(text)
    assert kind is None or found.kind == kind
    return found


DOCKER = """\
sudo docker run -d --name chat --restart unless-stopped --gpus '"device=0,1"' --ipc=host \\
  -v ~/.cache/huggingface:/root/.cache/huggingface -e "HF_TOKEN=$HF_TOKEN" \\
  -e VLLM_LOGGING_LEVEL=INFO -p 8001:8000 vllm/vllm-openai:v0.33.0 \\
  --model acme/chat-8b --max_model_len 8192 --gpu_memory_utilization=0.90 \\
  --tensor-parallel-size 2 --trust_remote_code
"""

POWERSHELL = """\
docker run --rm --gpus all `
  -v ${PWD}\\models:/models -p 8000:8000 `
  --env "CUDA_VISIBLE_DEVICES=0" `
  vllm/vllm-openai:latest `
  --model /models/chat-7b-awq --served-model-name chat --quantization awq --dtype half `
  --max-model-len 4096
"""

COMPOSE = """\
services:
  llm:
    image: vllm/vllm-openai:${VLLM_TAG:-v0.32.0}
    environment: [ "HF_TOKEN=${HF_TOKEN:?set me}", "VLLM_ATTENTION_BACKEND=", "PRICE=5$$" ]
    command: >-
      --model ${MODEL:-acme/chat-8b}

      --max-model-len ${CTX:-32768}
      --speculative-config '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":5}'
      --chat-template-content-format openai
    shm_size: "8g"
    deploy: {resources: {reservations: {devices:
      [{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}]}}}
"""

PAIR = """\
services:
  weights:
    image: vllm/vllm-openai:v0.33.0
    entrypoint: ["vllm", "preload"]
    command: ["--model", "acme/chat-8b", "-tp", "2", "--weight-cache-health-port", "9300"]
    ipc: host
    pid: host
  engine:
    image: vllm/vllm-openai:v0.33.0
    command: ["acme/chat-8b", "-tp", "2", "--load-format", "ipc_cache",
      "--model-loader-extra-config", '{"mode":"zero_copy","fallback":true,"state_timeout_s":600}']
    ipc: host
    pid: host
    depends_on: {weights: {condition: service_healthy}}
"""

UNIT = """\
[Service]
User=llm
EnvironmentFile=-/etc/vllm/chat.env
Environment="CUDA_VISIBLE_DEVICES=0,1" "VLLM_CACHE_ROOT=/var/cache/vllm"
ExecStart=/opt/vllm/bin/vllm serve /srv/models/%i --port 8002 \\
    --served-model-name chat \\
    --chat-template "/srv/tpl/chat 100%%.jinja" --api-key ${API_KEY}
LimitNOFILE=65535
KillMode=mixed
TimeoutStopSec=120
PrivateTmp=true
Restart=on-failure
"""

KUBERNETES = """\
command: ["/bin/sh", "-c"]
args:
  - "vllm serve acme/chat-8b --tensor-parallel-size $(nvidia-smi -L | wc -l) --max-num-seqs 64 \
--no-enable-log-requests && sleep 5"
"""

CONFIG_SCRIPT = """\
cat > serve.yaml <<EOF
model: acme/chat-8b
port: 8002
tensor-parallel-size: 2
max-model-len: 32k
no-enable-prefix-caching: true
served-model-name: [chat, chat-8b]
compilation-config: {mode: 3, cudagraph_mode: PIECEWISE}
allowed-origins: '["https://console.example"]'
EOF
vllm serve --config serve.yaml --port 8010
"""

DOTTED = """\
vllm serve acme/moe-30b -tp 4 -O3 -cc.mode=none \\
  -cc.pass_config.fuse_allreduce_rms=True -cc.custom_ops+=+rotary_embedding \\
  -cc.cudagraph_mode=FULL_DECODE_ONLY
"""

CONNECTOR = """\
LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=20 vllm serve acme/chat-8b \\
  --kv-transfer-config \\
  '{
     "kv_connector": "LMCacheConnectorV1",
     "kv_role": "kv_both",
     "kv_connector_extra_config": {"discard_partial_chunks": false}
   }' --disable-log-requests --swap-space 4
"""

LISTS = """\
vllm serve acme/chat-8b --enable-lora --max-lora-rank 32 \\
  --lora-modules sql=/adapters/sql \\
  '{"name":"legal","path":"/adapters/legal","base_model_name":"acme/chat-8b"}' \\
  --served-model-name chat chat-8b --api-key sk-a sk-b --middleware pkg.mod.A --middleware pkg.mod.B
"""

LAUNCHER = (
    "systemd-run --user --scope -p MemoryMax=12G -- vllm serve acme/chat-7b-gptq "
    "--quantization gptq --swap-space 2 --max-model-len 4096"
)

SHAPES = {
    "docker": DOCKER,
    "powershell": POWERSHELL,
    "compose": COMPOSE,
    "pair": PAIR,
    "unit": UNIT,
    "kubernetes": KUBERNETES,
    "config": CONFIG_SCRIPT,
    "dotted": DOTTED,
    "connector": CONNECTOR,
    "multimodal": "vllm serve acme/vl-7b --limit-mm-per-prompt image=4 --mm-processor-kwargs "
    "'{\"max_pixels\":1003520}' --allowed-local-media-path /data",
    "lists": LISTS,
    "launcher": LAUNCHER,
}


def test_docker_with_two_layers_of_quotes_and_underscores() -> None:
    found = take(DOCKER, "docker")
    profile = found.profile
    assert profile.model == "acme/chat-8b"
    assert profile.args == {
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.9,
        "tensor_parallel_size": 2,
        "trust_remote_code": True,
    }
    assert profile.gpus == (0, 1)
    assert (profile.host, profile.port) == ("0.0.0.0", 8001)
    assert profile.restart.policy == "always"
    assert profile.env == {
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    assert profile.origin["image"] == "vllm/vllm-openai:v0.33.0"
    assert profile.origin["restart"] == "unless-stopped"
    container = profile.origin["container"]
    assert "ports" not in container
    assert container["volumes"] == ["~/.cache/huggingface:/root/.cache/huggingface"]
    assert container["ipc"] == "host"
    assert any("port 8001: " in text for text in found.notes)
    assert any("vllm/vllm-openai:v0.33.0" in text for text in found.unrepresented)


def test_powershell_continuation_keeps_back_slashes() -> None:
    profile = take(POWERSHELL, "docker").profile
    assert profile.model == "/models/chat-7b-awq"
    assert profile.served_name == ("chat",)
    assert profile.args == {"quantization": "awq", "dtype": "half", "max_model_len": 4096}
    assert profile.gpus == (0,)
    assert profile.origin["container"]["volumes"] == ["${PWD}\\models:/models"]


def test_compose_keeps_variables_with_their_defaults() -> None:
    profile = take(COMPOSE, "compose").profile
    assert profile.model == "${MODEL:-acme/chat-8b}"
    assert profile.args["max_model_len"] == "${CTX:-32768}"
    assert profile.args["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 5,
    }
    assert profile.args["chat_template_content_format"] == "openai"
    assert profile.env["HF_TOKEN"] == EnvRef(from_env="HF_TOKEN")
    assert profile.env["VLLM_ATTENTION_BACKEND"] == ""
    assert profile.env["PRICE"] == "5$"
    assert profile.gpus == (0,)
    assert profile.origin["image"] == "vllm/vllm-openai:${VLLM_TAG:-v0.32.0}"


def test_compose_pair_becomes_a_preload_section() -> None:
    profile = take(PAIR, "compose").profile
    assert profile.model == "acme/chat-8b"
    assert profile.args == {"tensor_parallel_size": 2}
    assert profile.preload == Preload(health_port=9300, state_timeout_s=600)
    assert profile.origin["preload_service"]["name"] == "weights"


def test_systemd_unit_has_its_own_quoting() -> None:
    found = take(UNIT, "systemd")
    profile = found.profile
    assert profile.model == "/srv/models/%i"
    assert profile.served_name == ("chat",)
    assert profile.port == 8002
    assert profile.args == {"chat_template": "/srv/tpl/chat 100%.jinja"}
    assert profile.gpus == (0, 1)
    assert profile.env == {
        "VLLM_CACHE_ROOT": "/var/cache/vllm",
        "VLLM_API_KEY": EnvRef(from_env="API_KEY"),
    }
    assert profile.restart.policy == "on-failure"
    assert profile.origin["env_files"] == ["-/etc/vllm/chat.env"]
    assert ["PrivateTmp", "true"] in profile.origin["systemd"]["Service"]
    assert any("/etc/vllm/chat.env" in text for text in found.unrepresented)


def test_kubernetes_shell_string_keeps_the_command_as_text() -> None:
    found = take(KUBERNETES, "kubernetes")
    assert found.profile.args == {
        "tensor_parallel_size": "$(nvidia-smi -L | wc -l)",
        "max_num_seqs": 64,
        "enable_log_requests": False,
    }
    assert any("nvidia-smi -L | wc -l" in text for text in found.unrepresented)
    assert any("sleep 5" in text for text in found.unrepresented)


def test_config_file_of_a_script_with_an_override() -> None:
    profile = take(CONFIG_SCRIPT, "shell").profile
    assert profile.model == "acme/chat-8b"
    assert profile.port == 8010
    assert profile.served_name == ("chat", "chat-8b")
    assert profile.args == {
        "tensor_parallel_size": 2,
        "max_model_len": "32k",
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 3, "cudagraph_mode": "PIECEWISE"},
        "allowed_origins": ["https://console.example"],
    }


def test_config_with_an_equals_sign_is_ignored_as_vllm_ignores_it() -> None:
    found = take(CONFIG_SCRIPT.replace("--config serve.yaml", "acme/m --config=serve.yaml"))
    assert found.profile.model == "acme/m"
    assert found.profile.args == {}
    assert any("equals sign" in text for text in found.unrepresented)


def test_dotted_flags_become_one_value() -> None:
    assert take(DOTTED, "shell").profile.args == {
        "tensor_parallel_size": 4,
        "optimization_level": "3",
        "compilation_config": {
            "mode": "none",
            "pass_config": {"fuse_allreduce_rms": True},
            "custom_ops": ["+rotary_embedding"],
            "cudagraph_mode": "FULL_DECODE_ONLY",
        },
    }


def test_dotted_flags_replace_a_json_value() -> None:
    found = take("""vllm serve m --compilation-config '{"mode":3,"debug":1}' -cc.mode=none""")
    assert found.profile.args == {"compilation_config": {"mode": "none"}}
    assert any("replaces" in text for text in found.unrepresented)


def test_two_spellings_of_dotted_flags_do_not_merge() -> None:
    found = take("vllm serve m -cc.mode=3 --compilation-config.debug_dump_path=/x")
    assert found.profile.args == {"compilation_config": {"debug_dump_path": "/x"}}


def test_json_over_several_lines_and_flags_of_other_versions() -> None:
    profile = take(CONNECTOR, "shell").profile
    assert profile.args == {
        "kv_transfer_config": {
            "kv_connector": "LMCacheConnectorV1",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"discard_partial_chunks": False},
        },
        "enable_log_requests": False,
        "swap_space": 4,
    }
    assert profile.env == {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "20"}


def test_multimodal_limits_are_corrected_and_reported() -> None:
    found = take(SHAPES["multimodal"])
    assert found.profile.args["limit_mm_per_prompt"] == {"image": 4}
    assert found.profile.args["mm_processor_kwargs"] == {"max_pixels": 1003520}
    assert any("image=4" in text for text in found.unrepresented)
    dotted = take("vllm serve m --limit-mm-per-prompt.image 4").profile
    assert dotted.args == {"limit_mm_per_prompt": {"image": 4}}


def test_lists_and_repeated_flags() -> None:
    found = take(LISTS)
    profile = found.profile
    assert profile.served_name == ("chat", "chat-8b")
    assert profile.args["lora_modules"] == [
        "sql=/adapters/sql",
        {"name": "legal", "path": "/adapters/legal", "base_model_name": "acme/chat-8b"},
    ]
    assert profile.args["middleware"] == ["pkg.mod.A", "pkg.mod.B"]
    assert profile.args["api_key"] == ["${VLLM_API_KEY}", "${VLLM_API_KEY_2}"]
    assert "sk-a" not in repr(found) and "sk-b" not in repr(found)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("--served-model-name a --served-model-name b", "served_name", ("b",)),
        ("--port 8000 --port 8001", "port", 8001),
    ],
)
def test_the_last_one_wins(text: str, key: str, value: object) -> None:
    found = take(f"vllm serve acme/m {text}")
    assert getattr(found.profile, key) == value
    assert any("more than once" in note for note in found.unrepresented)


def test_launcher_ends_at_its_dashes() -> None:
    found = take(LAUNCHER)
    assert found.profile.model == "acme/chat-7b-gptq"
    assert found.profile.env == {}
    assert found.profile.args == {"quantization": "gptq", "swap_space": 2, "max_model_len": 4096}
    assert found.profile.origin["launcher"][:2] == ["systemd-run", "--user"]


@pytest.mark.parametrize("spelling", ["--tensor_parallel_size=2", "-tp 2", "-tp=2", "--tensor-p 2"])
def test_spellings_of_one_argument(spelling: str) -> None:
    assert take(f"vllm serve m {spelling}").profile.args == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    "spelling",
    ["--no-enable-prefix-caching", "--disable-prefix-caching", "--no_enable_prefix_caching"],
)
@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_ways_to_switch_off(spelling: str, version: str) -> None:
    found = import_profile(f"vllm serve m {spelling}", schema=shipped(version))
    assert found.profile.args == {"enable_prefix_caching": False}


@pytest.mark.parametrize("level", ["-O3", "-O=3", "-O 3", "--optimization-level 3"])
def test_optimisation_levels(level: str) -> None:
    assert take(f"vllm serve m {level}").profile.args == {"optimization_level": "3"}


def test_unknown_flags_stay_as_they_are() -> None:
    found = take("vllm serve m --plugin-mode fast --plugin_list a b --plugin-on --plugin-n=-3")
    assert found.profile.args == {
        "plugin_mode": "fast",
        "plugin_list": ["a", "b"],
        "plugin_on": True,
        "plugin_n": -3,
    }


def test_text_that_looks_like_a_number_stays_text_where_vllm_reads_text() -> None:
    profile = take("vllm serve m --revision 0123 --max-model-len -1 --seed 7").profile
    assert profile.args == {"revision": "0123", "max_model_len": -1, "seed": 7}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("hello world", 1),
        ("\n\nvllm serve 'never closed\n--port 1", 3),
        ("vllm serve m\ncat <<EOF\nmodel: x\n", 3),
        ("services:\n  a: [\n", 3),
        ("[Service]\nExecStart=/bin/vllm serve 'x\n", 2),
        ("[Service]\nnonsense here\n", 2),
        ("vllm serve m\0", 1),
        ("vllm preload --model m", 1),
    ],
)
def test_garbage_is_one_line_with_its_number(text: str, line: int) -> None:
    with pytest.raises(Usage) as caught:
        import_profile(text)
    assert str(caught.value).startswith(f"line {line}: ")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(Usage, match="line 2: byte 0xff"):
        import_profile(b"vllm serve m \\\n\xff")


def test_line_ends_and_marks_of_other_systems() -> None:
    profile = import_profile("\ufeffvllm serve acme/m \\\r\n  --port 8000\r\n".encode()).profile
    assert (profile.model, profile.port) == ("acme/m", 8000)
