"""Models side by side, alone and together; mistakes are one sentence each."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

import raysed
from raysed.cli import main_of
from raysed.commands import evaluate
from raysed.config import EvaluationConfig
from raysed.score.tasks import Evaluation, tasks_of


@pytest.fixture
def tasks(tmp_path, sentences) -> Path:
    """A config with two similarity tasks of the tiny vocabulary."""
    rng = np.random.default_rng(1)
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("first", "second")}
    for file in files.values():
        rows = [f"all\t{rng.uniform(0, 5):.2f}\t{a}\t{b}" for a, b in zip(rng.permutation(sentences[:-1]), sentences)]
        Path(file).write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    config = {"evaluation": {"tasks": files, "dev": "first"}, "resources": {"gpu": False, "encode_precision": "fp32"}}
    (tmp_path / "tiny.yaml").write_text(json.dumps(config))
    return tmp_path / "tiny.yaml"


@pytest.fixture
def call(undone, monkeypatch, capsys) -> Callable[..., str]:
    """Runs the job in this process; returns what it prints."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, arguments)])
        code = main_of(evaluate.job, evaluate.parser())
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


PRECISE = "resources.encode_precision=fp32"


def write_search(place: Path, documents: list[str], queries: list[str], answers: range) -> None:
    """Writes texts and, for each query, the number of the document that answers it."""
    (place / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": f"{i:03d}", "text": text}) for i, text in enumerate(texts)]
        (place / f"{name}.jsonl").write_text("\n".join(lines))
    judged = [f"{query:03d}\t{document:03d}\t1" for query, document in enumerate(answers)]
    (place / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))


def test_several_models_are_in_the_tables(call, exports, tiny_encoder_dir, tasks, tmp_path):
    """As teachers: those of a config, each with its own pooling."""
    plain = {"path": str(tiny_encoder_dir), "name": "plain", "pool_layers": 2, "max_length": 12}
    chosen = [{"path": str(exports["2"]), "name": "two"}, {"path": str(exports["flow"]), "name": "flow"}, plain]
    config = json.loads(tasks.read_text()) | {"teachers": chosen, "recipes": ["teachers-sed"]}
    tasks.write_text(json.dumps(config))
    out = call("--config", tasks, "--output", tmp_path / "o.json")
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["tasks"] == ["second"], "the dev task is not in the headline"
    rows = {row["model"]: row["metrics"]["second"]["spearman"] for row in document["baselines"] + document["models"]}
    assert list(rows) == ["word overlap", "TF-IDF", "two", "flow", "plain"]
    assert all(re.search(rf"^ *{name} .*{score:.2f}", out, re.MULTILINE) for name, score in rows.items())
    assert rows["two"] == pytest.approx(rows["plain"], abs=0.01), "an export without calibration is its encoder"
    assert rows["two"] != pytest.approx(rows["flow"], abs=0.01)
    assert all(row["parameters"] > 16 == row["width"] for row in document["models"])
    assert "plain: mean over tokens, layers 2; 12 tokens" in out
    assert "mean over tokens, layers 1; 40 tokens" in call("--config", tasks, "--models", tiny_encoder_dir), "as it can"
    assert "plain: mean over tokens, layers 1; 12 tokens" in call("--config", tasks, "--pool-layers", 1)


def test_queries_and_documents_have_their_prompts(call, exports, sentences, tmp_path):
    """Wherever models are scored: by the command, and from Python by path, settings or object."""
    path, search = shutil.copytree(exports["1"], tmp_path / "model"), tmp_path / "search"
    prompts = {"prompts": {"query": "the big red ", "document": "on "}}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    texts = sentences[:-1]  # the last one is empty
    write_search(search, texts, texts[1:31], range(30))
    model = SentenceTransformer(str(path), device="cpu")
    (task,) = Evaluation.load(EvaluationConfig(tasks=tasks_of([str(search)]), dev=None)).tasks.values()
    x_UD = np.concatenate([model.encode_query(texts[1:31]), model.encode_document(texts)])
    expected = pytest.approx(task.metrics(task.outcome(x_UD))["ndcg@10"], abs=1e-3)
    assert task.metrics(task.outcome(model.encode(task.sentences)))["ndcg@10"] != expected
    call("--models", path, "--task", search, "--output", tmp_path / "o.json", "--set", PRECISE)
    assert json.loads((tmp_path / "o.json").read_text())["models"][0]["metrics"]["search"]["ndcg@10"] == expected
    for given in (path, {"path": str(path)}, model):
        assert raysed.evaluate(given, [str(search)])["models"][0]["metrics"]["search"]["ndcg@10"] == expected


