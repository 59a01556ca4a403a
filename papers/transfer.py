"""Score models on SentEval's transfer tasks: linear probes on frozen embeddings (Conneau and Kiela, LREC 2018).

Any models:             python -m papers.transfer SentEval/data/downstream --models MODEL --output scores.json
All models of a run:    python -m papers.transfer SentEval/data/downstream --run CONFIG --output scores.json

SED table 7 and BSL table 2 report these tasks; `jobs/reproduce.py` scores its runs by `rows_of_run`. papers/README.md
says what differs from SentEval.

task                           files                                    C, chosen on              score
MR, CR                         MR/rt-polarity.*, CR/custrev.*           2^-2..3, 10 inner folds   10 outer folds
SUBJ, MPQA                     SUBJ/subj.*, MPQA/mpqa.*                 the same                  the same
TREC, MRPC                     TREC/*.label, MRPC/msr_paraphrase_*      2^-1..5, 10 folds         test; MRPC also F1
SST2, SST5                     SST/{binary,fine}/sentiment-*            2^-2..3, dev              test
SICKEntailment                 SICK/SICK_{train,trial,test_annotated}   2^-2..3, dev              test
SICKRelatedness, STSBenchmark  the same; STS/STSBenchmark/sts-*.csv     -                         Pearson, test

Scores are accuracies if nothing else is said. A logistic regression has an L2 penalty and trains by L-BFGS to
convergence, or for 1,000 iterations (`converged`: false). BSL averages MR, CR, SUBJ, MPQA, SST2, TREC and MRPC.
Folds are stratified and shuffled by seed 1111, in SentEval's order.

Files are UTF-8, or else Latin-1. SICK and STS-B can also be tab-separated tables there or one level below: `sick*.tsv`
with the columns split, relatedness, label, premise and hypothesis, whose missing splits are drawn from the training
rows (test a third, dev a tenth; compare such scores with no published ones), and `stsb-{train,dev,test}.tsv` with
subset, score, sentence1 and sentence2.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from papers import adam, probes
from papers.finished import embed, finished, models_of
from papers.probes import SPLIT_GRID, Classified, Labelled
from papers.regression import regress
from papers.senteval import FOLDS, SEED, TransferTask, load_tasks
from raysed.cli import check_output, main_of, write_output
from raysed.config import find_config, load_config
from raysed.errors import UserError
from raysed.model.load import load_model
from raysed.report.results import RunResults
from raysed.score.metrics import pearson, spearman

FOLD_GRID = tuple(2.0**exponent for exponent in range(-1, 6))
"""Candidate values of C if folds of the training set choose and there is a test set."""
Classifier = Literal["logistic", "senteval"]


def sentences_of(tasks: Iterable[TransferTask]) -> list[str]:
    """Return the distinct sentences of all tasks, in first-seen order."""
    splits = [split for task in tasks for split in task.splits.values()]
    return list(dict.fromkeys(sentence for split in splits for side in split.sides for sentence in side))


def score_transfer(
    tasks: Sequence[TransferTask], embeddings_UD: np.ndarray, seed: int = SEED, classifier: Classifier = "logistic"
) -> dict[str, dict[str, Any]]:
    """Score one model on all tasks by the embeddings of `sentences_of(tasks)`.

    Args:
        seed: of folds and regressions; SentEval's classifier has its own.
        classifier: `logistic`, a converged regression; or `senteval`, see `papers.adam`.

    Returns:
        By task: protocol, classifier, dev (the score behind the choice) and accuracy (for MRPC also f1), or pearson and
        spearman, all x100. Classifiers add C (`senteval`: the weight decay) and whether the last fits converged. A
        nested task has accuracy and C of each fold, and mean and deviation of the accuracies.
    """
    row = {sentence: i for i, sentence in enumerate(sentences_of(tasks))}
    if embeddings_UD.ndim != 2 or len(embeddings_UD) != len(row):
        raise ValueError(f"{len(row)} rows of embeddings expected, got shape {embeddings_UD.shape}")
    found = {}
    for task in tasks:
        data = {}
        for key, split in task.splits.items():
            sides = [embeddings_UD[[row[sentence] for sentence in side]].astype(np.float32) for side in split.sides]
            if not all(np.isfinite(side).all() for side in sides):
                raise UserError(f"{task.name}: some embeddings are not finite, because the model has diverged")
            data[key] = Labelled(pair_features(*sides) if len(sides) == 2 else sides[0], split.labels)
        found[task.name] = score_task(task, data, seed, classifier)
    return found


def pair_features(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Return the features of sentence pairs, [|a - b|, a * b], [N, 2 D].

    >>> pair_features(np.array([[1.0, 2.0]]), np.array([[3.0, 1.0]])).tolist()
    [[2.0, 1.0, 3.0, 2.0]]
    """
    return np.concatenate([np.abs(a_ND - b_ND), a_ND * b_ND], axis=1)


