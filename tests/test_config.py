"""Settings: the papers' defaults, sentences for every mistake, and hashes that mean the same everywhere."""

import hashlib
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.config import (
    Config,
    derive_seed,
    dump_config,
    load_config,
    make_config,
    replace_sources,
    stable_hash,
)
from raysed.config_text import apply_override, dump
from raysed.errors import UserError
from raysed.plan.consistency import check_settings

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "raysed/configs").glob("*.yaml"))


# -- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "setting", "value"),
    [
        ("sed.learning_rate=1", "sed.learning_rate", 1.0),
        ("ct.learning_rates=[1e-5, 2e-5, 3.0e-5, 4e-5, 5e-5]", "ct.learning_rates", [1e-5, 2e-5, 3e-5, 4e-5, 5e-5]),
        ("evaluation.dev=", "evaluation.dev", None),
        ("sed.dropout=true", "sed.dropout", True),
        ("encoder.path=a=b", "encoder.path", "a=b"),
        ("encoder.model_kwargs.num_hidden_layers=3", "encoder.model_kwargs", {"num_hidden_layers": 3}),
        ("corpus.source=[a.txt, b.txt]", "corpus.source", ["a.txt", "b.txt"]),
    ],
)
def test_overrides(item, setting, value):
    found = load_config(None, [item])
    for name in setting.split("."):
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("010", 10), ("-07", -7), ("0o10", 8), ("0x1F", 31), ("+3", 3)),
        *(("1:30", "1:30"), ("1:30.5", "1:30.5"), ("1_000", "1_000"), ("0b1", "0b1"), ("-0x1", "-0x1")),
        *(("1e-2", 0.01), (".5", 0.5), ("2.", 2.0), ("1E3", 1000.0), ("-.inf", -math.inf), ("1.2.3", "1.2.3")),
        *(("'010'", "010"), ("'1e3'", "1e3"), ("'0o10'", "0o10"), ("abc", "abc"), ("+", "+"), ("true", True)),
    ],
)
def test_numbers_are_those_of_yaml_1_2(text, value):
    """YAML 1.1 takes 010 for 8 and 1:30 for 90. What is dumped is read back."""
    data: dict = {}
    apply_override(data, f"x={text}")
    assert data == {"x": value} and type(data["x"]) is type(value)
    again: dict = {}
    apply_override(again, dump(data).replace(": ", "=", 1))
    assert again == data


def test_overrides_reach_into_tasks_and_the_last_one_wins(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("evaluation: {tasks: {mine: {source: a.tsv}, path: b.csv}, dev: mine}\nct:\n  # steps: 3\n")
    overrides = [f"evaluation.tasks.{name}.score_range=[1, 5]" for name in ("mine", "path")]
    config = load_config(path, [*overrides, "ct.steps=1", "ct.steps=2"])
    assert [(task.source, task.score_range) for task in config.evaluation.tasks.values()] == [
        ("a.tsv", (1.0, 5.0)),
        ("b.csv", (1.0, 5.0)),
    ]
    assert config.ct.steps == 2


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"^config file .*/no\.yaml cannot be read: No such file or directory$"):
        load_config(tmp_path / "no.yaml")
    with pytest.raises(UserError, match=r" cannot be read: Is a directory$"):
        load_config(tmp_path)


def test_a_config_based_on_another_has_its_settings_but_for_its_own(tmp_path):
    """Blocks are merged; settings are replaced, also where they are lists or mappings. Overrides come last."""
    below = (
        "ct: {steps: 5, negatives: 3}\nsed: {epochs: 2}\nencoder: {model_kwargs: {cache_dir: a}, static: {width: 60}}\n"
    )
    (tmp_path / "below.yaml").write_text(
        f"{below}evaluation: {{tasks: {{a: a.tsv, b: b.tsv}}, dev: a}}\nrecipes: [ct]\n"
    )
    own = "based_on: below\nct: {steps: 7}\nevaluation: {tasks: {b: c.tsv}, dev: b}\nrecipes: [mlm]\n"
    (tmp_path / "own.yaml").write_text(
        f"{own}encoder: {{model_kwargs: {{revision: b}}, static: {{}}, pool_layers: 1}}\n"
    )
    config = load_config(tmp_path / "own.yaml", ["sed.epochs=3"])
    whole = {
        "ct": {"steps": 7, "negatives": 3},
        "sed": {"epochs": 3},
        "encoder": {"model_kwargs": {"revision": "b"}, "static": {"width": 60}, "pool_layers": 1},
        "evaluation": {"tasks": {"b": "c.tsv"}, "dev": "b"},
        "recipes": ["mlm"],
    }
    assert config == make_config(whole) and "based_on" not in dump_config(config)
    (tmp_path / "named.yaml").write_text("based_on: quickstart\nrun: mine\n")
    quickstart = load_config(ROOT / "raysed/configs/quickstart.yaml", ["run=mine"])
    assert load_config(tmp_path / "named.yaml") == quickstart != Config(run="mine")


