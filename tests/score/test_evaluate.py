"""Models scored side by side; mistakes are one sentence each."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import raysed
from raysed import bundled
from raysed.cli import main_of
from raysed.commands import evaluate, teachers
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
    config = {
        "encoder": {"max_length": 12, "pool_layers": 2},
        "evaluation": {"tasks": files, "dev": "first"},
        "resources": {"gpu": False},
    }
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


def table(text: str, title: str) -> dict[str, dict[str, float]]:
    """The rows of the table that has this column, by model and column; names hold no double space."""
    block = next(part for part in text.split("\n\n") if part.startswith("models") and title in part.splitlines()[0])
    header, _, *rows = [re.split(r" {2,}", line.strip()) for line in block.splitlines()]
    names = [name for cell in header[1:] for name in cell.split()]
    return {row[0]: dict(zip(names, map(float, row[1:]))) for row in rows}


def test_several_models_are_in_the_tables(call, exports, tiny_encoder_dir, tasks, tmp_path):
    chosen = [str(exports["2"]), str(exports["flow"]), str(tiny_encoder_dir)]
    words = ["--models", *chosen]
    out = call("--config", tasks, *words, "--output", tmp_path / "o.json")
    similarity = table(out, "second")
    assert list(similarity) == ["word overlap", "TF-IDF", *chosen]
    document = json.loads((tmp_path / "o.json").read_text())
    assert [model["model"] for model in document["models"]] == list(similarity)
    for model in document["models"]:
        shown = similarity[model["model"]]
        for task in ("first", "second"):
            assert shown[task] == pytest.approx(model["metrics"][task]["spearman"], abs=0.006)
        assert shown["mean"] == shown["second"], "the dev task is not in the headline"
    assert similarity[chosen[0]] == similarity[chosen[2]], "an export without calibration is its encoder"
    assert similarity[chosen[0]] != similarity[chosen[1]]


def test_queries_and_documents_have_their_prompts(call, exports, sentences, tmp_path):
    """Wherever models are scored: by this command, by `raysed teachers`, and from Python."""
    path, search = shutil.copytree(exports["1"], tmp_path / "model"), tmp_path / "search"
    prompts = {"prompts": {"query": "the big red ", "document": "on "}}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (search / "qrels").mkdir(parents=True)
    texts = sentences[:-1]  # the last one is empty
    for name, some in (("corpus", texts), ("queries", texts[1:31])):
        lines = [json.dumps({"_id": f"{i:02d}", "text": text}) for i, text in enumerate(some)]
        (search / f"{name}.jsonl").write_text("\n".join(lines))
    judged = "".join(f"{i:02d}\t{i:02d}\t1\n" for i in range(30))
    (search / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    model = SentenceTransformer(str(path), device="cpu")
    (task,) = Evaluation.load(EvaluationConfig(tasks=tasks_of([str(search)]), dev=None), 0).tasks.values()
    x_UD = np.concatenate([model.encode_query(texts[1:31]), model.encode_document(texts)])
    expected = pytest.approx(task.metrics(task.outcome(x_UD))["ndcg@10"], abs=1e-3)
    assert task.metrics(task.outcome(model.encode(task.sentences)))["ndcg@10"] != expected
    output = tmp_path / "o.json"
    call("--models", path, "--task", search, "--output", output)
    assert json.loads(output.read_text())["models"][-1]["metrics"]["search"]["ndcg@10"] == expected
    words = ["--teachers", str(path), str(exports["2"]), "--task", str(search), "--output", str(output)]
    words += ["--set", PRECISE]
    teachers.job(teachers.parser().parse_args(words))
    assert json.loads(output.read_text())["worth"]["rows"][0]["tasks"]["search"] == expected
    for given in (path, {"path": str(path)}, model):
        assert raysed.evaluate(given, [str(search)])["search"]["ndcg@10"] == expected


def test_files_need_no_config(call, tmp_path):
    """Pairs of any range, labelled texts and retrieval; each is known by its files."""
    pairs = tmp_path / "mine.csv"
    rows = [(round(score / 5, 2), a, b) for score, a, b in bundled.pairs("dev")[:40]]
    pairs.write_text("score,text1,text2\n" + "".join(f'{s},"{a}","{b}"\n' for s, a, b in rows))
    topics = tmp_path / "topics.tsv"
    texts = bundled.corpus()[:40]
    topics.write_text("text\tlabel\n" + "".join(f"{text}\t{'man' in text}\n" for text in texts))
    found = tmp_path / "search"
    (found / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    (found / "corpus.jsonl").write_text("\n".join(lines))
    (found / "queries.jsonl").write_text("\n".join(lines[:10]))
    (found / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"{i}\t{i}\t1\n" for i in range(10))
    )
    words = [word for source in (pairs, topics, found) for word in ("--task", source)]
    out = call("--models", "bundled:encoder", *words, "--output", tmp_path / "o.json")
    scores = out[out.index("models ") :]
    header = scores.splitlines()[0].split()
    assert header == ["models", "mean", "mine", "topics", "search"]
    by_name = {line.split("  ")[0]: line.split()[-len(header) + 1 :] for line in scores.splitlines()[2:6]}
    assert list(by_name) == ["word overlap", "TF-IDF", "BM25", "bundled:encoder"]
    assert by_name["bundled:encoder"][-1] == by_name["BM25"][-1] == "100.00"
    assert "the best lexical baseline" in out and "95 % intervals" in out
    document = json.loads((tmp_path / "o.json").read_text())
    assert "outcomes" not in document["models"][-1]
