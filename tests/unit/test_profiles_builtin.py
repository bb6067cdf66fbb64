"""The built-in profiles: each resolves, lints clean for its versions, and parses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from profiles.argv import environment, expanded, preload_argv, serve_argv
from profiles.lint import lint
from profiles.loading import BUILTIN, ProfileStore, Resolved
from profiles.schema import shipped
from profiles.values import same
from tests.unit.test_profiles_argv import build

STORE = ProfileStore(Path("/nonexistent"))
ENV = {"TEXT_WATERMARK_KEY": "42", "HEAD_ADDRESS": "10.0.0.1"}
EXPECTED = {
    "chat",
    "data-parallel",
    "decode",
    "demo",
    "embedding",
    "fast-iteration",
    "fp8",
    "hisparse",
    "kv-offload",
    "long-context",
    "lora",
    "moe",
    "multi-node-head",
    "multi-node-worker",
    "multimodal",
    "nvfp4",
    "prefill",
    "spec-draft",
    "spec-eagle3",
    "spec-mtp",
    "spec-ngram",
    "structured-output",
    "tensor-parallel",
    "throughput",
    "watermark",
}


def versions(resolved: Resolved) -> list[str]:
    return [tag.split()[1] for tag in resolved.profile.tags if tag.startswith("vllm ")]


def test_all_of_them_are_there() -> None:
    assert set(STORE.names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_lints_clean_and_parses_for_its_versions(name: str) -> None:
    resolved = STORE.load(name)
    assert resolved.unknown == ()
    assert resolved.profile.notes
    assert versions(resolved)
    for version in versions(resolved):
        assert lint(resolved, version, current=version) == (), version
        schema = shipped(version)
        profile = expanded(resolved.profile, ENV)
        if not profile.model:
            profile = msgspec.structs.replace(profile, model="org/m")
        got = vars(build(schema, "serve").parse_args(serve_argv(profile, schema)))
        for key, value in profile.args.items():
            if key == "load_format" or (value is False and schema.arguments[key].kind == "switch"):
                continue
            assert same(got[key], value, schema.arguments[key]), key
        if profile.preload is not None:
            assert preload_argv(profile, schema)[:2] == ["preload", "--model"]


@pytest.mark.parametrize("path", sorted(BUILTIN.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_is_small_and_explained(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110


def test_the_watermark_key_stays_in_the_environment() -> None:
    profile = STORE.load("watermark").profile
    assert "42" not in str(serve_argv(profile))
    assert '"key":"42"' in serve_argv(expanded(profile, ENV))[-1].replace(" ", "")


def test_the_nodes_of_multi_node_differ_in_rank_only() -> None:
    head, worker = STORE.load("multi-node-head").profile, STORE.load("multi-node-worker").profile
    assert head.args["node_rank"] == 0
    different = {key for key in worker.args if head.args.get(key) != worker.args[key]}
    assert different == {"node_rank", "headless"}


def test_the_demo_is_small_on_a_cpu() -> None:
    profile = STORE.load("demo").profile
    assert profile.args["enforce_eager"] is True
    assert profile.args["max_model_len"] == 1024
    assert environment(profile)[0] == {"VLLM_CPU_KVCACHE_SPACE": "1"}
