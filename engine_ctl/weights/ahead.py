"""The forecast of one profile's weights, with everything that has to be looked at for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.store import Store
from engine_ctl.weights import daemons, records, refusals
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.forecast import EngineAsks, WeightForecast, forecast_weights
from engine_ctl.weights.records import RankKey, WeightsRecord
from profiles.argv import serve_arguments
from profiles.model import Profile

STATE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """What an engine's `model_loader_extra_config` says, with vLLM's defaults. `explicit`: a
    socket or its directory is named, so vLLM does not look at the directory's permissions."""

    uses_cache: bool
    mode: str = "zero_copy"
    fallback: bool = True
    state_timeout_s: float = STATE_TIMEOUT_S
    explicit: bool = False
    draft: bool = False


def loader_config(profile: Profile) -> LoaderConfig:
    """The loader configuration that `vllm serve` would get for this profile."""
    arguments = serve_arguments(profile)
    extra: Mapping[str, Any] = arguments.get("model_loader_extra_config") or {}
    return LoaderConfig(
        uses_cache=arguments.get("load_format") == "ipc_cache",
        mode=str(extra.get("mode", "zero_copy")),
        fallback=bool(extra.get("fallback", True)),
        state_timeout_s=float(extra.get("state_timeout_s", STATE_TIMEOUT_S)),
        explicit=bool(extra.get("socket_path") or extra.get("socket_dir")),
        draft=bool(extra.get("is_draft", False)),
    )


@dataclass(frozen=True, slots=True)
class Ahead:
    """A forecast, and what an engine run started now should keep as its `weights.json`."""

    forecast: WeightForecast
    record: WeightsRecord


def weights_ahead(
    store: Store,
    profile: Profile,
    runtime: Runtime,
    answer: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    features: refusals.CacheFeatures | None = None,
    quantization: refusals.QuantizationSupport | None = None,
    mismatches: Mapping[str, DaemonStatus] | None = None,
    planned: Sequence[RankKey] = (),
) -> Ahead:
    """Forecast the weights of a start of `profile` now.

    `answer` is what the runtime said to `check` of its serve arguments, `env` the environment that
    the engine would get. `features`, `quantization`: the version's refusals are included when they
    are known. `mismatches`: answers of a standby's `daemon_status` about these keys. `planned`:
    keys of a daemon that will serve before the engine starts, where none does now."""
    config = loader_config(profile)
    keys = records.keys_of(answer)
    found: tuple[refusals.Refusal, ...] = ()
    if config.uses_cache and features is not None:
        asked = refusals.Asked(
            "serve",
            serve_arguments(profile),
            config.mode,
            env,
            is_moe=(answer.get("effective") or {}).get("is_moe"),
            quantization=quantization,
        )
        found = refusals.refusals(asked, features)
    asks = EngineAsks(
        uses_cache=config.uses_cache,
        keys=keys,
        mode=config.mode,
        fallback=config.fallback,
        state_timeout_s=config.state_timeout_s,
        refusals=found,
        draft=config.draft,
    )
    behind = {}
    if config.uses_cache:
        behind = daemons.behind(
            store,
            profile,
            keys,
            runtime.python,
            {**runtime.environment(), **env},
            not config.explicit,
            mismatches,
        )
        behind = daemons.with_planned(behind, planned)
    ours = next((b.run for b in behind.values() if b.run is not None), None)
    return Ahead(
        forecast_weights(asks, behind),
        WeightsRecord(
            keys=list(keys) if config.uses_cache else [],
            mode=config.mode,
            fallback=config.fallback,
            daemon=ours,
            note=str(answer.get("keys_note") or ""),
        ),
    )
