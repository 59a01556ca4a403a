"""Retrieval tasks and labelled texts are read from files as users write them; mistakes name file and line."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.api import _on_tasks, _sources
from raysed.config import EvaluationConfig, PairSource, TaskConfig, ViewsConfig, make_config
from raysed.data.given import source_of
from raysed.data.graded import load_task
from raysed.data.pairs import load_graded, load_nli, load_views
from raysed.errors import UserError
from raysed.score.tasks import Evaluation, kind_of, load_any_task, with_tasks


def write(path: Path, *lines: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*lines, ""]))
    return str(path)


@pytest.fixture
def beir(tmp_path):
    """A directory in BEIR's layout."""
    documents = {"_id": "d1", "title": "Rain", "text": "It rains."}, {"_id": "d2", "text": "Sun."}
    queries = {"_id": "q1", "text": "Does it rain?"}, {"_id": "q2", "text": "Is it dark?"}
    write(tmp_path / "corpus.jsonl", *map(json.dumps, documents))
    write(tmp_path / "queries.jsonl", *map(json.dumps, queries))
    write(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\td2\t0")
    return TaskConfig(source=str(tmp_path))


def test_a_directory_in_beirs_layout(beir):
    task = load_any_task("t", beir)
    assert task.documents == ["Rain It rains.", "Sun."] and task.document_ids == ["d1", "d2"]
    assert task.queries == ["Does it rain?"] and task.left_out == 1
    assert task.gains == [{0: 2.0}] and task.own == [None]


@pytest.mark.parametrize("header", ["relevance", "Label", "grade", "gold"])
def test_judgements_of_0_are_not_relevant_whatever_their_column_is_called(beir, tmp_path, header):
    """Without a column, all are relevant, so that one of an unknown name is refused."""
    write(tmp_path / "qrels/test.tsv", f"query-id\tcorpus-id\t{header}", "q1\td1\t2", "q1\td2\t0")
    if header == "gold":
        with pytest.raises(
            UserError, match=r"t\.qrels: found the columns .*, gold, but none is named score, relevance,"
        ):
            load_any_task("t", beir)
        beir = beir.model_copy(update={"columns": beir.columns.model_copy(update={"score": "gold"})})
    assert load_any_task("t", beir).gains == [{0: 2.0}]


def test_a_document_with_the_id_of_a_query_is_that_query_unless_it_is_judged(beir, tmp_path):
    write(tmp_path / "queries.jsonl", json.dumps({"_id": "d2", "text": "Sun."}), json.dumps({"_id": "d1", "text": "?"}))
    write(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "d2\td1\t2", "d1\td1\t1")
    assert load_any_task("t", beir).own == [1, None]


def test_judgements_of_ids_that_are_not_there_are_noted_and_count_as_never_found(beir, tmp_path, caplog):
    """As in BEIR's ArguAna, by the rules of trec_eval; its queries without a text are not asked."""
    judged = ["q1\td1\t1", "q1\td7\t2", "q1\td9\t0", "q2\td8\t1", "q9\td1\t1"]
    write(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *judged)
    with caplog.at_level("INFO"):
        task = load_any_task("t", beir)
    assert task.queries == ["Does it rain?", "Is it dark?"] and task.gains == [{0: 1.0, 2: 2.0}, {3: 1.0}]
    outcome = task.outcome(np.eye(len(task.sentences)))
    assert outcome[0, 0] < 1 and outcome[0, 3:].tolist() == [0.5, 0.5] and not outcome[1].any()
    assert [record.getMessage().partition("qrels/")[2] for record in caplog.records] == [
        "test.tsv: 1 judgements name a missing query, such as 'q9'; it is left out",
        "test.tsv: 3 judgements name a missing document, such as 'd7'; it counts as never found",
    ]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("test.jsonl", ['{"query-id": "q1", "corpus-id": "d1", "score": 2}', '{"query-id": "q1", "corpus-id": "d2"}']),
        ("test.tsv", ["q1\t0\td1\t2", "q1\t0\td2\t1"]),
        ("dev.txt", ["q1 0  d1 2", "", "q1 0 d2 1\r"]),
        ("test.tsv", ["q1 Q0 d1 2 ", "q1 Q0 d2 1"]),
        ("test.txt", ["query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\td2\t1"]),
        ("test.csv", ["corpus-id,query-id,score", "d1,q1,2", "d2,q1,1"]),
    ],
)
def test_judgements_are_read_in_the_layouts_of_beir_mteb_and_trec(beir, tmp_path, name, lines):
    (tmp_path / "qrels/test.tsv").unlink()
    write(tmp_path / "qrels" / name, *lines)
    assert load_any_task("t", beir).gains == [{0: 2.0, 1: 1.0}]


