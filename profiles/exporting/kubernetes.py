"""A Kubernetes manifest: the one that the profile came from, else a Deployment."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec

from profiles.exporting.command import ALL_INTERFACES, Export
from profiles.exporting.documents import dump_all
from profiles.exporting.quoting import is_simple, kubernetes
from profiles.exporting.shell import one_line
from profiles.importing.carried import digest
from profiles.importing.references import has_references, literal
from profiles.model import EnvRef, Restart


def export_kubernetes(export: Export) -> str:
    origin = export.origin.get("kubernetes")
    inside = origin.get("port") if isinstance(origin, dict) else None
    container = _container(export, inside if isinstance(inside, int) else None)
    if isinstance(origin, dict) and isinstance(origin.get("manifest"), list):
        documents = copy.deepcopy(origin["manifest"])
        target: Any = documents[int(origin.get("document", 0))]
        for key in origin.get("path", ()):
            target = target[key]
        changed = _host_paths(export, target)
        if isinstance(inside, int):
            changed = _host_port(export, target, inside) or changed
        if changed:
            export.chosen["kubernetes"] = {"manifest": digest(documents)}
        target |= container
    else:
        documents = [_deployment(export, container)]
    if export.profile.gpus:
        export.keep["gpus"] = msgspec.to_builtins(export.profile.gpus)
    if export.profile.preload is not None:
        export.keep["preload"] = msgspec.to_builtins(export.profile.preload)
    if export.profile.restart == Restart():
        export.keep.pop("restart", None)
    return export.header() + "\n" + dump_all(documents)


def _host_paths(export: Export, target: dict[str, Any]) -> bool:
    """Mount the host's paths that the profile names where the host has them, in the place of
    mounts of something else there."""
    paths = export.origin.get("host_paths")
    mounts = target.get("volumeMounts")
    if not isinstance(paths, dict) or not isinstance(mounts, list):
        return False
    more = [
        {**mount, "mountPath": paths[place]}
        for mount in mounts
        if isinstance(mount, dict) and (place := _place(mount)) in paths and paths[place] != place
    ]
    taken = {mount["mountPath"] for mount in more}
    target["volumeMounts"] = [m for m in mounts if _place(m) not in taken] + more
    return bool(more)


def _host_port(export: Export, target: dict[str, Any], inside: int) -> bool:
    """Let the node serve the container's own port, which probes and Services name, where the
    profile serves."""
    profile = export.profile
    export.keep |= {"host": profile.host, "port": profile.port}
    ports = [dict(item) if isinstance(item, dict) else item for item in target.get("ports", [])]
    for item in ports:
        if isinstance(item, dict) and item.get("containerPort") == inside and "hostPort" in item:
            item.pop("hostIP", None)
            item["hostPort"] = profile.port if profile.port is not None else inside
            if profile.host != ALL_INTERFACES:
                item["hostIP"] = profile.host
    changed = ports != target.get("ports")
    target["ports"] = ports
    return changed


def _place(mount: Any) -> str:
    return str(mount.get("mountPath") if isinstance(mount, dict) else "").rstrip("/")


def _deployment(export: Export, container: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9-]+", "-", export.profile.name.lower()).strip("-") or "vllm"
    port = export.profile.port if export.profile.port is not None else 8000
    body = {
        "name": "vllm",
        **container,
        "ports": [{"containerPort": port}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 5},
        "resources": {"limits": {"nvidia.com/gpu": _count(export)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    labels = {"app": name}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [body],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }
    hidden = ("command", "args", "env", "image")
    manifest = copy.deepcopy(document)
    spec: Any = manifest["spec"]
    spec["template"]["spec"]["containers"] = [
        {key: value for key, value in body.items() if key not in hidden}
    ]
    path = ["spec", "template", "spec", "containers", 0]
    export.chosen["kubernetes"] = digest({"path": path, "manifest": [manifest]})
    return document


def _count(export: Export) -> Any:
    """GPUs by number: the profile's, the origin's, else what the parallel sizes need."""
    if export.profile.gpus:
        export.chosen["gpus"] = len(export.profile.gpus)
        return len(export.profile.gpus)
    count = export.origin.get("gpus")
    if isinstance(count, int):
        return count
    sizes = [export.profile.args.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")]
    needed = 1
    for size in sizes:
        needed *= size if isinstance(size, int) and size > 0 else 1
    export.chosen["gpus"] = needed
    return needed


def _container(export: Export, inside: int | None) -> dict[str, Any]:
    """The container's image, command and environment; it listens on `inside` where the node
    serves another port."""
    env: list[dict[str, Any]] = []
    given = export.origin.get("env_sources")
    sources: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    chosen: dict[str, Any] = {}
    references: dict[str, Any] = {}
    values = export.environment(gpus=False)
    words = export.words()
    if inside is not None:
        served = msgspec.structs.replace(export.profile, port=inside, host=ALL_INTERFACES)
        words = Export(served, export.schema, {}).words()
    own = export.shadowing(words)
    for name, value in values.items():
        if name in own:
            continue
        if isinstance(value, EnvRef):
            source = sources.get(name)
            if source is None:
                key = value.from_env or name
                source = {"secretKeyRef": {"name": export.profile.name, "key": key}}
                chosen[name] = source
            if value != EnvRef(from_env=name):
                references[name] = msgspec.to_builtins(value)
            env.append({"name": name, "valueFrom": source})
        elif not has_references(value):
            env.append({"name": name, "value": kubernetes(value)})
    shelled = {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and has_references(value) and name not in own
    }
    if chosen:
        export.chosen["env_sources"] = chosen
    if references:
        export.keep["references"] = references
    container: dict[str, Any] = {"image": export.image()}
    if not shelled and not own and all(is_simple(word, frozenset(values)) for word in words):
        container["command"] = ["vllm", "serve"]
        container["args"] = [kubernetes(word) for word in words]
    else:
        container["command"] = ["/bin/sh", "-c"]
        container["args"] = [kubernetes(literal(_script(export, words, shelled, own)))]
    if env:
        container["env"] = env
    return container


def _script(
    export: Export, words: list[str], shelled: dict[str, str], own: dict[str, str | EnvRef]
) -> str:
    only = msgspec.structs.replace(export.profile, env=dict(shelled), gpus=())
    return one_line(Export(only, export.schema, {}), words, own=own)
