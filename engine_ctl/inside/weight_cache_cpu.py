"""vLLM general plugin: the weight cache (`vllm preload`, `--load-format ipc_cache`) on the CPU.

vLLM refuses its weight cache on platforms without CUDA IPC. This plugin supplies what is missing
there, shared memory in place of IPC handles, and leaves daemon, protocol, key and fall back to
vLLM itself. It does nothing off the CPU platform, on a version that it was not tried with, or
where one of the names that it hooks into is missing: vLLM's own refusal then stays in place.

A CPU has no device numbers of its own. `STOKER_CPU_DEVICES` ("2,3") names the numbers that local
ranks 0, 1, ... stand for, as CUDA_VISIBLE_DEVICES does for GPUs, so that several daemons can live
side by side in one socket directory. Default: the local rank itself.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

TRIED_VERSIONS = ("0.32", "0.33")
DEVICES_ENV = "STOKER_CPU_DEVICES"

_CACHE = "vllm.model_executor.model_loader.weight_cache"
_ENGINE_HOOKS = (
    ("vllm.model_executor.model_loader", "_LOAD_FORMAT_TO_MODEL_LOADER"),
    (f"{_CACHE}.ipc_loader", "IpcModelLoader._build_model"),
    (f"{_CACHE}.ipc_loader", "IpcModelLoader._connect"),
    (f"{_CACHE}.ipc_loader", "IpcModelLoader._send_release"),
    (f"{_CACHE}.ipc_loader", "IpcModelLoader.load_model"),
    (f"{_CACHE}.ipc_loader", "check_ipc_platform_support"),
    (f"{_CACHE}.ipc_loader", "get_current_device_uuid"),
    (f"{_CACHE}.ipc_loader", "check_ipc_quant_support"),
    (f"{_CACHE}.ipc_loader", "initialize_model"),
    (f"{_CACHE}.ipc_loader", "process_weights_after_loading"),
    (f"{_CACHE}.protocol", "TensorEntry"),
)
_DAEMON_HOOKS = (
    (f"{_CACHE}.daemon", "_run_daemon"),
    (f"{_CACHE}.daemon", "WeightCacheDaemon.get_model"),
    (f"{_CACHE}.daemon", "WeightCacheDaemon._handle_connection"),
    (f"{_CACHE}.daemon", "WeightCacheDaemon._handle_release"),
    (f"{_CACHE}.daemon", "export_entries"),
    (f"{_CACHE}.daemon", "get_current_device_uuid"),
    (f"{_CACHE}.daemon", "check_ipc_quant_support"),
    (f"{_CACHE}.daemon", "get_model_loader"),
    (f"{_CACHE}.daemon", "recv_msg"),
    (f"{_CACHE}.daemon", "send_msg"),
)

_device_index = 0


def set_device_index(local_rank: int) -> None:
    """Say which local rank this process is; device identities follow from it."""
    global _device_index
    _device_index = local_rank


def device_uuid(local_rank: int = 0) -> str:
    """Identity of the CPU "device" of a local rank (the counterpart of a GPU's UUID)."""
    numbers = [n.strip() for n in os.environ.get(DEVICES_ENV, "").split(",") if n.strip()]
    number = numbers[local_rank] if local_rank < len(numbers) else str(local_rank)
    return f"CPU-{number}"


def current_device_uuid() -> str:
    return device_uuid(_device_index)


def allow_platform() -> None:
    """Stands in for vLLM's platform check: on the CPU this plugin is the support."""


def missing_hooks(hooks: tuple[tuple[str, str], ...]) -> list[str]:
    """Names among `hooks` that this vLLM does not have."""
    missing = []
    for module_name, path in hooks:
        try:
            value: Any = importlib.import_module(module_name)
            for part in path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            missing.append(f"{module_name}.{path}")
    return missing


def tried(version: str) -> bool:
    return any(version == v or version.startswith(v + ".") for v in TRIED_VERSIONS)


def register() -> None:
    """Entry point of the plugin; harmless when called again."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import vllm.version
    from vllm.logger import init_logger

    logger = init_logger("vllm.stoker.weight_cache_cpu")
    version = str(vllm.version.__version__)
    if not tried(version):
        logger.info("Weight cache on the CPU: not tried with vLLM %s, left off", version)
        return
    missing = missing_hooks(_ENGINE_HOOKS)
    if missing:
        logger.info("Weight cache on the CPU: vLLM %s lacks %s, left off", version, missing)
        return
    _register_engine(current_platform)
    _register_preload(logger)


def _register_engine(platform: Any) -> None:
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.weight_cache import ipc_loader, protocol

    from . import weight_cache_cpu_loader as loader

    if model_loader._LOAD_FORMAT_TO_MODEL_LOADER.get("ipc_cache") is loader.CpuIpcModelLoader:
        return
    # Not through register_model_loader: it warns about the name being taken at every start,
    # and that warning would be read as something wrong with the start.
    model_loader._LOAD_FORMAT_TO_MODEL_LOADER["ipc_cache"] = loader.CpuIpcModelLoader
    protocol.check_ipc_platform_support = allow_platform
    ipc_loader.check_ipc_platform_support = allow_platform
    ipc_loader.get_current_device_uuid = current_device_uuid
    type(platform).get_device_uuid = classmethod(lambda cls, device_id=0: device_uuid(device_id))


def _register_preload(logger: Any) -> None:
    """Wrap `vllm preload`, whose modules only its own command line imports."""
    import sys

    preload: Any = sys.modules.get("vllm.entrypoints.cli.preload")
    command = getattr(preload, "PreloadSubcommand", None)
    if preload is None or command is None or hasattr(command.cmd, "stoker_original"):
        return
    original = command.cmd

    def cmd(args: Any) -> None:
        missing = missing_hooks(_DAEMON_HOOKS)
        if missing or not hasattr(preload, "check_ipc_platform_support"):
            logger.info("Weight cache on the CPU: this vLLM lacks %s, left off", missing)
        else:
            from . import weight_cache_cpu_daemon as ours

            preload.check_ipc_platform_support = allow_platform
            ours.install()
        original(args)

    cmd.stoker_original = original  # type: ignore[attr-defined]
    command.cmd = staticmethod(cmd)
