"""The environment that a run was started in, kept for a shim that takes its place.

Whoever adopts a run whose shim was killed, or makes a restart that it owed, may be a cron job: the
next start is made in what the first one had, as far as an engine reads it. Secrets are not written
down; they are the new shim's own, or missing.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import json
import os

from engine_ctl.standby.environment import relevant
from engine_ctl.supervise import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

NAME = "environment.json"
# OTEL_EXPORTER_OTLP_HEADERS and its like carry whatever a collector wants to be shown.
_SECRET = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH", "HEADER", "COOKIE")
# TOKENIZERS_PARALLELISM, VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE and their like are settings.
_SETTINGS = ("TOKENIZERS", "TOKENS", "TOKEN_THRESHOLD", "PASSES")
_SHAPES = (
    *("hf_", "sk-", "ghp_", "gho_", "github_pat_", "AKIA", "xox", "eyJ", "nvapi-"),
    *("Bearer ", "Basic "),
)


def keep(run_dir: str, environ: Mapping[str, str], spec: Mapping[str, Any]) -> None:
    """Write it down, without what the run's `spec` has by reference. Raises OSError."""
    references = spec.get("env_refs") or {}
    hidden = {*references, *(reference.get("from_env") for reference in references.values())}
    plain = {name: value for name, value in _plain(environ).items() if name not in hidden}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(f"{run_dir}/{NAME}", flags, 0o600)
    try:
        os.write(fd, json.dumps({"schema": 1, "environment": plain}).encode())
    finally:
        os.close(fd)


def restored(run_dir: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with what an engine reads as it was when the run was started; unchanged where that
    was not kept."""
    record = disk.read_json(f"{run_dir}/{NAME}")
    kept = record.get("environment") if record is not None else None
    if not isinstance(kept, dict):
        return dict(environ)
    own = _plain(environ)
    return {name: value for name, value in environ.items() if name not in own} | {
        str(name): str(value) for name, value in kept.items()
    }


def missing(references: Mapping[str, Mapping[str, Any]], environ: Iterable[str]) -> str | None:
    """The first of a spec's `env_refs` that comes from a variable which is not set, in words."""
    have = set(environ)
    for name, reference in references.items():
        source = reference.get("from_env")
        if source and source not in have:
            return f"{name} comes from the variable {source}, which is not set"
    return None


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """What an engine reads of it, without secrets by name or shape and URLs with a password."""
    return {
        name: value
        for name, value in relevant(environ).items()
        if not _is_secret(name.upper())
        and not value.startswith(_SHAPES)
        and not ("://" in value and "@" in value)
    }


def _is_secret(name: str) -> bool:
    for word in _SETTINGS:
        name = name.replace(word, "")
    return any(word in name for word in _SECRET)
