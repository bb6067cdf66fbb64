"""A file of recorded requests: JSON lines, as vLLM reads them, checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_ctl.errors import Usage
from engine_ctl.tune.settings import DEFAULT_OUTPUT, BenchSettings

SUFFIX = ".jsonl"  # vLLM goes by it


class Line(msgspec.Struct, frozen=True):
    """What counts of one request; other fields may stand beside."""

    prompt: str
    output_tokens: int | None = None


def lengths_known(path: Path) -> bool:
    """Whether every request says how many tokens its answer had. Raises Usage naming the first
    line that is no request."""
    if path.suffix != SUFFIX:
        raise Usage(f"{path}: recorded requests are read from a file called *{SUFFIX}")
    count, known = 0, True
    decoder = msgspec.json.Decoder(Line)
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    known = decoder.decode(text).output_tokens is not None and known
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise Usage(
                        f'{path} line {number} is no request like {{"prompt": "…"}}: {error}'
                    ) from None
                count += 1
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror or error}") from None
    if not count:
        raise Usage(f"{path} holds no request")
    return known


def with_lengths(made: BenchSettings) -> BenchSettings:
    """Settings of a recorded file: answers as long as recorded where no length was asked for, and
    of the usual length where the file does not say. Raises Usage for a file that is none."""
    known = lengths_known(Path(made.path or ""))
    if made.output_len is not None or "custom_output_len" in made.extra:
        return made
    if known:
        as_recorded = {"custom_output_len": -1, "ignore_eos": True}
        return msgspec.structs.replace(made, extra={**as_recorded, **made.extra})
    return msgspec.structs.replace(made, output_len=DEFAULT_OUTPUT)
