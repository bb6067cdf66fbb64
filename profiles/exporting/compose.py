"""A compose file: the engine, and its `vllm preload` daemon with a health check before it."""

from __future__ import annotations

from typing import Any

from profiles.exporting import quoting
from profiles.exporting.command import ALL_INTERFACES, Export
from profiles.exporting.documents import dump
from profiles.exporting.shell import one_line
from profiles.importing.container import loopback_only, restart_text
from profiles.importing.mounts import compose_mount
from profiles.importing.ports import DEFAULT_PORT, published
from profiles.importing.references import Command, parse
from profiles.model import EnvRef, Restart

_HEALTH_PORT = 9300
_SHARED = {"ipc": "host", "pid": "host"}


def export_compose(export: Export) -> str:
    name = export.profile.name
    services: dict[str, Any] = {}
    daemon = export.profile.preload is not None
    engine: dict[str, Any] = {"image": quoting.compose(export.image())}
    body = export.container()
    chosen: dict[str, Any] = {}
    if daemon:
        weights, service = _daemon(export)
        services[weights] = service
        if "depends_on" not in body:
            chosen["depends_on"] = {weights: {"condition": "service_healthy"}}
        for key, value in _SHARED.items():
            if key not in body:
                chosen[key] = value
    elif "ipc" not in body and "shm_size" not in body:
        chosen["ipc"] = "host"
    _host_paths(export, body, chosen)
    say_host = _ports(export, body, chosen)
    _command(export, engine, export.words(say_host), ["vllm", "serve"])
    _environment(export, engine)
    engine |= {key: _written(value) for key, value in {**body, **chosen}.items() if key != "deploy"}
    _restart(export, engine)
    engine["deploy"] = _deploy(export, body.get("deploy"))
    if chosen:
        export.chosen["container"] = {**export.chosen.get("container", {}), **chosen}
    services[name] = engine
    others = export.origin.get("other_services")
    if isinstance(others, dict):
        services |= {key: _written(value) for key, value in others.items() if key not in services}
    document: dict[str, Any] = {"services": services}
    top = export.origin.get("compose")
    if isinstance(top, dict):
        document |= {key: _written(value) for key, value in top.items()}
    return export.header() + "\n" + dump(document)


def _ports(export: Export, body: dict[str, Any], chosen: dict[str, Any]) -> bool:
    """Publish the engine's port; returns whether `--host` must be said inside."""
    profile = export.profile
    inside = profile.port if profile.port is not None else DEFAULT_PORT
    given = body.get("ports")
    own = given if isinstance(given, list) else []
    silent = profile.port is not None and all(published(item, inside) is None for item in own)
    if "network_mode" not in body and (not own or silent):
        mapping = f"{inside}:{inside}"
        if profile.host == ALL_INTERFACES:
            chosen["ports"] = [*own, mapping]
        else:
            address = "127.0.0.1" if profile.host in ("127.0.0.1", "localhost") else profile.host
            address = f"[{address}]" if ":" in address else address
            chosen["ports"] = [*own, f"{address}:{mapping}"]
        if own or profile.host not in (ALL_INTERFACES, "127.0.0.1"):
            export.keep["host"] = profile.host
        return False
    loopback = loopback_only(own)
    if loopback and profile.host == ALL_INTERFACES:
        export.keep["host"] = profile.host
    return not (loopback and profile.host == "127.0.0.1")


def _host_paths(export: Export, body: dict[str, Any], chosen: dict[str, Any]) -> None:
    """Mount the host's paths that the profile names where the host has them, in the place of
    mounts of something else there (`-v /a:/b -v /b:/a`)."""
    paths = export.origin.get("host_paths")
    volumes = body.get("volumes") or []
    if isinstance(paths, dict) and isinstance(volumes, list):
        wanted = dict.fromkeys(path for target, path in paths.items() if path != target)
        if wanted:
            kept = [item for item in volumes if _target(item) not in wanted]
            chosen["volumes"] = [*kept, *(f"{path}:{path}" for path in wanted)]


def _target(volume: Any) -> str | None:
    found = compose_mount(volume, None)
    return None if found is None else found.target


