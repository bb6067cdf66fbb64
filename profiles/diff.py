"""What differs between two profiles, and what each difference costs a running engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from profiles.costs import (
    LIVE,
    NEW_RUNTIME,
    RELOAD,
    RESTART,
    compiles,
    drafts_from_weights,
    reloads,
)
from profiles.importing.secrets import is_secret
from profiles.model import EnvRef, Preload, Profile
from profiles.rules import as_map
from profiles.schema import ArgumentSchema, canonical, shipped
from profiles.values import same

MASK = "****"
_SPECULATION = ("speculative_config", "spec_model", "spec_method")
RANK = {LIVE: 0, RESTART: 1, RELOAD: 2, NEW_RUNTIME: 3}
_LIVE_KEYS = (
    "standby",
    "front",
    "restart",
    "stop",
    "ready_timeout_s",
    "bench",
    "notes",
    "tags",
    "schema",
    "origin",
)
# Of a preload section: what only the engine reads.
_ENGINE_SIDE = ("mode", "fallback", "connect_timeout_s", "state_timeout_s")
# vLLM leaves these out of the key of its torch.compile cache.
_COMPILE_NEUTRAL_ENV = ("HF_", "HUGGING", "VLLM_API_KEY", "VLLM_LOGGING", "VLLM_CACHE", "CUDA_")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `before` and `after` are None where the key is absent; secrets are masked.

    `cost`: live (nothing restarts), restart (weights stay with the daemon), reload (weights are
    loaded again), new runtime. `compile_miss`: the torch.compile cache has no entry for it yet,
    unless one was made by an earlier run with the same values."""

    key: str
    before: Any
    after: Any
    cost: str
    compile_miss: bool = False
    note: str = ""


def diff(
    before: Profile, after: Profile, schema: ArgumentSchema | None = None
) -> tuple[Change, ...]:
    """Differences by parsed value (0.90 is .9; dashes, aliases, JSON order do not count; a value
    that is vLLM's default counts like none), dearest first. `schema` is the runtime's."""
    schema = schema or shipped()
    changes = [
        *_top(before, after),
        *_arguments("args", before.args, after.args, schema),
        *_environment(before, after),
        *_preload(before.preload, after.preload, schema),
    ]
    if not _compiled(after, schema):
        changes = [msgspec.structs.replace(change, compile_miss=False) for change in changes]
    return tuple(sorted(changes, key=lambda change: -RANK[change.cost]))


def cost(changes: tuple[Change, ...]) -> str | None:
    """The dearest class among changes, None when nothing changed."""
    return max((change.cost for change in changes), key=RANK.__getitem__, default=None)


def _top(before: Profile, after: Profile) -> Iterator[Change]:
    costs = {
        "runtime": (NEW_RUNTIME, True),
        "model": (RELOAD, True),
        "gpus": (RELOAD, False),
        "served_name": (RESTART, False),
        "host": (RESTART, False),
        "port": (RESTART, False),
    }
    for key in (*costs, *_LIVE_KEYS):
        old, new = (
            msgspec.to_builtins(getattr(before, key)),
            msgspec.to_builtins(getattr(after, key)),
        )
        if old == new:
            continue
        price, compile_miss = costs.get(key, (LIVE, False))
        if key == "gpus" and len(before.gpus) != len(after.gpus):
            compile_miss = False
        if isinstance(old, dict) and isinstance(new, dict):
            for name in dict.fromkeys((*old, *new)):
                if old.get(name) != new.get(name):
                    yield Change(
                        key=f"{key}.{name}",
                        before=old.get(name),
                        after=new.get(name),
                        cost=price,
                        note="from the next start on" if key in ("restart", "stop") else "",
                    )
            continue
        note = "the weights are needed on other GPUs" if key == "gpus" else ""
        yield Change(
            key=key,
            before=old or None,
            after=new or None,
            cost=price,
            compile_miss=compile_miss,
            note=note,
        )


def _arguments(
    prefix: str, before: Mapping[str, Any], after: Mapping[str, Any], schema: ArgumentSchema
) -> Iterator[Change]:
    old = dict(canonical(name, value, schema) for name, value in before.items())
    new = dict(canonical(name, value, schema) for name, value in after.items())
    drafted = drafts_from_weights(old) or drafts_from_weights(new)
    for name in dict.fromkeys((*old, *new)):
        argument = schema.find(name)
        default = argument.default if argument is not None and "." not in name else None
        left, right = old.get(name), new.get(name)
        was_now = [default if value is None else value for value in (left, right)]
        if same(was_now[0], was_now[1], argument):
            continue
        for key, was, now in _leaves(f"{prefix}.{name}", left, right):
            secret = is_secret(key.rpartition(".")[2]) or name == "watermark_config"
            plain = name.partition(".")[0]
            daemon = prefix != "args"
            weights = drafted or plain not in _SPECULATION
            yield Change(
                key=key,
                before=MASK if secret and was is not None else was,
                after=MASK if secret and now is not None else now,
                cost=RELOAD
                if daemon or (weights and reloads(key, plain, schema.version))
                else RESTART,
                compile_miss=not daemon and compiles(plain, argument),
            )


def _leaves(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Differences inside maps (or their JSON text), one line each."""
    left, right = as_map(old), as_map(new)
    if (left or right) and all(value is None or as_map(value) for value in (old, new)):
        for name in dict.fromkeys((*left, *right)):
            if not same(left.get(name), right.get(name)):
                yield from _leaves(f"{key}.{name}", left.get(name), right.get(name))
    else:
        yield key, old, new


def _environment(before: Profile, after: Profile) -> Iterator[Change]:
    for name in dict.fromkeys((*before.env, *after.env)):
        old, new = before.env.get(name), after.env.get(name)
        if old != new:
            yield Change(
                key=f"env.{name}",
                before=masked(name, old),
                after=masked(name, new),
                cost=RESTART,
                compile_miss=name.startswith("VLLM_") and not name.startswith(_COMPILE_NEUTRAL_ENV),
            )


def _preload(
    before: Preload | None, after: Preload | None, schema: ArgumentSchema
) -> Iterator[Change]:
    if before is None or after is None:
        if before is not after:
            yield Change(
                key="preload",
                before=None if before is None else before.mode,
                after=None if after is None else after.mode,
                cost=RELOAD,
                note="weights go to a daemon" if before is None else "weights leave the daemon",
            )
        return
    for name in Preload.__struct_fields__:
        if name == "args":
            yield from _arguments("preload.args", before.args, after.args, schema)
            continue
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Change(
                key=f"preload.{name}",
                before=masked(name, old),
                after=masked(name, new),
                cost=RESTART if name in _ENGINE_SIDE else RELOAD,
            )


def masked(name: str, value: Any) -> Any:
    """A value as it may be shown: references by name, secrets as ****."""
    if isinstance(value, EnvRef):
        return f"from env {value.from_env}" if value.from_env else f"from file {value.from_file}"
    return MASK if isinstance(value, str) and value and is_secret(name) else value


def _compiled(profile: Profile, schema: ArgumentSchema) -> bool:
    args = dict(canonical(name, value, schema) for name, value in profile.args.items())
    return args.get("enforce_eager") is not True and str(args.get("optimization_level")) != "0"
