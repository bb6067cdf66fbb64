"""Causes around the weight cache: refusals, fall backs that stopped the start, daemons."""

from __future__ import annotations

import re

from engine_ctl.logs.fallbacks import FATAL, reason_of
from engine_ctl.logs.rules.base import Rule, rule

RULES: tuple[Rule, ...] = (
    *(Rule(fatal.category, fatal.pattern, fatal.hint) for fatal in FATAL),
    rule(
        "wc_daemon_duplicate",
        r"Another weight cache daemon already owns",
        "a daemon for this GPU is running already: use it, or stop it first (the second one loads "
        "everything before it notices)",
    ),
)
_STOPPED = re.compile(r"(?:CacheConfigMismatchError|WeightCacheUnavailableError): (?P<why>.*)")


def stopped_by_cache(text: str) -> tuple[str, str] | None:
    """(category, hint) when the weight cache was refused and fallback was off."""
    found = _STOPPED.search(text)
    if found is None:
        return None
    reason = reason_of(found["why"])
    return reason.category, f"{reason.hint}. Fallback is off, so the start stopped"
