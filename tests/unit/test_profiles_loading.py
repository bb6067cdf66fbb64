"""Resolution: names, parents, merging, provenance, checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.errors import NotFound, StokerError
from profiles.loading import ProfileStore
from profiles.model import EnvRef
from profiles.yaml_source import BadProfile


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    user, builtin = tmp_path / "user", tmp_path / "builtin"
    user.mkdir()
    builtin.mkdir()
    (builtin / "chat.yaml").write_text("model: org/base\nargs: {max_num_seqs: 64}\nport: 8000\n")
    return ProfileStore(user, builtin)


def put(store: ProfileStore, name: str, text: str) -> Path:
    path = store.user_dir / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_parents_merge_deeply_and_null_removes(store: ProfileStore) -> None:
    put(
        store,
        "base",
        "model: org/m\nport: 8000\nargs:\n  max-num-seqs: 64\n  compilation_config: {mode: 3, "
        "pass_config: {a: true}}\nenv: {A: 1, B: 2, T_TOKEN: {from_env: T}}\npreload: {mode: copy}"
        "\ngpus: [0, 1]\n",
    )
    put(
        store,
        "fast",
        "extends: base\nport: null\nargs:\n  max_num_seqs: null\n  compilation_config: {mode: 0}\n"
        "env: {B: null, C: yes, T_TOKEN: {from_file: /t}}\npreload: {fallback: false}\ngpus: [2]\n",
    )
    got = store.load("fast")
    assert got.profile.port is None
    assert got.profile.args == {"compilation_config": {"mode": 0, "pass_config": {"a": True}}}
    assert got.profile.env == {"A": "1", "C": "yes", "T_TOKEN": EnvRef(from_file="/t")}
    assert got.profile.preload is not None
    assert (got.profile.preload.mode, got.profile.preload.fallback) == ("copy", False)
    assert got.profile.gpus == (2,)
    assert [path.name for path in got.files] == ["fast.yaml", "base.yaml"]
    assert got.place("args.compilation_config.mode").endswith("fast.yaml:5")
    assert got.place("args.compilation_config.pass_config.a").endswith("base.yaml:5")
    assert "args.max_num_seqs" not in got.provenance
    assert "port" not in got.provenance


def test_later_parents_win_over_earlier_ones(store: ProfileStore) -> None:
    put(store, "a", "model: org/a\nargs: {x_one: 1, x_two: 1}\n")
    put(store, "b", "args: {x_two: 2}\n")
    put(store, "c", "extends: [a, b]\n")
    got = store.load("c")
    assert got.profile.args == {"x_one": 1, "x_two": 2}
    assert got.unknown == ("x_one", "x_two")


def test_a_diamond_is_no_cycle(store: ProfileStore) -> None:
    put(store, "top", "model: org/m\n")
    put(store, "left", "extends: top\n")
    put(store, "right", "extends: top\nport: 8001\n")
    put(store, "both", "extends: [left, right]\n")
    assert store.load("both").profile.port == 8001


def test_cycles_are_named(store: ProfileStore) -> None:
    put(store, "a", "model: m\nextends: b\n")
    put(store, "b", "extends: [c]\n")
    put(store, "c", "extends: a\n")
    with pytest.raises(BadProfile, match=r"c\.yaml:1: extends: .*: a\.yaml -> b\.yaml -> c"):
        store.load("a")
    put(store, "self", "extends: self\n")
    with pytest.raises(BadProfile, match=r"self\.yaml -> self\.yaml"):
        store.load("self")


def test_a_users_profile_may_extend_the_built_in_of_the_same_name(store: ProfileStore) -> None:
    put(store, "chat", "extends: chat\nport: 8005\n")
    got = store.load("chat")
    assert got.profile.model == "org/base"
    assert got.profile.port == 8005
    assert got.provenance["model"].kind == "builtin"
    assert str(got.provenance["model"]) == "built-in chat:1"
    assert got.provenance["port"].kind == "file"
    assert store.names() == ("chat",)


def test_parents_by_relative_path(store: ProfileStore) -> None:
    put(store, "shared/common", "model: org/m\n")
    put(store, "mine/one", "extends: ../shared/common.yaml\n")
    assert store.load(store.user_dir / "mine" / "one.yaml").profile.model == "org/m"


def test_aliases_dashes_and_negations_are_one_argument(store: ProfileStore) -> None:
    put(store, "base", "model: m\nargs: {-tp: 4, no-enable-prefix-caching: true, -O: 1}\n")
    put(store, "x", "extends: base\nargs: {tensor-parallel-size: 2, enable_prefix_caching: true}\n")
    got = store.load("x")
    assert got.profile.args == {
        "tensor_parallel_size": 2,
        "enable_prefix_caching": True,
        "optimization_level": 1,
    }
    assert got.place("args.optimization_level").endswith("base.yaml:2")


def test_dotted_arguments_override_inside_an_inherited_map(store: ProfileStore) -> None:
    put(store, "base", "model: m\nargs: {compilation_config: {mode: 3, a: 1}}\n")
    put(store, "x", "extends: base\nargs:\n  -cc.mode: none\n")
    got = store.load("x")
    assert got.profile.args == {"compilation_config": {"mode": "none", "a": 1}}
    assert got.place("args.compilation_config.mode").endswith("x.yaml:3")
    put(store, "y", "model: m\nargs:\n  -cc.mode: none\n")
    assert store.load("y").profile.args == {"compilation_config.mode": "none"}


def test_environment_values_are_what_was_written(store: ProfileStore) -> None:
    put(store, "x", 'model: m\nenv: {A: yes, B: 010, C: 1e3, D: true, E: "", F: 0x10, G: 12:30}\n')
    env = store.load("x").profile.env
    assert env == {
        "A": "yes",
        "B": "010",
        "C": "1e3",
        "D": "true",
        "E": "",
        "F": "0x10",
        "G": "12:30",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: x\nmodle: y", "2: modle: unknown key; did you mean model?"),
        ("gpu: 0", "1: gpu: unknown key; did you mean gpus?"),
        (
            "max_model_len: 3",
            "1: max_model_len: unknown key; it is a vLLM argument",
        ),
        ("zzz: 3", "1: zzz: unknown key; known are args"),
        ("name: x", "1: name: unknown key"),
        ("schema: 2", "1: schema: is 2; this Stoker reads schema 1"),
        ("extends: chta", "1: extends: no profile chta; did you mean chat?"),
        ("extends: [chat, ./no.yaml]", "1: extends.1: no profile file"),
        ("extends: 3", "1: extends: must be a name"),
        ("model: 3", "1: model: must be text"),
        ("model: -x", "1: model: must be a path"),
        ("port: '8000'", "1: port: must be a number from 1 to 65535, not '8000'"),
        ("port: 70000", "1: port: must be a number"),
        ("port: true", "1: port: must be a number from 1 to 65535, not true"),
        ("gpus: [0, GPU-1]", "1: gpus: must not mix"),
        ("gpus: [0, 0]", "1: gpus: names a GPU twice"),
        ("gpus: [x]", "1: gpus: must hold indices"),
        ("gpus: [-1]", "1: gpus: must hold indices"),
        ("args: [a]", "1: args: must be a map"),
        ("args:\n  model: x", "2: args.model: write it as the top-level key model"),
        (
            "args: {served-model-name: x}",
            "1: args.served-model-name: write it as the",
        ),
        ("args: {a b: x}", "1: args.a b: is no argument name"),
        ("args:\n  -tp: 2\n  tensor_parallel_size: 3", "3: args.tensor_parallel_size: sets"),
        ("env: {1A: x}", "1: env.1A: is no name"),
        ("env: {A: [1]}", "1: env.A: must be one value"),
        ("env: {A: {from_evn: X}}", "1: env.A.from_evn: unknown key; did you mean from_env?"),
        ("env: {A: {from_env: X, from_file: Y}}", "1: env.A: must be either"),
        ("env: {A: {}}", "1: env.A: must be either"),
        ("env:\n  HF_TOKEN: hf_abc", "2: env.HF_TOKEN: is a secret; name where it is"),
        ("preload: 3", "1: preload: must be a map"),
        ("preload: {mode: zero}", "1: preload.mode: must be one of zero_copy, copy, not 'zero'"),
        ("preload: {seed_token: abc}", "1: preload.seed_token: must be {from_env"),
        ("preload: {health_port: 0}", "1: preload.health_port: must be a number from"),
        ("restart: {policy: sometimes}", "1: restart.policy: must be one of never, on-failure"),
        ("restart: {max: 1.5}", "1: restart.max: expected int"),
        ("restart: {maxx: 1}", "1: restart.maxx: unknown key; did you mean max?"),
        ("stop: {ask_s: -1}", "1: stop.ask_s: must be seconds"),
        ("stop: {ask_s: .inf}", "1: stop.ask_s: must be seconds"),
        ("standby: yes please", "1: standby: must be true or false"),
        ("ready_timeout_s: no", "1: ready_timeout_s: must be seconds, 0 or more, not false"),
        ("notes: [a]", "1: notes: must be text"),
        ("tags: {a: b}", "1: tags: must be a name"),
        ("bench: 3", "1: bench: must be a map"),
    ],
)
def test_mistakes_are_named_with_file_line_and_key(
    store: ProfileStore, text: str, said: str
) -> None:
    path = put(store, "x", text)
    with pytest.raises(StokerError) as caught:
        store.load("x")
    assert str(caught.value).startswith(f"{path}:{said}")
    assert caught.value.exit_code == 2


def test_a_mistake_of_a_parent_names_the_parents_file(store: ProfileStore) -> None:
    base = put(store, "base", "model: m\nrestart:\n  max: 1.5\n")
    put(store, "x", "extends: base\nport: 1\n")
    with pytest.raises(BadProfile) as caught:
        store.load("x")
    assert str(caught.value).startswith(f"{base}:3: restart.max")


def test_unknown_names_are_not_found(store: ProfileStore) -> None:
    with pytest.raises(NotFound, match="no profile chatt; did you mean chat"):
        store.load("chatt")
    with pytest.raises(NotFound, match="no profile file"):
        store.load("./chat.yaml")


def test_preload_can_be_switched(store: ProfileStore) -> None:
    put(store, "a", "model: m\npreload: true\n")
    put(store, "b", "extends: a\npreload: false\n")
    put(store, "c", "extends: a\npreload: {mode: copy}\n")
    put(store, "d", "extends: c\npreload: true\n")
    assert store.load("a").profile.preload is not None
    assert store.load("b").profile.preload is None
    preload = store.load("d").profile.preload
    assert preload is not None
    assert preload.mode == "copy"


def test_text_of_an_editor_is_resolved_like_the_file(store: ProfileStore) -> None:
    path = put(store, "x", "model: old\n")
    assert store.load_text("extends: chat\n", path).profile.args == {"max_num_seqs": 64}
    assert store.load("x").profile.model == "old"


def test_a_reference_finds_the_profile_again_from_anywhere(
    store: ProfileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "mine", "model: org/m\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("mine", "other"):
        (elsewhere / f"{name}.yaml").write_text("model: org/elsewhere\n")
    monkeypatch.chdir(elsewhere)

    def reference(name: str) -> str:
        return store.reference(store.load(name).profile)

    assert reference("mine") == "mine"
    assert reference("chat") == "chat"
    assert reference(str(store.user_dir / "mine.yaml")) == "mine"
    # A file of the same name as a known profile, and one of a name that is not known.
    assert reference("./mine.yaml") == str(elsewhere / "mine.yaml")
    assert reference("other.yaml") == str(elsewhere / "other.yaml")
    # A built-in profile behind one of the operator's own that has its name.
    builtin = store.load("chat").profile
    put(store, "chat", "model: org/own\n")
    assert store.reference(builtin) == str(store.builtin_dir / "chat.yaml")


def test_a_deleted_profile_keeps_its_reference(store: ProfileStore, tmp_path: Path) -> None:
    own = put(store, "mine", "model: org/m\n")
    elsewhere = tmp_path / "mine.yaml"
    elsewhere.write_text("model: org/m\n")
    profile, outside = store.load("mine").profile, store.load(elsewhere).profile
    own.unlink()
    elsewhere.unlink()
    assert store.reference(profile) == "mine"
    assert store.reference(outside) == str(elsewhere)


def test_null_inside_a_json_argument_is_jsons_unless_it_removes(store: ProfileStore) -> None:
    put(store, "base", "model: m\nargs: {hf_overrides: {rope_scaling: null, a: 1, b: {c: null}}}\n")
    put(store, "x", "extends: [base, base]\nargs: {hf_overrides: {a: null, d: null}}\n")
    assert store.load("base").profile.args == {
        "hf_overrides": {"rope_scaling": None, "a": 1, "b": {"c": None}}
    }
    assert store.load("x").profile.args == {
        "hf_overrides": {"rope_scaling": None, "b": {"c": None}, "d": None}
    }
