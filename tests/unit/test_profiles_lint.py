"""The lint as a whole: versions, order, places, the schema's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.lint import Finding, known, lint
from profiles.loading import ProfileStore
from profiles.model import Profile
from profiles.schema import Argument, ArgumentSchema, shipped


def of(args: dict[str, Any], env: dict[str, Any] | None = None, **how: Any) -> list[Finding]:
    target = how.pop("target", "0.33")
    return list(lint(Profile(name="x", model="m", args=args, env=env or {}), target, **how))


def rules(findings: list[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


@pytest.mark.parametrize("target", ["latest", "nightly", "0.1.dev1234", "0.23", "main", None])
def test_a_version_that_is_not_known_is_asked_for(target: str | None) -> None:
    found = of({"kv_transfer_config": {"kv_rank": 1}, "swap_space": 4}, target=target)
    assert rules(found) == ["gone-swap-space", "target-unknown"]
    assert "--target 0.33" in found[1].instead


def test_versions_as_people_and_wheels_write_them() -> None:
    for text in ("0.33", "v0.33.0", "0.33.1", "0.33.0+cpu", "0.33.0rc1", "0.33.1.dev3+gabc"):
        assert known(text) == (0, 33)


def test_a_newer_version_is_linted_as_far_as_rules_go() -> None:
    found = of({"sd_worker_cls": "x"}, target="0.40", current="0.40")
    assert rules(found) == ["sd-worker", "target-newer"]


def test_the_worst_comes_first() -> None:
    found = of(
        {"quantization": "gguf", "swap_space": 4, "disable_cascade_attn": True},
        {"VLLM_USE_V1": "1"},
    )
    order = [finding.severity for finding in found]
    assert order == sorted(order, key=["error", "fail", "note"].index)
    assert order[0] == "error"


def test_upgrading_tells_what_changes_in_between_only() -> None:
    up = rules(of({}, target="0.33", current="0.31"))
    assert "cors-default" in up
    assert "scale-out-default" not in up
    assert rules(of({}, target="0.33", current="0.33")) == []


def test_fatal_environment_validation_makes_lost_variables_fatal() -> None:
    args = {"fail_on_environ_validation": True}
    found = of(args, {"VLLM_USE_V1": "1", "VLLM_FOO": "1", "K_SCALE_CONSTANT": "1"}, current="0.33")
    assert [(f.key, f.severity) for f in found] == [
        ("env.VLLM_USE_V1", "fail"),
        ("env.VLLM_FOO", "fail"),
        ("env.K_SCALE_CONSTANT", "note"),
    ]


def test_a_named_rule_speaks_instead_of_no_such_argument() -> None:
    assert rules(of({"swap_space": 4}, current="0.33")) == ["gone-swap-space"]
    assert rules(of({"max_num_partial_prefills": 2}, target="0.26", current="0.26")) == []


def test_a_plugins_argument_in_the_runtimes_own_schema_is_known() -> None:
    mine = ArgumentSchema(
        "0.33.0", [*shipped().arguments.values(), Argument(name="zz_plugin", kind="int")]
    )
    stranger = of({"zz_plugin": 3}, current="0.33")
    assert [(f.rule, f.severity) for f in stranger] == [("argument-unknown", "note")]
    other = of({"qq_plugin": 3}, schema=mine, current="0.33")
    assert [(f.rule, f.severity) for f in other] == [("argument-unknown", "error")]
    assert of({"zz_plugin": 3}, schema=mine, current="0.33") == []
    assert rules(of({"zz_plugin": "x"}, schema=mine, current="0.33")) == ["argument-type"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_num_seqs": "1e3"}, "write 1000"),
        ({"max_num_seqs": 64.0}, "64.0 is not a whole number"),
        ({"max_num_seqs": True}, "true is not a value of type int"),
        ({"max_model_len": "1e3"}, "write 1000"),
        ({"max_model_len": "1.5K"}, "not a whole number, 32k"),
        ({"max_model_len": "32kb"}, "not a whole number"),
        ({"gpu_memory_utilization": "high"}, "is not a number"),
        ({"enable_prefix_caching": "no"}, "no is not true or false"),
        ({"enable_prefix_caching": 1}, "1 is not true or false"),
        ({"limit_mm_per_prompt": "image=4"}, "image=4 is not JSON"),
        ({"compilation_config": 3}, "3 is not JSON"),
        ({"cudagraph_capture_sizes": [1, "x"]}, "x is not a whole number"),
        ({"dtype": "bf16"}, "bf16 is none of auto, bfloat16"),
        ({"chat_template": {"a": 1}}, "is not text"),
    ],
)
def test_values_that_the_parser_refuses(args: dict[str, Any], words: str) -> None:
    errors = [f for f in of(args, current="0.33") if f.severity == "error"]
    assert len(errors) == 1
    assert words in errors[0].message


@pytest.mark.parametrize(
    "args",
    [
        {"max_model_len": "auto"},
        {"max_model_len": -1},
        {"max_num_batched_tokens": "1.5k"},
        {"safetensors_load_strategy": "None"},
        {"kv_transfer_config": '{"cpu_bytes_to_use": 80m}'},
        {"max_num_seqs": "${SEQS}"},
        {"dtype": "${DTYPE:-auto}"},
        {"max_lora_rank": 16},
        {"device_ids": [0]},
        {"middleware": ["a.B"]},
        {"hf_overrides": "pkg.function"},
        {"lora_modules": [{"name": "a", "path": "b"}, "c=d"]},
    ],
)
def test_values_that_the_parser_takes(args: dict[str, Any]) -> None:
    assert of(args, current="0.33") == []


def test_choices_of_another_version_are_not_judged() -> None:
    assert "argument-choice" not in rules(of({"mamba_cache_mode": "all"}, target="0.30"))


def test_findings_of_a_file_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: m\nargs:\n  -swap-space: 4\n")
    (tmp_path / "x.yaml").write_text("extends: base\nenv:\n  VLLM_USE_V1: 1\n")
    resolved = ProfileStore(tmp_path).load("x")
    found = {f.rule: f.place for f in lint(resolved, "0.33", current="0.33")}
    assert found == {
        "gone-swap-space": f"{tmp_path}/base.yaml:3",
        "env-use-v1": f"{tmp_path}/x.yaml:3",
    }
