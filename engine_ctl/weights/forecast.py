"""Will the weights be mapped? Said before a start, by the rules and in the order that vLLM uses.

Pure: the keys come from the runtime, the state of each socket from a look and an answer, the
daemon's own key from its run. Each rank decides for itself, as in vLLM; the whole start is what
its worst rank gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine_ctl.model import Reason, Verdict
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.records import RankKey
from engine_ctl.weights.refusals import Refusal
from engine_ctl.weights.sockets import SocketJudgement

NOTHING: Mapping[str, tuple[str, str]] = {}

# vLLM retries these while it waits for a daemon (fallback: false); others end the start at once.
_WAITED_FOR = (
    "wc_fallback.socket_missing",
    "wc_fallback.stale_socket",
    "wc_fallback.not_ready",
    "wc_fallback.permissions",
    "wc_fallback.released",
    "wc_fallback.version_skew",
)


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of the fingerprint on the weights screen. Values are text, None is vLLM's None."""

    field: str
    daemon: str | None
    engine: str | None
    equal: bool


@dataclass(frozen=True, slots=True)
class DaemonBehind:
    """What is known about the daemon behind one of the engine's sockets.

    `judgement` of the socket, `status` from the protocol (None: not asked or not safe to ask),
    `key` as recorded at that daemon's start (None: not one of ours), `loading`: its run is alive
    and not ready yet, `content`: how its weight files differ from the profile's. `unit` and
    `run` where it is one of ours."""

    judgement: SocketJudgement
    status: DaemonStatus | None = None
    key: RankKey | None = None
    loading: bool = False
    content: tuple[str, ...] = ()
    unit: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class EngineAsks:
    """The engine side. `uses_cache`: its load format is ipc_cache. `refusals` see refusals.py.
    `draft`: its loader was told to ask the draft model's daemons for the target."""

    uses_cache: bool
    keys: tuple[RankKey, ...] = ()
    mode: str = "zero_copy"
    fallback: bool = True
    state_timeout_s: float = 300.0
    refusals: tuple[Refusal, ...] = ()
    draft: bool = False


@dataclass(frozen=True, slots=True)
class RankForecast:
    """One rank: `reason` is None when it will map. `rows` compare the two fingerprints."""

    key: RankKey
    reason: Reason | None
    rows: tuple[FieldRow, ...] = ()
    daemon: str | None = None


@dataclass(frozen=True, slots=True)
class WeightForecast:
    """What a start will find.

    `verdict` is None when the start will end without serving (`fails`) or wait for a daemon up to
    `waits_s` seconds. `refuse`: vLLM would go ahead and should not (other weights of the same
    layout). `warnings` are lines for the operator."""

    verdict: Verdict | None
    reasons: tuple[Reason, ...] = ()
    ranks: tuple[RankForecast, ...] = ()
    fails: bool = False
    waits_s: float | None = None
    refuse: Reason | None = None
    warnings: tuple[str, ...] = ()
    differing: tuple[str, ...] = field(default=())


def forecast_weights(asks: EngineAsks, behind: Mapping[str, DaemonBehind]) -> WeightForecast:
    """The verdict to expect. `behind` by socket path; a socket that is not in it is missing."""
    if not asks.uses_cache:
        return WeightForecast(Verdict.DISK)
    fatal = [r.reason for r in asks.refusals if r.fatal]
    first = [r for r in fatal if not r.category.startswith("wc_fatal.quant")]
    if first:
        return WeightForecast(None, tuple(first), fails=True)
    warnings = [r.line for r in asks.refusals if not r.fatal]
    ranks = tuple(
        RankForecast(key, _WRONG_ROLE) if asks.draft else _rank(key, behind.get(key.socket or ""))
        for key in asks.keys
    )
    if not ranks:
        reason = Reason("unknown", "ask again with the runtime at hand", "no fingerprint is known")
        return WeightForecast(None, (reason,), warnings=tuple(warnings))
    for socket in dict.fromkeys(key.socket for key in asks.keys):
        if socket is not None and socket in behind:
            warnings += behind[socket].judgement.warnings
    warnings += _unknown_keys(asks, behind)
    reasons = _distinct(_named(ranks))
    differing = tuple(
        dict.fromkeys(row.field for rank in ranks for row in rank.rows if not row.equal)
    )
    common = {"ranks": ranks, "warnings": tuple(dict.fromkeys(warnings)), "differing": differing}
    if reasons and asks.fallback:
        return WeightForecast(Verdict.FALLBACK, reasons, **common)  # type: ignore[arg-type]
    if reasons:
        waits = all(reason.category in _WAITED_FOR for reason in reasons)
        return WeightForecast(
            None,
            reasons,
            fails=not waits,
            waits_s=asks.state_timeout_s if waits else None,
            **common,  # type: ignore[arg-type]
        )
    if fatal:
        # The layers are looked at only once the daemon has answered.
        return WeightForecast(None, tuple(fatal), fails=True, **common)  # type: ignore[arg-type]
    verdict = Verdict.COPIED if asks.mode == "copy" else Verdict.MAPPED
    return WeightForecast(
        verdict,
        refuse=_other_content(asks, behind),
        **common,  # type: ignore[arg-type]
    )