# -- together --------------------------------------------------------------------------------------------------------

WORDS = "cat dog sun rain tree house road river bread cheese milk stone".split()
SENTENCES = [f"the {a} and the {b}" for a in WORDS for b in WORDS]


def embed(path: str, seed: int, sentences=SENTENCES) -> None:
    """Writes embeddings that follow the words, by vectors of its own and noise."""
    rng = np.random.default_rng(seed)
    of = {word: rng.normal(size=6) for word in WORDS}
    x_ND = np.array([of[text.split()[1]] + of[text.split()[4]] for text in sentences])
    x_ND += 0.8 * rng.normal(size=x_ND.shape)
    pq.write_table(pa.table({"sentence": sentences, "embedding": x_ND.astype(np.float32).tolist()}), path)


def pairs_of(seed: int) -> list[tuple[float, str, str]]:
    rng = np.random.default_rng(seed)
    pairs = [(SENTENCES[a], SENTENCES[b]) for a, b in rng.integers(len(SENTENCES), size=(60, 2))]
    return [(len(set(a.split()) & set(b.split())) - 2.0, a, b) for a, b in pairs]


@pytest.fixture
def files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("dev", "pairs"), 1):
        lines = ["score\tsentence1\tsentence2", *(f"{score}\t{a}\t{b}" for score, a, b in pairs_of(seed))]
        Path(f"{name}.tsv").write_text("\n".join(lines))
    write_search(Path("search"), SENTENCES, SENTENCES[:20], range(1, 21))
    for seed, name in enumerate("ab"):
        embed(f"{name}.parquet", seed)


@pytest.fixture
def together(files, call) -> Callable[[str], tuple[str, dict]]:
    """Runs the command; returns what it shows, and the JSON."""

    def run(words: str) -> tuple[str, dict]:
        shown = call("--models", *words.split(), "--output", "o.json")
        return shown, json.loads(Path("o.json").read_text())

    return run


def test_models_alone_and_together_by_kind_of_task(together):
    shown, found = together("a.parquet b.parquet --task pairs.tsv --task search --dev dev.tsv")
    worth = found["worth"]
    assert worth["kinds"] == {"pairs": ["pairs"], "retrieval": ["search"]} and found["tasks"] == ["pairs", "search"]
    assert worth["dev"] == ["dev"] and [row["teachers"] for row in worth["rows"]] == [["a"], ["b"], ["a", "b"]]
    assert found["models"][0]["speed"] is None, "stored vectors have no speed"
    assert f"{worth['rows'][2]['scores']['mean']:.2f}" in shown and "(best on dev)" in shown
    assert "gain over the best teacher" in shown
    raysed_found = raysed.evaluate(["a.parquet", "b.parquet"], ["pairs.tsv", "search"], dev="dev.tsv")
    assert json.loads(json.dumps(raysed_found)) == found and str(raysed_found) in shown


def test_a_task_that_a_file_does_not_know_is_left_out(together):
    embed("c.parquet", 5, sorted({text for _, *pair in pairs_of(2) for text in pair}))
    shown, found = together("a.parquet c.parquet --task pairs.tsv --dev dev.tsv")
    assert "left out: dev: c has no embeddings for some of its sentences" in shown
    assert found["worth"]["tasks"] == ["pairs"] and found["left_out"] == {"dev": "c"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--task pairs.tsv", "there is nothing to score; name --models, or a --config with teachers"),
        ("--models a.parquet same.parquet --task pairs.tsv", "teachers: .* and 'same.parquet' are the same; name it.*"),
        ("--models a.parquet members --task pairs.tsv", "teachers: 'members' exists only within a run; name models.*"),
        ("--models a.parquet b.parquet --task pairs.tsv --set combination.weights=[1]", "combination.weights has 1 .*"),
        ("--models a.parquet --task bundled:generated-dev", "no task is left: a has no embeddings for some .*; add .*"),
    ],
)
def test_mistakes_end_in_one_sentence(files, undone, monkeypatch, capsys, words, sentence):
    shutil.copy("a.parquet", "same.parquet")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words.split()])
    assert main_of(evaluate.job, evaluate.parser()) == 2
    assert re.fullmatch(f"error: {sentence}\n", capsys.readouterr().err)
