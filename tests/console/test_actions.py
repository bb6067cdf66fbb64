"""The registry: unique keys, what is allowed when, and that it is light."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from console import actions
from console.main import COMMANDS
from console.screens import registry
from console.screens.base import StokerScreen
from console.screens.log import LogScreen
from console.view import help
from engine_ctl.model import Kind, Phase, UnitView, Verdict


def unit(phase: Phase | None, kind: Kind = Kind.ENGINE, **more: object) -> UnitView:
    return UnitView("u", kind, "p", phase, run="u/1", **more)  # type: ignore[arg-type]


def ids(view: UnitView | None) -> set[str]:
    return {entry.id for entry in actions.allowed_now(view)}


def test_no_key_means_two_things() -> None:
    keys = Counter(key for entry in actions.ACTIONS for key in entry.keys.split(","))
    assert [key for key, times in keys.items() if times > 1] == []
    assert len({entry.id for entry in actions.ACTIONS}) == len(actions.ACTIONS)


NAVIGATION = {"up", "down", "pageup", "pagedown", "home", "end", "space", "left", "right"}


@pytest.mark.parametrize("name", [*registry._SCREENS, "log"])
def test_every_key_of_a_screen_is_an_action_with_words(name: str) -> None:
    if name == "log":
        screen: type[StokerScreen] = LogScreen
    else:
        screen = getattr(import_module(registry._SCREENS[name][0]), registry._SCREENS[name][1])
    keys = {
        key
        for each in screen.__mro__
        if each.__module__.startswith("console.screens")
        for binding in each.__dict__.get("BINDINGS", ())
        for key in binding.key.split(",")
    }
    own = actions.of_screen(screen.ACTION)
    named = {key for entry in own for key in entry.keys.split(",")}
    assert keys - NAVIGATION <= named
    for entry in own:
        assert entry.help.endswith(".") and entry.title
        if name != "log":
            assert hasattr(screen, f"action_{entry.id.removeprefix(f'{name}_')}")


def test_every_action_is_in_the_help() -> None:
    whole = [span.text for item in help.items(None, 120) for row in item.lines for span in row]
    titles = {text.strip() for text in whole}
    everything = [*actions.ACTIONS, *actions.LOG_ACTIONS, *actions.SCREENS]
    assert {entry.title for entry in everything} <= titles


def test_the_guide_names_every_key() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    table = guide.split("## The console")[1].split("\n## ")[0]
    named = set(re.findall(r"`([^`\s]+)`", table))
    assert {entry.key for entry in actions.ACTIONS} <= named


def test_every_command_named_is_a_command() -> None:
    named = {entry.command for entry in actions.ACTIONS if entry.command}
    assert named <= set(COMMANDS)


@pytest.mark.parametrize(
    ("view", "allowed", "refused"),
    [
        (unit(None), {"start", "remove"}, {"stop", "restart", "bench", "queues"}),
        (unit(Phase.READY), {"stop", "restart", "swap", "bench", "queues"}, {"start", "remove"}),
        (unit(Phase.CAPTURING), {"stop", "restart", "log"}, {"start", "bench", "queues", "why"}),
        (unit(Phase.FAILED), {"why", "start", "remove"}, {"stop", "bench"}),
        (unit(Phase.STOPPING), {"log"}, {"stop", "restart", "start"}),
        (unit(Phase.LOST), {"why", "start"}, {"stop"}),
        (unit(Phase.ORPHANED), {"stop", "restart"}, {"start"}),
        (unit(Phase.READY, verdict=Verdict.FALLBACK), {"why"}, set()),
        (unit(Phase.READY, Kind.PRELOAD), {"stop", "reload", "release"}, {"swap", "queues"}),
        (unit(Phase.READY, Kind.STANDBY), {"stop"}, {"restart", "start", "swap", "remove"}),
    ],
)
def test_what_is_allowed(view: UnitView, allowed: set[str], refused: set[str]) -> None:
    found = ids(view)
    assert allowed <= found
    assert not refused & found


def test_live_changes_need_an_engine_that_can_and_that_serves() -> None:
    can = {"sleep": "", "wake": "", "lora load": "profile p starts no adapters"}
    ready = unit(Phase.READY, live=can)
    assert {"sleep"} <= ids(ready) and not {"wake", "adapter_load"} & ids(ready)
    assert actions.refusal(actions.action("adapter_load"), ready) == "profile p starts no adapters"
    assert "wake" in ids(unit(Phase.SLEEPING, live=can))
    assert not {"sleep", "wake", "reset_cache"} & ids(unit(Phase.CAPTURING, live=can))
    daemon = unit(Phase.READY, Kind.PRELOAD)
    assert actions.refusal(actions.action("sleep"), daemon) == "sleep is not for a preload"


@pytest.mark.parametrize(
    ("phase", "id", "way"),
    [
        (Phase.IMPORTING, "kernels", "it will be when it is ready"),
        (Phase.LOADING, "bench", "it will be when it is ready"),
        (Phase.LOADING, "remove", "stop it first: x"),
        (Phase.READY, "remove", "stop it first: x"),
        (Phase.READY, "start", "restart it: r"),
        (Phase.EXITED, "bench", "start it first: s"),
    ],
)
def test_a_refusal_names_the_way(phase: Phase, id: str, way: str) -> None:
    assert (actions.refusal(actions.action(id), unit(phase)) or "").endswith("; " + way)


def test_the_way_that_a_refusal_names_is_one() -> None:
    keys = {"start": "s", "restart": "r", "stop": "x"}
    for kind in Kind:
        for phase in (None, *Phase):
            view = unit(phase, kind)
            for entry in actions.ACTIONS:
                why = actions.refusal(entry, view) or ""
                for id, key in keys.items():
                    if why.endswith((f"; {id} it: {key}", f"; {id} it first: {key}")):
                        assert actions.is_allowed(actions.action(id), view), why
    assert actions.refusal(actions.action("stop"), unit(Phase.EXITED)) == (
        "stop is not possible while exited"
    )


def test_every_refusal_is_words_and_nothing_allowed_is_refused() -> None:
    for kind in Kind:
        for phase in (None, *Phase):
            view = unit(phase, kind)
            for entry in actions.ACTIONS:
                why = actions.refusal(entry, view)
                assert (why is None) is actions.is_allowed(entry, view)
                assert why is None or len(why.split()) > 2


def test_nothing_selected_leaves_the_deck_actions() -> None:
    assert {"profiles", "weights", "ledger", "help", "leave", "new"} <= ids(None)
    assert not {"start", "stop", "swap"} & ids(None)


def test_the_registry_imports_no_textual() -> None:
    code = "import sys, console.actions; print(any(m.startswith('textual') for m in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_views_import_no_textual() -> None:
    code = (
        "import sys, importlib, pkgutil, console.view as v\n"
        "for m in pkgutil.iter_modules(v.__path__):\n"
        "    importlib.import_module('console.view.' + m.name)\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('textual', 'vllm', 'torch')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
