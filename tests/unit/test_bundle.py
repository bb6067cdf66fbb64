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
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert SECRET.encode() not in redact(text.encode())


@pytest.mark.parametrize(
    "text", ["prompt tokens: 12345 tokens/s", "--max-num-batched-tokens 16384", "GPU 0 of 2"]
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
