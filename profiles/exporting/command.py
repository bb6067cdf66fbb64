"""What every export is made of: a profile without secrets, its words, its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from profiles.argv import environment, preload_argv, serve_argv
from profiles.exporting.quoting import shell
from profiles.importing.carried import carried_line, kept_fields
from profiles.importing.credentials import environment_value, secret_arguments
from profiles.importing.draft import Draft
from profiles.importing.references import has_references, names
from profiles.importing.secrets import mask, masked
from profiles.model import EnvRef, Profile
from profiles.schema import ArgumentSchema

ALL_INTERFACES = "0.0.0.0"


@dataclass
class Export:
    """One export on its way: the safe profile, and what must travel in the comment line."""

    profile: Profile
    schema: ArgumentSchema
    keep: dict[str, Any]
    chosen: dict[str, Any] = field(default_factory=dict)
    kind: str = ""

    def header(self) -> str:
        return carried_line(self.keep, self.chosen, self.kind)

    @property
    def origin(self) -> dict[str, Any]:
        return self.profile.origin

    def container(self) -> dict[str, Any]:
        found = self.origin.get("container")
        return dict(found) if isinstance(found, dict) else {}

    def image(self) -> str:
        """The image that the profile came with, else the one of the target version."""
        image = self.origin.get("image")
        if isinstance(image, str):
            return image
        version = self.schema.version.partition("+")[0]
        chosen = f"vllm/vllm-openai:v{version + '.0' if version.count('.') == 1 else version}"
        self.chosen["image"] = chosen
        return chosen

    def words(self, say_host: bool = True) -> list[str]:
        """The engine's words after `vllm serve`, in the profile's notation."""
        profile = self.profile
        if not profile.model and "config" in profile.args:
            # The file names the model; serve_argv wants one.
            words = serve_argv(msgspec.structs.replace(profile, model="-"), self.schema)[2:]
        else:
            words = serve_argv(profile, self.schema)[1:]
        place = words.index("--host")
        if not say_host or self.profile.host == ALL_INTERFACES:
            del words[place : place + 2]
        text = self.origin.get("port")
        if isinstance(text, str) and str(self.profile.port) in text and "--port" in words:
            words[words.index("--port") + 1] = text
        elif isinstance(text, str) and self.profile.port is None:
            words[1:1] = [f"--port={text}"]
        given = self.origin.get("extra_words")
        extra = list(map(str, given)) if isinstance(given, list) else []
        if any(map(has_references, extra)):
            return words + extra  # "$@" overrides what stands before it
        # After the last option they would be its values.
        return [*words[:1], *extra, *words[1:]]

    def shadowing(self, words: list[str]) -> dict[str, str | EnvRef]:
        """Variables of the engine whose names the words or other variables refer to: those mean
        the caller's, so these are set for the engine alone (`env NAME=…`), where a shell fills
        the references in."""
        env = self.environment(gpus=False)
        named = {name for word in words for name in names(word)}
        named |= {n for name, value in env.items() for n in _needs(value) if n != name}
        return {
            name: value
            for name, value in env.items()
            if name in named and not (isinstance(value, EnvRef) and value.from_env == name)
        }

    def preload_words(self) -> list[str]:
        token = self.profile.preload.seed_token if self.profile.preload else None
        text = "${" + token.from_env + "}" if token and token.from_env else None
        if token and token.from_file:
            text = f"$(cat {shell(token.from_file)})"
        return preload_argv(self.profile, self.schema, text)[1:]

    def environment(self, gpus: bool = True) -> dict[str, str | EnvRef]:
        """Values before what they do not need: who refers to a name comes before its new value."""
        values, refs = environment(self.profile)
        if not gpus and "CUDA_VISIBLE_DEVICES" not in self.profile.env:
            values.pop("CUDA_VISIBLE_DEVICES", None)
            if "CUDA_DEVICE_ORDER" not in self.profile.env:
                values.pop("CUDA_DEVICE_ORDER", None)
        left: dict[str, str | EnvRef] = {**values, **refs}
        out: dict[str, str | EnvRef] = {}
        while left:
            wanted = {name: {n for n in _needs(value) if n != name} for name, value in left.items()}
            free = [n for n in left if not any(n in w for m, w in wanted.items() if m != n)]
            for name in free or list(left):
                out[name] = left.pop(name)
        return out


def _needs(value: str | EnvRef) -> tuple[str, ...]:
    if isinstance(value, EnvRef):
        return (value.from_env,) if value.from_env else ()
    return names(value)


def prepare(profile: Profile, schema: ArgumentSchema) -> Export:
    """The profile with every literal secret replaced by a reference."""
    draft = Draft("export")
    env: dict[str, str | EnvRef] = {
        name: value if isinstance(value, EnvRef) else environment_value(draft, name, value)
        for name, value in profile.env.items()
    }
    args = dict(profile.args)
    secret_arguments(draft, args, env)
    known = draft.secrets
    safe = msgspec.structs.replace(
        profile,
        env=env,
        args=args,
        origin=masked(profile.origin, known),
        bench=masked(profile.bench, known),
        notes=mask(profile.notes, known),
    )
    if profile.preload is not None:
        own = dict(profile.preload.args)
        secret_arguments(draft, own, env)
        safe = msgspec.structs.replace(
            safe, preload=msgspec.structs.replace(profile.preload, args=own)
        )
    return Export(safe, schema, kept_fields(safe))


def env_text(value: str | EnvRef) -> str:
    """An environment value in the profile's notation."""
    if isinstance(value, str):
        return value
    if value.from_env is not None:
        return "${" + value.from_env + "}"
    return f"$(cat {shell(value.from_file or '')})"
