"""The fingerprint under which vLLM keeps and looks for weights, for every local rank and role."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
from typing import Any

CACHE = "vllm.model_executor.model_loader.weight_cache"


def weight_cache_keys(config: Any, args: Any, kind: str) -> dict[str, Any]:
    """`{"keys": [...], "note": why there are none or fewer}` for an engine configuration.

    One key is `{role, rank, local_rank, device, socket, fields}`; `fields` are those of the
    installed `WeightCacheKey`, as text, None where vLLM has None. Nothing is read but headers of
    weight files. `device` and `socket` are None where the platform has no device identity.
    """
    try:
        protocol = importlib.import_module(f"{CACHE}.protocol")
        daemon = importlib.import_module(f"{CACHE}.daemon")
    except ModuleNotFoundError as error:
        return {"keys": [], "note": f"this vLLM has no weight cache ({error})"}
    try:
        daemon._reject_unsupported_parallelism(config.parallel_config)
        places = daemon.plan_local_ranks(config.parallel_config)
    except (AttributeError, TypeError, ValueError) as error:
        return {"keys": [], "note": f"no weight cache for this placement: {error}"}
    notes: list[str] = []
    keys = []
    for role, model_config, own in _roles(config, kind):
        draft = role == "draft"
        for local_rank, dp_rank, pp_rank, tp_rank in places:
            try:
                at = (dp_rank, pp_rank, tp_rank)
                fields = _fields(protocol, daemon, own, model_config, draft, at, kind)
            except Exception as error:
                notes.append(f"{role} rank {local_rank}: {type(error).__name__}: {error}")
                continue
            device = _device(local_rank)
            parallel = config.parallel_config
            stage = parallel.pipeline_parallel_size * parallel.tensor_parallel_size
            keys.append(
                {
                    "role": role,
                    "rank": dp_rank * stage + pp_rank * parallel.tensor_parallel_size + tp_rank,
                    "local_rank": local_rank,
                    "device": device,
                    "socket": _socket(protocol, config, args, kind, device, draft),
                    "fields": fields,
                }
            )
    return {"keys": keys, "note": "; ".join(notes)}


def _roles(config: Any, kind: str) -> list[tuple[str, Any, Any]]:
    """(role, model, configuration that it is loaded with) of what daemons hold, or are asked for.

    A draft has the target's configuration with what its speculative section overrides; an engine
    does not ask for one that has a loader of its own."""
    roles = [("target", config.model_config, config)]
    utils = importlib.import_module(f"{CACHE}.utils")
    speculative = config.speculative_config
    if not utils.is_draft_model_cacheable(speculative):
        return roles
    loader = getattr(speculative, "draft_load_config", None)
    if kind == "serve" and loader is not None and loader.load_format != "ipc_cache":
        return roles
    override = getattr(speculative, "apply_draft_overrides", None)
    own = config if override is None else override(config)
    return [*roles, ("draft", speculative.draft_model_config, own)]


def _fields(
    protocol: Any,
    daemon: Any,
    config: Any,
    model: Any,
    draft: bool,
    at: tuple[int, int, int],
    kind: str,
) -> dict[str, str | None]:
    """The key's fields as text. Offers every name that any version asks for, no more."""
    parallel = config.parallel_config
    dp_rank, pp_rank, tp_rank = at
    dp_size = parallel.data_parallel_size
    if hasattr(daemon, "get_engine_dp_placement"):
        dp_size, dp_rank = daemon.get_engine_dp_placement(config, dp_rank)
    elif kind == "serve" and not config.model_config.is_moe:
        # An engine runs data-parallel ranks of a dense model as engines of their own.
        dp_size, dp_rank = 1, 0
    build = protocol.WeightCacheKey.from_model_config
    offered = {
        "cache_config": config.cache_config,
        "tp_size": parallel.tensor_parallel_size,
        "pp_size": parallel.pipeline_parallel_size,
        "pp_rank": pp_rank,
        "dp_size": dp_size,
        "dp_rank": dp_rank,
        "is_draft": draft,
        "enable_expert_parallel": getattr(parallel, "enable_expert_parallel", False),
        "expert_placement_strategy": getattr(parallel, "expert_placement_strategy", "linear"),
        "kernel_config": getattr(config, "kernel_config", None),
    }
    offered["tp_rank"] = tp_rank
    wanted = set(inspect.signature(build).parameters) - {"model_config"}
    if unknown := wanted - set(offered):
        raise LookupError(f"this vLLM's key needs {', '.join(sorted(unknown))}")
    key = build(model, **{name: value for name, value in offered.items() if name in wanted})
    values = ((f.name, getattr(key, f.name)) for f in dataclasses.fields(key))
    return {name: None if value is None else str(value) for name, value in values}


def _device(local_rank: int) -> str | None:
    """The device's identity as vLLM names it: NVML, never CUDA."""
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_uuid(local_rank))
    except Exception:
        return None


def _socket(
    protocol: Any, config: Any, args: Any, kind: str, device: str | None, draft: bool
) -> str | None:
    if kind == "preload":
        explicit, directory = None, getattr(args, "weight_cache_socket_dir", None)
    else:
        extra = config.load_config.model_loader_extra_config or {}
        if isinstance(extra, str):
            extra = json.loads(extra)
        explicit, directory = extra.get("socket_path"), extra.get("socket_dir")
    if explicit is not None and not draft:
        return str(os.path.abspath(explicit))
    if device is None:
        return None
    return str(protocol.get_socket_path(device, directory, is_draft=draft))
