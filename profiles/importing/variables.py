"""The variables of a script: assignments followed, references filled in, words split into fields.

Nothing is run: what only a running shell knows stays a reference or a command.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re

from profiles.importing.arithmetic import arithmetic
from profiles.importing.references import (
    IDENTIFIER,
    Command,
    Literal,
    Piece,
    Reference,
    Text,
    merge,
    parse,
    render,
)
from profiles.importing.secrets import is_secret, not_stored
from profiles.importing.words import Word

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")


class Variables:
    """What one script defines. `env` is what it exports, `files` what it writes, `secrets` the
    literal values that must not be written anywhere; `notes` go to the report."""

    def __init__(self, powershell: bool = False) -> None:
        self.powershell = powershell
        self.values: dict[str, list[Piece]] = {}
        self.arrays: dict[str, list[Text]] = {}
        self.exported: set[str] = set()
        self.env: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.notes: list[str] = []
        self.secrets: set[str] = set()

    def define(self, words: list[Word]) -> bool:
        """Take over what a statement sets; False when it sets nothing."""
        return self._powershell(words) if self.powershell else self._posix(words)

    def _posix(self, words: list[Word]) -> bool:
        head = words[0].bare
        if head in ("export", "declare", "typeset", "local", "readonly"):
            options = "".join(w.bare for w in words[1:] if w.bare and w.bare[0] == "-")
            exports = "n" not in options if head == "export" else "x" in options
            for word in words[1:]:
                if word.bare and word.bare.startswith(("-", "+")):
                    continue
                name = self._assign(word, exported=exports)
                if name is None and exports and word.bare and IDENTIFIER.match(word.bare):
                    self._export(word.bare)
            return True
        if head == "shift" and "@" in self.arrays:
            count = words[1].bare if len(words) > 1 else "1"
            if not (count and count.isdecimal()):
                return False
            self._arguments(self.arrays["@"][int(count) :])
            return True
        if head == "set":
            if len(words) > 1 and words[1].bare == "--":
                self._positional(words[2:])
                return True
            return self._fish_set(words)
        if head == ":":
            for word in words[1:]:
                self.fields(word)  # `: ${NAME:=default}` sets the default.
            return True
        if head == "unset":
            for word in words[1:]:
                self._forget(word.bare or "")
            return True
        if all(ASSIGNMENT.match(word.bare or self.head(word)) for word in words):
            for word in words:
                self._assign(word)
            return True
        return False

    def _positional(self, words: list[Word]) -> None:
        """`set -- …`: the script's own arguments from here on."""
        self._arguments([f for word in words for f in self.fields(word)])

    def _arguments(self, given: list[Text]) -> None:
        self.arrays["@"] = self.arrays["*"] = given
        for number in range(1, 10):
            self.values.pop(str(number), None)
        self.values |= {str(n): list(f) for n, f in enumerate(given[:9], 1)}

    def _fish_set(self, words: list[Word]) -> bool:
        options = [w.bare for w in words[1:] if w.bare and w.bare.startswith("-")]
        rest = [w for w in words[1:] if not (w.bare and w.bare.startswith("-"))]
        if len(rest) >= 1 and rest[0].bare and IDENTIFIER.match(rest[0].bare):
            name = rest[0].bare
            if "-e" in options:
                self._forget(name)
                return True
            fields = [f for word in rest[1:] for f in self.fields(word)]
            if len(fields) > 1:
                self.arrays[name] = fields
            self.values[name] = list(_join(fields))
            if any("x" in o.lstrip("-") and not o.startswith("--") for o in options if o) or (
                "--export" in options
            ):
                self._export(name)
        return True

    def _powershell(self, words: list[Word]) -> bool:
        """`$env:NAME = "value"` and `$name = "value"`, also without blanks around `=`."""
        first = words[0]
        if not first.parts or first.quoted or not isinstance(first.parts[0].piece, Reference):
            return bool(words[0].bare) and (words[0].bare or "").lower() in (
                "set-location",
                "param",
            )
        name = first.parts[0].piece.name
        rest: list[Word] = []
        if len(first.parts) == 1 and len(words) > 1 and words[1].bare == "=":
            rest = words[2:]
        elif len(first.parts) > 1 and isinstance(first.parts[1].piece, Literal):
            if not first.parts[1].piece.text.startswith("="):
                return False
            tail = Word(list(first.parts), first.quoted, first.array)
            tail.parts = list(first.parts[1:])
            text = first.parts[1].piece.text[1:]
            tail.parts[0] = type(first.parts[1])(Literal(text), first.parts[1].quoted)
            rest = [tail, *words[1:]]
        else:
            return False
        array = next((w.array for w in rest if w.array is not None), None)
        if array is not None:
            self.arrays[name] = [f for word in array for f in self.fields(word)]
            return True
        self.values[name] = list(_join([f for word in rest for f in self.fields(word)]))
        if first.environment:
            self._export(name)
        return True

    def head(self, word: Word) -> str:
        """The text before the first quote or reference, for `NAME="…"`."""
        if word.parts and isinstance(word.parts[0].piece, Literal) and not word.parts[0].quoted:
            return word.parts[0].piece.text
        return ""

    def _assign(self, word: Word, exported: bool = False) -> str | None:
        match = ASSIGNMENT.match(self.head(word))
        if match is None:
            return None
        name, append = match[1], match[2] == "+="
        if word.array is not None:
            items = [f for item in word.array for f in self.fields(item)]
            self.arrays[name] = [*(self.arrays.get(name, []) if append else []), *items]
            return name
        value = self.value(word, match.end())
        self.values[name] = [*(self.values.get(name, []) if append else []), *value]
        if exported or name in self.exported:
            self._export(name)
        return name

    def value(self, word: Word, skip: int) -> list[Piece]:
        """The assigned text: never split into fields."""
        pieces: list[Piece] = []
        for place, part in enumerate(word.parts):
            piece = part.piece
            if place == 0 and isinstance(piece, Literal):
                piece = Literal(piece.text[skip:])
                if piece.text.startswith("~/"):
                    pieces.append(Reference("HOME"))
                    piece = Literal(piece.text[1:])
            pieces += self.expanded(piece)
        return list(merge(pieces))

    def _export(self, name: str) -> None:
        self.exported.add(name)
        if name in self.values:
            value = render(self.values[name])
            self.env[name] = value
            if (
                is_secret(name)
                and value
                and not any(not isinstance(p, Literal) for p in self.values[name])
            ):
                self.secret(name, value)
        else:
            self.env.setdefault(name, "${" + name + "}")

    def secret(self, name: str, value: str) -> None:
        """Keep a literal secret out of everything that is written."""
        if value:
            self.secrets.add(value)
            self.notes.append(not_stored(name))

    def _forget(self, name: str) -> None:
        self.values.pop(name, None)
        self.arrays.pop(name, None)
        self.exported.discard(name)
        self.env.pop(name, None)

    def expanded(self, piece: Piece) -> Text:
        """A piece with what the script itself defines filled in; secrets stay references."""
        if isinstance(piece, Command):
            number = arithmetic(piece.text, self._numbers())
            if number is not None:
                return (Literal(str(number)),)
            shown = re.fullmatch(r"\s*(?:cat|<)\s+([^\s|;&]+)\s*", piece.text)
            content = self.file(shown[1].strip("\"'")) if shown else None
            return (piece,) if content is None else (Literal(content.rstrip("\n")),)
        if isinstance(piece, Literal):
            return (piece,)
        name = piece.name.partition("[")[0]
        if is_secret(name) and name in self.values:
            value = self.values[name]
            if all(isinstance(p, Literal) for p in value):
                self.secret(name, "".join(p.text for p in value if isinstance(p, Literal)))
                return (Reference(name),)
        match = re.match(r"(:?[-=+?])(.*)\Z", piece.rest, re.S)
        if name in self.values and (not piece.rest or match):
            value = self.values[name]
            if match and match[1][-1] == "+":
                return self._nested(match[2])
            if value or not match or not match[1].startswith(":"):
                return tuple(value)
        if name in self.values and name == piece.name and not match:
            cut = _without(self.values[name], piece.rest)
            if cut is not None:
                return (Literal(cut),)
            written = f"${{{piece.name}{piece.rest}}}"
            self.notes.append(f"{written}: only a shell works that out; put its result there")
            return (piece,)
        if name in self.arrays:
            return _join(self.arrays[name])
        if match and match[1][-1] == "=":
            value = list(self._nested(match[2]))
            self.values[name] = [Reference(name, ":-" + render(value))]
            return (Reference(name, ":-" + render(value)),)
        if match and match[1][-1] == "-" and not piece.name[0].isidentifier():
            return self._nested(match[2])
        if match and match[1][-1] == "-":
            return (Reference(piece.name, match[1] + render(self._nested(match[2]))),)
        return (piece,)

    def _numbers(self) -> dict[str, int]:
        known = {name: render(value) for name, value in self.values.items()}
        return {name: int(text) for name, text in known.items() if text.isdecimal()}

    def _nested(self, text: str) -> Text:
        return merge(p for piece in parse(text) for p in self.expanded(piece))

    def fields(self, word: Word) -> list[Text]:
        """The fields of a word after expansion, as a shell would split them."""
        if word.array is not None:
            return [f for item in word.array for f in self.fields(item)]
        out: list[list[Piece]] = [[]]
        filled = word.quoted
        for part in word.parts:
            piece = part.piece
            if isinstance(piece, Reference):
                name, _, index = piece.name.partition("[")
                every = index.startswith("@") or name == "@"
                if name in self.arrays and (every or not part.quoted):
                    items = self.arrays[name]
                    if not items and len(word.parts) == 1:
                        return []
                    for place, item in enumerate(items):
                        if place:
                            out.append([])
                        out[-1] += item
                    filled = True
                    continue
            expanded = self.expanded(piece)
            if part.quoted or isinstance(piece, Literal) or self.powershell:
                out[-1] += expanded
                filled = filled or bool(expanded)
                continue
            for place, run in enumerate(_split(expanded)):
                if place:
                    out.append([])
                out[-1] += run
        if not filled and out == [[]]:
            return []
        if self.powershell and out[0] and isinstance(out[0][0], Literal):
            splat = out[0][0].text.removeprefix("@")
            if out[0][0].text.startswith("@") and splat in self.arrays:
                return list(self.arrays[splat])
        fields = [merge(field) for field in out]
        return [f for f in fields if f or filled]

    def words(self, word: Word) -> list[str]:
        """The fields of a word in the profile's notation."""
        return [render(f) for f in self.fields(word)]

    def file(self, name: str) -> str | None:
        """What the script has written into a file of this name."""
        return self.files.get(file_name(name))


