"""Wordings of every kind of cause beyond the recorded ones, and healthy logs that look ill.

The fixed words follow the sources of vLLM 0.30 to 0.33 and of the libraries below it; names,
sizes, pids and times are invented."""

from __future__ import annotations

import pytest

from engine_ctl.logs.classify import classify

STAMP = "11-21 08:02:17"


def record(process: str, level: str, file: str, text: str) -> str:
    head = f"({process}) {level} {STAMP} [{file}:41] "
    return ("\r\n" + head).join([head + text.split("\n")[0], *text.split("\n")[1:]]) + "\n"


def trace(exception: str, *frames: tuple[str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for path, function in frames or (("vllm/v1/engine/core.py", "run_engine_core"),):
        lines.append(f'  File "/opt/v/lib/python3.12/site-packages/{path}", line 7, in {function}')
        lines.append("    do_it()")
    return "\n".join([*lines, exception])


TAIL = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}\n"
)


def core(exception: str, *frames: tuple[str, str], before: str = "") -> str:
    text = "EngineCore failed to start.\n" + trace(exception, *frames)
    return before + record("EngineCore pid=811", "ERROR", "core.py", text) + TAIL


def worker(exception: str, *frames: tuple[str, str], before: str = "") -> str:
    text = "WorkerProc failed to start.\n" + trace(exception, *frames)
    wrapped = trace(
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause."
    )
    return (
        before
        + record("Worker_TP1 pid=977", "ERROR", "multiproc_executor.py", text)
        + record(
            "EngineCore pid=811", "ERROR", "core.py", "EngineCore failed to start.\n" + wrapped
        )
        + TAIL
    )


def raw(exception: str, *frames: tuple[str, str]) -> str:
    frames = frames or (("vllm/entrypoints/cli/main.py", "main"),)
    return trace(exception, *frames) + "\n"


def pydantic(config: str, text: str) -> str:
    return raw(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n"
        f"  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{...}}), "
        "input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    )


def info(text: str, file: str = "x.py", process: str = "EngineCore pid=811") -> str:
    return record(process, "INFO", file, text)


def warning(text: str, file: str = "x.py", process: str = "EngineCore pid=811") -> str:
    return record(process, "WARNING", file, text)


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total "
    "capacity of 44.39 GiB of which 911.25 MiB is free. Including non-PyTorch memory, this process "
    "has 43.49 GiB memory in use."
)
KV = info("GPU KV cache size: 88,112 tokens, Maximum concurrency for 8,192 tokens per request: 10x")
LOADING = info("Starting to load model org/some-70b...")
HTTP = 'INFO:     10.0.0.7:51204 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
READY = "INFO:     Application startup complete.\n"
CONFIG = info("non-default args: {'model': 'org/m', 'port': 9000}", process="APIServer pid=700")
DEAD = record(
    "APIServer pid=700",
    "ERROR",
    "async_llm.py",
    "AsyncLLM output_handler failed.\n"
    + trace(
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause."
    ),
)
GONE = warning(
    "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
    "core_client.py",
    "APIServer pid=700",
)
SHUT = "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"

