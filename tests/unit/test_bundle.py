"""A bundle carries what a bug report needs, and no secret."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from engine_ctl.model import Kind
from engine_ctl.operations.bundle import redact, write_bundle
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec

SECRET = "Zq8vT3xLw9"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve m --api-key {SECRET} --port 1",
        f'["--api-key", "{SECRET}"]',
        f"non-default args: {{'api_key': ['{SECRET}'], 'port': 1}}",
        f"Authorization: Bearer {SECRET}",
        f'{{"HF_TOKEN": "{SECRET}"}}',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"proxy https://me:{SECRET}@proxy.example/x",
        f"vllm preload --seed-token '{SECRET}'",
        f"hf_{SECRET}",
        f"Authorization: Basic {SECRET}",
        f"'Cookie': 'session={SECRET}'",
        f"DB_PASSWD={SECRET}",
        f"https://bucket.example/m.safetensors?X-Amz-Signature={SECRET}&x=1",
        f"https://acc.blob.example/c?sv=2024&sig={SECRET}",
        f"AccountKey={SECRET};EndpointSuffix=x",
        f"GIT: ghp_{SECRET}{SECRET}",
        f"nvapi-{SECRET}{SECRET}",
        f"eyJ{SECRET}.{SECRET}.{SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert SECRET.encode() not in redact(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "prompt tokens: 12345 tokens/s",
        "--max-num-batched-tokens 16384",
        "GPU 0 of 2",
        "Resolved architecture: KeyeForConditionalGeneration",
        "tokenizer='org/model', tokenizer_mode=auto",
        "KeyError: 'model.layers.0.weight'",
        "WeightCacheKey(dtype=bfloat16, checkpoint=abcd)",
        "http://127.0.0.1:8000/v1/models?limit=10",
        "non-default args: {'max_model_len': 1000, 'hf_overrides': {'rope_theta': 2}}",
        "['num_tokens_no_spec', 'token_ids_gpu', 'hidden_states']",
        "['nvfp4_per_token', 'mxfp8', 'BertForTokenClassification', 'Clef']",
    ],
)
def test_figures_are_kept(text: str) -> None:
    assert redact(text.encode()) == text.encode()


def test_what_is_in_it(tmp_path: Path) -> None:
    ctx = Context(Dirs.from_env({"HOME": str(tmp_path)}), by="test")
    ctx.store.create("a", Kind.ENGINE, "p", "test")
    spec = RunSpec(unit="a", kind=Kind.ENGINE, argv=["vllm", "serve", "--api-key", SECRET])
    run = ctx.store.new_run(spec)
    ctx.store.set_current(run)
    run.log.write_text(f"args: --api-key {SECRET}\nsecond line\n")
    path = write_bundle(ctx, "a", None, tmp_path)
    with tarfile.open(path) as archive:
        names = {Path(name).name for name in archive.getnames()}
        data = b"".join(
            file.read() for m in archive if (file := archive.extractfile(m)) is not None
        )
    assert {"log", "spec.json"} <= names
    assert SECRET.encode() not in data and b"second line" in data
