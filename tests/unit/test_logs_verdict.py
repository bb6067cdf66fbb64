"""What became of the weights, the kernels below, and the statistics line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.logs.engine_stats import load_of, parse_stats, stats_of
from engine_ctl.logs.fallbacks import reason_of
from engine_ctl.logs.kernels import TOPICS, kernels_of
from engine_ctl.logs.verdict import verdict_of
from engine_ctl.model import Verdict
from tests.unit.test_logs_cases import info, record, trace, warning

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
H200 = RECORDINGS / "h200-vllm-0.33.0"
CPU = RECORDINGS / "cpu-vllm-0.32.0"


def h200(name: str) -> bytes:
    return (H200 / f"{name}.log").read_bytes()


@pytest.mark.parametrize(
    ("name", "verdict", "categories"),
    [
        ("plain_8b_first", Verdict.DISK, []),
        ("10_preload", None, []),
        ("11_ipc", Verdict.MAPPED, []),
        ("20_standby_ipc_eager", Verdict.MAPPED, []),
        ("32_not_ready", Verdict.FALLBACK, ["wc_fallback.stale_socket"]),
        ("33_second_daemon", None, ["wc_daemon_duplicate"]),
        ("34_dtype", Verdict.FALLBACK, ["wc_fallback.key_mismatch"]),
        ("37_nofallback", None, ["wc_fallback.key_mismatch"]),
        ("38_preload_ipc", None, []),
        ("40_load", Verdict.MAPPED, ["wc_daemon_lost"]),
    ],
)
def test_verdicts_of_recordings(name: str, verdict: Verdict | None, categories: list[str]) -> None:
    found, reasons = verdict_of(h200(name))
    assert found is verdict
    assert [reason.category for reason in reasons] == categories
    assert all(reason.hint and reason.line for reason in reasons)


def test_a_mismatch_names_its_fields_with_the_engines_values() -> None:
    _, (reason,) = verdict_of(h200("35_kvdtype"))
    assert reason.fields == (("kv_cache_dtype", "", "fp8"),)
    assert "kv_cache_dtype (engine: fp8)" in reason.hint


def test_values_of_both_sides_are_taken_where_the_text_has_them() -> None:
    reason = reason_of("WeightCacheKey mismatch on fields: ['dtype'] dtype: bfloat16 != float16")
    assert reason.fields == (("dtype", "bfloat16", "float16"),)


def test_refusals_that_a_daemon_saw_are_kept_one_by_one() -> None:
    _, reasons = verdict_of(h200("31_preload_1b"))
    assert [reason.fields[0][0] for reason in reasons] == [
        "dtype",
        "kv_cache_dtype",
        "quantization",
    ]


def test_copied_weights_and_one_rank_that_fell_back() -> None:
    copied = info("Mapped 12 tensors from the weight cache daemon (copy mode)")
    assert verdict_of(copied.encode())[0] is Verdict.COPIED
    mapped = info("Mapped 12 tensors from the weight cache daemon (zero_copy mode)")
    fell = warning(
        "Weight cache unusable (Cannot connect to weight cache daemon at /x: [Errno 111] "
        "Connection refused); falling back to disk loading",
        process="Worker_TP1 pid=4",
    )
    verdict, reasons = verdict_of((mapped + fell).encode())
    assert verdict is Verdict.FALLBACK and len(reasons) == 1


def test_an_unexpected_failure_of_the_loader_is_read_to_its_end() -> None:
    def failed(error: str) -> str:
        text = "Weight cache IPC loading failed; falling back to disk loading\n" + trace(error)
        _, (reason,) = verdict_of(
            record("EngineCore pid=1", "ERROR", "ipc_loader.py", text).encode()
        )
        return reason.category

    assert failed("RuntimeError: CUDA error: invalid resource handle") == "wc_fallback.ipc_failed"
    assert failed("TimeoutError: timed out") == "wc_fallback.not_ready"


def test_nothing_is_said_before_the_log_says_it() -> None:
    assert verdict_of(b"") == (None, ())
    assert verdict_of(h200("11_ipc")[:3000]) == (None, ())


def test_first_signs_are_reasons_only_without_a_better_one() -> None:
    _, reasons = verdict_of(
        warning(
            "Cannot query weight cache daemon memory ([Errno 2] No such file or directory); "
            "assuming the weights are not externally held"
        ).encode()
    )
    assert [reason.category for reason in reasons] == ["wc_memory_query"]
    _, reasons = verdict_of(h200("32_not_ready"))
    assert "wc_memory_query" not in [reason.category for reason in reasons]


def kernels(data: bytes) -> dict[str, tuple[str, str]]:
    return {fact.topic: (fact.value, fact.degraded) for fact in kernels_of(data)}


def test_kernels_of_a_gpu_start() -> None:
    found = kernels(h200("plain_8b_first"))
    assert found["attention"] == ("FLASH_ATTN", "")
    assert found["flash attention"] == ("3", "")
    assert found["model runner"] == ("V2", "")
    assert found["cudagraph mode"] == ("FULL_AND_PIECEWISE", "")
    assert found["compile mode"] == ("VLLM_COMPILE", "")
    assert found["KV layout"][0] == "LBNHC" and found["KV dtype"][0] == "auto"
    assert found["sampler"][0] == "PyTorch" and "FLASHINFER_SAMPLER" in found["sampler"][1]
    assert "norm_quant" in found["fusions"][0]


def test_every_fact_has_its_line_and_a_known_topic() -> None:
    for path in sorted(RECORDINGS.glob("*/*.log")):
        for fact in kernels_of(path.read_bytes()):
            assert fact.topic in TOPICS and fact.value and fact.line


def test_eager_and_a_missing_runner_are_marked() -> None:
    assert kernels(h200("20_standby_ipc_eager"))["compile mode"][1].startswith("enforce_eager")
    runner = kernels((CPU / "ngram.log").read_bytes())
    assert runner["model runner"] == ("V1", "V2 needs Triton")
    assert runner["speculative"][0] == "ngram, 3 tokens"


@pytest.mark.parametrize(
    ("line", "topic", "value"),
    [
        ("Using AttentionBackendEnum.FLASHINFER backend.", "attention", "FLASHINFER"),
        (
            "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['A']",
            "MoE",
            "MARLIN (NvFp4)",
        ),
        ("Using TRITON Unquantized MoE backend out of potential", "MoE", "TRITON (Unquantized)"),
        ("Using DEEPGEMM Fp8 MoE backend out of potential backends", "MoE", "DEEPGEMM (Fp8)"),
        ("Using BATCHED W4A8 MoE backend.", "MoE", "BATCHED (W4A8)"),
        (
            "Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod",
            "linear",
            "CutlassFP8ScaledMMLinearKernel (Fp8LinearMethod)",
        ),
        ("Using FlashInferNvFp4 for NVFP4 GEMM", "linear", "FlashInferNvFp4 (NVFP4 GEMM)"),
        ("Using DeepEPLLAll2AllManager all2all manager.", "all2all", "DeepEPLLAll2AllManager"),
        (
            "Using ['FLASHINFER', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp'",
            "all-reduce",
            "FLASHINFER, PYNCCL",
        ),
        ("Using FlashInfer for top-p & top-k sampling.", "sampler", "FlashInfer"),
        ("Enabled custom fusions: norm_quant, act_quant", "fusions", "norm_quant, act_quant"),
        ("Using HND KV cache layout.", "KV layout", "HND"),
    ],
)
def test_lines_that_name_a_kernel(line: str, topic: str, value: str) -> None:
    (fact,) = kernels_of(info(line).encode())
    assert (fact.topic, fact.value, fact.degraded) == (topic, value, "")


@pytest.mark.parametrize(
    ("line", "topic", "part"),
    [
        ("Tried to force MarlinKernel, but the kernel couldn't be implemented", "linear", "Marlin"),
        (
            "Using default MoE config. Performance might be sub-optimal! Config file not found",
            "MoE",
            "no tuned",
        ),
        (
            "Custom allreduce is disabled because your platform lacks GPU P2P capability.",
            "all-reduce",
            "P2P",
        ),
        (
            "Async scheduling is disabled because the V1 model runner does not support it with "
            "pipeline parallelism.",
            "scheduling",
            "pipeline parallelism",
        ),
        (
            "Cudagraph mode FULL is not compatible with compilation mode 0. Overriding to NONE.",
            "cudagraph mode",
            "not compatible",
        ),
        (
            "Cannot use FA version 3 on Blackwell platform, defaulting to FA version 4.",
            "flash attention",
            "3",
        ),
    ],
)
def test_lines_that_say_a_slower_path_was_taken(line: str, topic: str, part: str) -> None:
    (fact,) = kernels_of(warning(line).encode())
    assert fact.topic == topic and part in fact.degraded


def test_the_statistics_line_with_every_part() -> None:
    line = parse_stats(
        "Engine 001: Avg prompt throughput: 812.4 tokens/s, Avg generation throughput: 95.1 "
        "tokens/s, Running: 12 reqs, Waiting: 3 reqs, Deferred: 2 reqs, KV fetch: 2 waiting to "
        "start, 1 in progress, 0 completed waiting, Preemptions: 7, GPU KV cache usage: 88.1%, "
        "Prefix cache hit rate: 41.0%, External prefix cache hit rate: 3.5%, MM cache hit rate: "
        "1.0%"
    )
    assert line is not None
    assert (line.engine, line.running, line.waiting, line.deferred) == ("001", 12, 3, 2)
    assert (line.prompt_tokens_per_second, line.tokens_per_second) == (812.4, 95.1)
    assert (line.preemptions, line.kv_fetch, line.kv_device) == (7, (2, 1, 0), "GPU")
    assert line.kv_cache_usage == pytest.approx(0.881)
    assert line.prefix_hit_rate == pytest.approx(0.41)
    assert line.external_prefix_hit_rate == pytest.approx(0.035)
    assert line.mm_cache_hit_rate == pytest.approx(0.01)


def test_what_the_statistics_line_leaves_out_is_unknown() -> None:
    line = parse_stats("2 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs")
    assert line is not None and (line.engine, line.engines) == (None, 2)
    assert line.waiting is None and line.deferred is None and line.kv_cache_usage is None
    assert parse_stats("Engine 000: ready") is None
    assert parse_stats("") is None


def test_the_latest_statistics_become_a_load() -> None:
    lines = stats_of(h200("40_load"))
    load = load_of(lines, 5.0)
    assert load is not None
    assert (load.running, load.waiting, load.tokens_per_second) == (4, 20, 1603.7)
    assert load.ranks[0].engine == "0"
    assert load_of((), 5.0) is None
