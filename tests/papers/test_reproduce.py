"""The papers' numbers as printed, the runs of every table, and our values beside the published ones."""

import json
import math
import random
import re
import runpy
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.compare import NO_DATA, NO_RESULT, SMALL_NOTE, Comparison, compare, find_values
from papers.data import Finder, Request, draw_pairs, read_pairs, write_pairs
from papers.plan import Plan, make_plan
from papers.published import TABLES, Row, Table, load_published, load_yaml
from papers.run import measure, reproduce
from raysed.config import TaskConfig, make_config
from raysed.data.graded import load_task
from raysed.errors import UserError
from raysed.recipe import parse_recipe
from raysed.report.document import Document
from raysed.report.scores import Row as ScoredRow
from raysed.report.scores import ScoreTable

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = load_published()
RUNS = load_yaml(TABLES / "runs.yaml")


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Reading the tables takes a second for each plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papers.plan.load_published", lambda: PUBLISHED)
        patch.setattr("papers.plan.load_yaml", lambda path: RUNS)
        yield


# -- what the papers print -------------------------------------------------------------------------------------------


def test_the_published_tables_are_the_ones_that_were_checked_against_the_papers():
    """Every number was compared with the papers once; a change here needs that again."""
    expected = "7b97678f416537799aa4dbf990b61a1a1d51f6cbe21f805ee22c7ea21f44b40f"
    assert sha256((TABLES / "published.yaml").read_bytes()).hexdigest() == expected


