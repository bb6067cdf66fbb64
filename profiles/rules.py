"""What a lint rule is, and the one table of all of them.

A rule is data: when it fires (`when`), for which vLLM versions, what happens there, and what to
write instead. `RULES` is the table; its rows live in the rules_*.py modules, by topic.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from profiles.model import EnvRef, Profile
from profiles.schema import ArgumentSchema, canonical

Version = tuple[int, int]
Hit = tuple[str, str]

ERROR = "error"  # vLLM's argument parser stops: exit code 2, certain
FAIL = "fail"  # the start fails after seconds: exit code 1
NOTE = "note"  # starts, but behaves differently from what the profile says or used to do

# What --fail-on-environ-validation turns into a failed start.
UNREAD = "vLLM warns and goes on without it, so it has no effect"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the machine and of a daemon; None is unknown. Bytes; `capability` is the
    GPUs' CUDA compute capability, (9, 0) for Hopper."""

    platform: str | None = None
    gpu_count: int | None = None
    capability: tuple[int, int] | None = None
    gpu_total: int | None = None
    daemon_weights: int | None = None


class View:
    """One profile as rules look at it: one spelling for each argument, JSON read, both commands."""

    def __init__(
        self, profile: Profile, version: Version | None, schema: ArgumentSchema, facts: Facts
    ) -> None:
        self.profile = profile
        self.version = version
        self.schema = schema
        self.facts = facts
        self.args = _canonical(profile.args, schema)
        own = profile.preload.args if profile.preload is not None else {}
        self.preload_args = _canonical(own, schema)
        self.env = profile.env

    @cached_property
    def places(self) -> tuple[tuple[str, str, Any], ...]:
        """(dotted key, argument name, value) of every argument of the engine and the daemon."""
        return tuple(
            (f"{prefix}.{name}", name, value)
            for prefix, args in (("args", self.args), ("preload.args", self.preload_args))
            for name, value in args.items()
            if value is not None
        )

    def get(self, name: str, default: Any = None) -> Any:
        """An argument's value, vLLM's default where the profile sets none."""
        value = self.args.get(name)
        if value is not None:
            return value
        argument = self.schema.arguments.get(name)
        fallback = argument.default if argument is not None else None
        return default if fallback is None else fallback

    def given(self, name: str) -> bool:
        return self.args.get(name) is not None

    def number(self, name: str, default: float) -> float:
        """A numeric argument, `default` where it is absent or no plain number."""
        value = self.get(name, default)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return default
        return value if isinstance(value, int | float) else default

    def config(self, name: str) -> dict[str, Any]:
        """A JSON-valued argument as a map: JSON text read, dotted arguments filled in."""
        merged = dict(as_map(self.args.get(name)))
        for key, value in self.args.items():
            head, dot, tail = key.partition(".")
            if dot and head == name and value is not None:
                into = merged
                *path, last = tail.rstrip("+").split(".")
                for part in path:
                    into = into.setdefault(part, {})
                into[last] = value
        return merged

    def env_text(self, name: str) -> str | None:
        """An environment value; None when absent or kept by reference."""
        value = self.env.get(name)
        return None if isinstance(value, EnvRef) else value


When = Callable[[View], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. `since` and `before` bound the versions ("0.31"); `upgrade` rows tell what changes
    when an engine moves to `since`, and stay silent for one that is there already. `names` are
    arguments that older versions had."""

    id: str
    severity: str
    when: When
    what: str
    effect: str
    instead: str
    source: str
    since: str | None = None
    before: str | None = None
    upgrade: bool = False
    names: tuple[str, ...] = ()

    @property
    def versions(self) -> str:
        if self.since and self.before:
            return f"{self.since} to before {self.before}"
        return (
            f"{self.since} and later"
            if self.since
            else (f"before {self.before}" if self.before else "all")
        )

    @property
    def bound(self) -> bool:
        return self.since is not None or self.before is not None

    def applies(self, target: Version | None, current: Version | None) -> bool:
        """Whether the row holds for `target` (None: not known, only unbound rows hold)."""
        if target is None:
            return not self.bound
        if self.since is not None and target < version(self.since):
            return False
        if self.before is not None and target >= version(self.before):
            return False
        return not (
            self.upgrade
            and self.since is not None
            and current is not None
            and current >= version(self.since)
        )


def version(text: str) -> Version:
    """(major, minor) of "0.33", "v0.33.1+cpu". Raises ValueError for anything else."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:[.+-]?[A-Za-z].*|\.\d.*|\+.*)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no vLLM version")
    return int(match[1]), int(match[2])