def test_three_files_of_any_format(tmp_path):
    config = TaskConfig(
        source=write(tmp_path / "docs.csv", "id,text", 'a,"Rain, and wind."', "b,Sun."),
        queries=write(tmp_path / "questions.tsv", "id\tquery", "7\tDoes it rain?"),
        qrels=write(tmp_path / "judged.jsonl", '{"query_id": 7, "document_id": "a"}'),
        query_prompt="query: ",
    )
    task = load_any_task("t", config)
    assert task.kind == "retrieval" and task.sentences == ["query: Does it rain?", "Rain, and wind.", "Sun."]
    assert task.gains == [{0: 1.0}]


def labelled(tmp_path, rows, header="text\tlabel"):
    return TaskConfig(source=write(tmp_path / "topics.tsv", header, *rows))


def test_labelled_texts(tmp_path):
    rows = [f"text {i}\t{'ab'[i % 2]}" for i in range(12)] + ["\ta", "no label\t"]
    task = load_any_task("t", labelled(tmp_path, rows))
    assert task.classes == ["a", "b"] and task.labels.tolist() == [0, 1] * 6


LABELS = ["a", "b"] * 5


def in_lines(path, labels):
    rows = [json.dumps({"text": f"text {i}", "label": label}) for i, label in enumerate(labels)]
    return write(path.with_suffix(".jsonl"), *rows)


def in_parquet(path, labels):
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(len(labels))], "label": labels}), path)
    return path


def given(path, labels):
    (source,) = source_of([(f"text {i}", label) for i, label in enumerate(labels)], str(path), "task t")
    return source


@pytest.mark.parametrize(
    ("write_rows", "label"),
    [
        (in_lines, ["a", "b"]),
        (in_lines, {"a": 1}),
        (in_parquet, ["a"]),
        (in_parquet, {"a": "b"}),
        (given, ["a", "b"]),
        (given, np.array(["a", "b"])),
    ],
)
def test_a_text_has_one_label(tmp_path, write_rows, label):
    with pytest.raises(UserError, match=r"one value per text|item 0 .* must be"):
        load_any_task("t", TaskConfig(source=str(write_rows(tmp_path / "a.parquet", [label] * 20)), kind="neighbours"))


@pytest.mark.parametrize(
    ("write_rows", "missing"),
    [(in_lines, None), (in_lines, math.nan), (in_lines, " "), (in_parquet, None), (given, None), (given, math.nan)],
)
def test_what_stands_for_no_label_is_dropped_and_counted(tmp_path, caplog, write_rows, missing):
    caplog.set_level("INFO", "raysed")
    source = write_rows(tmp_path / "a.parquet", [*LABELS, *[missing] * 7])
    task = load_any_task("t", TaskConfig(source=str(source)))
    assert task.classes == ["a", "b"] and len(task.texts) == 10
    assert "7 of 17 rows lack a text or a label and are left out" in caplog.text


