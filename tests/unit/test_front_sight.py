"""What the front decides from the files of its unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.errors import Usage
from engine_ctl.front.lifecycle import first_private_port, front_problem, port_note
from engine_ctl.front.settings import FrontSettings, parse
from engine_ctl.front.sight import Decision, Sight, Watch, Way, decide, read
from engine_ctl.front.status import FrontStatus, is_drained
from engine_ctl.model import Kind
from engine_ctl.state.records import RunSpec
from engine_ctl.swap.journal import Outcome
from profiles.model import Profile
from tests.standin.rig import dirs_in
from tests.unit.front_rig import UnitFiles

SERVES = Sight(desired="running", run="u/1", host="127.0.0.1", port=18000, ready=True)


def sight(**changes: object) -> Sight:
    return Sight(**{**{name: getattr(SERVES, name) for name in SERVES.__slots__}, **changes})


@pytest.mark.parametrize(
    ("seen", "way"),
    [
        (SERVES, Way.PASS),
        (sight(swapping=True), Way.PASS),
        (sight(ready=False), Way.HOLD),
        (sight(asked=True, swapping=True), Way.HOLD),
        (sight(asked=True), Way.HOLD),
        (sight(asked=True, desired="stopped"), Way.REFUSE),
        (sight(ended=True), Way.REFUSE),
        (sight(ended=True, swapping=True), Way.HOLD),
        (sight(ended=True, restarts=True), Way.HOLD),
        (sight(ended=True, restarts=True, desired="stopped"), Way.REFUSE),
        (sight(run=None), Way.HOLD),
        (sight(run=None, desired="stopped"), Way.REFUSE),
        (sight(port=None), Way.HOLD),
        (sight(damaged="unreadable"), Way.HOLD),
        (Sight(), Way.REFUSE),
    ],
)
def test_every_state_has_its_way(seen: Sight, way: Way) -> None:
    assert decide(seen).way is way


def test_damaged_files_take_no_serving_engine_away() -> None:
    serving = decide(SERVES)
    assert decide(sight(damaged="x"), serving) == serving
    held = Decision(Way.HOLD, why="starting")
    assert decide(sight(damaged="x"), held).way is Way.HOLD


def test_only_a_wanted_end_lets_requests_be_asked_again() -> None:
    assert decide(sight(asked=True)).planned
    assert decide(sight(ended=True, swapping=True)).planned
    assert not decide(sight(ended=True, restarts=True)).planned


def test_files_are_followed_through_a_swap(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path)
    watch = Watch(files.dir)
    assert watch.look().way is Way.HOLD
    files.run(1, 18001, ready=False)
    assert watch.look().why == "u/1 is starting"
    files.ready(1)
    assert watch.look().address == ("127.0.0.1", 18001)
    files.swap()
    files.asked(1)
    assert watch.look() == Decision(Way.HOLD, why="u/1 is stopping", planned=True)
    files.ended(1)
    assert watch.look().way is Way.HOLD
    files.run(2, 18002)
    files.swap(Outcome.COMMITTED)
    assert watch.look() == Decision(Way.PASS, "u/2", ("127.0.0.1", 18002))


@pytest.mark.parametrize("name", ["unit.json", "current.json", "swap.json", "runs/1/spec.json"])
def test_damaged_records_are_said_and_mended(tmp_path: Path, name: str) -> None:
    files = UnitFiles(tmp_path)
    files.run(1, 18001)
    files.swap(Outcome.COMMITTED)
    watch = Watch(files.dir)
    before = watch.look()
    files.damage(name)
    assert read(files.dir).damaged
    assert watch.look() == before
    files.desired("running")
    files.run(2, 18002)
    files.swap(Outcome.COMMITTED)
    assert watch.look().run == "u/2"


def test_a_removed_unit_refuses(tmp_path: Path) -> None:
    assert decide(read(tmp_path / "nothing")).way is Way.REFUSE


def test_drained_means_closed_and_empty() -> None:
    assert not is_drained(None, "u/1")
    assert not is_drained(FrontStatus(way="pass", passes_to="u/1"), "u/1")
    assert not is_drained(FrontStatus(way="hold", in_flight={"u/1": 1}), "u/1")
    assert is_drained(FrontStatus(way="hold", in_flight={"u/2": 1}), "u/1")


def test_settings_are_checked() -> None:
    assert parse("", Path("f")) == FrontSettings(hold_s=120.0, hold_requests=1000)
    assert parse("hold_s: 5\nhold_requests: 2", Path("f")).hold_requests == 2
    for text in ("hold_s: -1", "hold: 1", "hold_s: long", "[", "- 1"):
        with pytest.raises(Usage, match=r"front\.yaml"):
            parse(text, Path("front.yaml"))


def test_profiles_that_cannot_stand_behind_a_front() -> None:
    assert front_problem(Profile(name="p", args={"uds": "/x"})) is None
    problem = front_problem(Profile(name="p", front=True, args={"ssl-keyfile": "/k"}))
    assert problem is not None and "ssl_keyfile" in problem
    assert front_problem(Profile(name="p", front=True, args={"max_num_seqs": 4})) is None


def spec(port: int, public: int | None = None) -> RunSpec:
    host = None if public is None else "0.0.0.0"
    return RunSpec(
        unit="u", kind=Kind.ENGINE, argv=[], port=port, public_host=host, public_port=public
    )


def test_the_port_note_says_what_clients_meet() -> None:
    assert port_note(None, spec(8000)) == "port 8000 is free"
    assert port_note(spec(8000), spec(8000)) == "port 8000 is ours"
    assert "stays with the front" in port_note(spec(18000, 8000), spec(18001, 8000))
    assert "from the front to the engine" in port_note(spec(18000, 8000), spec(8000))
    assert "from the engine to a front" in port_note(spec(8000), spec(18000, 8000))
    assert "find nobody" in port_note(spec(8000), spec(8001))


def test_state_directories_look_for_private_ports_at_different_places() -> None:
    ports = [first_private_port(dirs_in(Path(f"/home/user{n}"))) for n in range(20)]
    assert len(set(ports)) > 15 and all(18_000 <= port < 28_000 for port in ports)
    assert first_private_port(dirs_in(Path("/home/user0"))) == ports[0]
