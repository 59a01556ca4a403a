"""Runs of several member stages: prefixes, views, the grid and its winner, collapse, and what is made again."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from started_jobs import ALONE, ONE_LAYER, artefact, small_tasks

import raysed.make.scores
import raysed.pipeline
from raysed.config import make_config, stable_hash
from raysed.context import Context, Outcome
from raysed.errors import UserError
from raysed.made import Step
from raysed.make import models
from raysed.store.storage import Storage

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]

RECIPES = ["ct", "nli-ct", "nli-ct-flow", "sts-sed", "mlm", "bsl", "nli-contrastive"]


def settings(storage: Path, **changes) -> dict:
    nli = storage / "nli.tsv"
    words = ("red", "blue", "old", "new", "small", "big", "cheap", "fast")
    follows = {"entailment": "There is a", "neutral": "I like a", "contradiction": "There is no", "-": "It is a"}
    rows = [f"{label}\tA {word} car stops.\t{start} {word} car." for label, start in follows.items() for word in words]
    nli.write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    views = storage / "views.tsv"
    views.write_text("".join(f"Der {word} Wagen hält.\tThe {word} car stops.\n" for word in words))
    return {
        "run": "stages",
        "storage": str(storage),
        "recipes": RECIPES,
        "corpus": {"source": "bundled:generated-text", "sentences": 200},
        "encoder": {"path": "bundled:raw", "keep_layers": [0, 2]},
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [2]},
        "export": {"recipe": changes.get("recipes", RECIPES)[-1], "allow_worse": True},  # a few updates gain nothing
        "members": {"count": 2, "evaluate_every": 4, "checkpoint_every": 4, "precision": "fp32"},
        "mlm": {"batch_size": 20, "learning_rate": 1e-4},
        "nli": {"train": str(nli), "batch_size": 4},
        "views": {"files": str(views)},
        "bsl": {"views": ["entailment", "files"], "steps": 5, "batch_size": 16},
        "contrastive": {"views": ["same", "files"], "steps": 5, "batch_size": 16},
        "ct": {"steps": 4, "schedule": "scaled", "learning_rates": [1e-4] * 5},
        # The encoder's cosines are all near 0.7, so a few updates get nowhere near targets down to 0.
        "sts": {
            "train": "bundled:generated-train",
            "lower_bounds": [0.0, 0.7],
            "models": 2,
            "epochs": 0.4,
            "learning_rate": 2e-4,
        },
        "sed": {"epochs": 1, "learning_rate": 1e-3, "evaluate_every": 3},
        "resources": ALONE,
        **changes,
    }


def run(storage: Path, **changes) -> list[str]:
    said: list[str] = []
    raysed.pipeline.run(make_config(settings(storage, **changes)), said.append)
    return said


def report(storage: Path) -> dict:
    return json.loads((storage / "stages/report.json").read_text())


def manifest(storage: Path, name: str) -> dict:
    return json.loads((storage / f"stages/manifest/{name}.json").read_text())


def of_members(storage: Path, place: str, *indices: int) -> str:
    """How the fingerprint of a mean names its members."""
    return stable_hash([stable_hash(manifest(storage, f"{place}/{index:02d}")["depends"]) for index in indices])


def trials(caplog) -> list[int]:
    """Members to train, by experiment."""
    return [int(m[1]) for m in map(re.compile(r"training (\d+) of").match, caplog.messages) if m]


def published(storage: Path) -> dict[str, int]:
    root = storage / "stages/manifest"
    return {p.relative_to(root).with_suffix("").as_posix(): p.stat().st_mtime_ns for p in root.rglob("*.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, list[str]]:
    """An undisturbed run, and what it said."""
    storage = tmp_path_factory.mktemp("stages")
    return storage, run(storage)


def test_histories_begin_with_the_dev_score_of_the_start(finished):
    """That of the member before where one is continued, else that of the base; also of grid models."""
    storage, _ = finished

    def history(name: str) -> list[dict]:
        return [json.loads(line) for line in (artefact(storage / "stages", name) / "history.jsonl").open()]

    rows = report(storage)["rows"]
    (base,) = [row["metrics"]["generated-dev"]["spearman"] for row in rows if row["recipe"] == "base"]
    for index in range(2):
        before = json.loads((storage / f"stages/manifest/nli/members/{index:02d}.json").read_text())["meta"]["dev"]
        (start,) = set(history(f"nli-ct/members/{index:02d}")[0]["dev"].values())
        assert start == pytest.approx(before, abs=1e-4) and start != pytest.approx(base, abs=1e-4)
    fresh = [f"{name}/{index:02d}" for name in ("nli/members", "mlm/members", "sts/grid/0.7") for index in range(2)]
    for name in (*fresh, "sts-sed/learners/00"):
        first = history(name)[0]
        assert first["step"] == 0 and set(first["dev"].values()) == {round(base, 6)}


def test_the_planted_bound_wins_and_its_models_are_the_ensemble(finished):
    storage, said = finished
    grid = report(storage)["grids"][0]
    assert (grid["winner"], grid["runner_up"], grid["task"]) == (0.7, 0.0, "generated-dev")
    of_bound = {bound["lower_bound"]: bound for bound in grid["bounds"]}
    assert grid["score"] == pytest.approx(np.mean(of_bound[0.7]["scores"]))
    assert grid["margin"] == pytest.approx(grid["score"] - np.mean(of_bound[0.0]["scores"])) and grid["margin"] > 0
    assert manifest(storage, "sts-sed/targets")["depends"]["teachers"] == of_members(storage, "sts/grid/0.7", 0, 1)
    assert any(line.startswith("sts: lower bound 0.7 wins") for line in said)


def test_a_decided_grid_is_not_trained_again(finished, tmp_path, caplog):
    """Its losers are gone and another recipe uses the winner: nothing but that recipe's flow is made."""
    storage = finished[0]
    subprocess.run(["cp", "-a", f"{storage}/.", str(tmp_path)], check=True)
    subprocess.run(["rm", "-r", str(tmp_path / "stages/sts/grid/0")], check=True)
    before = published(tmp_path)
    with caplog.at_level("INFO", logger="raysed"):
        run(tmp_path, recipes=[*RECIPES, "sts-flow"])
    after = published(tmp_path)
    assert trials(caplog) == []
    assert {name for name in after if before.get(name) != after[name]} == {
        "sts-flow/calibrations/00", "sts-flow/calibrations/01", "model", "plots",
    }  # fmt: skip


