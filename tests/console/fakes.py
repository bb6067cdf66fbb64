"""Test doubles: a feed that gives what it is told, operations that record what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine_ctl.errors import StokerError
from engine_ctl.model import (
    Alert,
    Cause,
    EngineLoad,
    Event,
    GpuView,
    Holder,
    HostView,
    Kind,
    Phase,
    Progress,
    RankLoad,
    Reason,
    Snapshot,
    UnitView,
    Verdict,
)

GIB = 1024**3
NOON = 1795867331.0


class Feed:
    """Calls back when `give` is called, and once at the start."""

    def __init__(self, first: Snapshot | None) -> None:
        self.now = first
        self.callback: Callable[[Snapshot], None] | None = None
        self.stopped = False

    def start(self, callback: Callable[[Snapshot], None]) -> None:
        self.callback = callback
        if self.now is not None:
            callback(self.now)

    def stop(self) -> None:
        self.stopped = True

    def give(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        assert self.callback is not None
        self.callback(snapshot)

    def change(self, unit: str, **fields: Any) -> None:
        """Give the snapshot again with fields of one unit changed."""
        assert self.now is not None
        units = tuple(replace(u, **fields) if u.unit == unit else u for u in self.now.units)
        self.give(replace(self.now, units=units, at=self.now.at + 1))


class Ops:
    """Records calls; answers from `answers`; raises what `errors` holds; waits for `gate`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.errors: dict[str, StokerError] = {}
        self.gate: threading.Event | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            if self.gate is not None:
                self.gate.wait(30)
            if name in self.errors:
                raise self.errors[name]
            answer = self.answers.get(name, f"{name} done")
            return answer(*args) if callable(answer) else answer

        return call


def ranks() -> tuple[RankLoad, ...]:
    up = {"p50": 0.212, "p95": 0.431, "p99": 0.702}
    return (
        RankLoad(
            "0",
            running=12,
            waiting=57,
            waiting_by_reason={"capacity": 57, "deferred": 0},
            kv_cache_usage=0.412,
            prefix_hit_rate=0.61,
            prompt_tokens_per_second=9120.0,
            tokens_per_second=3412.0,
            preemptions_per_second=0.0,
            preemptions=3,
            sleep_state="awake",
            percentiles={
                "ttft": up,
                "itl": {"p50": 0.018, "p95": 0.024, "p99": 0.031},
                "queue": {"p50": 1.9, "p95": 4.2, "p99": 6.1},
                "e2e": {"p50": 6.1, "p95": 11.9, "p99": 15.2},
            },
            over=("e2e.p99",),
            extra={
                "spec_acceptance": 0.72,
                "kv_cache_size_tokens": 812345.0,
                "finished_stop": 4012.0,
            },
        ),
    )


def load() -> EngineLoad:
    wave = tuple(float(abs((i * 7) % 23 - 11) + i / 10) for i in range(120))
    return EngineLoad(
        at=NOON,
        ranks=ranks(),
        running=12,
        waiting=57,
        kv_cache_usage=0.412,
        tokens_per_second=3412.0,
        prompt_tokens_per_second=9120.0,
        healthy=True,
        rejections={"max_num_queued_reqs": 4.0},
        history={
            "hour.tokens_per_second": tuple(2000 + 12 * w for w in wave),
            "running": tuple(12.0 - i % 3 for i in range(120)),
            "waiting": wave,
            "kv_cache_usage": tuple(0.2 + i / 600 for i in range(120)),
            "tokens_per_second": tuple(3000 + 30 * w for w in wave),
            "prompt_tokens_per_second": tuple(9000 + 90 * w for w in wave),
        },
    )


