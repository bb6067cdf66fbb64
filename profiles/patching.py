"""Changing one value in a YAML text and nothing else of it: places come from the parser's marks.

What is not understood well enough to be changed so (aliases, explicit keys, …) gives None; the
caller checks every result by reading it again.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from profiles.yaml_source import KeyPath

REMOVE = object()
_MERGE = "tag:yaml.org,2002:merge"


def patched(text: str, keys: KeyPath, value: Any) -> str | None:
    """The text with the value at `keys` (maps only) set, or with REMOVE taken out."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return None
    return _Patch(text, root).set(keys, value)


class _Patch:
    def __init__(self, text: str, root: yaml.MappingNode) -> None:
        self.text = text
        self.root = root
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.step = _step(root)

    def set(self, keys: KeyPath, value: Any) -> str | None:
        node, flow = self.root, bool(self.root.flow_style)
        for place, key in enumerate(keys):
            pair = _pair(node, key)
            rest = keys[place + 1 :]
            if pair is None:
                if value is REMOVE:
                    return self.text
                return self._insert(node, key, _nested(rest, value), flow)
            name, child = pair
            if child.start_mark.index < name.end_mark.index:
                return None  # an alias: its value stands elsewhere
            if not rest:
                if value is REMOVE:
                    return self._remove(node, name, child, keys[:place], flow)
                return self._replace(name, child, value, flow)
            if not isinstance(child, yaml.MappingNode):
                if value is REMOVE:
                    return self.text
                return self._replace(name, child, _nested(rest, value), flow)
            node, flow = child, flow or bool(child.flow_style)
        return None

    def _insert(self, node: yaml.MappingNode, key: str, value: Any, flow: bool) -> str | None:
        if flow:
            entry = f"{_flow(key)}: {_flow(value)}"
            if not node.value:
                return self._spliced(node.end_mark.index - 1, node.end_mark.index - 1, entry)
            name, last = node.value[-1]
            if last.start_mark.index < name.end_mark.index:
                return None
            at = _end(last, self.text)
            return self._spliced(at, at, f", {entry}")
        first = node.value[0][0]
        if not self._alone(first):
            return None
        indent = first.start_mark.column
        entry = " " * indent + _flow(key) + ":" + self._after_colon(value, indent, "")
        at = self._line_end(_end(node, self.text))
        before = "" if at == 0 or self.text[at - 1 : at] == "\n" else self.newline
        return self._spliced(at, at, before + entry + self.newline)

    def _replace(self, name: yaml.Node, child: yaml.Node, value: Any, flow: bool) -> str | None:
        start, end = child.start_mark.index, _end(child, self.text)
        if flow:
            blank = "" if start > name.end_mark.index + 1 else " "
            return self._spliced(start, end, blank + _flow(value))
        colon = self.text.find(":", name.end_mark.index)
        if not self._alone(name) or colon < 0 or self.text[name.end_mark.index : colon].strip():
            return None
        one_line = "\n" not in self.text[colon:end]
        plain = isinstance(child, yaml.ScalarNode) and child.style not in ("|", ">")
        if plain and start > colon + 1 and _is_inline(value):
            return self._spliced(start, end, _flow(value))
        begun = end if one_line else colon + 1
        row = self.text[begun : self._line_end(begun)]
        comment = re.search(r"[ \t]+#.*", row.rstrip("\r\n"))
        tail = self._line_end(end)
        entry = self._after_colon(value, name.start_mark.column, comment[0] if comment else "")
        ended = self.text[tail - 1 : tail] == "\n"
        return self._spliced(colon + 1, tail, entry + (self.newline if ended else ""))

    def _remove(
        self,
        node: yaml.MappingNode,
        name: yaml.Node,
        child: yaml.Node,
        above: KeyPath,
        flow: bool,
    ) -> str | None:
        if len(node.value) == 1:
            return self.set(above, {}) if above else None
        start, end = name.start_mark.index, _end(child, self.text)
        if flow:
            after = re.compile(r"\s*,[ \t]*").match(self.text, end)
            if after:
                return self._spliced(start, after.end(), "")
            before = re.search(r",\s*\Z", self.text[:start])
            return None if before is None else self._spliced(before.start(), end, "")
        if not self._alone(name):
            return None
        return self._spliced(self._line_start(start), self._line_end(end), "")

    def _after_colon(self, value: Any, indent: int, comment: str) -> str:
        """What follows `key:`, with the comment that the line had."""
        if _is_inline(value):
            return " " + _flow(value) + comment
        inner = " " * (indent + self.step)
        if isinstance(value, str):
            kept = "-" if not value.endswith("\n") else "+" if value.endswith("\n\n") else ""
            rows = value.removesuffix("\n").split("\n")
            return f" |{kept}{comment}" + "".join(
                self.newline + (inner + row if row else "") for row in rows
            )
        text = yaml.safe_dump(
            value,
            sort_keys=False,
            allow_unicode=True,
            width=1 << 20,
            indent=self.step,
            default_flow_style=False,
        )
        rows = text.rstrip("\n").split("\n")
        return comment + "".join(self.newline + (inner + row if row else "") for row in rows)

    def _alone(self, name: yaml.Node) -> bool:
        """Whether nothing stands before the key on its line."""
        start = name.start_mark.index
        return not self.text[self._line_start(start) : start].strip(" ")

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """The beginning of the next line."""
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1

    def _spliced(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]