def _without(value: list[Piece], rest: str) -> str | None:
    """`${NAME#pattern}` and the like: the text without its beginning or end; None for others."""
    found = re.match(r"(##?|%%?)([^$`'\"\\]*)\Z", rest, re.S)
    texts = [piece.text for piece in value if isinstance(piece, Literal)]
    if found is None or len(texts) < len(value):
        return None
    text = "".join(texts)
    fits = re.compile(fnmatch.translate(found[2]))
    if found[1][0] == "#":
        places = [at for at in range(len(text) + 1) if fits.match(text[:at])]
        at = (places[-1] if found[1] == "##" else places[0]) if places else 0
        return text[at:]
    places = [at for at in range(len(text) + 1) if fits.match(text[at:])]
    at = (places[0] if found[1] == "%%" else places[-1]) if places else len(text)
    return text[:at]


def file_name(name: str) -> str:
    """One spelling of a file's name, without quotes."""
    return posixpath.normpath(name.strip("\"'"))


def _join(fields: list[Text]) -> Text:
    out: list[Piece] = []
    for place, item in enumerate(fields):
        if place:
            out.append(Literal(" "))
        out += item
    return merge(out)


def _split(pieces: Text) -> list[list[Piece]]:
    """Fields of an unquoted expansion."""
    out: list[list[Piece]] = [[]]
    for piece in pieces:
        if not isinstance(piece, Literal):
            out[-1].append(piece)
            continue
        for place, run in enumerate(re.split(r"[ \t\n]+", piece.text)):
            if place and out[-1]:
                out.append([])
            if run:
                out[-1].append(Literal(run))
    if len(out) > 1 and not out[-1]:
        out.pop()
    return out
