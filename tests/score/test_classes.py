"""Labelled texts: probes, clusters and neighbours, against scikit-learn, plain loops and resampling by hand."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, v_measure_score

from raysed.score import probes
from raysed.score.kinds import classification
from raysed.score.kinds.classification import Classification
from raysed.score.kinds.clustering import SEEDS, Clustering
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.lexical import tf_idf_vectors
from raysed.score.metrics import v_measure
from raysed.score.tasks import Evaluation

WORDS = ("rain cloud wind storm", "bread cheese soup apple", "goal team ball match")


def texts_of(rng, kind=Classification, count=90, test=None):
    """Texts of three topics, in words and, up to noise, in a given space."""
    labels = rng.integers(0, 3, count)
    texts = [" ".join(rng.choice(WORDS[label].split(), 5)) + f" {i}" for i, label in enumerate(labels)]
    return kind("topics", texts, labels, ["weather", "food", "sport"], test)


def embeddings(rng, task, noise):
    centres = np.eye(3, 8) * 3
    return centres[task.labels] + noise * rng.normal(size=(len(task.labels), 8))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_v_measure_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    gold, found = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    table = np.zeros((4, 4))
    np.add.at(table, (gold, found), 1)
    assert v_measure(table) == pytest.approx(v_measure_score(gold, found), abs=1e-9)


@pytest.mark.parametrize("kind", [Classification, Clustering, Neighbours])
def test_clear_topics_are_found_and_noise_is_not(kind):
    rng = np.random.default_rng(0)
    task = texts_of(rng, kind)
    evaluation = Evaluation([task])
    clear, noise = (evaluation.score(embeddings(rng, task, n)).metrics["topics"][task.main] for n in (0.3, 100.0))
    assert clear == pytest.approx(100) and noise < 60


@pytest.mark.parametrize("kind", [Classification, Clustering])
def test_a_seed_may_be_any_number(kind):
    texts, labels = [f"text {i}" for i in range(20)], np.arange(20) % 2
    x_ND = np.random.default_rng(0).normal(size=(20, 3))
    small, large = (kind("t", texts, labels, ["a", "b"], None, seed).outcome(x_ND) for seed in (7, 2**32 + 7))
    np.testing.assert_array_equal(small, large)


def test_metrics_are_those_of_the_predictions():
    rng = np.random.default_rng(1)
    test = np.arange(90) % 3 == 0
    task = texts_of(rng, test=test)
    predicted = task.outcome(embeddings(rng, task, 3.0))
    gold = task.labels[test]
    found = task.metrics(predicted)
    assert found["texts"] == len(predicted) == 30
    assert found["accuracy"] == pytest.approx(100 * accuracy_score(gold, predicted))
    assert found["macro_f1"] == pytest.approx(100 * f1_score(gold, predicted, average="macro"))


def test_no_text_is_predicted_by_a_probe_that_has_seen_it(monkeypatch):
    task, seen = texts_of(np.random.default_rng(2)), []

    def classify(train, test_ND, *about):
        seen.append(set(train.features[:, 0]) & set(test_ND[:, 0]))
        return probes.Classified(np.zeros(len(test_ND), int), 1.0, 0.0, True)

    monkeypatch.setattr(probes, "classify", classify)
    task.outcome(np.arange(90.0)[:, None])
    assert seen == [set()] * 5


def test_each_fit_of_a_probe_moves_the_line_of_progress(monkeypatch):
    """The minutes that 150 classes take are shown in small steps."""
    task, shares = texts_of(np.random.default_rng(2)), []
    monkeypatch.setattr(classification, "report_part", shares.append)
    for outcome in task.lexical().values():
        shares.clear()
        outcome()
        *shown, afterwards = shares
        assert max(np.diff([0, *shown, 1])) < 0.02 and min(np.diff(shown)) > 0 and afterwards == 0


def test_the_mean_over_runs_of_k_means_counts():
    rng = np.random.default_rng(3)
    task = texts_of(rng, Clustering)
    outcome = task.outcome(embeddings(rng, task, 1.5))
    each = [100 * v_measure_score(task.labels, outcome[:, run]) for run in range(SEEDS)]
    assert task.metrics(outcome)["v_measure"] == pytest.approx(np.mean(each))
    assert task.metrics(outcome)["std"] == pytest.approx(np.std(each, ddof=1))


@pytest.mark.parametrize("kind", [Classification, Clustering, Neighbours])
def test_a_resample_scores_as_the_drawn_texts_do(kind):
    rng = np.random.default_rng(4)
    task = texts_of(rng, kind)
    outcome = task.outcome(embeddings(rng, task, 1.5))
    counts_RN = rng.multinomial(90, np.full(90, 1 / 90), 4)
    found_MR = task.resampled(slice(0, 90), [outcome, outcome[::-1]], counts_RN.T.astype(np.float32))
    for one, found_R in zip((outcome, outcome[::-1]), found_MR):
        for counts_N, found in zip(counts_RN, found_R):
            rows = np.repeat(np.arange(90), counts_N)
            expected = accuracy_score(task.labels[rows], one[rows]) if one.ndim == 1 else None
            if kind is Clustering:
                expected = np.mean([v_measure_score(task.labels[rows], one[rows, run]) for run in range(SEEDS)])
            assert found == pytest.approx(100 * expected, abs=1e-4)


def test_each_text_has_the_label_of_most_of_its_five_nearest(monkeypatch):
    monkeypatch.setattr("raysed.score.kinds.neighbours._BLOCK_CELLS", 7 * 40)  # several blocks
    rng = np.random.default_rng(0)
    task, x_ND = texts_of(rng, Neighbours, 40), rng.normal(size=(40, 4))
    found = task.outcome(x_ND)
    cosine_NN = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in x_ND] for x in x_ND]
    for i in range(40):
        near = sorted((j for j in range(40) if j != i), key=lambda j, i=i: -cosine_NN[i][j])[:5]
        votes = Counter(task.labels[near].tolist())
        best = [label for label in votes if votes[label] == max(votes.values())]
        assert found[i] in best and (len(best) > 1 or found[i] == best[0])
    assert task.metrics(found)["neighbours"] == 100 * np.mean(found == task.labels)
    assert task.lexical_outcome(tf_idf_vectors).shape == (40,)
