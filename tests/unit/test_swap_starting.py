"""A prepared start: what it takes from a standby, and the runtime that is no longer what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Failed
from engine_ctl.operations.context import Context
from engine_ctl.operations.planning import Endpoint
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.client import Check, Hello, Memory
from engine_ctl.standby.lifecycle import Standing
from engine_ctl.state.store import Run
from engine_ctl.swap.starting import Prepared, prepare
from profiles.model import Profile
from tests.standin.rig import dirs_in

RUNTIME = Runtime(name="cpu", python="/v/bin/python", version="0.32.0", platform="cpu")


class Stage:
    """A context whose standby (None: the profile wants none) and check say these versions."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.ctx = Context(dirs_in(root), by="test")
        self.hello: str = RUNTIME.version
        self.checked: str | None = RUNTIME.version
        patch.setattr(standbys, "find", self._find)
        patch.setattr(standbys, "check", lambda *_, **__: Check(ok=True, version=self.checked))
        patch.setattr("engine_ctl.runtimes.arguments.learn", lambda *_: None)

    def _find(self, store: Any, identity: str, **_: Any) -> Standing:
        hello = Hello(self.hello, "cpu", 7, False, Memory(), [], identity=identity)
        run = Run("standby-x", 3, self.ctx.store.units_dir / "standby-x" / "runs" / "3")
        return Standing("standby-x", identity, run, "cpu", Path("/s/x"), hello)

    def prepare(self, **options: Any) -> Prepared:
        profile = Profile(name="a", model="/m", standby=options.pop("standby", True))
        place = Endpoint("127.0.0.1", 8000)
        return prepare(self.ctx, "a", profile, RUNTIME, place, None, **options)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_the_spec_names_the_standby_that_a_restart_asks_first(stage: Stage) -> None:
    found = stage.prepare()
    assert (found.spec.via, found.spec.standby) == ("standby", "standby-x/3")
    assert found.spec.standby_identity == found.wanted.identity()
    path = standbys.socket_path(stage.ctx.dirs, found.wanted.identity())
    assert found.spec.standby_socket == str(path)
    alone = stage.prepare(standby=False).spec
    assert (alone.via, alone.standby_socket, alone.standby_identity) == ("spawn", None, None)


@pytest.mark.parametrize("standby", [True, False])
def test_a_runtime_that_was_upgraded_underneath_is_one_line(stage: Stage, standby: bool) -> None:
    stage.hello = stage.checked = "0.33.0"
    with pytest.raises(Failed) as caught:
        stage.prepare(standby=standby)
    said = str(caught.value)
    assert "has vLLM 0.33.0 now, 0.32.0 when it was recorded" in said and "\n" not in said
    assert "stoker runtime check cpu" in said
    # Going back takes what there is: an engine of another version is more than none.
    assert stage.prepare(standby=standby, as_recorded=False).check is not None


def test_a_check_that_does_not_say_its_version_is_no_objection(stage: Stage) -> None:
    stage.checked = None
    assert stage.prepare().check is not None
