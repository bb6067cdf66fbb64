"""Proof that an engine serves: one real request of the kind that it is for.

/health says that processes are up. A completion says that the model answers; an engine that has
no completions is asked for what it has: an embedding, a class, a pooled vector, a score."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from engine_ctl.errors import Failed
from engine_ctl.operations import completion, snapshots
from engine_ctl.operations.completion import Answered
from engine_ctl.state.store import Run
from profiles.importing.references import expand, sole_name
from profiles.model import EnvRef, Profile, plain

NEEDS_A_KEY = (401, 403)
NO_SUCH_ROUTE = (404, 405, 501)
# What a pooling model may offer: (what it gives, route, the text's fields).
_TEXT: dict[str, Any] = {"input": "1"}
POOLING: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("embedding", "/v1/embeddings", _TEXT),
    ("class", "/classify", _TEXT),
    ("pooled vector", "/pooling", _TEXT),
    ("score", "/score", {"text_1": "1", "text_2": "1"}),
)


@dataclass(frozen=True, slots=True)
class Proof:
    """`kind` is what the engine was asked for and gave; None: it could not be asked, and `why` says
    why not."""

    kind: str | None
    why: str = ""


def prove(run: Run, timeout_s: float = 60.0) -> Proof:
    """Ask for one token, or what a pooling model gives instead.

    Raises Failed when it does not answer, fails, or serves another model than its profile says."""
    spec = run.spec()
    if not spec.answers:
        return Proof(None, "a headless node serves no API")
    if spec.tls and not (spec.ready_url or "").startswith("http"):
        return Proof(None, "it asks for a certificate of its clients, and Stoker has none")
    if (spec.ready_url or "").startswith("tcp://"):
        return Proof(None, "it speaks gRPC, and Stoker does not")
    url, name = completion.base_url(spec), spec.served_name or spec.model or ""
    key = api_key(run)
    try:
        served = completion.models(url, timeout_s, key)
        if served is not None and name not in served:
            raise Failed(f"it serves {', '.join(served) or 'no model'}, not {name}")
        try:
            completion.ask(url, name, "1", tokens=1, timeout_s=timeout_s, api_key=key)
            return Proof("completion")
        except Answered as error:
            if served is None or not _offers_not(error):
                raise
        return _pooled(url, name, timeout_s, key)
    except Answered as error:
        if error.code in NEEDS_A_KEY:
            return Proof(None, "it asks for an API key that is not known here")
        raise Failed(f"{run.id} is up but does not complete a request: {error}") from None
    except Failed as error:
        raise Failed(f"{run.id} is up but does not complete a request: {error}") from None


def _pooled(url: str, name: str, timeout_s: float, key: str | None) -> Proof:
    for kind, route, text in POOLING:
        try:
            reply = completion.post(url + route, {"model": name, **text}, timeout_s, key)
        except Answered as error:
            if _offers_not(error):
                continue
            raise
        if isinstance(reply, dict) and reply.get("data"):
            return Proof(kind)
        raise Failed(f"{url}{route} answered without a result")
    return Proof(None, "it offers neither completions nor pooling")


def _offers_not(error: Answered) -> bool:
    """Whether the engine has no such route for its model (a wrong name was ruled out before)."""
    return error.code in NO_SUCH_ROUTE or (error.code == 400 and "not support" in error.text)


def api_key(run: Run) -> str | None:
    """The key of the engine when this process may know it: from the profile, by reference too."""
    profile = snapshots.load(run)
    value = key_of(profile) if profile is not None else None
    if not isinstance(value, EnvRef):
        return value
    if value.from_env:
        return os.environ.get(value.from_env)
    try:
        with open(os.path.expanduser(value.from_file or ""), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def key_of(profile: Profile) -> EnvRef | str | None:
    """The key that an engine asks for as its profile says it; a reference stays one."""
    given = plain(profile.args).get("api_key")
    if isinstance(given, list) and given:
        given = given[0]
    value = str(given) if given else profile.env.get("VLLM_API_KEY")
    if not isinstance(value, str) or "$" not in value:
        return value
    name = sole_name(value)
    if name is not None:
        return EnvRef(from_env=name)
    text, missing = expand(value, os.environ)
    return None if missing else text