def test_only_what_reads_files_misses_them(finished, tmp_path, caplog):
    """Members and targets are gone, and another recipe is added that needs none of them."""
    subprocess.run(["cp", "-a", f"{finished[0]}/.", str(tmp_path)], check=True)
    for path in (tmp_path / "stages").glob("*/*"):
        if path.name in ("members", "grid", "targets") and path.parent.name != "manifest":
            shutil.rmtree(path)
    before = published(tmp_path)
    with caplog.at_level("INFO", logger="raysed"):
        run(tmp_path, recipes=[*RECIPES, "base-whiten"], export={"recipe": "base-whiten", "allow_worse": True})
    after = published(tmp_path)
    assert {name for name in after if before.get(name) != after[name]} == {
        "base-whiten/calibrations/00", "model", "plots",
    }  # fmt: skip
    assert trials(caplog) == []


def test_members_are_not_lost_to_a_calibration_that_fails(finished, tmp_path, monkeypatch):
    """One member's at the main pooling, the other's at a side table's: the run ends with all else, and says why."""
    storage = finished[0]
    subprocess.run(["cp", "-a", f"{storage}/.", str(tmp_path)], check=True)
    fit = raysed.make.scores.fit_calibration
    calls: list[str] = []

    def failing(stages, *rest):
        calls.append("-".join(stages))
        if stages == ["sn"] and calls.count("sn") in (4, 5):  # after the base's; its poolings are two, as here
            raise UserError("the rows are planted")
        return fit(stages, *rest)

    monkeypatch.setattr(raysed.make.scores, "fit_calibration", failing)
    changes = {
        "recipes": ["sts", "sts-sn"],
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [1]},
    }
    said = run(tmp_path, **changes)
    assert "left out: sts-sn/calibrations/01: no fit with 1 pooled layers: the rows are planted" in said
    assert "left out: sts-sn/calibrations/00: the rows are planted" in said
    rows = {(row["recipe"], row["index"], row["layers"]) for row in report(tmp_path)["rows"]}
    assert {key for key in rows if key[0] == "sts-sn"} == {("sts-sn", 1, 2), ("sts-sn", 0, 2)}  # with the ensemble's
    assert {("sts", index, layers) for index in (0, 1) for layers in (1, 2)} <= rows
    text = (tmp_path / "stages/report.md").read_text()
    assert "the rows are planted" in text and report(tmp_path)["status"] == "complete"


def test_a_calibration_that_fails_on_the_base_ends_the_run_before_training(tmp_path, monkeypatch):
    def failing(stages, *rest):
        raise UserError("the rows are planted")

    monkeypatch.setattr(raysed.make.scores, "fit_calibration", failing)
    with pytest.raises(UserError, match="base-sn/calibrations/00: the rows are planted"):
        run(tmp_path, recipes=["ct-sn"])
    assert not [name for name in published(tmp_path) if "members" in name]