def gpu_units() -> tuple[UnitView, ...]:
    return (
        UnitView(
            "chat-8b",
            Kind.ENGINE,
            "chat-throughput",
            Phase.READY,
            verdict=Verdict.MAPPED,
            model="acme/Chat-8B-Instruct",
            host="127.0.0.1",
            port=8000,
            pid=4101,
            gpus=(0,),
            load=load(),
            uptime_s=7811,
            start_s=9.8,
            run="chat-8b/18",
            hints=(
                "57 wait for capacity while KV is 41 %: max_num_seqs (128) is the limit,"
                " not memory",
                "prefix hit rate 61 %: most prompts share a beginning",
            ),
            memory_bytes=int(113.3 * GIB),
            runtime="0.33.0 cuda",
        ),
        UnitView(
            "code-32b",
            Kind.ENGINE,
            "code-tp2",
            Phase.CAPTURING,
            phase_s=6.1,
            typical_s=10.2,
            progress=Progress("graphs", 31, 51),
            verdict=Verdict.COPIED,
            model="acme/Code-32B",
            port=8001,
            pid=4999,
            gpus=(2, 3),
            elapsed_s=21.4,
            run="code-32b/4",
        ),
        UnitView(
            "draft-1b",
            Kind.ENGINE,
            "draft",
            Phase.READY,
            verdict=Verdict.FALLBACK,
            reasons=(
                Reason(
                    "wc_fallback.key_mismatch",
                    "the daemon holds other weights",
                    "WARNING Weight cache unusable",
                    (("dtype", "bfloat16", "float16"),),
                ),
            ),
            model="acme/Draft-1B",
            port=8002,
            pid=5100,
            gpus=(0,),
            load=EngineLoad(
                NOON, running=0, waiting=0, kv_cache_usage=0.0, tokens_per_second=0.0, healthy=True
            ),
            uptime_s=734,
            start_s=31.9,
            run="draft-1b/7",
            drift=("max_num_seqs",),
        ),
        UnitView(
            "long-ctx",
            Kind.ENGINE,
            "long-context",
            Phase.FAILED,
            model="acme/Chat-8B-Instruct",
            port=8003,
            gpus=(1,),
            run="long-ctx/21",
            cause=Cause(
                "oom_graph_capture",
                "CUDA graphs did not fit: 0.4 GiB free, 0.9 GiB wanted; lower"
                " gpu_memory_utilization 0.95 → 0.93",
                "torch.OutOfMemoryError: CUDA out of memory.",
            ),
        ),
        UnitView("vision", Kind.ENGINE, "multimodal", None, model="acme/Vision-7B", port=8004),
        UnitView(
            "m8b",
            Kind.PRELOAD,
            "chat-throughput",
            Phase.READY,
            model="acme/Chat-8B-Instruct",
            gpus=(0,),
            uptime_s=10800,
            run="m8b/3",
            memory_bytes=int(15.6 * GIB),
            note="1 rank, zero copy, maps into chat-8b",
        ),
        UnitView(
            "standby",
            Kind.STANDBY,
            "0.33.0 cuda",
            Phase.READY,
            run="standby/2",
            memory_bytes=int(0.9 * GIB),
            note="answers in 0.5 s, becomes an engine in ~9 s",
        ),
    )


