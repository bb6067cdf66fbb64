"""What a rule for a root cause is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_ctl.logs.errors import Candidate
from engine_ctl.logs.facts import StartFacts
from engine_ctl.logs.observations import RunFacts
from engine_ctl.model import Phase


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at beside the error's own text. `phase` is where the start was when
    the error was printed; `capturing`: CUDA graphs were being captured; `kv_sized`: the KV cache
    had its size; `run` what is known from outside the log."""

    candidate: Candidate | None = None
    phase: Phase | None = None
    capturing: bool = False
    kv_sized: bool = False
    start: StartFacts = field(default_factory=StartFacts)
    run: RunFacts = field(default_factory=RunFacts)
    text: str = ""

    def frame(self, *names: str) -> bool:
        """True when the traceback passes a function whose name contains one of `names`."""
        functions = self.candidate.functions if self.candidate is not None else frozenset()
        return any(part in function for function in functions for part in names)


Hint = str | Callable[[re.Match[str], Context], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording of one kind of cause.

    `hint` may use the groups of the pattern by name. `when` narrows the rule down; `serving`
    rules also hold for errors that did not end the server."""

    category: str
    pattern: re.Pattern[str]
    hint: Hint
    when: Callable[[re.Match[str], Context], bool] | None = None
    serving: bool = False

    def match(self, text: str, context: Context) -> re.Match[str] | None:
        found = self.pattern.search(text)
        if found is None or (self.when is not None and not self.when(found, context)):
            return None
        return found

    def advice(self, found: re.Match[str], context: Context) -> str:
        if callable(self.hint):
            return self.hint(found, context)
        groups = {name: (value or "?").strip() for name, value in found.groupdict().items()}
        return self.hint.format(**groups) if groups else self.hint


def rule(
    category: str,
    pattern: str,
    hint: Hint,
    when: Callable[[re.Match[str], Context], bool] | None = None,
    *,
    serving: bool = False,
) -> Rule:
    return Rule(category, re.compile(pattern), hint, when, serving)
