"""Runtimes that are there already, the disk check, and what stands in for missing metadata."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from engine_ctl.answers import ChangeView
from engine_ctl.errors import Failed, NotFound, Usage
from engine_ctl.operations import catalogue
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.runtimes import detect, install, manage
from engine_ctl.runtimes.overlay import needs_overlay, write_overlay
from engine_ctl.runtimes.probe import Probed
from engine_ctl.runtimes.store import Runtime, RuntimeStore

Usage_ = namedtuple("Usage_", "total used free")
GIB = 1 << 30


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    names = ("STATE", "DATA", "CONFIG", "CACHE")
    return Dirs.from_env({f"XDG_{n}_HOME": str(tmp_path / n.lower()) for n in names})


@pytest.mark.parametrize(
    ("head", "python"),
    [
        (b"#!/opt/v/bin/python3.12\nimport x\n", "/opt/v/bin/python3.12"),
        (b"#!/opt/v/bin/python -sE\n", "/opt/v/bin/python"),
        (
            b"#!/bin/sh\n'''exec' \"/a long/path/bin/python\" \"$0\" \"$@\"\n' '''\n",
            "/a long/path/bin/python",
        ),
        (b"#!/bin/sh\n'''exec' /a/path/bin/python \"$0\" \"$@\"\n' '''\n", "/a/path/bin/python"),
        (b"\x7fELF\x02", None),
        (b"", None),
    ],
)
def test_the_interpreter_behind_a_console_script(
    head: bytes, python: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "vllm"
    script.write_bytes(head)
    assert detect.interpreter_of(script) == python


def test_env_in_a_shebang_is_looked_up(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text("#!/usr/bin/env python3\n")
    assert detect.interpreter_of(script) == shutil.which("python3")
    assert detect.interpreter_of(tmp_path / "gone") is None


def vllm_on(path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    (path / "vllm").write_text(f"#!{python}\n")
    (path / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(path))


def test_a_vllm_on_path_is_offered_with_a_driver_only(
    dirs: Dirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "beside_us", lambda: None)
    vllm_on(tmp_path / "bin", "/opt/v/bin/python", monkeypatch)
    monkeypatch.setattr(detect, "nvidia_driver", lambda: False)
    assert manage.offer(dirs) is None
    monkeypatch.setattr(detect, "nvidia_driver", lambda: True)
    offered = manage.offer(dirs)
    assert offered is not None and offered[0] == "/opt/v/bin/python"
    RuntimeStore(dirs).save(
        Runtime(name="mine", python="/opt/v/bin/python", version="0.33.0", platform="cuda")
    )
    assert manage.offer(dirs) is None


def test_a_vllm_beside_stoker_is_found_and_offered_first(
    dirs: Dirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert detect.beside_us() == sys.executable  # found without importing it
    vllm_on(tmp_path / "bin", "/opt/v/bin/python", monkeypatch)
    monkeypatch.setattr(detect, "nvidia_driver", lambda: True)
    offered = manage.offer(dirs)
    assert offered is not None and offered[0] == sys.executable
    ctx = Context(dirs)
    with pytest.raises(NotFound, match=f"beside Stoker; run: stoker runtime add {sys.executable}"):
        ctx.runtime_for(ctx.profiles.load("chat"))


def test_without_any_vllm_the_cpu_build_is_named(
    dirs: Dirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manage, "offer", lambda dirs: None)
    ctx = Context(dirs)
    with pytest.raises(NotFound, match="run: stoker runtime add cpu"):
        ctx.runtime_for(ctx.profiles.load("chat"))


@pytest.mark.parametrize(("spec", "needed"), [("cpu", 6), ("vllm==0.33.0", 15)])
def test_free_disk_is_checked_before_anything_is_made(
    spec: str, needed: int, dirs: Dirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Usage_(100 * GIB, 0, needed * GIB - 1)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: free)
    with pytest.raises(Failed, match=f"needs {needed} GiB free .* there are {needed}.0 GiB"):
        manage.add(dirs, spec, lambda text, share: None)
    store = RuntimeStore(dirs)
    assert store.names() == [] and not list(store.root.glob("*/venv"))
    assert store.interrupted() == []


@pytest.mark.parametrize("spec", ["vlm", "vllm==", "vllm>=0.32", "vllm==0.33 --index-url x", ""])
def test_other_wishes_are_usage_errors(spec: str, dirs: Dirs) -> None:
    with pytest.raises(Usage, match="is none of"):
        manage.add(dirs, spec, lambda text, share: None)


def test_the_overlay_supplies_the_metadata_that_vllm_asks_for(tmp_path: Path) -> None:
    from importlib.metadata import distributions

    probed = Probed("0.32.0", None, "cuda", "2.13.0", "/x/vllm", (3, 11, 0))
    assert needs_overlay(probed)
    write_overlay(tmp_path / "overlay", probed)
    (found,) = distributions(path=[str(tmp_path / "overlay")])
    assert (found.metadata["Name"], found.version) == ("vllm", "0.32.0+cuda")
    whole = Probed("0.33.0", "0.33.0", "cuda", "2.14.0", "/x/vllm", (3, 12, 0))
    assert not needs_overlay(whole)


def test_metadata_of_the_operators_own_path_is_not_what_engines_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in vLLM for the CPU without metadata, and PYTHONPATH with some."""
    site = tmp_path / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("__version__ = '0.32.0'\n")
    (site / "vllm" / "platforms.py").write_text(
        "class P:\n"
        "    is_cuda = is_rocm = staticmethod(lambda: False)\n"
        "    is_cpu = staticmethod(lambda: True)\n"
        "current_platform = P()\n"
    )
    (site / "torch.py").write_text("__version__ = '2.13.0'\n")
    python = tmp_path / "python"
    run = f"import sys; sys.path.append({str(site)!r}); sys.argv = sys.argv[1:]; exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{run}" "$@"\n')
    python.chmod(0o755)
    theirs = tmp_path / "theirs"
    metadata = theirs / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    made = install.verified(tmp_path / "rt", "rt", str(python), managed=False, source="")
    assert made.platform == "cpu" and made.overlay is not None
    assert list(Path(made.overlay).glob("vllm-*.dist-info/METADATA"))


@pytest.mark.parametrize("given", ["vllm", "{env}/bin/vllm", "{env}/bin/python", "{env}"])
def test_an_installation_is_named_by_any_part_of_it(
    given: str, dirs: Dirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").touch(mode=0o755)
    (env / "bin" / "vllm").write_text(f"#!{env}/bin/python\n")
    (env / "bin" / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(env / "bin"))
    asked: list[str] = []
    monkeypatch.setattr(manage, "add_interpreter", lambda _, python, *rest: asked.append(python))
    manage.add(dirs, given.format(env=env), lambda *_: None)
    assert asked == [f"{env}/bin/python"]


def test_a_difference_tells_what_becomes_of_the_runtime() -> None:
    named = ChangeView("runtime", "–", "cpu-0.32.0", "new runtime")
    other = ChangeView("args.max_num_seqs", "8", "16", "restart")
    same = catalogue.with_installations((named, other), "cpu-0.32.0", "cpu-0.32.0")
    assert [(change.key, change.cost) for change in same] == [
        ("args.max_num_seqs", "restart"),
        ("runtime", "unchanged"),
    ]
    moved = catalogue.with_installations((other,), "vllm-0.32.0", "vllm-0.33.0")
    assert moved == (ChangeView("runtime", "vllm-0.32.0", "vllm-0.33.0", "new runtime"), other)
    assert catalogue.with_installations((named, other), None, "cpu-0.32.0") == (named, other)
