"""What the tables of version rules share: builders of rows, and common conditions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from profiles.rules import (
    ERROR,
    NOTE,
    Hit,
    Rule,
    View,
    When,
    argument,
    config_key,
    version,
)


def first(condition: When) -> When:
    """What fires for several keys that are one matter: told once, at the first of them."""

    def when(view: View) -> Iterator[Hit]:
        yield from itertools.islice(condition(view), 1)

    return when


MULTIMODAL = first(
    argument(
        "limit_mm_per_prompt",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "allowed_local_media_path",
        "allowed_media_domains",
        "interleave_mm_strings",
        "mm_encoder_tp_mode",
    )
)
TOOLS = first(argument("enable_auto_tool_choice", "tool_call_parser"))
STOPS = "the argument parser stops (exit code 2)"


def _gone(names: tuple[str, ...]) -> When:
    """Fires for arguments of these names, but not for those that the target's own parser has again
    (in a version later than this Stoker)."""
    named = argument(*names)

    def when(view: View) -> Iterator[Hit]:
        own = view.version is not None and view.version == version(view.schema.version)
        for key, detail in named(view):
            name = key.rpartition("args.")[2].partition(".")[0]
            if not (own and view.schema.find(name) is not None):
                yield key, detail

    return when


def removed(id: str, names: tuple[str, ...], since: str | None, instead: str, source: str) -> Rule:
    return Rule(
        id=id,
        severity=ERROR,
        since=since,
        when=_gone(names),
        names=names,
        what="the argument no longer exists",
        effect=STOPS,
        instead=instead,
        source=source,
    )


def removed_keys(
    id: str, config: str, keys: tuple[str, ...], since: str, instead: str, source: str
) -> Rule:
    return Rule(
        id=id,
        severity=ERROR,
        since=since,
        when=config_key(config, *keys),
        what="the key no longer exists in this configuration",
        effect=STOPS,
        instead=instead,
        source=source,
    )


def changed(id: str, since: str, when: When, what: str, instead: str, source: str) -> Rule:
    return Rule(
        id=id,
        severity=NOTE,
        since=since,
        upgrade=True,
        when=when,
        what=what,
        effect="starts, and behaves differently",
        instead=instead,
        source=source,
    )


def preload(view: View) -> Iterator[Hit]:
    if view.profile.preload is not None:
        yield "preload", ""


def loads_ipc(view: View) -> Iterator[Hit]:
    if view.profile.preload is not None:
        yield "preload", ""
    elif view.args.get("load_format") == "ipc_cache":
        yield "args.load_format", "ipc_cache"
