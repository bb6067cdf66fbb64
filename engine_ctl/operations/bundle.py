"""A redacted archive of a run for a bug report: log, records, profile; secrets and home masked."""

from __future__ import annotations

import io
import re
import tarfile
import time
from pathlib import Path

from engine_ctl.errors import Failed
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.explain import read_log
from engine_ctl.operations.runs import run_of

MAX_LOG = 8 << 20
FILES = (
    "spec.json",
    "identity.json",
    "ready.json",
    "request.json",
    "exit.json",
    "memory.json",
    "facts.json",
    "forecast.json",
    "weights.json",
)
_SECRET = re.compile(
    rb"(?i)((?:api[-_]?key|access[-_]?key|account[-_]?key|private[-_]?key|token(?!s|iz|_id|_type)|secret|"
    rb"passw(?:or)?d|passphrase|credentials?|authorization|cookie)\w*[\"']?\s*[:=]\s*\[?[\"']?"
    rb"(?:(?:bearer|basic|token)\s+)?)([^\s\"',\]}]{4,})"
)
_SIGNED = re.compile(
    rb"(?i)([?&](?:sig|signature|key|token|x-(?:amz|goog)-[\w-]+|awsaccesskeyid)=)[^&\s\"']+"
)
_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_OPTION = re.compile(
    rb"(?i)(--[\w-]*(?:api-key|token|secret|password)(?:[\"']\s*,\s*|\s+)[\"']?)([^\s\"'-][^\s\"']{3,})"
)
_IN_URL = re.compile(rb"(://[^/\s:@]*:)[^@\s/]+@")
_KNOWN = re.compile(
    rb"\b(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[opsu]_[A-Za-z0-9]{16,}|"
    rb"github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{12,}|nvapi-[A-Za-z0-9_-]{12,}|"
    rb"AKIA[A-Z0-9]{12,}|xox[abps]-[A-Za-z0-9-]{8,}|"
    rb"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"
)


def redact(data: bytes) -> bytes:
    """Text without secrets and without the operator's home directory."""
    data = _BLOCK.sub(rb"-----\1 ****-----", data)
    data = _SECRET.sub(rb"\1****", data)
    data = _SIGNED.sub(rb"\1****", data)
    data = _OPTION.sub(rb"\1****", data)
    data = _IN_URL.sub(rb"\1****@", data)
    data = _KNOWN.sub(b"****", data)
    home = str(Path.home()).encode()
    return data.replace(home, b"~") if len(home) > 1 else data


def write_bundle(ctx: Context, unit: str, reference: str | None, out: Path) -> Path:
    """Write the archive (a directory gets `stoker-UNIT-RUN.tar.gz`); returns its path."""
    run = run_of(ctx, unit, reference)
    if out.is_dir():
        out = out / f"stoker-{unit}-{run.number}.tar.gz"
    log = read_log(run.log) if run.log.is_file() else b""
    if len(log) > MAX_LOG:
        log = log[: MAX_LOG // 2] + b"\n[... cut ...]\n" + log[-MAX_LOG // 2 :]
    parts = {"log": log}
    for name in FILES:
        path = run.dir / name
        if path.is_file():
            parts[name] = path.read_bytes().rstrip(b" \0\n") + b"\n"
    profile = snapshots.load(run)
    if profile is not None:
        from engine_ctl.operations.catalogue import yaml_text

        parts["profile.yaml"] = yaml_text(profile).encode()
    try:
        with tarfile.open(out, "w:gz") as archive:
            for name, data in parts.items():
                masked = redact(data)
                info = tarfile.TarInfo(f"stoker-{unit}-{run.number}/{name}")
                info.size, info.mtime, info.mode = len(masked), int(time.time()), 0o600
                archive.addfile(info, io.BytesIO(masked))
    except OSError as error:
        raise Failed(f"cannot write {out}: {error.strerror}") from None
    return out
