"""What is wrong with a profile, and what breaks when its vLLM is upgraded, without a runtime."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from profiles.loading import Resolved
from profiles.model import Profile
from profiles.rules import (
    ERROR,
    FAIL,
    NOTE,
    UNREAD,
    Facts,
    Rule,
    Version,
    View,
    table,
    version,
)
from profiles.schema import SHIPPED, ArgumentSchema, for_version

ORDER = {"error": 0, "fail": 1, "note": 2}
OLDEST = (0, 24)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `severity`: error (vLLM's parser stops, certain), fail (the start fails), note
    (starts, behaves differently). `key` is dotted (`args.max_model_len`), `place` its file:line."""

    rule: str
    severity: str
    key: str
    message: str
    instead: str
    versions: str
    place: str = ""
    source: str = ""


def lint(
    profile: Profile | Resolved,
    target: str | None = None,
    schema: ArgumentSchema | None = None,
    facts: Facts | None = None,
    current: str | None = None,
) -> tuple[Finding, ...]:
    """Findings for a profile on the vLLM version `target`, worst first.

    `current` is the version that it runs on now: what changed up to there is not told. Without a
    target that is a version (`latest`, a nightly build) one finding asks for it and only what
    holds for every version is told. `schema` is the target's own, where a runtime has it."""
    resolved = profile if isinstance(profile, Resolved) else None
    plain = profile.profile if isinstance(profile, Resolved) else profile
    wanted = target if target is not None or schema is None else schema.version
    chosen = known(wanted)
    view = View(plain, chosen, schema or for_version(wanted), facts or Facts())
    findings = [] if chosen is not None else [_ask(wanted)]
    if chosen is not None and chosen > version(SHIPPED[-1]):
        findings.append(_newer(str(wanted)))
    findings += _run(view, table(), chosen, known(current))
    if resolved is not None:
        findings = [
            msgspec.structs.replace(finding, place=resolved.place(finding.key))
            for finding in findings
        ]
    return tuple(sorted(findings, key=lambda finding: ORDER[finding.severity]))


def known(text: str | None) -> Version | None:
    """A release that rules can be chosen for, None for `latest`, development builds and nothing."""
    if text is None:
        return None
    try:
        found = version(text)
    except ValueError:
        return None
    return found if found >= OLDEST else None


def _run(
    view: View, rules: Iterable[Rule], target: Version | None, current: Version | None
) -> list[Finding]:
    findings: list[Finding] = []
    hard = view.args.get("fail_on_environ_validation") is True
    for rule in rules:
        if not rule.applies(target, current):
            continue
        for key, detail in rule.when(view):
            severity = rule.severity
            if hard and rule.effect == UNREAD and key.startswith("env.VLLM_"):
                severity = FAIL
            elif rule.id == "argument-unknown" and view.schema.version not in SHIPPED:
                severity = ERROR  # the runtime's own parser knows its plugins' arguments
            what = rule.what.replace("{detail}", detail)
            effect = rule.effect.replace("{detail}", detail)
            findings.append(
                Finding(
                    rule=rule.id,
                    severity=severity,
                    key=key,
                    message=f"{what}: {effect}",
                    instead=rule.instead,
                    versions=rule.versions,
                    source=rule.source,
                )
            )
    return _without_echoes(findings)


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """A rule that knows an argument by name says more than "no such argument"."""
    vague = ("argument-misspelt", "argument-unknown", "argument-choice")
    named = {finding.key for finding in findings if finding.rule not in vague}
    return [f for f in findings if f.rule not in vague or f.key not in named]


def _newer(target: str) -> Finding:
    return Finding(
        rule="target-newer",
        severity=NOTE,
        key="runtime",
        message=f"{target} is newer than what this Stoker knows ({SHIPPED[-1]}): changes after "
        "that are not told",
        instead="check the profile with the installed runtime",
        versions=f"after {SHIPPED[-1]}",
        source="Stoker: lint",
    )


def _ask(target: str | None) -> Finding:
    said = "no vLLM version is named" if target is None else f"{target} is no vLLM release"
    return Finding(
        rule="target-unknown",
        severity=NOTE,
        key="runtime",
        message=f"{said}: only what holds for every version is told",
        instead=f"name the version, from 0.24 on: --target {SHIPPED[-1]}",
        versions="all",
        source="Stoker: lint",
    )
