"""Engines that speak TLS, want a certificate, listen on a Unix socket or on IPv6: ready, proven,
sampled, swapped and started again as any other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Busy, Failed
from engine_ctl.model import Phase
from engine_ctl.observe.once import snapshot_once
from engine_ctl.observe.units import endpoint_of as sampled_at
from engine_ctl.operations import completion, lifecycle, ports, swapping
from engine_ctl.operations.listing import ps
from engine_ctl.operations.planning import headless_texts
from engine_ctl.supervise import stale
from engine_ctl.supervise.stop import stop
from engine_ctl.swap import proof
from engine_ctl.swap.journal import Outcome
from engine_ctl.tune.operation import _asked_for, _target
from engine_ctl.tune.settings import BenchSettings, bench_words
from profiles.model import Profile
from tests.standin.rig import until
from tests.standin.serving import Serving, installed

OPENSSL = shutil.which("openssl")


@pytest.fixture
def here() -> Iterator[Serving]:
    with installed() as made:
        yield made


@pytest.fixture
def tls(here: Serving) -> dict[str, Any]:
    if OPENSSL is None:
        pytest.skip("a certificate takes the openssl command")
    key, certificate = here.root / "key.pem", here.root / "cert.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words += ["-nodes", "-days", "2", "-subj", "/CN=elsewhere", "-keyout", str(key)]
    subprocess.run(
        [OPENSSL, *words, "-out", str(certificate)], check=True, capture_output=True, timeout=100
    )
    return {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}


def started(here: Serving, **args: Any) -> Any:
    here.profile("p", 4, args={"max_num_seqs": 4, **args})
    run = lifecycle.start(here.ctx, "u", "p")
    return lifecycle.ready_run(here.ctx, run, print)


def test_an_engine_with_tls(here: Serving, tls: dict[str, Any]) -> None:
    run = started(here, **tls)
    spec = run.spec()
    assert spec.ready_url == f"https://127.0.0.1:{here.port}/health"
    assert spec.client_url == f"https://127.0.0.1:{here.port}"
    assert proof.prove(run).kind == "completion"
    found = sampled_at(spec)
    assert found is not None and found.tls and found.port == here.port
    words = bench_words(BenchSettings(), _target(run, None), 0, "d", "n")
    assert words[words.index("--base-url") + 1] == spec.client_url and "--insecure" in words
    done = swapping.swap_to(here.ctx, "u", here.profile("q", 8), print)
    assert done.outcome is Outcome.COMMITTED and here.answers("u") == "8"
    # To a socket: what cannot be is said while this one runs.
    with pytest.raises(Failed, match="no absolute path"):
        swapping.swap_to(here.ctx, "u", here.profile("r", 8, args={"uds": "s"}), print)
    assert [run.id for run in here.live("u")] == ["u/2"]


def test_an_engine_that_wants_a_certificate_is_up_and_cannot_be_asked(
    here: Serving, tls: dict[str, Any]
) -> None:
    run = started(here, **tls, ssl_cert_reqs=2)
    assert run.spec().ready_url == f"tcp://127.0.0.1:{here.port}"
    found = proof.prove(run)
    assert found.kind is None and "certificate of its clients" in found.why
    assert sampled_at(run.spec()) is None


def test_an_engine_that_speaks_grpc_is_ready_when_it_listens(here: Serving) -> None:
    run = started(here, grpc=True)
    spec = run.spec()
    assert spec.ready_url == f"tcp://127.0.0.1:{here.port}" and sampled_at(spec) is None
    found = proof.prove(run)
    assert found.kind is None and "gRPC" in found.why
    with pytest.raises(Failed, match="no way to ask"):
        _target(run, None)
    (view,) = snapshot_once(here.ctx.dirs, ["u"]).units
    assert (view.phase, view.note) == (Phase.READY, "")


def test_an_engine_on_a_unix_socket(here: Serving) -> None:
    path = str(here.root / "with a %.sock")
    run = started(here, uds=path)
    spec = run.spec()
    assert (spec.host, spec.port, spec.uds) == (None, None, path)
    assert spec.client_url == f"unix:{path}"
    row = ps(here.ctx)["units"][0]
    assert (row["host"], row["port"], row["url"]) == (None, None, f"unix:{path}")
    assert proof.prove(run).kind == "completion"
    assert completion.models(completion.base_url(spec), 100) == [str(here.model)]
    found = sampled_at(spec)
    assert found is not None and found.uds == path
    with pytest.raises(Failed, match="cannot ask a Unix socket"):
        _target(run, None)
    with pytest.raises(Busy, match="somebody listens on"):
        lifecycle.start(here.ctx, "other", "p")
    # The one that is stopped leaves its socket behind, and the next takes its place.
    here.profile("q", 8, args={"max_num_seqs": 8, "uds": path})
    done = swapping.swap_to(here.ctx, "u", "q", print)
    assert done.outcome is Outcome.COMMITTED
    assert completion.ask(completion.base_url(here.current("u").spec()), "m", "1", 1, 100) == "8"


def test_an_engine_with_tls_on_a_unix_socket(here: Serving, tls: dict[str, Any]) -> None:
    run = started(here, uds=str(here.root / "e.sock"), **tls)
    assert proof.prove(run).kind == "completion"
    found = snapshot_once(here.ctx.dirs, ["u"]).units[0]
    assert (found.phase, found.note) == (Phase.READY, "")


def test_a_socket_that_a_killed_engine_left_keeps_no_restart_up(here: Serving) -> None:
    path = str(here.root / "e.sock")
    restart = {"policy": "on-failure", "backoff_s": 0.05, "max": 3}
    here.profile("p", 4, args={"max_num_seqs": 4, "uds": path}, restart=restart)
    first = lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "p"), print)
    who = first.identity()
    assert who is not None
    os.kill(who.leader.pid, 9)
    until(lambda: here.current("u").id == "u/2" and here.current("u").ready(), "it is back")
    assert completion.ask(completion.base_url(here.current("u").spec()), "m", "1", 1, 100) == "4"
    stop(here.current("u"))
    assert stale.is_stale(path)


def test_an_engine_on_ipv6(here: Serving) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    here.profile("p", 4, host="::1")
    run = lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "p"), print)
    assert run.spec().client_url == f"http://[::1]:{here.port}"
    assert proof.prove(run).kind == "completion"
    found = sampled_at(run.spec())
    assert found is not None and found.host == "::1"


def test_a_headless_node_is_ready_by_its_log_and_listens_nowhere(here: Serving) -> None:
    """One that was asked for /health was ended by its own shim after ready_timeout_s."""
    with socket.create_server(("127.0.0.1", here.port)):  # the head, where one machine has both
        run = started(here, headless=True)
        spec = run.spec()
        assert (spec.host, spec.port, spec.ready_timeout_s) == (None, None, 0.0)
        assert "--port" not in spec.argv and spec.client_place == "no address (headless)"
        row = ps(here.ctx)["units"][0]
        assert (row["phase"], row["host"], row["port"]) == ("ready", None, None)
        assert sampled_at(spec) is None
        found = proof.prove(run)
        assert found.kind is None and "headless" in found.why
        done = swapping.swap_to(
            here.ctx, "u", here.profile("q", 8, args={"max_num_seqs": 8, "headless": True}), print
        )
        assert done.outcome is Outcome.COMMITTED
    # A node that serves from now on takes its profile's port.
    done = swapping.swap_to(here.ctx, "u", here.profile("r", 2), print)
    assert done.outcome is Outcome.COMMITTED and here.answers("u") == "2"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"data_parallel_size": 16, "data_parallel_size_local": 8}, "init engine (profile"),
        ({"tensor_parallel_size": 16, "nnodes": 2}, "Graph capturing finished"),
        ({"nnodes": 2, "enforce_eager": True}, "Available KV cache memory"),
        (
            {"nnodes": 2, "compilation_config": {"cudagraph_mode": "none"}},
            "Available KV cache memory",
        ),
    ],
)
def test_what_a_headless_node_says_last(args: dict[str, Any], text: str) -> None:
    texts = headless_texts(Profile(name="p", args={**args, "headless": True}))
    assert text in texts
    assert ("Graph capturing finished" in texts) is (text == "Graph capturing finished")


def test_an_engine_is_measured_by_what_it_is_for(here: Serving) -> None:
    run = lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", here.profile("p", 4)), print)
    assert _asked_for(run, _target(run, None)).backend == "openai"
    done = swapping.swap_to(here.ctx, "u", here.profile("q", 8, "pools"), print, rollback=False)
    assert done.outcome is Outcome.COMMITTED
    run = here.current("u")
    target = _asked_for(run, _target(run, None))
    words = bench_words(BenchSettings(), target, 0, "d", "n")
    assert words[words.index("--backend") + 1] == "openai-embeddings"
    assert words[words.index("--endpoint") + 1] == "/v1/embeddings"


def test_what_is_in_the_place_of_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ports.refuse_socket(str(path))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        # vLLM binds before it loads the model, and listens afterwards.
        for listens in (False, True):
            if listens:
                server.listen(1)
            with pytest.raises(Busy, match="somebody listens"):
                ports.refuse_socket(str(path))
            stale.remove(str(path))
            assert path.is_socket()
    ports.refuse_socket(str(path))
    assert stale.is_stale(str(path))
    stale.remove(str(path))
    assert not path.exists()
    path.write_text("kept")
    stale.remove(str(path))
    assert path.read_text() == "kept"
    for place, why in (
        (str(path), "no socket to use"),
        (str(tmp_path / "no" / "s"), "does not exist"),
        ("s", "absolute"),
        ("/" + "s" * 200, "longer"),
    ):
        with pytest.raises(Failed, match=why):
            ports.refuse_socket(place)
