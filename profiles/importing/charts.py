"""Values of Helm charts that start vLLM: the container that the chart makes of them.

Known are the vLLM production-stack (`servingEngineSpec`) and llm-d's modelservice
(`modelArtifacts`). What a chart adds for its cluster alone (HF_HOME on its volume) is left out
and said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from engine_ctl.errors import Usage

_FLAGS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
_SERVING_KEYS = frozenset({"modelSpec", "containerPort", "vllmApiKey", "env", "enableEngine"})
_VLLM_KEYS = frozenset({*_FLAGS, "enableChunkedPrefill", "enablePrefixCaching", "extraArgs"})
_SPEC_KEYS = frozenset(
    {"name", "enabled", "repository", "tag", "modelURL", "enableLoRA", "enableTool", "env"}
    | {"toolCallParser", "vllmConfig", "modelRevision", "lmcacheConfig", "chatTemplate"}
    | {"hf_token", "requestGPU", "resources", "extraVolumes", "extraVolumeMounts"}
)
_LMCACHE_KEYS = frozenset(
    {"enabled", "kvRole", "logLevel", "cpuOffloadingBufferSize", "diskOffloadingBufferSize"}
)


@dataclass
class ChartContainer:
    """A chart's engine as a Kubernetes container (`body`) with its pod's `volumes`. `left` are
    the sentences on what a profile does not say."""

    chart: str
    name: str
    body: dict[str, Any]
    volumes: list[Any] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def chart_container(document: Any, chosen: str | None) -> ChartContainer | None:
    """The engine of a chart's values, None for anything else; `chosen` is one of several.

    Raises Usage when several fit, or when the values name no model."""
    if not isinstance(document, dict):
        return None
    serving = document.get("servingEngineSpec")
    if isinstance(serving, dict) and serving.get("modelSpec") is not None:
        return _production_stack(document, serving, chosen)
    artifacts = document.get("modelArtifacts")
    if isinstance(artifacts, dict) and artifacts.get("uri") is not None:
        return _modelservice(document, artifacts, chosen)
    return None


def _production_stack(
    document: dict[str, Any], serving: dict[str, Any], chosen: str | None
) -> ChartContainer:
    specs = [s for s in _items(serving["modelSpec"]) if s.get("enabled") is not False]
    spec = _one_of(specs, lambda s: str(s.get("name")), chosen, "models")
    if not spec.get("modelURL"):
        raise Usage(f"modelSpec {spec.get('name')} has no modelURL")
    config, cache = _map(spec.get("vllmConfig")), _map(spec.get("lmcacheConfig"))
    words = ["vllm", "serve", str(spec["modelURL"]), "--host", "0.0.0.0"]
    words += ["--port", str(serving.get("containerPort") or 8000)]
    words += ["--enable-lora"] if spec.get("enableLoRA") else []
    words += ["--enable-auto-tool-choice"] if spec.get("enableTool") else []
    if spec.get("toolCallParser"):
        words += ["--tool-call-parser", str(spec["toolCallParser"])]
    if "enableChunkedPrefill" in config:
        on = config["enableChunkedPrefill"]
        words.append("--enable-chunked-prefill" if on else "--no-enable-chunked-prefill")
    if config:
        on = config.get("enablePrefixCaching")
        words.append("--enable-prefix-caching" if on else "--no-enable-prefix-caching")
    for key, option in _FLAGS.items():
        if key in config:
            words += [option, str(config[key])]
    extra = config.get("extraArgs") or []
    if not isinstance(extra, list):
        raise Usage("vllmConfig.extraArgs is no list of words")
    words += [str(word) for word in extra]
    if spec.get("modelRevision"):
        words += ["--revision", str(spec["modelRevision"])]
    env = _production_env(serving, spec)
    if cache.get("enabled"):
        kv = {"kv_connector": "LMCacheConnectorV1", "kv_role": cache.get("kvRole") or "kv_both"}
        words += ["--kv-transfer-config", json.dumps(kv)]
        env += _lmcache_env(cache)
    if spec.get("chatTemplate"):
        words += ["--chat-template", f"/templates/{spec['chatTemplate']}"]
    left = _unsaid("modelSpec", spec, _SPEC_KEYS) + _unsaid("vllmConfig", config, _VLLM_KEYS)
    left += _unsaid("lmcacheConfig", cache, _LMCACHE_KEYS)
    left += _unsaid(
        "servingEngineSpec", serving, {"modelSpec", "containerPort", "vllmApiKey", "env"}
    )
    left += _unsaid("values", document, {"servingEngineSpec"})
    left.append("HF_HOME, which the chart sets for its volume, was left out")
    image = ":".join(str(spec[key]) for key in ("repository", "tag") if spec.get(key))
    resources = spec.get("resources") or {"limits": {"nvidia.com/gpu": spec.get("requestGPU")}}
    body = {
        "name": spec.get("name"),
        **({"image": image} if image else {}),
        "command": words,
        "env": env,
        **({"resources": resources} if spec.get("requestGPU") or spec.get("resources") else {}),
        "volumeMounts": spec.get("extraVolumeMounts") or [],
    }
    volumes = _items(spec.get("extraVolumes"))
    return ChartContainer("vLLM production-stack", str(spec.get("name")), body, volumes, left)


def _production_env(serving: dict[str, Any], spec: dict[str, Any]) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = []
    for name, value in (
        ("HF_TOKEN", spec.get("hf_token")),
        ("VLLM_API_KEY", serving.get("vllmApiKey")),
    ):
        if isinstance(value, str) and value:
            env.append({"name": name, "value": value})
        elif isinstance(value, dict):
            source = {"name": value.get("secretName"), "key": value.get("secretKey")}
            env.append({"name": name, "valueFrom": {"secretKeyRef": source}})
    return [*env, *_items(serving.get("env")), *_items(spec.get("env"))]


def _lmcache_env(cache: dict[str, Any]) -> list[dict[str, Any]]:
    """What the chart sets where LMCache is on; block hashes have to agree between processes."""
    values = {
        "PYTHONHASHSEED": "123",
        "LMCACHE_USE_EXPERIMENTAL": "True",
        "VLLM_RPC_TIMEOUT": "1000000",
        "LMCACHE_LOG_LEVEL": str(cache.get("logLevel") or "INFO"),
    }
    size = cache.get("cpuOffloadingBufferSize")
    if str(size or "0") != "0":
        values |= {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": str(size)}
    if "diskOffloadingBufferSize" in cache:
        values["LMCACHE_MAX_LOCAL_DISK_SIZE"] = str(cache["diskOffloadingBufferSize"])
    return [{"name": name, "value": value} for name, value in values.items()]


def _modelservice(
    document: dict[str, Any], artifacts: dict[str, Any], chosen: str | None
) -> ChartContainer | None:
    made = [(role, body) for role in ("decode", "prefill") for body in _managed(document, role)]
    if not made:
        return None
    roles = [role for role, _ in made]
    role, given = next((item for item in made if item[0] == chosen), made[0])
    others = [other for other in roles if other != role]
    left = [f"{other}: another engine; import it with --name {other}" for other in others]
    routing, part = _map(document.get("routing")), _map(document.get(role))
    parallel = _map(part.get("parallelism"))
    proxy = _map(routing.get("proxy"))
    direct = role == "prefill" or proxy.get("enabled") is False
    port = routing.get("servicePort") or 8000 if direct else proxy.get("targetPort") or 8200
    model = _artifact(str(artifacts["uri"]), artifacts, left)
    words = ["vllm", "serve", model, "--port", str(port)]
    data, local = _data_parallel(parallel)
    for option, size in (
        ("--tensor-parallel-size", parallel.get("tensor") or 1),
        ("--data-parallel-size", data),
        ("--data-parallel-size-local", local),
    ):
        if isinstance(size, int) and size > 1:
            words += [option, str(size)]
    if artifacts.get("name"):
        words += ["--served-model-name", str(artifacts["name"])]
    env: list[Any] = _items(given.get("env"))
    if artifacts.get("authSecretName"):
        source = {"name": artifacts["authSecretName"], "key": "HF_TOKEN"}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": source}})
    body = {key: value for key, value in given.items() if key not in ("modelCommand", "args")}
    body |= {"command": words, "args": given.get("args") or [], "env": env}
    used = {"parallelism", "containers", "volumes", "create"}
    left += _unsaid(role, part, used)
    left += _unsaid("values", document, {"modelArtifacts", "decode", "prefill", "routing"})
    name = str(artifacts.get("name") or model).rpartition("/")[2] + f"-{role}"
    volumes = _items(part.get("volumes"))
    return ChartContainer("llm-d modelservice", name, body, volumes, left)


def _managed(document: dict[str, Any], role: str) -> Iterable[dict[str, Any]]:
    """Containers of a role whose command the chart writes."""
    part = _map(document.get(role))
    if part.get("create") is False:
        return
    for body in _items(part.get("containers")):
        if body.get("modelCommand") in ("vllmServe", "imageDefault"):
            yield body


def _artifact(uri: str, artifacts: dict[str, Any], left: list[str]) -> str:
    protocol, _, rest = uri.partition("://")
    rest = rest.replace("{{ .Values.modelArtifacts.name }}", str(artifacts.get("name", "")))
    if protocol == "hf":
        return rest
    if protocol == "pvc+hf":
        return "/".join(rest.split("/")[-2:])
    if protocol == "pvc":
        path = f"{artifacts.get('mountPath') or '/model-cache'}/{rest.partition('/')[2]}"
        left.append(f"model: {path} is on a volume claim; set `model:` to its path on this machine")
        return path
    raise Usage(f"modelArtifacts.uri {uri}: not understood; give hf://, pvc:// or pvc+hf://")


def _data_parallel(parallel: dict[str, Any]) -> tuple[int, int]:
    """(size over all nodes, size on one node)."""
    data, local, workers = (
        value if isinstance(value := parallel.get(key), int) else 0
        for key in ("data", "dataLocal", "workers")
    )
    size = data or (local or 1) * (workers if local and workers else 1)
    return size, local or (data // workers if data and workers else data or 1)


def _one_of(
    specs: list[dict[str, Any]],
    name: Callable[[dict[str, Any]], str],
    chosen: str | None,
    what: str,
) -> dict[str, Any]:
    found = [spec for spec in specs if name(spec) == chosen] or specs
    if not found:
        raise Usage(f"the values hold no {what} that are enabled")
    if len(found) > 1:
        raise Usage(f"several {what} ({', '.join(map(name, found))}); choose one with --name")
    return found[0]


def _unsaid(where: str, part: dict[str, Any], used: Iterable[str]) -> list[str]:
    keys = [str(key) for key in part if key not in set(used)]
    return [f"{where}: {', '.join(keys)}"] if keys else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
