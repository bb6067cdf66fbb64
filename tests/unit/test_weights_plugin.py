"""The CPU plugin's parts that need no vLLM: the sealed segment, the gate, the overlay."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import socket
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from engine_ctl.inside import weight_cache_cpu as plugin
from engine_ctl.inside import weight_cache_cpu_segment as segment
from engine_ctl.weights import cpu_plugin


def _segment(*parts: bytes) -> tuple[int, list[int]]:
    writer = segment.SegmentWriter("stoker-test")
    offsets = [writer.append(memoryview(part)) for part in parts]
    return writer.seal(), offsets


def test_parts_lie_at_page_boundaries() -> None:
    fd, offsets = _segment(b"one", b"", b"x" * (mmap.PAGESIZE + 1), b"last")
    assert [offset % mmap.PAGESIZE for offset in offsets] == [0] * 4
    assert os.pread(fd, 3, offsets[0]) == b"one" and os.pread(fd, 4, offsets[3]) == b"last"
    assert os.fstat(fd).st_size == offsets[3] + mmap.PAGESIZE
    os.close(fd)


def test_a_sealed_segment_cannot_change_or_shrink() -> None:
    fd, _ = _segment(b"weights")
    segment.check_segment(fd, 7)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)


def test_a_kernel_that_does_not_know_noexec(monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = os.memfd_create, []

    def older(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & segment._MFD_NOEXEC_SEAL:
            raise OSError(errno.EINVAL, "unknown flag")
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", older)
    fd, _ = _segment(b"weights")
    segment.check_segment(fd, 7)
    assert len(asked) == 2
    os.close(fd)


def test_what_is_no_segment_is_refused(tmp_path: Path) -> None:
    fd, _ = _segment(b"weights")
    with pytest.raises(ValueError, match="were promised"):
        segment.check_segment(fd, 1 << 20)
    os.close(fd)
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    with pytest.raises(ValueError, match="not sealed"):
        segment.check_segment(unsealed, 0)
    os.close(unsealed)
    with (tmp_path / "f").open("w+b") as file, pytest.raises(ValueError, match="not a memory"):
        segment.check_segment(file.fileno(), 0)


def test_maps_are_private_and_outlive_the_descriptor() -> None:
    fd, (_, offset) = _segment(b"other", b"weights")
    first, second = (segment.map_private(fd, offset, 7) for _ in range(2))
    before = len(os.listdir("/proc/self/fd"))
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before - 1, "a map holds no descriptor"
    view = memoryview(first)
    first[0] = ord("W")
    assert bytes(first) == b"Weights" and bytes(second) == b"weights"
    assert len(_maps("stoker-test")) == 2
    del first
    gc.collect()
    assert view.tobytes() == b"Weights", "a buffer keeps its map"
    view.release()
    del view, second
    gc.collect()
    assert _maps("stoker-test") == []


def _maps(name: str) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if name in line]


def test_a_map_that_cannot_be_made() -> None:
    with pytest.raises(OSError, match="cannot map") as caught:
        segment.map_private(-1, 0, 4096)
    assert caught.value.errno == errno.EBADF


def test_a_descriptor_travels_over_the_socket() -> None:
    fd, _ = _segment(b"weights")
    one, other = socket.socketpair()
    with one, other:
        segment.send_descriptor(one, fd)
        received = segment.receive_descriptor(other)
        assert received != fd and os.pread(received, 7, 0) == b"weights"
        assert not os.get_inheritable(received)
        segment.check_segment(received, 7)
        os.close(received)
        one.sendall(b"F")
        with pytest.raises(ValueError, match="no descriptor"):
            segment.receive_descriptor(other)
        one.close()
        with pytest.raises(ConnectionError):
            segment.receive_descriptor(other)
    os.close(fd)


def test_device_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.DEVICES_ENV, raising=False)
    assert [plugin.device_uuid(n) for n in (0, 1)] == ["CPU-0", "CPU-1"]
    monkeypatch.setenv(plugin.DEVICES_ENV, "4, 7")
    assert [plugin.device_uuid(n) for n in (0, 1, 2)] == ["CPU-4", "CPU-7", "CPU-2"]
    monkeypatch.setattr(plugin, "_device_index", 1)
    assert plugin.current_device_uuid() == "CPU-7"


def test_versions_that_were_tried() -> None:
    assert plugin.tried("0.32.0") and plugin.tried("0.33") and plugin.tried("0.32.1+cpu")
    assert not plugin.tried("0.34.0") and not plugin.tried("0.3") and not plugin.tried("0.330.0")


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Just enough of vLLM for the gate, and a record of what the plugin said and did."""
    said: list[str] = []
    state = SimpleNamespace(said=said, cpu=True, version="0.32.0", registered=[])
    logger = SimpleNamespace(info=lambda text, *args: said.append(text % args))

    def module(name: str, **values: object) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    version = module("vllm.version", __version__="0.32.0")
    platform = SimpleNamespace(is_cpu=lambda: state.cpu)
    module("vllm", version=version)
    module("vllm.platforms", current_platform=platform)
    module("vllm.logger", init_logger=lambda name: logger)
    monkeypatch.setattr(plugin, "_register_engine", lambda p: state.registered.append("engine"))
    monkeypatch.setattr(plugin, "_register_preload", lambda p: state.registered.append("preload"))
    state.set_version = lambda value: setattr(version, "__version__", value)
    return state


def test_the_gate_opens(fake_vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "missing_hooks", lambda hooks: [])
    plugin.register()
    assert fake_vllm.registered == ["engine", "preload"] and fake_vllm.said == []


def test_other_platforms_are_left_alone(fake_vllm: SimpleNamespace) -> None:
    fake_vllm.cpu = False
    plugin.register()
    assert fake_vllm.registered == [] and fake_vllm.said == []


def test_an_untried_version_is_left_alone(fake_vllm: SimpleNamespace) -> None:
    fake_vllm.set_version("0.35.0")
    plugin.register()
    assert fake_vllm.registered == [] and "not tried with vLLM 0.35.0" in fake_vllm.said[0]


def test_a_missing_hook_leaves_vllms_own_refusal(fake_vllm: SimpleNamespace) -> None:
    """The fake has none of the modules that the plugin hooks into."""
    plugin.register()
    assert fake_vllm.registered == [] and "IpcModelLoader._build_model" in fake_vllm.said[0]


def test_hooks_are_looked_up_by_name() -> None:
    found = plugin.missing_hooks((("os", "path.join"), ("os", "path.nope"), ("no.module", "x")))
    assert found == ["os.path.nope", "no.module.x"]


def test_the_overlay_is_found_by_its_metadata(tmp_path: Path) -> None:
    cpu_plugin.write_overlay(tmp_path)
    (found,) = distributions(path=[str(tmp_path)])
    assert found.name == "stoker-vllm" and found.version == cpu_plugin.PLUGIN_VERSION
    (entry,) = found.entry_points
    assert entry.group == "vllm.general_plugins" and entry.name == cpu_plugin.PLUGIN_NAME
    module, _, function = entry.value.partition(":")
    source = (tmp_path / (module.replace(".", "/") + ".py")).read_text()
    assert f"def {function}()" in source
    names = {path.stem for path in (tmp_path / cpu_plugin.PACKAGE).glob("*.py")}
    assert names == {"__init__", *cpu_plugin.MODULES}
    for path in (tmp_path / cpu_plugin.PACKAGE).glob("*.py"):
        assert "engine_ctl" not in path.read_text(), "the overlay stands alone"
