"""A real standby of the CPU runtime: questions, engines out of it, and what SIGKILL leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl import identity
from engine_ctl.errors import Failed
from engine_ctl.metrics.sample import Parser, RankSample
from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.standby import lifecycle
from engine_ctl.standby.client import Client, Refused
from engine_ctl.standby.lifecycle import Standing, Wanted
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness, procs
from engine_ctl.supervise.stop import stop
from profiles.model import Stop
from tests.engine.conftest import CpuRuntime, locked
from tests.standin.rig import dirs_in, free_port, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUICK = Stop(ask_s=60.0, ask_again_s=30.0, kill_s=30.0)
READY_S = 120.0


@pytest.fixture(scope="module")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> Dirs:
    return dirs_in(tmp_path_factory.mktemp("standby"))


@pytest.fixture(scope="module")
def store(dirs: Dirs) -> Store:
    return Store(dirs)


@pytest.fixture(scope="module")
def wanted(cpu_runtime: CpuRuntime, tiny_model: Path) -> Wanted:
    env = {**cpu_runtime.env, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONUNBUFFERED": "1"}
    unset = ["PYTHONDONTWRITEBYTECODE"]
    return Wanted(cpu_runtime.runtime, env, env_unset=unset, models=(str(tiny_model),))


@pytest.fixture(scope="module")
def keeper(store: Store, wanted: Wanted) -> Iterator[None]:
    yield
    for standing in lifecycle.listing(store):
        lifecycle.stop(store, standing.unit)


@pytest.fixture
def standing(store: Store, wanted: Wanted, keeper: None) -> Standing:
    """The one standby of this module; made again where a test has killed it."""
    return lifecycle.ensure(store, wanted, by="test")


@pytest.fixture
def client(standing: Standing) -> Iterator[Client]:
    with Client(standing.socket) as connection:
        yield connection


@pytest.fixture
def short_dir() -> Iterator[str]:
    """A private directory whose name leaves room for vLLM's long socket names."""
    with tempfile.TemporaryDirectory(prefix="wc-", dir="/tmp") as directory:
        yield directory


