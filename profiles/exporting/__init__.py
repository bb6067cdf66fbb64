"""Writing a profile in the forms that others use. Secrets never leave by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine_ctl.errors import Usage
from profiles.exporting.command import Export, prepare
from profiles.exporting.compose import export_compose
from profiles.exporting.config import export_config
from profiles.exporting.kubernetes import export_kubernetes
from profiles.exporting.shell import export_shell
from profiles.exporting.systemd import export_systemd
from profiles.model import Profile
from profiles.schema import ArgumentSchema, shipped

__all__ = ["EXPORTS", "export_profile"]

EXPORTS: Mapping[str, Callable[[Export], str]] = {
    "shell": export_shell,
    "compose": export_compose,
    "systemd": export_systemd,
    "kubernetes": export_kubernetes,
    "config": export_config,
}


def export_profile(profile: Profile, kind: str, schema: ArgumentSchema | None = None) -> str:
    """The profile as shell, compose, systemd, kubernetes or config text.

    `schema` is the target version's (its spellings and image). An import of the text gives the
    same profile: what the format cannot say is in one comment line of it. Literal secrets become
    references. Raises Usage for an unknown kind or a profile without a model."""
    if kind not in EXPORTS:
        raise Usage(f"unknown kind {kind!r}; there are {', '.join(EXPORTS)}")
    export = prepare(profile, schema or shipped())
    export.kind = kind
    return EXPORTS[kind](export)
