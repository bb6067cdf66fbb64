"""What vLLM will refuse, said before it costs a start. By what the installed version can do.

The facts about the version come out of the runtime itself (`CacheFeatures`), so a version that
nobody has seen yet is judged by its own code, not by a table of versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_ctl.model import Reason
from engine_ctl.weights import layout as layouts

PLUGIN_NAME = "stoker_weight_cache_cpu"


class CacheFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime's weight cache can do (`weight_cache_client.py features`).

    `counts_weights_in_budget`: gpu_memory_utilization includes the daemon's weights (0.32 on).
    `dense_dp`: daemon and engine agree on the key of data-parallel dense models (0.33 on)."""

    version: str
    platform: str
    preload: bool = False
    ipc_cache: bool = False
    seeding: bool = False
    key_fields: tuple[str, ...] = ()
    pipeline_parallel: bool = False
    watch: bool = False
    counts_weights_in_budget: bool = False
    refuses_eplb: bool = False
    dense_dp: bool = False
    platform_supported: bool = False
    platform_note: str = ""


class QuantizationSupport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a method's layers take pre-processed weights: all, some, none or unknown."""

    method: str
    support: str = "unknown"


def support_said(answer: Mapping[str, Any], method: str) -> QuantizationSupport | None:
    """What a check by vLLM said of a method beside the rest; None when it did not."""
    said = answer.get("quantization")
    if not isinstance(said, Mapping) or said.get("method") != method:
        return None
    return msgspec.convert(dict(said), QuantizationSupport)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing in the way. `fatal`: the start ends in spite of fallback; otherwise a warning."""

    reason: Reason
    fatal: bool = True

    @property
    def line(self) -> str:
        return f"{self.reason.line}: {self.reason.hint}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is about to be started. `kind` is preload or serve; `args` are its arguments by
    underscored long name; `mode` zero_copy or copy; `env` of the process; `is_moe` None where
    the model is not known."""

    kind: str
    args: Mapping[str, Any]
    mode: str = "zero_copy"
    env: Mapping[str, str] | None = None
    is_moe: bool | None = None
    quantization: QuantizationSupport | None = None


def refusals(
    asked: Asked, features: CacheFeatures, layout: layouts.Layout | None = None
) -> tuple[Refusal, ...]:
    """Everything that would stop the start (or should), fatal ones first; () when nothing."""
    found = _version(asked, features)
    if features.ipc_cache:
        found += _platform(asked, features)
        found += _arguments(asked, features)
        found += _quantization(asked)
    placed = layout or layouts.from_arguments(asked.args)
    found += [Refusal(reason) for reason in layouts.problems(placed)]
    return tuple(sorted(found, key=lambda refusal: not refusal.fatal))


def _refuse(category: str, line: str, hint: str, fatal: bool = True) -> Refusal:
    return Refusal(Reason(category, hint, line), fatal)


def _version(asked: Asked, features: CacheFeatures) -> list[Refusal]:
    if not features.ipc_cache:
        return [
            _refuse(
                "bad_value",
                f"vLLM {features.version} has no weight cache",
                "use a runtime with 0.31 or newer, or remove preload from the profile",
            )
        ]
    if asked.kind == "preload" and not features.preload:
        return [
            _refuse(
                "bad_argument",
                f"vLLM {features.version} has no preload command",
                "use a runtime with 0.31 or newer",
            )
        ]
    return []


def _platform(asked: Asked, features: CacheFeatures) -> list[Refusal]:
    plugins = (asked.env or {}).get("VLLM_PLUGINS")
    named = plugins is None or PLUGIN_NAME in [p.strip() for p in plugins.split(",")]
    if features.platform == "cpu" and not named:
        return [
            _refuse(
                "wc_fatal.platform",
                "VLLM_PLUGINS leaves out the weight cache for the CPU",
                f"add {PLUGIN_NAME} to it",
            )
        ]
    if not features.platform_supported:
        return [
            _refuse(
                "wc_fatal.platform",
                f"vLLM {features.version} has no weight cache on {features.platform}",
                "remove preload and load_format: ipc_cache from the profile",
            )
        ]
    return []


