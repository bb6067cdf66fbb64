"""Ports of a pod: what the node serves is the profile's, what a Service has is said."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from profiles.exporting import export_profile
from profiles.importing import document, import_profile

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    metadata: {labels: {app: chat}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: [vllm, serve, acme/chat]
        args: [--max-num-seqs, "8"]
        ports:
        - {containerPort: 8000, hostPort: 9000, hostIP: 127.0.0.1, name: http}
        - {containerPort: 5557}
        readinessProbe: {httpGet: {path: /health, port: 8000}}
---
apiVersion: v1
kind: Service
metadata: {name: chat}
spec:
  type: NodePort
  selector: {app: chat}
  ports: [{port: 80, targetPort: http, nodePort: 30080}]
"""


def test_a_host_port_is_the_profiles_and_a_service_is_said() -> None:
    found = import_profile(MANIFEST)
    assert (found.profile.host, found.profile.port) == ("127.0.0.1", 9000)
    assert any("port 9000" in text for text in found.notes)
    said = [text for text in found.unrepresented if text.startswith("Service chat")]
    assert len(said) == 1
    assert "node port 30080, port 80 for the pod's http" in said[0]
    assert not any(text.startswith("ports:") for text in found.unrepresented)


@pytest.mark.parametrize("port", [9000, 9001, None])
def test_written_again_the_container_keeps_its_own_port(port: int | None) -> None:
    profile = msgspec.structs.replace(import_profile(MANIFEST).profile, port=port)
    text = export_profile(profile, "kubernetes")
    container = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][container["args"].index("--port") + 1] == "8000"
    served = {"containerPort": 8000, "hostPort": port or 8000, "hostIP": "127.0.0.1"}
    assert container["ports"] == [{**served, "name": "http"}, {"containerPort": 5557}]
    assert document(import_profile(text).profile) == document(profile)


@pytest.mark.parametrize(
    ("old", "new", "port"),
    [
        ("hostPort: 9000", "hostPort: 9000, protocol: UDP", None),
        ("containerPort: 8000", "containerPort: 8001", None),
        (
            "    spec:\n      containers",
            "    spec:\n      hostNetwork: true\n      containers",
            None,
        ),
        ("hostPort: 9000, hostIP: 127.0.0.1, ", "", None),
        ('"8"]', '"8", --port, "8005"]', 8005),
    ],
)
def test_a_host_port_of_something_else_is_not_the_engines(
    old: str, new: str, port: int | None
) -> None:
    found = import_profile(MANIFEST.replace(old, new))
    assert found.profile.port == port
    assert found.profile.host == "0.0.0.0"
    assert any(text.startswith("ports: ") for text in found.unrepresented)
