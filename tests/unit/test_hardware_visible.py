"""Which GPUs a process sees, by CUDA's rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.hardware.readings import GpuReading
from engine_ctl.hardware.visible import Visible, visible
from tests.standin.nvml import RecordedNvml

DATA = Path(__file__).parent.parent / "data" / "nvml"
SAME = tuple(GpuReading(index, f"GPU-{index}abc", "NVIDIA H200") for index in range(4))


def recorded(name: str) -> tuple[GpuReading, ...]:
    return NvmlSource(RecordedNvml(json.loads((DATA / f"{name}.json").read_text()))).read().gpus


def indices(gpus: Sequence[GpuReading], seen: Visible) -> tuple[int, ...]:
    """NVML indices of what is seen; empty when that cannot be known."""
    numbers = {gpu.uuid: gpu.index for gpu in gpus}
    return tuple(numbers[uuid] for uuid in seen.uuids or ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        (" 1 , 3 ", (1, 3)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,7,2", (1,)),
        ("1,x,2", (1,)),
        ("GPU-3", (3,)),
        ("GPU-3,0", (3, 0)),
        ("GPU-", ()),
        ("1,1", ()),
        ("GPU-9", ()),
    ],
)
def test_equal_cards(text: str | None, expected: tuple[int, ...]) -> None:
    env = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert indices(SAME, visible(SAME, env)) == expected


def test_cards_that_differ_are_counted_fastest_first() -> None:
    mixed = recorded("mixed")
    seen = visible(mixed, {"CUDA_VISIBLE_DEVICES": "2,0"})
    assert seen.uuids is None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in seen.note
    assert indices(mixed, seen) == ()


def test_pci_order_makes_indices_those_of_nvml() -> None:
    mixed = recorded("mixed")
    env = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices(mixed, visible(mixed, env)) == (2, 0)


def test_uuids_need_no_order() -> None:
    mixed = recorded("mixed")
    env = {"CUDA_VISIBLE_DEVICES": f"{mixed[2].uuid},{mixed[0].uuid}"}
    assert visible(mixed, env) == Visible((mixed[2].uuid, mixed[0].uuid))


def test_all_of_them_are_known_in_any_order() -> None:
    mixed = recorded("mixed")
    seen = visible(mixed, {})
    assert seen.uuids is not None and len(seen.uuids) == 3
    assert seen.note.startswith("order unknown")


def test_mig_by_uuid_by_prefix_and_in_the_old_way() -> None:
    gpus = recorded("mig")
    uuid = "MIG-33333333-2222-5333-8444-555566667777"
    for text in (uuid, "MIG-3333", f"MIG-{gpus[0].mig_parent}/2/0"):
        assert visible(gpus, {"CUDA_VISIBLE_DEVICES": text}).uuids == (uuid,)
    assert visible(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-no/2/0"}).uuids == ()


def test_an_index_of_a_split_gpu_means_its_first_instance() -> None:
    gpus = recorded("mig")
    seen = visible(gpus, {"CUDA_VISIBLE_DEVICES": "0"})
    assert seen.uuids == (gpus[0].uuid,)
    assert "split by MIG" in seen.note
    parent = gpus[0].mig_parent or ""
    assert visible(gpus, {"CUDA_VISIBLE_DEVICES": parent}).uuids == (gpus[0].uuid,)
