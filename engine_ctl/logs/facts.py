"""What a start's log states about itself: version, model, memory, caches.

Sizes in GiB as vLLM prints them, times in seconds. `None` is "the log does not say"."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from engine_ctl.logs.lines import Record


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one worker process said about its own GPU."""

    process: str
    pid: int | None
    weights_gib: float | None = None
    external_weights_gib: float | None = None
    kv_gib: float | None = None
    activation_gib: float | None = None
    graphs_gib: float | None = None


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Facts of one start. `args` is the text of `non-default args`; `compile_cache` is hit, miss
    or again (a cached artefact could not be used); `plan` is applied, saved or refused;
    `external_weights_gib` are held by a preload daemon, not by the engine."""

    version: str | None = None
    model: str | None = None
    architecture: str | None = None
    args: str | None = None
    url: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    enforce_eager: bool | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    api_servers: int | None = None
    checkpoint_gib: float | None = None
    filesystem: str | None = None
    weights_gib: float | None = None
    weights_seconds: float | None = None
    loading_seconds: float | None = None
    external_weights_gib: float | None = None
    budget_gib: float | None = None
    kv_tokens: int | None = None
    kv_concurrency: float | None = None
    kv_gib: float | None = None
    kv_device: str | None = None
    graphs_gib: float | None = None
    graphs_estimated_gib: float | None = None
    activation_gib: float | None = None
    consumed_gib: float | None = None
    device_free_gib: float | None = None
    device_total_gib: float | None = None
    gpu_memory_utilization: float | None = None
    suggested_kv_bytes: int | None = None
    suggested_kv_bytes_whole_gpu: int | None = None
    mapped_tensors: int | None = None
    mapped_mode: str | None = None
    daemon_allocated_gib: float | None = None
    compile_cache: str | None = None
    compile_seconds: float | None = None
    plan: str | None = None
    engine_init_seconds: float | None = None
    ranks: tuple[RankFacts, ...] = field(default=())


_N = r"(-?\d[\d,]{0,17}(?:\.\d{1,12})?)"
_STATEMENTS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (start, re.compile(pattern), fields)
    for start, pattern, fields in (
        ("Resolved architecture", r"Resolved architectures?: (\S+)", ("architecture",)),
        ("Using max model len", rf"Using max model len {_N}", ("max_model_len",)),
        ("non-default args", r"non-default args: (\{.*)", ("args",)),
        ("Starting vLLM", r"Starting vLLM .*?server(?: \d+)? on (\S+)", ("url",)),
        (
            "Filesystem type",
            rf"Filesystem type for checkpoints: (\S+?)\. Checkpoint size: {_N} GiB",
            ("filesystem", "checkpoint_gib"),
        ),
        ("Checkpoint size", rf"Checkpoint size: {_N} GiB", ("checkpoint_gib",)),
        ("Loading weights took", rf"Loading weights took {_N} seconds", ("weights_seconds",)),
        (
            "Model loading took",
            rf"Model loading took {_N} GiB(?: memory)? and {_N} seconds",
            ("weights_gib", "loading_seconds"),
        ),
        (
            "Weights are held outside",
            rf"Weights are held outside this process: of the {_N} GiB utilization budget, {_N} GiB",
            ("budget_gib", "external_weights_gib"),
        ),
        (
            "Mapped ",
            rf"Mapped {_N} tensors from the weight cache daemon(?: \((\w+) mode\))?",
            ("mapped_tensors", "mapped_mode"),
        ),
        (
            "Weight cache ",
            rf"Weight cache .*?daemon rank \d+ loaded model \({_N} GiB allocated",
            ("daemon_allocated_gib",),
        ),
        ("Available KV cache memory", rf"Available KV cache memory: {_N} GiB", ("kv_gib",)),
        (
            "Initial free memory",
            rf"Initial free memory:? {_N} GiB, reserved {_N} GiB memory for KV",
            ("device_free_gib", "kv_gib"),
        ),
        (
            "Explicitly set",
            rf"Explicitly set \({_N}/{_N}\) GiB for KV cache",
            ("kv_gib", "device_total_gib"),
        ),
        ("Estimated CUDA graph", rf"Estimated .*?memory: {_N} GiB", ("graphs_estimated_gib",)),
        ("Graph capturing finished", rf"Graph capturing finished .*took {_N} GiB", ("graphs_gib",)),
        (
            "CUDA graph pool memory",
            rf"CUDA graph pool memory: {_N} GiB \(actual\), {_N} GiB \(estimated\)",
            ("graphs_gib", "graphs_estimated_gib"),
        ),
        (
            "Free memory on device",
            rf"Free memory on device (?:\S+ )?\({_N}/{_N} GiB\) on startup\. Desired GPU memory "
            rf"utilization is \({_N}, {_N} GiB\)",
            (
                "device_free_gib",
                "device_total_gib",
                "gpu_memory_utilization",
                "budget_gib",
            ),
        ),
        ("torch.compile t", rf"torch\.compile t(?:ook|akes) {_N} s", ("compile_seconds",)),
        ("init engine", rf"init engine .*?took {_N} s", ("engine_init_seconds",)),
    )
)
_USAGE = re.compile(
    rf"Actual usage is {_N} GiB for (?:weight|consumed)[^,]*, {_N} GiB for peak activation"
    rf".*?(?:and {_N} GiB for CUDAGraph)?"
)
_GRAPH_USAGE = re.compile(rf"{_N} GiB for CUDAGraph memory")
_SUGGESTED = re.compile(r"`--kv-cache-memory(?:-bytes)?=(\d{1,18})` \([^)]*\) to (fit|fully)")
_KV_SIZE = re.compile(rf"(.{{0,20}}?) KV cache size: {_N} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_N} tokens per request: {_N}x")
_BANNER_VERSION = re.compile(r"version (\d\S*)")
_BANNER_MODEL = re.compile(r"█\s+model\s+(\S.*)")
_SERVER_VERSION = re.compile(r"vLLM (?:API )?server version (\S+?)(?:, serving model (.+))?$")
_ENGINE_VERSION = re.compile(r"Initializing a V\d LLM engine \(v([^)]+)\) with config:")
_CONFIG_FIELDS: tuple[tuple[str, str], ...] = (
    ("model", r"\bmodel='([^']*)'"),
    ("dtype", r"\bdtype=(?:torch\.)?(\w+)"),
    ("max_model_len", r"\bmax_seq_len=(\d{1,12})"),
    ("load_format", r"\bload_format='?(?:LoadFormat\.)?(\w+)"),
    ("quantization", r"\bquantization=(?!None)'?([\w-]+)"),
    ("enforce_eager", r"\benforce_eager=(True|False)"),
    ("tensor_parallel_size", r"\btensor_parallel_size=(\d{1,9})"),
    ("pipeline_parallel_size", r"\bpipeline_parallel_size=(\d{1,9})"),
    ("data_parallel_size", r"\bdata_parallel_size=(\d{1,9})"),
)
_CONFIG = tuple((name, re.compile(pattern)) for name, pattern in _CONFIG_FIELDS)
_API_SERVERS = re.compile(r"'api_server_count': (\d{1,6})")
_TAG = re.compile(r"\[[\w .-]{1,40}\] ")
_INTEGERS = {
    "max_model_len",
    "kv_tokens",
    "mapped_tensors",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "api_servers",
}
_TEXTS = {
    "architecture",
    "args",
    "url",
    "filesystem",
    "mapped_mode",
    "model",
    "dtype",
    "load_format",
    "quantization",
}
_PER_RANK = {
    "weights_gib",
    "external_weights_gib",
    "kv_gib",
    "activation_gib",
    "graphs_gib",
}


def untagged(message: str) -> str:
    """The message without a leading tag such as `[backbone] `; `[shutdown]` is kept."""
    if message[:1] != "[" or message.startswith("[shutdown]"):
        return message
    found = _TAG.match(message)
    return message[found.end() :] if found else message


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if name == "enforce_eager":
        return text == "True"
    number = float(text.replace(",", "").rstrip("."))
    return int(number) if name in _INTEGERS else number


def statements(message: str) -> dict[str, Any]:
    """The fields of StartFacts that one message states (message without prefix and tag)."""
    found: dict[str, Any] = {}
    for start, pattern, fields in _STATEMENTS:
        if message.startswith(start):
            match = pattern.match(message)
            if match is not None:
                for name, text in zip(fields, match.groups(), strict=True):
                    if text is not None:
                        found[name] = _value(name, text)
            break
    if found.get("args") and (count := _API_SERVERS.search(found["args"])):
        found["api_servers"] = int(count[1])
    if "KV cache size" in message and (size := _KV_SIZE.match(message)):
        found["kv_device"] = size[1].strip() or None
        found["kv_tokens"] = _value("kv_tokens", size[2])
    if "Maximum concurrency" in message and (times := _CONCURRENCY.search(message)):
        found["kv_concurrency"] = _value("kv_concurrency", times[2])
    if "Actual usage is" in message and (usage := _USAGE.search(message)):
        found["consumed_gib"] = _value("consumed_gib", usage[1])
        found["activation_gib"] = _value("activation_gib", usage[2])
        if (graphs := _GRAPH_USAGE.search(message)) is not None:
            found["graphs_gib"] = _value("graphs_gib", graphs[1])
        for size_text, what in _SUGGESTED.findall(message):
            name = "suggested_kv_bytes" if what == "fit" else "suggested_kv_bytes_whole_gpu"
            found[name] = int(size_text)
    found.update(_identity(message))
    found.update(_caches(message))
    return found


def _identity(message: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "█" in message:
        if version := _BANNER_VERSION.search(message):
            found["version"] = version[1]
        if model := _BANNER_MODEL.search(message):
            found["model"] = model[1].strip()
    elif message.startswith("vLLM ") and (server := _SERVER_VERSION.match(message)):
        found["version"] = server[1]
        if server[2]:
            found["model"] = server[2].strip()
    elif message.startswith("Initializing a V") and (engine := _ENGINE_VERSION.match(message)):
        found["version"] = engine[1]
        for name, pattern in _CONFIG:
            if value := pattern.search(message):
                found[name] = _value(name, value[1])
    return found


def _caches(message: str) -> dict[str, Any]:
    if message.startswith("Directly load"):
        return {"compile_cache": "hit"}
    if message.startswith("Compiling model again"):
        return {"compile_cache": "again"}
    if message.startswith(("Dynamo bytecode transform", "Starting torch.compile")):
        return {"compile_cache": "miss"}
    if message.startswith("Applying persisted startup plan"):
        return {"plan": "applied"}
    if message.startswith("Saved startup plan"):
        return {"plan": "saved"}
    if message.startswith(("Startup plan not applied", "Ignoring unreadable startup plan")):
        return {"plan": "refused"}
    return {}


def learn(facts: StartFacts, record: Record) -> StartFacts:
    """`facts` with what `record` adds. The first value of a fact stands, except that later and
    truer figures replace earlier ones, and that sizes of several ranks give the largest."""
    found = statements(untagged(record.message))
    if not found:
        return facts
    mine = {name: found[name] for name in found.keys() & _PER_RANK}
    if mine and record.process is not None:
        facts = replace(facts, ranks=_with_rank(facts.ranks, record, mine))
        for name in mine:
            said = [getattr(rank, name) for rank in facts.ranks]
            found[name] = max(value for value in said if value is not None)
    if found.get("compile_cache") == "miss" and facts.compile_cache is not None:
        del found["compile_cache"]
    if facts.version is not None and found.get("model") and facts.model:
        del found["model"]
    return replace(facts, **found)


def _with_rank(
    ranks: tuple[RankFacts, ...], record: Record, values: dict[str, Any]
) -> tuple[RankFacts, ...]:
    for index, rank in enumerate(ranks):
        if rank.pid == record.pid and (rank.pid is not None or rank.process == record.process):
            changed = replace(rank, process=record.process or rank.process, **values)
            return (*ranks[:index], changed, *ranks[index + 1 :])
    return (*ranks, RankFacts(record.process or "", record.pid, **values))
