"""Proof that an engine serves: one real completion, where the engine offers completions."""

from __future__ import annotations

import os

from engine_ctl.errors import Failed
from engine_ctl.operations import completion, snapshots
from engine_ctl.state.store import Run
from profiles.model import EnvRef

# It answers, but has no completions (pooling models) or wants a key that we do not have.
ANSWERS_OTHERWISE = ("answered 401", "answered 403", "answered 404", "answered 405")


def prove(run: Run, timeout_s: float = 60.0) -> str | None:
    """One token from the engine; its text, or None where completions are not on offer.

    Raises Failed when the engine does not answer.
    """
    spec = run.spec()
    try:
        return completion.ask(
            completion.base_url(spec),
            spec.served_name or spec.model or "",
            "1",
            tokens=1,
            timeout_s=timeout_s,
            api_key=api_key(run),
        )
    except Failed as error:
        if any(word in str(error) for word in ANSWERS_OTHERWISE):
            return None
        raise Failed(f"{run.id} is up but does not complete a request: {error}") from None


def api_key(run: Run) -> str | None:
    """The key of the engine when this process may know it: from the profile, by reference too."""
    profile = snapshots.load(run)
    if profile is None:
        return None
    given = profile.args.get("api_key")
    if isinstance(given, list) and given:
        given = given[0]
    if given:
        return str(given)
    value = profile.env.get("VLLM_API_KEY")
    if isinstance(value, EnvRef):
        if value.from_env:
            return os.environ.get(value.from_env)
        try:
            with open(value.from_file or "") as file:
                return file.read().strip()
        except OSError:
            return None
    return value
