"""The profile's notation of texts in each format's own: quoting, escapes, references."""

from __future__ import annotations

import re
import shlex

from profiles.importing.references import Command, Literal, Reference, parse, render

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")


def shell(text: str) -> str:
    """One word for a POSIX shell: single quotes, or double ones around references."""
    pieces = parse(text)
    if all(isinstance(piece, Literal) for piece in pieces):
        plain = "".join(p.text for p in pieces if isinstance(p, Literal))
        return plain if _PLAIN.match(plain) else shlex.quote(plain)
    out = ""
    for piece in pieces:
        if isinstance(piece, Literal):
            out += re.sub(r'([\\"$`])', r"\\\1", piece.text)
        elif isinstance(piece, Reference):
            out += "${" + piece.name + piece.rest + "}"
        else:
            out += "$(" + piece.text + ")"
    return f'"{out}"'


def shell_in_compose(text: str) -> str:
    """One word for a shell that compose starts: references are compose's, commands the shell's."""
    pieces = parse(text)
    if all(isinstance(piece, Literal) for piece in pieces):
        return shell(text).replace("$", "$$")
    out = ""
    for piece in pieces:
        if isinstance(piece, Literal):
            out += re.sub(r'([\\"$`])', r"\\\1", piece.text).replace("$", "$$")
        else:
            out += compose(render([piece]))
    return f'"{out}"'


def compose(text: str) -> str:
    """compose: `$$` is a dollar. Commands stay for a shell to run."""
    out = ""
    for piece in parse(text):
        if isinstance(piece, Literal):
            out += piece.text.replace("$", "$$")
        elif isinstance(piece, Reference):
            out += "${" + piece.name + compose(piece.rest) + "}"
        else:
            out += "$$(" + piece.text.replace("$", "$$") + ")"
    return out


def kubernetes(text: str) -> str:
    """Kubernetes: `$(NAME)`; `$$` is a dollar."""
    return "".join(
        piece.text.replace("$", "$$")
        if isinstance(piece, Literal)
        else f"$({piece.name})"
        if isinstance(piece, Reference)
        else f"$$({piece.text.replace('$', '$$')})"
        for piece in parse(text)
    )


def systemd(text: str, specifiers: frozenset[str] = frozenset(), expand: bool = True) -> str:
    """One word for systemd: `%` and `$` doubled, C escapes in double quotes."""
    out = ""
    for piece in parse(text):
        if isinstance(piece, Reference):
            out += "${" + piece.name + "}"
        elif isinstance(piece, Literal):
            out += _systemd_literal(piece.text, specifiers, expand)
        else:
            out += _systemd_literal(f"$({piece.text})", specifiers, expand)
    if re.fullmatch(r"(?:[A-Za-z0-9_@+=:,./~{}%-]|\$\{\w+\})+", out):
        return out
    return f'"{out}"'


def _systemd_literal(text: str, specifiers: frozenset[str], expand: bool) -> str:
    out = ""
    i = 0
    while i < len(text):
        c = text[i]
        if c == "%" and text[i : i + 2] in specifiers:
            out += text[i : i + 2]
            i += 2
            continue
        if c == "%":
            out += "%%"
        elif c == "$" and expand:
            out += "$$"
        elif c in '\\"':
            out += "\\" + c
        elif c == "\n":
            out += "\\n"
        elif c == "\t":
            out += "\\t"
        elif ord(c) < 32 or ord(c) == 127:
            out += f"\\x{ord(c):02x}"
        else:
            out += c
        i += 1
    return out


def is_simple(text: str, defined: frozenset[str] | None = None) -> bool:
    """Whether a format without a shell can say the text: only plain references, and where
    `defined` is given only to these names."""
    for piece in parse(text):
        if isinstance(piece, Command):
            return False
        if isinstance(piece, Reference):
            if piece.rest or not re.fullmatch(r"[A-Za-z_]\w*", piece.name):
                return False
            if defined is not None and piece.name not in defined:
                return False
    return True