CASES: list[tuple[str, str | None, str]] = [
    # memory
    ("oom worker load", "oom_weight_load", worker(OOM, ("a.py", "load_model"), before=LOADING)),
    ("oom by phase only", "oom_weight_load", core(OOM, before=LOADING)),
    (
        "oom of ROCm",
        "oom_weight_load",
        worker(
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", before=LOADING
        ),
    ),
    (
        "oom friendly text alone",
        "oom_weight_load",
        LOADING
        + record(
            "EngineCore pid=1",
            "ERROR",
            "gpu_model_runner.py",
            "Failed to load model - not enough GPU memory. Try lowering "
            "--gpu-memory-utilization to "
            "free memory for weights, increasing --tensor-parallel-size, or using --quantization. "
            "(original error: CUDA out of memory.)",
        ),
    ),
    (
        "oom in a daemon",
        "oom_weight_load",
        "Process vllm-weight-cache-target-0:\n"
        + raw(OOM, ("vllm/weight_cache/daemon.py", "load_model"))
        + record(
            "MainProcess pid=5",
            "ERROR",
            "preload.py",
            "Weight cache daemon rank(s) exited during startup (exitcodes=[1]); shutting down.",
        ),
    ),
    ("oom kv", "oom_kv_alloc", core(OOM, ("w.py", "initialize_from_config"), before=LOADING + KV)),
    ("oom kv v2", "oom_kv_alloc", worker(OOM, ("w.py", "_allocate_kv_cache_tensors"), before=KV)),
    (
        "oom capture by frame",
        "oom_graph_capture",
        worker(OOM, ("w.py", "compile_or_warm_up_model"), ("r.py", "capture_model"), before=KV),
    ),
    (
        "oom capture by bar",
        "oom_graph_capture",
        core(
            "torch.AcceleratorError: CUDA error: out of memory",
            before=KV
            + "\rCapturing CUDA graphs (decode, FULL):  20%|##  | 7/35 [00:01<00:05, 5it/s]\n",
        ),
    ),
    (
        "oom sampler",
        "oom_sampler_warmup",
        core(
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
            "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
            "initializing the engine.",
            ("w.py", "_dummy_sampler_run"),
            before=KV,
        ),
    ),
    (
        "oom sampler by frame",
        "oom_sampler_warmup",
        worker(
            OOM, ("w.py", "compile_or_warm_up_model"), ("r.py", "_dummy_sampler_run"), before=KV
        ),
    ),
    (
        "kv none",
        "kv_no_memory",
        core(
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine."
        ),
    ),
    (
        "kv none auto fit",
        "kv_no_memory",
        core(
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve "
            "even a single token. Try increasing `gpu_memory_utilization`."
        ),
    ),
    (
        "kv none on the CPU",
        "kv_no_memory",
        worker(
            "ValueError: The worker already uses 9.1 GiB (model weights and "
            "runtime), more than the "
            "8.0 GiB of CPU memory reserved for it on node 0, leaving none for the KV cache."
        ),
    ),
    (
        "kv small 0.30",
        "kv_too_small_for_max_model_len",
        core(
            "ValueError: To serve at least one request with the models's max seq len (131072), "
            "(16.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(7.43 GiB). Based on the available memory, the estimated maximum model length is "
            "60848. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine."
        ),
    ),
    (
        "kv small, older wording",
        "kv_too_small_for_max_model_len",
        core(
            "ValueError: The model's max seq len (32768) is larger than the maximum number of "
            "tokens that can be stored in KV cache (9216). Try increasing `gpu_memory_utilization` "
            "or decreasing `max_model_len` when initializing the engine."
        ),
    ),
    (
        "busy",
        "gpu_memory_busy",
        core(
            "ValueError: Free memory on device cuda:1 (31.2/79.1 GiB) on startup is less than "
            "desired GPU memory utilization (0.92, 72.77 GiB). Decrease GPU memory utilization or "
            "reduce GPU memory used by other processes."
        ),
    ),
    (
        "busy without a device",
        "gpu_memory_busy",
        core(
            "ValueError: Free memory on device (5.1/23.5 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 21.2 GiB). Decrease GPU memory utilization or reduce GPU "
            "memory used by other processes."
        ),
    ),
    (
        "budget",
        "weight_cache_budget",
        core(
            "ValueError: Externally held weights on device cuda:0 (15.9/79.1 GiB) exceed the "
            "desired GPU memory utilization (0.2, 15.82 GiB). Increase GPU memory utilization or "
            "reduce GPU memory used by other processes."
        ),
    ),
    (
        "budget by the old rule",
        "weight_cache_budget",
        info("vLLM server version 0.31.0, serving model org/m", process="APIServer pid=1")
        + info("non-default args: {'load_format': 'ipc_cache'}", process="APIServer pid=1")
        + core(
            "ValueError: Free memory on device cuda:0 (60.1/79.1 GiB) on startup is less than "
            "desired GPU memory utilization (0.92, 72.77 GiB)."
        ),
    ),
    (
        "memory changed",
        "gpu_memory_changed_during_profiling",
        worker(
            "AssertionError: Error in memory profiling. Initial free memory 61.2 GiB, current free "
            "memory 70.9 GiB. This happens when other processes sharing the same container release "
            "GPU memory while vLLM is profiling during initialization."
        ),
    ),
    # ports, groups, sizes
    ("port", "port_in_use", raw("OSError: [Errno 98] Address already in use", ("l.py", "bind"))),
    (
        "port by uvicorn",
        "port_in_use",
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address "
        "already in use\n",
    ),
    (
        "port of the store",
        "port_in_use",
        worker(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, "
            "message: address already in use"
        ),
    ),
    (
        "nccl",
        "nccl_init",
        worker(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, "
            "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed."
        ),
    ),
    (
        "nccl by pynccl",
        "nccl_init",
        worker(
            "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            ("pynccl.py", "NCCL_CHECK"),
        ),
    ),
    (
        "rendezvous",
        "nccl_init",
        worker(
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms "
            "while trying to connect to (10.0.0.2, 29501)."
        ),
    ),
    (
        "nccl timeout raised",
        "nccl_timeout",
        "[rank2]:[E1121 08:12:01.118 ProcessGroupNCCL.cpp:1858] [PG ID 2 PG GUID 3 Rank 2] Process "
        "group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=61, OpType=_ALLGATHER_BASE)\n"
        + record(
            "EngineCore pid=1",
            "ERROR",
            "multiproc_executor.py",
            "Worker proc VllmWorker-2 died unexpectedly, shutting down executor.",
        ),
    ),
    (
        "rpc timeout",
        "worker_slow_or_hung",
        CONFIG
        + READY
        + record(
            "EngineCore pid=1",
            "ERROR",
            "core.py",
            "EngineCore encountered a fatal error.\n"
            + trace("TimeoutError: RPC call to execute_model timed out."),
        ),
    ),
    (
        "heartbeats after ready",
        "worker_slow_or_hung",
        CONFIG
        + READY
        + info(
            "No available shared memory broadcast block found in 60 seconds.", "shm_broadcast.py"
        )
        * 3,
    ),
    (
        "startup timeout",
        "startup_timeout",
        raw(
            "TimeoutError: Timed out waiting for new engine core processes to start. Waited 1200s "
            "(configured by VLLM_ENGINE_READY_TIMEOUT_S)."
        ),
    ),
    (
        "heads",
        "tp_not_divisible",
        pydantic(
            "VllmConfig",
            "Total number of attention heads (40) must be divisible by tensor parallel size (16).",
        ),
    ),
    (
        "vocabulary",
        "tp_not_divisible",
        worker("AssertionError: 151936 is not divisible by 6", ("utils.py", "divide")),
    ),
    (
        "quantization blocks",
        "tp_not_divisible",
        worker(
            "ValueError: The output_size of gate's and up's weight = 352 is not "
            "divisible by weight "
            "quantization block_n = 128."
        ),
    ),
    (
        "marlin shard",
        "tp_not_divisible",
        worker(
            "ValueError: Weight input_size_per_partition = 2368 is not divisible by min_thread_k = "
            "128. Consider reducing tensor_parallel_size or running with --quantization gptq."
        ),
    ),
    (
        "world size",
        "not_enough_gpus",
        pydantic(
            "ParallelConfig",
            "World size (8) is larger than the number of available GPUs (4) in this node. If this "
            "is intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.",
        ),
    ),
    (
        "ordinal",
        "not_enough_gpus",
        worker(
            "torch.AcceleratorError: CUDA error: invalid device ordinal", ("w.py", "init_device")
        ),
    ),
    (
        "device ids",
        "not_enough_gpus",
        worker("AssertionError: local_world_size (4) exceeds assigned_physical_gpu_ids count (2)"),
    ),
    ("no gpu", "not_enough_gpus", core("RuntimeError: No CUDA GPUs are available")),
    # files
    (
        "gated, 403",
        "auth_gated_repo",
        raw(
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
            "https://huggingface.co/org/m.\n403 Client Error."
        ),
    ),
    (
        "token wrong",
        "auth_gated_repo",
        raw(
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: x)\n\n"
            "Repository Not Found for url: https://huggingface.co/api/models/org/m.\n"
            "Invalid credentials in Authorization header"
        ),
    ),
    (
        "path, transformers",
        "model_path_missing",
        raw(
            "OSError: Incorrect path_or_model_id: '/mnt/models/m'. Please provide either the path "
            "to a local folder or the repo_id of a model on the Hub."
        ),
    ),
    (
        "path, vLLM",
        "model_path_missing",
        pydantic(
            "ModelConfig",
            "Invalid repository ID or local directory specified: '/mnt/models/m'.\nPlease verify "
            "the following requirements:\n1. Provide a valid Hugging Face repository ID.",
        ),
    ),
    (
        "repo that is not there",
        "model_path_missing",
        raw(
            "OSError: org/no-such is not a local folder and is not a valid model identifier listed "
            "on 'https://huggingface.co/models'"
        ),
    ),
    (
        "offline, transformers",
        "model_not_cached_offline",
        raw(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and "
            "couldn't find them in the cached files.\nCheck your internet connection."
        ),
    ),
    (
        "offline, hub",
        "model_not_cached_offline",
        raw(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/"
            "models/org/m: offline mode is enabled. To disable it, please unset the "
            "`HF_HUB_OFFLINE` environment variable."
        ),
    ),
    (
        "no network",
        "model_not_cached_offline",
        raw(
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', "
            "port=443): Max retries exceeded with url: /api/models/org/m (Caused by "
            "NameResolutionError: Failed to resolve 'huggingface.co')"
        ),
    ),
    (
        "remote code, vLLM",
        "trust_remote_code",
        pydantic(
            "ModelConfig",
            "Failed to load the model config. If the model is a custom model not yet available in "
            "the HuggingFace transformers library, consider setting "
            "`trust_remote_code=True` in LLM "
            "or using the `--trust-remote-code` flag in the CLI.",
        ),
    ),
    (
        "remote code, tokenizer",
        "trust_remote_code",
        raw(
            "RuntimeError: Failed to load the tokenizer. If the tokenizer is a "
            "custom tokenizer not "
            "yet available in the HuggingFace transformers library, consider setting "
            "`trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI."
        ),
    ),
    (
        "model type",
        "arch_unsupported",
        pydantic(
            "ModelConfig",
            "The checkpoint you are trying to load has model type `nova5` but "
            "Transformers does not "
            "recognize this architecture. This could be because of an issue with the checkpoint.",
        ),
    ),
    (
        "arch inspected",
        "arch_unsupported",
        pydantic(
            "ModelConfig",
            "Model architectures ['NovaForCausalLM'] failed to be inspected. Please check the logs "
            "for more details.",
        ),
    ),
    (
        "arch dropped",
        "arch_unsupported",
        pydantic(
            "ModelConfig",
            "Model architecture PhiMoEForCausalLM was supported in vLLM until v0.29.0, and is not "
            "supported anymore. Please use an older version of vLLM.",
        ),
    ),
    (
        "tokenizer",
        "tokenizer_missing",
        raw(
            "OSError: Can't load tokenizer for '/models/ft'. If you were trying to load it from "
            "'https://huggingface.co/models', make sure you don't have a local directory."
        ),
    ),
    (
        "a shard is missing",
        "weights_missing",
        worker(
            "FileNotFoundError: No such file or directory: "
            '"/models/m/model-00002-of-00004.safetensors"'
        ),
    ),
    (
        "weights, transformers",
        "weights_missing",
        worker(
            "OSError: /models/m does not appear to have a file named pytorch_model.bin, "
            "model.safetensors, tf_model.h5."
        ),
    ),
    (
        "weights, partial",
        "weights_missing",
        worker(
            "ValueError: Following weights were not initialized from checkpoint: "
            "{'model.layers.31.mlp.down_proj.weight'}"
        ),
    ),
    (
        "header",
        "weights_corrupt",
        worker(
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            ("weight_utils.py", "safetensors_weights_iterator"),
        ),
    ),
    (
        "pickle",
        "weights_corrupt",
        worker(
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
            "directory",
            ("weight_utils.py", "pt_weights_iterator"),
        ),
    ),
    (
        "length",
        "max_model_len_over_model",
        pydantic(
            "ModelConfig",
            "User-specified max_model_len (262144) is greater than the derived max_model_len "
            "(max_position_embeddings=32768.0 or model_max_length=None in model's config.json).",
        ),
    ),
    (
        "lora, start",
        "lora_missing",
        raw("ValueError: Loading lora chat failed: No adapter found for /adapters/chat"),
    ),
    (
        "lora, older",
        "lora_missing",
        raw(
            "ValueError: Call to add_lora method failed: Loading lora sql failed: "
            "No adapter found for x"
        ),
    ),
    # chip, driver, toolchain
    (
        "bf16 on Volta",
        "dtype_unsupported",
        worker(
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least "
            "8.0. Your Tesla V100-SXM2-32GB GPU has compute capability 7.0. You can use float16 "
            "instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half."
        ),
    ),
    (
        "scheme",
        "quant_unsupported_gpu",
        worker(
            "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min "
            "capability: 89. ', 'Current capability: 86.')"
        ),
    ),
    (
        "quant on a platform",
        "quant_unsupported_gpu",
        pydantic("ModelConfig", "awq quantization is currently not supported in rocm."),
    ),
    (
        "fp8 in triton",
        "quant_unsupported_gpu",
        core(
            "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes "
            "are ('fp8e4b15', 'fp8e5')"
        ),
    ),
    (
        "no kernel",
        "quant_unsupported_gpu",
        worker(
            "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. "
            "Reasons: \n MacheteLinearKernel requires capability 90, current "
            "compute capability is 80"
        ),
    ),
    (
        "allspark",
        "quant_removed",
        pydantic("ModelConfig", "Unknown quantization method: allspark. Must be one of ['awq']."),
    ),
    (
        "actorder",
        "quant_removed",
        pydantic(
            "VllmConfig",
            "compressed-tensors group activation ordering (actorder='group') is no "
            "longer supported. "
            "Use a checkpoint with static ordering.",
        ),
    ),
    (
        "fp8 online",
        "quant_removed",
        worker("ValueError: The `fp8` quantization method no longer supports online quantization."),
    ),
    (
        "no nvcc",
        "jit_toolchain_missing",
        core("FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", ("jit.py", "build")),
    ),
    (
        "no compiler for triton",
        "jit_toolchain_missing",
        worker(
            "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please "
            "specify via CC environment variable or set triton.knobs.build.impl."
        ),
    ),
    (
        "cuda home",
        "jit_toolchain_missing",
        core(
            "RuntimeError: Could not find nvcc and default "
            "cuda_home='/usr/local/cuda' doesn't exist"
        ),
    ),
    (
        "insufficient driver",
        "driver_too_old",
        core(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 35: "
            "CUDA driver version "
            "is insufficient for CUDA runtime version"
        ),
    ),
    (
        "mismatch, NVML",
        "driver_mismatch",
        raw("pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch"),
    ),
    (
        "mismatch, CUDA",
        "driver_mismatch",
        core(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
            "unsupported display driver / cuda driver combination"
        ),
    ),
    (
        "shm, nccl",
        "shm_too_small",
        worker(
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system "
            "error\nError while creating shared memory segment /dev/shm/nccl-fY3cBd (size 9637888)"
        ),
    ),
    (
        "shm, queue",
        "shm_too_small",
        core("OSError: [Errno 28] No space left on device: '/psm_2f1a'", ("shm.py", "__init__")),
    ),
    (
        "shm, bus error",
        "shm_too_small",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).\n",
    ),
    ("files", "fd_limit", core("OSError: [Errno 24] Too many open files: '/dev/shm/x'"[:44])),
    (
        "files, zmq",
        "fd_limit",
        raw("zmq.error.ZMQError: Too many open files"),
    ),
    (
        "compile cache",
        "compile_cache_corrupt",
        worker(
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            ("vllm/compilation/compiler_interface.py", "load"),
        ),
    ),
    # death and stop
    (
        "worker killed, no code",
        "worker_killed",
        CONFIG
        + READY
        + record(
            "EngineCore pid=1",
            "ERROR",
            "multiproc_executor.py",
            "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        )
        + DEAD,
    ),
    (
        "worker killed while starting",
        "worker_killed",
        record(
            "EngineCore pid=1",
            "ERROR",
            "core.py",
            "EngineCore failed to start.\n"
            + trace(
                "Exception: WorkerProc initialization failed due to an exception in a background "
                "process. See stack trace for root cause."
            ),
        )
        + TAIL,
    ),
    ("core killed", "engine_core_killed", CONFIG + READY + GONE + DEAD + SHUT),
    (
        "core killed, older",
        "engine_core_killed",
        READY
        + record(
            "APIServer pid=7",
            "ERROR",
            "core_client.py",
            "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        )
        + DEAD
        + SHUT,
    ),
    (
        "core killed while starting",
        "engine_core_killed",
        LOADING + TAIL.replace("'EngineCore': 1", "'EngineCore': -9"),
    ),
    (
        "core killed, several servers",
        "engine_core_killed",
        record(
            "MainProcess pid=7",
            "ERROR",
            "utils.py",
            "Exception occurred while running API servers: x\n"
            + trace("RuntimeError: Engine core process EngineCore_DP1 died unexpectedly."),
        ),
    ),
    ("parent alive", "engine_dead_parent_alive", CONFIG + READY + DEAD + HTTP * 4),
    (
        "parent alive after an unknown death",
        "engine_dead_parent_alive",
        CONFIG
        + READY
        + record(
            "EngineCore pid=811",
            "ERROR",
            "core.py",
            "EngineCore encountered a fatal error.\n"
            + trace("torch.AcceleratorError: CUDA error: an illegal memory access"),
        )
        + DEAD
        + HTTP.replace("500 Internal Server Error", "503 Service Unavailable") * 3,
    ),
    (
        "two servers on one port",
        "port_shared_silently",
        "".join(
            info(f"vLLM API server version 0.{minor}.0", process=f"APIServer pid={pid}")
            + info(
                "Starting vLLM API server 0 on http://0.0.0.0:8000", process=f"APIServer pid={pid}"
            )
            + READY
            for minor, pid in ((24, 41), (24, 77))
        ),
    ),
    (
        "two starts in a row of a later version",
        None,
        "".join(
            info("vLLM server version 0.33.0", process=f"APIServer pid={pid}")
            + info("Starting vLLM server on http://0.0.0.0:8000", process=f"APIServer pid={pid}")
            + READY
            for pid in (41, 77)
        ),
    ),
    (
        "stop, interrupted start",
        "normal_shutdown",
        CONFIG + LOADING + raw("KeyboardInterrupt: terminated"),
    ),
    # arguments
    (
        "choice",
        "bad_argument",
        "usage: vllm serve [model_tag] [options]\nvllm serve: error: argument --dtype: invalid "
        "choice: 'fp16' (choose from 'auto', 'bfloat16', 'float', 'float16')\n",
    ),
    (
        "ambiguous",
        "bad_argument",
        "vllm serve: error: ambiguous option: --device could match --device-ids, "
        "--device-memory-utilization\n",
    ),
    (
        "module",
        "bad_argument",
        "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: "
        "--gpu-memory-util 0.9\n",
    ),
    (
        "value",
        "bad_value",
        raw(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            "max_num_seqs\n  Input should be greater than or equal to 1 [type=greater_than_equal, "
            "input_value=0, input_type=int]"
        ),
    ),
    (
        "tool parser",
        "bad_value",
        raw("KeyError: 'invalid tool call parser: hermez (chose from { granite,hermes,mistral })'"),
    ),
    (
        "async",
        "async_pp_conflict",
        pydantic(
            "VllmConfig",
            "Async scheduling is not supported by the V1 model runner with pipeline parallelism.",
        ),
    ),
    (
        "async, older",
        "async_pp_conflict",
        pydantic(
            "VllmConfig", "Async scheduling is not compatible with pipeline_parallel_size > 1."
        ),
    ),
    (
        "env, strict",
        "env_unknown",
        raw("ValueError: Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKND"),
    ),
    # weight cache
    (
        "not ready",
        "wc_fallback.not_ready",
        core(
            "vllm.model_executor.model_loader.weight_cache.protocol.WeightCacheUnavailableError: "
            "Weight cache daemon did not become ready within 300.0s: Weight cache "
            "socket /tmp/v/x.sock "
            "is unavailable: [Errno 2] No such file or directory: '/tmp/v/x.sock'"
        ),
    ),
    (
        "timed out",
        "wc_fallback.not_ready",
        warning(
            "Weight cache unusable (Cannot connect to weight cache daemon at /tmp/v/x.sock: timed "
            "out); falling back to disk loading"
        ),
    ),
    (
        "0.30 key",
        "wc_fallback.key_mismatch",
        warning(
            "Weight cache unusable (CacheConfig mismatch on fields: ['tp_size', 'dtype']); falling "
            "back to disk loading"
        ),
    ),
    (
        "0.30 missing",
        "wc_fallback.socket_missing",
        warning(
            "Weight cache unusable (Cannot connect to weight cache daemon at /tmp/v/0.sock: [Errno "
            "2] No such file or directory); falling back to disk loading"
        ),
    ),
    (
        "daemon's side",
        "wc_fallback.key_mismatch",
        warning(
            "WeightCacheKey mismatch on fields: ['checkpoint']",
            "daemon.py",
            "vllm-weight-cache-target-0 pid=9",
        ),
    ),
    (
        "uuid",
        "wc_fallback.gpu_uuid",
        warning(
            "Weight cache unusable (Daemon GPU GPU-aaaa != engine GPU GPU-bbbb; check the socket "
            "path / GPU mapping); falling back to disk loading"
        ),
    ),
    (
        "released",
        "wc_fallback.released",
        warning(
            "Weight cache unusable (Weight cache daemon error: Weights were "
            "released); falling back "
            "to disk loading"
        ),
    ),
    (
        "ipc failed",
        "wc_fallback.ipc_failed",
        record(
            "EngineCore pid=1",
            "ERROR",
            "ipc_loader.py",
            "Weight cache IPC loading failed; falling back to disk loading\n"
            + trace("RuntimeError: CUDA error: invalid resource handle", ("i.py", "_build_model")),
        )
        + info("Loading weights took 12.20 seconds"),
    ),
    (
        "ipc failed, nothing after it",
        "wc_fallback.ipc_failed",
        record(
            "EngineCore pid=1",
            "ERROR",
            "ipc_loader.py",
            "Weight cache IPC loading failed; falling back to disk loading\n"
            + trace("RuntimeError: Cached tensor a.b has no matching module"),
        ),
    ),
    (
        "waiting",
        "wc_fallback.not_ready",
        info("Waiting up to 300.0s for the weight cache daemon to start", "ipc_loader.py"),
    ),
    (
        "released, the daemon's side",
        "wc_fallback.released",
        info(
            "Weight cache target daemon rank 0 released cached weights",
            "daemon.py",
            "vllm-weight-cache-target-0 pid=9",
        ),
    ),
    (
        "mapped, then ready",
        "wc_hit",
        info("Weights are held outside this process: of the 43.6 GiB utilization budget, 15.2 GiB")
        + info("Mapped 291 tensors from the weight cache daemon (zero_copy mode)")
        + READY,
    ),
    (
        "owner",
        "wc_fallback.permissions",
        warning(
            "Weight cache unusable (Socket /tmp/v/x.sock is not owned by the "
            "current user); falling "
            "back to disk loading"
        ),
    ),
    (
        "quant refused",
        "wc_fatal.quant",
        worker(
            "vllm.model_executor.model_loader.weight_cache.protocol.UnsupportedQuantForIPCError: "
            "layer model.layers.0.mlp: MxFp4MoEMethod does not support loading from pre-processed "
            "weights."
        ),
    ),
    # unknown stays unknown
    ("unknown", "unknown", worker("ValueError: Duplicate layer name: model.layers.0.attn")),
    (
        "an illegal access",
        "unknown",
        core("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ),
    ("parent only", "unknown", TAIL),
    # notices in excerpts
    (
        "moe config",
        "kernels_degraded",
        warning(
            "Using default MoE config. Performance might be sub-optimal! Config file not found at "
            "/opt/v/E=64,N=768.json",
            "fused_moe.py",
        ),
    ),
    (
        "marlin fp8",
        "kernels_degraded",
        warning(
            "Your GPU does not have native support for FP8 computation but FP8 quantization is "
            "being used. Weight-only FP8 compression will be used leveraging the Marlin kernel."
        ),
    ),
    ("noise at the end", "benign_warning", 'nanobind: leaked 64 types!\n - leaked type "x"\n'),
    # healthy look-alikes
    ("empty", None, ""),
    ("only imports", None, "Triton is installed, but doesn't include CPU backend.\n"),
    (
        "request errors while serving",
        None,
        CONFIG
        + READY
        + "ERROR:    Exception in ASGI application\n"
        + raw("ValueError: the prompt is longer than the maximum model length of 8192")
        + HTTP
        + info("Engine 000: Avg prompt throughput: 1.0 tokens/s", "loggers.py", "APIServer pid=7"),
    ),
    (
        "an error that a request caused",
        None,
        CONFIG
        + READY
        + record(
            "APIServer pid=7",
            "ERROR",
            "serving.py",
            "Error in preprocessing prompt inputs\n" + trace("OSError: cannot open image"),
        )
        + HTTP,
    ),
    (
        "retries, then ready",
        None,
        CONFIG
        + record(
            "APIServer pid=7",
            "ERROR",
            "repo_utils.py",
            "Error retrieving file list: HTTPSConnectionPool(host='huggingface.co'): timed out, "
            "retrying 1 of 2",
        )
        + info("Resolved architecture: LlamaForCausalLM", process="APIServer pid=7")
        + READY,
    ),
    (
        "a traceback that was overcome",
        None,
        CONFIG
        + record(
            "EngineCore pid=1",
            "ERROR",
            "flashinfer.py",
            "Could not autotune\n" + trace("RuntimeError: CUDA out of memory"),
        )
        + KV
        + READY,
    ),
    (
        "heartbeat while compiling",
        None,
        CONFIG
        + info(
            "No available shared memory broadcast block found in 60 seconds.", "shm_broadcast.py"
        )
        + READY,
    ),
    (
        "clean drain",
        None,
        CONFIG
        + READY
        + info("[shutdown] API server: shutdown triggered", process="APIServer pid=7")
        + SHUT,
    ),
]


@pytest.mark.parametrize(
    ("category", "log"),
    [pytest.param(category, log, id=name) for name, category, log in CASES],
)
def test_each_wording_gives_its_kind(category: str | None, log: str) -> None:
    cause = classify(log)
    assert (cause.category if cause else None) == category
    if cause is not None:
        assert cause.hint and "{" not in cause.hint and "\n" not in cause.hint
        assert cause.line and "\n" not in cause.line
        assert cause.line.strip() in log.replace("\r", "")
