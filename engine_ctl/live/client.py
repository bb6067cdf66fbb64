"""Requests to the engine's own control routes. Blocking; errors are one line."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from engine_ctl.errors import Failed
from engine_ctl.operations.opening import UNANSWERED, opener, refusal

CONTROL_S = 300.0
LOOK_S = 10.0


class RouteMissing(Failed):
    """The engine has no such route: it was started without what the route needs."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter that the engine serves: its name and where its weights came from."""

    name: str
    path: str | None


class Control:
    """One engine. `base` is as `opening` takes it, `key` its API key where it has one."""

    def __init__(self, base: str, key: str | None = None) -> None:
        self._base = base
        self._key = key
        self._opener = opener(base)

    def load(self, name: str, path: str, is_3d: bool = False) -> None:
        body: dict[str, Any] = {"lora_name": name, "lora_path": path}
        if is_3d:
            body["is_3d_lora_weight"] = True
        self._ask("POST", "/v1/load_lora_adapter", body)

    def unload(self, name: str) -> None:
        self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def adapters(self) -> tuple[Loaded, ...]:
        """What /v1/models lists beside the model itself."""
        answer = self._ask("GET", "/v1/models", timeout_s=LOOK_S)
        try:
            return tuple(
                Loaded(str(card["id"]), card.get("root"))
                for card in answer["data"]
                if card.get("parent") is not None
            )
        except (KeyError, TypeError, AttributeError):
            raise Failed("the engine answered /v1/models without a list of models") from None

    def reset_prefix_cache(self) -> bool:
        """False when blocks are still held (by running requests): try again."""
        answer = self._ask("POST", "/reset_prefix_cache")
        # Versions before the answer had a body return nothing on success.
        return bool(answer.get("success", True)) if isinstance(answer, dict) else True

    def sleep(self, level: int) -> None:
        self._ask("POST", f"/sleep?level={level}")

    def wake(self, *tags: str) -> None:
        query = urllib.parse.urlencode([("tags", tag) for tag in tags])
        self._ask("POST", f"/wake_up?{query}" if query else "/wake_up")

    def reload_weights(self) -> None:
        """Weights that a level-2 sleep has dropped, loaded again in place."""
        self._ask("POST", "/collective_rpc", {"method": "reload_weights"})

    def is_sleeping(self) -> bool:
        answer = self._ask("GET", "/is_sleeping", timeout_s=LOOK_S)
        if not isinstance(answer, dict) or "is_sleeping" not in answer:
            raise Failed("the engine answered /is_sleeping without saying whether it sleeps")
        return bool(answer["is_sleeping"])

    def _ask(self, method: str, path: str, body: Any = None, timeout_s: float = CONTROL_S) -> Any:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout_s) as reply:
                return _decode(reply.read())
        except urllib.error.HTTPError as error:
            words = _words(refusal(error, 10_000))
            if error.code == 404 and words in ("Not Found", ""):
                raise RouteMissing(f"the engine has no {path.partition('?')[0]}") from None
            raise Failed(f"the engine answered {error.code}: {words}") from None
        except UNANSWERED as error:
            raise Failed(f"the engine did not answer {path}: {error}") from None


def _decode(data: bytes) -> Any:
    """JSON where it is JSON; the routes for adapters answer with a sentence."""
    try:
        return json.loads(data) if data.strip() else None
    except ValueError:
        return None


def _words(data: bytes) -> str:
    """The message of an error, in whichever shape the server put it."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace").strip()[:300]
    if isinstance(answer, dict):
        inner = answer.get("error", answer)
        if isinstance(inner, dict):
            return str(inner.get("message") or inner.get("detail") or inner)[:300]
        return str(inner)[:300]
    return str(answer)[:300]
