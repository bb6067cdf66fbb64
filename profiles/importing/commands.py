"""Command lines and scripts: the engine that they start, its daemon, and all around it."""

from __future__ import annotations

import itertools
import re

from engine_ctl.errors import Usage
from profiles.importing.docker import import_run
from profiles.importing.draft import Draft, take_invocation
from profiles.importing.launching import Invocation
from profiles.importing.script import Evaluator, Script
from profiles.importing.secrets import scrub
from profiles.importing.variables import Variables

_POWERSHELL = re.compile(r"`[ \t]*$|\$env:\w|^\s*\$\w+\s*=\s|^\s*\$\w+\s*=\s*@\(", re.M | re.I)


def import_script(draft: Draft, text: str) -> None:
    """Read a shell text (POSIX, fish or PowerShell) into the draft."""
    carets = _carets(text)
    if carets and not re.search(r"\\[ \t]*\n", text):
        for begun, ended in reversed(carets):
            text = text[:begun] + " " + text[ended:]
        text = re.sub(r"%([A-Za-z_]\w*)%", r"${\1}", text)
    powershell = bool(_POWERSHELL.search(text)) and not re.search(r"\\[ \t]*$", text, re.M)
    scheduled = [m[1].strip() for m in re.finditer(r"^#(?:SBATCH|PBS|BSUB)\b(.*)$", text, re.M)]
    if scheduled:
        draft.origin["scheduler"] = scheduled
        draft.note(f"the cluster's scheduler: {scrub(' '.join(scheduled))}")
    evaluator = Evaluator(Variables(powershell))
    script = evaluator.run(_bare(text))
    draft.secrets |= script.secrets
    for note in script.notes:
        draft.note(note)
    engines = [found for found in script.invocations if found.what != "preload"]
    daemons = [found for found in script.invocations if found.what == "preload"]
    if not engines:
        number = daemons[0].line if daemons else _line(text)
        what = "only a `vllm preload` daemon" if daemons else "no `vllm serve` and no container"
        raise Usage(f"line {number}: {what} is started here")
    engine = engines[0]
    for other in engines[1:]:
        draft.note(f"line {other.line}: another engine is started; import it by itself")
    _surroundings(draft, script)
    if engine.what != "container":
        draft.env |= script.env
    files = script.files
    draft.read_config = lambda path: files.get(path.removeprefix("./"))
    if daemons:
        draft.preload_words = daemons[0].words
        draft.env |= {k: v for k, v in daemons[0].env.items() if k not in draft.env}
    _engine(draft, engine)


def _carets(text: str) -> list[tuple[int, int]]:
    """The line ends that cmd.exe continues, `^` before them; not those inside quotes."""
    out: list[tuple[int, int]] = []
    for match in re.finditer(r"'[^']*'|\"[^\"]*\"|\^[ \t]*\n", text):
        if match[0][0] == "^":
            out.append(match.span())
    return out


def _engine(draft: Draft, engine: Invocation) -> None:
    if engine.what == "container":
        words, program = engine.words, engine.program
        if engine.launcher:
            draft.origin["launcher"] = engine.launcher
        if engine.tail:
            draft.origin["tail"] = engine.tail
            draft.note(f"around the command: {engine.tail}")
        import_run(draft, words, program)
        return
    take_invocation(draft, engine)
    for target, source in _bound(engine.launcher):
        if any(word == target or f"{target}/" in word for word in engine.words):
            draft.note(f"{target} is {source} on this machine: write paths below it as that")


def _bound(launcher: list[str]) -> list[tuple[str, str]]:
    """(target, source) of the mounts that apptainer, singularity or Slurm's containers make."""
    given: list[str] = []
    for word, following in itertools.pairwise([*launcher, ""]):
        option, equals, value = word.partition("=")
        if option in ("--bind", "-B", "--mount", "--container-mounts"):
            given += (value if equals else following).split(",")
    pairs = [item.split(":") for item in given if item.startswith("/") and ":" in item]
    return [(pair[1].rstrip("/"), pair[0]) for pair in pairs if pair[0] != pair[1] and pair[1]]


def _surroundings(draft: Draft, script: Script) -> None:
    for key, texts in (("before", script.before), ("after", script.after)):
        kept = [scrub(text, draft.secrets) for text in texts]
        if kept:
            draft.origin[key] = kept
            for text in kept:
                draft.note(f"{key} the server: {' '.join(text.split())}")


def _bare(text: str) -> str:
    """A pasted terminal line without its prompt; a bare argument list with a command in front."""
    text = re.sub(
        r"^(\s*)(?:[\w.@~:/-]*[$%>#]|PS [^>\n]*>)[ \t]+(?=\S*(?:vllm|docker|podman|\w+=))",
        r"\1",
        text,
        flags=re.M,
    )
    if re.match(r"\s*-{1,2}[A-Za-z]", text) or (
        re.match(r"\s*[\w.-]+/[\w.-]+\s+-", text)
        and not re.search(r"\bvllm\s+serve\b", text)
        and not re.match(r"\s*\S*/(?:bin|opt|usr|home|venv)\S*", text)
        and "docker" not in text
        and "podman" not in text
        and "vllm" not in text.split()[0]
    ):
        return "vllm serve " + text.lstrip()
    return text


def _line(text: str) -> int:
    return next((n for n, row in enumerate(text.split("\n"), 1) if row.strip()), 1)
