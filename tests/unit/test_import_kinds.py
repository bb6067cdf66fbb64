"""Each kind of text in its variants: scripts, containers, units, manifests, processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from engine_ctl.errors import NotFound, Usage
from profiles.importing import document, import_pid, import_profile
from profiles.importing.process import relevant
from profiles.model import EnvRef, Profile

SCRIPT = """\
#!/bin/bash
set -euo pipefail
source /opt/venv/bin/activate
export HF_TOKEN=hf_abcdefghijklmnop VLLM_LOGGING_LEVEL=DEBUG
MODEL=${1:-acme/chat-8b}
PORT="${PORT:-8005}"
EXTRA="--max-model-len 8192 --enforce-eager"
ARGS=(
  --tensor-parallel-size 2   # both
  --served-model-name "chat main"
)
ARGS+=(--dtype half)
echo "vllm serve nothing"
nohup numactl --cpunodebind=0 vllm serve "$MODEL" --port $PORT $EXTRA "${ARGS[@]}" > log 2>&1 &
curl -H "Authorization: Bearer abcdef0123456789" localhost:8005/health
"""


def profile_of(text: str, kind: str) -> Profile:
    found = import_profile(text)
    assert found.kind == kind
    return found.profile


def test_a_script_is_followed_to_the_start() -> None:
    found = import_profile(SCRIPT)
    profile = found.profile
    assert profile.model == "acme/chat-8b"
    assert profile.served_name == ("chat main",)
    assert profile.port == 8005
    assert profile.args == {
        "max_model_len": 8192,
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "dtype": "half",
    }
    assert profile.env == {"HF_TOKEN": EnvRef(from_env="HF_TOKEN"), "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert profile.origin["before"] == [
        "source /opt/venv/bin/activate",
        'echo "vllm serve nothing"',
    ]
    assert profile.origin["launcher"] == ["numactl", "--cpunodebind=0"]
    assert "hf_abcdefghijklmnop" not in repr(found)
    assert "abcdef0123456789" not in repr(found)
    assert any(
        text.startswith("HF_TOKEN: the secret was not stored") for text in found.unrepresented
    )


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("exec vllm serve acme/m --port 1234", []),
        ("sudo -u llm env VLLM_X=1 vllm serve acme/m --port 1234", ["sudo", "-u", "llm"]),
        ("uv run --with vllm vllm serve acme/m --port 1234", ["uv", "run", "--with", "vllm"]),
        ("srun -n1 singularity exec i.sif vllm serve acme/m --port 1234", None),
        ("taskset -c 0-7 nice -n 5 vllm serve acme/m --port 1234", None),
        ("ray job submit -- vllm serve acme/m --port 1234", None),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model acme/m --port 1234", []),
        ("python -m vllm.entrypoints.cli.main serve acme/m --port 1234", []),
        ("bash -lc 'cd /x && exec vllm serve acme/m --port 1234'", []),
        ("docker exec -it c vllm serve acme/m --port 1234", ["docker", "exec", "-it", "c"]),
        ("nix run nixpkgs#vllm -- serve acme/m --port 1234", None),
        (
            "accelerate launch -m vllm.entrypoints.openai.api_server --model acme/m --port 1234",
            ["accelerate", "launch"],
        ),
        ("N=1200; vllm serve acme/m --port $((N + 34))", []),
        ("tmux new -d -s llm 'vllm serve acme/m --port 1234'", None),
        ('ssh box "vllm serve acme/m --port 1234"', ["ssh", "box"]),
        ("$ vllm serve acme/m --port 1234", []),
        ("(gpu) me@box:~$ vllm serve acme/m --port 1234".partition(") ")[2], []),
        ("cd /srv && . venv/bin/activate && vllm serve acme/m --port 1234 | tee log", []),
        ("```bash\nvllm serve acme/m --port 1234\n```", []),
        ("--model acme/m --port 1234", []),
    ],
)
def test_what_stands_before_the_server(line: str, launcher: list[str] | None) -> None:
    profile = profile_of(line, "shell")
    assert (profile.model, profile.port, profile.args) == ("acme/m", 1234, {})
    if launcher is not None:
        assert profile.origin.get("launcher", []) == launcher


def test_fish_and_powershell_variables() -> None:
    fish = profile_of(
        "set -x CUDA_VISIBLE_DEVICES 2\nset -gx LMCACHE_CHUNK_SIZE 256\nset m acme/m\n"
        "vllm serve $m --dtype half\n",
        "shell",
    )
    assert (fish.model, fish.gpus, fish.env) == ("acme/m", (2,), {"LMCACHE_CHUNK_SIZE": "256"})
    powershell = profile_of(
        '$env:CUDA_VISIBLE_DEVICES = "1"\n$model = "acme/m"\n'
        '$more = @("--max-model-len", "4096")\nvllm serve $model @more `\n --dtype half\n',
        "shell",
    )
    assert powershell.model == "acme/m"
    assert powershell.gpus == (1,)
    assert powershell.args == {"max_model_len": 4096, "dtype": "half"}


def test_a_quote_over_lines_and_other_quotes() -> None:
    profile = profile_of(
        "vllm serve m --chat-template \"{% for %}\n'{{ x }}'\" --tokenizer $'a\\tb'", "shell"
    )
    assert profile.args == {"chat_template": "{% for %}\n'{{ x }}'", "tokenizer": "a\tb"}


def test_a_dollar_that_is_no_reference() -> None:
    profile = profile_of(
        "vllm serve m --chat-template 'a $5 ${X} $(y)' --tokenizer \"\\$HOME\"", "shell"
    )
    assert profile.args == {"chat_template": "a $5 $${X} $$(y)", "tokenizer": "$HOME"}


def test_the_home_directory_is_the_shells() -> None:
    profile = profile_of("HF_HOME=~/hf ~/v/bin/vllm serve ~/models/m --tokenizer=~/t", "shell")
    assert profile.model == "${HOME}/models/m"
    assert profile.env == {"HF_HOME": "${HOME}/hf"}
    assert profile.args == {"tokenizer": "~/t"}
    assert profile.origin["program"] == "${HOME}/v/bin/vllm"


def test_a_comment_ends_a_continued_command() -> None:
    found = import_profile("vllm serve m \\\n  # note\n  --dtype half\n")
    assert found.profile.args == {}
    assert any("--dtype half" in text for text in found.unrepresented)


def test_blanks_after_a_back_slash_are_reported() -> None:
    found = import_profile("vllm serve m \\ \n  --dtype half\n")
    assert found.profile.args == {"dtype": "half"}
    assert any(text.startswith("line 1: blanks") for text in found.unrepresented)


def test_a_second_engine_is_named() -> None:
    found = import_profile("vllm serve a --port 1 &\nvllm serve b --port 2 &\nwait\n")
    assert found.profile.model == "a"
    assert any(text.startswith("line 2: another engine") for text in found.unrepresented)


def test_preload_and_serve_in_one_script() -> None:
    found = import_profile(
        "vllm preload --model m -tp 2 --weight-cache-health-port 9300 --seed-token tok-123456 "
        "--seed-listen-host h --seed-listen-port 5000 &\n"
        "vllm serve m -tp 2 --load-format ipc_cache "
        '--model-loader-extra-config \'{"mode":"copy","socket_path":"/s"}\'\n'
    )
    preload = found.profile.preload
    assert preload is not None
    assert (preload.mode, preload.health_port) == ("copy", 9300)
    assert preload.seed_token == EnvRef(from_env="VLLM_SEED_TOKEN")
    assert preload.args == {"seed_listen_host": "h", "seed_listen_port": 5000}
    assert found.profile.args == {
        "tensor_parallel_size": 2,
        "model_loader_extra_config": {"socket_path": "/s"},
    }
    assert "tok-123456" not in repr(found)


@pytest.mark.parametrize(
    ("option", "gpus", "kept"),
    [
        ("--gpus all", (), "all"),
        ("--gpus=2", (), 2),
        ("--gpus device=1", (1,), None),
        ("--gpus '\"device=GPU-1a2b,GPU-3c4d\"'", ("GPU-1a2b", "GPU-3c4d"), None),
        ("--gpus all -e CUDA_VISIBLE_DEVICES=2,3", (2, 3), "all"),
        ("--gpus '\"device=4,5\"' -e CUDA_VISIBLE_DEVICES=1", (5,), None),
        ("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=3", (3,), None),
        ("", (), None),
    ],
)
def test_gpus_of_a_container(option: str, gpus: tuple[int | str, ...], kept: object) -> None:
    profile = profile_of(f"docker run {option} vllm/vllm-openai:v0.33.0 --model m", "docker")
    assert profile.model == "m"
    assert profile.gpus == gpus
    assert profile.origin.get("gpus") == kept


def test_docker_options_in_their_variants() -> None:
    found = import_profile(
        "podman run -itd --rm --env-file .env -e HF_TOKEN -e 'A=x y' --network host -p8001:8000 "
        "--entrypoint vllm --ulimit memlock=-1 --shm-size=16g --device nvidia.com/gpu=all "
        "img:1 serve acme/m -tp=2 --api-key sk-abcdef123456"
    )
    profile = found.profile
    assert found.kind == "docker"
    assert profile.model == "acme/m"
    assert profile.args == {"tensor_parallel_size": 2}
    assert profile.env == {
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "A": "x y",
        "VLLM_API_KEY": EnvRef(from_env="VLLM_API_KEY"),
    }
    container = profile.origin["container"]
    assert container["run"] == ["-i", "-t", "-d", "--rm"]
    assert container["ports"] == ["8001:8000"]
    assert container["network_mode"] == "host"
    assert container["env_file"] == [".env"]
    assert profile.origin["engine"] == "podman"
    assert any(".env" in text for text in found.unrepresented)
    assert "sk-abcdef123456" not in repr(found)


def test_docker_model_without_its_option_and_inner_shell() -> None:
    assert profile_of("docker run img serve acme/m --port 9000", "docker").model == "acme/m"
    assert profile_of("docker run img acme/m --port 9000", "docker").model == "acme/m"
    inner = profile_of(
        'docker run --entrypoint bash img -c "pip install x && exec vllm serve acme/m --port 9000"',
        "docker",
    )
    assert (inner.model, inner.port) == ("acme/m", 9000)


def test_a_port_published_on_loopback_stays_there() -> None:
    profile = profile_of("docker run -p 127.0.0.1:8000:8000 img --model m", "docker")
    assert profile.host == "127.0.0.1"
    assert profile_of("docker run -p 8000:8000 img --model m", "docker").host == "0.0.0.0"


COMPOSE = """\
version: "3.8"
x-common: &common
  image: vllm/vllm-openai:v0.33.0
  restart: unless-stopped
  ipc: host
