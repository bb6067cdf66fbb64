"""A script for a POSIX shell."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from profiles.exporting.command import Export, env_text
from profiles.exporting.quoting import shell
from profiles.model import EnvRef


def export_shell(export: Export) -> str:
    lines = ["#!/bin/sh", export.header()]
    if export.profile.restart.policy != "never":
        lines.append(f"# restart: {export.profile.restart.policy} (a script cannot say it)")
    words = export.words()
    own = export.shadowing(words)
    lines += exports(export, own)
    if export.profile.preload is not None:
        lines += ["vllm preload " + _wrapped(export.preload_words()) + " &", ""]
    launcher = export.origin.get("launcher")
    prefix = [shell(str(word)) for word in launcher] if isinstance(launcher, list) else []
    if prefix[:1] == ["sudo"] and "container" in export.origin:
        prefix = []
    program = export.origin.get("program")
    called = shell(program if isinstance(program, str) else "vllm")
    command = [*prefix, *_for_engine(own, shell), called, "serve"]
    lines.append(" ".join(command) + " " + _wrapped(words))
    return "\n".join(lines) + "\n"


def exports(export: Export, own: Container[str]) -> list[str]:
    """`export` lines for the environment but `own`, which is the engine's alone."""
    out: list[str] = []
    for name, value in export.environment().items():
        if name in own:
            continue
        if isinstance(value, EnvRef) and value.from_env == name:
            out.append(f"export {name}")
        else:
            out.append(f"export {name}={shell(env_text(value))}")
    return out


def _for_engine(own: Mapping[str, str | EnvRef], quote: Callable[[str], str]) -> list[str]:
    """`env NAME=value …` before the program."""
    return ["env", *(f"{k}={quote(env_text(v))}" for k, v in own.items())] if own else []


def _wrapped(words: list[str]) -> str:
    """One option a line."""
    rows: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and rows[-1]:
            rows.append([])
        rows[-1].append(shell(word))
    return " \\\n  ".join(" ".join(row) for row in rows)


def one_line(
    export: Export,
    words: list[str],
    command: str = "vllm serve",
    quote: Callable[[str], str] = shell,
    own: Mapping[str, str | EnvRef] | None = None,
) -> str:
    """The text for `sh -c`, where a format without a shell needs one. `own` are variables for the
    engine alone."""
    own = own or {}
    setting = [
        f"export {name}={quote(env_text(value))}"
        for name, value in export.environment(gpus=False).items()
        if needs_shell(name, value) and name not in own
    ]
    called = [*_for_engine(own, quote), command, *map(quote, words)]
    return "; ".join([*setting, "exec " + " ".join(called)])


def needs_shell(name: str, value: str | EnvRef) -> bool:
    """Whether only a shell can make this value out of another variable, a file or a command."""
    from profiles.importing.references import has_references

    if isinstance(value, EnvRef):
        return value.from_env != name
    return has_references(value)
