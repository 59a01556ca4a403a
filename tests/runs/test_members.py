"""Runs of several member stages: prefixes, the grid and its winner, what is made again and what not."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from started_jobs import ALONE, artefact, small_tasks

import raysed.make.scores
import raysed.pipeline
from raysed.config import make_config
from raysed.context import Context, Outcome
from raysed.errors import UserError
from raysed.graph import Task
from raysed.make import models
from raysed.store.storage import Storage

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]

RECIPES = ["ct", "nli-ct", "nli-ct-flow", "sts-sed", "mlm"]


def settings(storage: Path, **changes) -> dict:
    nli = storage / "nli.tsv"
    words = ("red", "blue", "old", "new")
    labels = ("entailment", "neutral", "contradiction", "-")
    rows = [f"{labels[i % 4]}\tA {w} car stops.\tThe {words[i % 3]} car is here." for i, w in enumerate(words * 12)]
    nli.write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    return {
        "run": "stages",
        "storage": str(storage),
        "recipes": RECIPES,
        "corpus": {"source": "bundled:generated-text", "sentences": 200},
        "encoder": {"path": "bundled:raw", "keep_layers": [0, 2]},
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [2]},
        "export": {"allow_worse": True},  # a few updates gain nothing
        "members": {"count": 2, "evaluate_every": 4, "checkpoint_every": 4, "precision": "fp32"},
        "mlm": {"batch_size": 20, "learning_rate": 1e-4},
        "nli": {"train": str(nli)},
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
        for name in ("nli/members", "mlm/members", "sts/grid/0.7"):
            first = history(f"{name}/{index:02d}")[0]
            assert first["step"] == 0 and set(first["dev"].values()) == {round(base, 6)}


def test_the_planted_bound_wins_and_its_models_are_the_ensemble(finished):
    storage, said = finished
    grid = report(storage)["grids"][0]
    assert (grid["winner"], grid["runner_up"], grid["task"]) == (0.7, 0.0, "generated-dev")
    of_bound = {bound["lower_bound"]: bound for bound in grid["bounds"]}
    assert grid["score"] == pytest.approx(np.mean(of_bound[0.7]["scores"]))
    assert grid["margin"] == pytest.approx(grid["score"] - np.mean(of_bound[0.0]["scores"])) and grid["margin"] > 0
    teachers = json.loads((storage / "stages/manifest/sts-sed/targets.json").read_text())["depends"]["teachers"]
    assert sorted(teachers) == ["sts/grid/0.7/00", "sts/grid/0.7/01"]
    assert any(line.startswith("sts: lower bound 0.7 wins") for line in said)


def test_the_report_has_grid_rows_members_and_labels(finished):
    storage, _ = finished
    rows = report(storage)["rows"]
    grid = [(row["lower_bound"], row["index"]) for row in rows if row["kind"] == "grid"]
    assert sorted(grid) == [(0.0, 0), (0.0, 1), (0.7, 0), (0.7, 1)]
    members = {row["recipe"] for row in rows if row["kind"] == "member"}
    assert members == {"ct", "nli-ct", "nli-ct-flow", "sts", "mlm"}
    best = {row["index"]: row["metrics"]["generated-dev"]["spearman"] for row in rows if row["lower_bound"] == 0.7}
    scored = {
        row["index"]: row["metrics"]["generated-dev"]["spearman"]
        for row in rows
        if (row["recipe"], row["kind"]) == ("sts", "member")
    }
    assert scored == pytest.approx(best, abs=1e-4)  # the weights that were kept are those that were scored
    text = (storage / "stages/report.md").read_text()
    assert "## Lower bounds" in text and "plots/grid-sts.png" in text and "| NLI" in text and "| STS" in text


def test_a_decided_grid_is_not_trained_again(finished, tmp_path, caplog):
    """Its losers are gone and another recipe uses the winner: nothing but that recipe's flow is made."""
    storage = finished[0]
    subprocess.run(["cp", "-a", f"{storage}/.", str(tmp_path)], check=True)
    for place in ("stages", "stages/manifest"):
        subprocess.run(["rm", "-r", str(tmp_path / place / "sts/grid/0")], check=True)
    before = published(tmp_path)
    with caplog.at_level("INFO", logger="raysed"):
        run(tmp_path, recipes=[*RECIPES, "sts-flow"], nli={"train": str(storage / "nli.tsv")})
    after = published(tmp_path)
    assert trials(caplog) == []
    assert {name for name in after if before.get(name) != after[name]} == {
        "sts-flow/calibrations/00", "sts-flow/calibrations/01", "model", "plots",
    }  # fmt: skip


def test_another_bound_is_trained_beside_those_that_are_there(finished, tmp_path, caplog):
    storage = finished[0]
    subprocess.run(["cp", "-a", f"{storage}/.", str(tmp_path)], check=True)
    sts = {**settings(tmp_path)["sts"], "lower_bounds": [0.0, 0.7, 0.05]}
    with caplog.at_level("INFO", logger="raysed"):
        run(tmp_path, sts=sts, recipes=["sts"])
    assert trials(caplog) == [2]
    grid = report(tmp_path)["grids"][0]
    assert [bound["lower_bound"] for bound in grid["bounds"]] == [0.0, 0.05, 0.7] and grid["winner"] == 0.7


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
        member = Task(name, "", models.member, storage.entry(name).depends, {}, {})
        assert models.train(member, None, storage, Context()) == Outcome()
