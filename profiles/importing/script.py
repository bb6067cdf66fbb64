"""What a script would run: variables, files and exports followed up to the engine's start.

The statements are evaluated as far as that needs no execution: assignments, arrays, `export`,
here-documents, fish `set -x`, PowerShell variables. Everything else is kept as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine_ctl.errors import Usage
from profiles.importing.launching import (
    SHELLS,
    TALKERS,
    Invocation,
    find_invocation,
    prefix,
    program_name,
)
from profiles.importing.references import (
    Literal,
    render,
)
from profiles.importing.secrets import is_secret
from profiles.importing.shellwords import Statement, statements
from profiles.importing.variables import ASSIGNMENT, Variables
from profiles.importing.written import write_file, write_piped

QUIET = frozenset(["cd", "set", "shopt", "true", ":", "exit", "return"])
_BRANCH = re.compile(r"^(?:then|else|elif|do)\s+")


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


class Evaluator:
    """Follows one script. `known` may hold what an outer text defined already."""

    def __init__(self, known: Variables | None = None, depth: int = 0) -> None:
        self.known = Variables() if known is None else known
        self.result = Script(
            env=self.known.env,
            files=self.known.files,
            notes=self.known.notes,
            secrets=self.known.secrets,
        )
        self.depth = depth

    def run(self, text: str) -> Script:
        script = statements(text, self.known.powershell, self.result.notes)
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
        write_piped(group, self.known)
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
        found = [ASSIGNMENT.match(self.known.head(word)) for word in statement.words]
        names = [match[1] for match in found if match]
        if [word.bare for word in statement.words[:2]] == ["set", "--"]:
            names = ["the arguments"]
        if not statement.conditional or not names or self.known.powershell:
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
                target = "".join(self.known.words(redirect.target))
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
        write_file(statement, self.known)
        words = list(statement.words)
        if not words:
            return True
        known = self.known.define(words)
        if not known and statement.redirects and words[0].bare in ("cat", "tee"):
            known = any(r.content is not None for r in statement.redirects)
        if words[0].bare in QUIET and words[0].bare != "cd":
            known = True
        known = known or statement.understood
        statement.understood = known
        return known

    def _invocation(self, statement: Statement) -> Invocation | None:
        env: dict[str, str] = {}
        words = list(statement.words)
        while words and (match := ASSIGNMENT.match(self.known.head(words[0]))):
            value = self.known.value(words[0], match.end())
            env[match[1]] = render(value)
            if is_secret(match[1]) and all(isinstance(p, Literal) for p in value):
                self.known.secret(match[1], render(value))
            del words[0]
        spread = [(f, word) for word in words for f in self.known.words(word)]
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
            known = Variables()
            known.values = dict(self.known.values)
            known.files = self.known.files
            inner = Evaluator(known, self.depth + 1)
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
