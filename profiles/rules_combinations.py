"""Lint rules: settings that bite each other, and settings that bite the operator."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.rules import ERROR, FAIL, NOTE, Hit, Rule, View, as_map, config_value, every


def _ipc_mode(view: View) -> str | None:
    """zero_copy or copy when the engine takes its weights from a daemon, else None."""
    extra = as_map(view.args.get("model_loader_extra_config"))
    if view.profile.preload is not None:
        return str(extra.get("mode") or view.profile.preload.mode)
    if view.args.get("load_format") == "ipc_cache":
        return str(extra.get("mode") or "zero_copy")
    return None


def _sleep_zero_copy(view: View) -> Iterator[Hit]:
    if view.args.get("enable_sleep_mode") is True and _ipc_mode(view) == "zero_copy":
        yield "args.enable_sleep_mode", "true"


def _ipc_daemon(view: View) -> Iterator[Hit]:
    if view.preload_args.get("load_format") == "ipc_cache":
        yield "preload.args.load_format", "ipc_cache"


def _pipeline_preload(view: View) -> Iterator[Hit]:
    if _ipc_mode(view) is not None and view.number("pipeline_parallel_size", 1) > 1:
        yield "args.pipeline_parallel_size", str(view.args.get("pipeline_parallel_size"))


def _same_master_port(view: View) -> Iterator[Hit]:
    port = view.preload_args.get("weight_cache_master_port")
    draft = view.preload_args.get("weight_cache_draft_master_port")
    if port is not None and int(view.number("master_port", 29501)) == port:
        yield "preload.args.weight_cache_master_port", str(port)
    if port is not None and port == draft:
        yield "preload.args.weight_cache_draft_master_port", str(draft)


def _eplb_preload(view: View) -> Iterator[Hit]:
    if _ipc_mode(view) is not None and view.args.get("enable_eplb") is True:
        yield "args.enable_eplb", "true"


def _utilisation_over(view: View) -> Iterator[Hit]:
    share, held = _share(view), _held_share(view)
    if share is not None and held is not None and share + held > 1:
        yield (
            "args.gpu_memory_utilization",
            f"{share:.2f} with a daemon that leaves {1 - held:.2f} of the GPU",
        )


def _utilisation_under(view: View) -> Iterator[Hit]:
    share, held = _share(view), _held_share(view)
    if share is not None and held is not None and share <= held:
        yield (
            "args.gpu_memory_utilization",
            f"{share:.2f} while the daemon's weights alone take {held:.2f}",
        )


def _low_utilisation(view: View) -> Iterator[Hit]:
    share = _share(view)
    sized = view.given("kv_cache_memory_bytes")
    if _held_share(view) is None and share is not None and share <= 0.3 and not sized:
        yield "args.gpu_memory_utilization", f"{share:.2f}"


def _high_utilisation(view: View) -> Iterator[Hit]:
    share = _share(view)
    if _held_share(view) is None and share is not None and share >= 0.8:
        yield "args.gpu_memory_utilization", f"{share:.2f}"


def _share(view: View) -> float | None:
    if _ipc_mode(view) is None:
        return None
    return view.number("gpu_memory_utilization", 0.92)


def _held_share(view: View) -> float | None:
    """The daemon's weights as a share of the GPU's memory."""
    held, total = view.facts.daemon_weights, view.facts.gpu_total
    return None if not held or not total else held / total


def _lora_prefix(view: View) -> Iterator[Hit]:
    if view.args.get("enable_lora") is True and view.args.get("enable_prefix_caching") is not False:
        yield "args.enable_lora", "true"


def _odd_seqs(view: View) -> Iterator[Hit]:
    if view.given("max_num_seqs") and view.number("max_num_seqs", 8) % 8:
        yield "args.max_num_seqs", str(view.args["max_num_seqs"])


def _dbo_runner(view: View) -> Iterator[Hit]:
    if view.args.get("enable_dbo") is True and "VLLM_USE_V2_MODEL_RUNNER" not in view.env:
        yield "args.enable_dbo", "true"


def _hisparse_pipeline(view: View) -> Iterator[Hit]:
    for name in ("pipeline_parallel_size", "decode_context_parallel_size"):
        if view.number(name, 1) > 1:
            yield f"args.{name}", str(view.args.get(name))


def _empty_list(view: View) -> Iterator[Hit]:
    for key, name, value in view.places:
        argument = view.schema.find(name)
        if value == [] and argument is not None and argument.many and argument.default:
            yield key, str(argument.default)


def _optimization_level(view: View) -> Iterator[Hit]:
    level = view.args.get("optimization_level")
    if level is not None and str(level) not in ("0", "1", "2", "3"):
        yield "args.optimization_level", str(level)


def _deprecated_quantization(view: View) -> Iterator[Hit]:
    value = view.args.get("quantization")
    if value in ("fbgemm_fp8", "fp_quant") and not view.args.get("allow_deprecated_quantization"):
        yield "args.quantization", str(value)


def _whitespace_backend(view: View) -> Iterator[Hit]:
    config = view.config("structured_outputs_config")
    backend = str(config.get("backend", "auto"))
    if config.get("disable_any_whitespace") is True and backend not in ("xgrammar", "guidance"):
        yield "args.structured_outputs_config.disable_any_whitespace", backend


def _tools_without_parser(view: View) -> Iterator[Hit]:
    if view.args.get("enable_auto_tool_choice") is True and not view.given("tool_call_parser"):
        yield "args.enable_auto_tool_choice", "true"


def _parser_without_tools(view: View) -> Iterator[Hit]:
    if view.given("tool_call_parser") and view.args.get("enable_auto_tool_choice") is not True:
        yield "args.tool_call_parser", str(view.args["tool_call_parser"])


def _moving_segments(view: View) -> Iterator[Hit]:
    connector = view.config("kv_transfer_config").get("kv_connector")
    pooled = any(view.args.get(n) is True for n in ("enable_sleep_mode", "enable_cumem_allocator"))
    name = "PYTORCH_CUDA_ALLOC_CONF"
    if connector and not pooled and "expandable_segments:True" in (view.env_text(name) or ""):
        yield f"env.{name}", str(connector)


_IPC = "vllm/model_executor/model_loader/weight_cache"

RULES = (
    Rule(
        id="sleep-zero-copy",
        severity=FAIL,
        when=_sleep_zero_copy,
        what="sleep mode cannot free weights that a daemon holds (zero_copy)",
        effect="sleep frees no weights, and level 2 may return garbage",
        instead="preload: {mode: copy}, or enable_sleep_mode: false",
        source=f"{_IPC}/ipc_loader.py",
    ),
    Rule(
        id="daemon-loads-ipc",
        severity=FAIL,
        when=_ipc_daemon,
        what="the daemon itself must load from disk",
        effect="the daemon does not start",
        instead="remove load_format from preload.args",
        source="vllm/entrypoints/cli/preload.py",
    ),
    Rule(
        id="pipeline-preload",
        severity=FAIL,
        since="0.30",
        before="0.32",
        when=_pipeline_preload,
        what="weight daemons know no pipeline parallelism before 0.32",
        effect="the daemon does not start",
        instead="tensor_parallel_size, or vLLM 0.32",
        source="https://docs.vllm.ai/en/v0.31.0/features/preload/",
    ),
    Rule(
        id="daemon-master-port",
        severity=FAIL,
        when=_same_master_port,
        what="the daemon holds its rendezvous port while it serves",
        effect="the engine cannot form its group: the port is taken",
        instead="another weight_cache_master_port",
        source="vllm/entrypoints/cli/preload.py",
    ),
    Rule(
        id="eplb-preload",
        severity=FAIL,
        when=_eplb_preload,
        what="expert load balancing moves weights that a daemon holds",
        effect="the start fails, for the daemon and the engine",
        instead="enable_eplb: false, or no preload",
        source=f"{_IPC}/daemon.py",
    ),
    Rule(
        id="utilisation-over-free",
        severity=FAIL,
        before="0.32",
        when=_utilisation_over,
        what="gpu_memory_utilization must fit beside the daemon's weights: {detail}",
        effect="the start fails: not enough free memory",
        instead="less than what the daemon leaves free",
        source="https://github.com/vllm-project/vllm/pull/57298",
    ),
    Rule(
        id="utilisation-under-weights",
        severity=FAIL,
        since="0.32",
        when=_utilisation_under,
        what="gpu_memory_utilization must include the daemon's weights: {detail}",
        effect="the start fails: externally held weights exceed the budget",
        instead="the engine's whole share, such as 0.9",
        source="https://github.com/vllm-project/vllm/pull/57298",
    ),
    Rule(
        id="utilisation-high",
        severity=NOTE,
        before="0.32",
        when=_high_utilisation,
        what="gpu_memory_utilization {detail} leaves little room for a daemon: before 0.32 it must "
        "leave out the daemon's weights",
        effect="the start fails if they need more than the rest of the GPU",
        instead="what the daemon leaves free, or vLLM 0.32 and later",
        source="https://github.com/vllm-project/vllm/pull/57298",
    ),
    Rule(
        id="utilisation-low",
        severity=NOTE,
        since="0.32",
        when=_low_utilisation,
        what="gpu_memory_utilization {detail} looks like advice for 0.31: since 0.32 it includes "
        "the daemon's weights",
        effect="the start fails if the weights alone are larger",
        instead="the engine's whole share, such as 0.9",
        source="https://github.com/vllm-project/vllm/pull/57298",
    ),
    Rule(
        id="lora-cache-salt",
        severity=NOTE,
        before="0.31",
        when=_lora_prefix,
        what="prefixes of requests with a cache salt can collide between LoRA adapters",
        effect="a request may be answered from another adapter's prefix",
        instead="vLLM 0.31, no cache_salt in requests, or enable_prefix_caching: false",
        source="vllm/v1/core/kv_cache_utils.py",
    ),
    Rule(
        id="seqs-multiple-of-8",
        severity=NOTE,
        before="0.31",
        when=_odd_seqs,
        what="max_num_seqs that is no multiple of 8 misses the largest captured graph",
        effect="full batches run without a CUDA graph: slower",
        instead="a multiple of 8",
        source="vllm/config/vllm.py",
    ),
    Rule(
        id="dbo-model-runner",
        severity=NOTE,
        since="0.33",
        when=_dbo_runner,
        what="dual batch overlap keeps the engine on model runner V1",
        effect="what needs runner V2 is refused",
        instead="env VLLM_USE_V2_MODEL_RUNNER: 1 (or 0 to state the choice)",
        source="vllm/config/vllm.py",
    ),
    Rule(
        id="hisparse-parallelism",
        severity=FAIL,
        when=every(
            _hisparse_pipeline,
            config_value("kv_transfer_config", "kv_connector", "hisparseconnector"),
        ),
        what="HiSparse knows neither pipeline nor decode context parallelism",
        effect="the start fails",
        instead="tensor_parallel_size",
        source="vllm/config/vllm.py",
    ),
    Rule(
        id="empty-list",
        severity=NOTE,
        when=_empty_list,
        what="an empty list cannot be said on vLLM's command line",
        effect="the default stays: {detail}",
        instead="a list with a value that matches nothing",
        source="vllm/utils/argparse_utils.py",
    ),
    Rule(
        id="optimization-level",
        severity=FAIL,
        when=_optimization_level,
        what="{detail} is no optimization level (`-O.mode=3` becomes the level .mode=3)",
        effect="the start fails",
        instead="0, 1, 2 or 3; other settings belong to compilation_config",
        source="vllm/utils/argparse_utils.py",
    ),
    Rule(
        id="deprecated-quantization",
        severity=FAIL,
        when=_deprecated_quantization,
        what="the quantization method {detail} is deprecated",
        effect="the start fails",
        instead="another checkpoint, or allow_deprecated_quantization: true for a while",
        source="vllm/config/model.py",
    ),
    Rule(
        id="whitespace-backend",
        severity=ERROR,
        when=_whitespace_backend,
        what="disable_any_whitespace needs the backend xgrammar or guidance, not {detail}",
        effect="the argument parser stops (exit code 2)",
        instead="backend: xgrammar",
        source="vllm/config/structured_outputs.py",
    ),
    Rule(
        id="tools-without-parser",
        severity=FAIL,
        when=_tools_without_parser,
        what="automatic tool choice needs to know how this model writes tool calls",
        effect="the start fails",
        instead="tool_call_parser: hermes, llama3_json, …, by the model's format",
        source="vllm/entrypoints/common/cli_args.py",
    ),
    Rule(
        id="parser-without-tools",
        severity=NOTE,
        when=_parser_without_tools,
        what="the tool parser {detail} is not used by itself",
        effect="tool calls that the model chooses stay in the answer as text",
        instead="enable_auto_tool_choice: true",
        source="vllm/parser/parser_manager.py",
    ),
    Rule(
        id="connector-moving-segments",
        severity=FAIL,
        since="0.32",
        when=_moving_segments,
        what="memory that {detail} has pinned may move with expandable_segments:True",
        effect="the start fails",
        instead="leave PYTORCH_CUDA_ALLOC_CONF out, or enable_cumem_allocator: true",
        source="vllm/config/vllm.py",
    ),
)
