"""The engine's metrics and the machine's memory during a bench, about once a second."""

from __future__ import annotations

import time

from engine_ctl.metrics.connection import Endpoint
from engine_ctl.metrics.sample import Parser
from engine_ctl.metrics.sample import Sample as MetricsSample
from engine_ctl.metrics.scrape import Scraper
from engine_ctl.metrics.window import EngineWindow
from engine_ctl.tune import hardware
from engine_ctl.tune.records import Sample

EVERY_S = 1.0
BUDGET_S = 0.2
# A long bench keeps every second, fourth, … sample so that its record stays small.
MAX_SAMPLES = 1200


class Sampler:
    """Samples of one bench. `platform` of the runtime and `gpus` of the profile say which GPU
    memory counts."""

    def __init__(
        self, endpoint: Endpoint | None, platform: str | None, gpus: tuple[int | str, ...]
    ) -> None:
        self._endpoint = endpoint
        self._gpus = gpus
        self._source = hardware.source(platform)
        self._scraper = Scraper()
        self._parser = Parser()
        self._window = EngineWindow(history=2)
        self._began = time.monotonic()
        self._next = self._began
        self._first: MetricsSample | None = None
        self._last: MetricsSample | None = None
        self._stride = 1
        self._count = 0
        self.samples: list[Sample] = []
        self.moved_at = self._began
        self.readings = hardware.read(self._source)

    def tick(self, force: bool = False) -> None:
        """Take a sample when one is due (or now, with `force`)."""
        now = time.monotonic()
        if now < self._next and not force:
            return
        self._next = now + EVERY_S
        load = None
        if self._endpoint is not None:
            answer = self._scraper.poll({"engine": self._endpoint}, BUDGET_S).get("engine")
            if answer is not None and answer.metrics is not None:
                parsed = self._parser.parse(answer.metrics)
                if self._last is None or _tokens(parsed) != _tokens(self._last):
                    self.moved_at = now
                self._first = self._first or parsed
                self._last = parsed
                self._window.add(parsed, answer.at)
                load = self._window.load(time.time(), now, True)
        self.readings = hardware.read(self._source)
        self._keep(
            Sample(
                t=round(now - self._began, 2),
                running=load.running if load else None,
                waiting=load.waiting if load else None,
                kv_cache_usage=load.kv_cache_usage if load else None,
                tokens_per_second=load.tokens_per_second if load else None,
                prompt_tokens_per_second=load.prompt_tokens_per_second if load else None,
                gpu_bytes=hardware.gpu_bytes(self.readings, self._gpus),
                host_available=hardware.available(),
            )
        )

    def _keep(self, sample: Sample) -> None:
        if self._count % self._stride == 0:
            self.samples.append(sample)
        self._count += 1
        if len(self.samples) >= MAX_SAMPLES:
            self.samples = self.samples[::2]
            self._stride *= 2

    def prefix_hit_rate(self) -> float | None:
        """Share of the prompt tokens since the first sample that the prefix cache answered."""
        if self._first is None or self._last is None:
            return None
        asked = _sum(self._last, "prefix_queries") - _sum(self._first, "prefix_queries")
        hits = _sum(self._last, "prefix_hits") - _sum(self._first, "prefix_hits")
        return round(hits / asked, 4) if asked > 0 and hits >= 0 else None

    def close(self) -> None:
        self._scraper.close()
        if self._source is not None:
            self._source.close()


def _sum(sample: MetricsSample, counter: str) -> float:
    return sum(rank.counters.get(counter, 0.0) for rank in sample.ranks)


def _tokens(sample: MetricsSample) -> tuple[float, float]:
    return _sum(sample, "prompt_tokens"), _sum(sample, "generation_tokens")
