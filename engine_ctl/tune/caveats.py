"""What keeps a bench's figures from meaning what they seem to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from engine_ctl.tune.records import BenchRecord
from engine_ctl.tune.settings import RECORDED
from engine_ctl.tune.stats import median

# A larger share of prompt tokens out of the prefix cache is said; so is a difference of points.
CACHED = 0.2
SHORT_S = 3.0
# Fewer requests than so many times the concurrency are mostly its rise and fall.
WAVES = 2
MOSTLY = 0.5
# Of a full house some are always on their way in or out.
FULL = 0.9
_LEAST_SAMPLES = 4


def caveats(record: BenchRecord) -> tuple[str, ...]:
    """One sentence each; () where nothing speaks against the figures, or there are none."""
    return tuple(_caveats(record)) if record.results else ()


def _caveats(record: BenchRecord) -> Iterator[str]:
    made = record.settings
    hits = record.prefix_hit_rate
    if hits is not None and hits > CACHED:
        again = made.dataset in (*RECORDED, "sharegpt") and made.repeats > 1
        why = "; each measurement asks the file's prompts again" if again else ""
        yield f"the prefix cache answered {hits:.0%} of the prompt tokens{why}"
    seconds = median([result.seconds for result in record.results])
    if seconds < SHORT_S:
        yield f"a measurement took {seconds:.1f} s only: its start and end weigh much, ask for more"
    if made.concurrency is not None and made.requests < WAVES * made.concurrency:
        yield (
            f"{made.requests} requests, {made.concurrency} at once, are mostly rise and fall: "
            f"{4 * made.concurrency} or more tell what it sustains"
        )
    if made.request_rate is None:
        return
    busy = [each for each in record.samples if each.running]
    if len(busy) < _LEAST_SAMPLES:
        return
    waited = sum(1 for each in busy if each.waiting)
    if waited > MOSTLY * len(busy):
        yield (
            f"requests waited in the engine most of the time: {made.request_rate:g}/s is more than "
            "it sustains, and latencies grow with the number of requests"
        )
    if made.concurrency is None:
        return
    # vLLM's own peak counts whoever had a part in the same second, one after the other too.
    flying = [(each.running or 0) + (each.waiting or 0) for each in record.samples]
    if sum(1 for count in flying if count >= FULL * made.concurrency) > MOSTLY * len(flying):
        yield (
            f"{made.concurrency} were in flight most of the time, the most allowed: further ones "
            "waited in the client, which no latency shows"
        )


def between(records: Iterable[BenchRecord]) -> tuple[str, ...]:
    """What keeps points from being compared with each other."""
    rates = [r.prefix_hit_rate for r in records if r.prefix_hit_rate is not None]
    if not rates or max(rates) - min(rates) <= CACHED:
        return ()
    return (
        f"the prefix cache answered from {min(rates):.0%} to {max(rates):.0%} of the prompt "
        "tokens: points with a warm cache look faster than they are",
    )


def noted(measured: Mapping[str, BenchRecord]) -> tuple[str, ...]:
    """What is to be known of points, by their labels: of each matter the first, and of how many
    others it holds."""
    said: dict[str, list[str]] = {}
    for label, record in measured.items():
        for text in caveats(record):
            said.setdefault(re.sub(r"[\d.,]+", "", text), []).append(f"{label}: {text}")
    more = [f" (and {len(texts) - 1} more)" if len(texts) > 1 else "" for texts in said.values()]
    firsts = [texts[0] for texts in said.values()]
    return (*between(measured.values()), *map("".join, zip(firsts, more, strict=True)))
