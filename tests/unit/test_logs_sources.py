"""Wordings of named kinds from raise sites of vLLM 0.32 and 0.33 beyond the usual ones: a kind is
known by what was refused and where, not by one phrase. Names and figures are invented."""

from __future__ import annotations

import pytest

from engine_ctl.logs.classify import classify
from tests.unit.test_logs_cases import CONFIG, LOADING, core, raw, record, trace, worker

ARGS = ("vllm/engine/arg_utils.py", "create_engine_config")


def configuring(exception: str, file: str = "vllm/config/vllm.py") -> str:
    """Raised by the parent while it makes the engine's configuration."""
    return CONFIG + raw(exception, ("vllm/entrypoints/cli/main.py", "main"), ARGS, (file, "check"))


def command(exception: str, file: str) -> str:
    """Raised by the command itself."""
    return raw(exception, ("vllm/entrypoints/cli/main.py", "main"), (file, "cmd"))


def loading(exception: str, *frames: tuple[str, str]) -> str:
    return core(exception, *frames, before=LOADING)


CASES: list[tuple[str, str, str, str]] = [
    # (what, category, words of the hint, log)
    (
        "pooler warm-up",
        "oom_sampler_warmup",
        "pooler's warm-up of 512 requests",
        loading(
            "RuntimeError: CUDA out of memory occurred when warming up pooler (task=embed) with "
            "512 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` "
            "when initializing the engine."
        ),
    ),
    (
        "bfloat16 KV on Turing",
        "dtype_unsupported",
        "Tesla T4 (compute capability 7.5)",
        loading(
            "ValueError: bfloat16 KV cache is not supported on Tesla T4 (compute capability 7.5); "
            "bfloat16 requires SM80+. Re-run with --kv-cache-dtype float16."
        ),
    ),
    (
        "bfloat16 KV of one backend",
        "dtype_unsupported",
        "Quadro RTX 6000",
        loading(
            "ValueError: bfloat16 KV cache is not supported by the Triton MLA backend on Quadro "
            "RTX 6000 (compute capability 7.5); bfloat16 requires SM80+. Re-run with "
            "--kv-cache-dtype float16."
        ),
    ),
    (
        "fp8 KV on this device",
        "dtype_unsupported",
        "kv_cache_dtype",
        loading(
            "NotImplementedError: FlashAttention does not support fp8 kv-cache on this device."
        ),
    ),
    (
        "fp8 KV on a small CPU",
        "dtype_unsupported",
        "AVX-512",
        loading("NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."),
    ),
    (
        "nvfp4 KV before Blackwell",
        "dtype_unsupported",
        "SM100",
        loading(
            "ValueError: --kv-cache-dtype nvfp4 requires the SM100 trtllm-gen FlashInfer path."
        ),
    ),
    (
        "bfloat16 on Arc",
        "dtype_unsupported",
        "float16",
        configuring(
            "ValueError: Intel Arc A770 have bfloat16 accuracy known issue. You can use float16 "
            "instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
            "vllm/platforms/xpu.py",
        ),
    ),
    (
        "online nvfp4 before Blackwell",
        "quant_unsupported_gpu",
        "this GPU cannot run",
        loading(
            "ValueError: nvfp4_per_token online quantization requires a Blackwell (SM100) GPU."
        ),
    ),
    (
        "W4A8 of Marlin",
        "quant_unsupported_gpu",
        "this GPU cannot run",
        worker(
            "ValueError: Marlin W4A8-FP8 only support SM89 or SM12x device (It is slower than "
            "Marlin W4A16 on other devices). You can consider using W4A8-INT8 instead."
        ),
    ),
    (
        "b12x experts",
        "quant_unsupported_gpu",
        "this GPU cannot run",
        loading("ValueError: Block-quantized routed experts require b12x on SM12x"),
    ),
    (
        "partition of quark",
        "tp_not_divisible",
        "",
        worker(
            "ValueError: Input size per partition (1376) must be divisible by group size (128)",
            ("vllm/model_executor/layers/quantization/quark/schemes/quark_nvfp4.py", "create"),
        ),
    ),
    (
        "partition of OCP MX",
        "tp_not_divisible",
        "",
        worker(
            "ValueError: OCP MX linear layer model.layers.0.mlp has an input size per partition of "
            "1376, which must be divisible by the OCP MX group size 32."
        ),
    ),
    (
        "too few devices for a local rank",
        "not_enough_gpus",
        "CUDA_VISIBLE_DEVICES is 0,1",
        core(
            "Exception: Error computing device indices for CUDA_VISIBLE_DEVICES: local range: "
            '[2, 4) base value: "0,1"'
        ),
    ),
    (
        "a core that went without a word while it started",
        "engine_core_killed",
        "killed from outside",
        LOADING
        + record(
            "Worker pid=977",
            "ERROR",
            "multiproc_executor.py",
            "WorkerProc failed to start.\n" + trace("BrokenPipeError: [Errno 32] Broken pipe"),
        )
        + raw(
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            "proc(s): {}"
        ),
    ),
    (
        "a node of Ray without room",
        "not_enough_gpus",
        "",
        core(
            "RuntimeError: driver node id 3f is not included in a placement group {'a': 1}. Node "
            "id -> bundles {'4c': [0]}. You don't have enough GPUs available in a current node. "
            "Check `ray status` to see if you have available GPUs in a node 3f."
        ),
    ),
    (
        "graphs of one runner",
        "bad_value",
        "-cc.cudagraph_mode",
        loading(
            "NotImplementedError: MRV2 sparse MLA PCP does not support CUDA graphs yet. Set "
            "-cc.cudagraph_mode=NONE."
        ),
    ),
    (
        "a physical device that is hidden",
        "not_enough_gpus",
        "",
        worker(
            "RuntimeError: Physical device 5 for logical device 1 is not visible in "
            "CUDA_VISIBLE_DEVICES=4"
        ),
    ),
    (
        "the coordinator of data parallelism",
        "startup_timeout",
        "coordinator",
        command(
            "RuntimeError: DP Coordinator process failed to report ZMQ addresses within timeout=60 "
            "seconds during startup.",
            "vllm/v1/engine/coordinator.py",
        ),
    ),
    (
        "headers that end early",
        "weights_corrupt",
        "",
        loading(
            "ValueError: Incomplete checkpoint headers",
            ("vllm/model_executor/model_loader/runai_streamer_loader.py", "load_model"),
        ),
    ),
    (
        "an index with holes",
        "weights_corrupt",
        "",
        loading("ValueError: Invalid checkpoint index entry"),
    ),
    (
        "a multi-modal item over the batch",
        "bad_value",
        "max_num_batched_tokens",
        loading(
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (9216) is larger "
            "than max_num_batched_tokens (8192). Please increase max_num_batched_tokens."
        ),
    ),
    (
        "Mamba blocks",
        "bad_value",
        "max_num_seqs (512) exceeds",
        loading(
            "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (384). Each "
            "decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed."
        ),
    ),
    (
        "prefix match unit",
        "bad_value",
        "prefix_match_unit=24",
        loading(
            "ValueError: Invalid prefix_match_unit=24; with a single KV cache group, prefix-cache "
            "hits land on the block size (16). Unset it or set it to 16."
        ),
    ),
    (
        "prefix retention",
        "bad_value",
        "prefix_cache_retention_interval",
        loading(
            "ValueError: prefix_cache_retention_interval (20) must be non-negative and a multiple "
            "of scheduler_block_size (16)."
        ),
    ),
    (
        "block size of a layout",
        "bad_value",
        "--block-size",
        loading(
            "ValueError: FLASHINFER needs 64-token kernel blocks, which packed 48-token KV cache "
            "blocks cannot be split into. Reduce --block-size to 64 or set VLLM_KV_CACHE_LAYOUT."
        ),
    ),
    (
        "the loader's extra configuration",
        "bad_value",
        "enable_multithread_load",
        loading("ValueError: enable_multithread_load must be a bool, got 3"),
    ),
    (
        "an unknown load format",
        "bad_value",
        "tensorised",
        loading("ValueError: Unknown load_format: tensorised"),
    ),
    (
        "balancing modes",
        "bad_value",
        "more than one data parallel load balancing mode",
        command(
            "ValueError: Cannot use more than one data parallel load balancing mode. Choose one "
            "of: --data-parallel-external-lb, --data-parallel-hybrid-lb",
            "vllm/entrypoints/cli/serve.py",
        ),
    ),
    (
        "hybrid balancing without a head",
        "bad_value",
        "headless",
        command(
            "ValueError: data_parallel_hybrid_lb is not applicable in headless mode",
            "vllm/entrypoints/cli/serve.py",
        ),
    ),
    (
        "ports of daemons",
        "bad_value",
        "65535",
        command(
            "ValueError: Daemon-to-daemon port range 65530-65545 exceeds 65535",
            "vllm/entrypoints/cli/preload.py",
        ),
    ),
    (
        "no model at all",
        "bad_argument",
        "No model specified",
        command(
            "ValueError: No model specified! Please specify model either as a positional argument "
            "or in a config file.",
            "vllm/utils/argparse_utils.py",
        ),
    ),
    (
        "a configuration file of another type",
        "bad_argument",
        "yaml",
        command(
            "ValueError: Config file must be of a yaml/yml type. serve.json supplied",
            "vllm/utils/argparse_utils.py",
        ),
    ),
    (
        "a scale file that is not there",
        "bad_value",
        "/models/scales.json",
        configuring(
            "FileNotFoundError: FP8 scale file not found: /models/scales.json",
            "vllm/config/multimodal.py",
        ),
    ),
    (
        "a role of the connector",
        "bad_value",
        "kv_both",
        configuring(
            "ValueError: Unsupported kv_role: prefill. Supported roles are ('kv_producer', "
            "'kv_consumer', 'kv_both')",
            "vllm/config/kv_transfer.py",
        ),
    ),
    (
        "experts without their parallelism",
        "bad_value",
        "EPLB",
        configuring(
            "ValueError: enable_expert_parallel must be True to use EPLB.",
            "vllm/config/parallel.py",
        ),
    ),
    (
        "a node's rank",
        "bad_value",
        "--node-rank",
        configuring(
            "ValueError: Invalid data-parallel launch options: `--node-rank` must be between 0 and "
            "3; got `--node-rank 4`. Set it to this node's zero-based index.",
            "vllm/engine/arg_utils.py",
        ),
    ),
    (
        "a custom op twice",
        "bad_value",
        "rms_norm",
        configuring(
            "ValueError: custom_ops cannot both enable and disable the same operation(s): "
            "rms_norm. Remove either the '+' or '-' directive.",
            "vllm/config/compilation.py",
        ),
    ),
]


@pytest.mark.parametrize(
    ("category", "words", "log"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_a_kind_is_known_in_other_words(category: str, words: str, log: str) -> None:
    cause = classify(log)
    assert cause is not None
    assert cause.category == category
    assert words in cause.hint
    assert cause.hint and "\n" not in cause.hint


@pytest.mark.parametrize(
    "exception",
    [
        "RuntimeError: next_free_block of fake_free_list_head should always exist",
        "ValueError: num_new_tokens must be greater than 0 when there are no computed tokens",
        "NotImplementedError: Heterogeneous MLA models are not supported: `get_head_size` patches "
        "the config in place for them",
        "AssertionError: Current vLLM config is not set.",
        "KeyError: 'model.layers.3.mlp.gate_up_proj.weight'",
    ],
)
def test_faults_of_the_program_are_no_ones_value(exception: str) -> None:
    cause = classify(loading(exception))
    assert cause is not None and cause.category == "unknown"
    assert exception.partition(":")[0] in cause.line
