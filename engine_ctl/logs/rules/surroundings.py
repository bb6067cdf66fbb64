"""What can be said of errors that come from around vLLM: the GPU itself, libraries, the operating
system, packages, other engines. The category stays `unknown`; tried before `advice`."""

from __future__ import annotations

from engine_ctl.logs.rules.base import Rule, rule

SURROUNDINGS: tuple[Rule, ...] = (
    rule(
        "unknown",
        r"GPU is lost|fallen off the bus|Unable to determine the device handle for|"
        r"NVML_ERROR_GPU_IS_LOST|NVMLError_GpuIsLost",
        "a GPU does not answer any more (Xid 79 in dmesg): power the machine off and on, and check "
        "the card's power, seat and cooling when it comes again",
    ),
    rule(
        "unknown",
        r"uncorrectable ECC error|ECC_UNCORRECTABLE",
        "the GPU's memory has an error that it cannot correct: see nvidia-smi -q -d "
        "ECC,ROW_REMAPPER, reset or reboot, and have the card replaced when it comes again",
    ),
    rule(
        "unknown",
        r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)",
        "cuBLAS got no memory on the GPU, which is mostly full: lower gpu_memory_utilization, or "
        "stop who else holds it",
    ),
    rule(
        "unknown",
        r"CUBLAS_STATUS_(?P<status>NOT_SUPPORTED|INVALID_VALUE|EXECUTION_FAILED|ARCH_MISMATCH)",
        "cuBLAS refused a product ({status}): mostly another cuBLAS than torch's is found first; "
        "unset LD_LIBRARY_PATH, and reinstall nvidia-cublas of torch's version",
    ),
    rule(
        "unknown",
        r"custom_all_reduce(?:\.cuh)?[^\n]{0,40}(?:invalid argument|invalid resource|peer access)|"
        r"peer access is not supported between|cudaIpcOpenMemHandle",
        "these GPUs cannot reach each other's memory: set disable_custom_all_reduce: true; in a "
        "container share the ipc and pid namespaces, and leave expandable_segments out",
    ),
    rule(
        "unknown",
        r"all CUDA-capable devices are busy or unavailable",
        "another process owns the GPU exclusively, or it is in an error state: see nvidia-smi "
        "(compute mode, Xid) and stop its owner",
    ),
    rule(
        "unknown",
        r"operation not permitted when stream is capturing|"
        r"operation would make the legacy stream depend on a capturing|"
        r"operation failed due to a previous error during capture",
        "a kernel cannot be captured into a CUDA graph: set compilation_config: {cudagraph_mode: "
        "PIECEWISE} (or NONE), or another attention_backend",
    ),
    rule(
        "unknown",
        r"ibv_reg_mr|RLIMIT_MEMLOCK|max.?locked.?memory",
        "memory cannot be locked for RDMA: ulimit -l unlimited (docker: --ulimit memlock=-1, "
        "systemd: LimitMEMLOCK=infinity)",
    ),
    rule(
        "unknown",
        r"DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|\[Errno 12\]|"
        r"cudaHostAlloc[^\n]{0,60}(?:failed|out of memory)",
        "the host's memory is used up: lower what is kept there (kv_offloading_size, "
        "cpu_offload_gb, mm_processor_cache_gb, VLLM_CPU_KVCACHE_SPACE), or stop something",
    ),
    rule(
        "unknown",
        r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily|"
        r"BlockingIOError: \[Errno 11\]",
        "no more processes or threads are allowed: raise ulimit -u, systemd's TasksMax or the "
        "container's pids limit, and set OMP_NUM_THREADS to a few",
    ),
    rule(
        "unknown",
        r"version `?(?P<what>GLIBC(?:XX)?_[\d.]+)'? not found",
        "this wheel needs {what}, which this system is too old for: a newer distribution, or "
        "vLLM's container image",
    ),
    rule(
        "unknown",
        r"'_OpNamespace' '\w*' object has no attribute|No module named 'vllm\._\w+'|"
        r"Failed to import from vllm\._C",
        "vLLM's own kernels were not loaded: the wheel belongs to another torch, CUDA or platform; "
        "install vLLM and torch that belong together",
    ),
    rule(
        "unknown",
        r"numpy\.core\.multiarray failed to import|numpy\.dtype size changed|"
        r"compiled using NumPy 1\.x cannot be run",
        "a package was built against another NumPy than the installed one: install the NumPy that "
        "this vLLM asks for",
    ),
    rule(
        "unknown",
        r"cannot import name '(?P<what>\w+)' from 'transformers|"
        r"'\w*Tokenizer\w*' object has no attribute '(?P<attribute>\w+)'|"
        r"module 'transformers(?:\.\w+)*' has no attribute",
        "the installed transformers is of another age than this vLLM: install the version that "
        "vLLM asks for (pip check names it)",
    ),
    rule(
        "unknown",
        r"NIXL is not available|[Nn]ixl wheel",
        "the runtime lacks the package nixl, which this KV connector needs: install it there",
    ),
    rule(
        "unknown",
        r"compatibility hash mismatch",
        "prefill and decode engines differ: both need the same vLLM, model, dtype, KV cache type, "
        "block size and attention backend",
    ),
    rule(
        "unknown",
        r"DeepGEMM (?:backend )?is not (?:available|installed)",
        "the runtime lacks the package deep_gemm, or has an old one: install it there, or set "
        "VLLM_USE_DEEP_GEMM=0",
    ),
    rule(
        "unknown",
        r"Ray is not installed",
        "the runtime lacks the package ray: install it there, or set distributed_executor_backend: "
        "mp",
    ),
    rule(
        "unknown",
        r"Every node should have a unique IP address",
        "Ray's nodes do not tell addresses of their own: set VLLM_HOST_IP on each node to its own "
        "address, not in the profile that all share",
    ),
    rule(
        "unknown",
        r"same vocabulary size\. Target model vocab_size=(?P<target>\d+)\. Draft model "
        r"vocab_size=(?P<draft>\d+)",
        "the draft's vocabulary ({draft}) is not the model's ({target}): a draft that was made for "
        "this model",
    ),
    rule(
        "unknown",
        r"DP Coordinator process failed",
        "the process that coordinates data-parallel ranks ended: its own error is above, or a side "
        "port was taken (data_parallel_rpc_port)",
    ),
    rule(
        "unknown",
        r"default chat template is no longer allowed",
        "the tokenizer has no chat template: set chat_template to a .jinja of this model, or ask "
        "/v1/completions",
    ),
    rule(
        "unknown",
        r"OS call failed or operation not supported on this OS",
        "the driver could not pin memory of the host: under WSL it pins little, elsewhere raise "
        "ulimit -l (docker: --ulimit memlock=-1)",
    ),
    rule(
        "unknown",
        r"NIXL_ERR_(?P<what>\w+)",
        "NIXL has no way to the other engine ({what}): check that it runs, "
        "VLLM_NIXL_SIDE_CHANNEL_HOST, and UCX_TLS and UCX_NET_DEVICES for this network",
    ),
    rule(
        "unknown",
        r"out of resource: shared memory, Required: (?P<needs>\d+), Hardware limit: (?P<has>\d+)",
        "a Triton kernel wants {needs} bytes of the chip's shared memory and this GPU has {has}: "
        "another attention_backend or moe_backend, or a tuned configuration for this GPU "
        "(VLLM_TUNED_CONFIG_FOLDER)",
    ),
    rule(
        "unknown",
        r"(?P<backend>Flash\w+|Triton\w*|Cutlass\w*) backend currently does not support "
        r"(?P<what>[^\n,.]{1,100})",
        "{backend} cannot serve this model ({what}): name another attention_backend, or leave the "
        "choice to vLLM",
    ),
    rule(
        "unknown",
        r"CUDNN_STATUS_NOT_INITIALIZED|unable to find an engine to execute this computation",
        "cuDNN does not work here: mostly the GPU's memory is full (lower gpu_memory_utilization), "
        "else another cuDNN than torch's is found first (LD_LIBRARY_PATH)",
    ),
    rule(
        "unknown",
        r"Torch not compiled with CUDA enabled",
        "the runtime has a torch without CUDA: install the wheel that vLLM asks for",
    ),
    rule(
        "unknown",
        r"Found no NVIDIA driver|NVML Shared Library Not Found|NVMLError_LibraryNotFound",
        "no NVIDIA driver is visible here: install it, or give the container the GPUs (--gpus all "
        "with the NVIDIA runtime)",
    ),
    rule(
        "unknown",
        r"\[Errno 30\] Read-only file system(?:: '(?P<path>[^'\n]{1,300})')?",
        "{path} is on a file system that may only be read: point HF_HOME, VLLM_CACHE_ROOT or "
        "TMPDIR elsewhere",
    ),
    rule(
        "unknown",
        r"\[Errno 122\]|Disk quota exceeded",
        "the user's quota is used up: free space, or move HF_HOME or VLLM_CACHE_ROOT",
    ),
    rule(
        "unknown",
        r"\[Errno 116\]|Stale file handle",
        "a file on the network file system was replaced underneath: start again, and mount it anew "
        "when it goes on",
    ),
    rule(
        "unknown",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^'\n]{1,300})'",
        "this user may not use {path}: give it to the user, or point HF_HOME, VLLM_CACHE_ROOT or "
        "TMPDIR at a directory that is theirs",
    ),
    rule(
        "unknown",
        r"KeyError: '(?P<name>(?:model|layers|language_model|transformer|lm_head|visual)\.[\w.]+)'",
        "the checkpoint holds {name}, which the model does not have: another vLLM version, or a "
        "checkpoint that another tool quantized",
    ),
)
