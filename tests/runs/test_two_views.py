"""Runs of `bsl` and `contrastive`: tables of views, members, and collapse."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from started_jobs import ALONE, ONE_LAYER, artefact, small_tasks

import raysed.pipeline
from raysed.config import Config, make_config
from raysed.errors import UserError
from raysed.store.storage import Storage

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]

SENTENCES = 200
MANY = 276  # five blocks of 64, the last one of 20


def settings(storage: Path, **changes) -> dict:
    nli = storage / "nli.tsv"
    words = ("red", "blue", "old", "new", "small", "big", "cheap", "fast")
    rows = [
        f"{('entailment', 'neutral')[i % 2]}\tA {word} car stops.\tThere is a {word} car."
        for i, word in enumerate(words)
    ]
    nli.write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    views = storage / "views.tsv"
    views.write_text("".join(f"Der {word} Wagen hält.\tThe {word} car stops.\n" for word in words))
    return {
        "run": "views",
        "storage": str(storage),
        "recipes": ["bsl", "nli-contrastive"],
        "export": {"recipe": changes.get("recipes", ["nli-contrastive"])[-1]},  # a few updates gain nothing
        "corpus": {"source": "bundled:generated-text", "sentences": SENTENCES},
        "encoder": ONE_LAYER,
        "evaluation": {"tasks": small_tasks(), "dev": "generated-dev", "pool_layers": [1]},
        "members": {"count": 2, "evaluate_every": 5, "checkpoint_every": 5},
        "nli": {"train": str(nli), "batch_size": 4},
        "views": {"files": str(views)},
        "bsl": {"views": ["entailment", "files"], "steps": 5, "batch_size": 16},
        "contrastive": {"views": ["same", "files"], "steps": 5, "batch_size": 16},
        "sed": {"epochs": 0.2, "learning_rate": 1e-4},
        "resources": ALONE,
        **changes,
    }


def run(storage: Path, **changes) -> list[str]:
    said: list[str] = []
    raysed.pipeline.run(make_config(settings(storage, **changes)), said.append)
    return said


def report(storage: Path) -> dict:
    return json.loads((storage / "views/report.json").read_text())


def manifest(storage: Path, name: str) -> dict:
    return json.loads((storage / f"views/manifest/{name}.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, list[str]]:
    storage = tmp_path_factory.mktemp("views")
    return storage, run(storage)


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """The finished run in a place of its own."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_each_kind_is_one_table_that_stages_share(finished):
    storage, said = finished
    assert {path.name for path in (storage / "views/views").iterdir()} == {"entailment", "files"}
    table = pq.read_table(storage / "views/views/files")
    assert table.column_names == ["id", "sentence1", "sentence2", "input_ids1", "input_ids2"] and len(table) == 8
    assert len(pq.read_table(storage / "views/views/entailment")) == 4
    assert any(line.startswith("files views: ") and "two identical views" in line for line in said)
    for node in ("bsl", "nli-contrastive"):
        assert "views/files" in manifest(storage, f"{node}/members/00")["depends"]


def test_the_report_and_the_card_say_what_views_were(finished):
    storage, _ = finished
    assert set(report(storage)["views"]) == {"entailment", "files"}
    text = (storage / "views/report.md").read_text()
    assert "## Views" in text and "| files " in text
    labels = {line.split()[1]: line.split()[2] for line in text.splitlines() if line.startswith("| members")}
    row = next(line for line in text.splitlines() if line.startswith("| members") and "| bsl " in line)
    assert "| NLI " in row, "views of pairs labelled entailment are labels"
    card = (storage / "views/model/README.md").read_text()
    assert "`contrastive.batch_size` | `16`" in card and "`contrastive.temperature`" not in card, labels
    made = json.loads((storage / "views/model/raysed.json").read_text())
    assert made["settings"]["contrastive.temperature"] == Config().contrastive.temperature, (
        "a default is not on the card"
    )


