"""Which kind of text this is, from its shape."""

from __future__ import annotations

import re

from profiles.schema import shipped

KINDS = ("shell", "docker", "compose", "systemd", "kubernetes", "config")

_SECTION = re.compile(r"^\s*\[(?:Service|Unit|Install)\]\s*$", re.M)
_EXEC = re.compile(r"^\s*ExecStart=", re.M)
_KEY = re.compile(r"^(?:-\s+)?[\"']?([A-Za-z_][\w.-]*)[\"']?\s*:(?:\s|$)")
_START = re.compile(
    r"\bvllm(?:\.exe)?\s+(?:serve|preload)\b|vllm\.entrypoints\."
    r"|\b(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|create)\b"
)


def recognise(text: str) -> str | None:
    """One of KINDS, or None when the text looks like none of them."""
    if _SECTION.search(text) or _EXEC.search(text):
        return "systemd"
    keys = _yaml_keys(text)
    if keys:
        found = _yaml_kind(text, keys)
        if found is not None:
            return found
    if re.search(r"\b(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|create)\b", text):
        return "docker"
    if (
        _START.search(text)
        or re.search(r"\bvllm\b.*(?:serve|api_server)", text, re.S)
        or re.search(r"^\s*set -- serve\b.*\bvllm\s+\"?\$\{?@", text, re.S | re.M)
    ):
        return "shell"
    if re.match(r"\s*(?:-{1,2}[A-Za-z]|[\w.-]+/[\w.-]+\s+-)", text):
        return "shell"
    return None


def _yaml_keys(text: str) -> list[str]:
    """Top-level keys, if every line that is not indented is a key, an item or a comment."""
    keys: list[str] = []
    for row in text.splitlines():
        if not row.strip() or row[0] in " \t#" or row.startswith(("---", "...", "%")):
            continue
        if row[0] in "-}]" and not row.startswith("--"):
            match = _KEY.match(row)
            if match:
                keys.append(match[1])
            elif row[0] == "-" and row[1:2] not in (" ", ""):
                return []
            continue
        match = _KEY.match(row)
        if match is None:
            return ["{"] if row.startswith(("{", "[")) and not keys else []
        keys.append(match[1])
    return keys


def _yaml_kind(text: str, keys: list[str]) -> str | None:
    if "{" in keys:
        return "kubernetes" if '"apiVersion"' in text else "config" if ":" in text else None
    if "apiVersion" in keys or {"containers"} & set(keys) or "valueFrom" in text:
        return "kubernetes"
    if "services" in keys or keys == ["include"]:
        return "compose"
    if {"servingEngineSpec", "modelArtifacts"} & set(keys):
        return "kubernetes"
    schema = shipped()
    known = [key for key in keys if schema.find(key) or schema.negated(key)]
    if len(known) * 2 > len(keys):
        return "config"
    if re.search(r"^\s+(?:containers|initContainers):", text, re.M):
        return "kubernetes"
    if {"image", "command", "args"} & set(keys):
        compose_words = {
            "environment",
            "ports",
            "volumes",
            "deploy",
            "restart",
            "entrypoint",
            "ipc",
            "shm_size",
            "depends_on",
            "runtime",
            "container_name",
        }
        if {"args", "env", "resources", "volumeMounts"} & set(keys):
            return "kubernetes"
        return "compose" if "image" in keys or compose_words & set(keys) else "kubernetes"
    nested = re.search(r"^\s+(image|command|args):", text, re.M)
    if nested:
        return (
            "kubernetes"
            if re.search(r"^\s+(args|env|resources):", text, re.M)
            and not re.search(r"^\s+environment:", text, re.M)
            else "compose"
        )
    return "config"
