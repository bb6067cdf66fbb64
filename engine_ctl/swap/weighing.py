"""What a start will find of its weights: vLLM's own fingerprints against the daemons."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import StokerError
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.store import Runtime
from engine_ctl.swap.starting import Prepared
from engine_ctl.weights import client
from engine_ctl.weights.ahead import loader_config, weights_ahead
from engine_ctl.weights.forecast import EngineAsks, WeightForecast, forecast_weights
from engine_ctl.weights.records import RankKey, WeightsRecord
from engine_ctl.weights.refusals import CacheFeatures, QuantizationSupport, support_said


@dataclass(frozen=True, slots=True)
class Weighed:
    """The expected verdict, and the record that a run started now would keep."""

    forecast: WeightForecast
    record: WeightsRecord | None = None
    problem: str = ""


def weigh(ctx: Context, prepared: Prepared, planned: Sequence[RankKey] = ()) -> Weighed:
    """Forecast the verdict of a prepared start. Never raises: `problem` says what was not known.
    `planned`: keys of a daemon that is made ready first."""
    profile, runtime = prepared.concrete, prepared.runtime
    if not loader_config(profile).uses_cache:
        return Weighed(forecast_weights(EngineAsks(uses_cache=False), {}))
    answer = msgspec.to_builtins(prepared.check) if prepared.check is not None else {}
    try:
        method = answer.get("effective", {}).get("quantization") or profile.args.get("quantization")
        found = weights_ahead(
            ctx.store,
            profile,
            runtime,
            answer,
            prepared.spec.env,
            features=features_for(ctx, runtime),
            quantization=(
                support_said(answer, str(method)) or quantization_for(ctx, runtime, str(method))
            )
            if method
            else None,
            planned=planned,
        )
    except StokerError as error:
        return Weighed(WeightForecast(None), problem=str(error))
    return Weighed(found.forecast, found.record)


def features_for(ctx: Context, runtime: Runtime) -> CacheFeatures:
    """What the runtime's weight cache can do; asked once per installation (seconds), then kept."""
    path = _cache(ctx, runtime, "features")
    known: CacheFeatures | None = _read(path, CacheFeatures)
    if known is None:
        known = client.features(runtime.python, runtime.environment())
        _keep(path, known)
    return known


def quantization_for(ctx: Context, runtime: Runtime, method: str) -> QuantizationSupport:
    """Whether a quantization method takes pre-processed weights in that runtime; kept as above."""
    path = _cache(ctx, runtime, f"quantization-{method.replace('/', '_')}")
    known: QuantizationSupport | None = _read(path, QuantizationSupport)
    if known is None:
        known = client.quantization(runtime.python, method, runtime.environment())
        _keep(path, known)
    return known


def _cache(ctx: Context, runtime: Runtime, what: str) -> Path:
    stamp = hashlib.sha256(f"{runtime.python}{runtime.stamp}".encode()).hexdigest()[:10]
    return ctx.dirs.cache / "weight-cache" / f"{what}-{runtime.version}-{stamp}.json"


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return atomic.read_record(path, kind)
    except atomic.CorruptRecord:
        return None


def _keep(path: Path, record: msgspec.Struct) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.write_record(path, record)
