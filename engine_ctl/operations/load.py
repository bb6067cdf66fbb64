"""One look at an engine's load, for decisions (how many requests would a stop meet)."""

from __future__ import annotations

from engine_ctl.metrics.sample import Parser
from engine_ctl.metrics.scrape import scrape_once
from engine_ctl.observe.units import endpoint_of
from engine_ctl.state.store import Run


def running_requests(run: Run, timeout_s: float = 0.5) -> int | None:
    """Requests that run or wait on the engine now; None when it does not say."""
    endpoint = endpoint_of(run.spec())
    if endpoint is None:
        return None
    answer = scrape_once({"engine": endpoint}, timeout_s)["engine"]
    if answer.metrics is None:
        return None
    ranks = Parser().parse(answer.metrics).ranks
    counts = [
        rank.gauges[name]
        for rank in ranks
        for name in ("running", "waiting")
        if name in rank.gauges
    ]
    return int(sum(counts)) if counts else None
