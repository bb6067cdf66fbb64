"""What differs, what it costs, and the effective view with its masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.diff import Change, cost, diff
from profiles.effective import effective, mask_argv
from profiles.loading import ProfileStore
from profiles.model import EnvRef, Preload, Profile, Restart
from profiles.schema import shipped


def profile(args: dict[str, Any] | None = None, **fields: Any) -> Profile:
    return Profile(**{"name": "x", "model": "org/m", "args": args or {}, **fields})


def only(before: Profile, after: Profile, version: str = "0.33") -> Change:
    changes = diff(before, after, shipped(version))
    assert len(changes) == 1, changes
    return changes[0]


def test_the_same_said_differently_is_no_change() -> None:
    assert (
        diff(
            profile(
                {
                    "gpu_memory_utilization": 0.90,
                    "max-model-len": "32k",
                    "-tp": 2,
                    "compilation_config": {"a": 1, "b": [2]},
                    "no_enable_prefix_caching": True,
                    "port_unknown": 1,
                }
            ),
            profile(
                {
                    "enable_prefix_caching": False,
                    "compilation-config": '{"b": [2], "a": 1}',
                    "tensor_parallel_size": "2",
                    "max_model_len": 32000,
                    "gpu_memory_utilization": ".9",
                    "port_unknown": "1",
                }
            ),
        )
        == ()
    )


def test_vllms_default_said_or_not_said_is_no_change() -> None:
    assert diff(profile(), profile({"tensor_parallel_size": 1})) == ()


@pytest.mark.parametrize(
    ("before", "after", "key", "price", "miss"),
    [
        ({"max_num_seqs": 64}, {"max_num_seqs": 128}, "args.max_num_seqs", "restart", True),
        ({}, {"gpu_memory_utilization": 0.8}, "args.gpu_memory_utilization", "restart", False),
        ({}, {"enable_prefix_caching": False}, "args.enable_prefix_caching", "restart", False),
        ({}, {"max_num_batched_tokens": "16K"}, "args.max_num_batched_tokens", "restart", True),
        ({}, {"max_model_len": 4096}, "args.max_model_len", "restart", True),
        ({}, {"max_loras": 2}, "args.max_loras", "restart", True),
        ({}, {"tool_call_parser": "hermes"}, "args.tool_call_parser", "restart", False),
        ({}, {"tensor_parallel_size": 2}, "args.tensor_parallel_size", "reload", True),
        ({}, {"dtype": "float16"}, "args.dtype", "reload", True),
        ({}, {"quantization": "fp8_per_tensor"}, "args.quantization", "reload", True),
        ({}, {"revision": "v2"}, "args.revision", "reload", True),
        ({}, {"kv_cache_dtype": "fp8"}, "args.kv_cache_dtype", "reload", True),
        ({}, {"moe_backend": "marlin"}, "args.moe_backend", "reload", True),
        (
            {"compilation_config": {"mode": 3, "a": 1}},
            {"compilation_config": {"mode": 2, "a": 1}},
            "args.compilation_config.mode",
            "restart",
            True,
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
            "args.speculative_config.num_speculative_tokens",
            "restart",
            True,
        ),
        (
            {"speculative_config": {"model": "a"}},
            {"speculative_config": {"model": "b"}},
            "args.speculative_config.model",
            "reload",
            True,
        ),
    ],
)
def test_the_cost_of_an_argument(
    before: dict[str, Any], after: dict[str, Any], key: str, price: str, miss: bool
) -> None:
    change = only(profile(before), profile(after))
    assert (change.key, change.cost, change.compile_miss) == (key, price, miss)


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
DRAFT = {"model": "a", "num_speculative_tokens": 3}
CONNECTOR = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("before", "after", "key", "price", "miss"),
    [
        # Not hashed into the compile cache's key, or only as a whole.
        ({"device_ids": "0"}, {"device_ids": "1"}, "device_ids", "reload", False),
        ({}, {"data_parallel_multi_port_external_lb": True}, None, "restart", False),
        ({}, {"enable_lora": True, "specialize_active_lora": True}, None, "restart", True),
        (
            {"enable_lora": True},
            {"enable_lora": True, "specialize_active_lora": True},
            "specialize_active_lora",
            "restart",
            False,
        ),
        (
            {"kv_transfer_config": CONNECTOR},
            {"kv_transfer_config": {**CONNECTOR, "kv_role": "kv_producer"}},
            "kv_transfer_config.kv_role",
            "restart",
            False,
        ),
        (
            {"kv_transfer_config": CONNECTOR},
            {"kv_transfer_config": {**CONNECTOR, "kv_connector": "X"}},
            "kv_transfer_config.kv_connector",
            "restart",
            True,
        ),
        (
            {},
            {"kv_transfer_config": {"kv_role": "kv_both"}},
            "kv_transfer_config.kv_role",
            "restart",
            True,
        ),
        (
            {"kernel_config": {"a": 1}},
            {"kernel_config": {"a": 1, "enable_jit_warmup": False}},
            "kernel_config.enable_jit_warmup",
            "restart",
            False,
        ),
        (
            {"compilation_config": {"a": 1}},
            {"compilation_config": {"a": 1, "debug_dump_path": "/d"}},
            "compilation_config.debug_dump_path",
            "restart",
            False,
        ),
        (
            {"compilation_config": {"a": 1}},
            {"compilation_config": {"a": 1, "cache_dir": "/d"}},
            "compilation_config.cache_dir",
            "restart",
            True,
        ),
        (
            {"speculative_config": NGRAM},
            {"speculative_config": {**NGRAM, "prompt_lookup_max": 9}},
            "speculative_config.prompt_lookup_max",
            "restart",
            False,
        ),
        # Hashed by way of something else.
        ({}, {"performance_mode": "throughput"}, None, "restart", True),
        ({}, {"gdn_prefill_backend": "triton"}, None, "restart", True),
        ({}, {"kda_decode_backend": "triton"}, None, "restart", True),
        ({}, {"engram_config": {"a": 1}}, "engram_config.a", "restart", True),
        ({}, {"async_scheduling": False}, None, "restart", True),
        ({}, {"video_pruning_rate": 0.5}, None, "restart", True),
        ({}, {"enable_chunked_prefill": False}, None, "restart", True),
        (
            {"max_num_batched_tokens": 64},
            {"max_num_batched_tokens": 64, "enable_chunked_prefill": False},
            "enable_chunked_prefill",
            "restart",
            False,
        ),
        # Whether anything is compiled.
        ({"enforce_eager": True}, {}, "enforce_eager", "restart", True),
        ({}, {"enforce_eager": True}, "enforce_eager", "restart", False),
        ({"optimization_level": 0}, {}, "optimization_level", "restart", True),
        ({}, {"optimization_level": 0}, "optimization_level", "restart", False),
        ({}, {"compilation_config": {"mode": "none"}}, "compilation_config.mode", "restart", False),
        # The weights' key.
        ({}, {"node_rank": 1}, None, "reload", False),
        ({}, {"nnodes": 2}, None, "reload", False),
        ({}, {"data_parallel_start_rank": 1}, None, "reload", False),
        ({}, {"hf_overrides": {"foo": 1}}, "hf_overrides.foo", "restart", True),
        (
            {},
            {"hf_overrides": {"architectures": ["A"]}},
            "hf_overrides.architectures",
            "reload",
            True,
        ),
        (
            {},
            {"hf_overrides": {"text_config": {"rope_theta": 1}}},
            "hf_overrides.text_config",
            "reload",
            True,
        ),
        ({}, {"hf_overrides": "module:function"}, "hf_overrides", "reload", True),
        (
            {"speculative_config": DRAFT},
            {"speculative_config": {**DRAFT, "draft_tensor_parallel_size": 2}},
            "speculative_config.draft_tensor_parallel_size",
            "reload",
            True,
        ),
        (
            {"speculative_config": DRAFT},
            {"speculative_config": {**DRAFT, "moe_backend": "x"}},
            "speculative_config.moe_backend",
            "reload",
            True,
        ),
        ({}, {"config": "/other.yaml"}, None, "reload", False),
    ],
)
def test_what_vllm_hashes(
    before: dict[str, Any], after: dict[str, Any], key: str | None, price: str, miss: bool
) -> None:
    changes = diff(profile(before), profile(after))
    name = key or next(iter(after))
    change = next(c for c in changes if c.key.startswith(f"args.{name}"))
    assert (change.cost, change.compile_miss) == (price, miss)


def test_rope_is_in_the_weights_key_from_0_33_on() -> None:
    after = profile({"hf_overrides": {"rope_theta": 2}})
    assert only(profile(), after, "0.32").cost == "restart"
    assert only(profile(), after, "0.33").cost == "reload"


@pytest.mark.parametrize(
    ("name", "price", "miss"),
    [
        ("VLLM_CACHE_ROOT", "restart", True),
        ("VLLM_USE_DEEP_GEMM", "restart", True),
        ("VLLM_LOGGING_LEVEL", "restart", False),
        ("VLLM_HOST_IP", "restart", False),
        ("VLLM_ENABLE_STARTUP_PLAN", "restart", False),
        ("VLLM_NOT_KNOWN_TO_VLLM", "restart", False),
        ("HF_HOME", "restart", False),
        ("CUDA_VISIBLE_DEVICES", "reload", False),
        ("CUDA_DEVICE_ORDER", "reload", False),
    ],
)
def test_the_cost_of_a_variable(name: str, price: str, miss: bool) -> None:
    change = only(profile(), profile(env={name: "1"}))
    assert (change.cost, change.compile_miss) == (price, miss)


@pytest.mark.parametrize(
    ("change", "key", "price"),
    [
        ({"args": {"tensor_parallel_size": 2}}, "preload.args.tensor_parallel_size", "reload"),
        ({"args": {"gpu_memory_utilization": 0.5}}, "preload.args.gpu_memory_utilization", "live"),
        ({"health_port": 9301}, "preload.health_port", "live"),
        ({"seed_token": EnvRef(from_env="T")}, "preload.seed_token", "live"),
        ({"fallback": False}, "preload.fallback", "restart"),
    ],
)
def test_a_daemon_is_used_again_by_its_weights_alone(
    change: dict[str, Any], key: str, price: str
) -> None:
    found = only(profile(preload=Preload()), profile(preload=Preload(**change)))
    assert (found.key, found.cost) == (key, price)
    assert (found.note == "from the daemon's next start on") == (price == "live")


def test_what_a_daemon_loads_by_is_said_to_stay() -> None:
    before, after = (profile(a, preload=Preload()) for a in ({}, {"load_format": "dummy"}))
    assert "stop it first" in only(before, after).note
    assert only(profile(), profile({"load_format": "dummy"})).note == ""


EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("before", "after", "price"),
    [
        ({}, {"speculative_config": NGRAM}, "restart"),
        ({}, {"speculative_config": '{"method": "ngram", "prompt_lookup_max": 4}'}, "restart"),
        ({}, {"speculative_config": {"model": "[ngram]"}}, "restart"),
        ({"speculative_config": NGRAM}, {"speculative_config": {"method": "suffix"}}, "restart"),
        ({}, {"spec_method": "ngram"}, "restart"),
        ({}, {"speculative_config": EAGLE}, "reload"),
        ({}, {"speculative_config": {"method": "mtp"}}, "reload"),
        ({"speculative_config": EAGLE}, {}, "reload"),
        ({"speculative_config": NGRAM}, {"speculative_config": EAGLE}, "reload"),
        ({}, {"spec_model": "org/draft"}, "reload"),
    ],
)
def test_speculation_costs_a_load_only_where_a_draft_has_weights(
    before: dict[str, Any], after: dict[str, Any], price: str
) -> None:
    changes = diff(profile(before), profile(after))
    assert changes and cost(changes) == price


def test_the_weights_key_grew_in_0_33() -> None:
    after = profile({"kv_cache_dtype": "fp8"})
    assert only(profile(), after, "0.32").cost == "restart"
    assert only(profile(), after, "0.33").cost == "reload"


def test_nothing_is_compiled_without_compilation() -> None:
    eager = {"enforce_eager": True}
    assert not only(profile(eager), profile({**eager, "max_num_seqs": 8})).compile_miss


@pytest.mark.parametrize(
    ("before", "after", "key", "price"),
    [
        ({}, {"runtime": "vllm-0.33"}, "runtime", "new runtime"),
        ({}, {"model": "org/n"}, "model", "reload"),
        ({"gpus": (0,)}, {"gpus": (1,)}, "gpus", "reload"),
        ({}, {"port": 8001}, "port", "restart"),
        ({}, {"served_name": ("a",)}, "served_name", "restart"),
        ({}, {"notes": "x"}, "notes", "live"),
        ({}, {"front": True}, "front", "restart"),
        ({}, {"standby": False}, "standby", "live"),
        ({}, {"ready_timeout_s": 60.0}, "ready_timeout_s", "live"),
        ({}, {"restart": Restart(policy="always")}, "restart.policy", "live"),
        ({}, {"preload": Preload()}, "preload", "reload"),
        ({"preload": Preload()}, {"preload": Preload(mode="copy")}, "preload.mode", "restart"),
        (
            {"preload": Preload()},
            {"preload": Preload(args={"dtype": "half"})},
            "preload.args.dtype",
            "reload",
        ),
        ({"preload": Preload()}, {"preload": Preload(socket_dir="/s")}, "preload.socket_dir", None),
        ({}, {"env": {"VLLM_CACHE_ROOT": "/c"}}, "env.VLLM_CACHE_ROOT", "restart"),
    ],
)
def test_the_cost_of_other_keys(
    before: dict[str, Any], after: dict[str, Any], key: str, price: str | None
) -> None:
    change = only(profile(**before), profile(**after))
    assert (change.key, change.cost) == (key, price or "reload")


def test_dearest_first_and_the_whole_cost() -> None:
    changes = diff(profile(), profile({"max_num_seqs": 8, "dtype": "half"}, notes="x"))
    assert [change.cost for change in changes] == ["reload", "restart", "live"]
    assert cost(changes) == "reload"
    assert cost(()) is None


def test_secrets_do_not_show() -> None:
    before = profile({"api_key": ["sk-old"]}, env={"HF_TOKEN": "hf_old"})
    after = profile(
        {"api_key": ["sk-new"], "watermark_config": {"key": 12345, "alpha": 0.2}},
        env={"HF_TOKEN": EnvRef(from_env="MINE")},
    )
    text = str(diff(before, after))
    for secret in ("sk-old", "sk-new", "hf_old", "12345"):
        assert secret not in text
    assert "from env MINE" in text


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    (tmp_path / "base.yaml").write_text(
        "model: org/m\nargs:\n  max_num_seqs: 64\nenv:\n  A: 1\n  HF_TOKEN: {from_env: MINE}\n"
    )
    (tmp_path / "x.yaml").write_text(
        'extends: base\nport: 8001\nargs:\n  api_key: "sk-secret1"\n'
        "  watermark_config: {key: 98765}\n  plugin_x: 1\npreload:\n  health_port: 9300\n"
    )
    return ProfileStore(tmp_path)


def test_the_effective_view_names_every_origin(store: ProfileStore) -> None:
    view = effective(store.load("x"), shipped())
    rows = {row.key: row for row in view.rows}
    assert rows["args.max_num_seqs"].origin.endswith("base.yaml:3")
    assert rows["args.load_format"].value == "ipc_cache"
    assert rows["args.load_format"].origin == "Stoker"
    assert rows["args.block_size"].origin == "vLLM's default"
    assert not rows["args.block_size"].given
    assert rows["args.gpu_memory_utilization"].value == 0.92
    assert rows["port"].origin.endswith("x.yaml:2")
    assert rows["env.HF_TOKEN"].value == "from env MINE"
    assert rows["preload.health_port"].origin.endswith("x.yaml:8")
    assert rows["preload.mode"].origin == "Stoker"


def test_its_json_has_the_promised_fields_and_no_secret(store: ProfileStore) -> None:
    document = effective(store.load("x")).to_json()
    text = json.dumps(document)
    assert "sk-secret1" not in text
    assert "98765" not in text
    assert {"profile", "argv", "env", "provenance"} <= set(document)
    assert document["argv"][:3] == ["vllm", "serve", "org/m"]
    assert document["argv"][document["argv"].index("--api-key") + 1] == "****"
    assert document["preload_argv"][:2] == ["vllm", "preload"]
    assert document["env"] == {"A": "1", "HF_TOKEN": "from env MINE"}
    assert document["provenance"]["args.max_num_seqs"]["line"] == 3
    assert document["unknown"] == ["plugin_x"]


def test_a_profile_without_a_model_is_still_shown(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("args: {max_num_seqs: 8}\n")
    view = effective(ProfileStore(tmp_path).load("x"))
    assert view.argv is None
    assert "names no model" in view.problem
    assert view.to_json()["argv"] is None


def test_command_lines_are_masked() -> None:
    argv = ["--api-key", "a", "b", "--port", "1", "--hf-token=c", "--api-key", "${K}"]
    assert mask_argv(argv) == (
        *("--api-key", "****", "****", "--port", "1"),
        *("--hf-token=****", "--api-key", "${K}"),
    )
    assert mask_argv(["--watermark-config", '{"key": "1", "alpha": 1}']) == (
        "--watermark-config",
        '{"key": "****", "alpha": 1}',
    )
    connector = '{"kv_connector_extra_config": {"password": "x", "port": 1}, "kv_role": "both"}'
    assert mask_argv(["--kv-transfer-config", connector]) == (
        "--kv-transfer-config",
        '{"kv_connector_extra_config": {"password": "****", "port": 1}, "kv_role": "both"}',
    )


def test_passwords_in_urls_are_masked(tmp_path: Path) -> None:
    text = """\
model: org/m
args: {plugin_url: "redis://:quux1@kv:6379/0", kv_transfer_config: {url: "tcp://a:quux2@h"}}
env: {HTTPS_PROXY: "http://me:quux3@proxy:3128", NO_PROXY: "http://plain:8080/a@b"}
"""
    (tmp_path / "x.yaml").write_text(text)
    (tmp_path / "y.yaml").write_text("model: org/m\n")
    store = ProfileStore(tmp_path)
    view = effective(store.load("x"))
    shown = json.dumps(view.to_json()) + str(view.rows) + str(view.argv)
    shown += str(diff(store.load("x").profile, store.load("y").profile, shipped()))
    assert "quux" not in shown
    assert view.env == {
        "HTTPS_PROXY": "http://me:****@proxy:3128",
        "NO_PROXY": "http://plain:8080/a@b",
    }
