"""What the operations double answers: one of everything a detail screen shows."""

from __future__ import annotations

from engine_ctl.answers import (
    ArgumentHelp,
    ChangeView,
    DaemonField,
    DaemonView,
    FailureCard,
    Fix,
    ForecastView,
    KernelChoice,
    LintFinding,
    ProfileDetail,
    ProfileSummary,
    ProvenanceRow,
    StartRecord,
)
from engine_ctl.model import Cause, Phase, PhaseMark, Reason, Verdict
from tests.console.fakes import GIB, NOON, Ops, events


def marks(
    *pairs: tuple[Phase, float], notes: dict[Phase, str] | None = None
) -> tuple[PhaseMark, ...]:
    at = 0.0
    found = []
    for phase, took in pairs:
        found.append(PhaseMark(phase, at, took, (notes or {}).get(phase, "")))
        at += took
    return tuple(found)


STARTS = (
    StartRecord(
        "chat-8b/18",
        "chat-throughput",
        NOON - 7820,
        marks(
            (Phase.IMPORTING, 0.02),
            (Phase.CONFIGURING, 0.4),
            (Phase.MAPPING, 1.5),
            (Phase.LOADING, 0.8),
            (Phase.COMPILING, 1.0),
            (Phase.CAPTURING, 5.2),
            (Phase.READY, 0.9),
        ),
        9.8,
        Phase.READY,
        Verdict.MAPPED,
        True,
        47.6,
    ),
    StartRecord(
        "chat-8b/17",
        "chat-interactive",
        NOON - 17820,
        marks(
            (Phase.IMPORTING, 23.8),
            (Phase.CONFIGURING, 2.6),
            (Phase.MAPPING, 0.2),
            (Phase.LOADING, 0.8),
            (Phase.COMPILING, 2.0),
            (Phase.PROFILING, 6.8),
            (Phase.CAPTURING, 6.0),
            (Phase.READY, 0.8),
            notes={Phase.IMPORTING: "silent: import, spawn, import of EngineCore"},
        ),
        43.0,
        Phase.READY,
        Verdict.MAPPED,
        False,
        47.6,
    ),
    StartRecord(
        "chat-8b/16",
        "chat-interactive",
        NOON - 27820,
        marks((Phase.IMPORTING, 24.0), (Phase.CONFIGURING, 2.2), (Phase.LOADING, 7.9)),
        None,
        Phase.FAILED,
        Verdict.DISK,
        False,
    ),
    StartRecord(
        "chat-8b/15",
        "chat-interactive",
        NOON - 90000,
        marks(
            (Phase.IMPORTING, 0.0),
            (Phase.CONFIGURING, 0.4),
            (Phase.MAPPING, 1.5),
            (Phase.LOADING, 0.7),
            (Phase.COMPILING, 1.0),
            (Phase.CAPTURING, 4.8),
            (Phase.READY, 0.9),
        ),
        9.3,
        Phase.READY,
        Verdict.MAPPED,
        True,
        47.6,
    ),
)

CARD = FailureCard(
    "long-ctx",
    "long-ctx/21",
    Cause(
        "oom_graph_capture",
        "CUDA graphs did not fit: 0.4 GiB free, 0.9 GiB wanted",
        "EngineCore pid 8310, torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
        " 922.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 412.00 MiB is free.",
        ("Graph capturing: 31 of 51 done", "Available KV cache memory: 108.1 GiB"),
    ),
    profile="long-context",
    phase=Phase.CAPTURING,
    after_s=18.2,
    ended=NOON - 94,
    fixes=(
        Fix("gpu_memory_utilization", "0.95", "0.93"),
        Fix("max_num_seqs", "256", "192"),
    ),
    changed=(Fix("gpu_memory_utilization", "0.92", "0.95"),),
    changed_by="op, 14:31",
    memory=("GPU 0: weights 15.6, engine 123.8, others 0.0, free 0.4 GiB",),
    log="log",
    log_offset=1200,
)

KERNELS = (
    KernelChoice(
        "attention",
        "FLASH_ATTN (version 3)",
        "INFO [cuda.py:508] Using FLASH_ATTN attention backend out of potential backends: [...]",
    ),
    KernelChoice(
        "sampler",
        "PyTorch",
        "INFO [topk_topp_sampler.py:149] FlashInfer is not available",
        "FlashInfer's sampler is faster: install flashinfer in this runtime",
    ),
    KernelChoice("linear", "CutlassScaledMM", "INFO Selected CutlassScaledMM for Fp8LinearMethod"),
    KernelChoice("all-reduce", "custom, then NCCL"),
    KernelChoice("fusions", "norm_quant, act_quant"),
    KernelChoice("graphs", "FULL_AND_PIECEWISE, 51 sizes"),
    KernelChoice("runner", "V2"),
)

