"""The model card, of a real run and of made-up ones."""

import json
import re
from types import SimpleNamespace

import pytest
import yaml
from made_up import full_run, scored

from raysed.config import Config, ExportConfig, make_config
from raysed.made import Made
from raysed.model.calibration import Flow
from raysed.plan.results import EvaluatedModel, Results
from raysed.report.card import _models_behind, metadata, write_card
from raysed.report.choice import Choice
from raysed.store.text import markdown

pytestmark = [pytest.mark.timeout(600)]


# -- of a real run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def real_card(finished_run) -> str:
    return (finished_run / "model/README.md").read_text()


def test_it_opens_with_the_verdict_and_what_a_user_has_without_the_model(real_card, finished_run):
    report = json.loads((finished_run / "report.json").read_text())
    assert markdown(report["exported"]["worth"]) in real_card.partition("## ")[0]
    rows = [line.split("|")[1:3] for line in real_card.partition("## Scores")[2].partition("## ")[0].splitlines()[4:]]
    shown = {name.strip(): score.strip() for name, score in filter(None, rows)}
    means = {entry["recipe"]: f"{entry['mean']:.2f}" for entry in report["summary"] if entry["task"] == "mean"}
    names = {"this model": "ct-sed-flow", "TF-IDF": "tf-idf", "its layers before training": "base"}
    assert shown == {name: means[recipe] for name, recipe in names.items()}


def test_settings_are_on_the_card_where_they_differ_from_the_defaults(real_card, finished_run):
    settings = json.loads((finished_run / "model/raysed.json").read_text())["settings"]
    defaults = Config().model_dump(mode="json")
    for key, value in settings.items():
        block, _, name = key.partition(".")
        default = None if name == "num_hidden_layers" else defaults[block][name]
        assert (f"| `{key}` |" in real_card) == (value != default), key
    assert {"encoder.keep_layers", "flow.fit_on", "calibration.natsv_k"} <= settings.keys()
    assert "| `ct.steps` | `12` |" in real_card and "ct.groups" in settings


def test_its_code_runs(real_card, finished_run):
    code, shown = real_card.split("```python\n")[1].split("```")[0], []
    exec(code.replace("path/to/this/directory", str(finished_run / "model")), {"print": shown.append})
    assert list(shown[0].shape) == [3, 3]


# -- of made-up runs -------------------------------------------------------------------------------------------------

NASTY = '<img src=x onerror="alert(1)"> [me](http://x) $5$'


def card(
    path, text="ct-sed", calibration=None, is_static=False, facts=None, prompts=None, has_dev=True, **settings
) -> str:
    config = make_config({"run": "demo", "recipes": [text], **settings})
    lengths = {"max_length": 75, "sentences": 2000, "tokens": 30_000, "truncated_sentences": 50, "lost_tokens": 600}
    known = {"corpus": {"lengths": lengths}, "left_out": {"ct/members/09": "collapsed"}}
    known["members"] = {"ct": [f"ct/members/{i:02}" for i in range(10)]}
    encoder = SimpleNamespace(width=16, is_static=is_static)
    kind = "learner" if "sed" in text else "base"
    own = next((row for row in full_run() if (row.recipe, row.layers) == (text, 2)), None)
    run = SimpleNamespace(
        config=config,
        scores=scored(full_run(), fitted_on="corpus", exported=own, teachers={0: NASTY}),
        costs={},
        facts=Results(**{"models": (), "cluster": "", **known, **(facts or {})}),
        choice=Choice(
            EvaluatedModel(text, kind, 0, Made(""), (1,)), "the only one", "sts12", has_dev, 70.0, {"TF-IDF": 72.0}
        ),
        speed=512.3,
        exported_model=SimpleNamespace(encoder=encoder, calibration=calibration, parameters=0),
        prompts=prompts or {},
        caveat="",
    )
    write_card(run, path)
    return (path / "README.md").read_text(encoding="utf-8")


def test_a_model_of_several_languages_is_not_said_to_know_one(tmp_path):
    assert "**Not for** other languages" in card(tmp_path, export={"language": "en"})
    text = card(tmp_path, export={"language": ["en", "de"]})
    assert "other languages" not in text and "\n- Expect less on other subjects" in text


def test_it_says_what_was_done(tmp_path):
    text = card(tmp_path, "ct-sed-flow", encoder={"path": "prajjwal1/bert-tiny", "pool_layers": "first_last"})
    for part in (
        "9 copies of prajjwal1/bert-tiny",
        "9 averaged, 1 left out",
        "one new copy of prajjwal1/bert-tiny",
        "a normalizing flow",
        "bundled:generated-text: 2,000 sentences, 30,000 tokens",
        "2.50% of the sentences, 1.96% of the tokens",
        "about 510 sentences per second",
    ):
        assert part in text, part
    assert not re.search(r"\{|\}|None", text)
    untrained = card(tmp_path, "base-whiten", flow={"fit_on": "tasks"})
    assert "bundled:generated-text" not in untrained and "averaged" not in untrained and "whitening" in untrained