def test_the_list_has_every_table_and_loads_no_heavy_library():
    command = [sys.executable, "-X", "importtime", "jobs/reproduce.py", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    numbers = {"sed": range(1, 9), "bert-flow": (1, 2, 3, 4, 5, 6, 8), "bsl": (1, 2, 3, 4, 6, 7, 8, 9, 10)}
    expected = [f"{paper}-table-{number}" for paper in numbers for number in numbers[paper]]
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(PUBLISHED) == expected
    assert " yaml\n" in done.stderr and not re.search(r"\| +(torch|ray|transformers)\n", done.stderr)


# -- runs ------------------------------------------------------------------------------------------------------------


def request(tmp_path: Path, table: str, scale: str = "small", **changes) -> Request:
    given = {"data": tmp_path / "data", "output": tmp_path / "tables", "storage": str(tmp_path / "runs"), **changes}
    return Request(table, scale, **given)


def plan_of(tmp_path: Path, table: str, scale: str = "small", **changes) -> Plan:
    return make_plan(request(tmp_path, table, scale, **changes))


def write_task(path: Path, pairs: int, subsets: int = 1, low: float = 0) -> None:
    rng = random.Random(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    share = [range(i, pairs, subsets) for i in range(subsets)]
    columns = {
        f"s{i}": ([f"one {k}" for k in rows], [f"two {k}" for k in rows], [rng.uniform(low, 5) for _ in rows])
        for i, rows in enumerate(share)
    }
    write_pairs(path, columns)


def write_all(directory: Path, files: dict[str, Sequence[str]]) -> None:
    for name, lines in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def small_data(tmp_path) -> Path:
    """Some tasks, no STS14 and STS16, NLI and text; no translations, books or arguments."""
    for name in ("sts12", "sts13", "sts15", "stsb-train", "stsb-dev", "stsb-test"):
        write_task(tmp_path / f"data/sts/{name}.tsv", 400, subsets=4)
    nli = [f"train\tentailment\tA man runs {i}.\tHe moves {i}." for i in range(3)]
    nli.insert(0, "split\tlabel\tpremise\thypothesis")
    write_all(tmp_path / "data", {"nli/snli-sample.tsv": nli, "corpus/wikipedia-12k.txt": ["A sentence."]})
    return tmp_path


TEXTS = ("nli", "books", "afs")


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory) -> Path:
    """Files where SentEval and GLUE have them; graded pairs as many as the papers have, of the rest a trace."""
    directory = tmp_path_factory.mktemp("papers")
    files = {"wikipedia-sentences.txt": ["A sentence."], "downstream/MR/rt-polarity.pos": []}
    files["books-5m-sentences.txt"] = ["Said she."]
    for year, counts in {12: [1500, 1608], 13: [1500], 14: [3000, 750], 15: [3000], 16: [1186]}.items():
        for number, count in enumerate(counts):
            place = f"downstream/STS/STS{year}-en-test/STS"
            files[f"{place}.input.part{number}.txt"] = [f"one {i}\ttwo {i}" for i in range(count)]
            files[f"{place}.gs.part{number}.txt"] = [f"{i % 6}" for i in range(count)]
    files |= {f"views/{name}.parquet": [] for name in ("nli-synonyms", *(f"{t}-back-translations" for t in TEXTS))}
    files |= {f"nli-translations/en-{other}.tsv": ["One.\tEin."] for other in ("ar", "es", "tr", "de", "fr")}
    for languages in ("en-en", "es-es", "ar-ar", "en-ar", "en-de", "en-tr", "es-en", "fr-en"):
        files[f"STS2017-extended/STS.{languages}.txt"] = [f"one {i}\ttwo {i}\t{i % 6}" for i in range(250)]
    for topic in ("DP", "GC", "GM"):
        lines = [f'{i % 6},"{topic} one, {i}",{topic} two {i}' for i in range(5)]
        files[f"AFS/ArgPairs_{topic}.csv"] = ["regression_label,sentence_1,sentence_2", *lines]
    for split, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        lines = [f"news\tx\t2017\t{i}\t{i % 6}\tone {i}\ttwo {i}\textra" for i in range(count)]
        files[f"downstream/STS/STSBenchmark/sts-{split}.csv"] = lines
        rows = [f'0\tWhy "{split}?\tBecause.\tentailment', "1\tHow?\tThus.\tnot_entailment"]
        files[f"QNLI/{split}.tsv"] = ["index\tquestion\tsentence\tlabel", *rows]
    for split, count in (("train", 4500), ("trial", 500), ("test_annotated", 4927)):
        lines = [f"{i}\tone {i}\ttwo {i}\t{1 + i % 5}\tNEUTRAL" for i in range(count)]
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
        files[f"downstream/SICK/SICK_{split}.txt"] = [header, *lines]
    for name in ("snli_1.0_train", "snli_1.0_dev", "snli_1.0_test", "multinli_1.0_train"):
        pair = {"gold_label": "entailment", "sentence1": f"In {name}.", "sentence2": "Said\nso."}
        files[f"nli/{name}.jsonl"] = [json.dumps(pair), json.dumps({**pair, "gold_label": "-"})]
    write_all(directory / "data", files)
    return directory


@pytest.fixture(scope="module")
def paper_plans(paper_data) -> dict[str, Plan]:
    return {name: plan_of(paper_data, name, "paper") for name in PUBLISHED}


def test_all_tables_resolve_at_the_scale_of_the_paper(paper_plans):
    """Each setting is known, each recipe can be read, nothing is missing, and what is exported is one model."""
    for name, plan in paper_plans.items():
        assert plan.configs and not plan.missing and not plan.missing_tasks, name
        for config in plan.configs.values():
            assert all(parse_recipe(recipe) for recipe in config.recipes)
            assert config.encoder.path != "bundled:encoder"
            assert not config.flow.per_task or not parse_recipe(config.export.recipe).calibration


def test_other_pairs_are_noted_and_what_is_missing_is_refused_at_the_scale_of_the_paper(small_data, paper_data):
    for topic in ("DP", "GC"):
        lines = (paper_data / f"data/AFS/ArgPairs_{topic}.csv").read_text().splitlines()
        write_all(small_data / "data/AFS", {f"ArgPairs_{topic}.csv": lines})
    finder = Finder(
        RUNS["data"] | {"afs": {**RUNS["data"]["afs"], "at": ["AFS"]}}, 150, request(small_data, "any", "paper")
    )
    assert finder.task("afs") and finder.task("sts14") is None and finder.task("sts12")["source"].endswith("sts12.tsv")
    assert finder.different == {"afs": "no pairs of GM", "sts12": "400 scored pairs instead of 3,108"}
    for name in ("sts12", "sts13", "sts15", "stsb-dev"):
        (small_data / f"data/sts/{name}.tsv").unlink()
    with pytest.raises(UserError, match=r"sed-table-1 needs data .*wikipedia-sentences\.txt.*STS14-en-test"):
        plan_of(small_data, "sed-table-1", "paper")


def test_missing_data_at_the_small_scale_leaves_out_what_needs_it(small_data):
    plan = plan_of(small_data, "sed-table-2")
    assert set(plan.missing) == plan.missing_tasks == {"sts14", "sts16"}
    config = plan.configs["sed-bert-large"]
    assert list(config.evaluation.tasks) == ["sts12", "sts13", "sts15", "stsb-dev"]
    assert config.flow.fit_tasks == config.evaluation.report_tasks() == ["sts12", "sts13", "sts15"]
    (small_data / "data/nli/snli-sample.tsv").unlink()
    plan = plan_of(small_data, "sed-table-2")
    assert plan.configs == {} and "nli" in plan.missing
    recipes = plan_of(small_data, "sed-table-8").configs["sed-bert-large"].recipes
    assert recipes == ["base", "base-flow", "ct", "ct-flow", "ct-sed", "ct-sed-flow"]


def test_the_users_settings_go_over_all_others_and_are_not_looked_for(small_data):
    overrides = ("evaluation.tasks.sts14=mteb/sts14-sts", "corpus.source=my.txt", "ct.steps=7")
    plan = plan_of(small_data, "sed-table-1", encoder="my-encoder", overrides=overrides)
    config = plan.configs["sed-bert-large"]
    assert plan.missing_tasks == {"sts16"} and "sts14" in config.evaluation.report_tasks()
    assert config.evaluation.tasks["sts14"].source == "mteb/sts14-sts" and config.corpus.source == "my.txt"
    assert (config.encoder.path, config.ct.steps) == ("my-encoder", 7)
    assert config.members.count == RUNS["small"]["set"]["members.count"] == 2
    assert load_task("sts12", config.evaluation.tasks["sts12"]).pairs <= RUNS["small"]["pairs"] + 4
    plan = plan_of(small_data, "bsl-table-9", overrides=("views.files=mine.tsv",))
    assert plan.configs["bsl-bert"].bsl.views == ["files"]
    assert not any("stand in for nli-back-translations" in note for note in plan.notes)
    with pytest.raises(UserError, match=r"unknown setting ct\.step"):
        plan_of(small_data, "bert-flow-table-5", overrides=("ct.step=5",))


def test_views_that_are_missing_are_replaced_at_the_small_scale_and_it_is_said(small_data):
    plan = plan_of(small_data, "bsl-table-4")
    files = {name: [source.source for source in config.views.files] for name, config in plan.configs.items()}
    del files["bsl-entailment"]
    assert set(files) == {"bsl-bert", "bsl-books", "bsl-books-and-nli", "bsl-back-translation-entailment"}
    assert {file for (file,) in files.values()} == set(plan.masked) and len(plan.masked) == 3, "one for each corpus"
    assert all(model == "bundled:raw" for _, model in plan.masked.values())
    assert plan.same["bsl-synonym"] == plan.same["bsl-mlm"] == "bsl-bert"
    said = "Views by bundled:raw, a masked language model, stand in for {}."
    assert plan.notes.count(said.format("nli-back-translations")) == 1 and said.format("nli-synonyms") in plan.notes


# -- data ------------------------------------------------------------------------------------------------------------


def test_sentevals_files_are_read_as_they_are(tmp_path):
    csv, sick = tmp_path / "sts-dev.csv", tmp_path / "SICK_trial.txt"
    csv.write_text('news\tx\t2017\t1\t2.5\tHe said "no.\tShe\u2028left.\r\nnews\tx\t2017\t2\t0\tA\tB\ttail\n')
    sick.write_text("pair_ID\tsentence_A\tsentence_B\trelatedness_score\tlabel\n4\tOne.\tTwo.\t4.2\tNEUTRAL\n")
    pairs = read_pairs("stsb-dev", TaskConfig(source=str(csv)))["all"]
    assert pairs == (['He said "no.', "A"], ["She\u2028left.", "B"], [2.5, 0.0])
    assert read_pairs("sick", TaskConfig(source=str(sick), score_range=(1, 5)))["all"] == (["One."], ["Two."], [4.2])
    csv.write_text("news\tx\t2017\t1\thigh\tA\tB\n")
    with pytest.raises(UserError, match=r"sts-dev\.csv, line 1"):
        read_pairs("stsb-dev", TaskConfig(source=str(csv)))


def test_arguments_are_read_by_topic(tmp_path):
    """Other columns in between, commas and line ends in quotes, and text that is Latin-1."""
    gun = 'regression_label,csid,sentence_1,sentence_2\n4.2,7,"Guns, he says, ""kill"".","So do\ncars."\n,8,x,y\n'
    death = "\ufeffsentence_2,sentence_1,regression_label\r\nNo.,Döner costs £2.,0\r\n"
    (tmp_path / "ArgPairs_DP.csv").write_bytes(death.encode())
    (tmp_path / "ArgPairs_GM.csv").write_bytes(gun.replace("cars", "caf\xe9s").encode("latin-1"))
    assert read_pairs("afs", TaskConfig(source=str(tmp_path))) == {
        "DP": (["Döner costs £2."], ["No."], [0.0]),
        "GM": (['Guns, he says, "kill".'], ["So do cafés."], [4.2]),
    }


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), count=st.integers(1, 60))
def test_drawn_pairs_are_pairs_of_their_subset_and_always_the_same(sizes, count):
    subsets = {f"s{i}": tuple([f"{side}{i}-{k}" for k in range(n)] for side in "abg") for i, n in enumerate(sizes)}
    drawn = draw_pairs(subsets, count)
    assert drawn == draw_pairs(subsets, count)
    for name, columns in drawn.items():
        assert len(columns[0]) == min(math.ceil(count / len(sizes)), len(subsets[name][0]))
        rows = [subsets[name][0].index(text) for text in columns[0]]
        assert rows == sorted(set(rows))
        assert all(list(column) == [whole[k] for k in rows] for column, whole in zip(columns, subsets[name]))


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_are_found_by_what_their_entries_have_to_equal():
    qnli = [{"recipe": "nli", "kind": "member", "index": i, "layers": 2, "auc": 70.0 + i} for i in range(2)]
    report = {
        "qnli": [{"recipe": "base", "kind": "base", "index": 0, "layers": 2, "auc": 60.0}, *qnli],
        "edit_distance": [{"recipe": "gold", "words": -90.0}, {"recipe": "base", "words": None}],
        "frequency": [{"ranks": [0, 100], "distance": {"3": 0.7}}, {"ranks": [100, 500], "distance": {"3": 0.8}}],
    }
    place = {"section": "qnli", "value": "auc", "recipe": "nli", "kind": "member", "layers": 2}
    assert find_values(report, place) == {0: 70.0, 1: 71.0}
    assert find_values(report, {"section": "edit_distance", "value": "{unit}", "unit": "words", "kind": None}) == {
        0: -90.0
    }
    assert find_values(report, {"section": "frequency", "value": "distance.3", "ranks": [0, 100]}) == {0: 0.7}
    assert find_values({"qnli": None}, place) == find_values({}, place) == {}


