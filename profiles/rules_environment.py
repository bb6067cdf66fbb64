"""Lint rules: environment variables that were removed, renamed or are unknown.

vLLM only warns about an unknown `VLLM_…` name, and says nothing about other names, so the lint is
where a lost tuning is noticed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from profiles.rules import (
    NOTE,
    UNREAD,
    Hit,
    Rule,
    View,
    either,
    matches,
    unless,
    value_of,
    variable,
)
from profiles.schema import SHIPPED

_DATA = Path(__file__).parent / "data"


@functools.cache
def known_names(minor: str) -> frozenset[str]:
    """Every environment variable that this vLLM version ("0.33") reads."""
    return frozenset((_DATA / f"environment-{minor}.txt").read_text().split())


def known_variables(version: str) -> frozenset[str]:
    """`known_names` of the nearest version that is known."""
    minor = ".".join(version.split(".")[:2])
    return known_names(minor if minor in SHIPPED else SHIPPED[-1])


def _gone(id: str, names: tuple[str, ...], since: str | None, instead: str) -> Rule:
    return Rule(
        id=id,
        severity=NOTE,
        since=since,
        when=variable(*names),
        what="{detail} no longer exists",
        effect=UNREAD,
        instead=instead,
        source="vllm/envs.py",
    )


def _unknown(view: View) -> Iterator[Hit]:
    if view.version is None:
        return
    minor = ".".join(map(str, view.version))
    if minor not in SHIPPED:
        return
    for name in view.env:
        if name.startswith("VLLM_") and name not in known_names(minor) and not _has_rule(name):
            yield f"env.{name}", name


def _has_rule(name: str) -> bool:
    return any(matches(name, pattern) for pattern in _NAMED)


def _empty(view: View) -> Iterator[Hit]:
    for name in view.env:
        if name.startswith("VLLM_") and view.env_text(name) == "":
            yield f"env.{name}", name


def _layout_names(view: View) -> Iterator[Hit]:
    value = view.env_text("VLLM_KV_CACHE_LAYOUT")
    if value is not None and value not in ("NHD", "HND"):
        yield "env.VLLM_KV_CACHE_LAYOUT", value


_REMOVED: tuple[tuple[str, tuple[str, ...], str | None, str], ...] = (
    (
        "env-flashinfer-moe",
        (
            "VLLM_FLASHINFER_MOE_BACKEND",
            "VLLM_USE_FLASHINFER_MOE_FP16",
            "VLLM_USE_FLASHINFER_MOE_FP8",
            "VLLM_USE_FLASHINFER_MOE_FP4",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_*",
        ),
        "0.24",
        "moe_backend: flashinfer_cutlass, flashinfer_trtllm or flashinfer_cutedsl",
    ),
    ("env-mxfp4-marlin", ("VLLM_MXFP4_USE_MARLIN",), "0.24", "moe_backend: marlin"),
    (
        "env-linear-backend",
        ("VLLM_NVFP4_GEMM_BACKEND", "VLLM_USE_FBGEMM", "VLLM_USE_NVFP4_CT_EMULATIONS"),
        "0.24",
        "linear_backend: cutlass, fbgemm, emulation, …",
    ),
    (
        "env-allreduce-thresholds",
        ("VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB",),
        "0.26",
        "compilation_config: {pass_config: {…}}",
    ),
    ("env-rocm-paged-attn", ("VLLM_ROCM_USE_AITER_PAGED_ATTN",), "0.26", "attention_backend"),
    ("env-tpu", ("VLLM_TPU_*",), "0.26", "leave it out; TPUs are served by a plugin"),
    ("env-triton-td", ("VLLM_TRITON_ATTN_USE_TD",), "0.29", "env VLLM_TRITON_USE_TD"),
    (
        "env-scale-constants",
        ("K_SCALE_CONSTANT", "Q_SCALE_CONSTANT", "V_SCALE_CONSTANT"),
        "0.28",
        "leave it out; scales come from the checkpoint",
    ),
    (
        "env-force-fp8-marlin",
        ("VLLM_TEST_FORCE_FP8_MARLIN",),
        "0.29",
        "linear_backend: marlin and moe_backend: marlin",
    ),
    ("env-mm-hasher", ("VLLM_MM_HASHER_ALGORITHM",), "0.30", "mm_hasher_algorithm"),
    (
        "env-prefix-retention",
        ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL",),
        "0.30",
        "prefix_cache_retention_interval",
    ),
    ("env-nixl-ranks", ("VLLM_NIXL_EP_MAX_NUM_RANKS",), "0.30", "elastic_ep_max_dp_size"),
    ("env-xpu-graph", ("VLLM_XPU_ENABLE_XPU_GRAPH",), "0.31", "compilation_config cudagraph_mode"),
    ("env-ple-offload", ("VLLM_PLE_CPU_OFFLOAD",), "0.31", "engram_config: {cpu_offload: true}"),
    (
        "env-iteration-timeout",
        ("VLLM_ENGINE_ITERATION_TIMEOUT_S",),
        "0.32",
        "leave it out; 0.33 has watchdog_config",
    ),
    (
        "env-ray",
        (
            "VLLM_USE_RAY_COMPILED_DAG_*",
            "VLLM_USE_RAY_V2_EXECUTOR_BACKEND",
            "VLLM_USE_RAY_WRAPPED_PP_COMM",
        ),
        "0.33",
        "leave it out",
    ),
    (
        "env-rocm-0.33",
        (
            "VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS",
            "VLLM_ROCM_MONO_DECODE",
            "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM",
        ),
        "0.33",
        "leave it out",
    ),
    ("env-use-v1", ("VLLM_USE_V1",), None, "leave it out; there is only V1"),
    ("env-attention-backend", ("VLLM_ATTENTION_BACKEND",), None, "attention_backend"),
    ("env-all2all-backend", ("VLLM_ALL2ALL_BACKEND",), None, "all2all_backend"),
    (
        "env-torch-profiler",
        ("VLLM_TORCH_PROFILER_*",),
        None,
        "profiler_config: {profiler: torch, torch_profiler_dir: …}",
    ),
    (
        "env-attention-choices",
        (
            "VLLM_FLASH_ATTN_VERSION",
            "VLLM_USE_TRTLLM_ATTENTION",
            "VLLM_USE_CUDNN_PREFILL",
            "VLLM_DISABLE_FLASHINFER_PREFILL",
        ),
        None,
        "attention_config: {flash_attn_version: …} (or use_trtllm_attention, mla_prefill_backend)",
    ),
)
_NAMED = tuple(pattern for _, names, _, _ in _REMOVED for pattern in names)

RULES = (
    *(_gone(*row) for row in _REMOVED),
    Rule(
        id="env-ple-not-yet",
        severity=NOTE,
        before="0.30",
        when=variable("VLLM_PLE_CPU_OFFLOAD"),
        what="{detail} exists in 0.30 only",
        effect=UNREAD,
        instead="leave it out",
        source="vllm/envs.py",
    ),
    Rule(
        id="env-logging-config",
        severity=NOTE,
        since="0.31",
        when=variable("VLLM_LOGGING_CONFIG_PATH"),
        what="{detail} is deprecated",
        effect="a warning; it will be ignored one day",
        instead="logging_config: {pylogging_config_file: …}",
        source="vllm/envs.py",
    ),
    Rule(
        id="env-cache-layout",
        severity=NOTE,
        before="0.29",
        when=_layout_names,
        what="this layout name is new in 0.29: {detail}",
        effect="the start fails, only NHD and HND are known",
        instead="NHD or HND",
        source="vllm/envs.py",
    ),
    Rule(
        id="env-rocm-fp4-default",
        severity=NOTE,
        since="0.33",
        upgrade=True,
        when=unless(
            either(
                value_of("moe_backend", "aiter", "aiter_triton_mxfp4_bf16"),
                variable("VLLM_ROCM_USE_AITER"),
            ),
            variable("VLLM_ROCM_USE_AITER_FP4BMM", "VLLM_ROCM_USE_AITER_FP8BMM"),
        ),
        what="AITER's FP4 and FP8 batched products are off by default on ROCm",
        effect="starts, and uses other kernels",
        instead="env VLLM_ROCM_USE_AITER_FP4BMM: 1, VLLM_ROCM_USE_AITER_FP8BMM: 1",
        source="vllm/envs.py",
    ),
    Rule(
        id="env-unknown",
        severity=NOTE,
        when=_unknown,
        what="this vLLM does not read {detail}",
        effect=UNREAD,
        instead="check the name",
        source="vllm/envs.py",
    ),
    Rule(
        id="env-empty",
        severity=NOTE,
        when=_empty,
        what="{detail} is set to nothing, which is not the same as not set",
        effect="vLLM may read it as a value",
        instead="null removes an inherited variable",
        source="vllm/envs.py",
    ),
)
