"""The tables of what vLLM hashes against the sources of the installed runtime, which are read, not
imported: `compute_hash` of its configuration and `compile_factors` of its environment."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from profiles.compile_key import COMPILED_GROUPS, NEUTRAL_ENVIRONMENT, compiles
from profiles.costs import FINGERPRINT
from profiles.schema import shipped
from tests.engine.conftest import CpuRuntime

pytestmark = pytest.mark.engine
VERSION = "0.32"
# Hashed by way of something else: see the comments of the tables.
ELSEWHERE = {
    "cpu_offload_gb", "cpu_offload_params", "enforce_eager", "hf_overrides", "ir_op_priority",
    "kv_cache_dtype", "attention_backend", "enable_return_routed_experts", "offload_params",
    "offload_group_size", "offload_num_in_group", "offload_prefetch_step",
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(cpu_runtime: CpuRuntime) -> Path:
    root = cpu_runtime.python.parent.parent
    return next(root.glob("lib/python3*/site-packages/vllm"))


def ignored(function: ast.AST) -> set[str] | None:
    for node in ast.walk(function):
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == "ignored_factors":
            return {str(item) for item in ast.literal_eval(node.value)}  # type: ignore[attr-defined]
    return set() if "get_hash_factors" in ast.unparse(function) else None


def hashed_fields(sources: Path) -> dict[str, tuple[set[str], set[str] | None]]:
    """Per class of the configuration: its fields, and those that are not hashed (None: the class
    names its factors one by one)."""
    found: dict[str, tuple[set[str], set[str] | None]] = {}
    for file in (sources / "config").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            fields = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "InitVar" not in ast.unparse(item.annotation)
            }
            hashes = [
                item
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name == "compute_hash"
            ]
            if hashes:
                found[node.name] = (fields, ignored(hashes[0]))
    return found


def test_arguments_that_compile_anew_are_those_that_vllm_hashes(sources: Path) -> None:
    classes = hashed_fields(sources)
    wrong = []
    for name, argument in shipped(VERSION).arguments.items():
        fields, left_out = classes.get(argument.group, (set(), None))
        if argument.group not in COMPILED_GROUPS or left_out is None or name in ELSEWHERE:
            continue
        hashed = name in fields and name not in left_out
        if hashed != compiles(name, argument):
            wrong.append((name, f"vLLM hashes it: {hashed}"))
    assert not wrong


def test_variables_that_are_not_hashed(sources: Path) -> None:
    tree = ast.parse((sources / "envs.py").read_text())
    factors = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "compile_factors"
    )
    assert (ignored(factors) or set()) <= NEUTRAL_ENVIRONMENT


def test_every_field_of_the_weights_key_has_an_argument(sources: Path) -> None:
    protocol = sources / "model_executor/model_loader/weight_cache/protocol.py"
    key = next(
        node
        for node in ast.parse(protocol.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "WeightCacheKey"
    )
    fields = {
        item.target.id
        for item in key.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    given = {
        word.strip()
        for words, since in FINGERPRINT.values()
        if since <= (0, 32)
        for word in words.split(" of ")[0].split(",")
    }
    assert fields - given == {"vllm_version", "is_draft"}