def report_of(rows: Sequence[ScoredRow], tasks: Sequence[str]) -> dict:
    """A report as a run writes it."""
    run = SimpleNamespace(scores=ScoreTable(rows, tasks, 2), config=SimpleNamespace(run="run"))
    run.facts = SimpleNamespace(left_out={})
    return json.loads(Document(run, {}).to_json())


def row_of(recipe: str, kind: str, index: int, layers: int | str, scores: dict[str, float], **changes) -> ScoredRow:
    metrics = {task: {"spearman": value, "pearson": value + 1, "pairs": 9} for task, value in scores.items()}
    return ScoredRow(recipe, kind, index, None, layers, metrics, **changes)


def toy(statistic: str | None = None) -> tuple[Plan, Request]:
    """A table of two tasks and their average, of one run with the recipes ct and ct-sed."""
    cells = {"a": {"spearman": 60.0}, "b": {"spearman": 70.0}, "avg": {"spearman": 65.0}}
    rows = [Row(recipe.upper(), cells, "large", recipe) for recipe in ("ct", "ct-sed", "nli")]
    rows.append(Row("other *", cells, copied=True))
    definition = {"runs": {"large": "run"}, "tasks": ["a", "b"]}
    table = Table("toy", "a paper, table 1", "toys", ["a", "b", "avg"], ["spearman"], rows, "avg", "mean", ["a note"])
    if statistic:
        definition["columns"] = {"avg": {"tasks": ["a", "b"], "statistic": statistic}}
        table = Table("toy", "a paper, table 1", "toys", ["avg"], ["spearman"], rows)
    tasks = {name: {"source": "bundled:generated-dev"} for name in ("a", "b")}
    config = make_config({"recipes": ["ct", "ct-sed"], "evaluation": {"tasks": tasks, "dev": None}})
    return Plan(table, definition, {"run": config}, {"run": "run"}), Request("toy", "paper", Path(), Path())