class Engines:
    """Runs of one unit, all ended when the test is over."""

    def __init__(self, store: Store, wanted: Wanted, model: Path) -> None:
        self.store, self.wanted, self.model = store, wanted, model
        self.port = free_port()
        self.runs: list[Run] = []
        if not store.exists("tiny"):
            store.create("tiny", Kind.ENGINE)

    def arguments(self, *more: str) -> list[str]:
        fixed = ["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"]
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        return ["serve", str(self.model), *fixed, *place, *more]

    def run(self, *more: str, argv: list[str] | None = None, **spec: Any) -> Run:
        values: dict[str, Any] = {
            "unit": "tiny",
            "kind": Kind.ENGINE,
            "argv": argv or self.arguments(*more),
            "env": dict(self.wanted.env),
            "env_unset": list(self.wanted.env_unset),
            "ready_url": f"http://127.0.0.1:{self.port}/health",
            "stop": QUICK,
            **spec,
        }
        run = self.store.new_run(RunSpec(**values))
        self.store.set_current(run)
        self.runs.append(run)
        return run

    def ready(self, run: Run) -> None:
        deadline = time.monotonic() + READY_S
        while run.ready() is None:
            life = liveness.look(run)
            assert not life.ended, (life.note, run.log.read_text()[-3000:])
            assert time.monotonic() < deadline, run.log.read_text()[-3000:]
            time.sleep(0.05)

    def complete(self) -> str:
        body = {"model": str(self.model), "prompt": "The", "max_tokens": 6, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["choices"][0]["text"])

    def figures(self) -> dict[str, RankSample]:
        """What /metrics says, by rank."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return {rank.engine: rank for rank in Parser().parse(answer.read()).ranks}

    def stop_all(self) -> None:
        for run in self.runs:
            if run.identity() is not None:
                stop(run)


@pytest.fixture
def engines(store: Store, wanted: Wanted, tiny_model: Path) -> Iterator[Engines]:
    made = Engines(store, wanted, tiny_model)
    yield made
    made.stop_all()


def marked(run: Run) -> list[procs.Proc]:
    """Every live process that carries the mark of this run."""
    table = procs.table()
    return [p for p in table.values() if procs.run_dir_of(p.pid) == str(run.dir) and p.state != "Z"]


def test_hello_says_what_it_is(client: Client, standing: Standing) -> None:
    hello = client.hello()
    assert (hello.version, hello.platform) == ("0.32.0", "cpu")
    assert hello.cuda_initialized is False
    assert hello.method == "forkserver" and hello.why
    assert hello.identity == standing.identity
    assert hello.memory.pss and 100 << 20 < hello.memory.pss < 2 << 30
    assert hello.devices and hello.devices[0].memory
    assert hello.features["preload"] is True
    assert "--max-model-len" in hello.features["flags"]  # type: ignore[operator]
    assert "vllm.v1.engine.core" in hello.imported
    assert "vllm.model_executor.models.llama" in hello.imported
    who = standing.run.identity()
    assert who is not None and who.leader.pid == hello.pid


def test_schema_has_what_the_command_itself_shows(
    client: Client, standing: Standing, engines: Engines
) -> None:
    schema = client.schema()
    run = engines.run(argv=["serve", "--help=all"])
    lifecycle.become(standing, run)
    ended = until(run.exit, "the command has ended")
    shown = run.log.read_text()
    assert ended.code == 0, shown
    # an option is shown at the beginning of a line, its aliases and negations after commas
    heads = [line.split("  ")[0] for line in re.findall(r"^  (-.*)$", shown, re.M)]
    listed = {word for head in heads for word in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", head)}
    ours = {option for item in schema["serve"] for option in item["options"]}
    assert listed - ours == set()
    hidden = {o for item in schema["serve"] if item["help"] is None for o in item["options"]}
    assert ours - listed - hidden == set()
    assert {item["dest"] for item in schema["preload"]} >= {"weight_cache_socket_dir", "model"}
    length = next(item for item in schema["serve"] if item["dest"] == "max_model_len")
    assert length["type"] == "human_readable_int_or_auto" and length["help"]


def test_check_says_what_the_engine_would_run_with(client: Client, tiny_model: Path) -> None:
    argv = ["serve", str(tiny_model), "--max-model-len", "1k", "--port", "9", "--dtype", "float16"]
    check = client.check(argv)
    assert check.ok and check.error is None, check.error
    assert check.effective["max_model_len"] == 1000
    assert check.effective["dtype"] == "float16"
    assert check.effective["architecture"] == "LlamaForCausalLM"
    assert check.effective["tensor_parallel_size"] == 1
    assert check.effective["port"] == 9
    assert check.non_default["max_model_len"] == 1000
    assert check.config_hash
    assert [(key.role, key.rank) for key in check.keys] == [("target", 0)]
    assert check.keys[0].fields["dtype"] == "torch.float16"
    assert check.keys[0].fields["tp_size"] == "1"
    assert check.quantization is None
    other = client.check([*argv[:-1], "bfloat16", "--quantization", "fp8"])
    assert other.keys[0].fields != check.keys[0].fields
    assert other.quantization is not None
    assert (other.quantization.method, other.quantization.support) == ("fp8", "all")


@pytest.mark.parametrize(
    ("more", "category", "word", "nearest"),
    [
        (["--max-modl-len", "5"], "bad_argument", "--max-modl-len", "--max-model-len"),
        (["--dtype", "bfloat61"], "bad_argument", "invalid choice", "bfloat16"),
        (["--max-num-seqs", "many"], "bad_argument", "many", None),
        (["--gpu-memory-utilization", "2"], "bad_value", "gpu_memory_utilization", None),
        (["--max-model-len", "99999999"], "max_model_len_over_model", "max_model_len", None),
        (["-tp", "3"], "tp_not_divisible", "tensor parallel size (3)", None),
    ],
)
def test_check_finds_errors_in_words(
    client: Client, tiny_model: Path, more: list[str], category: str, word: str, nearest: str | None
) -> None:
    check = client.check(["serve", str(tiny_model), *more])
    assert not check.ok and check.error is not None
    assert (check.error.category, check.error.nearest) == (category, nearest)
    assert word in check.error.message
    assert "\n" not in check.error.line


def test_check_of_a_missing_model(client: Client, tmp_path: Path) -> None:
    check = client.check(["serve", str(tmp_path / "gone")])
    assert check.error is not None and check.error.category == "model_path_missing"


def test_check_out_of_time_is_said(client: Client, tiny_model: Path) -> None:
    check = client.check(["serve", str(tiny_model)], timeout_s=0.001)
    assert check.error is not None and "no answer within" in check.error.message
    assert client.hello().threads


def test_checks_leave_the_standby_as_it_was(client: Client, tiny_model: Path) -> None:
    argv = ["serve", str(tiny_model), "--seed", "1"]
    client.check(argv)
    before = client.hello()
    for _ in range(10):
        assert client.check(argv).ok
    after = client.hello()
    assert before.memory.pss and after.memory.pss
    assert after.memory.pss - before.memory.pss < 24 << 20
    assert len(after.threads) <= len(before.threads)


def test_the_one_shot_probe_says_the_same(
    client: Client, store: Store, wanted: Wanted, tiny_model: Path, tmp_path: Path
) -> None:
    argv = ["serve", str(tiny_model), "--enforce-eager"]
    empty = Store(dirs_in(tmp_path))
    cold = lifecycle.check(empty, wanted, argv)
    warm = lifecycle.check(store, wanted, argv)
    assert cold.cold and not warm.cold and cold.ok and warm.ok
    assert cold.effective == warm.effective
    assert cold.keys == warm.keys
    assert cold.config_hash == warm.config_hash


def test_an_engine_out_of_a_standby_serves_and_stops(
    client: Client, standing: Standing, engines: Engines
) -> None:
    run = engines.run()
    began = lifecycle.become(standing, run)
    assert (began.method, run.identity() is not None) == ("forkserver", True)
    engines.ready(run)
    assert engines.complete()
    who = run.identity()
    assert who is not None and who.leader.pid == began.engine and who.shim.pid == began.shim
    members = procs.members(str(run.dir), json.loads((run.dir / "identity.json").read_text()))
    names = {Path(f"/proc/{p.pid}/cmdline").read_bytes().split(b"\0")[0] for p in members}
    assert {b"VLLM::EngineCore", b"VLLM::Worker"} <= names
    # all of them are found by session and by mark, as those of an ordinary start are
    assert {p.sid for p in members} == {began.engine}
    assert {p.pid for p in members} <= {p.pid for p in marked(run)}
    text = Path(f"/proc/{began.engine}/cmdline").read_bytes()
    assert b"vllm serve" in text
    stop(run)
    ended = run.exit()
    assert ended is not None and ended.requested and not ended.remaining and ended.code == 0
    assert not marked(run)
    assert client.hello().started >= 1


def test_engines_in_a_row_do_not_grow_the_standby(
    client: Client, standing: Standing, engines: Engines
) -> None:
    sizes, texts = [], set()
    for seats in range(1, 4):
        run = engines.run("--max-num-seqs", str(seats))
        lifecycle.become(standing, run)
        engines.ready(run)
        texts.add(engines.complete())
        stop(run)
        assert not marked(run)
        sizes.append(client.hello().memory.private_dirty or 0)
    assert len(texts) == 1
    assert sizes[-1] - sizes[0] < 8 << 20, sizes
    standby = client.hello()
    assert len(os.listdir(f"/proc/{standby.pid}/fd")) < 20
    until(lambda: procs.descendants([standby.pid], procs.table(), ()) == set(), "shims are reaped")


def test_an_engine_that_fails_leaves_words_and_no_process(
    standing: Standing, engines: Engines
) -> None:
    run = engines.run("--max-model-len", "99999999")
    lifecycle.become(standing, run)
    until(lambda: liveness.look(run).ended, "the engine has ended")
    ended = run.exit()
    assert ended is not None and ended.code == 1 and not ended.requested
    assert "max_model_len" in run.log.read_text()
    assert not marked(run)


def test_a_preload_daemon_out_of_a_standby(
    client: Client, standing: Standing, engines: Engines, short_dir: str
) -> None:
    argv = ["preload", "--model", str(engines.model), "--weight-cache-socket-dir", short_dir]
    check = client.check(argv)
    assert check.ok and check.keys[0].socket, check
    run = engines.run(argv=argv, kind=Kind.PRELOAD, ready_url=f"unix:{check.keys[0].socket}")
    lifecycle.become(standing, run)
    engines.ready(run)
    extra = json.dumps({"socket_dir": short_dir})
    more = ["--load-format", "ipc_cache", "--model-loader-extra-config", extra]
    assert client.check(engines.arguments(*more)).keys == check.keys
    engine = engines.run(*more)
    lifecycle.become(standing, engine)
    engines.ready(engine)
    assert engines.complete()
    assert "from the weight cache daemon" in engine.log.read_text()
    stop(engine)
    stop(run)
    assert not marked(run) and not marked(engine)


def test_spawn_where_fork_is_not_wanted(standing: Standing, engines: Engines) -> None:
    run = engines.run()
    assert lifecycle.become(standing, run, method="spawn").method == "spawn"
    engines.ready(run)
    assert engines.complete()


def test_another_environment_is_refused_before_anything_runs(
    standing: Standing, engines: Engines, store: Store
) -> None:
    run = engines.run(env={**engines.wanted.env, "OMP_NUM_THREADS": "1"})
    with pytest.raises(Refused, match="OMP_NUM_THREADS"):
        lifecycle.become(standing, run)
    assert run.identity() is None
    other = Wanted(engines.wanted.runtime, run.spec().env, env_unset=run.spec().env_unset)
    assert lifecycle.find(store, other.identity()) is None


def test_a_runtime_that_was_changed_underneath_is_refused(
    standing: Standing, engines: Engines, wanted: Wanted
) -> None:
    file = Path(wanted.runtime.package) / "version.py"
    info, before = file.stat(), wanted.identity()
    run = engines.run()
    with locked("touched"):
        try:
            os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns + 1_000_000_000))
            with pytest.raises(Refused, match="vLLM was changed underneath"):
                lifecycle.become(standing, run)
            assert lifecycle.is_outdated(standing, wanted.runtime)
            # What wants one now wants another.
            assert wanted.identity() != before
        finally:
            os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert run.identity() is None
    assert not lifecycle.is_outdated(standing, wanted.runtime)


def test_garbage_on_the_socket(standing: Standing, client: Client) -> None:
    import socket

    for garbage in (b"\x00\xff\n", b"{}\n", b"x" * (2 << 20)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(100)
            connection.connect(str(standing.socket))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(garbage)
                assert connection.recv(1) == b""
    assert client.hello().pid


def test_there_is_one_standby_for_one_environment(
    store: Store, wanted: Wanted, standing: Standing
) -> None:
    again = lifecycle.ensure(store, wanted)
    assert again.run.id == standing.run.id
    assert [found.unit for found in lifecycle.listing(store)] == [standing.unit]


def test_no_memory_no_standby(store: Store, wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="no standby: it needs"):
        lifecycle.ensure(Store(dirs_in(tmp_path)), wanted, memory=(1 << 30, 64 << 30))


def test_a_host_short_of_memory_loses_its_standbys_and_no_engine(
    standing: Standing, engines: Engines, store: Store
) -> None:
    run = engines.run()
    lifecycle.become(standing, run)
    assert lifecycle.trim(store, memory=(8 << 30, 16 << 30)) == []
    assert lifecycle.trim(store, memory=(1 << 30, 16 << 30)) == [standing.unit]
    assert lifecycle.find(store, standing.identity) is None
    engines.ready(run)
    assert engines.complete()


def test_an_engine_survives_the_death_of_its_standby(
    standing: Standing, engines: Engines, store: Store
) -> None:
    """At any time of a start: tests/unit/test_standby_become.py. One of several API servers, whose
    figures are added up through files: forked ones had none."""
    run = engines.run("--api-server-count", "2")
    lifecycle.become(standing, run)
    who = standing.run.identity()
    assert who is not None
    identity.send_signal(who.leader, signal.SIGKILL)
    until(lambda: liveness.look(standing.run).ended, "the standby's run has ended")
    engines.ready(run)
    assert engines.complete()
    assert engines.figures()["0"].counters["generation_tokens"] == 6
    assert lifecycle.find(store, standing.identity) is None
    stop(run)
    assert not marked(run)
