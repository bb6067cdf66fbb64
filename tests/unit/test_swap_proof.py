"""What counts as proof that an engine serves, by servers that answer as vLLM's kinds do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.operations import snapshots
from engine_ctl.state.store import Run
from engine_ctl.swap.proof import api_key, key_of, prove
from profiles.model import EnvRef, Profile
from tests.standin.observed import Written

NOT_FOUND = (404, {"error": {"message": "Not Found", "type": "NotFoundError", "code": 404}})
MISSING = (404, {"error": {"message": "The model `m` does not exist.", "code": 404}})
COMPLETION = (200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}})
VECTOR = (200, {"data": [{"embedding": [0.1, 0.2]}]})


class Engine:
    """Answers POST by path, and /v1/models with `names`; with a `key` only to who has it."""

    def __init__(self) -> None:
        self.names: list[str] | None = ["m"]
        self.routes: dict[str, tuple[int, Any]] = {}
        self.key = ""
        self.asked: list[str] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def reply(self, code: int, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def allowed(self) -> bool:
                return engine.key in ("", self.headers.get("Authorization"))

            def do_GET(self) -> None:
                if not self.allowed():
                    return self.reply(401, {"error": "Unauthorized"})
                if self.path != "/v1/models" or engine.names is None:
                    return self.reply(*NOT_FOUND)
                self.reply(200, {"data": [{"id": name} for name in engine.names]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                engine.asked.append(self.path)
                if not self.allowed():
                    return self.reply(401, {"error": "Unauthorized"})
                self.reply(*engine.routes.get(self.path, NOT_FOUND))

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture
def run(engine: Engine, tmp_path: Path) -> Iterator[Run]:
    written = Written(tmp_path)
    written.unit("u")
    port = int(engine.server.server_address[1])
    made = written.run("u", port=port, host="127.0.0.1", model="/models/m", served_name="m")
    written.profile(made, Profile(name="p", model="/models/m", args={"api_key": "secret"}))
    yield made
    written.close()


def test_a_token_is_proof_whatever_its_text(engine: Engine, run: Run) -> None:
    engine.routes["/v1/completions"] = COMPLETION
    assert prove(run).kind == "completion"
    assert engine.asked == ["/v1/completions"]


@pytest.mark.parametrize(
    ("route", "kind"),
    [
        ("/v1/embeddings", "embedding"),
        ("/classify", "class"),
        ("/pooling", "pooled vector"),
        ("/score", "score"),
    ],
)
def test_a_pooling_model_is_asked_for_what_it_has(
    engine: Engine, run: Run, route: str, kind: str
) -> None:
    engine.routes[route] = VECTOR
    assert prove(run).kind == kind


def test_an_older_vllm_says_that_it_does_not_support_completions(engine: Engine, run: Run) -> None:
    words = {"error": {"message": "The model does not support Completions API", "code": 400}}
    engine.routes = {"/v1/completions": (400, words), "/v1/embeddings": VECTOR}
    assert prove(run).kind == "embedding"


def test_another_name_is_no_proof(engine: Engine, run: Run) -> None:
    engine.names = ["other"]
    engine.routes["/v1/completions"] = MISSING
    with pytest.raises(Failed, match="it serves other, not m"):
        prove(run)
    # Without a list of models, the 404 itself does not pass.
    engine.names = None
    with pytest.raises(Failed, match="answered 404"):
        prove(run)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, {"error": {"message": "EngineDeadError"}}), "EngineDeadError"),
        ((400, {"error": {"message": "prompt is too long"}}), "too long"),
        ((200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}), "single token"),
        ((200, {"unexpected": 1}), "without a completion"),
    ],
)
def test_what_fails_is_no_proof(
    engine: Engine, run: Run, answer: tuple[int, Any], why: str
) -> None:
    engine.routes["/v1/completions"] = answer
    with pytest.raises(Failed, match=why) as caught:
        prove(run)
    assert f"{run.id} is up but does not complete a request" in str(caught.value)


def test_a_pooling_route_that_fails_is_no_proof(engine: Engine, run: Run) -> None:
    engine.routes["/v1/embeddings"] = (500, {"error": {"message": "EngineDeadError"}})
    with pytest.raises(Failed, match="EngineDeadError"):
        prove(run)
    engine.routes["/v1/embeddings"] = (200, {"data": []})
    with pytest.raises(Failed, match="without a result"):
        prove(run)


def test_the_key_of_the_profile_is_used_and_an_unknown_one_is_said(
    engine: Engine, run: Run
) -> None:
    engine.routes["/v1/completions"] = COMPLETION
    engine.key = "Bearer secret"
    assert prove(run).kind == "completion"
    engine.key = "Bearer another"
    found = prove(run)
    assert found.kind is None and "API key" in found.why


def test_an_engine_without_any_of_them_is_said(engine: Engine, run: Run) -> None:
    found = prove(run)
    assert found.kind is None and "neither completions nor pooling" in found.why


def test_nobody_there_is_no_proof(engine: Engine, run: Run) -> None:
    engine.close()
    with pytest.raises(Failed, match="did not answer"):
        prove(run, timeout_s=2.0)


@pytest.mark.parametrize(
    ("args", "env", "key"),
    [
        ({"api_key": "plain"}, {}, "plain"),
        ({"api-key": ["first", "second"]}, {}, "first"),
        ({"api_key": ["${KEY_OF_TEST}"]}, {}, "sesame"),
        ({"api_key": "${NOT_SET_OF_TEST}"}, {}, None),
        ({"api_key": "a-${KEY_OF_TEST}"}, {}, "a-sesame"),
        ({"api_key": "a-${NOT_SET_OF_TEST}"}, {}, None),
        ({}, {"VLLM_API_KEY": "${KEY_OF_TEST}"}, "sesame"),
        ({}, {"VLLM_API_KEY": EnvRef(from_env="KEY_OF_TEST")}, "sesame"),
        ({}, {"VLLM_API_KEY": EnvRef(from_file="~/key")}, "open"),
        ({}, {"VLLM_API_KEY": EnvRef(from_file="~/none")}, None),
        ({}, {}, None),
    ],
)
def test_the_key_of_an_engine(
    args: dict[str, Any],
    env: dict[str, Any],
    key: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "sesame")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("open\n")
    run = Run("chat", 1, tmp_path)
    atomic.write_record(tmp_path / snapshots.FILE, Profile(name="p", model="m", args=args, env=env))
    assert api_key(run) == key


def test_a_key_that_is_a_reference_is_handed_on_as_one() -> None:
    profile = Profile(name="p", model="m", args={"api_key": "${KEY_OF_TEST}"})
    assert key_of(profile) == EnvRef(from_env="KEY_OF_TEST")
