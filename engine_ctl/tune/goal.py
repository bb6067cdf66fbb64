"""Goals: `throughput where ttft_p95<500ms and itl_p95<=40ms`. Parsing and judging, pure.

    goal      = ["max" | "min"] metric ["where" condition {"and" condition}]
    condition = metric ("<" | "<=" | ">" | ">=") number [unit]

Throughputs are tokens/s or requests/s and are maximised, latencies are milliseconds (units us, ms,
s) and minimised, unless `max` or `min` says otherwise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine_ctl.errors import Usage
from engine_ctl.tune.results import LATENCIES, QUANTITIES
from engine_ctl.tune.stats import Stat

RATES = ("throughput", "total_throughput", "requests", "goodput")
SECONDS = ("start_s",)
METRICS = (*RATES, *(f"{name}_{q}" for name in LATENCIES for q in QUANTITIES), *SECONDS)
_MS = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0}
_RATE_UNITS = ("tok/s", "req/s", "/s")
_TOKEN = re.compile(
    r"\s*(?:(?P<op><=|>=|<|>|==|=)|(?P<number>\d[\d_]*\.?\d*(?:e\d+)?)\s*(?P<unit>[A-Za-zµ/%]*)"
    r"|(?P<word>[A-Za-z_][\w.]*))"
)
_HOLDS = {
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A limit on a metric, in the metric's own unit."""

    metric: str
    operator: str
    limit: float

    def holds(self, stats: Mapping[str, Stat]) -> bool | None:
        """Whether the median keeps the limit; None when the metric is unknown."""
        found = stats.get(self.metric)
        return None if found is None else bool(_HOLDS[self.operator](found.median, self.limit))

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.limit:g}{unit_of(self.metric)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is best: the greatest (or least) `metric` among what meets all conditions."""

    metric: str
    maximise: bool
    conditions: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        usual = self.maximise == (self.metric in RATES)
        text = self.metric if usual else f"{'max' if self.maximise else 'min'} {self.metric}"
        where = " and ".join(map(str, self.conditions))
        return f"{text} where {where}" if where else text

    def meets(self, stats: Mapping[str, Stat]) -> bool:
        """Whether every condition is known to hold, and the metric is known."""
        known = stats.get(self.metric) is not None
        return known and all(condition.holds(stats) for condition in self.conditions)

    def missed(self, stats: Mapping[str, Stat]) -> tuple[str, ...]:
        """The metrics of the conditions that do not hold (or are unknown)."""
        return tuple(c.metric for c in self.conditions if not c.holds(stats))

    def score(self, stats: Mapping[str, Stat]) -> float | None:
        """Greater is better; None when the metric is unknown."""
        found = stats.get(self.metric)
        if found is None:
            return None
        return found.median if self.maximise else -found.median


DEFAULT = Goal("throughput", True)


def unit_of(metric: str) -> str:
    """The unit as shown after a figure."""
    if metric in ("throughput", "total_throughput"):
        return " tok/s"
    if metric in RATES:
        return " req/s"
    return " s" if metric in SECONDS else " ms"


def parse_goal(text: str) -> Goal:
    """Raises Usage that shows what was expected, and where."""
    return _Parser(text).goal()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def goal(self) -> Goal:
        direction = self._peek_word()
        if direction in ("max", "min"):
            self._next("a metric")
        else:
            direction = None
        metric = self._metric("a goal")
        maximise = metric in RATES if direction is None else direction == "max"
        conditions = []
        word = self._word_or_end()
        if word is not None:
            if word != "where":
                raise self._error("'where' or the end of the goal", word)
            conditions.append(self._condition())
            while (word := self._word_or_end()) is not None:
                if word not in ("and", ","):
                    raise self._error("'and' or the end of the goal", word)
                conditions.append(self._condition())
        return Goal(metric, maximise, tuple(conditions))

    def _condition(self) -> Condition:
        metric = self._metric("a condition")
        match = self._next("<, <=, > or >=")
        operator = match["op"]
        if operator not in _HOLDS:
            raise self._error("<, <=, > or >=", match[0].strip())
        match = self._next("a number")
        if match["number"] is None:
            raise self._error("a number", match[0].strip())
        value = float(match["number"].replace("_", ""))
        return Condition(metric, operator, value * self._factor(metric, match["unit"]))

    def _factor(self, metric: str, unit: str) -> float:
        if metric in RATES:
            if unit and unit not in _RATE_UNITS:
                raise self._error(f"no unit, or one of {', '.join(_RATE_UNITS)}", unit)
            return 1.0
        if unit and unit not in _MS:
            raise self._error(f"a unit of time ({', '.join(_MS)})", unit)
        if metric in SECONDS:
            return _MS[unit] / 1000 if unit else 1.0
        return _MS[unit] if unit else 1.0

    def _metric(self, where: str) -> str:
        match = self._next("a metric")
        word = match["word"]
        if word in METRICS:
            return str(word)
        found = word or match[0].strip()
        near = difflib.get_close_matches(found, METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RATES)}, ttft_p95, …"
        raise Usage(f"goal {self.text!r}: {found!r} is no metric for {where}; {hint}")

    def _peek_word(self) -> str | None:
        match = _TOKEN.match(self.text, self.at)
        return None if match is None else match["word"]

    def _word_or_end(self) -> str | None:
        if not self.text[self.at :].strip():
            return None
        if self.text[self.at :].lstrip().startswith(","):
            self.at = self.text.index(",", self.at) + 1
            return ","
        match = self._next("a word")
        return match["word"] or match[0].strip()

    def _next(self, expected: str) -> re.Match[str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()
            raise self._error(expected, rest or None)
        self.at = match.end()
        return match

    def _error(self, expected: str, found: str | None) -> Usage:
        got = f"found {found!r}" if found else "it ends"
        return Usage(f"goal {self.text!r}: expected {expected}, {got}")
