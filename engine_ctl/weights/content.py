"""What vLLM's fingerprint does not see: whether the weight files still hold the same weights.

vLLM hashes the headers of safetensors files (names, types, shapes), so another checkpoint of the
same layout gets the same key and is served silently. Stoker keeps the identity of every weight
file at the daemon's start and compares it before an engine maps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_ctl.errors import Failed

SAMPLE_LIMIT = 64 << 20
EDGE = 8 << 20
PIECE = 1 << 20
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_INDEX_SUFFIX = ".index.json"


class FileIdentity(msgspec.Struct, frozen=True):
    """One weight file. `path` is resolved (symlinks into a hub cache followed), `size` bytes,
    `mtime_ns` nanoseconds since the epoch, `sample` a hash over at most 64 MB of the content."""

    name: str
    path: str
    size: int
    mtime_ns: int
    inode: int
    device: int
    sample: str


class ContentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a model's weights at one moment. `model` as the profile names it."""

    schema: int = 1
    model: str
    directory: str
    files: list[FileIdentity]


class Replaced(Failed):
    """A weight file changed while it was read."""


def sample_ranges(size: int, limit: int = SAMPLE_LIMIT) -> list[tuple[int, int]]:
    """(offset, length) of what is read of a file of `size` bytes: all of a small one; of a large
    one head, tail and pieces at even distances. The same size gives the same ranges."""
    if size <= limit:
        return [(0, size)] if size else []
    count = (limit - 2 * EDGE) // PIECE
    inner = size - 2 * EDGE
    step = inner // count
    pieces = [(EDGE + i * step, PIECE) for i in range(count)]
    return [(0, EDGE), *pieces, (size - EDGE, EDGE)]


def weight_files(directory: Path) -> list[Path]:
    """Weight files and their index in a model directory, sorted; safetensors alone when there
    are any, as vLLM prefers them. Raises Failed when it cannot be read."""
    try:
        entries = sorted(p for p in directory.iterdir() if p.is_file())
    except OSError as error:
        raise Failed(f"{directory} cannot be read: {error.strerror}") from None
    weights = [p for p in entries if p.suffix == ".safetensors"]
    if not weights:
        weights = [p for p in entries if p.suffix in WEIGHT_SUFFIXES]
    return sorted([*weights, *(p for p in entries if p.name.endswith(_INDEX_SUFFIX))])


def record(model: str, directory: Path, known: ContentRecord | None = None) -> ContentRecord:
    """Identify the weights in `directory`. Files whose size, times and inode are those of
    `known` are not read again.

    Raises Failed when there are none, Replaced when one changes while it is read."""
    files = weight_files(directory)
    if not files:
        raise Failed(f"{directory} has no weight files")
    old = {f.path: f for f in known.files} if known is not None else {}
    return ContentRecord(
        model=model,
        directory=str(directory.resolve()),
        files=[_identify(path, old) for path in files],
    )


def _identify(path: Path, known: dict[str, FileIdentity]) -> FileIdentity:
    try:
        resolved = path.resolve(strict=True)
        with resolved.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            earlier = known.get(str(resolved))
            if earlier is not None and _same_stat(earlier, before):
                sample = earlier.sample
            else:
                sample = _sample(file.fileno(), before.st_size)
            after = os.stat(resolved)
    except FileNotFoundError:
        raise Replaced(f"{path} vanished while it was read; is it being replaced?") from None
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    if (before.st_ino, before.st_size, before.st_mtime_ns) != (
        after.st_ino,
        after.st_size,
        after.st_mtime_ns,
    ):
        raise Replaced(f"{path} changed while it was read; wait until the copy is complete")
    return FileIdentity(
        name=path.name,
        path=str(resolved),
        size=before.st_size,
        mtime_ns=before.st_mtime_ns,
        inode=before.st_ino,
        device=before.st_dev,
        sample=sample,
    )


def _same_stat(known: FileIdentity, info: os.stat_result) -> bool:
    return (known.size, known.mtime_ns, known.inode, known.device) == (
        info.st_size,
        info.st_mtime_ns,
        info.st_ino,
        info.st_dev,
    )


def _sample(fd: int, size: int) -> str:
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    for offset, length in sample_ranges(size):
        done = 0
        while done < length:
            chunk = os.pread(fd, min(PIECE, length - done), offset + done)
            if not chunk:
                break
            digest.update(chunk)
            done += len(chunk)
    return digest.hexdigest()


def differences(daemon: ContentRecord, now: ContentRecord) -> tuple[str, ...]:
    """How the weights `now` differ from what the daemon loaded, one line a file; () when they are
    the same. A copy elsewhere with the same content is the same."""
    old = {f.name: f for f in daemon.files}
    new = {f.name: f for f in now.files}
    lines = [f"{name} is gone" for name in old if name not in new]
    lines += [f"{name} is new" for name in new if name not in old]
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            continue
        if after.size != before.size:
            lines.append(f"{name} has {after.size} bytes, the daemon loaded {before.size}")
        elif after.sample != before.sample:
            where = "" if after.path == before.path else f" ({after.path})"
            lines.append(f"{name} has other content than the daemon loaded{where}")
    return tuple(lines)


def needs_reading(daemon: ContentRecord, directory: Path) -> bool:
    """False when a look at the metadata alone shows that nothing changed (no file is read)."""
    try:
        files = weight_files(directory)
        known = {f.path: f for f in daemon.files}
        return len(files) != len(daemon.files) or any(
            (old := known.get(str(path.resolve(strict=True)))) is None
            or not _same_stat(old, path.stat())
            for path in files
        )
    except (OSError, Failed):
        return True


def model_directory(model: str, revision: str | None, env: Mapping[str, str]) -> Path | None:
    """The directory of a model's weights on this machine: the path itself, or the snapshot of a
    hub repository in the cache that `env` points at. None when it is not here."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if "/" not in model or model.startswith(("/", ".")):
        return None
    home = env.get("HF_HOME") or os.path.join(
        env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    hub = Path(env.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    repository = hub / ("models--" + model.replace("/", "--"))
    wanted = revision or "main"
    try:
        commit = (repository / "refs" / wanted).read_text().strip()
    except OSError:
        commit = wanted
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None
