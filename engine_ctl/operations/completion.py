"""One real completion: the proof that an engine serves, beyond /health."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from engine_ctl.errors import Failed
from engine_ctl.operations.opening import UNANSWERED, opener, refusal
from engine_ctl.operations.planning import Endpoint
from engine_ctl.state.records import RunSpec


class Answered(Failed):
    """The server answered with an error: its HTTP status `code` and its own words."""

    def __init__(self, url: str, code: int, text: str) -> None:
        super().__init__(f"{url} answered {code}: {text}")
        self.code = code
        self.text = text


def base_url(spec: RunSpec) -> str:
    """Where this machine can ask a run, as `opening` takes it."""
    if spec.uds is None and (spec.host is None or spec.port is None):
        raise Failed(f"run {spec.run} has no address")
    return Endpoint(spec.host or "", spec.port or 0, tls=spec.tls, uds=spec.uds).base_url


def post(url: str, body: dict[str, Any], timeout_s: float, api_key: str | None = None) -> Any:
    """POST JSON, get JSON. Raises Answered with the server's own words, else Failed."""
    return _exchange(url, json.dumps(body).encode(), timeout_s, api_key)


def models(url: str, timeout_s: float, api_key: str | None = None) -> list[str] | None:
    """The names that the engine serves; None where it has no such list. Raises as `post`."""
    try:
        reply = _exchange(f"{url}/v1/models", None, timeout_s, api_key)
        return [str(each["id"]) for each in reply["data"]]
    except Answered as error:
        if error.code == 404:
            return None
        raise
    except (KeyError, TypeError):
        raise Failed(f"{url}/v1/models answered without a list of models") from None


def has_route(url: str, route: str, timeout_s: float, api_key: str | None = None) -> bool:
    """Whether the engine has this route: one that only takes POST says so. Raises Failed when it
    does not answer."""
    try:
        _exchange(url + route, None, timeout_s, api_key)
    except Answered as error:
        return error.code != 404
    except ValueError:
        pass
    return True


def ask(
    url: str,
    model: str,
    prompt: str,
    tokens: int = 16,
    timeout_s: float = 60.0,
    api_key: str | None = None,
) -> str:
    """The text of one greedy completion of `tokens` tokens. Raises as `post`, and Failed when the
    answer holds no token (an engine that is being stopped answers so)."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    reply = post(f"{url}/v1/completions", body, timeout_s, api_key)
    try:
        text, made = str(reply["choices"][0]["text"]), reply["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError):
        raise Failed(f"{url} answered without a completion") from None
    if not made:
        raise Failed(f"{url} answered without a single token")
    return text


def _exchange(url: str, data: bytes | None, timeout_s: float, api_key: str | None) -> Any:
    headers = {"Content-Type": "application/json"} if data is not None else {}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, data, headers)
    try:
        with opener(url).open(request, timeout=timeout_s) as reply:
            answer = reply.read()
            return json.loads(answer) if answer.strip() else None
    except urllib.error.HTTPError as error:
        text = refusal(error, 2000).decode(errors="replace")
        raise Answered(url, error.code, text) from None
    except UNANSWERED as error:
        raise Failed(f"{url} did not answer: {error}") from None
