"""Daemon side of the weight cache on the CPU: raw weights in one sealed segment."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.model_loader.weight_cache import daemon
from vllm.utils.torch_utils import set_default_torch_dtype

from . import weight_cache_cpu as plugin
from . import weight_cache_cpu_backports as backports
from . import weight_cache_cpu_segment as segment
from .weight_cache_cpu_loader import PROTOCOL, SegmentEntry, persistent_tensors

logger = init_logger("vllm.stoker.weight_cache_cpu")

CLIENT_TIMEOUT_S = 10.0


_vllm_run_daemon = daemon._run_daemon


def install() -> None:
    """Make `vllm preload` start its daemons through `run_daemon` (in the launcher)."""
    daemon._run_daemon = run_daemon


def run_daemon(*args: Any, **kwargs: Any) -> None:
    """Entry point of a daemon process, in place of vLLM's; pickled by name by its parent."""
    plugin.register()
    backports.configure_child_logging(args, kwargs)
    # Ranks that name different groups talk over gloo alone: a daemon needs no shared-memory
    # collectives, whose segments in /dev/shm outlive a SIGKILL.
    os.environ["VLLM_DIST_IDENT"] = f"stoker-daemon-{os.getpid()}"
    _stand_in_for_accelerator()
    daemon.get_current_device_uuid = plugin.current_device_uuid
    daemon.WeightCacheDaemon = CpuWeightCacheDaemon
    daemon.export_entries = lambda model: model.export()
    if hasattr(daemon, "exported_weight_bytes"):
        daemon.exported_weight_bytes = lambda model: _held_bytes()
    _vllm_run_daemon(*args, **kwargs)


class Held(torch.nn.Module):  # type: ignore[misc]
    """What the daemon keeps in place of the model: where each tensor is in the segment."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.writer = segment.SegmentWriter(name)
        self.segment_id = os.urandom(16).hex()
        self.entries: dict[str, SegmentEntry] = {}
        self.aliases: dict[str, str] = {}
        self.fd = -1

    def export(self) -> tuple[dict[str, SegmentEntry], dict[str, str]]:
        return self.entries, self.aliases


_held: Held | None = None


def _held_bytes() -> int:
    return 0 if _held is None else _held.writer.size


class CpuWeightCacheDaemon(daemon.WeightCacheDaemon):  # type: ignore[misc]
    """vLLM's daemon for one rank, holding a memory segment instead of GPU memory."""

    def get_model(self) -> torch.nn.Module:
        global _held
        loader = daemon.get_model_loader(self.vllm_config.load_config)
        with set_default_torch_dtype(self.model_config.dtype):
            with torch.device("cpu"):
                model = loader.create_model(self.vllm_config, self.model_config)
            daemon.check_ipc_quant_support(model)
            loader.load_weights(model, self.model_config)
        _held = move_to_segment(model, f"stoker-weights-{self.role}-{self.global_rank}")
        return _held

    def _handle_connection(self, conn: Any) -> None:
        # One client at a time is served: one that connects and says nothing must not hold up all.
        conn.settimeout(CLIENT_TIMEOUT_S)
        backports.handle_connection(self, conn, super()._handle_connection, daemon, _extra)

    def _handle_release(self, conn: Any) -> None:
        global _held
        if _held is not None:
            os.close(_held.fd)
            _held = None
        super()._handle_release(conn)


def _extra(conn: Any, request: dict[str, Any]) -> bool:
    """Answer the requests that only this plugin knows. True when `request` was one."""
    if request.get("cmd") != "segment":
        return False
    if request.get("protocol") != PROTOCOL:
        answer = f"The daemon speaks version {PROTOCOL} of the segment request"
    elif _held is None:
        answer = "Weights were released"
    elif request.get("segment_id") != _held.segment_id:
        answer = "The daemon was restarted meanwhile"
    else:
        daemon.send_msg(conn, {"status": "ok"})
        segment.send_descriptor(conn, _held.fd)
        return True
    daemon.send_msg(conn, {"status": "error", "message": answer})
    return True


def move_to_segment(model: torch.nn.Module, name: str) -> Held:
    """Write the weights of `model` to a sealed segment, freeing each as it is written."""
    held = Held(name)
    canonical: dict[int, str] = {}
    for key, tensor in persistent_tensors(model).items():
        first = canonical.setdefault(id(tensor), key)
        if first != key:
            held.aliases[key] = first
            continue
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        held.entries[key] = SegmentEntry(
            kind="param" if isinstance(tensor, torch.nn.Parameter) else "buffer",
            segment_id=held.segment_id,
            offset=held.writer.append(memoryview(raw)),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        tensor.data = torch.empty(0, dtype=tensor.dtype)
    held.fd = held.writer.seal()
    for attribute, value in daemon.export_model_attrs(model).items():
        setattr(held, attribute, value)
    return held


def _stand_in_for_accelerator() -> None:
    """Answer what the daemon asks of torch.accelerator, which has no CPU."""
    accelerator: Any = torch.accelerator
    accelerator.set_device_index = plugin.set_device_index
    accelerator.current_device_index = lambda: plugin._device_index
    accelerator.empty_cache = lambda: None
    accelerator.synchronize = lambda *args: None
    accelerator.memory_allocated = lambda *args: _held_bytes()
    accelerator.memory_reserved = lambda *args: _held_bytes()
    accelerator.get_memory_info = _memory_info


def _memory_info(*_args: Any) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
