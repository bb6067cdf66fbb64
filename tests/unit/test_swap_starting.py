"""A prepared start: what it takes from a standby, and the runtime that is no longer what it was."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl.errors import Failed
from engine_ctl.operations import catalogue
from engine_ctl.operations.context import Context
from engine_ctl.operations.planning import Endpoint, endpoint_of, engine_spec
from engine_ctl.runtimes.defaults import PLAN, PLAN_KEY, QUIET, plan_key, serve_defaults
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.client import Check, Hello, Memory
from engine_ctl.standby.lifecycle import Standing
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run
from engine_ctl.swap import levers
from engine_ctl.swap.caches import Caches, PlanUse, plan_use
from engine_ctl.swap.starting import Prepared, prepare
from profiles.argv import expanded
from profiles.model import Profile
from profiles.schema import ArgumentSchema, shipped
from tests.standin.rig import dirs_in

RUNTIME = Runtime(name="cpu", python="/v/bin/python", version="0.32.0", platform="cpu")
VLLM = shipped("0.32")


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


# Levers


def prepared_on(stage: Stage, platform: str, env: str | None = None, **effective: Any) -> Prepared:
    found = stage.prepare()
    assert found.check is not None
    check = msgspec.structs.replace(found.check, effective=effective)
    values = {} if env is None else {PLAN: env}
    spec = msgspec.structs.replace(found.spec, env=values)
    runtime = msgspec.structs.replace(RUNTIME, platform=platform)
    return replace(found, check=check, spec=spec, runtime=runtime)


def test_what_is_imported_is_said(stage: Stage) -> None:
    found = stage.prepare()
    assert levers.standby_note(found) == "from standby-x: nothing is imported again"
    assert found.standing is not None and found.standing.hello is not None
    hello = msgspec.structs.replace(found.standing.hello, method="spawn", why="Ray starts its own")
    ray = replace(found, standing=replace(found.standing, hello=hello))
    assert "import again: Ray starts its own" in levers.standby_note(ray)
    assert found.check is not None
    bound = msgspec.structs.replace(found.check, method="spawn", why="--numa-bind does")
    assert "import again: --numa-bind does" in levers.standby_note(replace(found, check=bound))
    forked = msgspec.structs.replace(found.check, method="forkserver")
    assert levers.standby_note(replace(ray, check=forked)) == levers.standby_note(found)
    alone = levers.standby_note(stage.prepare(standby=False))
    assert alone == "no standby (the profile says standby: false): vLLM is imported anew"


def test_the_startup_plan_is_named_where_it_is_off(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLAN, raising=False)
    off = prepared_on(stage, "cuda", env="0")
    assert levers.plan_note(off, Caches()).startswith(f"startup plan: off ({PLAN})")
    assert levers.plan_note(prepared_on(stage, "cpu"), Caches()) == ""
    on = prepared_on(stage, "cuda", env="1")
    assert levers.plan_note(on, Caches(plan="applies")) == "applies"
    assert plan_use(on) is PlanUse.SHARED and plan_use(off) is PlanUse.OFF


def test_only_a_standby_whose_processes_are_copies_keeps_plans_apart(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLAN, raising=False)
    found = prepared_on(stage, "cuda")
    found = replace(found, spec=msgspec.structs.replace(found.spec, env={PLAN_KEY: "k"}))
    assert plan_use(found) is PlanUse.APART and levers.plan_note(found, Caches()) == ""
    assert found.standing is not None and found.standing.hello is not None
    hello = msgspec.structs.replace(found.standing.hello, method="spawn")
    assert found.check is not None
    bound = msgspec.structs.replace(found.check, method="spawn", why="--numa-bind does")
    for other, said in (
        (replace(found, standing=None), "only from a standby"),
        (replace(found, standing=replace(found.standing, hello=hello)), "where they import again"),
        (replace(found, check=bound), "where they import again"),
    ):
        assert plan_use(other) is PlanUse.OFF
        assert said in levers.plan_note(other, Caches())


BASE = Profile(name="p", model="/m", args={"gpu_memory_utilization": 0.9, "max_num_seqs": 8})


@pytest.mark.parametrize(
    ("args", "env", "same"),
    [
        ({"gpu-memory-utilization": 0.9, "max_num_seqs": 8}, {}, True),
        ({**BASE.args, "tool_call_parser": "hermes", "uvicorn_log_level": "debug"}, {}, True),
        (BASE.args, {"HF_TOKEN": "t", PLAN: "1"}, True),
        ({**BASE.args, "gpu_memory_utilization": 0.5}, {}, False),
        ({**BASE.args, "limit_mm_per_prompt": {"image": 2}}, {}, False),
        ({**BASE.args, "speculative_config": {"num_speculative_tokens": 3}}, {}, False),
        (BASE.args, {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
    ],
)
def test_a_plan_is_for_what_memory_depends_on(
    args: dict[str, Any], env: dict[str, str], same: bool
) -> None:
    gpu = msgspec.structs.replace(RUNTIME, platform="cuda", version="0.33.0")
    other = plan_key(msgspec.structs.replace(BASE, args=args), gpu, env)
    assert (other == plan_key(BASE, gpu, {})) is same and PLAN_KEY in other


def test_a_plan_is_for_what_a_config_file_says(tmp_path: Path) -> None:
    gpu = msgspec.structs.replace(RUNTIME, platform="cuda", version="0.33.0")
    file = tmp_path / "c.yaml"
    profile = msgspec.structs.replace(BASE, args={"config": str(file)})
    assert plan_key(profile, gpu, {}) == {}
    keys = []
    for share in (0.5, 0.9):
        file.write_text(f"gpu-memory-utilization: {share}")
        keys.append(plan_key(profile, gpu, {})[PLAN_KEY])
    assert keys[0] != keys[1]


def test_a_dollar_that_was_written_as_one_is_filled_in_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLACE", "/run/e.sock")
    written = msgspec.structs.replace(BASE, args={"uds": "${PLACE}", "chat_template": "$${x}"})
    for profile in (written, expanded(written, os.environ)):
        assert endpoint_of(profile, "127.0.0.1", 8000).uds == "/run/e.sock"


def test_no_key_where_there_is_no_plan() -> None:
    gpu = msgspec.structs.replace(RUNTIME, platform="cuda", version="0.33.0")
    assert plan_key(BASE, gpu, {PLAN: "0"}) == {}
    assert plan_key(BASE, msgspec.structs.replace(gpu, platform="cpu"), {}) == {}
    assert plan_key(BASE, msgspec.structs.replace(gpu, version="0.31.2"), {}) == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, ["--disable-access-log-for-endpoints", "/health,/metrics"]),
        ({"disable-access-log-for-endpoints": ""}, ["--disable-access-log-for-endpoints", ""]),
        ({QUIET: "/ping"}, ["--disable-access-log-for-endpoints", "/ping"]),
        ({"disable_uvicorn_access_log": True}, []),
        ({"no-disable-uvicorn-access-log": True}, []),
        ({"uvicorn_log_level": "debug"}, []),
        ({"logging_config": {"pylogging_config_file": "/c.json"}}, []),
        ({"logging_config.pylogging_config_file": "/c.json"}, []),
    ],
)
def test_what_stoker_polls_is_not_in_the_access_log(args: dict[str, Any], said: list[str]) -> None:
    words = spec_of(Profile(name="a", model="/m", args=args), RUNTIME).display_argv
    at = [at for at, word in enumerate(words) if "access-log-for" in word]
    assert words[at[0] : at[0] + 2] == said if said else at == []


def test_no_argument_that_the_runtimes_vllm_may_not_have() -> None:
    """Its own schema lacks it, or only that of another version is there."""
    profile = Profile(name="a", model="/m")
    lacking = ArgumentSchema("0.32.0", [a for a in VLLM.arguments.values() if a.name != QUIET])
    assert serve_defaults(profile, RUNTIME, lacking) == {}
    old = msgspec.structs.replace(RUNTIME, version="0.24.1")
    assert serve_defaults(profile, old, VLLM) == {}
    assert serve_defaults(profile, RUNTIME, VLLM) == {QUIET: "/health,/metrics"}


def test_what_stoker_adds_is_shown_beside_the_profiles_own(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the profile stays what it was: a round trip compares it."""
    file = tmp_path / "p.yaml"
    file.write_text("model: /m\nstop: {drain_s: 3}\n")
    monkeypatch.setattr(catalogue, "runtime_of", lambda *_: RUNTIME)
    shown = catalogue.effective(stage.ctx, str(file))
    quiet = ["--disable-access-log-for-endpoints", "/health,/metrics"]
    assert shown.document()["added_argv"] == ["--shutdown-timeout", "3", *quiet]
    assert "access-log" not in str(shown.document()["argv"])
    assert "and, by Stoker: --shutdown-timeout 3 --disable-access-log" in shown.text(False)
    assert catalogue.detail(stage.ctx, str(file)).added == shown.added


def spec_of(profile: Profile, runtime: Runtime) -> RunSpec:
    return engine_spec("a", profile, runtime, VLLM, Endpoint("127.0.0.1", 8000), "test")


def test_the_optimisation_level_is_named(stage: Stage) -> None:
    assert levers.optimization_note(prepared_on(stage, "cpu")) == ""
    plain = prepared_on(stage, "cuda", optimization_level="OptimizationLevel.O2")
    assert levers.optimization_note(plain) == "optimisation level 2"
    eager = prepared_on(stage, "cuda", optimization_level=2, enforce_eager=True)
    assert levers.optimization_note(eager).endswith("enforce_eager leaves little")
