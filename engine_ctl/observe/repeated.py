"""Weights that come from disk start after start, for the same reason: said once, with the cure.

Whoever first sees the start ready says it: the command that waits, `ps`, or the console."""

from __future__ import annotations

from engine_ctl.errors import StokerError
from engine_ctl.model import Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.state import events
from engine_ctl.state.store import Run, Store
from engine_ctl.weights import records
from engine_ctl.weights.sights import repeated_fallback

TOLD = "fallback.told"


def tell_repeated(store: Store, run: Run, by: str = "") -> bool:
    """Record an event when the unit's last two starts, `run` being the newer, fell back for the
    same reason. True when it was said now; each run says it once, whoever looks."""
    try:
        now = run_facts.load(run.dir)
        if now is None or now.verdict is not Verdict.FALLBACK or records.read(run) is None:
            return False
        earlier = [r for r in store.runs(run.unit) if r.number < run.number]
        history = []
        for each in reversed(earlier[-5:]):
            known = run_facts.load(each.dir)
            if known is not None and known.start_s is not None:
                history.append((known.verdict, known.reasons))
                break
    except StokerError:
        return False
    text = repeated_fallback([*history, (now.verdict, now.reasons)])
    if text is None or not run.first(TOLD):
        return False
    events.record(store.dirs, run.unit, text, severity="warning", by=by)
    return True
