"""Values of Helm charts: the engine that the chart would start, and all that is left over, said."""

from __future__ import annotations

import pytest

from engine_ctl.errors import Usage
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import Imported, document, import_profile
from profiles.importing.secrets import is_secret
from profiles.model import EnvRef

STACK = """\
servingEngineSpec:
  vllmApiKey: open-sesame-please
  env: [{name: NCCL_DEBUG, value: WARN}]
  modelSpec:
  - name: chat
    repository: vllm/vllm-openai
    tag: v0.33.0
    modelURL: acme/chat-8b
    modelRevision: r2
    replicaCount: 2
    requestGPU: 2
    enableTool: true
    toolCallParser: hermes
    vllmConfig:
      enablePrefixCaching: true
      enableChunkedPrefill: false
      maxModelLen: 16384
      tensorParallelSize: 2
      gpuMemoryUtilization: 0.85
      extraArgs: [--max-num-batched-tokens, "4096"]
    lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "20"}
    hf_token: {secretName: hub, secretKey: token}
    env: [{name: VLLM_LOGGING_LEVEL, value: DEBUG}]
    extraVolumes: [{name: t, hostPath: {path: /srv/t}}]
    extraVolumeMounts: [{name: t, mountPath: /templates}]
    chatTemplate: chat.jinja
  - {name: other, enabled: false, modelURL: acme/other}
routerSpec: {replicaCount: 1}
"""

SERVICE = """\
modelArtifacts: {uri: "hf://acme/moe", name: acme/moe, authSecretName: hub}
routing: {servicePort: 8000, proxy: {targetPort: 8300}}
decode:
  replicas: 2
  parallelism: {tensor: 2, data: 8, workers: 2}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    modelCommand: vllmServe
    args: [--enable-expert-parallel, --kv-transfer-config, '{"kv_connector":"NixlConnector"}']
    env: [{name: VLLM_USE_DEEP_GEMM, value: "1"}]
prefill:
  parallelism: {tensor: 4}
  containers:
  - {name: vllm, image: ghcr.io/llm-d/llm-d-cuda:v0.5.0, modelCommand: vllmServe}
"""

KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      runtime: vllm-cuda
      storageUri: hf://acme/chat-8b
      args: [--max-model-len=4096]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""


def said(found: Imported) -> str:
    return "\n".join(found.unrepresented)


def test_the_production_stack() -> None:
    found = import_profile(STACK)
    profile = found.profile
    assert found.kind == "kubernetes"
    assert (profile.name, profile.model, profile.port) == ("chat", "acme/chat-8b", 8000)
    assert profile.args == {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
        "max_model_len": 16384,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.85,
        "max_num_batched_tokens": 4096,
        "revision": "r2",
        "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        "chat_template": "/srv/t/chat.jinja",
    }
    assert profile.env["HF_TOKEN"] == EnvRef(from_env="HF_TOKEN")
    assert profile.env["VLLM_API_KEY"] == EnvRef(from_env="VLLM_API_KEY")
    assert profile.env["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "20"
    assert (profile.env["NCCL_DEBUG"], profile.env["VLLM_LOGGING_LEVEL"]) == ("WARN", "DEBUG")
    assert profile.origin["gpus"] == 2
    for text in ("modelSpec: replicaCount", "values: routerSpec", "HF_HOME"):
        assert text in said(found)
    assert "open-sesame" not in str(document(profile)) + said(found)


def test_several_models_are_asked_for() -> None:
    text = STACK.replace("enabled: false, ", "")
    with pytest.raises(Usage, match=r"several models \(chat, other\); choose one with --name"):
        import_profile(text)
    assert import_profile(text, name="other").profile.model == "acme/other"


def test_modelservice() -> None:
    found = import_profile(SERVICE)
    profile = found.profile
    assert (profile.name, profile.model, profile.port) == ("moe-decode", "acme/moe", 8300)
    assert profile.served_name == ("acme/moe",)
    assert profile.args == {
        "tensor_parallel_size": 2,
        "data_parallel_size": 8,
        "data_parallel_size_local": 4,
        "enable_expert_parallel": True,
        "kv_transfer_config": {"kv_connector": "NixlConnector"},
    }
    assert profile.env == {
        "VLLM_USE_DEEP_GEMM": "1",
        "HF_TOKEN": EnvRef(from_env="HF_TOKEN"),
    }
    assert "prefill: another engine; import it with --name prefill" in found.unrepresented
    assert "decode: replicas" in found.unrepresented
    other = import_profile(SERVICE, name="prefill").profile
    assert (other.port, other.args) == (8000, {"tensor_parallel_size": 4})


@pytest.mark.parametrize(
    ("uri", "model"),
    [
        ("pvc://claim/path/to/m", "/model-cache/path/to/m"),
        ("pvc+hf://claim/hub/acme/m", "acme/m"),
        ("hf://{{ .Values.modelArtifacts.name }}", "acme/moe"),
    ],
)
def test_where_the_artifacts_are(uri: str, model: str) -> None:
    found = import_profile(SERVICE.replace("hf://acme/moe", uri))
    assert found.profile.model == model
    assert ("set `model:`" in said(found)) == uri.startswith("pvc://")


def test_artifacts_that_are_no_model_are_refused() -> None:
    with pytest.raises(Usage, match="oci://x: not understood"):
        import_profile(SERVICE.replace("hf://acme/moe", "oci://x"))


def test_an_inference_service() -> None:
    found = import_profile(KSERVE)
    assert (found.profile.name, found.profile.model) == ("chat", "acme/chat-8b")
    assert found.profile.args == {"max_model_len": 4096}
    assert "storageUri" in said(found)
    away = import_profile(KSERVE.replace("hf://", "s3://"))
    assert away.profile.model == ""
    assert "no model is given" in said(away)


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("text", [STACK, SERVICE, KSERVE], ids=["stack", "service", "kserve"])
def test_what_a_chart_starts_is_written_again(text: str, kind: str) -> None:
    first = import_profile(text).profile
    again = import_profile(export_profile(first, kind))
    assert document(again.profile) == document(first)


def test_secrets_in_camel_case() -> None:
    assert is_secret("vllmApiKey") and is_secret("accessToken")
    assert not is_secret("secretName") and not is_secret("maxTokens") and not is_secret("padToken")