def compare(daemon: RankKey | None, engine: RankKey) -> tuple[FieldRow, ...]:
    """The two fingerprints side by side, the engine's fields first. () without a daemon's."""
    if daemon is None:
        return ()
    names = list(dict.fromkeys([*engine.fields, *daemon.fields]))
    return tuple(
        FieldRow(
            name,
            daemon.fields.get(name),
            engine.fields.get(name),
            name in daemon.fields
            and name in engine.fields
            and daemon.fields[name] == engine.fields[name],
        )
        for name in names
    )


def shares(daemon: Sequence[RankKey], engine: Sequence[RankKey]) -> bool:
    """True when every rank of an engine finds its weights in this daemon: same fields, and the
    same socket where both name one."""
    held = {(key.role, key.rank): key for key in daemon}
    return bool(engine) and all(
        (found := held.get((key.role, key.rank))) is not None
        and found.fields == key.fields
        and (found.socket == key.socket or None in (found.socket, key.socket))
        for key in engine
    )


def _rank(key: RankKey, behind: DaemonBehind | None) -> RankForecast:
    if behind is None:
        reason = Reason(
            "wc_fallback.socket_missing",
            "start the preload daemon of this device",
            f"{key.socket} does not exist" if key.socket else "this device has no socket",
        )
        return RankForecast(key, reason)
    rows = compare(behind.key, key)
    return RankForecast(key, _rank_reason(key, behind, rows), rows, behind.unit)


def _rank_reason(key: RankKey, behind: DaemonBehind, rows: tuple[FieldRow, ...]) -> Reason | None:
    refusal = behind.judgement.refusal
    if refusal is not None:
        waits = ("wc_fallback.socket_missing", "wc_fallback.stale_socket")
        return _not_ready(refusal) if behind.loading and refusal.category in waits else refusal
    status = behind.status
    if status is not None and status.state in _UNREACHABLE:
        return _unreachable(status, behind.loading)
    if rows and behind.key is not None and set(behind.key.fields) != set(key.fields):
        return Reason(
            "wc_fallback.version_skew",
            "restart the daemon with the engine's version",
            "daemon and engine speak different versions of the protocol",
            tuple(_cells(row) for row in rows if not row.equal),
        )
    different = _different(status, rows)
    if different:
        return Reason(
            "wc_fallback.key_mismatch",
            mismatch_hint([name for name, _, _ in different]),
            "daemon and engine differ in " + ", ".join(name for name, _, _ in different),
            different,
        )
    if status is not None and status.state == "released":
        return Reason(
            "wc_fallback.released", "restart the daemon", "the daemon has released its weights"
        )
    if status is not None and status.state == "error":
        return Reason(
            "wc_fallback.version_skew",
            "restart the daemon with the engine's version",
            f"the daemon refuses: {status.message}",
        )
    devices = (behind.key.device if behind.key is not None else None, key.device)
    if None not in devices and devices[0] != devices[1]:
        return Reason(
            "wc_fallback.gpu_uuid",
            "correct the socket path or the GPUs of the profile",
            f"the daemon holds {devices[0]}, the engine runs on {devices[1]}",
            (("device", str(devices[0]), str(devices[1])),),
        )
    return None


_WRONG_ROLE = Reason(
    "wc_fallback.role",
    "remove is_draft from model_loader_extra_config: vLLM sets it itself",
    "the loader is told to ask the draft model's daemons for the target model",
)
_UNREACHABLE = ("missing", "stale", "silent", "garbage", "gone")


