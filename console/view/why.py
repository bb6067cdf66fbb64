"""The failure card: the cause, what to do, what changed, the memory then, the first line."""

from __future__ import annotations

from console.view import numbers as n
from console.view.spans import Item, Line, Span, clean, clip_line, line, width, wrap
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
        lines += _fix_lines(label, "title", fix, cells)
        if index == 0 and width(lines[-1]) + width((key,)) <= cells:
            lines[-1] = (*lines[-1], key)
        elif index == 0:
            lines.append(line(Span(_pad("", cells)), key._replace(text=words)))
    for index, change in enumerate(card.changed):
        by = Span(f"   ({clean(card.changed_by)})", "muted") if card.changed_by else Span("")
        lines += _fix_lines("changed last" if index == 0 else "", "muted", change, cells)
        if width(lines[-1]) + width((by,)) <= cells:
            lines[-1] = (*lines[-1], by)
        else:
            below = by._replace(text=by.text.lstrip())
            lines.append(clip_line(line(Span(_pad("", cells)), below), cells))
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
                Span("  "),
                Span(clean(unit.run or unit.unit), "bold"),
                Span(" fell back to the disk", "warn"),
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


def _fix_lines(label: str, style: str, fix: Fix, cells: int) -> list[Line]:
    """A value and what it becomes; beneath its name where they do not fit beside it."""
    head = Span(_pad(label, cells), style)
    name, *values = _fix(fix)
    if width((head, name, *values)) <= cells:
        return [(head, name, *values)]
    first, *rest = values
    below = (Span(_pad("", cells)), first._replace(text=first.text.lstrip()), *rest)
    return [clip_line((head, name), cells), clip_line(below, cells)]


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