@pytest.mark.parametrize("kind", [int, float], ids=["ids", "ids with gaps"])
def test_an_id_that_stands_for_no_class_is_no_label(tmp_path, kind):
    datasets = pytest.importorskip("datasets")
    columns = {"text": [f"text {i}" for i in range(17)], "label": [0, 1] * 5 + [-1] * 7}
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])}
    datasets.Dataset.from_dict(columns, datasets.Features(features)).to_parquet(tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    numbers = pa.array([kind(label) for label in columns["label"]])
    pq.write_table(table.set_column(1, "label", numbers), tmp_path / "a.parquet")
    assert load_any_task("t", TaskConfig(source=str(tmp_path / "a.parquet"))).labels.tolist() == [0, 1] * 5


SPLITS = ["train"] * 20 + ["Validation"] * 15 + ["test"] * 10


def pairs_with_splits(path, splits=SPLITS):
    rows = [f"{split},a{i},b{i},{i % 6}" for i, split in enumerate(splits)]
    return write(path, "split,sentence1,sentence2,score", *rows)


def texts_with_splits(path, splits=SPLITS):
    return write(path, "split,text,label", *(f"{split},text {i},{'ab'[i % 2]}" for i, split in enumerate(splits)))


def count(task):
    return len(task.items())


@pytest.mark.parametrize("write_rows", [pairs_with_splits, texts_with_splits])
def test_rows_of_a_split_are_read_as_their_use_needs(tmp_path, caplog, write_rows):
    """As a reported task `test`, as the dev task `dev` or `validation`; all where there are none, with a note."""
    caplog.set_level("INFO", "raysed")
    source = write_rows(tmp_path / "a.csv")
    block = {"tasks": {"t": {"source": source}, "d": {"source": source}}, "dev": "d"}
    tasks = Evaluation.load(make_config({"evaluation": block}).evaluation).tasks
    assert {name: count(task) for name, task in tasks.items()} == {"t": 10, "d": 15}
    assert "has a column split; its 10 rows test of 45 are read" in caplog.text
    assert count(load_any_task("t", TaskConfig(source=source, split="train"))) == 20
    other = write_rows(tmp_path / "other.csv", ["fold 1"] * 20 + ["fold 2"] * 10)
    assert count(load_any_task("t", TaskConfig(source=other))) == 30
    assert "none of its 30 rows is test, so all are read" in caplog.text


@pytest.mark.parametrize("write_rows", [pairs_with_splits, texts_with_splits])
def test_one_file_is_the_dev_task_and_a_reported_one_if_it_has_splits(tmp_path, write_rows):
    source = write_rows(tmp_path / "a.csv")
    by_options = with_tasks(EvaluationConfig(), [source], source)
    by_call = EvaluationConfig(**_on_tasks(_sources(source, [source], str(tmp_path)), True))
    for config in (by_options, by_call):
        assert [count(task) for task in Evaluation.load(config).tasks.values()] == [15, 10]
    other = write(tmp_path / "b.csv", "text,label", *(f"text {i},{'ab'[i % 2]}" for i in range(12)))
    assert len(with_tasks(EvaluationConfig(), [other], other).tasks) == 1
    assert len(_sources(other, [other], str(tmp_path))) == 1


@pytest.mark.parametrize(
    ("known", "read"),
    [
        (["train", "validation", "test"], "validation"),
        (["dev", "test"], "dev"),
        (["train", "test"], "test"),
        (["train", "trial", "test"], "trial"),
    ],
)
def test_the_dev_task_of_a_hub_is_its_split_for_this(monkeypatch, known, read):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(name, config, split):
        asked.append(split)
        rows = {"sentence1": list("abc"), "sentence2": list("def"), "score": [1.0, 2.0, 3.0]}
        return datasets.Dataset.from_dict(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, config: known)
    for split, config in (("dev", {}), ("test", {}), ("dev", {"split": "fold"})):
        load_any_task("t", TaskConfig(source="somebody/pairs", **config), split=split)
    assert asked == [read, "test", "fold"]


def test_trainings_read_the_rows_train(tmp_path):
    source = pairs_with_splits(tmp_path / "a.csv")
    assert len(load_graded([TaskConfig(source=source)])) == len(load_views(ViewsConfig(files=[source]))) == 20
    rows = [f"{split}\ta{i}\tb{i}\tneutral" for i, split in enumerate(SPLITS)]
    nli = write(tmp_path / "nli.tsv", "split\tpremise\thypothesis\tlabel", *rows)
    assert len(load_nli([PairSource(source=nli)])) == 20
    by_split = TaskConfig(source=source, columns={"subset": "split"})
    subsets = load_task("t", by_split).subsets
    assert list(subsets) == ["train", "Validation", "test"], "a named column chooses nothing"


def test_the_kind_of_a_task_is_seen_from_its_files(beir, tmp_path):
    assert kind_of(beir, "s") == "retrieval"
    assert kind_of(labelled(tmp_path, ["a\tb"]), "s") == "neighbours"
    assert kind_of(labelled(tmp_path, ["a\tb\t1"], "sentence1\tsentence2\tlabel"), "s") == "pairs"
    assert kind_of(TaskConfig(source="bundled:generated-dev"), "s") == "pairs"
