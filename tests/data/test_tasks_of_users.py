"""Retrieval tasks and labelled texts are read from files as users write them; mistakes name file and line."""

import json
from pathlib import Path

import pytest

from raysed.config import TaskConfig
from raysed.score.tasks import kind_of, load_any_task


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
    assert task.gains == [{0: 2.0}]


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
    assert task.classes == ["a", "b"] and task.labels.tolist() == [0, 1] * 6 and task.scored.all()


def test_a_column_split_says_what_is_predicted(tmp_path):
    rows = [f"text {i}\t{'ab'[i % 2]}\t{'test' if i >= 8 else 'train'}" for i in range(12)]
    task = load_any_task("t", labelled(tmp_path, rows, "utterance\tintent\tsplit"))
    assert task.scored.tolist() == [False] * 8 + [True] * 4


def test_the_kind_of_a_task_is_seen_from_its_files(beir, tmp_path):
    assert kind_of(beir, "s") == "retrieval"
    assert kind_of(labelled(tmp_path, ["a\tb"]), "s") == "classification"
    assert kind_of(labelled(tmp_path, ["a\tb\t1"], "sentence1\tsentence2\tlabel"), "s") == "pairs"
    assert kind_of(TaskConfig(source="bundled:dev"), "s") == "pairs"
    assert kind_of(labelled(tmp_path, ["a\tb"]).model_copy(update={"kind": "clustering"}), "s") == "clustering"
