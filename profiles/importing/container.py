"""What containers share: entrypoint and command, environment, restart policy, published ports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.draft import Draft, take_invocation
from profiles.importing.launching import Invocation, find_invocation
from profiles.importing.references import commands, parse
from profiles.importing.script import Evaluator, unescaped
from profiles.model import Restart

SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash"))


def entry_command(draft: Draft, entrypoint: list[str] | None, command: list[str]) -> None:
    """Which process a container runs. Without an entrypoint it is the image's own, which for
    vLLM's images is the server (`vllm serve` from 0.33, the API server's module before)."""
    words = [*(entrypoint or []), *command]
    found = container_invocation(draft, words)
    if found is None:
        if entrypoint:
            raise Usage(
                f"entrypoint {' '.join(entrypoint)!r} starts no `vllm serve` or `vllm preload`"
            )
        # Some images start `vllm` itself and are given the sub-command.
        given = command[0] if command and command[0] in ("serve", "preload") else None
        found = Invocation(given or "serve", command[1:] if given else command)
    if found.what == "preload":
        draft.preload_words = found.words
        draft.env |= found.env
        return
    take_invocation(draft, found)


def container_invocation(
    draft: Draft, words: list[str], contained: bool = True
) -> Invocation | None:
    """The engine in a container's (or a unit's) words, also inside `sh -c '…'`: that shell is the
    container's, where the words are."""
    shell = next((i for i, w in enumerate(words) if w.rpartition("/")[2] in SHELLS), None)
    if shell is not None:
        flag = next(
            (i for i in range(shell + 1, len(words)) if re.fullmatch(r"-[a-z]*c", words[i])), None
        )
        if flag is not None and flag + 1 < len(words):
            evaluator = Evaluator()
            evaluator.known.values |= {k: list(parse(v)) for k, v in draft.env.items()}
            text = words[flag + 1]
            outer = set(commands(text))
            script = evaluator.run(unescaped(text))
            draft.unrepresented += script.notes
            draft.secrets |= script.secrets
            if not script.invocations:
                raise Usage("the container's shell command starts no `vllm serve`")
            first = script.invocations[0]
            engine = next((f for f in script.invocations if f.what != "preload"), first)
            if engine is not first:
                draft.preload_words = first.words
            engine.env = script.env | engine.env
            for word in (*engine.words, *engine.env.values(), *first.words) if contained else ():
                draft.inside |= set(commands(word)) - outer
            engine.launcher = [*words[:shell], *engine.launcher]
            for key, texts in (("before", script.before), ("after", script.after)):
                if texts:
                    draft.origin[key] = texts
                    draft.note(f"{key} the server: {'; '.join(texts)}")
            files = script.files
            draft.read_config = lambda path: files.get(path)
            return engine
    return find_invocation(words)


def take_environment(draft: Draft, pairs: Iterable[tuple[str, str]]) -> None:
    for name, value in pairs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            draft.note(f"{name}: is no name of an environment variable; it was left out")
            continue
        draft.env.pop(name, None)
        draft.env[name] = value


def restart_policy(draft: Draft, value: str) -> None:
    """docker's and compose's words for when a container starts again."""
    policy, _, limit = value.strip().partition(":")
    known = {
        "no": "never",
        "never": "never",
        "always": "always",
        "unless-stopped": "always",
        "on-failure": "on-failure",
    }.get(policy.lower())
    if known is None:
        draft.note(f"restart {value}: not a known policy")
        draft.origin["restart"] = value
        return
    draft.restart = Restart(policy=known)
    if limit.isdecimal():
        draft.restart = Restart(policy=known, max=int(limit))
    if restart_text(draft.restart) != value:
        draft.origin["restart"] = value


def restart_text(restart: Restart) -> str:
    """compose's word for a profile's policy."""
    if restart.policy == "on-failure":
        return f"on-failure:{restart.max}"
    return "no" if restart.policy == "never" else restart.policy


def loopback_only(ports: Iterable[Any]) -> bool:
    """Whether every published port is published on the loopback interface alone."""
    found = [item.get("host_ip", "") if isinstance(item, dict) else str(item) for item in ports]
    return bool(found) and all(
        text.startswith(("127.", "localhost", "[::1]", "::1")) for text in found
    )
