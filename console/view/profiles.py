"""Profiles: the list, one profile with every value's origin, differences with costs, findings."""

from __future__ import annotations

from collections.abc import Sequence

from console.view.forecast import change_lines
from console.view.spans import Item, Line, Span, clean, clip_line, clip_middle, line, pad, wrap
from engine_ctl.answers import (
    ChangeView,
    LintFinding,
    ProfileDetail,
    ProfileSummary,
    ProvenanceRow,
)

SEVERITY = {"error": ("✗", "error"), "warning": ("⚠", "warn"), "info": ("·", "info")}

USED = "▪"  # by a unit, whatever its state: that has signs of its own


def listing(profiles: Sequence[ProfileSummary], cells: int) -> list[Item]:
    """One item a profile, the operator's own before the built-in ones."""
    if not profiles:
        return [Item(None, ((), line(Span("  No profile.", "muted"))))]
    widest = min(max(len(profile.name) for profile in profiles), 28)
    own = {profile.name for profile in profiles if not profile.builtin}
    found: list[Item] = []
    for builtin, head in ((False, "yours"), (True, "built in")):
        part = [profile for profile in profiles if profile.builtin is builtin]
        if part:
            found.append(Item(None, (line(Span(f" {head}", "title")),)))
        for profile in part:
            # The name leads to the operator's own.
            key = None if builtin and profile.name in own else profile.name
            found.append(Item(key, (_summary(profile, widest, cells, key is None),)))
    return found


def _summary(profile: ProfileSummary, widest: int, cells: int, hidden: bool) -> Line:
    if cells < widest + 12:  # names alone: what stands beside them would be cut to nothing
        sign, style = ("✗", "error") if profile.problem else (USED, "accent")
        name = Span(pad(clip_middle(clean(profile.name), cells - 4), cells - 4), "bold")
        mark = Span(sign if (profile.problem and not hidden) or profile.units else " ", style)
        return (Span(" "), name._replace(style="muted") if hidden else name, Span(" "), mark)
    name = Span(pad(clip_middle(clean(profile.name), widest), widest) + "  ", "bold")
    spans = [Span(" "), name._replace(style="muted") if hidden else name]
    if hidden:
        spans.append(Span("yours of that name counts", "muted"))
        return clip_line(spans, cells)
    if profile.problem:
        spans.append(Span(f"✗ {clean(profile.problem)}", "error"))
        return clip_line(spans, cells)
    if profile.units:
        spans.append(Span(f"{USED} {', '.join(clean(u) for u in profile.units)}  ", "accent"))
    first = clean(profile.notes.strip().split("\n")[0]) if profile.notes else ""
    spans.append(Span(first or clean(profile.model), "muted"))
    return clip_line(spans, cells)


def detail(profile: ProfileDetail, cells: int) -> list[Line]:
    """Findings, values with origin, the exact command and environment."""
    summary = profile.summary
    where = "built in (read-only)" if summary.builtin else clean(summary.path or "")
    lines: list[Line] = [
        clip_line(line(Span(f" {clean(summary.name)}", "bold"), Span(f"  {where}", "muted")), cells)
    ]
    for text in wrap(clean(summary.notes), max(cells - 2, 20), 4):
        lines.append(line(Span(" " + text, "muted")))
    lines += [(), *findings(profile.findings, cells), ()]
    section = ""
    widest = min(max([len(_key(value)) for value in profile.values] + [8]), 30)
    room = min(max([len(value.value) for value in profile.values] + [8]), max(cells // 3, 16))
    origins = cells - widest - room - 7
    for value in profile.values:
        if value.section != section:
            section = value.section
            lines.append(line(Span(f" {clean(section)}", "title")))
        spans: tuple[Span, ...] = (
            Span("   " + pad(_key(value), widest) + "  "),
            Span(pad(clean(value.value), room) if origins >= 12 else clean(value.value), "bold"),
            Span("  " + _origin(value.origin, summary.path, cells), "muted"),
        )
        if origins < 12:  # cut to nothing: the value has the room
            spans = spans[:2]
        lines.append(clip_line(spans, cells))
    lines += [(), line(Span(" command", "title"))]
    for name, setting in profile.env:
        lines.append(clip_line(line(Span(f"   {clean(name)}={clean(setting)}", "muted")), cells))
    texts = wrap(" ".join(clean(word) for word in profile.argv), max(cells - 4, 20))
    lines += [line(Span("   " + text)) for text in texts]
    if profile.added:
        added = "and, by Stoker: " + " ".join(profile.added)
        lines += [line(Span("   " + text, "muted")) for text in wrap(added, max(cells - 4, 20))]
    return lines


def _origin(origin: str, path: str | None, cells: int) -> str:
    """`this file, line 4` for what the file shown says itself, else as it was said."""
    if path and origin.startswith(path):
        number = origin.removeprefix(path).removeprefix(":")
        here = "line" if cells < 64 else "this file, line"
        return f"{here} {number}" if number.isdigit() else "this file"
    return clean(origin)


def _key(value: ProvenanceRow) -> str:
    return clean(value.key).removeprefix(f"{value.section}.")


def findings(found: Sequence[LintFinding], cells: int) -> list[Line]:
    """Lint findings, worst first; one line of praise where there are none."""
    if not found:
        return [line(Span(" ✓ ", "ok"), Span("no finding"))]
    order = {"error": 0, "warning": 1, "info": 2}
    lines: list[Line] = []
    for finding in sorted(found, key=lambda f: order.get(f.severity, 3)):
        sign, style = SEVERITY.get(finding.severity, ("·", "muted"))
        where = f"line {finding.line}: " if finding.line is not None else ""
        key = f"{clean(finding.key)}: " if finding.key else ""
        text = f"{where}{key}{clean(finding.message)}"
        if finding.instead:
            text += f" → {clean(finding.instead)}"
        first, *rest = wrap(text, max(cells - 4, 20)) or [""]
        lines.append(line(Span(f" {sign} ", style), Span(first, style)))
        lines += [line(Span("   " + more, style)) for more in rest]
    return lines


def difference(changes: Sequence[ChangeView], old: str, new: str, cells: int) -> list[Line]:
    """Each differing key with both values and the cost of the change."""
    head = line(Span(" " + clean(old), "bold"), Span(" → "), Span(clean(new), "bold"))
    lines: list[Line] = [clip_line(head, cells), ()]
    different = [change for change in changes if change.cost != "unchanged"]
    if not different:
        return [*lines, line(Span(" ✓ no difference", "ok"))]
    return [*lines, *change_lines(different, cells)]
