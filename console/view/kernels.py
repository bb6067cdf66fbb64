"""What runs underneath an engine, each with the log line that says so."""

from __future__ import annotations

from collections.abc import Sequence

from console.view.spans import Item, Line, Span, clean, clip_line, line, wrap
from engine_ctl.answers import KernelChoice


def items(kernels: Sequence[KernelChoice], cells: int) -> list[Item]:
    """One item a choice; slower ones are marked with what would be faster."""
    if not kernels:
        text = "The log names no kernel (yet)."
        return [Item(None, ((), line(Span("  " + text, "muted"))))]
    slower = sum(1 for kernel in kernels if kernel.slower)
    text = (
        f"  {slower} slower than asked or possible" if slower else "  nothing is on a slower path"
    )
    found = [Item(None, ((), line(Span(text, "warn" if slower else "ok")), ()))]
    widest = min(max(len(kernel.what) for kernel in kernels), 24)
    for index, kernel in enumerate(kernels):
        found.append(Item(f"{index}", tuple(_choice(kernel, widest, cells))))
    return found


def _choice(kernel: KernelChoice, widest: int, cells: int) -> list[Line]:
    sign = Span("⚠ ", "warn") if kernel.slower else Span("  ")
    what = Span(f"{clean(kernel.what):<{widest}}  ", "muted")
    indent = " " * (widest + 6)
    room = max(cells - len(indent) - 1, 20)
    first, *rest = wrap(clean(kernel.choice), room) or ["–"]
    lines: list[Line] = [clip_line((Span("  "), sign, what, Span(first, "bold")), cells)]
    lines += [line(Span(indent + text, "bold")) for text in rest]
    lines += [line(Span(indent + text, "warn")) for text in wrap(clean(kernel.slower), room)]
    if kernel.line:
        lines += [line(Span(indent + text, "dim")) for text in wrap(clean(kernel.line), room, 2)]
    return lines