services:
  redis: {image: redis, environment: {REDIS_PASSWORD: hunter22222}}
  base: {environment: {A: "1"}, ports: ["127.0.0.1:8080:8000"]}
  llm:
    <<: *common
    extends: {service: base}
    env_file: .env
    environment:
      HF_TOKEN:
      FOO: ${BAR}
      B: 2
      MY_SECRET_KEY: abc123456
    command: [--model, acme/m, --quantization=awq, --hf-token, hf_cccccccccccccccc]
volumes: {cache: {}}
"""


def test_compose_anchors_extends_and_lists() -> None:
    found = import_profile(COMPOSE)
    profile = found.profile
    assert (profile.name, profile.model, profile.host) == ("llm", "acme/m", "127.0.0.1")
    assert profile.args == {"quantization": "awq"}
    assert profile.env == {
        "A": "1",
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "FOO": EnvRef(from_env="BAR"),
        "B": "2",
        "MY_SECRET_KEY": EnvRef(from_env="MY_SECRET_KEY"),
    }
    assert profile.restart.policy == "always"
    assert "hf_cccccccccccccccc" not in repr(found) and "abc123456" not in repr(found)
    assert "hunter22222" not in repr(found)
    assert any(text.startswith("other services: redis") for text in found.unrepresented)


def test_compose_asks_which_of_several_engines() -> None:
    text = "services:\n" + "".join(
        f"  {name}: {{image: vllm/v, command: --model {name}}}\n" for name in "ab"
    )
    with pytest.raises(Usage, match=r"several services run vLLM \(a, b\)"):
        import_profile(text)
    assert import_profile(text, name="b").profile.model == "b"
    with pytest.raises(Usage, match="no service"):
        import_profile("services:\n  a: {image: redis}\n")


def test_compose_shell_command_and_service_body() -> None:
    shell = profile_of(
        "services:\n  v:\n    image: i\n    entrypoint: /bin/bash -c\n"
        '    command: ["vllm serve $${NAME} --max-model-len $$LEN"]\n'
        "    environment: {NAME: acme/m}\n    gpus: all\n",
        "compose",
    )
    assert shell.model == "acme/m"
    assert shell.args == {"max_model_len": "${LEN}"}
    body = profile_of(
        "image: vllm/vllm-openai:v0.33.0\ncommand: |\n  acme/m\n  --max-model-len 100\n"
        "environment:\n  - A=b\n",
        "compose",
    )
    assert (body.model, body.args, body.env) == ("acme/m", {"max_model_len": 100}, {"A": "b"})
    empty = profile_of("services:\n  v: {image: vllm/v, command: null}\n", "compose")
    assert empty.model == ""


def test_systemd_drop_in_docker_and_time_spans() -> None:
    found = import_profile(
        "[Unit]\nDescription=x\n[Service]\nEnvironment=A=\"b c\" 'D=e f'\n"
        "ExecStart=/usr/bin/docker run --gpus all img --model %I\n"
        "# override.conf\n[Service]\nExecStart=\n"
        "ExecStart=-/bin/bash -lc 'exec vllm serve \"$MODEL\" --port 8001'\n"
        "Restart=always\nRestartSec=1min 30s\n"
    )
    profile = found.profile
    assert (profile.model, profile.port) == ("${MODEL}", 8001)
    assert profile.env == {"A": "b c", "D": "e f"}
    assert (profile.restart.policy, profile.restart.backoff_s) == ("always", 90)
    docker = profile_of(
        "[Service]\nExecStart=/usr/bin/docker run --rm --gpus all -p 8000:8000 img --model %I\n",
        "systemd",
    )
    assert docker.model == "%I"
    assert docker.origin["specifiers"] == ["%I"]


def test_systemd_has_no_shell() -> None:
    found = import_profile(
        "[Service]\nEnvironment=MODEL=acme/m\n"
        'ExecStart=/v/vllm serve ${MODEL} --chat-template "a\\x20$$b" --tokenizer ~/t $MORE\n'
    )
    assert found.profile.model == "acme/m"
    assert found.profile.args == {"chat_template": "a $b", "tokenizer": "~/t"}
    assert found.profile.origin["extra_words"] == ["${MORE}"]


DEPLOYMENT = """\
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {token: plain-text-token}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm-m}
spec:
  template:
    spec:
      containers:
      - name: proxy
        image: nginx
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: ["vllm", "serve"]
        args: ["$(MODEL)", "--max-model-len", "8192", "--api-key", "$(API_KEY)", "--x", "$$HOME"]
        env:
        - {name: MODEL, value: acme/m}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: s, key: token}}
        - name: API_KEY
          valueFrom: {secretKeyRef: {name: s, key: key}}
        - {name: CUDA_VISIBLE_DEVICES, value: "0,1"}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""


