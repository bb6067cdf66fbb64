"""One real completion: the proof that an engine serves, beyond /health."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from engine_ctl.errors import Failed
from engine_ctl.operations.planning import Endpoint
from engine_ctl.state.records import RunSpec


def base_url(spec: RunSpec) -> str:
    """http://host:port of a run, with an address that this machine can ask."""
    if spec.host is None or spec.port is None:
        raise Failed(f"run {spec.run} has no address")
    return Endpoint(spec.host, spec.port).base_url


def post(url: str, body: dict[str, Any], timeout_s: float, api_key: str | None = None) -> Any:
    """POST JSON, get JSON. Raises Failed with the server's own words."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            data = reply.read()
            return json.loads(data) if data.strip() else None
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace")
        raise Failed(f"{url} answered {error.code}: {text}") from None
    except (OSError, ValueError) as error:
        raise Failed(f"{url} did not answer: {error}") from None


def ask(
    url: str,
    model: str,
    prompt: str,
    tokens: int = 16,
    timeout_s: float = 60.0,
    api_key: str | None = None,
) -> str:
    """The text of one greedy completion of `tokens` tokens. Raises Failed."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    reply = post(f"{url}/v1/completions", body, timeout_s, api_key)
    try:
        return str(reply["choices"][0]["text"])
    except (KeyError, IndexError, TypeError):
        raise Failed(f"{url} answered without a completion") from None
