"""The forecast's seconds as they are shown: the sum, where they go, and what is not known."""

from __future__ import annotations

from console.view.forecast import body
from engine_ctl.answers import ForecastView, PhaseSeconds
from engine_ctl.model import Phase

KNOWN = (
    PhaseSeconds(Phase.STOPPING, 1.2, "3 starts: same runtime"),
    PhaseSeconds(Phase.MAPPING, 1.0, "3 starts: same model"),
    PhaseSeconds(Phase.READY, 0.3, "3 starts"),
)


def shown(view: ForecastView, cells: int = 60) -> str:
    return "\n".join("".join(span.text for span in spans) for spans in body(view, cells))


def test_the_sum_and_where_it_goes() -> None:
    text = shown(ForecastView("a", "fast", expected_s=2.5, next_time_s=1.5, expected=KNOWN))
    assert "Expected 2.5 s, next time 1.5 s" in text
    assert "stopping 1.2 s, mapping 1.0 s, answering 0.3 s" in text


def test_an_unknown_phase_is_said_with_what_is_missing() -> None:
    parts = (*KNOWN, PhaseSeconds(Phase.COMPILING, None, "no start yet: same model, compiling"))
    text = shown(ForecastView("a", "fast", expected=parts))
    assert "Expected unknown: 2.5 s and compiling" in text
    assert "compiling: no start yet: same model, compiling" in text


def test_a_live_change_takes_no_start() -> None:
    assert "stopping" not in shown(ForecastView("a", "fast", live=True, expected=KNOWN))
    assert "No earlier start" in shown(ForecastView("a", "fast"))
