"""Documents with anything in the place of anything: one line is said, or what was read is written
and read again as the same profile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.errors import StokerError
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import document, import_profile
from tests.unit.test_import_charts import KSERVE, SERVICE, STACK
from tests.unit.test_import_kinds import COMPOSE, DEPLOYMENT
from tests.unit.test_import_ports import MANIFEST

TEXTS = (COMPOSE, DEPLOYMENT, KSERVE, MANIFEST, SERVICE, STACK)
DOCUMENTS = [list(yaml.safe_load_all(text)) for text in TEXTS]
JUNK: list[Any] = [
    None, True, False, 0, -1, 3.5, "", "x", "${A}", "$$", "a:b:c:d", "/a:/b", [], {},
    [None], [1, 2], {"a": None}, {"file": "no.yaml", "service": "b"}, "\ue0001\ue002", "ü" * 50,
    [[["x"]]], {1: 2}, "8000:8000", " ", "--model m", "vllm serve m", "'", '"', "\n",
]  # fmt: skip


def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [at]
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            out += places(value, (*at, key))
    return out


@st.composite
def mutated(draw: st.DrawFn) -> str:
    found = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([p for p in places(found) if p]))
        node: Any = found
        for key in place[:-1]:
            node = node[key]
        if len(place) > 1 and draw(st.booleans()) and draw(st.booleans()):
            del node[place[-1]]
        else:
            node[place[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return yaml.safe_dump_all(found, allow_unicode=True)


@settings(max_examples=150, deadline=None)
@given(mutated())
def test_anything_in_the_place_of_anything(text: str) -> None:
    try:
        first = import_profile(text).profile
    except StokerError as error:
        assert "\n" not in str(error)
        return
    for kind in EXPORTS:
        try:
            written = export_profile(first, kind)
        except StokerError as error:
            assert "\n" not in str(error)
            continue
        again = import_profile(written).profile
        if "extra_words" not in first.origin:  # words of no option; vLLM would refuse them
            assert document(again) == document(first), kind


def test_words_that_are_none() -> None:
    with pytest.raises(StokerError, match="extraArgs is no list"):
        import_profile(STACK.replace("extraArgs: [", "extraArgs: 1 # [", 1))


@pytest.mark.parametrize("word", ["true", "null"])
def test_a_word_in_the_place_of_json_stays_one(word: str) -> None:
    first = import_profile(f"vllm serve m --kv-transfer-config {word}").profile
    assert first.args["kv_transfer_config"] == word
    again = import_profile(export_profile(first, "shell")).profile
    assert document(again) == document(first)


@pytest.mark.parametrize("text", TEXTS)
def test_as_they_are_they_are_read(text: str) -> None:
    assert import_profile(text).profile.model
