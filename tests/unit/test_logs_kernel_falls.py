"""What an engine says of a slower path, in the words of vLLM 0.32 and 0.33, and what is no fall."""

from __future__ import annotations

import pytest

from engine_ctl.logs.classify import classify
from engine_ctl.logs.kernels import KernelFact, kernels_of

HEAD = "(EngineCore pid=811) WARNING 11-21 08:02:17 [x.py:41] "


def facts(text: str) -> list[KernelFact]:
    return [fact for fact in kernels_of(f"{HEAD}{text}\n".encode()) if fact.degraded]


@pytest.mark.parametrize(
    ("text", "topic", "why"),
    [
        (
            "Using default FlyDSL MoE config. Performance might be sub-optimal! Config file not "
            "found at E=8.json",
            "MoE",
            "no tuned configuration",
        ),
        (
            "Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will dequantize "
            "weights on the fly",
            "MoE",
            "no native kernel",
        ),
        (
            "Layer 'model.layers.3.mlp' is not supported by GPTQMoeMarlin. Falling back to Moe "
            "WNA16 kernels.",
            "MoE",
            "Moe WNA16 kernels",
        ),
        (
            "Layer 'model.layers.0.q_proj' is not supported by AutoAWQMarlin. Falling back to "
            "unoptimized AWQ kernels.",
            "linear",
            "unoptimized AWQ kernels",
        ),
        (
            "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config "
            "file not found at N=512.json",
            "linear",
            "block-fp8",
        ),
        (
            "--linear-backend=flashinfer requested FlashInfer mm_bf16 backend cutlass, but it is "
            "unavailable on the current hardware or environment; using automatic selection",
            "linear",
            "flashinfer was asked for",
        ),
        (
            "This device lacks native FP4 compute; using weight-only FP4 via the Marlin kernel",
            "quantization",
            "no native fp4",
        ),
        (
            "Marlin requires thread-tile padding for some weight shapes in this model. Activations "
            "are padded",
            "quantization",
            "some weight shapes",
        ),
        (
            "Custom collectives are disabled because this multi-node group does not support MNNVL "
            "multicast.",
            "all-reduce",
            "multicast",
        ),
        (
            "FlashInfer PCIe IPC all-reduce does not support dtype=float32; falling back to "
            "another all-reduce backend.",
            "all-reduce",
            "another all-reduce backend",
        ),
        (
            "`deepep_low_latency` all2all manager is not supported on CPU. Falling back to "
            "`allgather_reducescatter` manager.",
            "all2all",
            "deepep_low_latency is not supported",
        ),
        (
            "Failed to initialize Flashinfer allreduce workspace. Flashinfer allreduce-norm fusion "
            "will be disabled.",
            "fusions",
            "Failed to initialize",
        ),
        (
            "QK Norm+RoPE fusion not enabled: layer head_size=96 is not supported by "
            "fused_qk_norm_rope kernel (supported: 64, 128). Falling back to unfused path.",
            "fusions",
            "head_size=96",
        ),
        (
            "DeepEP: Disabling CUDA Graphs since DeepEP high-throughput kernels are optimized for "
            "prefill and are incompatible with CUDA Graphs. In order to",
            "cudagraph mode",
            "optimized for prefill",
        ),
        (
            "TORCH_COMPILE_DISABLE is set, disabling torch.compile. This is equivalent to setting "
            "-cc.mode=none",
            "compile mode",
            "no torch.compile",
        ),
        (
            "Dynamic speculative decoding is not supported with data parallelism because ranks can "
            "select different counts.",
            "speculative",
            "data parallelism",
        ),
        (
            "flashinfer is unavailable; vocab-parallel top-k uses torch.topk, at roughly half the "
            "speed.",
            "sampler",
            "half the speed",
        ),
        (
            "flash attention 3 not available! fallback to flash attention 2 implementation",
            "flash attention",
            "version 3 is not available: flash attention 2",
        ),
    ],
)
def test_a_fall_is_marked_with_its_line(text: str, topic: str, why: str) -> None:
    (fact,) = facts(text)
    assert fact.topic == topic
    assert why in fact.degraded
    assert fact.line.startswith(text[:40])


SAID_TO_BE_SLOWER = (
    "Using default FlyDSL MoE config. Performance might be sub-optimal! Config file not found",
    "Using Mxfp8EmulationTritonExperts MoE backend. Weights are dequantized to BF16 on the fly",
    "Layer 'model.layers.0.q_proj' is not supported by AutoAWQMarlin. Falling back to unoptimized "
    "AWQ kernels.",
    "This device lacks native FP4 compute; using weight-only FP4 via the Marlin kernel",
    "Marlin requires thread-tile padding for some weight shapes in this model.",
    "Custom collectives are disabled because this group does not support MNNVL multicast.",
    "FlashInfer PCIe IPC all-reduce does not support dtype=float32; falling back to another "
    "all-reduce backend.",
    "`naive` all2all manager is not supported on CPU. Falling back to `allgather` manager.",
    "Failed to initialize Flashinfer allreduce workspace. Flashinfer allreduce-norm fusion will be "
    "disabled.",
    "flashinfer is unavailable; vocab-parallel top-k uses torch.topk, at roughly half the speed.",
    "flash attention 3 not available! fallback to flash attention 2 implementation",
)


@pytest.mark.parametrize("text", SAID_TO_BE_SLOWER)
def test_an_excerpt_with_a_fall_is_degraded_kernels(text: str) -> None:
    cause = classify(f"{HEAD}{text}\n")
    assert cause is not None and cause.category == "kernels_degraded"


def test_what_runs_instead_is_the_value() -> None:
    log = (
        f"{HEAD}Using FLASH_ATTN attention backend\n"
        f"{HEAD}Using Mxfp8EmulationTritonExperts MoE backend. Weights are dequantized to BF16\n"
    )
    moe = [fact for fact in kernels_of(log.encode()) if fact.topic == "MoE"]
    assert [(fact.value, bool(fact.degraded)) for fact in moe] == [
        ("Mxfp8EmulationTritonExperts", True)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "AllReduce fusion pass is disabled for tp_size <= 1.",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']",
        "Enabled custom fusions: norm_quant, act_quant",
        "Custom quick allreduce: BF16 inputs will be converted to FP16",
        "Disabling V1 multiprocessing for external launcher.",
    ],
)
def test_the_ordinary_is_no_fall(text: str) -> None:
    assert facts(text) == []
