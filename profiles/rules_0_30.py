"""Lint rules: what changed in vLLM 0.30 and 0.31.

Found by comparing the parsers, configurations and environment tables of the releases.
"""

from __future__ import annotations

from collections.abc import Iterator

from profiles.rules import (
    ERROR,
    FAIL,
    NOTE,
    Hit,
    Rule,
    View,
    absent,
    argument,
    config_key,
    unless,
    value_of,
)
from profiles.rules_shared import (
    MULTIMODAL,
    STOPS,
    changed,
    loads_ipc,
    preload,
    removed,
    removed_keys,
)


def _comma_traces(view: View) -> Iterator[Hit]:
    value = view.args.get("collect_detailed_traces")
    items = value if isinstance(value, list) else [value]
    if any("," in item for item in items if isinstance(item, str)):
        yield "args.collect_detailed_traces", str(value)


def _async_pipeline(view: View) -> Iterator[Hit]:
    chosen = view.args.get("async_scheduling") is True
    v2 = view.env_text("VLLM_USE_V2_MODEL_RUNNER") == "1"
    if chosen and not v2 and view.number("pipeline_parallel_size", 1) > 1:
        yield "args.async_scheduling", "true"


def _auto_async_pipeline(view: View) -> Iterator[Hit]:
    if view.number("pipeline_parallel_size", 1) > 1 and not view.given("async_scheduling"):
        yield "args.pipeline_parallel_size", ""


RULES = (
    removed(
        "bf16x3-router-gemm",
        ("enable_bf16x3_router_gemm",),
        "0.30",
        "leave it out",
        "vllm/engine/arg_utils.py",
    ),
    removed_keys(
        "attention-config-0.30",
        "attention_config",
        ("use_fp4_indexer_cache",),
        "0.30",
        "attention_config: {indexer_kv_dtype: mxfp4}",
        "vllm/config/attention.py",
    ),
    Rule(
        id="gptq-act-order",
        severity=NOTE,
        since="0.30",
        when=value_of("quantization", "gptq", "gptq_marlin"),
        what="GPTQ checkpoints with group activation ordering (desc_act) are refused",
        effect="the start fails if the checkpoint's quantize_config says desc_act: true",
        instead="a checkpoint with desc_act: false, or vLLM 0.29",
        source="vllm/model_executor/layers/quantization/utils/gptq_utils.py",
    ),
    Rule(
        id="ipc-cache-not-yet",
        severity=FAIL,
        before="0.30",
        when=loads_ipc,
        what="weights cannot be shared with a daemon yet",
        effect="the start fails: unknown load format",
        instead="run vLLM 0.31 or later, or remove preload",
        source="vllm/model_executor/model_loader",
    ),
    Rule(
        id="preload-command-not-yet",
        severity=ERROR,
        before="0.31",
        when=preload,
        what="`vllm preload` is new in 0.31",
        effect="the daemon does not start (exit code 2)",
        instead="run vLLM 0.31 or later",
        source="vllm/entrypoints/cli/preload.py",
    ),
    changed(
        "scale-out-default",
        "0.30",
        absent("enable_scale_out"),
        "the scale-out end points (tokens in and out, derender) are off by default",
        "enable_scale_out: true if something calls them",
        "vllm/entrypoints/scale_out/factories.py",
    ),
    Rule(
        id="request-mm-kwargs",
        severity=NOTE,
        since="0.31",
        when=unless(MULTIMODAL, argument("trust_request_mm_kwargs")),
        what="requests may no longer bring mm_processor_kwargs or media_io_kwargs of their own",
        effect="the server starts and answers such requests with 400",
        instead="trust_request_mm_kwargs: true for trusted callers, false to state the choice",
        source="vllm/entrypoints/generate/base/protocol.py",
    ),
    Rule(
        id="tokenizer-mode-slow",
        severity=FAIL,
        since="0.31",
        when=value_of("tokenizer_mode", "slow"),
        what="the slow tokenizer mode is gone",
        effect="the start fails: no tokenizer registered",
        instead="tokenizer_mode: auto",
        source="vllm/tokenizers/registry.py",
    ),
    removed(
        "mamba-fine-grained",
        ("enable_mamba_fine_grained_prefix_cache",),
        "0.31",
        "enable_mamba_shared_prefix_checkpoint",
        "vllm/config/cache.py",
    ),
    Rule(
        id="online-fp8-renamed",
        severity=NOTE,
        since="0.31",
        when=value_of("quantization", "fp8"),
        what="fp8 names checkpoints that are quantized already",
        effect="a warning for a 16-bit checkpoint, a failed start for one that only claims fp8",
        instead="quantization: fp8_per_tensor for a 16-bit checkpoint, nothing for an fp8 one",
        source="vllm/model_executor/model_loader/weight_utils.py",
    ),
    Rule(
        id="allspark-gone",
        severity=FAIL,
        since="0.31",
        when=value_of("quantization", "allspark"),
        what="the AllSpark kernels are gone",
        effect="the start fails: unknown quantization method",
        instead="quantization: gptq_marlin, or leave it to the checkpoint",
        source="vllm/model_executor/layers/quantization",
    ),
    changed(
        "eager-without-warmup",
        "0.31",
        unless(value_of("enforce_eager", "true"), config_key("kernel_config", "enable_jit_warmup")),
        "enforce_eager also skips the kernel warm-up: the first requests pay for it",
        "kernel_config: {enable_jit_warmup: true} warms up at the start",
        "vllm/config/vllm.py",
    ),
    Rule(
        id="detailed-traces-comma",
        severity=ERROR,
        since="0.31",
        when=_comma_traces,
        what="the list of traces is no longer split at commas",
        effect=STOPS,
        instead="collect_detailed_traces: [model, worker]",
        source="vllm/config/observability.py",
    ),
    Rule(
        id="async-with-pipeline",
        severity=FAIL,
        since="0.31",
        when=_async_pipeline,
        what="asynchronous scheduling needs model runner V2 with pipeline parallelism",
        effect="the start fails",
        instead="leave async_scheduling out, or env VLLM_USE_V2_MODEL_RUNNER: 1",
        source="vllm/config/vllm.py",
    ),
    changed(
        "async-off-with-pipeline",
        "0.31",
        _auto_async_pipeline,
        "asynchronous scheduling is switched off with pipeline parallelism (a warning)",
        "env VLLM_USE_V2_MODEL_RUNNER: 1 where the model allows it",
        "vllm/config/vllm.py",
    ),
    Rule(
        id="log-config-file",
        severity=NOTE,
        since="0.31",
        when=argument("log_config_file"),
        what="log_config_file is deprecated",
        effect="a warning; it will be rejected one day",
        instead="logging_config: {pylogging_config_file: …}",
        source="vllm/config/logging.py",
    ),
    changed(
        "routed-experts-output",
        "0.31",
        argument("enable_return_routed_experts"),
        "routed experts are returned through the auxiliary outputs",
        "aux_output_config holds the limits",
        "vllm/config/aux_output.py",
    ),
    changed(
        "swa-bounded-replay-default",
        "0.31",
        absent("swa_bounded_replay"),
        "sliding-window layers replay only their window after a prefix hit",
        "swa_bounded_replay: false keeps the old behaviour",
        "vllm/config/cache.py",
    ),
)
