"""Operations on preload units: start, stop, reload, release; and what is behind a socket.

The runtime is asked through `Check`: a function that takes argument words (`["preload", …]`) and
an environment and returns the standby's (or the one-shot probe's) answer to `check`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine_ctl.errors import Busy, Failed, NotFound, StokerError
from engine_ctl.model import Kind, Reason
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state import events
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import exec_limits
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import Stopped, settle_unbegun
from engine_ctl.supervise.stop import stop as end
from engine_ctl.weights import client, content, records, refusals, sights, socket_dir, sockets, spec
from engine_ctl.weights.content import ContentRecord
from engine_ctl.weights.forecast import DaemonBehind
from engine_ctl.weights.records import RankKey, WeightsRecord
from profiles.argv import preload_arguments
from profiles.model import Profile
from profiles.schema import ArgumentSchema

Check = Callable[[list[str], Mapping[str, str]], Mapping[str, Any]]
Begin = Callable[[Run], object]
"""Starts the process of a run: `launch`, or a standby's fork."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A daemon that is to be started: its unit, profile (with a health port) and runtime.
    `features` None: not asked, the version's refusals are left to vLLM. `support` says whether a
    quantization method's layers take pre-processed weights, `room` why those of a planned record
    surely do not fit (with the run of the daemon that makes place for it). `needs` reads how many
    bytes a rank's weights take at least, None where that is not known."""

    unit: str
    profile: Profile
    runtime: Runtime
    schema: ArgumentSchema | None = None
    features: refusals.CacheFeatures | None = None
    by: str = ""
    support: Callable[[str], refusals.QuantizationSupport] | None = None
    room: Callable[[WeightsRecord, str | None], str | None] | None = None
    needs: Callable[[], int | None] | None = None

    @property
    def words(self) -> list[str]:
        return spec.preload_words(self.profile, self.schema)

    @property
    def env(self) -> dict[str, str]:
        return preload_env(self)


def preload_env(asked: Asked) -> dict[str, str]:
    """Environment of the daemon over the operator's own, without secrets."""
    run = spec.preload_spec(asked.unit, asked.profile, asked.runtime, asked.schema)
    return run.env


def plan(
    store: Store, asked: Asked, check: Check, replacing: sights.DaemonSight | None = None
) -> WeightsRecord:
    """Everything that is known before a daemon is started: its keys, sockets and files.
    The sockets of `replacing` do not count as taken.

    Raises Failed with the first thing in the way: vLLM's own refusal of the arguments, one that
    the version would come to later, another daemon at one of the sockets, files that cannot be
    identified. Nothing is started or changed."""
    run = spec.preload_spec(asked.unit, asked.profile, asked.runtime, asked.schema)
    too_long = exec_limits.problem(run.argv, {**os.environ, **run.env})
    if too_long:
        raise Failed(f"{asked.unit}: {too_long}")
    arguments = preload_arguments(asked.profile, asked.schema)
    if asked.features is not None:
        found = refusals.refusals(
            refusals.Asked("preload", arguments, env=asked.env), asked.features
        )
        if found and found[0].fatal:
            raise Failed(f"{asked.unit}: {found[0].line}")
    answer = check(asked.words, asked.env)
    error = answer.get("error")
    if error:
        raise Failed(f"{asked.unit}: {error.get('message') or error}")
    _refuse_quantization(asked, arguments, answer)
    keys = records.keys_of(answer)
    own = set(replacing.record.sockets) if replacing is not None and replacing.alive else set()
    wanted = [k.socket for k in keys if k.socket is not None and k.socket not in own]
    strict = not _names_directory(asked.profile)
    looks = {path: sockets.look(path, strict=strict) for path in wanted}
    taken = sights.occupied(keys, looks, [d for d in sights.daemons(store) if d.unit != asked.unit])
    if taken is not None:
        raise Busy(f"{taken.line}; {taken.hint}")
    for facts in looks.values():
        _refuse_directory(facts)
    section = asked.profile.preload
    record = WeightsRecord(
        keys=list(keys),
        content=_content(asked.profile, asked.env, None),
        draft=_draft_content(asked.profile, asked.env, None)
        if any(key.role == "draft" for key in keys)
        else None,
        mode=section.mode if section else "zero_copy",
        fallback=section.fallback if section else True,
        health_port=section.health_port if section else None,
        note=str(answer.get("keys_note") or ""),
    )
    gone = replacing.run.id if replacing is not None and replacing.alive else None
    problem = asked.room(record, gone) if asked.room is not None else None
    if problem:
        raise Failed(f"{asked.unit}: {problem}")
    return record


