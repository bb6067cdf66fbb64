"""Questions before something that costs: what will be done, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from console.view import numbers as n
from console.view.spans import Line, Span, clean, line
from engine_ctl.model import ENDED, Kind, Snapshot, UnitView, Verdict

if TYPE_CHECKING:
    from engine_ctl.answers import Fix


def question(id: str, unit: UnitView, snapshot: Snapshot | None, to: str = "") -> list[Line]:
    """Title and consequences for an action on a unit; `to` is the profile that undo leads to."""
    name = clean(unit.unit)
    title = {
        "stop": f"Stop {name}?",
        "undo": f"Swap {name} back to {clean(to)}?",
        "bench": f"Bench {name}?",
        "remove": f"Forget {name}?",
        "reload": f"Load the weights of {name} again?",
        "release": f"Give back the weights of {name}?",
    }.get(id, f"{id} {name}?")
    follows = {
        "stop": _stop,
        "undo": _undo,
        "bench": _bench,
        "remove": _remove,
        "reload": _reload,
        "release": _release,
    }.get(id)
    texts = follows(unit, snapshot) if follows else []
    return [line(Span(title, "bold")), (), *(_bullet(text, style) for text, style in texts)]


def _bullet(text: str, style: str) -> Line:
    sign = {"warn": "⚠ ", "ok": "✓ "}.get(style, "· ")
    return line(Span(sign, style or "muted"), Span(clean(text), style if style == "warn" else ""))


def _stop(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if unit.kind is Kind.PRELOAD:
        mapped = _mapping(unit, snapshot)
        if mapped:
            who = _does(mapped, "maps these weights and keeps", "map these weights and keep")
            them = "it" if len(mapped) == 1 else "them"
            found.append((f"{who} serving; the memory moves to {them}", "warn"))
        found.append(("the next start with these weights reads the disk", "warn"))
        return found
    if unit.kind is Kind.STANDBY:
        return [("the next start with this runtime imports vLLM again", "warn")]
    load = unit.load
    if load and (load.running or load.waiting):
        found.append(
            (
                f"{n.counted(load.running, 'request')} running and {n.count(load.waiting)} waiting",
                "warn",
            )
        )
    if unit.port:
        found.append((f"port {unit.port} answers no more", ""))
    found.append(("drain, ask, ask again, then kill; checked that nothing is left", ""))
    if unit.verdict in (Verdict.MAPPED, Verdict.COPIED):
        found.append(("the weights stay in the daemon; the next start maps them", "ok"))
    return found


def _mapping(unit: UnitView, snapshot: Snapshot | None) -> list[str]:
    if snapshot is None:
        return []
    return [
        other.unit
        for other in snapshot.units
        if other.kind is Kind.ENGINE
        and other.phase is not None
        and other.phase not in ENDED
        and other.verdict is Verdict.MAPPED
        and (not unit.gpus or set(unit.gpus) & set(other.gpus))
    ]


def _does(names: Sequence[str], one: str, several: str) -> str:
    return f"{', '.join(names)} {one if len(names) == 1 else several}"


def _undo(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    found = [("the engine that runs now drains and stops first", "")]
    if unit.load and unit.load.running:
        found.insert(0, (f"{n.counted(unit.load.running, 'request')} in flight", "warn"))
    return found


def _bench(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    found = [("requests of the profile's bench go to the running engine", "")]
    if unit.load and unit.load.running:
        count = n.counted(unit.load.running, "request")
        run, slow = ("runs", "it slows") if unit.load.running == 1 else ("run", "they slow")
        text = f"{count} of others {run}: {slow} down, so does the bench"
        found.insert(0, (text, "warn"))
    return found


def _remove(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    return [("its runs, logs and records are deleted", "warn"), ("its profile file stays", "ok")]


def _reload(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    found = [("until it is ready again a start reads the disk", "")]
    mapped = _mapping(unit, snapshot)
    if mapped:
        who = _does(
            mapped,
            "keeps the old weights until it restarts",
            "keep the old weights until they restart",
        )
        found.insert(0, (who, "warn"))
    return found


def _release(unit: UnitView, snapshot: Snapshot | None) -> list[tuple[str, str]]:
    return [("the daemon stays, its memory is free; the next start reads the disk", "warn")]


def apply(unit: UnitView, fixes: Sequence[Fix]) -> list[Line]:
    """The question before a failure card's values go into the profile file."""
    lines: list[Line] = [line(Span(f"Change {clean(unit.profile)} and restart?", "bold")), ()]
    lines += [_bullet(f"{fix.key}: {fix.now} → {fix.proposed}", "") for fix in fixes]
    lines.append(_bullet("the profile file is rewritten; comments and order stay", ""))
    return lines


def reap(texts: Sequence[str], pids: Sequence[int]) -> list[Line]:
    """The question before orphans are ended."""
    what = "1 orphaned process" if len(pids) == 1 else f"{len(pids)} orphaned processes"
    lines: list[Line] = [line(Span(f"End {what}?", "bold")), ()]
    lines += [_bullet(text, "") for text in texts]
    lines.append(_bullet("identity is checked again before each signal", "ok"))
    return lines


def leave(pending: Mapping[str, str]) -> list[Line]:
    """The question when the console is left during an operation."""
    lines: list[Line] = [line(Span("An operation is under way", "bold")), ()]
    lines += [_bullet(f"{verb} {unit}", "") for unit, verb in pending.items()]
    lines.append(_bullet("engines keep running; the console goes when this is done", "ok"))
    return lines
