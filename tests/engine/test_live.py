"""Live changes of a real engine: adapters, the prefix cache, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from engine_ctl.errors import Failed
from engine_ctl.live import operations as live
from engine_ctl.live.requirements import DEV_MODE, LORA_UPDATES
from engine_ctl.operations import lifecycle, swapping
from engine_ctl.state import events
from engine_ctl.swap.forecast import forecast
from engine_ctl.swap.journal import Outcome
from tests.engine.conftest import CpuRuntime
from tests.engine.world import World, complete

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def adapters(
    cpu_runtime: CpuRuntime, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    script = Path(__file__).with_name("adapter_model.py")
    made = {name: root / name for name in ("red", "blue")}
    words = [str(word) for word in (cpu_runtime.python, script, tiny_model, *made.values())]
    subprocess.run(words, env=cpu_runtime.full_env(), check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def here(installation: World, adapters: dict[str, Path]) -> World:
    env = {LORA_UPDATES: "True", DEV_MODE: "1"}
    red, made = f"red={adapters['red']}", installation
    able = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    made.profile("bare", args=able, env=env)
    made.profile("reddish", args={**able, "lora_modules": [red]}, env=env)
    made.profile("broken", args={**able, "lora_modules": [red, "no=/nowhere/at/all"]}, env=env)
    made.profile("everybody", args=able, env=env, host="0.0.0.0")
    made.profile("plain")
    made.wait_ready(lifecycle.start(made.ctx, "u", "bare"))
    return made


def port_of(here: World) -> int:
    port = here.current("u").spec().port
    assert port is not None
    return port


def served(here: World) -> list[str]:
    return [adapter["name"] for adapter in live.status(here.ctx, "u")["adapters"]]


def test_adapters_come_and_go(here: World, adapters: dict[str, Path]) -> None:
    done = here.document("live", "u", "lora", "load", "red", str(adapters["red"]))
    assert done["done"] == f"loaded adapter red from {adapters['red']}"
    live.lora_load(here.ctx, "u", "blue", str(adapters["blue"]))
    assert served(here) == ["red", "blue"]
    texts = {complete(port_of(here), name, 16) for name in (str(here.model), "red", "blue")}
    assert len(texts) == 3
    with pytest.raises(Failed, match="already been loaded"):
        live.lora_load(here.ctx, "u", "red", str(adapters["red"]))
    for name in ("red", "blue"):
        live.lora_unload(here.ctx, "u", name)
    assert served(here) == []
    with pytest.raises(Failed, match="cannot be found"):
        live.lora_unload(here.ctx, "u", "red")
    told = [event.text for event in events.last(here.dirs, 20, unit="u")]
    assert any("loaded adapter red" in text for text in told)


def test_a_directory_that_is_not_there_is_refused_here(here: World) -> None:
    with pytest.raises(Failed, match="no adapter directory"):
        live.lora_load(here.ctx, "u", "x", "/nowhere/at/all")


def test_the_prefix_cache_is_reset(here: World) -> None:
    assert live.reset_prefix_cache(here.ctx, "u")["done"] == "reset the prefix cache"


def test_sleep_is_refused_on_the_cpu(here: World) -> None:
    for act in (live.sleep, live.wake):
        with pytest.raises(Failed, match="needs a GPU"):
            act(here.ctx, "u")
    assert live.status(here.ctx, "u")["actions"]["sleep"]["possible"] is False


def test_a_swap_takes_the_live_way_and_back(here: World) -> None:
    run = here.current("u").id
    assert any("live" in warning for warning in forecast(here.ctx, "u", "reddish").warnings)
    done = swapping.swap_to(here.ctx, "u", "reddish", quiet)
    assert done.outcome is Outcome.COMMITTED
    assert done.live == "live, without a restart: load adapter red"
    assert here.current("u").id == run and served(here) == ["red"]
    row = json.loads(json.dumps(here.document("ps", "u")))["units"][0]
    assert row["profile"] == "reddish" and row["drift"] == []
    back = swapping.undo(here.ctx, "u", quiet)
    assert back.live == "live, without a restart: unload adapter red"
    assert here.current("u").id == run and served(here) == []


def test_a_live_way_that_fails_ends_in_a_restart(here: World, adapters: dict[str, Path]) -> None:
    run = here.current("u").id
    live.lora_load(here.ctx, "u", "red", str(adapters["red"]))
    done = swapping.swap_to(here.ctx, "u", "reddish", quiet)
    assert done.outcome is Outcome.COMMITTED and not done.live
    assert here.current("u").id != run and served(here) == ["red"]
    told = [event.text for event in events.last(here.dirs, 20, unit="u")]
    assert any("restarting instead" in text for text in told)


def test_dev_mode_on_every_interface_is_refused(here: World) -> None:
    run = here.current("u").id
    assert any(DEV_MODE in error for error in forecast(here.ctx, "u", "everybody").errors)
    with pytest.raises(Failed, match=r"host: 127\.0\.0\.1"):
        swapping.swap_to(here.ctx, "u", "everybody", quiet)
    assert here.current("u").id == run


def test_what_the_profile_lacks_is_said(here: World, adapters: dict[str, Path]) -> None:
    swapping.swap_to(here.ctx, "u", "plain", quiet)
    with pytest.raises(Failed, match="enable_lora: true"):
        live.lora_load(here.ctx, "u", "red", str(adapters["red"]))
    with pytest.raises(Failed, match=f"{DEV_MODE}.*loopback"):
        live.reset_prefix_cache(here.ctx, "u")
    assert here.command("live", "u", "wake").returncode == 1
    lifecycle.stop(here.ctx, "u")
