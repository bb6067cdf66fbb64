"""Files beside an imported one that it refers to: read where they are there, bounded, never run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from engine_ctl.atomic import open_regular

_MAX_BYTES = 1 << 20
_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*[=:](.*)\Z", re.S)
_PLAIN_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.S)


def read_beside(name: str, base: Path | None) -> str | None:
    """The text of a file named in another of the folder `base`; None without a folder, for a name
    with a reference in it, and for what is missing, no regular file, too large or no text."""
    if base is None or not name or "$" in name or "\0" in name:
        return None
    try:
        file = open_regular(Path(os.path.expanduser(name)) if name[0] == "~" else base / name)
        if file is None:
            return None
        with file:
            data = file.read(_MAX_BYTES + 1)
        return None if len(data) > _MAX_BYTES else data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def compose_variables(text: str) -> list[tuple[str, str]]:
    """compose's `.env` and `env_file`: values in compose's own notation (`$$`, `${NAME}`).

    Single quotes make a value literal; a comment begins after a blank."""
    out: list[tuple[str, str]] = []
    for row in _rows(text):
        found = _ASSIGNMENT.match(row)
        if found is None:
            continue
        value = found[2].strip()
        quoted = re.match(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", value, re.S)
        if quoted is None:
            value = re.split(r"\s#", value)[0].rstrip()
        elif quoted[1] is not None:
            value = quoted[1].replace("$", "$$")
        else:
            value = re.sub(r"\\([nrt\"\\$])", _unescaped, quoted[2])
        out.append((found[1], value))
    return out


def plain_variables(text: str) -> list[tuple[str, str | None]]:
    """docker's `--env-file`: everything after `=` is the value; a name alone is the caller's."""
    out: list[tuple[str, str | None]] = []
    for row in map(str.lstrip, text.splitlines()):
        if not row or row.startswith("#"):
            continue
        found = _PLAIN_ASSIGNMENT.match(row)
        out.append((found[1], found[2]) if found else (row.strip(), None))
    return out


def unit_variables(text: str) -> list[tuple[str, str]]:
    """systemd's `EnvironmentFile=`: quotes around a value are dropped, lines may be continued."""
    out: list[tuple[str, str]] = []
    for row in _rows(re.sub(r"\\\n", "", text)):
        found = _PLAIN_ASSIGNMENT.match(row)
        if found is None:
            continue
        value = found[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        out.append((found[1], value))
    return out


def _rows(text: str) -> Iterable[str]:
    """Rows that are no comments; a quoted value may go over several."""
    rows = iter(text.splitlines())
    for row in rows:
        row = row.strip()
        if not row or row[0] in "#;":
            continue
        quote = re.match(r"[^'\"=]*=\s*(['\"])", row)
        while quote and len(re.findall(rf"(?<!\\){quote[1]}", row)) == 1:
            following = next(rows, None)
            if following is None:
                break
            row += "\n" + following
        yield row


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r", "t": "\t", "$": "$$"}.get(match[1], match[1])
