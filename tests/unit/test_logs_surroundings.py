"""Errors from around vLLM (GPUs, libraries, the system, other engines) are told in a sentence that
says what to do. Messages as CUDA, PyTorch, NCCL, Gloo, ZeroMQ and the C library word them."""

from __future__ import annotations

import pytest

from engine_ctl.logs.classify import classify
from engine_ctl.logs.rules.advice import NO_ADVICE
from tests.unit.test_logs_cases import CONFIG, core

CASES = {
    "RuntimeError: CUDA error: GPU is lost": ("unknown", "Xid 79"),
    "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered": (
        "unknown",
        "ROW_REMAPPER",
    ),
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (
        "unknown",
        "gpu_memory_utilization",
    ),
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`": (
        "unknown",
        "LD_LIBRARY_PATH",
    ),
    "RuntimeError: custom_all_reduce.cuh:368 'invalid argument'": (
        "unknown",
        "disable_custom_all_reduce",
    ),
    "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable": (
        "unknown",
        "compute mode",
    ),
    "RuntimeError: CUDA error: operation not permitted when stream is capturing": (
        "unknown",
        "cudagraph_mode",
    ),
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 536870912 bytes.": ("unknown", "kv_offloading_size"),
    "RuntimeError: can't start new thread": ("unknown", "TasksMax"),
    "RuntimeError: the limit of max locked memory is too low": ("unknown", "memlock"),
    "RuntimeError: ibv_reg_mr failed: Cannot allocate memory": ("unknown", "memlock"),
    "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by "
    "/opt/venv/vllm/_C.abi3.so)": ("unknown", "needs GLIBC_2.38"),
    "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'": (
        "unknown",
        "belong together",
    ),
    "ImportError: numpy.core.multiarray failed to import": ("unknown", "NumPy"),
    "ImportError: cannot import name 'ALLOWED_LAYER_TYPES' from "
    "'transformers.configuration_utils'": ("unknown", "transformers"),
    "Exception: data did not match any variant of untagged enum ModelWrapper at line 7 column 3": (
        "tokenizer_missing",
        "newer tokenizers",
    ),
    "RuntimeError: NIXL is not available": ("unknown", "nixl"),
    "RuntimeError: NIXL compatibility hash mismatch. Local: a, Remote: b.": (
        "unknown",
        "prefill and decode engines differ",
    ),
    "RuntimeError: DeepGEMM backend is not available or outdated.": ("unknown", "deep_gemm"),
    "ImportError: Ray is not installed. Please install Ray.": ("unknown", "ray"),
    "RuntimeError: Every node should have a unique IP address. Got 1 nodes": (
        "unknown",
        "VLLM_HOST_IP",
    ),
    "RuntimeError: DP Coordinator process failed to report ZMQ addresses during startup.": (
        "unknown",
        "data_parallel_rpc_port",
    ),
    "ValueError: Target and draft model should have the same vocabulary size. Target model "
    "vocab_size=151936. Draft model vocab_size=128256.": ("unknown", "(128256)"),
    "torch.AcceleratorError: CUDA error: OS call failed or operation not supported on this OS": (
        "unknown",
        "pin memory",
    ),
    "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT": (
        "unknown",
        "(REMOTE_DISCONNECT)",
    ),
    "RuntimeError: Currently, block scaled fp8 gemm is not implemented for Blackwell": (
        "quant_unsupported_gpu",
        "another checkpoint format",
    ),
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 132096, "
    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.": (
        "unknown",
        "132096 bytes",
    ),
    "AssertionError: FlashInfer backend currently does not support attention sinks, please use": (
        "unknown",
        "attention sinks",
    ),
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED": ("unknown", "cuDNN"),
    "AssertionError: Torch not compiled with CUDA enabled": ("unknown", "without CUDA"),
    "RuntimeError: Found no NVIDIA driver on your system.": ("unknown", "--gpus all"),
    "OSError: [Errno 30] Read-only file system: '/root/.cache/vllm'": (
        "unknown",
        "/root/.cache/vllm is on",
    ),
    "OSError: [Errno 122] Disk quota exceeded": ("unknown", "quota"),
    "OSError: [Errno 116] Stale file handle": ("unknown", "network file system"),
    "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'": (
        "unknown",
        "may not use /root/.cache/huggingface/hub",
    ),
    "KeyError: 'model.layers.0.self_attn.qkv_proj.weight_scale_inv'": (
        "unknown",
        "holds model.layers.0.self_attn.qkv_proj.weight_scale_inv,",
    ),
    "AssertionError: Attempted to load weight (torch.Size([4096])) into parameter "
    "(torch.Size([1024]))": ("unknown", "wants torch.Size([1024]):"),
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:169] Connect timeout": (
        "nccl_init",
        "GLOO_SOCKET_IFNAME",
    ),
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[10.0.0.2]:45678": ("worker_killed", "another rank ended first"),
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error "
    "[10.0.0.2]:45678: Connection reset by peer": ("worker_killed", "another rank ended first"),
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
    "1800000ms for recv operation to complete": ("nccl_timeout", "after 1800 s"),
    "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
    "find address for: eth7": ("nccl_init", "no interface eth7"),
    "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:29550')": (
        "port_in_use",
        "port 29550 is taken: stop who listens there, or set data_parallel_rpc_port",
    ),
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
    "already in use": (
        "port_in_use",
        "port 29501 is taken: stop who listens there, or set master_port",
    ),
    "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8998): address "
    "already in use": (
        "port_in_use",
        "port 8998 is taken: stop who listens there, or set VLLM_MOONCAKE_BOOTSTRAP_PORT",
    ),
    "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 9000): address "
    "already in use": ("port_in_use", "port 9000 is taken: stop who listens there, or give this"),
    "zmq.error.ZMQError: Address already in use (addr='tcp://*:7777')": (
        "port_in_use",
        "port 7777 is taken",
    ),
    "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.9:29550')": (
        "bad_value",
        "10.0.0.9 is no address of this machine",
    ),
    "ValueError: VLLM_PORT 'tcp://10.43.2.9:8000' appears to be a URI.": (
        "bad_value",
        "enableServiceLinks",
    ),
}


@pytest.mark.parametrize("message", CASES)
def test_it_is_told_what_to_do(message: str) -> None:
    category, words = CASES[message]
    cause = classify(CONFIG + "\n" + core(message))
    assert cause is not None and cause.category == category
    assert words in cause.hint and cause.hint != NO_ADVICE
    assert "\n" not in cause.hint
