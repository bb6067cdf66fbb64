"""Kubernetes: a container, a pod or anything with a pod template; values of charts alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.charts import ChartContainer, chart_container
from profiles.importing.container import entry_command, restart_policy, take_environment
from profiles.importing.documents import load_all, plain
from profiles.importing.draft import Draft
from profiles.importing.interpolation import scanned
from profiles.importing.mounts import Mount, host_path
from profiles.importing.references import Literal, Piece, Reference, literal, parse, render
from profiles.importing.secrets import is_secret, looks_secret, masked

_NAME = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_HANDLED = ("command", "args", "env", "image")
Path = tuple[str | int, ...]


def import_kubernetes(draft: Draft, text: str, container: str | None = None) -> None:
    """Read the vLLM container of a manifest into the draft. Raises Usage when there is none."""
    documents = load_all(text)
    for document in documents:
        made = chart_container(document, container)
        if made is not None:
            _chart(draft, made, document)
            return
    found: list[tuple[int, Path, dict[str, Any]]] = []
    for place, document in enumerate(documents):
        found += [(place, path, body) for path, body in containers(document)]
    serving = [item for item in found if _runs_vllm(item[2])]
    if container is not None:
        serving = [item for item in serving if item[2].get("name") == container] or serving
    if not serving:
        raise Usage("no container of the manifest runs vLLM (command, args or image)")
    place, path, body = serving[0]
    others = [item[2].get("name") for item in found if item[2] is not body]
    if others:
        draft.note(f"other containers: {', '.join(str(o) for o in others)}")
    document = documents[place]
    pod = _at(document, path[:-2]) if len(path) >= 2 else None
    _mounts(draft, body, pod if pod is not None else body)
    draft.ports = _host_ports(body, pod)
    _container(draft, body)
    _services(draft, documents)
    named = document.get("metadata") if isinstance(document, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    draft.name = draft.name or name or body.get("name")
    if isinstance(pod, dict) and isinstance(pod.get("restartPolicy"), str):
        restart_policy(
            draft,
            {"OnFailure": "on-failure"}.get(pod["restartPolicy"], pod["restartPolicy"].lower()),
        )
    origin: dict[str, Any] = {"path": list(path)}
    if len(documents) > 1:
        origin["document"] = place
    origin["manifest"] = [
        _without(d, path if i == place else None) for i, d in enumerate(documents)
    ]
    if origin["manifest"] in ([{}], [{"name": draft.name}]):
        return
    draft.origin["kubernetes"] = origin
    kinds = [str(d.get("kind", "values")) if isinstance(d, dict) else "values" for d in documents]
    draft.note(f"the {', '.join(kinds)} around the container; an export writes it again")


def _chart(draft: Draft, made: ChartContainer, document: dict[str, Any]) -> None:
    """A chart's engine; the values are kept, an export is a Deployment of its own."""
    _mounts(draft, made.body, {"volumes": made.volumes})
    draft.ports = _host_ports(made.body, None)
    _container(draft, made.body)
    draft.name = draft.name or made.name
    draft.origin["chart"] = {"name": made.chart, "values": masked(document)}
    draft.note(f"values of the {made.chart} chart: read as the engine that it starts")
    for text in made.left:
        draft.note(text)


def containers(document: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every container of a document with its path: a pod template's, or a bare one."""
    if not isinstance(document, dict):
        if isinstance(document, list):
            for place, item in enumerate(document):
                if isinstance(item, dict) and ("image" in item or "args" in item):
                    yield (*path, place), item
        return
    for key, value in document.items():
        if key in ("containers",) and isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, dict):
                    yield (*path, key, place), item
        elif key != "initContainers" and isinstance(value, dict):
            yield from containers(value, (*path, str(key)))
        elif key == "items" and isinstance(value, list):
            for place, item in enumerate(value):
                yield from containers(item, (*path, key, place))
    bare = any(key in document for key in ("args", "command"))
    if bare and "containers" not in document and _looks_like_container(document):
        yield path, document


def _looks_like_container(body: dict[str, Any]) -> bool:
    return all(isinstance(body.get(key, []), list | str) for key in ("args", "command"))


def _runs_vllm(body: dict[str, Any]) -> bool:
    words = " ".join(str(w) for key in ("command", "args") for w in _list(body.get(key)))
    if re.search(r"\bvllm\s+preload\b", words):
        return False
    image = body.get("image")
    if str(_format(body)).lower() == "vllm":
        return True
    return bool(
        re.search(r"\bvllm\s+serve\b|vllm\.entrypoints\b", words)
        or (
            "vllm" in str(image or "")
            and not re.search(r"exporter|router|lmcache-server", str(image))
        )
    )


def _format(body: dict[str, Any]) -> Any:
    """KServe's model format: its serving runtime gives the command and the image."""
    found = body.get("modelFormat")
    return found.get("name") if isinstance(found, dict) else None


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _container(draft: Draft, body: dict[str, Any]) -> None:
    image = body.get("image")
    if isinstance(image, dict):
        image = ":".join(str(image[k]) for k in ("repository", "tag") if image.get(k))
    if image is not None:
        draft.origin["image"] = str(image)
        draft.note(f"image {image}: a profile runs in a runtime, not in an image")
    known = _environment(draft, body)
    for key, value in body.items():
        if key in (*_HANDLED, "name", "volumeMounts") or (key == "ports" and draft.takes_ports()):
            continue
        draft.note(f"{key}: {plain(value)}")
    _gpus(draft, body)
    command = _words(body.get("command"), known)
    words = _words(body.get("args"), known)
    uri = str(body.get("storageUri") or "")
    if _format(body) is not None and uri.startswith("hf://") and not command:
        words = [literal(uri.removeprefix("hf://")), *words]
    entry_command(draft, command or None, words)


