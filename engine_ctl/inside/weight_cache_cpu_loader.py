"""Engine side of the weight cache on the CPU: maps the daemon's raw weights copy-on-write.

What a CPU engine runs on is made by oneDNN and lives in its handles, so weights cannot be shared
after post-processing as on a GPU. The daemon keeps them as loaded; the engine builds the model on
the CPU, points each parameter at a map of the segment and post-processes as if it had read them
from disk.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.model_loader.weight_cache import ipc_loader, protocol
from vllm.utils.torch_utils import set_default_torch_dtype

from . import weight_cache_cpu as plugin
from . import weight_cache_cpu_backports as backports
from . import weight_cache_cpu_segment as segment

logger = init_logger("vllm.stoker.weight_cache_cpu")

PROTOCOL = 1


@dataclass
class SegmentEntry(protocol.TensorEntry):  # type: ignore[misc]
    """A tensor in the daemon's segment: `offset` in bytes, contiguous, `dtype` by name."""

    segment_id: str = ""
    offset: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        value = getattr(torch, self.dtype, None)
        if not isinstance(value, torch.dtype):
            raise RuntimeError(f"The weight cache daemon sent an unknown dtype {self.dtype!r}")
        return value

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.torch_dtype.itemsize)

    def rebuild(self, device_index: int) -> torch.Tensor:
        raise RuntimeError("A tensor of the CPU weight cache is mapped, not rebuilt")

    def map(self, fd: int) -> torch.Tensor:
        """The tensor as a copy-on-write map of the segment."""
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=self.torch_dtype)
        array = segment.map_private(fd, self.offset, self.nbytes)
        return torch.frombuffer(array, dtype=self.torch_dtype).view(self.shape)


class CpuIpcModelLoader(ipc_loader.IpcModelLoader):  # type: ignore[misc]
    """vLLM's weight cache loader with shared memory in place of CUDA IPC handles."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        plugin.set_device_index(_device_index(vllm_config.parallel_config))
        return super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

    def load_weights(self, model: Any, model_config: Any) -> None:
        # The model is packed by now; raw weights cannot be copied into it.
        raise RuntimeError("Weights cannot be reloaded in place on the CPU; restart the engine")

    def _build_model(self, vllm_config: Any, model_config: Any, prefix: str, state: Any) -> Any:
        device = torch.device("cpu")
        entries = _checked(state.entries)
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = ipc_loader.initialize_model(
                    vllm_config=vllm_config, model_config=model_config, prefix=prefix
                )
            ipc_loader.check_ipc_quant_support(model)
            fd = self._fetch_segment(entries)
            try:
                point_at_segment(model, entries, state.aliases, fd, copy=self.mode == "copy")
            finally:
                if fd is not None:
                    os.close(fd)
            for name, value in state.attrs.items():
                setattr(model, name, value)
            ipc_loader.process_weights_after_loading(model, model_config, device)
        if self.mode == "copy":
            self._send_release()
        elif hasattr(self, "_watch_daemon"):
            self._watch_daemon()
        else:
            backports.watch_daemon(self, logger)
        logger.info(
            "Mapped %d tensors from the weight cache daemon (%s mode)", len(entries), self.mode
        )
        return model.eval()

    def _fetch_segment(self, entries: dict[str, SegmentEntry]) -> int | None:
        """The daemon's segment as a descriptor of this process, checked for size and seals."""
        if not entries:
            return None
        wanted = {entry.segment_id for entry in entries.values()}
        with self._connect(self.state_timeout_s) as conn:
            protocol.send_msg(
                conn, {"cmd": "segment", "protocol": PROTOCOL, "segment_id": wanted.pop()}
            )
            response = protocol.recv_msg(conn)
            if wanted or response.get("status") != "ok":
                # Between the two requests the daemon was restarted or released.
                raise protocol.WeightCacheUnavailableError(
                    f"Weight cache daemon error: {response.get('message')}"
                )
            fd = segment.receive_descriptor(conn)
        try:
            segment.check_segment(fd, max(e.offset + e.nbytes for e in entries.values()))
        except BaseException:
            os.close(fd)
            raise
        return fd


def point_at_segment(
    model: torch.nn.Module,
    entries: dict[str, SegmentEntry],
    aliases: dict[str, str],
    fd: int | None,
    *,
    copy: bool,
) -> None:
    """Give every parameter and persistent buffer of `model` its data from the segment.

    Raises RuntimeError when the model and the segment do not have the same tensors: vLLM then
    falls back to disk. Non-persistent buffers (RoPE caches) follow from the engine's own
    configuration, never from the daemon's.
    """
    targets = persistent_tensors(model)
    filled: dict[int, torch.Tensor] = {}
    for name, entry in entries.items():
        target = targets.get(name)
        if target is None:
            raise RuntimeError(f"Cached tensor {name} has no place in the model")
        if tuple(target.shape) != tuple(entry.shape) or target.dtype != entry.torch_dtype:
            raise RuntimeError(
                f"Cached tensor {name} is {entry.dtype} {tuple(entry.shape)}, "
                f"the model wants {target.dtype} {tuple(target.shape)}"
            )
        assert fd is not None
        source = entry.map(fd)
        if copy:
            source = source.clone()
        if target.is_contiguous():
            target.data = source
        else:
            target.data.copy_(source)
        filled[id(target)] = target
    for name, canonical in aliases.items():
        target, origin = targets.get(name), targets.get(canonical)
        if target is None or origin is None or id(origin) not in filled:
            raise RuntimeError(f"Cached alias {name} of {canonical} has no place in the model")
        if target is not origin:
            target.data = origin.data
        filled[id(target)] = target
    missing = [name for name, tensor in targets.items() if id(tensor) not in filled]
    if missing:
        raise RuntimeError(f"The weight cache lacks {len(missing)} tensors, e.g. {missing[0]}")


def persistent_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, tied ones under each of their names."""
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules(remove_duplicate=False):
        for leaf, buffer in module._buffers.items():
            if buffer is not None and leaf not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{leaf}" if prefix else leaf] = buffer
    return tensors


def _checked(entries: dict[str, Any]) -> dict[str, SegmentEntry]:
    for name, entry in entries.items():
        if not isinstance(entry, SegmentEntry):
            raise RuntimeError(f"Cached tensor {name} does not come from a CPU daemon")
    return entries


def _device_index(parallel_config: Any) -> int:
    """The local rank over all data-parallel ranks of this node (as GPU workers count it)."""
    from vllm.distributed import get_world_group

    local_dp = parallel_config.data_parallel_rank_local
    if local_dp is None:
        local_dp = parallel_config.data_parallel_index
    stage = parallel_config.pipeline_parallel_size * parallel_config.tensor_parallel_size
    index: int = local_dp * stage + get_world_group().local_rank
    return index