@functools.cache
def former_names() -> frozenset[str]:
    """Arguments that some vLLM had and a later one has not: no misspellings."""
    return frozenset(name for rule in table() for name in rule.names)


def as_map(value: Any) -> Mapping[str, Any]:
    """The map that a value is, or that its JSON text is; empty for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def argument(*names: str) -> When:
    """Fires for each of these arguments that is set."""

    def when(view: View) -> Iterator[Hit]:
        for key, name, value in view.places:
            if name.partition(".")[0] in names:
                yield key, shown(value)

    return when


def value_of(name: str, *values: str) -> When:
    """Fires when an argument has one of these values (text, without regard to case)."""

    def when(view: View) -> Iterator[Hit]:
        for key, found, value in view.places:
            items = value if isinstance(value, list) else [value]
            if found == name and any(str(item).lower() in values for item in items):
                yield key, shown(value)

    return when


def config_key(name: str, *keys: str) -> When:
    """Fires when a JSON-valued argument has one of these dotted keys."""

    def when(view: View) -> Iterator[Hit]:
        config = view.config(name)
        for key in keys:
            into: Any = config
            for part in key.split("."):
                into = into.get(part) if isinstance(into, dict) else None
            if into is not None:
                yield f"args.{name}.{key}", shown(into)

    return when


def config_value(name: str, key: str, *values: str) -> When:
    """Fires when a key of a JSON-valued argument has one of these values."""

    def when(view: View) -> Iterator[Hit]:
        value = view.config(name).get(key)
        if value is not None and str(value).lower() in values:
            yield f"args.{name}.{key}", shown(value)

    return when


def variable(*patterns: str) -> When:
    """Fires for environment variables with one of these names; a last `*` stands for anything."""

    def when(view: View) -> Iterator[Hit]:
        for name in view.env:
            if any(matches(name, pattern) for pattern in patterns):
                yield f"env.{name}", name

    return when


def matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def every(*conditions: When) -> When:
    """Fires, where the first does, when all of the conditions fire."""

    def when(view: View) -> Iterator[Hit]:
        if all(any(True for _ in condition(view)) for condition in conditions[1:]):
            yield from conditions[0](view)

    return when


def either(*conditions: When) -> When:
    def when(view: View) -> Iterator[Hit]:
        for condition in conditions:
            yield from condition(view)

    return when


def unless(condition: When, *exceptions: When) -> When:
    """Fires where the condition does, unless one of the exceptions fires."""

    def when(view: View) -> Iterator[Hit]:
        if not any(True for exception in exceptions for _ in exception(view)):
            yield from condition(view)

    return when


def absent(name: str) -> When:
    """Fires when the profile does not set this argument."""

    def when(view: View) -> Iterator[Hit]:
        if not view.given(name):
            yield f"args.{name}", "not set"

    return when


def always(key: str = "model") -> When:
    def when(view: View) -> Iterator[Hit]:
        yield key, ""

    return when


def shown(value: Any) -> str:
    """A value as a message shows it: one short line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _canonical(args: Mapping[str, Any], schema: ArgumentSchema) -> dict[str, Any]:
    return dict(canonical(name, value, schema) for name, value in args.items())


@functools.cache
def table() -> tuple[Rule, ...]:
    """All rules, in the order in which findings are shown."""
    import profiles.rules_0_24 as rules_0_24
    import profiles.rules_0_30 as rules_0_30
    import profiles.rules_0_32 as rules_0_32
    import profiles.rules_arguments as rules_arguments
    import profiles.rules_combinations as rules_combinations
    import profiles.rules_environment as rules_environment
    import profiles.rules_exposure as rules_exposure
    import profiles.rules_gone as rules_gone
    import profiles.rules_hardware as rules_hardware
    import profiles.rules_parallel as rules_parallel

    return (
        *rules_arguments.RULES,
        *rules_gone.RULES,
        *rules_0_24.RULES,
        *rules_0_30.RULES,
        *rules_0_32.RULES,
        *rules_environment.RULES,
        *rules_combinations.RULES,
        *rules_parallel.RULES,
        *rules_exposure.RULES,
        *rules_hardware.RULES,
    )
