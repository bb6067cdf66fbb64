"""Lines of the Prometheus text format to (name, labels, value).

The grammar is prometheus-client's. A line without escapes goes through one regular expression
instead (a tenth of the time, and the library costs 50 ms to import, which `stoker ps` does not
have); everything else, and everything doubtful, goes to the library. Both give the same answer:
tests/unit/test_metrics_exposition.py holds them against each other.
"""

from __future__ import annotations

import re

Series = tuple[str, dict[str, str], float]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*"'
_SIMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})? ([^\s{{}}]+)")
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\\n]*)"')
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|Inf|NaN)")


def parse_line(line: str) -> Series | None:
    """One sample line; None for blanks, comments and lines that are not in the format.

    A timestamp is accepted and dropped.
    """
    match = _SIMPLE.fullmatch(line)
    if match is not None and _NUMBER.fullmatch(match[3]):
        pairs = _PAIR.findall(match[2] or "")
        labels = dict(pairs)
        if len(labels) == len(pairs) and "__name__" not in labels:
            return match[1], labels, float(match[3])
    return _parse_with_library(line)


def _parse_with_library(line: str) -> Series | None:
    if not line.strip() or line.lstrip().startswith("#"):
        return None
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                return sample.name, dict(sample.labels), float(sample.value)
    # The library raises whatever its string handling meets on garbage.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return None
