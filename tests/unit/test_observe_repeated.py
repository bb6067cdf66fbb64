"""A unit that falls back twice in a row for the same reason says so once, whoever looks first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.hardware.readings import NoGpus
from engine_ctl.observe.once import snapshot_once
from engine_ctl.observe.sampler import Sampler
from engine_ctl.state import events
from engine_ctl.state.store import Run
from engine_ctl.weights import records
from engine_ctl.weights.records import RankKey, WeightsRecord
from tests.standin.observed import Written, recorded_log


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    world = Written(tmp_path)
    world.unit("chat")
    yield world
    world.close()


def start(written: Written) -> Run:
    run = written.run("chat")
    log = recorded_log("h200-vllm-0.33.0/34_dtype")[0]
    written.log(run, log[: log.index(b"startup complete.") + 18])
    written.ready(run, 3.0)
    records.write(run, WeightsRecord(keys=[RankKey(socket="/d/0.sock")]))
    return run


def said(written: Written) -> list[str]:
    return [e.text for e in events.last(written.dirs, 50) if "twice in a row" in e.text]


def end(written: Written, run: Run) -> None:
    written.request(run)
    written.exit(run, requested=True)


def test_once_by_whoever_looks_first(written: Written) -> None:
    end(written, start(written))
    snapshot_once(written.dirs, scrape=False)
    assert said(written) == []
    second = start(written)
    snapshot_once(written.dirs, scrape=False)
    assert len(said(written)) == 1 and "dtype" in said(written)[0]
    sampler = Sampler(written.dirs, NoGpus("none"))
    try:
        sampler.sample_once()
        sampler.sample_once()
    finally:
        sampler.stop()
    assert len(said(written)) == 1
    end(written, second)
    start(written)
    snapshot_once(written.dirs, scrape=False)
    assert len(said(written)) == 2, "the third start says it for itself"
