"""Words of shell text with their quoting: POSIX shells (bash and fish alike) and PowerShell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine_ctl.errors import Usage
from profiles.importing.references import NAME, Command, Literal, Piece, Reference, closing


@dataclass(frozen=True)
class Part:
    """A piece of a word. Unquoted references are split into fields, quoted ones are not."""

    piece: Piece
    quoted: bool


_PLAIN = re.compile(r"[^\s|;&<>()'\"$`\\@,]+")
"""Characters that stand for themselves in every shell, taken at once."""


@dataclass
class Word:
    parts: list[Part] = field(default_factory=list)
    quoted: bool = False
    array: list[Word] | None = None
    environment: bool = False  # PowerShell: `$env:NAME`, not `$name`

    def add(self, text: str, quoted: bool) -> None:
        last = self.parts[-1] if self.parts else None
        if last and isinstance(last.piece, Literal) and last.quoted == quoted:
            self.parts[-1] = Part(Literal(last.piece.text + text), quoted)
        else:
            self.parts.append(Part(Literal(text), quoted))

    @property
    def bare(self) -> str | None:
        """The word's text if it was written without quotes and references."""
        if self.quoted or self.array is not None:
            return None
        if all(isinstance(part.piece, Literal) for part in self.parts):
            return "".join(p.piece.text for p in self.parts if isinstance(p.piece, Literal))
        return None