def test_what_was_finished_before_the_worker_was_lost_is_not_trained_again(finished):
    storage = Storage(str(finished[0]), "stages")
    for name in ("ct/members/00", "ct/members/01"):
        member = Step(name, "", models.train_member, storage.entry(name).depends, {}, {"options": None})
        assert models.train(member, None, storage, Context()) == Outcome()


# -- views and collapse ------------------------------------------------------------------------------------------------


def test_each_kind_is_one_table_that_stages_share(finished):
    storage, said = finished
    assert {path.name for path in (storage / "stages/views").iterdir()} == {"entailment", "files"}
    table = pq.read_table(storage / "stages/views/files")
    assert table.column_names == ["id", "sentence1", "sentence2", "input_ids1", "input_ids2"] and len(table) == 8
    assert len(pq.read_table(storage / "stages/views/entailment")) == 8
    assert any(line.startswith("files views: ") and "two identical views" in line for line in said)
    for node in ("bsl", "nli-contrastive"):
        assert "views/files" in manifest(storage, f"{node}/members/00")["depends"]


def test_the_report_and_the_card_say_what_views_were(finished):
    storage, _ = finished
    assert set(report(storage)["views"]) == {"entailment", "files"}
    text = (storage / "stages/report.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| members") and "| bsl " in line)
    assert "| NLI " in row, "views of pairs labelled entailment are labels"
    card = (storage / "stages/model/README.md").read_text()
    assert "`contrastive.batch_size` | `16`" in card and "`contrastive.temperature`" not in card


def test_a_collapsed_member_is_named_and_left_out_of_the_mean(finished, tmp_path):
    """One of two members is declared collapsed; the other teaches the learner."""
    subprocess.run(["cp", "-a", f"{finished[0]}/.", str(tmp_path)], check=True)
    storage = Storage(str(tmp_path), "stages")
    entry = storage.entry("bsl/members/00")
    kept = tmp_path / "kept"
    shutil.copytree(storage.fetch(entry.name), kept)
    meta = {**entry.meta, "collapsed": "collapsed: as a test"}
    storage.commit(entry.name, lambda path: shutil.copytree(kept, path, dirs_exist_ok=True), entry.depends, meta)
    said = run(tmp_path, recipes=["bsl-whiten", "bsl-sed"])
    assert "left out: bsl/members/00: collapsed: as a test" in said
    assert manifest(tmp_path, "bsl-sed/targets")["depends"]["teachers"] == of_members(tmp_path, "bsl/members", 1)
    found = report(tmp_path)
    assert found["members"] == [{"recipe": "bsl", "index": 0, "reason": "collapsed: as a test"}]
    rows = {(row["kind"], row["index"]): row for row in found["rows"] if row["recipe"] == "bsl"}
    assert set(rows) == {("member", 0), ("member", 1), ("ensemble", 0)}
    assert rows["ensemble", 0]["metrics"] == rows["member", 1]["metrics"]
    assert [rows["member", index]["left_out"] for index in range(2)] == [True, False]
    counts = {(entry["kind"], entry["n"]) for entry in found["summary"] if entry["recipe"] == "bsl"}
    assert counts == {("member", 1), ("ensemble", 1)}
    assert not (tmp_path / "stages/bsl-whiten/calibrations/00").exists()
    assert (tmp_path / "stages/bsl-whiten/calibrations/01").exists()
    assert "1 of bsl" in found["findings"]


def test_where_all_collapse_nothing_is_averaged(tmp_path):
    """No predictor, a target that follows at once, and a high rate; the members alone are still reported."""
    bsl = {
        **{"views": ["entailment"], "steps": 40, "batch_size": 4, "learning_rate": 5e-3},
        **{"momentum": 0.0, "predictor": "none", "warmup": 0.0, "decay": "constant"},
    }
    changes = {"bsl": bsl, "members": {"count": 1, "evaluate_every": 20, "checkpoint_every": 20}}
    changes |= {"encoder": ONE_LAYER, "evaluation": {**settings(tmp_path)["evaluation"], "pool_layers": [1]}}
    run(tmp_path, recipes=["bsl"], **changes)
    assert [left["reason"][:9] for left in report(tmp_path)["members"]] == ["collapsed"]
    assert {row["kind"] for row in report(tmp_path)["rows"] if row["recipe"] == "bsl"} == {"member"}
    with pytest.raises(
        UserError, match="only 0 of 1 members of bsl have not collapsed, but 1 are needed; bsl/members/00: collaps"
    ):
        run(tmp_path, recipes=["bsl-sed"], **changes)
