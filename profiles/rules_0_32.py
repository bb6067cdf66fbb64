"""Lint rules: what changed in vLLM 0.32 and 0.33.

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
    always,
    argument,
    config_key,
    config_value,
    either,
    unless,
    value_of,
    variable,
)
from profiles.rules_shared import (
    MULTIMODAL,
    STOPS,
    TOOLS,
    changed,
    loads_ipc,
    preload,
    removed,
    removed_keys,
)


def _no_scheduled_tokens(view: View) -> Iterator[Hit]:
    if view.given("max_num_scheduled_tokens") and view.number("max_num_scheduled_tokens", 1) < 1:
        yield "args.max_num_scheduled_tokens", str(view.args["max_num_scheduled_tokens"])


def _seed_token(view: View) -> Iterator[Hit]:
    if view.profile.preload is not None and view.profile.preload.seed_token is not None:
        yield "preload.seed_token", ""


RULES = (
    changed(
        "cors-default",
        "0.32",
        absent("allowed_origins"),
        'pages in browsers may no longer call the server (allowed_origins ["*"] -> []), and no '
        "log line says so",
        'allowed_origins: ["https://your.page"], or ["*"] as before',
        "vllm/entrypoints/common/cli_args.py",
    ),
    Rule(
        id="connector-gone",
        severity=FAIL,
        since="0.32",
        when=unless(
            config_value(
                "kv_transfer_config",
                "kv_connector",
                "p2pncclconnector",
                "sharedstorageconnector",
            ),
            config_key("kv_transfer_config", "kv_connector_module_path"),
        ),
        what="this connector is not part of vLLM any more",
        effect="the start fails: unsupported connector type",
        instead="NixlConnector or MooncakeConnector between engines, ExampleConnector for files",
        source="vllm/distributed/kv_transfer/kv_connector/factory.py",
    ),
    removed_keys(
        "kv-transfer-keys",
        "kv_transfer_config",
        ("kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size"),
        "0.32",
        "leave it out, or put it under kv_connector_extra_config",
        "vllm/config/kv_transfer.py",
    ),
    removed_keys(
        "ec-transfer-keys",
        "ec_transfer_config",
        ("ec_rank", "ec_parallel_size"),
        "0.32",
        "leave it out",
        "vllm/config/ec_transfer.py",
    ),
    Rule(
        id="mamba-cache-mode-all",
        severity=ERROR,
        since="0.32",
        when=value_of("mamba_cache_mode", "all"),
        what="the Mamba cache mode `all` is gone",
        effect=STOPS,
        instead="mamba_cache_mode: align",
        source="vllm/config/cache.py",
    ),
    removed_keys(
        "pass-config-0.32",
        "compilation_config",
        ("pass_config.enable_sp", "pass_config.fuse_gemm_comms", "pass_config.sp_min_token_num"),
        "0.32",
        "leave it out",
        "vllm/config/compilation.py",
    ),
    removed("sd-worker", ("sd_worker_cls",), "0.32", "worker_cls", "vllm/config/parallel.py"),
    changed(
        "deepep-hybrid-default",
        "0.32",
        unless(
            value_of("all2all_backend", "deepep_v2"), variable("VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE")
        ),
        "DeepEP V2 uses its hybrid mode by default (VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE 0 -> 1)",
        "env VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE: 0 keeps the old behaviour",
        "vllm/envs.py",
    ),
    changed(
        "flashinfer-cubin",
        "0.32",
        always("runtime"),
        "flashinfer-cubin is no longer installed with vLLM: slower kernels and a warning without "
        "a CUDA toolkit",
        "run `vllm download-kernels` once in the runtime",
        "the wheel's requirements",
    ),
    Rule(
        id="cascade-attention",
        severity=NOTE,
        since="0.32",
        when=argument("disable_cascade_attn"),
        what="disable_cascade_attn has no effect any more",
        effect="a warning",
        instead="leave it out",
        source="vllm/config/model.py",
    ),
    Rule(
        id="max-scheduled-tokens-range",
        severity=FAIL,
        since="0.32",
        when=_no_scheduled_tokens,
        what="max_num_scheduled_tokens must be 1 or more",
        effect="the start fails",
        instead="leave it out",
        source="vllm/config/scheduler.py",
    ),
    changed(
        "weight-cache-accounting",
        "0.32",
        loads_ipc,
        "gpu_memory_utilization includes the daemon's weights (before, it had to leave them out)",
        "the engine's whole share of the GPU, such as 0.9",
        "https://github.com/vllm-project/vllm/pull/57298",
    ),
    changed(
        "weight-cache-protocol",
        "0.33",
        preload,
        "daemons of 0.32 and engines of 0.33 do not understand each other",
        "restart the daemon with the engine's version, or weights are loaded from disk",
        "vllm/model_executor/model_loader/weight_cache/protocol.py",
    ),
    Rule(
        id="speculator-gone",
        severity=FAIL,
        since="0.33",
        when=either(
            config_value("speculative_config", "method", "medusa", "mlp_speculator"),
            value_of("spec_method", "medusa", "mlp_speculator"),
        ),
        what="this kind of speculator is gone",
        effect="the start fails",
        instead="method: eagle3, draft_model or ngram",
        source="vllm/config/speculative.py",
    ),
    Rule(
        id="mamba-cache-mode",
        severity=NOTE,
        since="0.33",
        when=argument("mamba_cache_mode"),
        what="mamba_cache_mode is deprecated",
        effect="a warning",
        instead="leave it out",
        source="vllm/config/cache.py",
    ),
    Rule(
        id="ir-op-priority",
        severity=NOTE,
        since="0.33",
        when=argument("ir_op_priority"),
        what="ir_op_priority is deprecated and will be rejected by 0.34",
        effect="a warning",
        instead="kernel_config: {ir_op_priority: …}",
        source="vllm/engine/arg_utils.py",
    ),
    Rule(
        id="lm-format-enforcer",
        severity=NOTE,
        since="0.33",
        when=config_value("structured_outputs_config", "backend", "lm-format-enforcer"),
        what="the lm-format-enforcer backend is deprecated and will be gone in 0.35",
        effect="a warning",
        instead="structured_outputs_config: {backend: auto}",
        source="vllm/config/structured_outputs.py",
    ),
    changed(
        "request-body-limit",
        "0.33",
        unless(MULTIMODAL, variable("VLLM_HTTP_MAX_REQUEST_BODY_SIZE")),
        "requests larger than 32 MiB (images in base64) are answered with 413",
        "env VLLM_HTTP_MAX_REQUEST_BODY_SIZE raises it (bytes)",
        "vllm/envs.py",
    ),
    changed(
        "request-media-limits",
        "0.33",
        unless(MULTIMODAL, variable("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB")),
        "all media of one request may have at most 256 MB",
        "env VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB raises it",
        "vllm/envs.py",
    ),
    changed(
        "chat-template-fuel",
        "0.33",
        unless(argument("chat_template"), variable("VLLM_CHAT_TEMPLATE_FUEL")),
        "a chat template may run at most 500000 steps",
        "env VLLM_CHAT_TEMPLATE_FUEL raises it",
        "vllm/envs.py",
    ),
    changed(
        "tool-strict-level-default",
        "0.33",
        unless(TOOLS, argument("tool_strict_level")),
        "tool_strict_level is unset by default (was auto)",
        "tool_strict_level: auto keeps the old behaviour",
        "vllm/entrypoints/common/cli_args.py",
    ),
    Rule(
        id="seed-token-not-yet",
        severity=ERROR,
        before="0.33",
        when=either(
            _seed_token,
            argument(
                "seed_token",
                "seed_listen_host",
                "seed_listen_port",
                "seed_source_host",
                "seed_source_port",
            ),
        ),
        what="daemons can seed each other from 0.33 on",
        effect="the daemon does not start (exit code 2)",
        instead="run vLLM 0.33, or remove it",
        source="vllm/entrypoints/cli/preload.py",
    ),
    Rule(
        id="seed-token-visible",
        severity=NOTE,
        since="0.33",
        when=_seed_token,
        what="vLLM takes the seed token on its command line only",
        effect="every user of the machine can read it with ps",
        instead="use it on machines of your own",
        source="vllm/entrypoints/cli/preload.py",
    ),
)
