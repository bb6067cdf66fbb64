"""The failure card: the cause, what to do, what changed, the memory then, the first line."""

from __future__ import annotations

from console.view import numbers as n
from console.view.spans import Item, Line, Span, clean, clip_line, line, wrap
from console.view.units import reason_words
from engine_ctl.answers import FailureCard, Fix
from engine_ctl.model import UnitView, Verdict


def items(card: FailureCard | None, unit: UnitView, now: float, cells: int) -> list[Item]:
    """The card of the latest ended run and the reasons of a fall back of the current one."""
    found: list[Item] = []
    if unit.verdict is Verdict.FALLBACK and unit.reasons:
        found += _fallback(unit, cells)
    if card is not None:
        found += _failure(card, now, cells)
    if not found:
        text = "Nothing failed: the unit's runs ended as they were asked to."
        found.append(Item(None, ((), line(Span("  " + text, "ok")))))
    return found


def _failure(card: FailureCard, now: float, cells: int) -> list[Item]:
    head: list[Span] = [Span("  "), Span(clean(card.run), "bold")]
    during = f" while {card.phase}" if card.phase else ""
    after = f", {n.seconds(card.after_s)} after its start" if card.after_s is not None else ""
    head.append(Span(f" {clean(card.outcome) or 'failed'}{during}{after}", "error"))
    if card.ended is not None:
        head.append(Span(f"   {n.moment(card.ended, now)}", "muted"))
    lines: list[Line] = [(), clip_line(head, cells), ()]
    cause = card.cause
    if cause is not None:
        lines += _row(clean(cause.category), clean(cause.hint), cells, "error", "bold")
    for index, fix in enumerate(card.fixes):
        label = "do this" if index == 0 else "or"
        words = "[a] apply and restart" if cells >= 100 else "[a] apply"
        key = Span(f"   {words}", "key", "apply") if index == 0 else Span("")
        left = line(Span(_pad(label, cells), "title"), *_fix(fix))
        lines.append((*clip_line(left, cells - len(words) - 4), key))
    for index, change in enumerate(card.changed):
        by = Span(f"   ({clean(card.changed_by)})", "muted") if card.changed_by else Span("")
        label = "changed last" if index == 0 else ""
        lines.append(clip_line(line(Span(_pad(label, cells), "muted"), *_fix(change), by), cells))
    for index, text in enumerate(card.leftovers):
        lines += _row("left over" if index == 0 else "", clean(text), cells, "warn")
    for index, text in enumerate(card.memory):
        lines += _row("memory then" if index == 0 else "", clean(text), cells)
    if cause is not None and cause.line:
        lines.append(())
        lines += _row("first cause", clean(cause.line), cells, limit=6)
        if card.log:
            lines.append(line(Span(_pad("", cells)), Span("[enter] in the log", "key", "in-log")))
    if cause is not None and cause.evidence:
        lines.append(())
        for index, text in enumerate(cause.evidence):
            lines += _row("evidence" if index == 0 else "", clean(text), cells, body="muted")
    return [Item(None, tuple(lines))]


def _fallback(unit: UnitView, cells: int) -> list[Item]:
    lines: list[Line] = [
        (),
        clip_line(
            line(
                Span("  "), Span(clean(unit.run or unit.unit), "bold"), Span(" fell back: ", "warn")
            ),
            cells,
        ),
        (),
    ]
    for reason in unit.reasons:
        lines += _row(clean(reason.category).split(".")[-1], reason_words(reason), cells, "warn")
        if reason.fields and reason.hint:
            lines += _row("do this", clean(reason.hint), cells)
        if reason.line:
            lines += _row("line", clean(reason.line), cells, body="muted", limit=3)
    lines.append(line(Span(_pad("", cells)), Span("[f] forecast", "key", "forecast")))
    return [Item(None, tuple(lines))]


def _fix(fix: Fix) -> tuple[Span, ...]:
    return (
        Span(clean(fix.key), "bold"),
        Span(f"  {clean(fix.now)} → "),
        Span(clean(fix.proposed), "bold"),
    )


def _room(cells: int) -> int:
    return 20 if cells >= 100 else 17


def _pad(label: str, cells: int) -> str:
    return f"  {label:<{_room(cells)}} "


def _row(
    label: str,
    text: str,
    cells: int,
    style: str = "muted",
    body: str = "",
    limit: int = 0,
) -> list[Line]:
    head = _pad(label, cells)
    if len(label) > _room(cells):
        head_of = clip_line(line(Span(f"  {label}", style)), cells)
        return [head_of, *_row("", text, cells, style, body, limit)]
    first, *rest = wrap(text, max(cells - len(head) - 1, 20), limit) or [""]
    return [
        line(Span(head, style), Span(first, body)),
        *(line(Span(" " * len(head) + more, body)) for more in rest),
    ]