def test_members_have_their_own_histories_with_spread(finished):
    storage, _ = finished
    histories = [
        (artefact(storage / "views", f"bsl/members/{i:02d}") / "history.jsonl").read_text().splitlines()
        for i in range(2)
    ]
    first = [[json.loads(line) for line in lines] for lines in histories]
    assert [entry.pop(0)["step"] for entry in first] == [0, 0], "that of the untouched weights, with a dev score only"
    assert [entry["step"] for entry in first[0]] == [1, 2, 3, 4, 5]
    assert all(0 < entry["spread"] < 1.1 for entry in first[0])
    assert [entry["loss"] for entry in first[0]] != [entry["loss"] for entry in first[1]]


def test_another_setting_of_a_stage_keeps_the_views(copied):
    before = {name: manifest(copied, f"views/{name}")["checksum"] for name in ("entailment", "files")}
    time = (copied / "views/views/files").stat().st_mtime_ns
    run(copied, recipes=["bsl"], bsl={**settings(copied)["bsl"], "momentum": 0.9})
    assert {name: manifest(copied, f"views/{name}")["checksum"] for name in before} == before
    assert (copied / "views/views/files").stat().st_mtime_ns == time
    assert manifest(copied, "bsl/members/00")["depends"]["bsl"]["momentum"] == 0.9


def test_a_collapsed_member_is_named_and_left_out_of_the_mean(copied):
    """One of two members is declared collapsed; the other teaches the learner."""
    storage = Storage(str(copied), "views")
    entry = storage.entry("bsl/members/00")
    kept = copied / "kept"
    shutil.copytree(storage.fetch(entry.name), kept)
    meta = {**entry.meta, "collapsed": "collapsed: as a test"}
    storage.commit(entry.name, lambda path: shutil.copytree(kept, path, dirs_exist_ok=True), entry.depends, meta)
    storage.remove("bsl/ensemble")
    said = run(copied, recipes=["bsl-whiten", "bsl-sed"])
    assert "left out: bsl/members/00: collapsed: as a test" in said
    assert list(manifest(copied, "bsl-sed/targets")["depends"]["teachers"]) == ["bsl/members/01"]
    found = report(copied)
    assert found["members"] == [{"recipe": "bsl", "index": 0, "reason": "collapsed: as a test"}]
    rows = {(row["kind"], row["index"]): row for row in found["rows"] if row["recipe"] == "bsl"}
    assert set(rows) == {("member", 0), ("member", 1), ("ensemble", 0)}
    assert rows["ensemble", 0]["metrics"] == rows["member", 1]["metrics"]
    assert [rows["member", index]["left_out"] for index in range(2)] == [True, False]
    counts = {(entry["kind"], entry["n"]) for entry in found["summary"] if entry["recipe"] == "bsl"}
    assert counts == {("member", 1), ("ensemble", 1)}
    assert not (copied / "views/bsl-whiten/calibrations/00").exists()
    assert (copied / "views/bsl-whiten/calibrations/01").exists()
    assert "1 of bsl" in found["findings"]


def test_where_all_collapse_nothing_is_averaged(tmp_path):
    """No predictor, a target that follows at once, and a high rate; the members alone are still reported."""
    bsl = {
        **{"views": ["entailment"], "steps": 40, "batch_size": 4, "learning_rate": 5e-3},
        **{"momentum": 0.0, "predictor": "none", "warmup": 0.0, "decay": "constant"},
    }
    changes = {"bsl": bsl, "members": {"count": 2, "evaluate_every": 20, "checkpoint_every": 20}}
    run(tmp_path, recipes=["bsl"], **changes)
    assert [left["reason"][:9] for left in report(tmp_path)["members"]] == ["collapsed"] * 2
    assert {row["kind"] for row in report(tmp_path)["rows"] if row["recipe"] == "bsl"} == {"member"}
    with pytest.raises(
        UserError, match="only 0 of 2 members of bsl have not collapsed, but 1 are needed; bsl/members/00: collaps"
    ):
        run(tmp_path, recipes=["bsl-sed"], **changes)