def _unreachable(status: DaemonStatus, loading: bool) -> Reason:
    if status.state in ("missing", "stale"):
        name = "socket_missing" if status.state == "missing" else "stale_socket"
        reason = Reason(f"wc_fallback.{name}", "start the daemon again", status.message)
        return _not_ready(reason) if loading else reason
    if status.state == "silent":
        # vLLM waits for the whole state timeout and then loads from disk.
        return Reason(
            "wc_fallback.not_ready",
            "restart the daemon: it hangs; a start waits for preload.state_timeout_s",
            status.message or f"{status.socket} does not answer",
        )
    return Reason(
        "wc_fallback.ipc_failed",
        "restart the daemon",
        status.message or f"{status.socket} does not answer like a daemon",
    )


def _not_ready(reason: Reason) -> Reason:
    return Reason(
        "wc_fallback.not_ready",
        "wait for the daemon to be ready, or set preload.fallback: false to wait for it",
        f"the daemon is still loading ({reason.line})",
    )


def refine(
    reasons: Sequence[Reason], loading: bool, values: Mapping[str, tuple[str, str]] = NOTHING
) -> tuple[Reason, ...]:
    """The reasons in a log, with what the log cannot say: that the daemon whose socket was not
    there was still loading at that moment, and `values` of fields (the daemon's, the engine's)
    that it names without them."""
    waits = ("wc_fallback.socket_missing", "wc_fallback.stale_socket")
    told = (_not_ready(r) if loading and r.category in waits else r for r in reasons)
    return tuple(_with_values(reason, values) if reason.fields else reason for reason in told)


def _with_values(reason: Reason, values: Mapping[str, tuple[str, str]]) -> Reason:
    known = (
        (name, *values.get(name, ("", "")), there, ours) for name, there, ours in reason.fields
    )
    fields = tuple(
        (name, there or daemon or "unknown", ours or engine or "unknown")
        for name, daemon, engine, there, ours in known
    )
    return replace(reason, fields=fields)


def _different(
    status: DaemonStatus | None, rows: tuple[FieldRow, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Fields that differ, with both values; names that the daemon itself gave win over the
    record, whose values may be of an earlier daemon."""
    by_name = {row.field: row for row in rows}
    if status is not None and status.mismatched is not None:
        return tuple(
            _cells(by_name[name]) if name in by_name else (name, "unknown", "unknown")
            for name in status.mismatched
        )
    return tuple(_cells(row) for row in rows if not row.equal)


def _cells(row: FieldRow) -> tuple[str, str, str]:
    return row.field, str(row.daemon), str(row.engine)


def mismatch_hint(fields: Sequence[str]) -> str:
    """What mends a mismatch on these fields."""
    names = set(fields)
    if names == {"vllm_version"}:
        return "restart the daemon with the engine's version"
    if names <= {"tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "dp_rank"}:
        return "give daemon and engine the same parallel sizes"
    if "checkpoint" in names:
        return "reload the daemon: the profile names another checkpoint"
    return "reload the daemon with this profile"


def _unknown_keys(asks: EngineAsks, behind: Mapping[str, DaemonBehind]) -> list[str]:
    return [
        f"the daemon at {key.socket} is not Stoker's: its fingerprint is not known"
        for key in asks.keys
        if key.socket is not None
        and key.socket in behind
        and (found := behind[key.socket]).judgement.refusal is None
        and found.key is None
        and (found.status is None or found.status.mismatched is None)
    ]


def _other_content(asks: EngineAsks, behind: Mapping[str, DaemonBehind]) -> Reason | None:
    for key in asks.keys:
        found = behind.get(key.socket or "")
        if found is not None and found.content:
            return Reason(
                "lint.wc_same_layout_other_model",
                "reload the daemon: vLLM does not notice and would serve the old weights",
                found.content[0]
                + (f" and {len(found.content) - 1} more" if len(found.content) > 1 else ""),
            )
    return None


def _named(ranks: Sequence[RankForecast]) -> list[Reason]:
    """The ranks' reasons; where only some ranks fall back, each says which."""
    failing = [(rank.key, rank.reason) for rank in ranks if rank.reason is not None]
    if len(failing) == len(ranks):
        return [reason for _, reason in failing]
    return [
        replace(reason, line=f"{key.role} rank {key.rank} of {len(ranks)}: {reason.line}")
        for key, reason in failing
    ]


def _distinct(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    seen: dict[tuple[str, tuple[str, ...]], Reason] = {}
    for reason in reasons:
        seen.setdefault((reason.category, tuple(f[0] for f in reason.fields)), reason)
    return tuple(seen.values())