def score_task(
    task: TransferTask, data: Mapping[str, Labelled], seed: int, classifier: Classifier = "logistic"
) -> dict[str, Any]:
    """Train and test the probes of one task on its features."""
    about = {"protocol": task.protocol, **({"classifier": classifier} if task.kind != "regression" else {})}
    if task.kind == "regression":
        predicted_N, dev = regress(data["train"], data["dev"], data["test"].features, seed)
        gold_N = data["test"].labels
        scores = {"pearson": 100 * pearson(predicted_N, gold_N), "spearman": 100 * spearman(predicted_N, gold_N)}
        return {**about, **scores, "dev": dev}
    if task.kind == "nested":
        return about | _score_folds(data["all"], seed, classifier)
    train, test, dev = data["train"], data["test"], data.get("dev")
    parts, grid = ([(train, dev)], SPLIT_GRID) if dev else (train.folds(seed, FOLDS), FOLD_GRID)
    found = _classify(classifier, train, test, grid, parts, dev)
    scores = {"accuracy": _accuracy(found, test)}
    if task.name == "MRPC":
        from sklearn.metrics import f1_score

        scores["f1"] = 100 * float(f1_score(test.labels, found.predicted))
    return {**about, **scores, "dev": found.dev, "C": found.c, "converged": found.converged}


def _classify(
    classifier: Classifier,
    train: Labelled,
    test: Labelled,
    grid: Sequence[float],
    parts: Iterable[tuple[Labelled, Labelled]],
    dev: Labelled | None = None,
) -> Classified:
    if classifier == "senteval":
        return adam.classify(train, test.features, parts, dev)
    return probes.classify(train, test.features, grid, parts)


def _score_folds(data: Labelled, seed: int, classifier: Classifier) -> dict[str, Any]:
    """Predict each outer fold by a probe whose C is chosen on the others."""
    found, accuracies = [], []
    for fit, test in data.folds(seed, FOLDS):
        found.append(_classify(classifier, fit, test, SPLIT_GRID, fit.folds(seed, FOLDS)))
        accuracies.append(_accuracy(found[-1], test))
    return {
        "accuracy": statistics.fmean(accuracies),
        "std": statistics.stdev(accuracies),
        "folds": accuracies,
        "dev": statistics.fmean(of_fold.dev for of_fold in found),
        "C": [of_fold.c for of_fold in found],
        "converged": all(of_fold.converged for of_fold in found),
    }


def _accuracy(found: Classified, test: Labelled) -> float:
    return 100 * float(np.mean(found.predicted == test.labels))


def average(scores: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the papers' last column: the mean of accuracies and of regressions' Pearson correlations."""
    return statistics.fmean(of_task.get("accuracy", of_task.get("pearson")) for of_task in scores.values())


def rows_of_run(run: RunResults, data: str) -> list[dict[str, Any]]:
    """Return the scores of all models of a finished run, by SentEval's classifier."""
    tasks, rows = load_tasks(Path(data)), []
    sentences = sentences_of(tasks)
    for about, model in models_of(run):
        scores = score_transfer(tasks, embed(model, sentences), classifier="senteval")
        rows.append({**about, "scores": scores, "average": average(scores)})
    return rows


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("data", type=Path, help="SentEval's data/downstream")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    result.add_argument("--models", metavar="MODEL", help="directories or hub ids", **several)
    result.add_argument("--run", help="a config whose run is complete: a name from raysed/configs/ or a YAML file")
    result.add_argument(
        "--task", dest="tasks", metavar="TASK", action="append", help="such as MR; repeatable (default: all found)"
    )
    kinds = "logistic: a converged regression; senteval: Adam with early stopping, as in published scores"
    result.add_argument("--classifier", choices=get_args(Classifier), default="logistic", help=kinds)
    result.add_argument("--output", type=Path, required=True, help="JSON file for the scores")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Score the models and write the file."""
    check_output(arguments.output)
    tasks = load_tasks(arguments.data, arguments.tasks)
    sentences, rows = sentences_of(tasks), []
    named = [({"model": name}, load_model(name)) for name in arguments.models]
    if arguments.run:
        named += models_of(finished(load_config(find_config(arguments.run))))
    for about, model in named:
        scores = score_transfer(tasks, embed(model, sentences), classifier=arguments.classifier)
        rows.append({**about, "scores": scores, "average": average(scores)})
        print(f"{' '.join(map(str, about.values()))}: {rows[-1]['average']:.2f}")
    write_output(arguments.output, json.dumps({"transfer": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
