"""Labelled texts by their neighbours, against scikit-learn, plain loops and resampling by hand."""

import json
from collections import Counter

import numpy as np
import pytest

from raysed.config import TaskConfig
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.lexical import tf_idf_vectors
from raysed.score.tasks import load_any_task

WORDS = ("rain cloud wind storm", "bread cheese soup apple", "goal team ball match")


def texts_of(rng, count=90):
    """Texts of three topics, in words and, up to noise, in a given space."""
    labels = rng.integers(0, 3, count)
    texts = [" ".join(rng.choice(WORDS[label].split(), 5)) + f" {i}" for i, label in enumerate(labels)]
    return Neighbours("topics", texts, labels, ["weather", "food", "sport"])


@pytest.mark.parametrize(
    "copy",
    [str, str.upper, lambda text: f" {text}  ", lambda text: text.replace("a", "\uff41"), lambda text: text],
    ids=["equal", "case", "blanks", "forms", "the same object"],
)
def test_equals_of_a_text_are_no_neighbours_of_it(tmp_path, caplog, copy):
    """Copies with one label would vote for each other, whatever the model."""
    caplog.set_level("INFO", "raysed")
    texts = [f"a text {i}" for i in range(40)]
    rows = [(text, "even" if i % 2 else "odd") for i, text in enumerate(texts)]
    rows = [row for text, label in rows for row in ((text, label), *[(copy(text), label)] * 3)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    task = load_any_task("t", TaskConfig(source=str(tmp_path / "a.jsonl")))
    rng = np.random.default_rng(0)
    vector = {key: rng.normal(size=8) for key in range(40)}
    x_UD = np.array([vector[int(text.split()[-1])] for text in task.sentences])
    assert task.metrics(task.outcome(x_UD))["neighbours"] < 75
    assert "160 of 160 texts have equals, which are no neighbours" in caplog.text


def test_each_text_has_the_label_of_most_of_its_five_nearest(monkeypatch):
    monkeypatch.setattr("raysed.score.kinds.neighbours.BLOCK_CELLS", 7 * 40)  # several blocks
    rng = np.random.default_rng(0)
    task, x_ND = texts_of(rng, 40), rng.normal(size=(40, 4))
    found = task.outcome(x_ND)
    cosine_NN = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in x_ND] for x in x_ND]
    for i in range(40):
        near = sorted((j for j in range(40) if j != i), key=lambda j, i=i: -cosine_NN[i][j])[:5]
        votes = Counter(task.labels[near].tolist())
        best = [label for label in votes if votes[label] == max(votes.values())]
        assert found[i] in best and (len(best) > 1 or found[i] == best[0])
    assert task.metrics(found)["neighbours"] == 100 * np.mean(found == task.labels)
    assert task.lexical_outcome(tf_idf_vectors).shape == (40,)
