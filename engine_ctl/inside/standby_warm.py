"""Import what an engine needs, without touching a GPU, and say what that cost."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import pkgutil
import sys
import time
from typing import Any

from engine_ctl.inside.probe_check import cuda_initialized
from engine_ctl.inside.probe_schema import build_parser, platform_name

COMMON = (
    "vllm",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.download_kernels",
    "vllm.entrypoints.cli.preload",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.snapshot",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.detokenizer",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.structured_output",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.model_loader.weight_cache.ipc_loader",
    "vllm.model_executor.model_loader.weight_cache.daemon",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.compilation.backends",
    "vllm.compilation.decorators",
    "vllm.compilation.wrapper",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.triton_utils.dispatcher",
    "vllm.tokenizers",
    "vllm.renderers.hf",
    "vllm.transformers_utils.chat_templates.registry",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._functorch.aot_autograd",
    "transformers",
    "transformers.models.auto",
    "transformers.tokenization_utils_fast",
    "transformers.generation.configuration_utils",
    "tokenizers",
    "safetensors.torch",
    "uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "setproctitle",
    "engine_ctl.inside.standby_become",
)
# what the API server imports when it builds its routes
SERVER = "vllm.entrypoints"
SERVER_MODULES = ("api_router", "serving", "batch_serving", "metrics", "factories", "register")

BY_PLATFORM = {
    "cpu": (
        "vllm.v1.worker.cpu_worker",
        "vllm.v1.worker.cpu_model_runner",
        "vllm.v1.worker.cpu.model_runner",
        "vllm.v1.attention.backends.cpu_attn",
    ),
    "cuda": (
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.attention.backends.flash_attn",
        "vllm.v1.attention.backends.flashinfer",
        "vllm.v1.attention.backends.triton_attn",
        "vllm.distributed.device_communicators.cuda_communicator",
        "vllm.distributed.device_communicators.pynccl",
        "triton",
    ),
    "rocm": (
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.attention.backends.triton_attn",
        "vllm.v1.attention.backends.rocm_attn",
        "triton",
    ),
}


class Warm:
    """What was imported and what it cost; made once, before the first fork."""

    def __init__(self) -> None:
        self.imported: list[str] = []
        self.failed: dict[str, str] = {}
        self.seconds = 0.0
        self.platform = "unknown"
        self.version = ""
        self.modules = 0
        self.devices: list[dict[str, Any]] = []
        self.features: dict[str, Any] = {}

    def up(self, models: list[str]) -> None:
        """Import, build both parsers once (they fill caches), look at devices, freeze the heap.

        `models` are directories or names whose architecture should be ready to load."""
        began = time.monotonic()
        self.look()
        for name in (*COMMON, *BY_PLATFORM.get(self.platform, ())):
            self._import(name)
        self._server()
        for model in models:
            self._model(model)
        self._forget_said_once()
        self.modules = len(sys.modules)
        gc.collect()
        gc.freeze()
        self.seconds = round(time.monotonic() - began, 3)

    def look(self) -> None:
        """Version, platform, features and devices, with no more imports than that takes."""
        import vllm
        from vllm.platforms import current_platform

        self.version = str(vllm.__version__)
        self.platform = platform_name(current_platform)
        self._parsers()
        self.devices = _devices(self.platform)

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            self.imported.append(name)

    def _server(self) -> None:
        """Routers and handlers of every API; where they are differs from version to version."""
        package = importlib.import_module(SERVER)
        for module in pkgutil.walk_packages(package.__path__, f"{SERVER}.", lambda _: None):
            if module.name.rpartition(".")[2] in SERVER_MODULES:
                self._import(module.name)

    def _parsers(self) -> None:
        flags: list[str] = []
        for kind in ("serve", "preload"):
            try:
                parser = build_parser(kind)[1]
            except LookupError:
                self.features[kind] = False
            else:
                self.features[kind] = True
                if kind == "serve":
                    flags = [o for a in parser._actions for o in a.option_strings]
        for name, module in (
            ("snapshot", "vllm.entrypoints.cli.snapshot"),
            ("ipc_cache", "vllm.model_executor.model_loader.weight_cache.protocol"),
        ):
            try:
                self.features[name] = importlib.util.find_spec(module) is not None
            except ModuleNotFoundError:
                self.features[name] = False
        self.features["flags"] = sorted(flag for flag in flags if flag.startswith("--"))

    def _model(self, model: str) -> None:
        """Import the class that implements a local model, so that loading starts at once."""
        import json

        from vllm.model_executor.models.registry import ModelRegistry

        try:
            with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
        except (OSError, ValueError):
            return
        for architecture in config.get("architectures") or ():
            entry = ModelRegistry.models.get(architecture)
            module = getattr(entry, "module_name", None)
            if module:
                self._import(module)
        kind = str(config.get("model_type", "")).replace("-", "_")
        if kind.isidentifier():
            self._import(f"transformers.models.{kind}.configuration_{kind}")

    def _forget_said_once(self) -> None:
        """What vLLM logs once per process was logged here: let the engine say it again."""
        logger = sys.modules.get("vllm.logger")
        for name in ("debug", "info", "warning", "error"):
            with contextlib.suppress(AttributeError):
                getattr(logger, f"_print_{name}_once").cache_clear()


def threads() -> list[str]:
    """Names of this process's threads; one is what a fork wants."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names


def memory() -> dict[str, int | None]:
    """Bytes: proportional and resident set, and what no other process shares (Linux ≥ 4.14)."""
    wanted = {"Pss": "pss", "Rss": "rss", "Private_Dirty": "private_dirty"}
    found: dict[str, int | None] = dict.fromkeys(wanted.values())
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup") as file:
        for line in file:
            key, _, rest = line.partition(":")
            if key in wanted:
                found[wanted[key]] = int(rest.split()[0]) * 1024
    return found


def _devices(platform: str) -> list[dict[str, Any]]:
    """Devices by NVML or procfs; no CUDA context. Empty where nothing says without one."""
    if platform == "cpu":
        return [{"index": 0, "name": _cpu_name(), "uuid": None, "memory": _host_memory()}]
    if platform != "cuda":
        return []
    try:
        from vllm.utils.import_utils import import_pynvml

        nvml = import_pynvml()
        nvml.nvmlInit()
    except Exception:
        return []
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            item: dict[str, Any] = {"index": index, "name": None, "uuid": None, "memory": None}
            for key, call in (("name", "Name"), ("uuid", "UUID")):
                with contextlib.suppress(Exception):
                    value = getattr(nvml, f"nvmlDeviceGet{call}")(handle)
                    item[key] = value.decode() if isinstance(value, bytes) else value
            with contextlib.suppress(Exception):
                item["memory"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(item)
    finally:
        nvml.nvmlShutdown()
    return found


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "cpu"


def _host_memory() -> int | None:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) * 1024
    return None


__all__ = ["Warm", "cuda_initialized", "memory", "threads"]
