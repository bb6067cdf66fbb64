"""What a standby may start and how; which standby fits; whether there is memory for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_ctl.errors import Failed
from engine_ctl.inside import standby_become, standby_forker
from engine_ctl.inside.probe_check import _root, _text, plain
from engine_ctl.inside.standby_become import choose, environment_difference
from engine_ctl.inside.standby_metrics import VARIABLE, settle_metrics
from engine_ctl.inside.standby_server import BadRequest
from engine_ctl.inside.standby_threads import parse_cpus
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import identity
from engine_ctl.standby.client import CheckError
from engine_ctl.standby.environment import passed_on, relevant
from engine_ctl.standby.identity import standby_identity
from engine_ctl.standby.lifecycle import SOCKET_PATH_LIMIT, Wanted, command, socket_path
from engine_ctl.standby.memory import DEFAULT_COST, FLOOR_BYTES, GIB, floor, may_keep, to_stop
from profiles.model import EnvRef

SERVE = ["serve", "/models/m"]


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text("v = 1")
    python = tmp_path / "python"
    python.write_text("")
    return Runtime(
        name="cpu", python=str(python), version="0.32.0", platform="cpu", package=str(package)
    )


# How the engine's own processes start


@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm"])
def test_processes_fork_from_a_pristine_one(platform: str) -> None:
    assert choose(SERVE, "auto", platform)[0] == "forkserver"


@pytest.mark.parametrize(
    "extra",
    [
        ["--numa-bind"],
        ["--numa_bind"],
        ["--distributed-executor-backend", "ray"],
        ["--distributed_executor_backend=ray"],
        ["--data-parallel-backend=ray"],
    ],
)
def test_what_cannot_be_forked_is_spawned_and_said(extra: list[str]) -> None:
    method, why = choose([*SERVE, *extra], "auto", "cuda")
    assert method == "spawn" and why
    assert choose([*SERVE, *extra], "fork", "cuda")[0] == "spawn"


@pytest.mark.parametrize("said", ["numa-bind: true", "distributed_executor_backend: ray"])
def test_so_is_what_a_file_of_arguments_says(said: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"model: m\n{said}\n")
    for words in (["--config", "c.yaml"], [f"--config={tmp_path}/c.yaml"]):
        assert choose([*SERVE, *words], "auto", "cuda", str(tmp_path))[0] == "spawn"
    (tmp_path / "c.yaml").write_text("numa-bind: false\nload-format: ray\n")
    for words in (["--config", "c.yaml"], ["--config", "nothing.yaml"], ["--config"]):
        assert choose([*SERVE, *words], "auto", "cuda", str(tmp_path))[0] == "forkserver"


def test_a_model_called_ray_is_no_backend() -> None:
    assert choose(["serve", "ray", "--served-model-name", "ray"], "auto", "cuda")[0] != "spawn"


def test_intel_openmp_is_spawned_on_the_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/x/libiomp5.so")
    assert choose(SERVE, "auto", "cpu")[0] == "spawn"
    assert choose(SERVE, "auto", "cuda")[0] == "forkserver"


def test_fork_asked_for_on_the_cpu_cannot_be_had() -> None:
    assert choose(SERVE, "fork", "cuda")[0] == "fork"
    assert choose(SERVE, "fork", "cpu")[0] == "forkserver"


def test_a_python_without_the_private_table_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_forker.context, "_concrete_contexts", None)
    assert choose(SERVE, "auto", "cuda")[0] == "spawn"


def test_an_environment_that_differs_is_named_and_marks_are_not() -> None:
    have = {"OMP_NUM_THREADS": "4", "STOKER_RUN": "standby-1/1"}
    wanted = {
        "OMP_NUM_THREADS": "2",
        "VLLM_X": "1",
        "STOKER_RUN": "chat/3",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert environment_difference(wanted, have) == ["OMP_NUM_THREADS", "VLLM_X"]


def test_inside_and_outside_agree_on_what_may_differ() -> None:
    assert standby_become.LATE == identity.LATE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("argv", ["bench"]),
        ("argv", "serve"),
        ("argv", ["serve", "a\0b"]),
        ("env", {"A=B": "1"}),
        ("env", {"A": 1}),
        ("run_dir", "relative"),
        ("run_dir", "/nowhere/at/all"),
        ("shim", "/nowhere/shim.py"),
        ("method", "teleport"),
        ("cwd", "/nowhere/at/all"),
        ("log", "/nowhere/at/all/log"),
    ],
)
def test_orders_that_make_no_sense_are_refused(tmp_path: Path, field: str, value: object) -> None:
    order = {
        "argv": SERVE,
        "env": {},
        "run_dir": str(tmp_path),
        "shim": __file__,
        "shim_python": "/bin/sh",
    }
    standby_become.Order(order)
    with pytest.raises(BadRequest):
        standby_become.Order({**order, field: value})


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0 1 2", [0, 1, 2]), ("0-3", [0, 1, 2, 3]), ("1,3", [1, 3]), ("0-6:3 9", [0, 3, 6, 9])],
)
def test_libgomp_cpu_lists(text: str, cpus: list[int]) -> None:
    assert parse_cpus(text) == cpus


# Words for errors


def test_the_first_exception_of_a_chain_is_the_root() -> None:
    try:
        try:
            raise OSError("no such model")
        except OSError as inner:
            raise RuntimeError("engine failed") from inner
    except RuntimeError as error:
        assert str(_root(error)) == "no such model"


def test_a_lookup_that_libraries_wrapped_into_words_is_not_the_root() -> None:
    try:
        try:
            {}["llama9"]
        except KeyError:
            raise ValueError("model type llama9 is not known") from None
    except ValueError as error:
        assert str(_root(error)) == "model type llama9 is not known"


def test_an_error_is_one_line() -> None:
    assert _text(ValueError("a\n  b")) == "a b"
    error = CheckError("parse", "bad_argument", "unrecognized arguments: --max-len", nearest="-x")
    assert error.line == "unrecognized arguments: --max-len; did you mean -x?"
    words = "[Errno -2] Name or service not known"
    assert "give a local path" in CheckError("config", "unknown", words, "gaierror").line


def test_values_become_json_types() -> None:
    assert plain({"a": (1, None, True), 2: Path("/x")}) == {"a": [1, None, True], "2": "/x"}


# Identity


def test_the_same_environment_has_the_same_identity(runtime: Runtime) -> None:
    assert standby_identity(runtime, {"A": "1", "B": "2"}) == standby_identity(
        runtime, {"B": "2", "A": "1"}
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"OMP_NUM_THREADS": "2"},
        {"LD_PRELOAD": "/x.so"},
        {"VLLM_USE_X": "1"},
        {"PYTHONPATH": "/overlay"},
    ],
)
def test_what_is_read_at_import_makes_another(runtime: Runtime, extra: dict[str, str]) -> None:
    assert standby_identity(runtime, extra) != standby_identity(runtime, {})


def test_gpus_and_marks_do_not(runtime: Runtime) -> None:
    late = {"CUDA_VISIBLE_DEVICES": "1", "PATH": "/bin", "STOKER_RUN": "a/1"}
    assert standby_identity(runtime, late) == standby_identity(runtime, {})


def test_an_upgrade_underneath_makes_another(runtime: Runtime) -> None:
    before = standby_identity(runtime, {})
    os.utime(Path(runtime.package) / "__init__.py", (1, 1))
    assert standby_identity(runtime, {}) != before


def test_cached_bytecode_does_not(runtime: Runtime) -> None:
    before = standby_identity(runtime, {})
    (Path(runtime.package) / "__pycache__").mkdir()
    assert standby_identity(runtime, {}) == before


def test_only_what_engines_read_counts() -> None:
    found = relevant({"VLLM_X": "1", "https_proxy": "p", "PS1": "$", "SSH_TTY": "t", "HOME": "/h"})
    assert found == {"VLLM_X": "1", "https_proxy": "p", "HOME": "/h"}


def test_references_are_resolved_in_the_base_and_missing_ones_said(runtime: Runtime) -> None:
    refs = {"HF_TOKEN": EnvRef(from_env="MY_TOKEN")}
    base = {"MY_TOKEN": "secret", "VLLM_DEBUG": "1", "PATH": "/bin"}
    wanted = Wanted(runtime, {"A": "1"}, refs, ["VLLM_DEBUG"], base=base)
    found = wanted.environment()
    assert (found["HF_TOKEN"], found["A"]) == ("secret", "1")
    assert not {"VLLM_DEBUG", "STOKER_RUN"} & set(found)
    with pytest.raises(Failed, match="MY_TOKEN"):
        Wanted(runtime, {}, refs, base={}).environment()


def test_a_rotated_secret_makes_another(runtime: Runtime) -> None:
    refs = {"HF_TOKEN": EnvRef(from_env="T")}
    one, two = (Wanted(runtime, {}, refs, base={"T": token}).identity() for token in "ab")
    assert one != two


# Places, commands, memory


def test_socket_paths_fit_into_a_socket_address(tmp_path: Path) -> None:
    for root in (Path("/run/user/1000/stoker"), tmp_path / ("x" * 200)):
        dirs = Dirs(state=tmp_path, data=root, config=root, cache=root, sockets=root)
        assert len(os.fsencode(socket_path(dirs, "0123456789"))) <= SOCKET_PATH_LIMIT


def test_two_state_directories_never_share_a_socket(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 200)
    paths = {
        socket_path(Dirs(state=tmp_path / n, data=root, config=root, cache=root, sockets=root), "i")
        for n in "ab"
    }
    assert len(paths) == 2


def test_the_part_that_vllm_parses() -> None:
    line = ["/rt/bin/python", "-m", "vllm.entrypoints.cli.main", *SERVE, "--port", "1"]
    assert command(line) == [*SERVE, "--port", "1"]
    with pytest.raises(Failed, match="not a vllm serve, preload or bench command"):
        command(["sleep", "60"])


def test_memory_allows_a_standby_until_the_floor() -> None:
    total = 64 * GIB
    assert floor(total) > FLOOR_BYTES
    assert may_keep(floor(total) + DEFAULT_COST, total, DEFAULT_COST).keep
    refused = may_keep(floor(total) + DEFAULT_COST - 1, total, DEFAULT_COST)
    assert not refused.keep and "GiB are available" in refused.why


def test_unknown_memory_allows_it_and_says_so() -> None:
    decision = may_keep(None, None, DEFAULT_COST)
    assert decision.keep and "does not say" in decision.why


def test_no_more_standbys_end_than_needed_oldest_first() -> None:
    costs = [("old", GIB), ("unknown", None), ("new", GIB)]
    total = 16 * GIB
    assert to_stop(costs, floor(total), total) == []
    assert to_stop(costs, floor(total) - 1, total) == ["old"]
    assert to_stop(costs, floor(total) - GIB - 1, total) == ["old", "unknown"]
    assert to_stop(costs, None, total) == []


def test_figures_of_several_servers_are_kept_in_the_files_that_vllm_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from prometheus_client import Counter, values
    from prometheus_client.registry import CollectorRegistry

    monkeypatch.setattr(values, "ValueClass", values.MutexValue)
    before = dict(os.environ)
    settle_metrics(before)
    assert values.ValueClass is values.MutexValue
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    settle_metrics(before)
    Counter("asked", "How often.", registry=CollectorRegistry()).inc()
    assert [file.name for file in tmp_path.iterdir()] == [f"counter_{os.getpid()}.db"]


def test_what_a_profile_sets_counts_whatever_it_is_called(runtime: Runtime) -> None:
    """A connector's or plugin's variable: profiles that differ in it shared a standby, and the
    second engine got the first one's."""
    base = {"HOME": "/h", "PS1": "$"}
    prefill, decode, neither = (
        Wanted(runtime, env, base=base)
        for env in ({"MOONCAKE_CONFIG_PATH": "/p"}, {"MOONCAKE_CONFIG_PATH": "/d"}, {})
    )
    assert len({each.identity() for each in (prefill, decode, neither)}) == 3
    assert relevant(base, prefill.own) == {"HOME": "/h"}
    whole = {**base, "MOONCAKE_CONFIG_PATH": "/p", "STOKER_RUN": "u/1"}
    assert passed_on(whole, prefill.own) == {
        "HOME": "/h",
        "MOONCAKE_CONFIG_PATH": "/p",
        "STOKER_RUN": "u/1",
    }
    assert Wanted(runtime, {}, base={**base, "PS1": "#"}).identity() == neither.identity()