def _daemon(export: Export) -> tuple[str, dict[str, Any]]:
    section = export.profile.preload
    assert section is not None
    origin = export.origin.get("preload_service")
    found: dict[str, Any] = dict(origin) if isinstance(origin, dict) else {}
    name = str(found.get("name") or export.profile.name + "-weights")
    own = found.get("container")
    body: dict[str, Any] = dict(own) if isinstance(own, dict) else {}
    chosen: dict[str, Any] = {} if "name" in found else {"name": name}
    port = section.health_port or _HEALTH_PORT
    words = export.preload_words()
    if section.health_port is None:
        export.chosen["health_port"] = port
        words += [
            "--weight-cache-health-port",
            str(port),
            "--weight-cache-health-host",
            "127.0.0.1",
        ]
    image = str(found.get("image") or export.image())
    if "image" not in found:
        chosen["image"] = image
    service: dict[str, Any] = {"image": quoting.compose(image)}
    _command(export, service, words, ["vllm", "preload"])
    _environment(export, service)
    if "healthcheck" not in body:
        check = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health')"
        chosen.setdefault("container", {})["healthcheck"] = {
            "test": ["CMD", "python3", "-c", check],
            "interval": "5s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "30m",
            "start_interval": "2s",
        }
    _host_paths(export, body, chosen.setdefault("container", {}))
    for key, value in _SHARED.items():
        if key not in body:
            chosen["container"][key] = value
    body |= chosen.get("container", {})
    service |= {key: _written(value) for key, value in body.items() if key != "deploy"}
    had_gpus = "gpus" in found
    service["deploy"] = _deploy(export, body.get("deploy"), found.get("gpus"))
    if not had_gpus and not export.profile.gpus:
        chosen["gpus"] = export.origin.get("gpus", "all")
    if chosen:
        export.chosen["preload_service"] = chosen
    return name, service


def _command(export: Export, service: dict[str, Any], words: list[str], program: list[str]) -> None:
    commands = any(isinstance(piece, Command) for word in words for piece in parse(word))
    files = any(isinstance(v, EnvRef) and v.from_file for v in export.environment(False).values())
    if not commands and not files:
        service["entrypoint"] = program
        service["command"] = [quoting.compose(word) for word in words]
        return
    text = one_line(export, words, " ".join(program), quoting.shell_in_compose)
    service["entrypoint"] = ["/bin/sh", "-c"]
    service["command"] = [text]


def _environment(export: Export, service: dict[str, Any]) -> None:
    env: dict[str, Any] = {}
    for name, value in export.environment(gpus=False).items():
        if isinstance(value, str):
            env[name] = quoting.compose(value)
        elif value.from_env is not None:
            env[name] = "${" + value.from_env + ":?" + value.from_env + " is not set}"
    if env:
        service["environment"] = env


def _restart(export: Export, service: dict[str, Any]) -> None:
    restart = export.profile.restart
    text = export.origin.get("restart")
    words = {"unless-stopped": "always", "no": "never"}
    policy = text.partition(":")[0] if isinstance(text, str) else ""
    if isinstance(text, str) and words.get(policy, policy) == restart.policy:
        service["restart"] = text
    elif restart.policy != "never":
        service["restart"] = restart_text(restart)
    limited = restart.policy == "on-failure" or restart.max == Restart().max
    if limited and restart == Restart(policy=restart.policy, max=restart.max):
        export.keep.pop("restart", None)


def _deploy(export: Export, own: Any, gpus: Any = None) -> dict[str, Any]:
    """The deploy section with the GPUs put back."""
    deploy: dict[str, Any] = _written(own) if isinstance(own, dict) else {}
    device: dict[str, Any] = {"driver": "nvidia"}
    if export.profile.gpus:
        device["device_ids"] = [str(gpu) for gpu in export.profile.gpus]
        if "gpus" in export.origin:
            export.keep["origin"] = export.origin
    else:
        count = gpus if gpus is not None else export.origin.get("gpus")
        if count is None:
            count = "all"
            export.chosen["gpus"] = count
        device["count"] = quoting.compose(count) if isinstance(count, str) else count
    device["capabilities"] = ["gpu"]
    resources = _map(deploy, "resources")
    reservations = _map(resources, "reservations")
    devices = reservations.get("devices")
    reservations["devices"] = [*(devices if isinstance(devices, list) else []), device]
    return deploy


def _map(above: dict[str, Any], key: str) -> dict[str, Any]:
    """The map below a key; what is none is replaced by one."""
    found = above.get(key)
    above[key] = found if isinstance(found, dict) else {}
    return above[key]  # type: ignore[no-any-return]


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return quoting.compose(value) if isinstance(value, str) else value
