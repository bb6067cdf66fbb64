"""What a start will find of its weights: vLLM's own fingerprints against the daemons."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import StokerError
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.store import Runtime
from engine_ctl.swap.starting import Prepared
from engine_ctl.weights import client, content, daemons
from engine_ctl.weights.forecast import EngineAsks, WeightForecast, forecast_weights
from engine_ctl.weights.records import RankKey, WeightsRecord, keys_of
from engine_ctl.weights.refusals import Asked, CacheFeatures, QuantizationSupport, refusals
from profiles.argv import serve_arguments
from profiles.model import Profile


@dataclass(frozen=True, slots=True)
class Weighed:
    """The expected verdict, and the record that a run started now would keep."""

    forecast: WeightForecast
    record: WeightsRecord | None = None
    problem: str = ""


def weigh(ctx: Context, prepared: Prepared) -> Weighed:
    """Forecast the verdict of a prepared start. Never raises: `problem` says what was not known."""
    profile, runtime = prepared.profile, prepared.runtime
    arguments = serve_arguments(profile)
    if str(_argument(arguments, "load_format")) != "ipc_cache":
        return Weighed(forecast_weights(EngineAsks(uses_cache=False), {}))
    try:
        keys = keys_of(msgspec.to_builtins(prepared.check)) if prepared.check else ()
        asks = _asks(ctx, prepared, arguments, keys)
        env = {**prepared.spec.env}
        strict = _uses_default_directory(arguments)
        behind = daemons.behind(ctx.store, profile, keys, runtime.python, env, strict)
        forecast = forecast_weights(asks, behind)
    except StokerError as error:
        return Weighed(WeightForecast(None), problem=str(error))
    run = next((b.run for b in behind.values() if b.run), None)
    record = WeightsRecord(
        keys=list(keys), content=_content(profile, env), mode=asks.mode, daemon=run
    )
    return Weighed(forecast, record)


def _argument(arguments: dict[str, Any], name: str) -> Any:
    return arguments.get(name, arguments.get(name.replace("_", "-")))


def _extra(arguments: dict[str, Any]) -> dict[str, Any]:
    found = _argument(arguments, "model_loader_extra_config")
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found)
        except msgspec.DecodeError:
            found = None
    return found if isinstance(found, dict) else {}


def _uses_default_directory(arguments: dict[str, Any]) -> bool:
    extra = _extra(arguments)
    return not (extra.get("socket_dir") or extra.get("socket_path"))


def _asks(
    ctx: Context, prepared: Prepared, arguments: dict[str, Any], keys: tuple[RankKey, ...]
) -> EngineAsks:
    extra = _extra(arguments)
    runtime = prepared.runtime
    method = _argument(arguments, "quantization")
    if prepared.check is not None:
        method = prepared.check.effective.get("quantization", method)
    support = quantization_for(ctx, runtime, str(method)) if method else None
    asked = Asked("serve", arguments, env=prepared.spec.env, quantization=support)
    timeout = extra.get("state_timeout_s")
    return EngineAsks(
        uses_cache=True,
        keys=keys,
        mode=str(extra.get("mode", "zero_copy")),
        fallback=bool(extra.get("fallback", True)),
        state_timeout_s=float(timeout) if timeout is not None else 300.0,
        refusals=tuple(refusals(asked, features_for(ctx, runtime))),
    )


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


def _content(profile: Profile, env: dict[str, str]) -> content.ContentRecord | None:
    revision = profile.args.get("revision")
    where = content.model_directory(profile.model, str(revision) if revision else None, env)
    return None if where is None else content.record(profile.model, where)
