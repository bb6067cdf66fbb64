"""Lint rules: what a profile exposes or leaves to chance: open ports, secrets, commands."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from profiles.importing.references import Command as _Command
from profiles.importing.references import has_references, parse
from profiles.importing.secrets import is_secret, looks_secret
from profiles.rules import FAIL, NOTE, Hit, Rule, View


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or has_references(host)


def _has_key(view: View) -> bool:
    return view.given("api_key") or (
        view.env_text("VLLM_API_KEY") != "" and ("VLLM_API_KEY" in view.env)
    )


def _open_host(view: View) -> Iterator[Hit]:
    listens = not view.given("uds") and view.args.get("headless") is not True
    if listens and not _is_loopback(view.profile.host) and not _has_key(view):
        yield "host", view.profile.host


def _secret_arguments(view: View) -> Iterator[Hit]:
    for key, name, value in view.places:
        if not is_secret(name) or isinstance(value, bool):
            continue
        yield key, name


def _secret_values(view: View) -> Iterator[Hit]:
    for key, name, value in view.places:
        items = value if isinstance(value, list) else [value]
        literal = [item for item in items if isinstance(item, str) and not has_references(item)]
        if (is_secret(name) and literal) or any(map(looks_secret, literal)):
            yield key, name
    watermark = view.config("watermark_config").get("key")
    if watermark is not None and not has_references(str(watermark)):
        yield "args.watermark_config.key", "key"
    for name, value in view.env.items():
        if isinstance(value, str) and looks_secret(value):
            yield f"env.{name}", name


def _two_gpu_lists(view: View) -> Iterator[Hit]:
    if view.profile.gpus and "CUDA_VISIBLE_DEVICES" in view.env:
        yield "env.CUDA_VISIBLE_DEVICES", str(view.env_text("CUDA_VISIBLE_DEVICES"))


def _commands(view: View) -> Iterator[Hit]:
    texts = [("model", view.profile.model), ("host", view.profile.host)]
    texts += [(key, value) for key, _, value in view.places if isinstance(value, str)]
    texts += [(f"env.{n}", value) for n, value in view.env.items() if isinstance(value, str)]
    for key, text in texts:
        if any(isinstance(piece, _Command) for piece in parse(text)):
            yield key, text


RULES = (
    Rule(
        id="open-without-key",
        severity=NOTE,
        when=_open_host,
        what="the server listens on {detail} and asks for no API key",
        effect="everybody who reaches this machine can use it",
        instead="host: 127.0.0.1, or env VLLM_API_KEY: {from_env: VLLM_API_KEY}",
        source="vllm/entrypoints/serve/middleware/register.py",
    ),
    Rule(
        id="secret-on-command-line",
        severity=NOTE,
        when=_secret_arguments,
        what="{detail} stands on the command line",
        effect="every user of the machine can read it with ps",
        instead="env, by reference: VLLM_API_KEY or HF_TOKEN",
        source="vllm/entrypoints/serve/middleware/register.py",
    ),
    Rule(
        id="secret-by-value",
        severity=NOTE,
        when=_secret_values,
        what="{detail} holds a secret by value",
        effect="it is copied wherever the profile is",
        instead="{from_env: NAME} in env, or ${NAME} in a text",
        source="Stoker: secrets by reference",
    ),
    Rule(
        id="gpus-twice",
        severity=NOTE,
        when=_two_gpu_lists,
        what="CUDA_VISIBLE_DEVICES and gpus both choose GPUs",
        effect="CUDA_VISIBLE_DEVICES wins; what Stoker shows by gpus is wrong",
        instead="gpus only",
        source="Stoker: profiles",
    ),
    Rule(
        id="command-substitution",
        severity=FAIL,
        when=_commands,
        what="{detail} is a command's output, which is never run",
        effect="the start is refused",
        instead="the value, or ${NAME} with the value in the environment",
        source="Stoker: profiles",
    ),
)
