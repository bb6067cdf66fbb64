"""compose files: the engine's service, and the `vllm preload` service beside it."""

from __future__ import annotations

import re
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.compose_variables import fill_defaults, service_variables
from profiles.importing.container import (
    entry_command,
    loopback_only,
    restart_policy,
    take_environment,
)
from profiles.importing.documents import load_yaml, plain
from profiles.importing.draft import Draft
from profiles.importing.extending import extended, pairs, with_included
from profiles.importing.interpolation import command_words, escaped, interpolated
from profiles.importing.mounts import Mount, compose_mount, host_path
from profiles.importing.ports import shown
from profiles.importing.visible import parse_gpus

_SAID_APART = ("volumes", "secrets", "env_file")
_HANDLED = ("image", "entrypoint", "command", "environment", "restart", "deploy", "gpus")


def import_compose(draft: Draft, text: str, service: str | None = None) -> None:
    """Read a compose file, or the body of one service, into the draft.

    `service` chooses one of several engines. Raises Usage when none or several fit."""
    document = load_yaml(text)
    if not isinstance(document, dict):
        raise Usage("line 1: this is no compose file: it holds no map")
    document = with_included(document, draft)
    services = document.get("services")
    if services is None and ("image" in document or "command" in document):
        services = {"vllm": document}
    elif services is None:
        services = {
            key: value
            for key, value in document.items()
            if isinstance(value, dict) and ("image" in value or "command" in value)
        }
    if not isinstance(services, dict) or not services:
        raise Usage("the compose file has no services")
    bodies = {
        str(name): extended(str(name), body, services, draft)
        for name, body in services.items()
        if isinstance(body, dict)
    }
    roles = {name: _role(body) for name, body in bodies.items()}
    engines = [name for name, role in roles.items() if role == "serve"]
    daemons = [name for name, role in roles.items() if role == "preload"]
    chosen = _choose(service, engines, bodies)
    daemon = _daemon(bodies[chosen], daemons)
    draft.mounts += _secret_files(document, bodies[chosen], draft)
    _service(draft, chosen, bodies[chosen])
    if daemon is not None:
        other = Draft(draft.kind, base=draft.base, as_written=draft.as_written)
        _service(other, daemon, bodies[daemon])
        draft.preload_words = other.preload_words
        draft.secrets |= other.secrets
        draft.inside |= other.inside
        draft.notes += [f"service {daemon}: {note}" for note in other.notes]
        draft.mounts += [mount for mount in other.mounts if mount not in draft.mounts]
        draft.origin["preload_service"] = {"name": daemon, **other.origin}
        if other.takes_ports():
            other.note(f"ports: {shown(other.ports)}")
        for note in other.unrepresented:
            draft.note(f"service {daemon}: {note}")
        for name, value in other.env.items():
            if name not in draft.env:
                draft.env[name] = value
        if not draft.words and draft.preload_words:
            draft.note("the engine's service has no command")
    fill_defaults(draft)
    rest = [name for name in bodies if name not in (chosen, daemon)]
    if rest:
        draft.origin["other_services"] = {name: escaped(services[name]) for name in rest}
        draft.note(f"other services: {', '.join(rest)}")
    top = {
        key: escaped(value)
        for key, value in document.items()
        if key not in ("services", "version")
        and not str(key).startswith("x-")
        and "services" in document
    }
    if top:
        draft.origin["compose"] = top
        draft.note(f"top level: {', '.join(map(str, top))}")


def _secret_files(document: dict[str, Any], body: dict[str, Any], draft: Draft) -> list[Mount]:
    """The files that compose shows a service under /run/secrets (or where the service says)."""
    known = document.get("secrets")
    out: list[Mount] = []
    for item in _list(body.get("secrets")):
        name = str(item.get("source") if isinstance(item, dict) else item)
        target = str(item.get("target") or name) if isinstance(item, dict) else name
        place = target if target.startswith("/") else f"/run/secrets/{target}"
        entry = known.get(name) if isinstance(known, dict) else None
        file = entry.get("file") if isinstance(entry, dict) else None
        source = host_path(interpolated(file), draft.base) if file else None
        out.append(Mount(place, source, "secrets", name, f"secret {name}"))
    return out


def _choose(service: str | None, engines: list[str], bodies: dict[str, Any]) -> str:
    if service is not None and service in bodies:
        return service
    if not engines:
        raise Usage(f"no service of the compose file runs vLLM (there are {', '.join(bodies)})")
    if len(engines) > 1 and service is None:
        raise Usage(f"several services run vLLM ({', '.join(engines)}); choose one with --name")
    return engines[0]