def test_an_empty_file_is_the_defaults(tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "c.yaml") == Config() == load_config(None)


def test_configs_that_come_with_the_package_load_and_survive_dumping(tmp_path):
    for path in CONFIGS:
        config = load_config(path)
        assert config.run == path.stem and check_settings(config)
        (tmp_path / "dumped.yaml").write_text(dump_config(config))
        assert load_config(tmp_path / "dumped.yaml") == config


# -- values ----------------------------------------------------------------------------------------------------------


def test_report_tasks():
    tasks = {name: {"source": "bundled:generated-dev"} for name in "abc"}
    for changes, names in (({"dev": "a"}, "bc"), ({"dev": None}, "abc"), ({"dev": "a", "report": ["a"]}, "a")):
        assert make_config({"evaluation": {"tasks": tasks, **changes}}).evaluation.report_tasks() == list(names)
    alone = {"tasks": {"a": tasks["a"]}, "dev": "a"}
    assert make_config({"evaluation": alone}).evaluation.report_tasks() == ["a"]


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(_values, _values)
def test_hashes_are_equal_exactly_where_values_are(one, other):
    def canonical(value):
        """Tells 1, 1.0, True and -0.0 apart, as JSON does, and forgets the order of keys."""
        if isinstance(value, dict):
            return "block", sorted((key, canonical(item)) for key, item in value.items())
        return [canonical(item) for item in value] if isinstance(value, list) else repr(value)

    assert (stable_hash(one) == stable_hash(other)) == (repr(canonical(one)) == repr(canonical(other)))
    if isinstance(one, dict):
        assert stable_hash(dict(reversed(one.items()))) == stable_hash(one)


def test_hashes_and_seeds_are_the_same_everywhere():
    text = b'{"a":null,"b":[1,2.5]}'
    assert stable_hash({"b": (1, 2.5), "a": None}) == hashlib.sha256(text).hexdigest()[:16]
    assert derive_seed(0, "ct", 1) == 2967490376468012014
    seeds = {derive_seed(seed, node, index) for seed in (0, 1) for node in ("ct", "ct-sed") for index in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


# -- marks of settings -----------------------------------------------------------------------------------------------


def sources(block: Config) -> list[tuple[str, str]]:
    """All sources that a block names, each with the last part of its setting's name."""
    found: list[tuple[str, str]] = []
    replace_sources(block, lambda name, source: found.append((name, source)) or source)
    return found


def test_sources_are_found_wherever_they_are_and_replaced():
    config = make_config(
        {
            "teachers": ["members", "a", {"path": "b"}, "members:ct"],
            "corpus": {"source": ["c.txt", "d"], "queries": "o"},
            "encoder": {"path": "e"},
            "evaluation": {"tasks": {"t": {"source": "f", "queries": "g"}}, "dev": "t"},
            "nli": {"train": ["i", {"source": "j", "split": "k"}]},
            "views": {"files": ["l", "m"]},
            "sts": {"train": "p"},
            "flow": {"fit_on": "q"},
        }
    )
    found = sources(config)
    assert "".join(sorted(source for _, source in found)) == "abc.txtdefgijlmopq"
    assert ("queries", "o") in found and ("queries", "g") in found
    changed = replace_sources(config, lambda name, source: f"/{source}")
    assert sources(changed) == [(name, f"/{source}") for name, source in found]
    assert [teacher.path for teacher in changed.teachers] == ["members", "/a", "/b", "members:ct"]
    assert changed.corpus.queries == "/o" and make_config(changed.model_dump()) == changed
    assert "fit_on" not in dict(sources(Config(flow={"fit_on": "tasks"})))


def test_identities_leave_out_what_has_no_effect():
    grid = {"models": 3, "lower_bounds": [0.0, 0.7]}  # another bound is trained beside those that are there
    one, other = Config(), Config(members={"max_retries": 9}, sed={"workers": 2}, sts=grid)
    for block in ("members", "sed", "sts"):
        assert getattr(one, block) != getattr(other, block)
        assert getattr(one, block).identity() == getattr(other, block).identity()
    assert one.ct.identity() != Config(ct={"steps": 3}).ct.identity()


def test_teachers_of_one_name_are_named_by_their_paths():
    titles = [teacher.title for teacher in make_config({"teachers": ["exp1/final", "exp2/final", "B"]}).teachers]
    assert titles == ["exp1/final", "exp2/final", "B"]
