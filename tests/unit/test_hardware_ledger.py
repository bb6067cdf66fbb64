"""The ledger: who holds what in each recorded state, and what would start now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.hardware.host import HostReading, ProcessReading
from engine_ctl.hardware.ledger import (
    CONTEXT_BYTES,
    GIB,
    MemoryFacts,
    Owner,
    fits_utilisation,
    gpu_views,
    host_holders,
    host_view,
    parts,
)
from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.hardware.readings import GpuReadings
from engine_ctl.model import GpuView, Kind
from tests.standin.nvml import RecordedNvml

DATA = Path(__file__).parent.parent / "data" / "nvml"
MIB = 1 << 20
TOTAL = int(139.8 * GIB)

# What 11_ipc.log of the recorded run says.
ENGINE = MemoryFacts(
    weights=0, kv=int(111.22 * GIB), graphs=int(0.6 * GIB), external=int(14.99 * GIB)
)
DAEMON = Owner("m8b", "m8b/1", Kind.PRELOAD, version=(0, 33))
SERVING = Owner("chat-8b", "chat-8b/3", Kind.ENGINE, facts=ENGINE, version=(0, 33))
HOST = HostReading("box", 16, None, 128 * GIB, 100 * GIB)


def readings(name: str) -> GpuReadings:
    return NvmlSource(RecordedNvml(json.loads((DATA / f"{name}.json").read_text()))).read()


def describe(pid: int) -> ProcessReading | None:
    return ProcessReading(pid, 1, "eva", f"python train.py --{pid}")


def view(name: str, owners: dict[int, Owner], **more: bool) -> GpuView:
    return gpu_views(readings(name), owners, describe, HOST, **more)[0]


def test_daemon_alone() -> None:
    gpu = view("daemon", {6845: DAEMON})
    (holder,) = gpu.holders
    assert (holder.role, holder.unit, holder.bytes) == ("weights", "m8b", 15976 * MIB)
    assert gpu.unknown is None
    assert gpu.fits == 0.88


def test_daemon_and_engine() -> None:
    gpu = view("daemon_and_engine", {6845: DAEMON, 7016: SERVING})
    weights, engine = gpu.holders
    assert (weights.role, engine.role) == ("weights", "engine")
    assert engine.bytes == 116004 * MIB
    # Mapped weights count for the daemon only.
    assert dict(engine.parts).keys() == {"kv", "graphs", "rest"}
    assert sum(size for _, size in engine.parts) == engine.bytes
    # Restarted, it could have all but the daemon's overhead; a second engine nearly nothing.
    assert engine.fits == 0.99
    assert gpu.fits == 0.07


def test_after_the_daemons_death_the_weights_count_for_the_engine() -> None:
    gpu = view("daemon_killed", {8310: SERVING})
    (engine,) = gpu.holders
    assert dict(engine.parts)["weights"] == int(14.99 * GIB)
    assert sum(size for _, size in engine.parts) == engine.bytes == 131868 * MIB


def test_an_engine_whose_run_has_ended_is_an_orphan() -> None:
    orphan = Owner("chat-8b", "chat-8b/3", Kind.ENGINE, orphan=True)
    (holder,) = view("daemon_killed", {8310: orphan}).holders
    assert (holder.role, holder.run, holder.fits) == ("orphan", "chat-8b/3", None)


def test_others_are_shown_with_user_and_command() -> None:
    first, second = view("load", {8033: DAEMON}).holders
    assert (first.role, second.role) == ("weights", "other")
    assert (second.user, second.command) == ("eva", "python train.py --8310")


def test_nothing_is_free_of_charge_after_all_is_gone() -> None:
    gpu = view("after", {})
    assert gpu.holders == ()
    assert gpu.free == gpu.total
    assert gpu.fits == 0.99


def test_owners_that_nobody_names_are_not_nobody() -> None:
    gpu = view("container", {})
    assert gpu.unknown == 131995 * MIB
    assert gpu.notes == ("owners are not visible (container or WSL)",)


def test_pids_of_another_namespace() -> None:
    gpu = gpu_views(readings("load"), {}, lambda pid: None, HOST, foreign_pids=True)[0]
    assert [holder.command for holder in gpu.holders] == [None, None]
    assert "some owners are outside this container" in gpu.notes


def test_unified_memory_is_the_hosts() -> None:
    gpu = view("unified", {700: SERVING})
    assert gpu.unified
    assert (gpu.total, gpu.free) == (128 * GIB, 100 * GIB)
    assert gpu.holders[0].bytes == 20000 * MIB
    assert gpu.unknown is None


def test_no_memory_per_process_is_none_not_zero() -> None:
    gpu = view("wsl", {900: SERVING})
    assert [holder.bytes for holder in gpu.holders] == [None, None]
    assert gpu.holders[0].fits is None
    assert gpu.unknown is None


def test_mig_instances_are_views_of_their_own() -> None:
    views = gpu_views(readings("mig"), {}, describe, HOST)
    assert [(gpu.index, gpu.mig) for gpu in views] == [(0, True), (0, True), (1, False)]
    assert views[0].total == 71552 * MIB


def test_fit_agrees_with_what_vllm_said_on_the_h200() -> None:
    # 40_load.log: "Free memory on device (136.16/139.8 GiB) on startup" beside a daemon of
    # 3002 MiB: the engine's own context is the difference.
    free = TOTAL - 3002 * MIB
    assert (free - CONTEXT_BYTES) / GIB == pytest.approx(136.16, abs=0.01)
    # 11_ipc.log: budget 0.92 starts with a daemon holding 14.99 of 15.60 GiB.
    daemon, held = int(14.99 * GIB), 15976 * MIB
    fit = fits_utilisation(TOTAL, TOTAL - held, daemon=daemon, version=(0, 33))
    assert fit is not None and 0.92 <= fit <= 0.99


def test_the_rule_was_turned_round_in_0_32() -> None:
    free, daemon = 20 * GIB, 70 * GIB
    total = 100 * GIB
    new = fits_utilisation(total, free, daemon=daemon, version=(0, 32), context=0)
    old = fits_utilisation(total, free, daemon=daemon, version=(0, 31), context=0)
    assert (new, old) == (0.9, 0.2)
    assert fits_utilisation(total, free, daemon=daemon, context=0) == 0.9


def test_fit_when_nothing_starts_and_when_nothing_is_known() -> None:
    assert fits_utilisation(100 * GIB, GIB // 2, daemon=15 * GIB) == 0.0
    assert fits_utilisation(None, 5) is None
    assert fits_utilisation(5, None) is None


@given(
    total=st.integers(8 * GIB, 200 * GIB),
    share=st.floats(0, 1),
    held=st.floats(0, 1),
    old=st.booleans(),
)
def test_a_fit_passes_vllms_own_check_and_the_next_hundredth_does_not(
    total: int, share: float, held: float, old: bool
) -> None:
    daemon = int(total * held)
    free = int((total - daemon) * share)
    version = (0, 31) if old else (0, 33)
    fit = fits_utilisation(total, free, daemon=daemon, version=version, context=0)
    assert fit is not None

    def starts(utilisation: float) -> bool:
        requested = total * utilisation
        if old or not daemon:
            return free >= requested
        return 0 < requested - daemon <= free

    slack = total * 1e-9
    if fit > 0:
        assert starts(fit - 1e-9) or total * fit <= daemon + slack
    if fit < 1.0:
        assert not starts(fit + 0.0100001)


@given(
    size=st.one_of(st.none(), st.integers(0, 10**12)),
    weights=st.one_of(st.none(), st.integers(0, 10**12)),
    kv=st.one_of(st.none(), st.integers(0, 10**12)),
    external=st.one_of(st.none(), st.integers(0, 10**12)),
    daemon=st.booleans(),
)
def test_parts_never_exceed_the_whole(
    size: int | None, weights: int | None, kv: int | None, external: int | None, daemon: bool
) -> None:
    found = parts(size, MemoryFacts(weights=weights, kv=kv, external=external), daemon)
    assert all(value > 0 for _, value in found)
    if size is not None and found:
        assert sum(value for _, value in found) == size


def test_host_memory_by_run_on_a_machine_without_gpus() -> None:
    # Engine and daemon map the same 4 GiB of weights: they count for the daemon.
    sizes = {11: (5, 4), 12: (3, 4), 20: (1, 4)}

    def process(pid: int) -> ProcessReading | None:
        if pid not in sizes:
            return None
        anon, shmem = (size * GIB for size in sizes[pid])
        return ProcessReading(pid, 1, "eva", "x", anon, shmem, anon + shmem)

    other = ProcessReading(99, 1, "bob", "java", rss=2 * GIB)
    mine = ProcessReading(12, 1, "eva", "x", rss=3 * GIB)
    members = {11: SERVING, 12: SERVING, 13: SERVING, 20: DAEMON}
    holders = host_holders(members, process, {"chat-8b/3": 11}, (other, mine))
    assert [(h.role, h.pid, h.bytes) for h in holders] == [
        ("weights", 20, 5 * GIB),
        ("engine", 11, 8 * GIB),
        ("other", 99, 2 * GIB),
    ]
    del members[20]
    alone = host_holders(members, process, {})
    assert [(h.role, h.bytes) for h in alone] == [("engine", 12 * GIB)]
    view = host_view(HOST, GpuReadings(note="no NVIDIA driver on this machine"), holders)
    assert view.nvml_note == "no NVIDIA driver on this machine"
    assert view.holders == holders