def start(store: Store, asked: Asked, check: Check, begin: Begin = launch) -> Run:
    """Start a preload daemon; returns once its process exists (ready: its health port).

    Makes the unit when there is none. Raises Busy, Failed before anything is started."""
    made = not store.exists(asked.unit)
    if made:
        store.create(asked.unit, Kind.PRELOAD, asked.profile.name, asked.by)
    with store.lock(asked.unit):
        settle_unbegun(store.current(asked.unit))
        current = sights.sight_of(store, asked.unit)
        if current is not None and current.alive:
            raise Busy(f"{asked.unit} runs already ({current.run.id}); reload it instead")
        try:
            record = plan(store, asked, check)
        except StokerError:
            if made and current is None:
                store.remove(asked.unit)
            raise
        return _launch(store, asked, record, current, begin)


def _launch(
    store: Store,
    asked: Asked,
    record: WeightsRecord,
    before: sights.DaemonSight | None,
    begin: Begin,
) -> Run:
    run_spec = spec.preload_spec(
        asked.unit,
        asked.profile,
        asked.runtime,
        asked.schema,
        by=asked.by,
        predecessor=before.run.id if before else None,
        sockets=record.sockets,
    )
    needed = asked.needs() if asked.needs is not None else None
    if needed is not None:
        devices = {key.device: needed for key in record.keys if key.device is not None}
        run_spec = msgspec.structs.replace(run_spec, room=devices)
    section = asked.profile.preload
    if section is not None and section.socket_dir is not None:
        socket_dir.ensure(store.dirs, section.socket_dir)
    run = store.new_run(run_spec)
    records.write(run, record)
    store.set_current(run)
    unit = store.load(asked.unit)
    store.save(msgspec.structs.replace(unit, desired="running", profile=asked.profile.name))
    try:
        begin(run)
    except StokerError as error:
        events.record(
            store.dirs, asked.unit, f"could not be started: {error}", severity="error", by=asked.by
        )
        raise
    events.record(store.dirs, asked.unit, f"preload of {asked.profile.model} started", by=asked.by)
    return run


def stop(
    store: Store,
    unit: str,
    uses: Sequence[sights.EngineUse] = (),
    *,
    confirmed: bool = False,
    by: str = "",
    reason: str = "",
) -> Stopped:
    """End a daemon. When engines map its weights this raises Busy with what would follow, unless
    `confirmed`. Raises NotFound when the unit never ran."""
    with store.lock(unit):
        sight = sights.sight_of(store, unit)
        if sight is None:
            raise NotFound(f"{unit} has no run; see: stoker ps")
        mapped = sights.clients(sight, uses) if sight.alive else ()
        if mapped and not confirmed:
            raise Busy(f"{unit}: " + "; ".join(sights.consequences(mapped)))
        store.wish_stopped(unit)
        stopped = end(sight.run, by=by, reason=reason)
    names = ", ".join(use.unit for use in mapped)
    after = f" under {names}, which keeps its weights" if names else ""
    events.record(
        store.dirs, unit, f"stopped{after}", severity="warning" if names else "info", by=by
    )
    return stopped


def reload(
    store: Store,
    asked: Asked,
    check: Check,
    uses: Sequence[sights.EngineUse] = (),
    *,
    confirmed: bool = False,
    begin: Begin = launch,
) -> Run:
    """Replace a unit's daemon by one of the profile as it is now. The new one is planned in full
    before the old one is ended, so that a mistake in the profile leaves it as it is."""
    with store.lock(asked.unit):
        sight = sights.sight_of(store, asked.unit)
        record = plan(store, asked, check, replacing=sight)
        if sight is not None and sight.alive:
            mapped = sights.clients(sight, uses)
            if mapped and not confirmed:
                raise Busy(f"{asked.unit}: " + "; ".join(sights.consequences(mapped)))
            end(sight.run, by=asked.by, reason="reload")
        return _launch(store, asked, record, sight, begin)


