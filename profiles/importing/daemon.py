"""The daemon that holds the weights: its command beside the engine's as a `preload:` section."""

from __future__ import annotations

from typing import Any

import msgspec

from engine_ctl.errors import Usage
from profiles.importing.arguments import parse_arguments
from profiles.importing.credentials import reference_for, secret_arguments
from profiles.importing.draft import Draft
from profiles.importing.mounts import HostPaths
from profiles.importing.references import sole_name
from profiles.model import EnvRef, Preload
from profiles.schema import ArgumentSchema

_PRELOAD_KEYS = {
    "weight_cache_socket_dir": "socket_dir",
    "weight_cache_health_port": "health_port",
}
LOADER_KEYS = ("mode", "fallback", "socket_dir", "connect_timeout_s", "state_timeout_s")


def preload_section(
    draft: Draft,
    args: dict[str, Any],
    schema: ArgumentSchema,
    env: dict[str, str | EnvRef],
    paths: HostPaths,
) -> Preload:
    """The daemon's section: what its command says that the engine's does not."""
    parsed = parse_arguments(draft.preload_words or [], schema, "preload", draft.read_config)
    for note in parsed.notes:
        draft.note(f"vllm preload: {note}")
    own = {key: paths.argument(key, value) for key, value in parsed.args.items()}
    own.pop("model", None)
    fields: dict[str, Any] = {}
    token = own.pop("seed_token", None)
    if token is not None:
        text = reference_for(draft, "--seed-token", str(token), "VLLM_SEED_TOKEN", 0)
        fields["seed_token"] = EnvRef(from_env=sole_name(text))
    for option, key in _PRELOAD_KEYS.items():
        if option in own and (key != "health_port" or isinstance(own[option], int)):
            fields[key] = own.pop(option)
    if own.get("weight_cache_health_host") == "127.0.0.1":
        del own["weight_cache_health_host"]
    if args.get("load_format") == "ipc_cache":
        del args["load_format"]
        extra = args.pop("model_loader_extra_config", None)
        if isinstance(extra, dict):
            for key in LOADER_KEYS:
                if key in extra and fields.get(key, extra[key]) == extra[key]:
                    fields[key] = extra.pop(key)
            if extra:
                args["model_loader_extra_config"] = extra
        elif extra is not None:
            args["model_loader_extra_config"] = extra
    else:
        draft.note("the engine does not load with --load-format ipc_cache; the profile does")
    wrapper = Draft(draft.kind, secrets=draft.secrets, unrepresented=draft.unrepresented)
    secret_arguments(wrapper, own, env)
    fields["args"] = {
        name: value
        for name, value in own.items()
        if name not in args or args[name] != value
        if name not in ("served_model_name", "host", "port")
    }
    try:
        return msgspec.convert(fields, Preload)
    except msgspec.ValidationError as error:
        raise Usage(f"the preload daemon's options do not fit: {error}") from None
