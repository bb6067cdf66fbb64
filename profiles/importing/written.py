"""The files that a script writes before it starts an engine: here-documents and `echo`."""

from __future__ import annotations

import itertools
import re

from profiles.importing.references import Literal, render
from profiles.importing.shellwords import Redirect, Statement, statements
from profiles.importing.variables import Variables, file_name


def write_file(statement: Statement, known: Variables) -> None:
    """Note what one statement writes: `cat > FILE <<EOF`, `tee FILE <<EOF`, `echo … > FILE`."""
    content: str | None = None
    target: str | None = None
    append = False
    for redirect in statement.redirects:
        if redirect.content is not None:
            content = _document(redirect, known)
        elif redirect.op in (">", ">>", ">|", "1>"):
            target = "".join(known.words(redirect.target))
            append = redirect.op == ">>"
    head = statement.words[0].bare if statement.words else None
    if content is not None and target is None and head in ("tee", "sudo"):
        named = [f for w in statement.words[1:] for f in known.words(w)]
        named = [w for w in named if not w.startswith("-") and w != "tee"]
        target = named[0] if named else None
    if content is None and target and head in ("echo", "printf"):
        words = [f for w in statement.words[1:] for f in known.words(w)]
        content = _echoed(words) if head == "echo" else _printed(words)
    path = file_name(target or "")
    if content is None:
        known.files.pop(path, None)  # what is in it by now only a shell knows
    elif target:
        before = known.files.get(path, "") if append else ""
        known.files[path] = before + content


def _echoed(words: list[str]) -> str | None:
    """What `echo` writes; None where that depends on the shell."""
    options = list(itertools.takewhile(re.compile(r"-[neE]+\Z").match, words))
    given = " ".join(words[len(options) :])
    if "\\" in given and "e" in "".join(options):
        return None
    return given if "n" in "".join(options) else given + "\n"


def _printed(words: list[str]) -> str | None:
    """What `printf` writes: texts as they are, and one word by `%s`; None for more than that."""
    text = words[0].replace("\\n", "\n") if words else ""
    if len(words) == 2 and text in ("%s", "%s\n"):
        return text.replace("%s", words[1])
    return text if len(words) == 1 and "%" not in text and "\\" not in text else None


def write_piped(group: list[Statement], known: Variables) -> None:
    """`cat <<EOF | tee FILE`: the document goes into the file."""
    for first, second in itertools.pairwise(group):
        document = next((r for r in first.redirects if r.content is not None), None)
        named = [f for w in second.words for f in known.words(w)]
        if document is None or "tee" not in named[:2]:
            continue
        paths = [w for w in named if not w.startswith("-") and w not in ("sudo", "tee")]
        if paths:
            known.files[file_name(paths[0])] = _document(document, known)
            first.understood = second.understood = True


def _document(redirect: Redirect, known: Variables) -> str:
    content = redirect.content or ""
    if not redirect.expands:
        return render([Literal(content)])
    quoted = content.replace('"', '\\"')
    words = statements('"' + quoted + '"')[0].words
    return "".join(render(known.expanded(part.piece)) for word in words for part in word.parts)