def test_kubernetes_deployment() -> None:
    found = import_profile(DEPLOYMENT)
    profile = found.profile
    assert found.kind == "kubernetes"
    assert (profile.name, profile.model, profile.gpus) == ("vllm-m", "acme/m", (0, 1))
    assert profile.args == {"max_model_len": 8192, "x": "$HOME"}
    assert profile.env == {
        "MODEL": "acme/m",
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "API_KEY": EnvRef(from_env="API_KEY"),
        "VLLM_API_KEY": EnvRef(from_env="API_KEY"),
    }
    assert profile.origin["gpus"] == 2
    assert profile.origin["env_sources"]["HF_TOKEN"] == {
        "secretKeyRef": {"name": "s", "key": "token"}
    }
    assert "plain-text-token" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "- name: vllm\n  image: vllm/vllm-openai:v1\n  args: [--model, acme/m, --port, 8000]\n",
        "image: {repository: vllm/v, tag: v1}\nargs:\n - --model=acme/m\n - --port=8000\n",
        "engine:\n  container:\n    image: vllm/v\n    args: [acme/m, --port, '8000']\n",
        "apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  spec:\n    containers:\n"
        "    - {image: i, command: [vllm, serve, acme/m], args: [--port, '8000']}\n",
        '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "vllm/v", '
        '"args": ["acme/m", "--port=8000"]}]}}',
    ],
)
def test_kubernetes_in_other_clothes(text: str) -> None:
    profile = profile_of(text, "kubernetes")
    assert (profile.model, profile.port) == ("acme/m", 8000)


