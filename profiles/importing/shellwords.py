"""Shell text as statements: words with their quoting, operators, redirections, here-documents.

POSIX shells (bash and fish where they agree) and PowerShell. Nothing is expanded here and nothing
is ever run; `script` gives the statements their meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiles.importing.references import Literal, Piece
from profiles.importing.words import Word, WordReader


@dataclass
class Redirect:
    op: str
    target: Word
    content: str | None = None
    expands: bool = True


@dataclass
class Statement:
    """`operator` ends it: newline, `;`, `&&`, `||`, `|`, `&` or nothing. `line` counts from 1."""

    words: list[Word]
    redirects: list[Redirect]
    operator: str
    line: int
    start: int
    end: int
    understood: bool = False
    conditional: bool = False


OPERATORS = ("&&", "||", "|&", ";;", "|", ";", "&", "(", ")")
REDIRECT = re.compile(r"(?:\d*|&)(?:<<<|<<-|<<|>>|>\||>&|<&|>|<)")
_KEYWORDS = "if then elif else fi for while until do done case esac { } ! time"
KEYWORDS = frozenset(_KEYWORDS.split())


def statements(
    text: str, powershell: bool = False, notes: list[str] | None = None
) -> list[Statement]:
    """Statements of a script, in order, control keywords dropped.

    Raises:
        Usage: a quote or bracket is never closed (one line, with the line number).
    """
    return _Lexer(text, powershell, [] if notes is None else notes).run()


class _Lexer(WordReader):
    def __init__(self, text: str, powershell: bool, notes: list[str]) -> None:
        super().__init__(text, powershell, notes)
        self.pending: list[tuple[Redirect, bool]] = []
        self.out: list[Statement] = []
        self.words: list[Word] = []
        self.redirects: list[Redirect] = []
        self.start = 0
        self.branches = 0

    def run(self) -> list[Statement]:
        text = self.text
        while self.i < len(text):
            if self.continuation():
                continue
            c = text[self.i]
            if c == "\n":
                self._end("\n")
                self.i += 1
                self._heredocs()
            elif c in " \t\r":
                self.i += 1
            elif c == "#":
                end = text.find("\n", self.i)
                self.i = len(text) if end < 0 else end
            elif self._operator() or self._redirect():
                pass
            else:
                self._begin()
                self.words.append(self.word())
        self._end("")
        return self.out

    def _begin(self) -> None:
        if not self.words and not self.redirects:
            self.start = self.i

    def _end(self, operator: str) -> None:
        while self.words and self.words[0].bare in KEYWORDS:
            if self.words[0].bare in ("for", "case", "while", "until"):
                break
            self._branch(self.words[0].bare)
            del self.words[0]
        if self.words and self.words[0].bare == "case":
            self.branches += 1
        if self.words and self.words[-1].bare == "}":
            del self.words[-1]
        if self.words or self.redirects:
            line = self.line(self.start)
            end = self.i
            made = Statement(self.words, self.redirects, operator, line, self.start, end)
            made.conditional = self.branches > 0 or self._after_a_test()
            self.out.append(made)
        elif self.out and operator in ("&&", "||", "|", "&") and not self.words:
            self.out[-1].operator = operator
        self.words, self.redirects = [], []

    def _branch(self, keyword: str | None) -> None:
        if keyword == "if":
            self.branches += 1
        elif keyword in ("fi", "esac"):
            self.branches = max(0, self.branches - 1)

    def _after_a_test(self) -> bool:
        """`[ … ] && this`."""
        if not self.out or self.out[-1].operator not in ("&&", "||"):
            return False
        words = self.out[-1].words
        return bool(words) and words[0].bare in ("[", "[[", "test")

    def _operator(self) -> bool:
        for operator in OPERATORS:
            if self.text.startswith(operator, self.i):
                if operator == "&" and self.text.startswith("&>", self.i):
                    return False
                if self.powershell and operator == "&" and not self.words:
                    self.i += 1
                    return True
                self._end("" if operator == "(" else operator)
                self.i += len(operator)
                return True
        return False

    def _redirect(self) -> bool:
        match = REDIRECT.match(self.text, self.i)
        if match is None:
            return False
        self._begin()
        op = match.group(0)
        self.i = match.end()
        while self.i < len(self.text) and self.text[self.i] in " \t":
            self.i += 1
        target = self.word() if self.i < len(self.text) else Word()
        redirect = Redirect(op, target)
        self.redirects.append(redirect)
        if op.lstrip("0123456789") in ("<<", "<<-"):
            redirect.expands = not target.quoted
            self.pending.append((redirect, op.endswith("-")))
        return True

    def _heredocs(self) -> None:
        for redirect, strip in self.pending:
            end = "".join(
                p.piece.text for p in redirect.target.parts if isinstance(p.piece, Literal)
            )
            lines: list[str] = []
            begun = self.i
            while True:
                if self.i >= len(self.text):
                    raise self.fail(f"the here-document is never ended by {end!r}", begun)
                stop = self.text.find("\n", self.i)
                stop = len(self.text) if stop < 0 else stop
                row = self.text[self.i : stop]
                self.i = min(stop + 1, len(self.text))
                row = row.lstrip("\t") if strip else row
                if row.rstrip("\r") == end:
                    break
                lines.append(row)
            redirect.content = "".join(line + "\n" for line in lines)
            if self.out:
                self.out[-1].end = self.i
        self.pending = []


def split(text: str) -> list[list[Piece]]:
    """The words of one line that no shell expands (compose's own splitting): POSIX quoting only.

    References stay pieces of their words and newlines are blanks, as with `shlex`."""
    words: list[list[Piece]] = []
    for statement in statements(_flat(text)):
        words += [[part.piece for part in word.parts] for word in statement.words]
    return words


def _flat(text: str) -> str:
    """Newlines outside quotes become blanks."""
    out, quote, i = "", "", 0
    while i < len(text):
        c = text[i]
        if c == "\\" and quote != "'":
            out += text[i : i + 2]
            i += 2
            continue
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == "\n":
            c = " "
        out += c
        i += 1
    return out