def _arguments(asked: Asked, features: CacheFeatures) -> list[Refusal]:
    args, found = asked.args, []
    if asked.kind == "preload" and args.get("load_format") == "ipc_cache":
        found.append(
            _refuse(
                "bad_value",
                "a daemon cannot load from a daemon (load_format: ipc_cache)",
                "remove load_format from preload.args",
            )
        )
    if _int(args.get("pipeline_parallel_size")) > 1 and not features.pipeline_parallel:
        found.append(
            _refuse(
                "bad_value",
                f"vLLM {features.version} has no weight cache with pipeline parallelism",
                "use a newer runtime or tensor parallelism alone",
            )
        )
    if args.get("enable_eplb"):
        found.append(
            _refuse(
                "wc_fatal.eplb",
                "expert load balancing moves experts that the daemon holds",
                "remove enable_eplb or preload",
                fatal=features.refuses_eplb,
            )
        )
    if args.get("enable_sleep_mode") and asked.mode == "zero_copy" and asked.kind == "serve":
        found.append(
            _refuse(
                "lint.wc_sleep_mode",
                "sleep mode cannot offload weights that belong to the daemon",
                "set preload.mode: copy or remove enable_sleep_mode",
            )
        )
    if asked.kind == "preload" and not features.seeding:
        seeds = sorted(name for name in args if name.startswith("seed_") and args[name] is not None)
        if seeds:
            found.append(
                _refuse(
                    "bad_argument",
                    f"vLLM {features.version} cannot seed daemons ({', '.join(seeds)})",
                    "use 0.33 or newer or remove them",
                )
            )
    dp = _int(args.get("data_parallel_size"))
    if dp > 1 and asked.is_moe is False and not features.dense_dp:
        found.append(
            _refuse(
                "wc_fallback.key_mismatch",
                f"vLLM {features.version} gives daemon and engine of a dense model different "
                "keys with data parallelism (dp_size)",
                "use 0.33 or newer: every start will load from disk",
                fatal=False,
            )
        )
    return found


def _quantization(asked: Asked) -> list[Refusal]:
    quantization = asked.quantization
    if quantization is None or quantization.support in ("all", "unknown"):
        return []
    if quantization.support == "some":
        return [
            _refuse(
                "wc_fatal.quant",
                f"some layers of {quantization.method} do not take pre-processed weights",
                "the start ends if the model has one of them",
                fatal=False,
            )
        ]
    return [
        _refuse(
            "wc_fatal.quant",
            f"quantization {quantization.method} does not take pre-processed weights",
            "remove preload from the profile: the start would end in spite of fallback",
        )
    ]


def budget(
    features: CacheFeatures,
    *,
    utilization: float,
    total: int,
    free: int,
    weights: int,
) -> Refusal | None:
    """Whether an engine fits beside the daemon's weights on one GPU. Bytes; `free` with the
    daemon running. Until 0.31 utilization had to fit into what is free; from 0.32 the daemon's
    weights count as part of it."""
    wanted = int(utilization * total)
    if features.counts_weights_in_budget:
        if weights > wanted:
            return _refuse(
                "weight_cache_budget",
                f"the daemon's {_gib(weights)} exceed the budget of {_gib(wanted)}",
                f"raise gpu_memory_utilization above {weights / total + 0.05:.2f}",
            )
        own = wanted - weights
        if own > free:
            return _refuse(
                "gpu_memory_busy",
                f"the engine wants {_gib(own)}{' beside the weights' if weights else ''}, "
                f"{_gib(free)} are free",
                f"lower gpu_memory_utilization to {(free + weights) / total - 0.01:.2f}",
            )
        return None
    if wanted > free:
        return _refuse(
            "weight_cache_budget",
            f"this version does not count the daemon's weights: it wants {_gib(wanted)}, "
            f"{_gib(free)} are free"
            if weights
            else f"the engine wants {_gib(wanted)}, {_gib(free)} are free",
            f"lower gpu_memory_utilization to {max(0.0, free / total - 0.01):.2f}",
        )
    return None


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _int(value: Any) -> int:
    return 1 if value is None else int(value)