def test_config_file_traps() -> None:
    found = import_profile(
        "model: acme/m\nenable-chunked-prefill: false\nno-enable-prefix-caching: true\n"
        'lora-modules: [\'a=b\', \'{"name":"x","path":"y"}\']\nhf_overrides: {a: 1}\n'
        "limit-mm-per-prompt: {image: 4}\nmax-model-len: 32k\nrevision: 1e3\n"
        "allowed-origins: ['*']\n"
    )
    assert found.kind == "config"
    assert found.profile.args == {
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "lora_modules": ["a=b", {"name": "x", "path": "y"}],
        "hf_overrides": {"a": 1},
        "limit_mm_per_prompt": {"image": 4},
        "max_model_len": "32k",
        "revision": "1e3",
        "allowed_origins": ["*"],
    }
    assert any("enable-chunked-prefill: false: vLLM drops it" in t for t in found.unrepresented)


def _process(root: Path, words: list[str], env: dict[str, str]) -> Path:
    base = root / "4242"
    base.mkdir()
    (base / "cmdline").write_bytes(b"\0".join(os.fsencode(w) for w in words) + b"\0")
    pairs = [f"{key}={value}".encode() for key, value in env.items()]
    (base / "environ").write_bytes(b"\0".join(pairs) + b"\0")
    (base / "cwd").symlink_to(root)
    return root