def _pair(node: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    for name, child in node.value:
        if isinstance(name, yaml.ScalarNode) and name.tag != _MERGE and name.value == key:
            return name, child
    return None


def _end(node: yaml.Node, text: str) -> int:
    """Where a value really ends: the parser counts blank lines and comments after a block."""
    end = int(node.end_mark.index)
    if isinstance(node, yaml.ScalarNode):
        if node.style not in ("|", ">"):
            return end
        start = int(node.start_mark.index)
        return start + len(text[start:end].rstrip())
    if not isinstance(node, yaml.CollectionNode) or node.flow_style:
        return end
    pairs = isinstance(node, yaml.MappingNode)
    children = [value for _, value in node.value] if pairs else node.value
    # An alias stands on its key's line, its value's marks are elsewhere.
    ends = [_end(c, text) for c in children if c.start_mark.index >= node.start_mark.index]
    if pairs and node.value:
        row = text.find("\n", node.value[-1][0].end_mark.index)
        ends.append(len(text) if row < 0 else row)
    return max(ends, default=end)


def _step(root: yaml.MappingNode) -> int:
    """By how much the text indents its maps; 2 where it has none."""
    for _, child in root.value:
        if isinstance(child, yaml.MappingNode) and not child.flow_style and child.value:
            column = int(child.value[0][0].start_mark.column)
            if column > root.start_mark.column:
                return column - int(root.start_mark.column)
    return 2


def _nested(keys: KeyPath, value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _is_inline(value: Any) -> bool:
    """Whether a value stands on its key's line: scalars, empty maps, lists of scalars."""
    if isinstance(value, dict):
        return not value
    if isinstance(value, list | tuple):
        return not any(isinstance(item, dict | list | tuple) for item in value)
    if not isinstance(value, str) or "\n" not in value.strip("\n"):
        return True
    rows = value.removesuffix("\n").split("\n")
    printable = all(row.isprintable() and row == row.rstrip() for row in rows)
    return not printable or rows[0][:1] in ("", " ") or value.endswith("\n\n")


class _OneLine(yaml.SafeDumper):
    """Texts of several lines in double quotes: the other kinds would go over several lines."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_OneLine.add_representer(str, _text)


def _flow(value: Any) -> str:
    """A value on one line, as YAML 1.1 reads it back, inside [ ] too."""
    text = yaml.dump(
        [_plain(value)],
        Dumper=_OneLine,
        default_flow_style=True,
        allow_unicode=True,
        width=1 << 20,
        sort_keys=False,
    )
    return text.strip()[1:-1]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
