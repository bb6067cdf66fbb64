"""What a script would run: variables, files and exports followed up to the engine's start.

The statements are evaluated as far as that needs no execution: assignments, arrays, `export`,
here-documents, fish `set -x`, PowerShell variables. Everything else is kept as text.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from dataclasses import dataclass, field

from engine_ctl.errors import Usage
from profiles.importing.arithmetic import arithmetic
from profiles.importing.launching import (
    SHELLS,
    TALKERS,
    Invocation,
    find_invocation,
    prefix,
    program_name,
)
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
from profiles.importing.shellwords import Redirect, Statement, Word, statements

QUIET = frozenset(["cd", "set", "shopt", "true", ":", "exit", "return"])
_BRANCH = re.compile(r"^(?:then|else|elif|do)\s+")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")


@dataclass
class Script:
    """All that a script says about running engines. `texts` are (line, text) of other commands."""

    invocations: list[Invocation] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)


Value = list[Piece] | list[list[Piece]]


class Evaluator:
    """Follows one script. `variables` may hold what an outer text defined already."""

    def __init__(self, powershell: bool = False) -> None:
        self.powershell = powershell
        self.variables: dict[str, list[Piece]] = {}
        self.arrays: dict[str, list[Text]] = {}
        self.exported: set[str] = set()
        self.result = Script()
        self.depth = 0

    def run(self, text: str) -> Script:
        script = statements(text, self.powershell, self.result.notes)
        piped: list[Statement] = []
        for statement in script:
            if statement.operator in ("|", "|&"):
                piped.append(statement)
                continue
            group = [*piped, statement]
            piped = []
            self._pipeline(text, group)
        if piped:
            self._pipeline(text, piped)
        return self.result

    def _pipeline(self, text: str, group: list[Statement]) -> None:
        self._piped_file(group)
        source = text[group[0].start : group[-1].end].strip()
        for place, statement in enumerate(group):
            if self._meaning(statement):
                self._doubt(text, statement)
                continue
            found = self._invocation(statement)
            if found is None:
                continue
            found.tail = self._tail(text, statement, group[place + 1 :], group[-1])
            if place:
                self.result.before.append(text[group[0].start : group[place - 1].end].strip())
            self.result.invocations.append(found)
            return
        if any(s.words for s in group) and not all(self._understood(s) for s in group):
            operator = group[-1].operator if group[-1].operator in ("&&", "||", "&") else ""
            kept = (source + " " + operator).strip()
            (self.result.after if self.result.invocations else self.result.before).append(kept)

    def _doubt(self, text: str, statement: Statement) -> None:
        """Say of an assignment under a condition that it was followed all the same."""
        found = [_ASSIGNMENT.match(self._head(word)) for word in statement.words]
        names = [match[1] for match in found if match]
        if not statement.conditional or not names or self.powershell:
            return
        shown = _BRANCH.sub("", " ".join(text[statement.start : statement.end].split()))
        if len(shown) > 80 or any(map(is_secret, names)):
            shown = f"what sets {', '.join(names)}"
        self.result.notes.append(
            f"line {statement.line}: {shown} stands under a condition: taken as if it held"
        )

    def _tail(self, text: str, statement: Statement, rest: list[Statement], last: Statement) -> str:
        """Redirections, pipes and the closing operator, as written."""
        parts: list[str] = []
        for redirect in statement.redirects:
            if redirect.content is None:
                target = "".join(self._plain_fields(redirect.target))
                space = "" if redirect.op.endswith("&") else " "
                parts.append(redirect.op + space + target)
        if rest:
            parts.append("| " + text[rest[0].start : rest[-1].end].strip())
        if last.operator in ("&", "&&", "||"):
            parts.append(last.operator)
        return " ".join(parts)

    def _understood(self, statement: Statement) -> bool:
        return not statement.words or statement.understood

    def _meaning(self, statement: Statement) -> bool:
        """Assignments, exports and files: taken into the evaluator, not kept as text."""
        self._write_file(statement)
        words = list(statement.words)
        if not words:
            return True
        known = self._powershell(words) if self.powershell else self._posix(words)
        if not known and statement.redirects and words[0].bare in ("cat", "tee"):
            known = any(r.content is not None for r in statement.redirects)
        if words[0].bare in QUIET and words[0].bare != "cd":
            known = True
        known = known or statement.understood
        statement.understood = known
        return known

    def _posix(self, words: list[Word]) -> bool:
        head = words[0].bare
        if head in ("export", "declare", "typeset", "local", "readonly"):
            for word in words[1:]:
                if word.bare and word.bare.startswith("-"):
                    continue
                name = self._assign(word, exported=head == "export")
                if name is None and word.bare and IDENTIFIER.match(word.bare):
                    self._export(word.bare)
            return True
        if head == "set":
            return self._fish_set(words)
        if head == "unset":
            for word in words[1:]:
                self._forget(word.bare or "")
            return True
        if all(_ASSIGNMENT.match(word.bare or self._head(word)) for word in words):
            for word in words:
                self._assign(word)
            return True
        return False

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
            self.variables[name] = list(_join(fields))
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
        self.variables[name] = list(_join([f for word in rest for f in self.fields(word)]))
        if first.environment:
            self._export(name)
        return True

    def _head(self, word: Word) -> str:
        """The text before the first quote or reference, for `NAME="…"`."""
        if word.parts and isinstance(word.parts[0].piece, Literal) and not word.parts[0].quoted:
            return word.parts[0].piece.text
        return ""

    def _assign(self, word: Word, exported: bool = False) -> str | None:
        match = _ASSIGNMENT.match(self._head(word))
        if match is None:
            return None
        name, append = match[1], match[2] == "+="
        if word.array is not None:
            items = [f for item in word.array for f in self.fields(item)]
            self.arrays[name] = [*(self.arrays.get(name, []) if append else []), *items]
            return name
        value = self._value(word, match.end())
        self.variables[name] = [*(self.variables.get(name, []) if append else []), *value]
        if exported or name in self.exported:
            self._export(name)
        return name

    def _value(self, word: Word, skip: int) -> list[Piece]:
        """The assigned text: never split into fields."""
        pieces: list[Piece] = []
        for place, part in enumerate(word.parts):
            piece = part.piece
            if place == 0 and isinstance(piece, Literal):
                piece = Literal(piece.text[skip:])
                if piece.text.startswith("~/"):
                    pieces.append(Reference("HOME"))
                    piece = Literal(piece.text[1:])
            pieces += self._expanded(piece)
        return list(merge(pieces))

    def _export(self, name: str) -> None:
        self.exported.add(name)
        if name in self.variables:
            value = render(self.variables[name])
            self.result.env[name] = value
            if (
                is_secret(name)
                and value
                and not any(not isinstance(p, Literal) for p in self.variables[name])
            ):
                self._secret(name, value)
        else:
            self.result.env.setdefault(name, "${" + name + "}")

    def _secret(self, name: str, value: str) -> None:
        if value:
            self.result.secrets.add(value)
            self.result.notes.append(not_stored(name))

    def _forget(self, name: str) -> None:
        self.variables.pop(name, None)
        self.arrays.pop(name, None)
        self.exported.discard(name)
        self.result.env.pop(name, None)

    def _expanded(self, piece: Piece) -> Text:
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
        if is_secret(name) and name in self.variables:
            value = self.variables[name]
            if all(isinstance(p, Literal) for p in value):
                self._secret(name, "".join(p.text for p in value if isinstance(p, Literal)))
                return (Reference(name),)
        match = re.match(r"(:?[-=+?])(.*)\Z", piece.rest, re.S)
        if name in self.variables and (not piece.rest or match):
            value = self.variables[name]
            if match and match[1][-1] == "+":
                return self._nested(match[2])
            if value or not match or not match[1].startswith(":"):
                return tuple(value)
        if name in self.arrays:
            return _join(self.arrays[name])
        if match and match[1][-1] == "=":
            value = list(self._nested(match[2]))
            self.variables[name] = [Reference(name, ":-" + render(value))]
            return (Reference(name, ":-" + render(value)),)
        if match and match[1][-1] == "-" and not piece.name[0].isidentifier():
            return self._nested(match[2])
        if match and match[1][-1] == "-":
            return (Reference(piece.name, match[1] + render(self._nested(match[2]))),)
        return (piece,)

    def _numbers(self) -> dict[str, int]:
        known = {name: render(value) for name, value in self.variables.items()}
        return {name: int(text) for name, text in known.items() if text.isdecimal()}

    def _nested(self, text: str) -> Text:
        return merge(p for piece in parse(text) for p in self._expanded(piece))

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
                if name in self.arrays and (index.startswith("@") or not part.quoted):
                    items = self.arrays[name]
                    if not items and len(word.parts) == 1:
                        return []
                    for place, item in enumerate(items):
                        if place:
                            out.append([])
                        out[-1] += item
                    filled = True
                    continue
            expanded = self._expanded(piece)
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

    def _plain_fields(self, word: Word) -> list[str]:
        return [render(f) for f in self.fields(word)]

    def file(self, name: str) -> str | None:
        return self.result.files.get(_path(name))

    def _write_file(self, statement: Statement) -> None:
        content: str | None = None
        target: str | None = None
        append = False
        for redirect in statement.redirects:
            if redirect.content is not None:
                content = self._document(redirect)
            elif redirect.op in (">", ">>", ">|", "1>"):
                target = "".join(self._plain_fields(redirect.target))
                append = redirect.op == ">>"
        head = statement.words[0].bare if statement.words else None
        if content is not None and target is None and head in ("tee", "sudo"):
            named = [f for w in statement.words[1:] for f in self._plain_fields(w)]
            named = [w for w in named if not w.startswith("-") and w != "tee"]
            target = named[0] if named else None
        if content is None and target and head in ("echo", "printf"):
            words = [f for w in statement.words[1:] for f in self._plain_fields(w)]
            content = " ".join(w for w in words if w != "-e") + "\n"
        if content is not None and target:
            path = _path(target)
            before = self.result.files.get(path, "") if append else ""
            self.result.files[path] = before + content

    def _piped_file(self, group: list[Statement]) -> None:
        """`cat <<EOF | tee FILE`: the document goes into the file."""
        for first, second in itertools.pairwise(group):
            document = next((r for r in first.redirects if r.content is not None), None)
            named = [f for w in second.words for f in self._plain_fields(w)]
            if document is None or "tee" not in named[:2]:
                continue
            paths = [w for w in named if not w.startswith("-") and w not in ("sudo", "tee")]
            if paths:
                self.result.files[_path(paths[0])] = self._document(document)
                first.understood = second.understood = True

    def _document(self, redirect: Redirect) -> str:
        content = redirect.content or ""
        if not redirect.expands:
            return render([Literal(content)])
        quoted = content.replace('"', '\\"')
        words = statements('"' + quoted + '"')[0].words
        return "".join(render(self._expanded(part.piece)) for word in words for part in word.parts)

    def _invocation(self, statement: Statement) -> Invocation | None:
        env: dict[str, str] = {}
        words = list(statement.words)
        while words and (match := _ASSIGNMENT.match(self._head(words[0]))):
            value = self._value(words[0], match.end())
            env[match[1]] = render(value)
            if is_secret(match[1]) and all(isinstance(p, Literal) for p in value):
                self._secret(match[1], render(value))
            del words[0]
        spread = [(f, word) for word in words for f in self._plain_fields(word)]
        plain = [text for text, _ in spread]
        found = find_invocation(plain)
        if found is None:
            return self._inner(plain, env, statement)
        found.env = env | found.env
        found.line = statement.line
        if found.what != "container":
            first = len(plain) - len(found.words)
            bare = [not (word.parts and word.parts[0].quoted) for _, word in spread[first:]]
            if plain[first:] != found.words:
                bare = [True] * len(found.words)
            found.words = [
                home(text) if tilde else text for text, tilde in zip(found.words, bare, strict=True)
            ]
            found.program = home(found.program)
        return found

    def _inner(
        self, words: list[str], env: dict[str, str], statement: Statement
    ) -> Invocation | None:
        """`bash -c '…'` and its like: the text is a script of its own."""
        if not words or self.depth > 3 or program_name(words[0]) in TALKERS:
            return None
        for place in range(len(words) - 1, 0, -1):
            text = words[place]
            if "vllm" not in text or not re.search(r"\s", text):
                continue
            inner = Evaluator()
            inner.depth = self.depth + 1
            inner.variables = dict(self.variables)
            inner.result.files = self.result.files
            try:
                script = inner.run(unescaped(text))
            except Usage:
                continue
            if not script.invocations:
                continue
            found = script.invocations[0]
            shell = next(
                (i for i, w in enumerate(words[:place]) if program_name(w) in SHELLS), place
            )
            before, assigned = prefix(words[:shell])
            found.env = env | assigned | script.env | found.env
            found.line = statement.line
            found.launcher = [*before, *found.launcher]
            self.result.before += script.before
            self.result.after += script.after
            if len(script.invocations) > 1:
                self.result.invocations.append(found)
                found = script.invocations[1]
            self.result.notes += script.notes
            self.result.secrets |= script.secrets
            return found
        return None


def home(word: str) -> str:
    """A shell's `~/` at the start of a word; a container's volumes keep theirs."""
    return "${HOME}" + word[1:] if word == "~" or word.startswith("~/") else word


def unescaped(text: str) -> str:
    """Shell text out of the profile's notation: doubled dollars before a bracket are one again."""
    return re.sub(r"(?:\$\$)+(?=[{(])", lambda m: m.group(0)[: len(m.group(0)) // 2], text)


def _path(name: str) -> str:
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