def _host_ports(body: dict[str, Any], pod: Any) -> list[Any]:
    """The container's ports that the node serves, as compose's long form says it. With the
    host's network there is nothing to publish."""
    if isinstance(pod, dict) and pod.get("hostNetwork") is True:
        return []
    ports = [item for item in _list(body.get("ports")) if isinstance(item, dict)]
    if not any(item.get("hostPort") for item in ports):
        return []
    return [
        {
            "target": item.get("containerPort"),
            "published": item.get("hostPort"),
            "host_ip": item.get("hostIP") or "",
            "protocol": str(item.get("protocol", "tcp")).lower(),
        }
        for item in ports
        if item.get("hostPort")
    ]


def _services(draft: Draft, documents: list[Any]) -> None:
    """Say which ports a Service beside the pod has; which of them clients use is not known."""
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != "Service":
            continue
        named, spec = document.get("metadata"), document.get("spec")
        name = named.get("name") if isinstance(named, dict) else None
        for item in _list(spec.get("ports") if isinstance(spec, dict) else None):
            if not isinstance(item, dict):
                continue
            node = f"node port {item['nodePort']}, " if item.get("nodePort") else ""
            target = item.get("targetPort", item.get("port"))
            draft.note(
                f"Service {name}: {node}port {item.get('port')} for the pod's {target}; "
                "set `port:` if that is what clients use"
            )


def _mounts(draft: Draft, body: dict[str, Any], pod: Any) -> None:
    """The container's volumeMounts with the pod's hostPath volumes."""
    volumes = {
        str(v.get("name")): v
        for v in _list(pod.get("volumes") if isinstance(pod, dict) else None)
        if isinstance(v, dict)
    }
    for item in _list(body.get("volumeMounts")):
        if not isinstance(item, dict) or not item.get("mountPath"):
            draft.note(f"volumeMounts: {plain(item)}")
            continue
        name = str(item.get("name"))
        found = volumes.get(name, {}).get("hostPath")
        source = found.get("path") if isinstance(found, dict) else None
        below = item.get("subPath")
        if source and below:
            source = f"{str(source).rstrip('/')}/{below}"
        if item.get("subPathExpr"):
            source = None
        draft.mounts.append(
            Mount(
                str(item["mountPath"]).rstrip("/") or "/",
                host_path(literal(str(source)), None) if source else None,
                "volumeMounts",
                plain(item),
                f"volume {name}",
            )
        )


def _environment(draft: Draft, body: dict[str, Any]) -> dict[str, str]:
    """The container's variables; returns the literal ones, for `$(NAME)`."""
    pairs: list[tuple[str, str]] = []
    known: dict[str, str] = {}
    sources: dict[str, Any] = {}
    entries = body.get("env")
    if isinstance(entries, dict):
        entries = [{"name": k, "value": v} for k, v in entries.items()]
    for entry in _list(entries):
        if not isinstance(entry, dict) or "name" not in entry:
            draft.note(f"env {plain(entry)}")
            continue
        name = str(entry["name"])
        if entry.get("valueFrom") is not None:
            sources[name] = entry["valueFrom"]
            pairs.append((name, "${" + name + "}"))
            source = entry["valueFrom"]
            where = next(iter(source), "valueFrom") if isinstance(source, dict) else "valueFrom"
            draft.note(f"env {name}: comes from {where}; the profile reads it from ${name}")
            continue
        raw = entry.get("value")
        value = render(_pieces("" if raw is None else _scalar(raw), known))
        pairs.append((name, value))
        literal = all(isinstance(p, Literal) for p in parse(value))
        if literal and not is_secret(name) and not looks_secret(value):
            known[name] = value
    if sources:
        draft.origin["env_sources"] = sources
    take_environment(draft, pairs)
    return known


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gpus(draft: Draft, body: dict[str, Any]) -> None:
    resources = body.get("resources")
    if not isinstance(resources, dict):
        return
    for part in ("limits", "requests"):
        values = resources.get(part)
        for key in _GPUS:
            if isinstance(values, dict) and isinstance(values.get(key), int | str):
                count = str(values[key])
                draft.origin["gpus"] = int(count) if count.isdecimal() else count
                return


def _words(value: Any, known: dict[str, str]) -> list[str]:
    return [render(_pieces(_scalar(item), known)) for item in _list(value)]


def _pieces(text: str, known: dict[str, str]) -> list[Piece]:
    """`$(NAME)` is filled in from the variables above it, `$$` is a dollar."""

    def refer(text: str, i: int) -> tuple[list[Piece], int] | None:
        match = _NAME.match(text, i)
        if match is None:
            return None
        name = match[1]
        return (list(parse(known[name])) if name in known else [Reference(name)]), match.end()

    return scanned(text, refer)


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _without(document: Any, path: Path | None) -> Any:
    """The document with the container's command, args, env and image taken out."""
    if path is None:
        return masked(document)
    if not path:
        return masked({k: v for k, v in document.items() if k not in _HANDLED})
    head, rest = path[0], path[1:]
    if isinstance(document, dict):
        return {
            k: _without(v, rest) if k == head else masked(v, (), str(k))
            for k, v in document.items()
        }
    return [_without(v, rest) if i == head else masked(v) for i, v in enumerate(document)]