def gpus() -> tuple[GpuView, ...]:
    def card(index: int, holders: tuple[Holder, ...], **more: Any) -> GpuView:
        total = int(139.8 * GIB)
        used = sum(h.bytes or 0 for h in holders) + int(0.5 * GIB)
        fields = {
            "utilisation": 0,
            "power_w": 76.0,
            "power_limit_w": 700.0,
            "temperature_c": 33,
            "sm_clock_mhz": 1980,
            "memory_clock_mhz": 3201,
            "pcie": "gen5 x16",
            "nvlink": "18 links",
            "fits": int((total - used) / total * 100) / 100,
        } | more
        return GpuView(
            index, f"GPU-{index:08d}", "NVIDIA H200", total, used, total - used, holders, **fields
        )

    return (
        card(
            0,
            (
                Holder(4001, "weights", int(15.6 * GIB), "m8b", "m8b/3", "op", "vllm preload"),
                Holder(
                    4120,
                    "engine",
                    int(103.3 * GIB),
                    "chat-8b",
                    "chat-8b/18",
                    "op",
                    "VLLM::EngineCore",
                    (
                        ("kv", int(98.1 * GIB)),
                        ("graphs", int(2.9 * GIB)),
                        ("activations", int(2.3 * GIB)),
                    ),
                    fits=0.81,
                ),
                Holder(5100, "engine", int(9.1 * GIB), "draft-1b", "draft-1b/7", "op", fits=0.14),
            ),
            utilisation=87,
            power_w=612.0,
            temperature_c=61,
        ),
        card(
            1,
            (
                Holder(48122, "orphan", int(3.1 * GIB), "long-ctx", "long-ctx/21", "op", "VLLM::"),
                Holder(3313, "other", int(6.2 * GIB), None, None, "anna", "python train.py"),
            ),
        ),
    )


def gpu_snapshot(**more: Any) -> Snapshot:
    return replace(
        Snapshot(
            at=NOON,
            host=HostView(
                "gpu-box",
                64,
                23.0,
                512 * GIB,
                401 * GIB,
                ((0, 256 * GIB, 190 * GIB), (1, 256 * GIB, 211 * GIB)),
                driver="580.159.04",
                holders=(Holder(6001, "standby", int(0.9 * GIB), "standby", "standby/2", "op"),),
            ),
            units=gpu_units(),
            gpus=gpus(),
            events=events(),
            alerts=(
                Alert(
                    "GPU 1: 3.1 GiB held by pid 48122 EngineCore of run long-ctx/21,"
                    " whose API server is gone",
                    "reap",
                    "long-ctx",
                    pids=(48122,),
                ),
            ),
            runtimes=("0.33.0 (cuda)", "0.32.0 (cpu)"),
        ),
        **more,
    )


def events() -> tuple[Event, ...]:
    return (
        Event(
            NOON - 19,
            "chat-8b",
            "swapped chat-interactive → chat-throughput in 9.8 s (mapped, plan applied)",
            by="op, console",
        ),
        Event(
            NOON - 94,
            "long-ctx",
            "failed while capturing: oom_graph_capture",
            "error",
        ),
        Event(
            NOON - 120,
            "draft-1b",
            "fell back: dtype differs; forecast says mapped with dtype bfloat16",
            "warning",
        ),
        Event(NOON - 4000, "m8b", "daemon ready, 15.6 GiB", by="op, command"),
        Event(NOON - 90000, "vision", "stopped", by="op, console"),
    )


def cpu_snapshot(units: tuple[UnitView, ...] | None = None) -> Snapshot:
    demo = UnitView(
        "demo",
        Kind.ENGINE,
        "demo",
        Phase.READY,
        verdict=Verdict.DISK,
        model="stoker/demo-3m",
        host="127.0.0.1",
        port=8100,
        pid=900,
        load=EngineLoad(
            NOON, running=1, waiting=0, kv_cache_usage=0.03, tokens_per_second=41.5, healthy=True
        ),
        uptime_s=65,
        start_s=14.2,
        run="demo/1",
        memory_bytes=int(1.8 * GIB),
    )
    holders = (
        Holder(901, "engine", int(1.8 * GIB), "demo", "demo/1", "op", "VLLM::EngineCore"),
        Holder(903, "standby", int(0.6 * GIB), "standby", "standby/1", "op", "python"),
    )
    return Snapshot(
        at=NOON,
        host=HostView(
            "laptop", 8, 31.0, 16 * GIB, 9 * GIB, ((0, 16 * GIB, 9 * GIB),), holders=holders
        ),
        units=(demo,) if units is None else units,
        events=(Event(NOON - 50, "demo", "ready in 14.2 s", by="op, stoker demo"),),
        runtimes=("0.32.0 (cpu)",),
    )
