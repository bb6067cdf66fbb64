"""What can be changed in a running engine, what it needs, and which way a change takes."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine_ctl.errors import Failed
from engine_ctl.live import requirements
from engine_ctl.live.adapters import Adapter, adapters_of
from engine_ctl.live.client import Control, RouteMissing
from engine_ctl.live.plan import plan_change, way_of
from engine_ctl.live.requirements import (
    DEV_MODE,
    LORA_UPDATES,
    Action,
    Features,
    dev_mode_problem,
    features_of,
    is_loopback,
    problem,
    refusals,
)
from engine_ctl.model import Kind
from engine_ctl.operations import completion
from engine_ctl.state.records import RunSpec
from profiles.model import EnvRef, Preload, Profile, Stop

SPEC = RunSpec(unit="u", run="u/1", kind=Kind.ENGINE, argv=[], platform="cuda")
ABLE = Features("cuda", lora=True, lora_updates=True, dev_mode=True, sleep_mode=True)
A = Adapter("a", "/a")


def with_adapters(value: Any, **changes: Any) -> Profile:
    args = {"enable_lora": True, "lora_modules": value}
    return Profile(name="p", model="/m", args=args, **changes)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, {}),
        ("a=/a", {"a": A}),
        (["a=/a", "b=/b"], {"a": A, "b": Adapter("b", "/b")}),
        ({"name": "a", "path": "/a"}, {"a": A}),
        ({"a": "/a"}, {"a": A}),
        ('{"name": "a", "path": "/a", "base_model_name": "m"}', {"a": Adapter("a", "/a", "m")}),
        (
            [{"name": "a", "path": "/a", "is_3d_lora_weight": True}],
            {"a": Adapter("a", "/a", None, True)},
        ),
        ("nonsense", None),
        ([{"name": "a", "path": "/a", "future": 1}], None),
        (5, None),
        ({"a": 5}, None),
    ],
)
def test_adapters_in_every_form(value: Any, found: dict[str, Adapter] | None) -> None:
    assert adapters_of(value) == found


def steps(before: Any, after: Any, **changes: Any) -> list[str] | None:
    plan = plan_change(with_adapters(before), with_adapters(after, **changes), SPEC, ABLE)
    return None if plan is None else [str(step) for step in plan.steps]


def test_adapters_take_the_live_way() -> None:
    assert steps([], ["a=/a"]) == ["load adapter a"]
    assert steps(["a=/a"], []) == ["unload adapter a"]
    assert steps(["a=/a", "b=/b"], ["b=/other", "c=/c"]) == [
        "unload adapter a",
        "unload adapter b",
        "load adapter b",
        "load adapter c",
    ]


def test_what_costs_nothing_does_not_stand_in_the_way() -> None:
    assert steps([], ["a=/a"], notes="new words", tags=("x",)) == ["load adapter a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 9000},
        {"front": True},
        {"stop": Stop(drain_s=5.0)},
        {"env": {"X": "1"}},
        {"served_name": ("other",)},
        {"preload": Preload()},
    ],
)
def test_anything_else_restarts(changes: dict[str, Any]) -> None:
    assert steps([], ["a=/a"], **changes) is None


def test_the_way_says_why() -> None:
    before, after = with_adapters([]), with_adapters(["a=/a"])
    assert way_of(before, after, SPEC, ABLE).why == "live, without a restart: load adapter a"
    assert "nothing" in way_of(before, before, SPEC, ABLE).why
    other = Profile(name="p", model="/n", args=after.args)
    assert "model cannot change" in way_of(before, other, SPEC, ABLE).why
    assert LORA_UPDATES in way_of(before, after, SPEC, Features("cuda", lora=True)).why
    based = with_adapters('{"name": "a", "path": "/a", "base_model_name": "m"}')
    assert "base_model_name of a" in way_of(before, based, SPEC, ABLE).why
    assert "cannot be read" in way_of(before, with_adapters("nonsense"), SPEC, ABLE).why


@pytest.mark.parametrize("action", list(Action))
def test_an_able_engine_can_everything(action: Action) -> None:
    assert problem(action, ABLE, "p") is None


@pytest.mark.parametrize(
    ("action", "features", "word"),
    [
        (Action.LORA_LOAD, Features("cpu"), "enable_lora: true"),
        (Action.LORA_LOAD, Features("cpu", lora=True), LORA_UPDATES),
        (Action.LORA_LOAD, Features("cpu", lora=True, lora_updates=True, api_servers=2), "2 API"),
        (Action.RESET_PREFIX_CACHE, Features("cpu"), DEV_MODE),
        (Action.SLEEP, Features("cpu", dev_mode=True, sleep_mode=True), "needs a GPU"),
        (Action.SLEEP, Features("cuda", dev_mode=True), "enable_sleep_mode: true"),
        (Action.WAKE, Features("cuda", sleep_mode=True), DEV_MODE),
    ],
)
def test_what_lacks_is_said_in_one_line(action: Action, features: Features, word: str) -> None:
    found = problem(action, features, "chat")
    assert found is not None and word in found and "\n" not in found


def test_features_are_what_the_run_was_started_with() -> None:
    spec = RunSpec(
        unit="u",
        kind=Kind.ENGINE,
        argv=[],
        platform="cpu",
        env={LORA_UPDATES: "True", DEV_MODE: "0"},
    )
    profile = Profile(name="p", args={"enable-lora": True, "data_parallel_size": 2})
    found = features_of(spec, profile)
    assert (found.lora, found.lora_updates, found.dev_mode) == (True, True, False)
    assert found.api_servers == 2
    assert features_of(spec, None).lora is False


def test_what_stands_against_each_change_is_known_by_name() -> None:
    spec = RunSpec(unit="u", kind=Kind.ENGINE, argv=[], platform="cuda", env={DEV_MODE: "1"})
    profile = Profile(name="p", args={"enable_sleep_mode": True})
    found = refusals(spec, profile)
    assert set(found) == {action.value for action in Action}
    assert found["sleep"] == found["wake"] == found["reset-prefix-cache"] == ""
    assert "profile p starts no adapters" in found["lora load"]
    assert all(refusals(RunSpec(unit="u", kind=Kind.ENGINE, argv=[]), None).values())


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.4", False),
        ("gpu-box.example", False),
    ],
)
def test_dev_mode_is_for_loopback_only(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    for front in (False, True):
        profile = Profile(name="p", host=host, env={DEV_MODE: "1"}, front=front)
        assert (dev_mode_problem(profile) is None) is loopback
    assert dev_mode_problem(Profile(name="p", host=host, env={DEV_MODE: "0"})) is None
    assert dev_mode_problem(Profile(name="p", host=host)) is None
    referred = Profile(name="p", host=host, env={DEV_MODE: EnvRef(from_env="X")})
    assert (dev_mode_problem(referred) is None) is loopback


class Routes(http.server.BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, bytes]]
    seen: list[tuple[str, str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(
            (self.path, self.headers.get("Authorization", ""), json.loads(body or b"0"))
        )
        status, answer = self.answers.get(self.path, (404, b'{"detail":"Not Found"}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def routes() -> Iterator[tuple[Control, type[Routes]]]:
    handler = type("Handler", (Routes,), {"answers": {}, "seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Control(f"http://127.0.0.1:{server.server_port}", "key"), handler
    server.shutdown()
    server.server_close()
    thread.join()


def test_requests_are_vllms_own(routes: tuple[Control, type[Routes]]) -> None:
    control, handler = routes
    handler.answers = {
        "/v1/load_lora_adapter": (200, b"Success: added"),
        "/v1/models": (
            200,
            b'{"data":[{"id":"m","parent":null},{"id":"a","root":"/a","parent":"m"}]}',
        ),
        "/reset_prefix_cache": (200, b'{"success": false}'),
        "/sleep?level=2": (200, b"{}"),
        "/wake_up?tags=weights": (200, b"{}"),
    }
    control.load("a", "/a")
    assert [(a.name, a.path) for a in control.adapters()] == [("a", "/a")]
    assert control.reset_prefix_cache() is False
    control.sleep(2)
    control.wake("weights")
    assert handler.seen[0] == (
        "/v1/load_lora_adapter",
        "Bearer key",
        {"lora_name": "a", "lora_path": "/a"},
    )


def test_a_missing_route_is_told_from_a_refusal(routes: tuple[Control, type[Routes]]) -> None:
    control, handler = routes
    with pytest.raises(RouteMissing, match="/wake_up"):
        control.wake()
    handler.answers = {"/wake_up": (404, b'{"error":{"message":"Not Found","code":404}}')}
    with pytest.raises(RouteMissing):
        control.wake()
    words = b'{"error":{"message":"The lora adapter cannot be found.","code":404}}'
    handler.answers = {"/v1/unload_lora_adapter": (404, words)}
    with pytest.raises(Failed, match="cannot be found") as error:
        control.unload("a")
    assert not isinstance(error.value, RouteMissing)
    with pytest.raises(Failed, match="did not answer"):
        Control("http://127.0.0.1:1").unload("a")


def _length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 X\r\nContent-Length: 9000\r\n\r\n" + b"[" * 9000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        *map(_length, (b"\xff\xfe", b"[" * 100_000, b"null", b"NaN", b"5", b"[]", b"{}")),
        *map(_length, (b'{"data": null}', b'{"data": [null]}', b'{"data": {"a": 1}}')),
        *map(_length, (b'{"choices": [null]}', b'{"choices": [{"text": ""}], "usage": null}')),
    ],
    ids=lambda answer: repr(answer[:60]),
)
def test_an_answer_that_is_cut_off_or_none_is_one_line(answer: bytes) -> None:
    class Raw(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    server = socketserver.TCPServer(("127.0.0.1", 0), Raw)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who hung up early
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    control = Control(url)
    try:
        for ask in (
            control.adapters,
            control.is_sleeping,
            lambda: completion.models(url, 60.0),
            lambda: completion.ask(url, "m", "1", timeout_s=60.0),
        ):
            with pytest.raises(Failed):
                ask()
        with contextlib.suppress(Failed):
            control.reset_prefix_cache()  # an older one answers with nothing
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("args", "servers"),
    [
        ({}, 1),
        ({"api_server_count": 3, "data_parallel_size": 2}, 3),
        ({"data_parallel_size": 4}, 4),
        ({"data_parallel_size": 8, "data_parallel_rank": 3}, 1),
        ({"data_parallel_size": 8, "data_parallel_external_lb": True}, 1),
        ({"data_parallel_size": 8, "data_parallel_hybrid_lb": True}, 1),
        (
            {"data_parallel_size": 8, "data_parallel_size_local": 2, "data_parallel_start_rank": 2},
            2,
        ),
    ],
)
def test_api_servers_are_as_many_as_vllm_starts(args: dict[str, Any], servers: int) -> None:
    assert requirements._api_servers(args) == servers
