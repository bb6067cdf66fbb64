"""Meanings of spans (`ok`, `warn`, `bar-weights`) as styles of the theme.

The classes belong to the screen, not to each widget: a component class costs a style
computation for every widget that has it, and that is time before the first paint.
"""

from __future__ import annotations

from rich.style import Style
from textual.color import Color
from textual.dom import DOMNode

_NAMES = (
    "text muted dim bold title key ok warn error info accent match brand foot cursor "
    "bar-weights bar-engine bar-standby bar-orphan bar-other bar-free"
)
CLASSES = {f"s-{name}" for name in _NAMES.split()}


# Terminals' own 16 colours have no tints: a bar's text would have the colour of the bar.
_ON_ANSI = Color.parse("ansi_bright_white")


# Contrast (WCAG 2) that text has at least, whatever the theme; what is dim is not needed.
_LEAST = 4.5
_LEAST_DIM = 3.0


def meaning(node: DOMNode, name: str, background: Color) -> Style:
    """The style of a meaning on a background, readable there. Raises KeyError for a name that is
    not one."""
    styles = node.get_component_styles(f"s-{name}")
    if styles.has_rule("background"):
        background = background + styles.background
    color = background + styles.color
    if styles.has_rule("auto_color") and styles.auto_color:
        color = background + background.get_contrast_text(styles.color.a)
    if color == background and not styles.text_style.reverse:
        color = _ON_ANSI
    color = readable(color, background, _LEAST_DIM if name == "dim" else _LEAST)
    return Style.from_color(color.rich_color, background.rich_color) + styles.text_style


def readable(color: Color, background: Color, least: float) -> Color:
    """The colour, moved towards black or white as far as `least` contrast needs. A terminal's own
    colours stay: what they look like is not known."""
    if color.ansi is not None or background.ansi is not None:
        return color
    end = _WHITE if contrast(_WHITE, background) > contrast(_BLACK, background) else _BLACK
    for step in range(21):
        found = color.blend(end, step / 20, alpha=1.0)
        if contrast(found, background) >= least:
            return found
    return end


_WHITE, _BLACK = Color(255, 255, 255), Color(0, 0, 0)


def contrast(one: Color, other: Color) -> float:
    """WCAG 2 contrast ratio of two opaque colours, 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