def reload_needed(
    record: WeightsRecord,
    keys: Sequence[RankKey],
    now: ContentRecord | None,
    draft: ContentRecord | None = None,
) -> tuple[str, ...]:
    """Why a daemon does not hold what the profile says now, in words; () when it does."""
    held = {(key.role, key.rank): key for key in record.keys}
    lines = []
    for key in keys:
        old = held.get((key.role, key.rank))
        if old is None:
            lines.append(f"{key.role} rank {key.rank} is not in the daemon")
            continue
        for name, value in key.fields.items():
            if old.fields.get(name) != value:
                lines.append(f"{name} is {value}, the daemon has {old.fields.get(name)}")
    if record.content is not None and now is not None:
        lines += content.differences(record.content, now)
    if record.draft is not None and draft is not None:
        lines += (f"draft: {line}" for line in content.differences(record.draft, draft))
    return tuple(dict.fromkeys(lines))


def release(store: Store, unit: str, by: str = "") -> tuple[client.DaemonStatus, ...]:
    """Ask every rank of a daemon to drop its weights; it goes on answering, without weights.

    Engines that map them keep them. Raises NotFound, Failed when a rank did not."""
    sight = sights.sight_of(store, unit)
    if sight is None or not sight.alive:
        raise NotFound(f"{unit} does not run; start it with: stoker preload start {unit}")
    python = sight.spec.python or ""
    answers = tuple(client.release(python, path) for path in sight.record.sockets)
    bad = [a for a in answers if a.state != "released"]
    if bad:
        raise Failed(f"{unit}: {bad[0].message or bad[0].state}")
    events.record(store.dirs, unit, "released its weights", by=by)
    return answers


def ask(sight: sights.DaemonSight) -> sights.DaemonSight:
    """The sight with what each of its sockets answers now (one short process)."""
    if not sight.alive or not sight.spec.python:
        return sight
    answers = client.statuses(sight.spec.python, sight.record.sockets)
    return replace(sight, statuses={a.socket: a for a in answers})


def behind(
    store: Store,
    profile: Profile,
    keys: Sequence[RankKey],
    python: str,
    env: Mapping[str, str],
    strict: bool,
    mismatches: Mapping[str, client.DaemonStatus] | None = None,
) -> dict[str, DaemonBehind]:
    """What is behind each of an engine's sockets: looked at, asked where that is safe, and
    compared with the weight files as they are now. A daemon that is not ours is asked by the
    runtime itself how its fingerprint differs (seconds). `strict` see `sockets.look`; `mismatches`
    are answers that a standby has already got about the engine's own keys."""
    # One that runs wins over one that had the socket before.
    known_daemons = sorted(sights.daemons(store), key=lambda d: d.alive)
    ours = {s: d for d in known_daemons for s in d.record.sockets}
    wanted = tuple(dict.fromkeys(k.socket for k in keys if k.socket is not None))
    judged = {path: sockets.judge(sockets.look(path, strict=strict)) for path in wanted}
    safe = [path for path in wanted if judged[path].may_connect]
    known = dict(mismatches or {})
    answers = {a.socket: a for a in client.statuses(python, [p for p in safe if p not in known])}
    strangers = [p for p, a in answers.items() if a.state == "serving" and p not in ours]
    fields = {key.socket: key.fields for key in keys}
    answers |= {
        a.socket: a for a in client.compare(python, [(p, fields[p]) for p in strangers], env)
    }
    changed: dict[str, tuple[str, ...]] = {}
    found = {}
    for path in wanted:
        sight = ours.get(path)
        held = _key_at(sight, path)
        if sight is not None and sight.run.id not in changed:
            changed[sight.run.id] = _changed(sight.record, profile, env)
        found[path] = DaemonBehind(
            judgement=judged[path],
            status=known.get(path) or answers.get(path),
            key=held if sight is not None and sight.alive else None,
            loading=sight is not None and sight.loading,
            content=changed.get(sight.run.id, ()) if sight is not None else (),
            unit=sight.unit if sight is not None else None,
            run=sight.run.id if sight is not None and sight.alive else None,
        )
    return found


