"""What differs between two profiles, and what each difference costs a running engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from profiles.compile_key import compiles, environment_compiles, is_compiled
from profiles.costs import (
    GPU_ENVIRONMENT,
    LIVE,
    NEW_RUNTIME,
    RELOAD,
    RESTART,
    drafts_from_weights,
    reloads,
)
from profiles.importing.secrets import is_secret, without_password
from profiles.model import EnvRef, Preload, Profile
from profiles.rules import as_map
from profiles.schema import ArgumentSchema, canonical, shipped
from profiles.values import same

MASK = "****"
_SPECULATION = ("speculative_config", "spec_model", "spec_method")
RANK = {LIVE: 0, RESTART: 1, RELOAD: 2, NEW_RUNTIME: 3}
_LIVE_KEYS = (
    "standby",
    "restart",
    "stop",
    "ready_timeout_s",
    "bench",
    "notes",
    "tags",
    "schema",
    "origin",
)
# Of a preload section: what only the engine reads, and what a running daemon keeps (it is used
# again by its weights' key, whatever else it was started with).
_DAEMON_SIDE = ("health_port", "seed_token")
_DAEMON_KEEPS = "from the daemon's next start on"
_ENGINE_SIDE = ("mode", "fallback", "connect_timeout_s", "state_timeout_s")
_OTHER_GPUS = "the weights are needed on other GPUs"
_BUDGET = "max_num_batched_tokens"
_NEXT_START = ("restart", "stop", "standby", "ready_timeout_s")
# Of a profile with a daemon: what the daemon loads by, and no key notices.
_LOADING = frozenset({"load_format", "ignore_patterns", "model_impl", "model_class_overrides"})


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
        *_arguments("args", before, after, schema),
        *_environment(before, after, schema),
        *_preload(before, after, schema),
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
        # The engine moves to a port of its own, or back.
        "front": (RESTART, False),
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
                        note="from the next start on" if key in _NEXT_START else "",
                    )
            continue
        note = _OTHER_GPUS if key == "gpus" else ""
        note = "from the next start on" if key in _NEXT_START else note
        yield Change(
            key=key,
            before=old or None,
            after=new or None,
            cost=price,
            compile_miss=compile_miss,
            note=note,
        )


def _arguments(
    prefix: str, before: Profile, after: Profile, schema: ArgumentSchema
) -> Iterator[Change]:
    """Differences of the engine's arguments (`args`) or the daemon's own (`preload.args`)."""
    daemon = prefix != "args"
    old, new = (_canonical(profile, daemon, schema) for profile in (before, after))
    drafted = drafts_from_weights(old) or drafts_from_weights(new)
    kept = before.preload is not None and after.preload is not None
    for name in dict.fromkeys((*old, *new)):
        argument = schema.find(name)
        default = argument.default if argument is not None and "." not in name else None
        left, right = old.get(name), new.get(name)
        was_now = [default if value is None else value for value in (left, right)]
        if same(was_now[0], was_now[1], argument):
            continue
        plain = name.partition(".")[0]
        both = bool(as_map(left)) and bool(as_map(right))
        weights = drafted or plain not in _SPECULATION
        note = _DAEMON_KEEPS if daemon else _argument_note(plain, kept)
        for key, was, now in _leaves(f"{prefix}.{name}", left, right):
            secret = is_secret(key.rpartition(".")[2]) or name == "watermark_config"
            inside = key.removeprefix(f"{prefix}.{plain}").strip(".").partition(".")[0]
            engine_key = key.removeprefix("preload.")
            budget = plain == "enable_chunked_prefill" and "max_num_batched_tokens" in {
                **old,
                **new,
            }
            yield Change(
                key=key,
                before=MASK if secret and was is not None else without_passwords(was),
                after=MASK if secret and now is not None else without_passwords(now),
                cost=RELOAD
                if weights and reloads(engine_key, plain, schema.version)
                else LIVE
                if daemon
                else RESTART,
                compile_miss=not daemon
                and not budget
                and compiles(plain, argument, inside if both or "." in name else ""),
                note="" if daemon and reloads(engine_key, plain, schema.version) else note,
            )


def _canonical(profile: Profile, daemon: bool, schema: ArgumentSchema) -> dict[str, Any]:
    args: Mapping[str, Any] = profile.args
    if daemon:
        args = profile.preload.args if profile.preload is not None else {}
    return dict(canonical(name, value, schema) for name, value in args.items())


def _argument_note(name: str, daemon_stays: bool) -> str:
    if name == "device_ids":
        return _OTHER_GPUS
    if name == "config":
        return "what the file says is not known here"
    if name in _LOADING and daemon_stays:
        return "a daemon that has loaded already keeps what it has: stop it first"
    return ""


def _leaves(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Differences inside maps (or their JSON text), one line each."""
    left, right = as_map(old), as_map(new)
    if (left or right) and all(value is None or as_map(value) for value in (old, new)):
        for name in dict.fromkeys((*left, *right)):
            if not same(left.get(name), right.get(name)):
                yield from _leaves(f"{key}.{name}", left.get(name), right.get(name))
    else:
        yield key, old, new


def _environment(before: Profile, after: Profile, schema: ArgumentSchema) -> Iterator[Change]:
    from profiles.rules_environment import known_variables

    known = known_variables(schema.version)
    for name in dict.fromkeys((*before.env, *after.env)):
        old, new = before.env.get(name), after.env.get(name)
        if old != new:
            gpus = name in GPU_ENVIRONMENT
            yield Change(
                key=f"env.{name}",
                before=masked(name, old),
                after=masked(name, new),
                cost=RELOAD if gpus else RESTART,
                compile_miss=environment_compiles(name, known),
                note=_OTHER_GPUS if gpus else "",
            )


def _preload(
    old_profile: Profile, new_profile: Profile, schema: ArgumentSchema
) -> Iterator[Change]:
    before, after = old_profile.preload, new_profile.preload
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
            yield from _arguments("preload.args", old_profile, new_profile, schema)
            continue
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Change(
                key=f"preload.{name}",
                before=masked(name, old),
                after=masked(name, new),
                cost=RESTART if name in _ENGINE_SIDE else LIVE if name in _DAEMON_SIDE else RELOAD,
                note=_DAEMON_KEEPS if name in _DAEMON_SIDE else "",
            )


def masked(name: str, value: Any) -> Any:
    """A value as it may be shown: references by name, secrets and passwords in URLs as ****."""
    if isinstance(value, EnvRef):
        return f"from env {value.from_env}" if value.from_env else f"from file {value.from_file}"
    if isinstance(value, str) and value and is_secret(name):
        return MASK
    return without_passwords(value)


def without_passwords(value: Any) -> Any:
    """The value with **** for passwords in a URL that it is or holds."""
    if isinstance(value, str):
        return without_password(value, MASK)
    return [without_passwords(item) for item in value] if isinstance(value, list) else value


def _compiled(profile: Profile, schema: ArgumentSchema) -> bool:
    return is_compiled(_canonical(profile, False, schema))