def test_a_running_engine(tmp_path: Path) -> None:
    words = ["/v/bin/python3", "/v/bin/vllm", "serve", "acme/m", "--port", "8003", "--api-key"]
    words += ["sk-1234567890", "--chat-template", "{{ a ${b} }}"]
    env = {"CUDA_VISIBLE_DEVICES": "1", "HOME": "/root", "HF_TOKEN": "hf_secretsecret"}
    env |= {"VLLM_USE_V2": "1", "AWS_SECRET_ACCESS_KEY": "x" * 20}
    found = import_pid(4242, proc=_process(tmp_path, words, env))
    profile = found.profile
    assert (profile.model, profile.port, profile.gpus) == ("acme/m", 8003, (1,))
    assert profile.args == {"chat_template": "{{ a $${b} }}"}
    assert profile.env == {
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
        "VLLM_USE_V2": "1",
        "VLLM_API_KEY": EnvRef(from_env="VLLM_API_KEY"),
    }
    assert profile.origin["cwd"] == str(tmp_path)
    assert "sk-1234567890" not in repr(found) and "hf_secretsecret" not in repr(found)


def test_a_process_that_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="is no `vllm serve`"):
        import_pid(os.getpid())
    with pytest.raises(NotFound):
        import_pid(1, proc=tmp_path)
    assert relevant("NCCL_DEBUG") and not relevant("PATH")


def test_what_a_script_sets_under_a_condition_is_said() -> None:
    found = import_profile(
        'A=(--dtype half)\nif [ "${DEBUG:-0}" = 1 ]; then A+=(--enforce-eager); fi\n'
        '[ -n "$K" ] && export VLLM_API_KEY=abcdefghijklmnop\n'
        'case $1 in\n big) L="--max-model-len 8192" ;;\nesac\nB="--seed 1"\n'
        'vllm serve acme/m "${A[@]}" $L $B\n'
    )
    said = [text for text in found.unrepresented if "under a condition" in text]
    assert said == [
        "line 2: A+=(--enforce-eager) stands under a condition: taken as if it held",
        "line 3: what sets VLLM_API_KEY stands under a condition: taken as if it held",
        'line 5: L="--max-model-len 8192" stands under a condition: taken as if it held',
    ]


def test_an_unknown_variable_beside_the_model_is_no_second_model() -> None:
    found = import_profile(
        "[Service]\nExecStart=/opt/v/bin/python -m vllm.entrypoints.openai.api_server "
        "--model acme/m --port 8002 $EXTRA_ARGS\n"
    )
    assert found.profile.model == "acme/m"
    assert not any("two models" in text for text in found.unrepresented)
    assert any(
        text == "what ${EXTRA_ARGS} adds to the command is not here: it was left out"
        for text in found.unrepresented
    )


WRAPPER = """\
#!/usr/bin/env bash
set -euo pipefail
: "${LLM_PORT:=8000}"
if [ $# -eq 0 ]; then
  set -- "${MODEL:?name a model}" --port "$LLM_PORT" --max-model-len 8192
fi
exec vllm serve "$@"
"""


