"""Retrieval tasks and labelled texts are read from files as users write them; mistakes name file and line."""

import json
from pathlib import Path

import pytest

from raysed.config import TaskConfig
from raysed.errors import UserError
from raysed.score.tasks import kind_of, load_any_task

REAL = Path(__file__).parents[3] / "shared/data/retrieval/trecqa-dev"


@pytest.fixture
def beir(tmp_path):
    """A directory in BEIR's layout; its files can be written anew."""

    def write(documents=None, queries=None, qrels=None, split="test"):
        documents = documents or [{"_id": "d1", "title": "Rain", "text": "It rains."}, {"_id": "d2", "text": "Sun."}]
        queries = queries or [{"_id": "q1", "text": "Does it rain?"}, {"_id": "q2", "text": "Is it dark?"}]
        qrels = qrels or ["q1\td1\t2", "q1\td2\t0"]
        for name, rows in (("corpus", documents), ("queries", queries)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "qrels").mkdir(exist_ok=True)
        lines = ["query-id\tcorpus-id\tscore", *qrels]
        (tmp_path / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        return TaskConfig(source=str(tmp_path))

    return write


def test_a_directory_in_beirs_layout(beir):
    task = load_any_task("t", beir())
    assert task.documents == ["Rain It rains.", "Sun."] and task.document_ids == ["d1", "d2"]
    assert task.queries == ["Does it rain?"] and task.left_out == 1
    assert task.gains == [{0: 2.0}]


def test_three_files_of_any_format(tmp_path):
    (tmp_path / "docs.csv").write_text('id,text\na,"Rain, and wind."\nb,Sun.\n')
    (tmp_path / "questions.tsv").write_text("id\tquery\n7\tDoes it rain?\n")
    (tmp_path / "judged.jsonl").write_text('{"query_id": 7, "document_id": "a"}\n')
    config = TaskConfig(
        source=str(tmp_path / "docs.csv"),
        queries=str(tmp_path / "questions.tsv"),
        qrels=str(tmp_path / "judged.jsonl"),
        query_prompt="query: ",
    )
    task = load_any_task("t", config)
    assert task.kind == "retrieval" and task.sentences == ["query: Does it rain?", "Rain, and wind.", "Sun."]
    assert task.gains == [{0: 1.0}]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"qrels": ["q1\td1\t1", "q9\td1\t1"]}, r"test\.tsv, line 3: the id 'q9' is not in .*queries\.jsonl"),
        ({"qrels": ["q1\td7\t1"]}, r"test\.tsv, line 2: the id 'd7' is not in .*corpus\.jsonl"),
        ({"qrels": ["q1\td1\tmuch"]}, r"test\.tsv, line 2: score 'much' is not a number; write 1 for relevant"),
        *(({"qrels": [f"q1\td1\t{score}"]}, rf"line 2: score '{score}' is not finite") for score in ("inf", "nan")),
        ({"qrels": ["q1\td1\t0"]}, r"names no relevant document for any query"),
        ({"documents": [{"_id": "d1", "text": "a"}] * 2}, r"corpus\.jsonl, line 2: the id 'd1' is there twice"),
        ({"queries": [{"text": "a"}]}, r"queries\.jsonl, line 1: columns _id and text are needed"),
        ({"split": "dev2"}, None),
    ],
)
def test_mistakes_name_file_and_line(beir, files, sentence):
    config = beir(**files)
    if sentence is None:  # the only file of judgements is taken, whatever it is called
        assert load_any_task("t", config).queries
        return
    with pytest.raises(UserError, match=sentence):
        load_any_task("t", config)


def test_an_empty_corpus_and_missing_files_are_refused(beir, tmp_path):
    config = beir()
    (tmp_path / "corpus.jsonl").write_text("")
    with pytest.raises(UserError, match=r"evaluation\.tasks\.t: .*corpus\.jsonl has no document"):
        load_any_task("t", config)
    config = beir()
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no queries\.jsonl"):
        load_any_task("t", config)
    with pytest.raises(UserError, match=r"has no train\.tsv; there are test"):
        load_any_task("t", beir().model_copy(update={"split": "train"}))
    (tmp_path / "docs.tsv").write_text("id\ttext\na\tb\n")
    with pytest.raises(UserError, match=r"evaluation\.tasks\.t\.qrels is missing"):
        load_any_task("t", TaskConfig(source=str(tmp_path / "docs.tsv"), queries=str(tmp_path / "docs.tsv")))


def labelled(tmp_path, rows, header="text\tlabel"):
    path = tmp_path / "topics.tsv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return TaskConfig(source=str(path))


def test_labelled_texts(tmp_path):
    rows = [f"text {i}\t{'ab'[i % 2]}" for i in range(12)] + ["\ta", "no label\t"]
    task = load_any_task("t", labelled(tmp_path, rows))
    assert task.classes == ["a", "b"] and task.labels.tolist() == [0, 1] * 6 and task.scored.all()


def test_a_column_split_says_what_is_predicted(tmp_path):
    rows = [f"text {i}\t{'ab'[i % 2]}\t{'test' if i >= 8 else 'train'}" for i in range(12)]
    task = load_any_task("t", labelled(tmp_path, rows, "utterance\tintent\tsplit"))
    assert task.scored.tolist() == [False] * 8 + [True] * 4


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([f"text {i}\ta" for i in range(9)], r"all 9 texts of .*topics\.tsv have the label 'a'; at least two labels"),
        ([f"text {i}\t{i}" for i in range(9)], r"the label '0' of .*topics\.tsv has 1 of 9 texts"),
        (["\t"] * 3, r"has no text with a label"),
    ],
)
def test_labels_that_nothing_can_be_made_of_are_refused(tmp_path, rows, sentence):
    with pytest.raises(UserError, match=sentence):
        load_any_task("t", labelled(tmp_path, rows))


def test_the_kind_of_a_task_is_seen_from_its_files(beir, tmp_path):
    assert kind_of(beir(), "s") == "retrieval"
    assert kind_of(labelled(tmp_path, ["a\tb"]), "s") == "classification"
    assert kind_of(labelled(tmp_path, ["a\tb\t1"], "sentence1\tsentence2\tlabel"), "s") == "pairs"
    assert kind_of(TaskConfig(source="bundled:dev"), "s") == "pairs"
    assert kind_of(labelled(tmp_path, ["a\tb"]).model_copy(update={"kind": "clustering"}), "s") == "clustering"
