"""Text with references to the environment: the one notation that profiles keep.

`${NAME}`, `${NAME:-default}`, `${NAME:?message}` and any other operator of the POSIX shell are
references, `$(command)` is a command whose output is wanted. Before `{` or `(` a literal dollar is
doubled, as in `$${`; elsewhere a dollar is itself. Importers translate into this notation
(compose, `$(NAME)` of Kubernetes, `%VAR%`), exporters out of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[@*0-9]+\])?|[0-9]+|[@*#?!$-]")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Literal:
    text: str


@dataclass(frozen=True)
class Reference:
    """`rest` is what follows the name inside the braces: an operator and its word."""

    name: str
    rest: str = ""

    @property
    def plain(self) -> bool:
        """No default: only the name, or the name and a message for when it is missing."""
        return not self.rest or self.rest.startswith((":?", "?"))


@dataclass(frozen=True)
class Command:
    """The text between `$(` and `)`."""

    text: str


Piece = Literal | Reference | Command
Text = tuple[Piece, ...]


def render(pieces: Iterable[Piece]) -> str:
    """The profile's notation of these pieces."""
    out = ""
    dollars = 0
    for piece in merge(pieces):
        if isinstance(piece, Literal):
            text = re.sub(r"\$+(?=[{(])", lambda m: m.group(0) * 2, piece.text)
            out += text
            dollars = len(text) - len(text.rstrip("$"))
        else:
            out += "$" * dollars
            dollars = 0
            if isinstance(piece, Reference):
                out += "${" + piece.name + piece.rest + "}"
            else:
                out += "$(" + piece.text + ")"
    return out


def merge(pieces: Iterable[Piece]) -> Text:
    """Neighbouring literals joined, empty ones dropped."""
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Literal):
            if not piece.text:
                continue
            if out and isinstance(out[-1], Literal):
                out[-1] = Literal(out[-1].text + piece.text)
                continue
        out.append(piece)
    return tuple(out)


def closing(text: str, start: int, opened: str, closed: str) -> int:
    """Index of the bracket that closes the one just before `start`, or -1. Quotes are honoured."""
    depth = 1
    quote = ""
    i = start
    while i < len(text):
        c = text[i]
        if c == "\\" and quote != "'":
            i += 2
            continue
        if quote:
            if c == quote:
                quote = ""
        elif c in "'\"" and (c == '"' or opened == "("):
            quote = c
        elif c == opened:
            depth += 1
        elif c == closed:
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1


def parse(text: str) -> Text:
    """The pieces of a text in the profile's notation. What is no reference is literal."""
    pieces: list[Piece] = []
    literal = ""
    i = 0
    while i < len(text):
        if text[i] != "$":
            literal += text[i]
            i += 1
            continue
        run = len(text) - i - len(text[i:].lstrip("$"))
        after = text[i + run : i + run + 1]
        if after not in ("{", "("):
            literal += "$" * run
            i += run
            continue
        found = _reference(text, i + run - 1) if run % 2 else None
        literal += "$" * (run // 2)
        if found is None:
            literal += "$" if run % 2 else ""
            literal += after
            i += run + 1
        else:
            pieces += [Literal(literal), found[0]]
            literal = ""
            i = found[1]
    pieces.append(Literal(literal))
    return merge(pieces)


def _reference(text: str, at: int) -> tuple[Piece, int] | None:
    """The reference or command whose dollar is at `at`, and where it ends."""
    if text[at + 1] == "(":
        end = closing(text, at + 2, "(", ")")
        return None if end < 0 else (Command(text[at + 2 : end]), end + 1)
    end = closing(text, at + 2, "{", "}")
    if end < 0:
        return None
    match = NAME.match(text, at + 2, end)
    if match is None:
        return None
    return Reference(match.group(0), text[match.end() : end]), end + 1


def literal(text: str) -> str:
    """The notation of a text that holds no reference."""
    return render([Literal(text)])


def sole_name(text: str) -> str | None:
    """The variable's name, if the text is nothing but one plain reference."""
    pieces = parse(text)
    if len(pieces) == 1 and isinstance(pieces[0], Reference) and pieces[0].plain:
        return pieces[0].name if IDENTIFIER.match(pieces[0].name) else None
    return None


def names(text: str) -> tuple[str, ...]:
    """The variables that a text refers to, defaults included."""
    found: list[str] = []
    for piece in parse(text):
        if isinstance(piece, Reference):
            found.append(piece.name)
            found += names(piece.rest)
    return tuple(found)


def commands(text: str) -> tuple[str, ...]:
    """The commands whose output a text holds."""
    return tuple(piece.text for piece in parse(text) if isinstance(piece, Command))


def read_file(text: str) -> str | None:
    """The path, if the text is nothing but `$(cat PATH)` or `$(< PATH)`."""
    pieces = parse(text)
    if len(pieces) != 1 or not isinstance(pieces[0], Command):
        return None
    try:
        words = shlex.split(pieces[0].text.replace("<", " < "))
    except ValueError:
        return None
    if len(words) == 2 and words[0] in ("cat", "<") and not re.search(r"[$|;&`]", words[1]):
        return words[1]
    return None


def has_references(text: str) -> bool:
    return any(not isinstance(piece, Literal) for piece in parse(text))


def expand(text: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The text with its references filled in from `env`, and what could not be filled in.

    Knows the operators `:-`, `-`, `:?`, `?`, `:+`, `+`; commands are never run."""
    out = ""
    missing: list[str] = []
    for piece in parse(text):
        if isinstance(piece, Literal):
            out += piece.text
        elif isinstance(piece, Command):
            missing.append(f"$({piece.text})")
        else:
            value = env.get(piece.name)
            match = re.match(r"(:?)([-?+])(.*)\Z", piece.rest, re.S)
            if match is None:
                if value is None or piece.rest:
                    missing.append(piece.name)
                out += value or ""
                continue
            given = value is not None and (value != "" or not match.group(1))
            if match.group(2) == "+":
                given = not given
                value = ""
            if given:
                out += value or ""
            elif match.group(2) == "?":
                missing.append(piece.name)
            else:
                filled, gone = expand(match.group(3), env)
                out += filled
                missing += gone
    return out, tuple(missing)