SCORES = [{"a": 61.0, "b": 72.0}, {"a": 62.0, "b": 69.0}, {"a": 66.0, "b": 66.0}]
AVERAGES = [statistics.fmean(scores.values()) for scores in SCORES]


def toy_report() -> dict:
    rows = [row_of("ct", "member", i, 2, scores) for i, scores in enumerate(SCORES)]
    rows += [row_of("ct", "member", 0, 1, {"a": 1.0, "b": 1.0}), row_of("ct", "ensemble", 0, 2, {"a": 99.0, "b": 99.0})]
    rows.append(row_of("ct", "member", 3, 2, {"a": 0.0, "b": 0.0}, left_out=True))
    return report_of([*rows, row_of("ct-sed", "learner", 0, 2, {"a": 64.0, "b": 75.0})], ["a", "b"])


def lines_of(comparison: Comparison) -> list[list[str]]:
    """The cells of the table, line by line."""
    lines = [line for line in comparison.to_markdown().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_members_are_shown_by_mean_spread_and_best_and_compared_by_their_mean():
    plan, asked = toy()
    comparison = compare(plan, asked, {"run": ("there", toy_report())})
    (row,) = [row for row in comparison.to_dict()["rows"] if row["label"] == "CT"]
    cells = {column: cell["spearman"] for column, cell in row["ours"][0]["columns"].items()}
    assert cells["a"]["mean"] == pytest.approx(63.0) and cells["a"]["n"] == 3
    assert cells["avg"]["mean"] == pytest.approx(statistics.fmean(AVERAGES))
    assert cells["avg"]["std"] == pytest.approx(statistics.stdev(AVERAGES))
    assert cells["avg"]["max"] == pytest.approx(66.5) and cells["b"]["difference"] == pytest.approx(-1.0)
    lines = lines_of(comparison)
    assert ["", "ours, best one", "61.00", "72.00", "66.50"] in lines
    assert "ours, mean of 3" in [line[1] for line in lines] and "chosen by the test" in comparison.to_markdown()
    start = next(i for i, line in enumerate(lines) if line[0] == "CT-SED")  # a single model has one line
    assert lines[start + 1] == ["", "ours", "64.00", "75.00", "69.50"]
    assert lines[start + 2] == ["", "difference", "+4.00", "+5.00", "+4.50"]
    assert lines[-1] == ["other *", "published elsewhere", "60.00", "70.00", "65.00"]


def test_what_is_not_there_is_said_and_not_compared():
    plan, asked = toy()
    report = toy_report()
    for row in report["rows"]:
        row["metrics"].pop("b")
    plan.missing_tasks, plan.missing = {"b"}, {"b": "b.tsv"}
    comparison = compare(plan, asked, {"run": ("there", report)})
    by_label = {row["label"]: row["ours"] for row in comparison.to_dict()["rows"]}
    cells = by_label["CT-SED"][0]["columns"]
    assert cells["b"] == {"reason": NO_DATA}
    assert cells["avg"]["missing"] == ["b"] and cells["avg"]["spearman"]["difference"] is None
    assert by_label["NLI"][0]["columns"]["a"] == {"reason": NO_DATA}, "the recipe is not in the run"
    assert by_label["other *"] == []
    text = comparison.to_markdown()
    assert "64.00 (part)" in text and "- (part): an average without b; not compared." in text
    assert "No data: b (looked for: b.tsv)." in text
    assert "- * as printed: the paper took the row from elsewhere; it is not run here." in text


def test_other_pairs_than_the_papers_mark_their_cells_and_are_not_compared():
    plan, asked = toy()
    plan.different = {"b": "400 scored pairs instead of 3,108"}
    comparison = compare(plan, asked, {"run": ("there", toy_report())})
    cells = {row["label"]: row["ours"] for row in comparison.to_dict()["rows"]}["CT-SED"][0]["columns"]
    assert cells["a"]["spearman"]["difference"] == 4.0 and "different" not in cells["a"]
    for column in ("b", "avg"):
        assert cells[column]["different"] == ["b"] and cells[column]["spearman"]["difference"] is None
    lines = lines_of(comparison)
    start = next(i for i, line in enumerate(lines) if line[0] == "CT-SED")
    assert lines[start + 1] == ["", "ours", "64.00", "75.00 (other pairs)", "69.50 (other pairs)"]
    assert "(b: 400 scored pairs instead of 3,108); not compared." in comparison.to_markdown()


def test_rows_of_another_encoder_than_the_published_one_say_which():
    """A row that is called BERT-L must not seem to hold BERT-Large; one without a number has none."""
    plan, asked = toy()
    for changes in ({"scale": "small"}, {"overrides": ("encoder.path=bundled:encoder",)}, {}):
        comparison = compare(plan, replace(asked, **changes), {"run": ("there", toy_report())})
        firsts = [line[0] for line in lines_of(comparison) if line[1].startswith("ours")]
        assert firsts.count("here: bundled encoder") == (2 if changes else 0)
        encoder = comparison.to_dict()["rows"][0]["ours"][0]["encoder"]
        assert encoder == ("bundled encoder" if changes else None)


def test_a_value_that_the_report_lacks_is_no_result_and_averages_are_of_models_that_have_all():
    plan, asked = toy()
    report = toy_report()
    report["rows"][0]["metrics"].pop("b")
    cells = compare(plan, asked, {"run": ("there", report)}).cells["CT", ""]
    assert cells["a"].values["spearman"] == {0: 61.0, 1: 62.0, 2: 66.0}
    assert cells["avg"].values["spearman"] == {1: 65.5, 2: 66.0}
    report["rows"] = [row for row in report["rows"] if row["recipe"] != "ct-sed"]
    for row in report["rows"][:3]:
        row["metrics"].pop("a")
    comparison = compare(plan, asked, {"run": ("there", report)})
    assert comparison.to_dict()["no_result"] == ["CT (a)", "CT-SED"] and NO_RESULT in comparison.to_markdown()


@pytest.mark.parametrize(("statistic", "of"), [("max", max), ("std", statistics.stdev)])
def test_a_cell_may_ask_for_a_statistic(statistic, of):
    plan, asked = toy(statistic)
    cells = compare(plan, asked, {"run": ("there", toy_report())}).cells
    assert cells["CT", ""]["avg"].number("spearman") == pytest.approx(of(AVERAGES))
    single = cells["CT-SED", ""]["avg"].number("spearman")
    assert single is None if statistic == "std" else single == pytest.approx(69.5)


# -- from the command to the files -----------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("blank_pictures")
def test_measurements_of_all_models_come_from_a_run_to_their_cells(small_data):
    """Mean and spread of both members, and of both learners; and the other papers' measurements on the same run."""
    qnli = [f"{i}\tWhy {i}?\tSo {i % 7}.\t{'not_' * (i % 2)}entailment" for i in range(24)]
    files = {"QNLI/dev.tsv": ["index\tquestion\tsentence\tlabel", *qnli]}
    files["corpus/wikipedia-12k.txt"] = [f"Sentence {i} is about {i % 11} things." for i in range(100)]
    write_all(small_data / "data", files)
    settings = "corpus.sentences=100 sed.sentences=80 ct.steps=4 recipes=[ct,ct-sed] resources.engine=local"
    asked = request(small_data, "sed-table-7", overrides=tuple(settings.split()))
    plan = make_plan(asked)
    comparison = reproduce(asked, plan, say=lambda line: None)
    for label in ("BERT-Large-CT", "BERT-L-CT-SED"):
        (ours,) = next(row for row in comparison.to_dict()["rows"] if row["label"] == label)["ours"]
        (found,) = [cell for metric, cell in ours["columns"]["STS-B"].items() if metric in plan.table.metrics]
        values = comparison.cells[label, ""]["STS-B"].values[plan.table.metrics[0]]
        assert list(values) == [0, 1] and found["n"] == 2
        assert found["mean"] == pytest.approx(statistics.fmean(values.values()))
        assert found["std"] == pytest.approx(statistics.stdev(values.values())) and found["std"] > 0
    assert SMALL_NOTE in (asked.output / "sed-table-7-small.md").read_text()
    (config,) = plan.configs.values()
    further = {"qnli": str(small_data / "data/QNLI/dev.tsv"), "edit_distance": None, "frequency": None}
    found = measure(config, further, small_data / "picture.png")
    assert (small_data / "picture.png").is_file()
    rows = [(row["recipe"], row["kind"], row["index"]) for row in found["qnli"]]
    assert rows == [("ct", "member", 0), ("ct", "member", 1), ("ct-sed", "learner", 0), ("ct-sed", "learner", 1)]
    assert all(0 <= row["auc"] <= 100 for row in found["qnli"])
    assert [row["recipe"] for row in found["edit_distance"]] == ["gold", "ct", "ct-sed"]
    assert found["frequency"] == [], "the corpus has fewer words than the first bin"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sed-table-9"], "'sed-table-9' is no table; name one of sed-table-1"),
        (["sed-table-1", "--encoder", "x"], "--encoder is for --scale small"),
        (["sed-table-1", "--output", "/proc/x"], "--output /proc/x: cannot create this directory: No such file"),
        (["bert-flow-table-7"], "bert-flow-table-7 lists the settings of the flow; it prints no score"),
        (["sed-table-1", "--data", "nowhere"], "sed-table-1 needs data that is not in nowhere"),
    ],
)
def test_mistakes_at_the_command_line_are_one_sentence_and_exit_code_2(
    words, sentence, undone, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--output", str(tmp_path), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(ROOT / "jobs/reproduce.py", run_name="__main__")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {sentence}") and error.count("\n") == 1