def test_a_wrappers_default_arguments() -> None:
    found = import_profile(WRAPPER)
    assert (found.profile.model, found.profile.port) == ("${MODEL:?name a model}", 8000)
    assert found.profile.args == {"max_model_len": 8192}
    assert any("stands under a condition" in text for text in found.unrepresented)
    again = import_profile('set -- serve org/m --max-num-seqs 4 "$@"\nexec vllm "$@"\n')
    assert (again.profile.model, again.profile.args) == ("org/m", {"max_num_seqs": 4})
    assert "${@}: arguments that the script is given" in again.unrepresented


def test_a_wrapper_without_defaults_names_no_model() -> None:
    found = import_profile('exec vllm serve "$@"\n')
    assert found.profile.model == ""
    assert any("set `model:`" in text for text in found.unrepresented)


def test_what_a_cluster_is_asked_for_is_said() -> None:
    found = import_profile(
        "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH -t 1:00:00 \nsrun vllm serve org/m -tp 4\n"
    )
    assert "the cluster's scheduler: --gres=gpu:4 -t 1:00:00" in found.unrepresented


def test_a_caret_ends_a_line_of_cmd_only_outside_quotes() -> None:
    found = import_profile("vllm serve %MODEL% ^\n  --max-num-seqs 4 ^ \n  --port 8001\n")
    assert (found.profile.model, found.profile.port) == ("${MODEL}", 8001)
    quoted = import_profile("vllm serve org/m --chat-template 'a ^\n b'\n")
    assert quoted.profile.args == {"chat_template": "a ^\n b"}


@pytest.mark.parametrize(
    "launcher",
    [
        "apptainer exec --nv --bind /scratch:/models image.sif",
        "singularity run -B /tmp:/tmp,/scratch:/models:ro image.sif",
        "srun --container-image=vllm --container-mounts=/scratch:/models",
    ],
)
def test_what_a_launchers_container_sees_elsewhere_is_said(launcher: str) -> None:
    found = import_profile(f"{launcher} vllm serve /models/chat\n")
    assert found.profile.model == "/models/chat"
    said = "/models is /scratch on this machine: write paths below it as that"
    assert said in found.unrepresented
    assert said not in import_profile(f"{launcher} vllm serve org/m\n").unrepresented


def test_a_units_own_shell_is_this_machines() -> None:
    found = import_profile(
        "[Service]\nExecStart=/bin/bash -lc 'exec vllm serve org/m --api-key $(cat /etc/key)'\n"
    )
    assert found.profile.env == {"VLLM_API_KEY": EnvRef(from_file="/etc/key")}
    assert not any("of the container" in text for text in found.unrepresented)


def test_secrets_of_other_containers_are_neither_kept_nor_said() -> None:
    text = """
services:
  vllm:
    image: vllm/vllm-openai
    command: --model a/b
    labels: {admin.password: label-secret}
    healthcheck: {test: [CMD, probe, --token, probe-secret]}
  gate:
    image: gate
    command: ["--listen", ":80", "--password", "gate-secret", "--verbose"]
"""
    found = import_profile(text)
    written = yaml.safe_dump(document(found.profile)) + " ".join(found.unrepresented)
    assert "-secret" not in written
    assert found.profile.origin["other_services"]["gate"]["command"] == [
        "--listen",
        ":80",
        "--password",
        "***",
        "--verbose",
    ]


def test_arguments_that_are_shifted_and_variables_that_are_declared_exported() -> None:
    text = """
set -- first acme/chat --dtype half
shift
declare -x HF_HOME=/models/hf
local port
vllm serve "$@"
"""
    profile = profile_of(text, "shell")
    assert (profile.model, profile.args) == ("acme/chat", {"dtype": "half"})
    assert profile.env == {"HF_HOME": "/models/hf"}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("${M##*/}", "chat.v2.gguf"),
        ("${M#*/}", "models/chat.v2.gguf"),
        ("${M%.*}", "/models/chat.v2"),
        ("${M%%.*}", "/models/chat"),
        ("${M%.bin}", "/models/chat.v2.gguf"),
    ],
)
def test_a_variable_without_its_beginning_or_end(written: str, name: str) -> None:
    text = f"M=/models/chat.v2.gguf\nvllm serve $M --served-model-name {written}\n"
    found = import_profile(text)
    assert found.profile.served_name == (name,)
    assert not found.unrepresented


def test_what_only_a_shell_makes_of_a_scripts_variable_is_said() -> None:
    found = import_profile("M=a/b\nvllm serve $M --served-model-name ${M//b/c}\n")
    assert found.unrepresented == ("${M//b/c}: only a shell works that out; put its result there",)
