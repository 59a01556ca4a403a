"""The model card of made-up runs: what it says of which model, and that names in it are only names."""

import json
import re
from types import SimpleNamespace

import pytest
import yaml
from made_up import full_run, scored

from raysed.config import make_config
from raysed.model.calibration import Flow
from raysed.plan.artefacts import Facts, ScoredModel
from raysed.recipe import parse_recipe
from raysed.report.card import metadata, story, write_card
from raysed.report.choice import Choice

NASTY = '<img src=x onerror="alert(1)"> [me](http://x) $5$'


def card(path, text="ct-sed", calibration=None, is_static=False, facts=None, **settings) -> str:
    config = make_config({"run": "demo", "recipes": [text], **settings})
    lengths = {"max_length": 75, "sentences": 2000, "tokens": 30_000, "truncated_sentences": 50, "lost_tokens": 600}
    known = {"corpus": {"lengths": lengths}, "left_out": {"ct/members/09": "collapsed"}}
    known["members"] = {"ct": [f"ct/members/{i:02}" for i in range(10)]}
    encoder = SimpleNamespace(parameters=list, width=16, is_static=is_static)
    kind = "learner" if "sed" in text else "base"
    run = SimpleNamespace(
        config=config,
        scores=scored(full_run(), fitted_on="corpus"),
        facts=Facts(**{"cluster": "", **known, **(facts or {})}),
        choice=Choice(ScoredModel(text, kind, 0, "", (1,), None), "the only one"),
        speed=512.3,
        exported=SimpleNamespace(encoder=encoder, calibration=calibration),
        sanity={"triples": 50, "exported": 48, "base": 40, "words": 23},
    )
    write_card(run, path)
    return (path / "README.md").read_text(encoding="utf-8")


def test_it_says_what_was_done(tmp_path):
    text = card(tmp_path, ct={"steps": 500}, encoder={"path": "prajjwal1/bert-tiny", "layers": "first_last"})
    for part in (
        "9 copies of prajjwal1/bert-tiny",
        "9 averaged, 1 left out",
        "bundled:everyday: 2,000 sentences, 30,000 tokens",
        "2.50% of the sentences, which lost 1.96% of all tokens",
        "first and the last layer",
        "mean over sts12, sts13; higher is better.",
        "| `ct.steps` | `500` |",
        "16 numbers",
        "about 510 sentences per second",
        "It answers 48 of 50 English triples",
        "recipe `ct-sed`",
    ):
        assert part in text, part
    assert "trust_remote_code" not in text and "onnx" not in text and not re.search(r"\{|\}|None", text)
    assert json.loads((tmp_path / "raysed.json").read_text())["settings"]["ct.steps"] == 500


def test_trust_is_asked_for_where_there_is_code(tmp_path):
    text = card(tmp_path, "ct-sed-flow", Flow(16))
    assert 'directory", trust_remote_code=True)' in text and "classifier" in text and "fitted on | the corpus" in text
    (tmp_path / "config.json").write_text('{"auto_map": {}}')
    assert "came with code of its own: the Python files" in card(tmp_path)


def test_an_untrained_base_claims_no_training(tmp_path):
    text = card(tmp_path, "base-whiten", flow={"fit_on": "tasks"})
    assert "bundled:everyday" not in text and "averaged" not in text and "whitening" in text


def test_it_says_how_other_formats_are_loaded(tmp_path):
    text = card(tmp_path, export={"formats": ["onnx", "int8"]})
    for file in ("onnx/model.onnx", "onnx/model_qint8_avx512_vnni.onnx"):
        assert f'backend="onnx", model_kwargs={{"file_name": "{file}"}})' in text


def test_names_are_shown_as_they_are(tmp_path):
    """Of teachers, views, pairs, tasks and sources, whatever they hold."""
    teachers = [{"path": "a/b", "name": NASTY}]
    facts = {"shares_space_of": NASTY, "members": {}, "left_out": {}}
    text = card(tmp_path, "teachers-sed", None, True, facts, teachers=teachers, corpus={"source": NASTY})
    assert text.count("&lt;img") >= 4 and not re.search(r"<img|(?<!\\)\[me|(?<!\\)\$5", text.replace("`<", ""))
    assert "A table of one vector per token, which started from what" in text


@pytest.mark.parametrize("base", ["bundled:encoder", "/models/mine", "."])
def test_base_model_is_a_hub_id_or_absent(base):
    assert "base_model" not in yaml.safe_load(metadata(base, "demo", {}))
    assert yaml.safe_load(metadata("prajjwal1/bert-tiny", "demo", {}))["base_model"] == "prajjwal1/bert-tiny"


def test_hubs_read_the_scores(tmp_path):
    """Those of the exported model, by the library that a hub reads cards with."""
    from huggingface_hub import ModelCard

    card(tmp_path)
    data = ModelCard.load(tmp_path / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.model_name) == (
        "sentence-transformers",
        "sentence-similarity",
        "demo-ct-sed",
    )
    scores = scored(full_run())
    (row,) = [row for row in scores.of(("ct-sed", "learner")) if row.index == 0]
    found = {result.dataset_name: result.metric_value for result in data.eval_results}
    assert found == {task: round(row.metrics[task]["spearman"] / 100, 4) for task in scores.tasks}


@pytest.mark.parametrize(
    ("text", "members", "wanted"),
    [
        ("base", 0, "The encoder is X as it is."),
        ("base-sn-natsv", 0, "The encoder is X as it is; every coordinate was then .*; the directions .* removed."),
        ("ct", 3, "3 copies of X were trained with Contrastive .* random numbers; this .* one of them."),
        ("ct", 1, r"X was trained with Contrastive Tension \(.*\)."),
        ("ct-sed-flow", 9, "9 copies of X were .*; one new copy of X .* average .*; a normalizing flow .*."),
    ],
)
def test_story(text, members, wanted):
    found = story(parse_recipe(text), "X", members)
    assert re.fullmatch(wanted, found), found
