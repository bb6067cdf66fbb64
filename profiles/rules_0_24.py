"""Lint rules: what changed from vLLM 0.24 to 0.29.

Found by comparing the parsers, configurations and environment tables of the releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiles.rules import (
    FAIL,
    Hit,
    Rule,
    View,
    When,
    always,
    argument,
    config_key,
    either,
    unless,
    value_of,
    variable,
)
from profiles.rules_shared import MULTIMODAL, TOOLS, changed, first, removed, removed_keys


def _low_logprobs(view: View) -> Iterator[Hit]:
    if view.given("max_logprobs") and view.number("max_logprobs", 0) < -1:
        yield "args.max_logprobs", str(view.args["max_logprobs"])


def _parallel_above(name: str) -> When:
    def when(view: View) -> Iterator[Hit]:
        if view.number(name, 1) > 1:
            yield f"args.{name}", str(view.args.get(name))

    return when


def _gguf_model(view: View) -> Iterator[Hit]:
    """A file, or a repository with the kind of quantization after a colon, as GGUF is named."""
    if re.search(r"\.gguf$|[^/]:(?:UD-)?I?Q\d\w*$", view.profile.model, re.IGNORECASE):
        yield "model", view.profile.model


def _sparse_model(view: View) -> Iterator[Hit]:
    if re.search(r"deepseek[-_]?v(3\.2|4)|glm[-_]?5", view.profile.model, re.IGNORECASE):
        yield "model", view.profile.model


RULES = (
    Rule(
        id="gguf-left-core",
        severity=FAIL,
        since="0.24",
        when=first(
            either(value_of("quantization", "gguf"), value_of("load_format", "gguf"), _gguf_model)
        ),
        what="GGUF moved out of vLLM into a plugin package",
        effect="the start fails: unknown quantization method",
        instead="install the plugin, or use a safetensors checkpoint",
        source="vllm/config/model.py",
    ),
    removed_keys(
        "pass-config-0.24",
        "compilation_config",
        ("pass_config.fuse_minimax_qk_norm",),
        "0.24",
        "leave it out",
        "vllm/config/compilation.py",
    ),
    changed(
        "strict-tool-calling-default",
        "0.24",
        unless(TOOLS, variable("VLLM_ENFORCE_STRICT_TOOL_CALLING")),
        "tool calls are checked strictly by default (VLLM_ENFORCE_STRICT_TOOL_CALLING 0 -> 1)",
        "env VLLM_ENFORCE_STRICT_TOOL_CALLING: 0 keeps the old behaviour",
        "vllm/envs.py",
    ),
    changed(
        "port-not-shared",
        "0.25",
        always("port"),
        "a second server on the same port fails to start (the port was shared silently before)",
        "give every unit its own port",
        "https://github.com/vllm-project/vllm/pull/47529",
    ),
    Rule(
        id="max-logprobs-range",
        severity=FAIL,
        since="0.25",
        when=_low_logprobs,
        what="max_logprobs must be -1 (all) or more",
        effect="the start fails",
        instead="-1, or a number of logprobs",
        source="vllm/config/model.py",
    ),
    removed(
        "hash-block-size",
        ("hash_block_size",),
        "0.26",
        "prefix_match_unit",
        "vllm/config/cache.py",
    ),
    changed(
        "completion-prompts-limit",
        "0.26",
        unless(always(), variable("VLLM_MAX_COMPLETION_PROMPTS")),
        "one /v1/completions call may hold at most 1024 prompts",
        "env VLLM_MAX_COMPLETION_PROMPTS raises it",
        "vllm/envs.py",
    ),
    removed(
        "partial-prefills",
        ("max_num_partial_prefills", "max_long_partial_prefills"),
        "0.27",
        "leave it out; long_prefill_token_threshold limits long prompts",
        "vllm/config/scheduler.py",
    ),
    changed(
        "moe-skip-padding-default",
        "0.27",
        unless(
            argument("enable_expert_parallel", "moe_backend", "all2all_backend"),
            variable("VLLM_MOE_SKIP_PADDING"),
        ),
        "MoE layers skip padding by default (VLLM_MOE_SKIP_PADDING 0 -> 1)",
        "env VLLM_MOE_SKIP_PADDING: 0 keeps the old behaviour",
        "vllm/envs.py",
    ),
    changed(
        "jit-warmup-default",
        "0.27",
        unless(
            always(),
            value_of("enforce_eager", "true"),
            config_key("kernel_config", "enable_jit_warmup"),
        ),
        "kernels are compiled ahead at the start: it takes longer, first requests less",
        "kernel_config: {enable_jit_warmup: false} keeps the old behaviour",
        "vllm/config/kernel.py",
    ),
    removed(
        "kv-scales",
        ("calculate_kv_scales", "override_attention_dtype"),
        "0.28",
        "leave it out; scales come from the checkpoint",
        "vllm/config/cache.py, vllm/config/model.py",
    ),
    Rule(
        id="bitsandbytes-left-core",
        severity=FAIL,
        since="0.28",
        when=either(
            value_of("quantization", "bitsandbytes"), value_of("load_format", "bitsandbytes")
        ),
        what="bitsandbytes moved out of vLLM into a plugin package",
        effect="the start fails: unknown quantization method",
        instead="install the plugin, or use an fp8, AWQ or GPTQ checkpoint",
        source="vllm/config/model.py",
    ),
    changed(
        "indexer-kv-dtype-default",
        "0.28",
        unless(_sparse_model, config_key("attention_config", "indexer_kv_dtype")),
        "the sparse indexer's cache type is chosen by itself (bf16 -> auto)",
        "attention_config: {indexer_kv_dtype: bf16} keeps the old behaviour",
        "vllm/config/attention.py",
    ),
    changed(
        "request-word-limits",
        "0.28",
        unless(always(), variable("VLLM_MAX_STOP_STRINGS", "VLLM_MAX_NUM_BAD_WORDS")),
        "a request may hold at most 4 stop strings and 128 bad words",
        "env VLLM_MAX_STOP_STRINGS, VLLM_MAX_NUM_BAD_WORDS raise it",
        "vllm/envs.py",
    ),
    changed(
        "flashinfer-allreduce-default",
        "0.29",
        unless(_parallel_above("tensor_parallel_size"), variable("VLLM_ALLREDUCE_USE_FLASHINFER")),
        "all-reduce uses FlashInfer by default (VLLM_ALLREDUCE_USE_FLASHINFER 0 -> 1)",
        "env VLLM_ALLREDUCE_USE_FLASHINFER: 0 keeps the old behaviour",
        "vllm/envs.py",
    ),
    removed_keys(
        "attention-config-0.29",
        "attention_config",
        ("use_prefill_decode_attention",),
        "0.29",
        "leave it out; choose an attention backend",
        "vllm/config/attention.py",
    ),
    changed(
        "dcp-comm-default",
        "0.29",
        unless(_parallel_above("decode_context_parallel_size"), argument("dcp_comm_backend")),
        "the communication of decode context parallelism is chosen by itself (was ag_rs)",
        "dcp_comm_backend: ag_rs keeps the old behaviour",
        "vllm/config/parallel.py",
    ),
    changed(
        "media-download-limit",
        "0.29",
        unless(MULTIMODAL, variable("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB")),
        "one medium of a request may have at most 256 MB",
        "env VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB raises it",
        "vllm/envs.py",
    ),
)