def _daemon(engine: dict[str, Any], daemons: list[str]) -> str | None:
    """The preload service that the engine depends on, else the only one there is."""
    needs = engine.get("depends_on") or []
    named = [name for name in daemons if name in needs]
    if named:
        return named[0]
    return daemons[0] if len(daemons) == 1 else None


def _role(body: dict[str, Any]) -> str | None:
    words = _text_of(body.get("entrypoint")) + " " + _text_of(body.get("command"))
    if re.search(r"\bvllm\s+preload\b", words):
        return "preload"
    if re.search(r"\bvllm\s+serve\b|vllm\.entrypoints\b", words):
        return "serve"
    if "vllm" in str(body.get("image", "")) or re.search(r"--(?:model|served-model-name)\b", words):
        return "serve"
    return None


def _text_of(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _service(draft: Draft, name: str, body: dict[str, Any]) -> None:
    draft.name = draft.name or name
    if body.get("image") is not None:
        draft.origin["image"] = interpolated(str(body["image"]))
        draft.note(f"image {body['image']}: a profile runs in a runtime, not in an image")
    take_environment(draft, service_variables(draft, body))
    take_environment(draft, [(k, interpolated(v)) for k, v in pairs(body.get("environment"))])
    if body.get("restart") is not None:
        value = body["restart"]
        restart_policy(draft, "no" if value is False else str(value))
    left = {k: v for k, v in body.items() if k not in _HANDLED}
    deploy = body.get("deploy")
    if isinstance(deploy, dict):
        deploy = _deploy(draft, deploy)
        if deploy:
            left["deploy"] = deploy
    if body.get("gpus") is not None:
        value = body["gpus"]
        _devices(draft, value if isinstance(value, list) else [{"count": value}])
    draft.loopback = loopback_only(_list(body.get("ports")))
    for item in _list(body.get("volumes")):
        found = compose_mount(escaped(item), draft.base)
        if found is None:
            draft.note(f"volumes: {plain(item)}")
        else:
            draft.mounts.append(found)
    if body.get("network_mode") != "host":
        draft.ports = [escaped(item) for item in _list(body.get("ports"))]
    for key, value in left.items():
        if key not in _SAID_APART and not (key == "ports" and draft.takes_ports()):
            draft.note(f"{key}: {plain(value)}")
    if left:
        draft.origin["container"] = escaped(left)
    entrypoint = command_words(body.get("entrypoint"))
    entry_command(draft, entrypoint, command_words(body.get("command")) or [])


def _deploy(draft: Draft, deploy: dict[str, Any]) -> dict[str, Any]:
    """The deploy section without the GPUs and the restart policy that a profile can say."""
    out: dict[str, Any] = dict(plain_copy(deploy))
    policy = out.get("restart_policy")
    if isinstance(policy, dict) and set(policy) <= {"condition", "max_attempts"}:
        word = {"any": "always", "none": "no"}.get(str(policy.get("condition", "any")))
        word = word or str(policy.get("condition"))
        if "max_attempts" in policy and word == "on-failure":
            word += f":{policy['max_attempts']}"
        restart_policy(draft, word)
        del out["restart_policy"]
    resources = out.get("resources")
    reservations = resources.get("reservations") if isinstance(resources, dict) else None
    devices = reservations.get("devices") if isinstance(reservations, dict) else None
    if isinstance(devices, list):
        gpus = [d for d in devices if isinstance(d, dict) and "gpu" in str(d.get("capabilities"))]
        if len(gpus) == 1 and _devices(draft, gpus):
            devices.remove(gpus[0])
            for path in (
                ("devices", reservations),
                ("reservations", resources),
                ("resources", out),
            ):
                if isinstance(path[1], dict) and not path[1].get(path[0]):
                    path[1].pop(path[0], None)
    return out


def _devices(draft: Draft, devices: list[Any]) -> bool:
    """Whether the profile (or `origin.gpus`) now says all that the reservation says."""
    if len(devices) != 1 or not isinstance(devices[0], dict):
        return False
    device = devices[0]
    ids = device.get("device_ids")
    if isinstance(ids, list):
        found = parse_gpus(",".join(map(str, ids)))
        if found is not None:
            draft.gpus = found
            return set(device) <= {"driver", "device_ids", "capabilities"}
        return False
    count = device.get("count", "all")
    draft.origin["gpus"] = interpolated(count) if isinstance(count, str) else count
    if count != "all":
        draft.note(f"gpus {count}: a profile names GPUs by index or UUID; all are visible")
    return set(device) <= {"driver", "count", "capabilities"}


def plain_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain_copy(item) for key, item in value.items()}
    return [plain_copy(item) for item in value] if isinstance(value, list) else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