_NOBODY = ("socket_missing", "stale_socket", "not_ready")


def with_planned(
    found: Mapping[str, DaemonBehind], planned: Sequence[RankKey]
) -> dict[str, DaemonBehind]:
    """What will be behind the sockets once a daemon with these keys serves, where none does yet."""
    coming = {key.socket: key for key in planned}
    return {
        path: DaemonBehind(sockets.SocketJudgement(None), key=coming[path])
        if path in coming and _absent(each)
        else each
        for path, each in found.items()
    }


def _absent(behind: DaemonBehind) -> bool:
    """True when nobody serves there. The socket of a killed daemon looks good."""
    refusal, status = behind.judgement.refusal, behind.status
    if refusal is not None:
        return refusal.category.removeprefix("wc_fallback.") in _NOBODY
    return status is not None and status.state in ("missing", "stale")


def _key_at(sight: sights.DaemonSight | None, path: str) -> RankKey | None:
    if sight is None:
        return None
    return next((key for key in sight.record.keys if key.socket == path), None)


def _changed(record: WeightsRecord, profile: Profile, env: Mapping[str, str]) -> tuple[str, ...]:
    lines: tuple[str, ...] = ()
    for held, look in ((record.content, _content), (record.draft, _draft_content)):
        now = None if held is None else look(profile, env, held)
        if held is not None and now is not None:
            of = "draft: " if held is record.draft else ""
            lines += tuple(of + line for line in content.differences(held, now))
    return lines


def _content(
    profile: Profile, env: Mapping[str, str], known: ContentRecord | None
) -> ContentRecord | None:
    revision = profile.args.get("revision")
    where = content.model_directory(profile.model, str(revision) if revision else None, env)
    return None if where is None else content.record(profile.model, where, known)


def _draft_content(
    profile: Profile, env: Mapping[str, str], known: ContentRecord | None
) -> ContentRecord | None:
    """The files of the draft model; None where it has none of its own here."""
    speculative = preload_arguments(profile).get("speculative_config")
    if isinstance(speculative, str):
        try:
            speculative = json.loads(speculative)
        except ValueError:
            return None
    if not isinstance(speculative, Mapping):
        return None
    model, revision = speculative.get("model"), speculative.get("revision")
    if not isinstance(model, str) or model == profile.model:
        return None
    where = content.model_directory(model, str(revision) if revision else None, env)
    return None if where is None else content.record(model, where, known)


def _names_directory(profile: Profile) -> bool:
    section = profile.preload
    return section is not None and (
        section.socket_dir is not None or "weight_cache_socket_dir" in section.args
    )


def _refuse_quantization(
    asked: Asked, arguments: Mapping[str, Any], answer: Mapping[str, Any]
) -> None:
    """Raise Failed for a method that vLLM would refuse once the daemon builds the model."""
    effective = answer.get("effective") or {}
    method = effective.get("quantization") or arguments.get("quantization")
    if not method or asked.support is None or asked.features is None:
        return
    question = refusals.Asked(
        "preload",
        arguments,
        env=asked.env,
        is_moe=effective.get("is_moe"),
        quantization=refusals.support_said(answer, str(method)) or asked.support(str(method)),
    )
    found = refusals.refusals(question, asked.features)
    if found and found[0].fatal:
        raise Failed(f"{asked.unit}: {found[0].line}")


def _refuse_directory(facts: sockets.SocketFacts) -> None:
    """Raise Failed for a socket directory that a daemon of ours must not use."""
    judged = sockets.judge(facts)
    bad: Reason | None = judged.refusal
    if bad is not None and bad.category == "wc_fallback.permissions":
        # vLLM itself tightens its default directory when a daemon starts.
        own = facts.directory.kind == "directory" and facts.directory.uid == facts.euid
        if not (facts.strict and own):
            raise Failed(f"{bad.line}: {bad.hint}")
    if judged.warnings and not facts.strict:
        raise Failed(judged.warnings[0])
