"""SentEval's classifier against a plain one: torch's own layer, loss and optimizer, and its rule for stopping."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from papers import adam
from papers.probes import Labelled
from papers.senteval import SEED


def plain_fit(train: Labelled, dev: Labelled | None, decay: float, classes: int) -> tuple[nn.Linear, float]:
    np.random.seed(SEED)  # noqa: NPY002 - what SentEval draws from
    torch.manual_seed(SEED)
    model = nn.Linear(train.features.shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=decay)
    if dev is None:
        order = np.random.permutation(len(train.labels))  # noqa: NPY002
        cut = int(0.05 * len(order))
        train, dev = train.at(order[cut:]), train.at(order[:cut])
    x, y = torch.tensor(train.features), torch.tensor(train.labels)
    best, best_accuracy, epochs, failures, is_over = None, -1.0, 0, 0, False
    while not is_over and epochs <= 200:
        for _ in range(4):
            order = np.random.permutation(len(y))  # noqa: NPY002
            for start in range(0, len(y), 64):
                rows = order[start : start + 64]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        epochs += 4
        with torch.no_grad():
            accuracy = (model(torch.tensor(dev.features)).argmax(1).numpy() == dev.labels).mean()
        if accuracy > best_accuracy:
            best, best_accuracy = copy.deepcopy(model), accuracy
        else:
            is_over, failures = failures >= 5, failures + 1
    return best, best_accuracy


def data(seed: int, rows: int, classes: int) -> Labelled:
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=rows)
    means = np.random.default_rng(9).normal(size=(classes, 12))
    return Labelled((means[labels] + 1.5 * draw.normal(size=(rows, 12))).astype(np.float32), labels)


@pytest.mark.parametrize(("classes", "with_dev"), [(2, True), (4, True), (3, False)])
def test_fits_equal_those_of_torch(classes, with_dev):
    train, dev = data(1, 230, classes), data(2, 90, classes) if with_dev else None
    decays = (1e-5, 1e-2)
    weights_KEC, accuracies = adam._fit(train, dev, decays, classes)
    for decay, weights, accuracy in zip(decays, weights_KEC, accuracies, strict=True):
        model, expected = plain_fit(train, dev, decay, classes)
        assert accuracy == expected
        found = np.concatenate([model.weight.detach().T, model.bias.detach()[None]])
        np.testing.assert_allclose(weights, found, atol=2e-5)


def test_the_decay_with_the_best_mean_over_the_parts_predicts():
    train, test, parts = (
        data(1, 200, 3),
        data(2, 60, 3),
        [(data(3, 150, 3), data(4, 50, 3)), (data(5, 150, 3), data(6, 50, 3))],
    )
    found = adam.classify(train, test.features, parts)
    means = [np.mean([100 * plain_fit(*part, decay, 3)[1] for part in parts]).round(2) for decay in adam.DECAYS]
    assert (found.c, found.dev) == (adam.DECAYS[int(np.argmax(means))], max(means))
    expected = plain_fit(train, None, found.c, 3)[0](torch.tensor(test.features)).argmax(1)
    assert found.predicted.tolist() == expected.tolist()
    assert np.mean(found.predicted == test.labels) > 0.5
