"""Command lines that the documents and the helps show can be typed, and TAB knows the names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from console.main import stoker
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("guide", "recipes", "weights", "profiles")),
)


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from commands(below, f"{path} {name}".strip())


def written(text: str) -> Iterator[str]:
    """`stoker …` lines of the indented blocks, continued lines joined, and those in backquotes
    that leave nothing to the reader."""
    for line in re.findall(r"`(stoker [^`…|]+)`", text):
        yield " ".join(line.split())
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^    |\| )((?:\.venv/bin/)?stoker .*)", line)
        if found and not line.startswith("| "):
            yield found[1].removeprefix(".venv/bin/")


def examples() -> Iterator[tuple[str, str]]:
    for name in DOCUMENTS:
        for line in written((ROOT / name).read_text()):
            yield name, line
    for path, command in commands(stoker):
        for line in (command.epilog or "").splitlines():
            if line.startswith("  stoker "):
                yield f"stoker {path} --help", line.strip()


EXAMPLES = list(examples())


def parse(line: str) -> None:
    """As click would before the command runs. Raises click.UsageError."""
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", "<", ">"):
        words = words[: words.index(end)] if end in words else words
    command: click.Command = stoker
    ctx = None
    while True:
        ctx = command.make_context(command.name, words, parent=ctx)
        words = [*ctx._protected_args, *ctx.args]
        if not isinstance(command, click.Group) or not words:
            return
        _, below, words = command.resolve_command(ctx, words)
        assert below is not None
        if not words:
            return  # A text speaks of the command.
        command = below


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 60
    assert {where for where, _ in EXAMPLES} >= set(DOCUMENTS)


@pytest.mark.parametrize(("where", "line"), EXAMPLES)
def test_an_example_can_be_typed(
    where: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in shlex.split(line):
        if word.endswith((".json", ".jsonl")):
            (tmp_path / word).touch()
    parse(line)


def test_an_example_that_cannot_be_typed_is_noticed() -> None:
    for line in ("stoker nonsense", "stoker swap a b c", "stoker bench a --nonsense 1"):
        with pytest.raises(click.UsageError):
            parse(line)


@pytest.mark.parametrize(("path", "command"), commands(stoker))
def test_no_help_is_cut_short(path: str, command: click.Command) -> None:
    ctx = click.Context(command, info_name=path, terminal_width=80)
    listed = command.get_help(ctx).partition("Commands:")[2]
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE), path


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return Dirs.from_env()


def offered(line: str) -> list[str]:
    """What TAB offers at the end of `stoker line`, of which the last word is being typed."""
    *words, typed = line.split(" ")
    found = ShellComplete(stoker, {}, "stoker", "_STOKER_COMPLETE").get_completions(words, typed)
    return [item.value for item in found if item.type == "plain"]


def test_tab_offers_the_names_that_there_are(dirs: Dirs) -> None:
    store = Context().store
    for unit in ("chat-8b", "chat-70b", "draft"):
        store.create(unit, Kind.ENGINE)
    dirs.profiles.mkdir(parents=True)
    (dirs.profiles / "mine.yaml").write_text("model: org/m\n")
    assert offered("logs chat-") == ["chat-70b", "chat-8b"]
    assert offered("stop draft ") == ["chat-70b", "chat-8b"]
    assert offered("swap draft mi") == ["mine"]
    assert "throughput" in offered("start new --profile ")
    assert offered("start m") == ["mine"]
    assert offered("profile remove ") == ["mine"]
    assert offered("profile diff mine unit:d") == ["unit:draft"]
    assert offered("live d") == ["draft"]
    assert "lora" in offered("live draft l")


def test_tab_says_nothing_where_nothing_can_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(blocked))
    assert offered("logs ") == []
    assert offered("runtime check ") == []
    assert offered("compare ") == []
