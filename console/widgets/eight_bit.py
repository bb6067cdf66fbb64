"""Colours on a terminal that says it has 256, as over ssh and in tmux: COLORTERM does not travel.

Rich's own reduction rounds each channel to the colour cube, where what is dark and a little blue
(a panel, a selected line, the ground of Nord) turns navy or teal, and text may be lost on it. Here
a ground gets the nearest colour, greys stay grey, and text the nearest one that is read on it."""

from __future__ import annotations

from functools import lru_cache

from rich.color import Color as RichColor
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from console.widgets.meanings import contrast

Rgb = tuple[int, int, int]

_STEPS = (0, 95, 135, 175, 215, 255)
_CUBE: dict[int, Rgb] = {
    16 + 36 * r + 6 * g + b: (_STEPS[r], _STEPS[g], _STEPS[b])
    for r in range(6)
    for g in range(6)
    for b in range(6)
}
_RAMP: dict[int, Rgb] = {232 + step: (8 + 10 * step,) * 3 for step in range(24)}
_PALETTE = _CUBE | _RAMP
_GREYS = tuple(number for number, (r, g, b) in _PALETTE.items() if r == g == b)
_COLOURS = tuple(number for number in _PALETTE if number not in _GREYS)
# Channels that differ by no more than this are a grey with a cast.
_CAST = 32
# Contrast (WCAG 2) that text keeps, if it had so much before.
_LEAST = 4.5


class EightBit(LineFilter):
    """Truecolor to the 256 colours; a terminal's own colours stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, _style(style) if style is not None else None, control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def _style(style: Style) -> Style:
    ground, text = _rgb(style.bgcolor), _rgb(style.color)
    if ground is None and text is None:
        return style
    under = nearest(ground) if ground is not None else None
    over = None
    if text is not None and ground is not None and under is not None:
        over = nearest(text, _PALETTE[under], min(_contrast(text, ground), _LEAST))
    elif text is not None:
        over = nearest(text)
    return style + Style.from_color(_ansi(over), _ansi(under))


def _rgb(color: RichColor | None) -> Rgb | None:
    if color is None or color.type is not ColorType.TRUECOLOR or color.triplet is None:
        return None
    return color.triplet.red, color.triplet.green, color.triplet.blue


def _ansi(number: int | None) -> RichColor | None:
    return None if number is None else RichColor.from_ansi(number)


@lru_cache(4096)
def nearest(color: Rgb, ground: Rgb | None = None, least: float = 0.0) -> int:
    """The number of the palette's nearest colour that has the contrast on the ground; the one with
    the most contrast where none has so much."""
    grey = max(color) - min(color) <= _CAST
    for numbers in (_GREYS if grey else _COLOURS, tuple(_PALETTE)):
        best = min(numbers, key=lambda number: _distance(color, _PALETTE[number]))
        if ground is None or _contrast(_PALETTE[best], ground) >= least:
            return best
        for number in sorted(numbers, key=lambda number: _distance(color, _PALETTE[number])):
            if _contrast(_PALETTE[number], ground) >= least:
                return number
    return max(_PALETTE, key=lambda number: _contrast(_PALETTE[number], ground or color))


def _distance(one: Rgb, other: Rgb) -> float:
    """Squared, weighted as eyes weigh red, green and blue."""
    red, green, blue = (a - b for a, b in zip(one, other, strict=True))
    return 2 * red * red + 4 * green * green + 3 * blue * blue


def _contrast(one: Rgb, other: Rgb) -> float:
    return contrast(Color(*one), Color(*other))