DAEMONS = (
    DaemonView(
        "m8b/0",
        "m8b",
        0,
        "target",
        0,
        Phase.READY,
        15 * GIB,
        "/run/user/1000/stoker/wc/vllm-weights-6d976da9.sock",
        "0600 ok, serving",
        ("chat-8b/18",),
        10800,
        (
            DaemonField("checkpoint", "1f0c…9a", (("chat-8b", None), ("draft-1b", None))),
            DaemonField("dtype", "bfloat16", (("chat-8b", None), ("draft-1b", "float16"))),
            DaemonField("kv_cache_dtype", "auto", (("chat-8b", None), ("draft-1b", None))),
            DaemonField("content", "4 files, 15.0 GiB", (("chat-8b", None),)),
        ),
        (("mapped", 18), ("fallback", 1)),
        "not ready, 09:12",
    ),
    DaemonView(
        "m8b/1",
        "m8b",
        1,
        "draft",
        1,
        Phase.LOADING,
        None,
        "/run/user/1000/stoker/wc/vllm-weights-aa11bb22.sock",
        "missing",
    ),
)

FORECAST = ForecastView(
    "chat-8b",
    "chat-throughput",
    "chat-interactive",
    (
        ChangeView("max_num_seqs", "64", "128", "restart"),
        ChangeView(
            "max_num_batched_tokens",
            "8192",
            "16384",
            "restart",
            "compile cache misses (+17 s, first time only)",
        ),
        ChangeView("enable_prefix_caching", "true", "true", "unchanged"),
    ),
    checked_by="vLLM 0.33.0",
    warnings=("max_num_seqs 128 is above the captured graph sizes (64)",),
    verdict=Verdict.MAPPED,
    weights_note="15.6 GiB, daemon m8b/0, 22 of 22 fields agree",
    kv_bytes=int(108.1 * GIB),
    kv_bytes_now=int(111.2 * GIB),
    port_note="port 8000 is ours",
    in_flight=12,
    drain_s=30,
    expected_s=27,
    next_time_s=10,
    rollback_profile="chat-interactive",
    rollback_s=10,
)

REFUSED = ForecastView(
    "chat-8b",
    "tp2",
    "chat-interactive",
    (ChangeView("tensor_parallel_size", "1", "2", "reload"),),
    errors=("tensor_parallel_size 2 needs 2 GPUs, 1 is visible",),
    verdict=Verdict.FALLBACK,
    reasons=(Reason("wc_fallback.key_mismatch", "", "", (("tp_size", "1", "2"),)),),
)

PROFILES = (
    ProfileSummary(
        "chat-interactive",
        "~/.config/stoker/profiles/chat-interactive.yaml",
        False,
        "acme/Chat-8B-Instruct",
        "0.33.0 cuda",
        ("chat",),
        "Low latency for people who type.",
    ),
    ProfileSummary(
        "chat-throughput",
        "~/.config/stoker/profiles/chat-throughput.yaml",
        False,
        "acme/Chat-8B-Instruct",
        units=("chat-8b",),
        notes="Many requests at once.",
    ),
    ProfileSummary("broken", "broken.yaml", False, problem="line 3: max_modle_len"),
    ProfileSummary("long-context", None, True, notes="Long prompts with chunked prefill."),
    ProfileSummary("fast-iteration", None, True, notes="Starts fast, serves slower."),
)

TEXT = """# what we serve to people
extends: interactive
model: acme/Chat-8B-Instruct
args:
  max_num_seqs: 64   # measured on Tuesday
  max_m
"""


def detail(name: str) -> ProfileDetail:
    summary = next(p for p in PROFILES if p.name == name)
    return ProfileDetail(
        summary,
        TEXT,
        (
            ProvenanceRow("profile", "model", "acme/Chat-8B-Instruct", "this file, line 3"),
            ProvenanceRow("profile", "port", "8000", "this file, line 8"),
            ProvenanceRow("args", "max_num_seqs", "64", "this file, line 5"),
            ProvenanceRow("args", "enable_prefix_caching", "true", "built in: interactive"),
            ProvenanceRow("args", "gpu_memory_utilization", "0.92", "vLLM's default"),
            ProvenanceRow("env", "HF_TOKEN", "•••", "from the environment"),
        ),
        ("vllm", "serve", "acme/Chat-8B-Instruct", "--max-num-seqs", "64", "--port", "8000"),
        (("HF_TOKEN", "•••"),),
        findings=(
            LintFinding(
                "max-num-seqs-8", "warning", "max_num_seqs", "not a multiple of 8", "64", 5
            ),
        ),
    )


def ops() -> Ops:
    """An operations double with an answer to every question."""
    double = Ops()
    double.answers = {
        "starts": STARTS,
        "why": lambda unit: CARD if unit == "long-ctx" else None,
        "kernels": KERNELS,
        "weights": DAEMONS,
        "events": lambda limit, only="": events(),
        "forecast": lambda unit, profile: REFUSED if profile == "long-context" else FORECAST,
        "profiles": PROFILES,
        "profile": detail,
        "profile_lint": lambda name, text: detail(name).findings,
        "profile_diff": FORECAST.changes,
        "profile_save": "/home/op/.config/stoker/profiles/x.yaml",
        "arguments": lambda prefix, runtime: (
            ArgumentHelp("max_model_len", "int", "", (), "ModelConfig", "Longest sequence."),
            ArgumentHelp("max_model_patience", "int", "3", (), "", "Not real."),
        ),
    }
    return double