class WordReader:
    """Reads words of `text` from `i` on. `notes` go to the report.

    Raises Usage, one line with its number, for a quote or bracket that is never closed."""

    def __init__(self, text: str, powershell: bool, notes: list[str]) -> None:
        self.text = text
        self.powershell = powershell
        self.notes = notes
        self.i = 0

    def line(self, at: int | None = None) -> int:
        return self.text.count("\n", 0, self.i if at is None else at) + 1

    def fail(self, what: str, at: int) -> Usage:
        return Usage(f"line {self.line(at)}: {what}")

    def continuation(self) -> bool:
        """Pass over the end of a line that goes on."""
        mark = "`" if self.powershell else "\\"
        if self.text[self.i] != mark:
            return False
        match = re.compile(r"[ \t\r]*(?:\n|\Z)").match(self.text, self.i + 1)
        if match is None:
            return False
        if match.group(0).strip("\r\n"):
            self.notes.append(
                f"line {self.line()}: blanks after the line's last {mark!r}: "
                "taken as a continuation, a shell would end the command here"
            )
        self.i = match.end()
        return True

    def word(self) -> Word:
        """The word that begins here."""
        word = Word()
        text = self.text
        begun = self.i
        while self.i < len(text):
            if self.continuation():
                continue
            c = text[self.i]
            if c in " \t\r\n|;&<>)" or (c == "(" and not self._opens_array(word)):
                if self.i == begun:
                    word.add(c, False)
                    self.i += 1
                break
            if c == "(":
                self._array(word)
            elif c == "'":
                self._single(word)
            elif c == '"':
                self._double(word)
            elif c == "$":
                self._dollar(word, quoted=False)
            elif c == "`" and not self.powershell:
                end = text.find("`", self.i + 1)
                if end < 0:
                    raise self.fail("a back-quote is never closed", self.i)
                word.parts.append(Part(Command(text[self.i + 1 : end]), False))
                self.i = end + 1
            elif c == ("`" if self.powershell else "\\"):
                word.add(text[self.i + 1 : self.i + 2], True)
                self.i += 2
            elif self.powershell and c == "@" and text[self.i + 1 : self.i + 2] in ("'", '"'):
                self._here_string(word)
            elif self.powershell and c == "," and word.parts:
                self.i += 1
                break
            else:
                plain = _PLAIN.match(text, self.i)
                taken = plain[0] if plain else c
                word.add(taken, False)
                self.i += len(taken)
        return word

    def _opens_array(self, word: Word) -> bool:
        before = word.bare or ""
        return before.endswith("=") or (self.powershell and before == "@")

    def _array(self, word: Word) -> None:
        begun = self.i
        self.i += 1
        items: list[Word] = []
        while True:
            if self.i >= len(self.text):
                raise self.fail("a list is never closed by ')'", begun)
            c = self.text[self.i]
            if self.continuation():
                continue
            if c in " \t\r\n,":
                self.i += 1
            elif c == "#":
                end = self.text.find("\n", self.i)
                self.i = len(self.text) if end < 0 else end
            elif c == ")":
                self.i += 1
                break
            else:
                items.append(self.word())
        word.array = items

    def _single(self, word: Word) -> None:
        begun = self.i
        text = self.text
        word.quoted = True
        ansi = word.bare is None and bool(word.parts) and self._takes_ansi(word)
        self.i += 1
        out = ""
        while True:
            if self.i >= len(text):
                raise self.fail("a single quote (') is never closed", begun)
            c = text[self.i]
            if c == "'":
                if self.powershell and text[self.i + 1 : self.i + 2] == "'":
                    out += "'"
                    self.i += 2
                    continue
                self.i += 1
                break
            if ansi and c == "\\":
                out += _ANSI.get(text[self.i + 1], "\\" + text[self.i + 1])
                self.i += 2
                continue
            out += c
            self.i += 1
        word.add(out, True)

    def _takes_ansi(self, word: Word) -> bool:
        """`$'…'`: the dollar was just read as a literal."""
        last = word.parts[-1]
        if isinstance(last.piece, Literal) and not last.quoted and last.piece.text.endswith("$"):
            word.parts[-1] = Part(Literal(last.piece.text[:-1]), False)
            return True
        return False

    def _double(self, word: Word) -> None:
        begun = self.i
        text = self.text
        word.quoted = True
        word.add("", True)
        escape, escaped = ("`", None) if self.powershell else ("\\", '$`"\\\n')
        self.i += 1
        while True:
            if self.i >= len(text):
                raise self.fail('a double quote (") is never closed', begun)
            c = text[self.i]
            following = text[self.i + 1 : self.i + 2]
            if c == '"':
                if self.powershell and following == '"':
                    word.add('"', True)
                    self.i += 2
                    continue
                self.i += 1
                return
            if self.powershell and c == "\\" and following == '"':
                word.add('"', True)
                self.i += 2
            elif c == escape and (escaped is None or (following and following in escaped)):
                if following != "\n":
                    word.add(_PS.get(following, following) if escaped is None else following, True)
                self.i += 2
            elif c == "$":
                self._dollar(word, quoted=True)
            elif c == "`" and not self.powershell:
                end = text.find("`", self.i + 1)
                if end < 0:
                    raise self.fail("a back-quote is never closed", self.i)
                word.parts.append(Part(Command(text[self.i + 1 : end]), True))
                self.i = end + 1
            else:
                word.add(c, True)
                self.i += 1

    def _here_string(self, word: Word) -> None:
        quote = self.text[self.i + 1]
        end = self.text.find("\n" + quote + "@", self.i)
        if end < 0:
            raise self.fail(f"a here-string is never closed by {quote}@", self.i)
        word.quoted = True
        word.add(self.text[self.i + 2 : end].lstrip("\r\n"), True)
        self.i = end + 3

    def _dollar(self, word: Word, quoted: bool) -> None:
        text, at = self.text, self.i
        if text.startswith("$(", at):
            if text.startswith("$((", at):
                end = text.find("))", at)
                end = end + 1 if end >= 0 else -1
            else:
                end = closing(text, at + 2, "(", ")")
            if end < 0:
                raise self.fail("'$(' is never closed by ')'", at)
            word.parts.append(Part(Command(text[at + 2 : end]), quoted))
            self.i = end + 1
            return
        if text.startswith("${", at):
            end = closing(text, at + 2, "{", "}")
            if end < 0:
                raise self.fail("'${' is never closed by '}'", at)
            inner = (
                text[at + 2 : end].removeprefix("env:") if self.powershell else text[at + 2 : end]
            )
            match = NAME.match(inner)
            if match is None:
                word.add(text[at : end + 1], quoted)
            else:
                reference = Reference(match.group(0), _unquote(inner[match.end() :]))
                word.parts.append(Part(reference, quoted))
            self.i = end + 1
            return
        at += 1
        if self.powershell and text[at : at + 4].lower() == "env:":
            at += 4
            word.environment = True
        simple = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?!$-]").match(text, at)
        if simple is None or (self.powershell and not simple.group(0)[0].isidentifier()):
            word.add("$", quoted)
            self.i += 1
            return
        word.parts.append(Part(Reference(simple.group(0)), quoted))
        self.i = simple.end()


_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "0": "\0"}
_PS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def _unquote(rest: str) -> str:
    """A default's word without the quotes around it: `:-"a b"` is `:-a b`."""
    match = re.match(r"(:?[-?+=])(['\"])(.*)\2\Z", rest, re.S)
    return match.group(1) + match.group(3) if match else rest
