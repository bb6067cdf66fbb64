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


def meaning(node: DOMNode, name: str, background: Color) -> Style:
    """The style of a meaning on a background. Raises KeyError for a name that is not one."""
    styles = node.get_component_styles(f"s-{name}")
    if styles.has_rule("background"):
        background = background + styles.background
    color = background + styles.color
    if styles.has_rule("auto_color") and styles.auto_color:
        color = background + background.get_contrast_text(styles.color.a)
    if color == background:
        color = _ON_ANSI
    return Style.from_color(color.rich_color, background.rich_color) + styles.text_style