def test_it_says_that_only_some_layers_were_taken_and_what_fitted_a_calibration(tmp_path):
    block = {"path": "prajjwal1/bert-tiny", "keep_layers": "half", "pool_layers": 1}
    block["model_kwargs"] = {"cache_dir": "/home/me", "num_hidden_layers": 1}
    given = {"encoder": block, "combination": {"how": "mean", "turn": "/home/me/old"}}
    text = card(tmp_path, "teachers-sed-natsv", teachers=["a"], **given)
    for part in ("one new copy of some layers of prajjwal1/bert-tiny", "| `encoder.keep_layers` | `half` |"):
        assert part.lower() in text.lower(), part
    assert "| `combination.how` |" in text and "`calibration.natsv_k`" not in text
    assert "documents embedded by old." in text
    for file in ("README.md", "raysed.json"):
        content = (tmp_path / file).read_text()
        assert "num_hidden_layers" in content and "/home/me" not in content


def test_it_says_what_its_scores_rest_on_and_warns_of_a_worse_model(tmp_path):
    text = card(tmp_path, has_dev=False)
    assert "| sts12 (20 pairs) | sts13 (20 pairs) |" in text
    assert "**Warning:** ct-sed is exported, but scores 70.0 on sts12, less than TF-IDF (72.0); " in text
    assert "Warning" not in card(tmp_path)


def test_it_names_no_private_file(tmp_path):
    corpus = {"source": ["/data/acme-tickets.txt", "acme-2.tsv", "s3://acme/x.parquet", "bundled:generated-text"]}
    text = card(tmp_path, corpus=corpus, flow={"fit_on": "acme-fit.txt"}, run="acme-tickets-half")
    assert "acme" not in text and "it was trained on private text, bundled:generated-text." in text


def test_trust_is_asked_for_where_there_is_code(tmp_path):
    text = card(tmp_path, "ct-sed-flow", Flow(16))
    assert 'directory", trust_remote_code=True)' in text and "classifier" in text and "fitted on | the corpus" in text
    (tmp_path / "config.json").write_text('{"auto_map": {}}')
    assert "in this directory: the encoder's custom code." in card(tmp_path, encoder={"trust_remote_code": True})
    assert "trust_remote_code" not in card(tmp_path), "it did not run"
    teachers = [{"path": "a", "trust_remote_code": True}, {"path": "b"}]
    assert "embeddings of a (with code of its own) and b" in card(tmp_path, "teachers-sed", teachers=teachers)


def test_names_are_shown_as_they_are(tmp_path):
    """Of teachers, views, pairs, tasks and sources, whatever they hold."""
    teachers = [{"path": "a/b", "name": NASTY}]
    facts = {"shares_space_of": NASTY, "members": {}, "left_out": {}}
    text = card(tmp_path, "teachers-sed", None, True, facts, teachers=teachers, corpus={"source": "bundled:" + NASTY})
    assert text.count("&lt;img") >= 4 and not re.search(r"<img|(?<!\\)\[me|(?<!\\)\$5", text.replace("`<", ""))
    assert "A static model (one vector per token), which started from " in text


@pytest.mark.parametrize(
    ("recipe", "encoder", "teachers", "bases"),
    [
        ("teachers-sed", "me/small", ["me/small", "you/large", "/models/mine", ".", "members", "x.parquet"], 2),
        ("teachers-sed", "/models/mine", ["me/small"], 1),
        ("ct-sed", "me/small", [], 1),
        ("base-whiten", "bundled:encoder", ["you/large"], 0),
    ],
)
def test_hubs_read_which_of_their_models_it_was_made_of(recipe, encoder, teachers, bases):
    export = {"license": "apache-2.0", "language": ["en", "de"]}
    config = make_config({"encoder": {"path": encoder}, "teachers": teachers, "export": export})
    run = SimpleNamespace(config=config, choice=SimpleNamespace(model=SimpleNamespace(recipe=recipe)))
    read = yaml.safe_load(metadata(_models_behind(run), config.export, "demo", {}))
    assert read.get("base_model", []) == ["me/small", "you/large"][:bases]
    assert read.get("base_model_relation") == ("finetune" if bases > 1 else None)
    assert (read["license"], read["language"]) == ("apache-2.0", ["en", "de"])
    bare = yaml.safe_load(metadata([], ExportConfig(), "demo", {}))
    assert not bare.keys() & {"license", "language", "base_model"}


def test_hubs_read_the_scores(tmp_path):
    """Those of the exported model, by the library that a hub reads cards with."""
    from huggingface_hub import ModelCard

    card(tmp_path)
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.base_model is None, "the bundled encoder is on no hub"
    assert (data.library_name, data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert data.model_name == "bundled:encoder-ct-sed"
    found = {result.dataset_name: result.metric_value for result in data.eval_results}
    assert found == {"sts12": 0.69, "sts13": 0.71}
