"""Tasks on further sentences: linear probes on frozen embeddings (SentEval), and GLUE's QNLI by the cosine.

Sources: Conneau and Kiela, "SentEval", LREC 2018; SED table 7 and BSL table 2 report these tasks.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from raysed.config import EvaluationConfig, PairSource, stable_hash
from raysed.data.rows import Schema, read_source
from raysed.data.transfer import FOLDS, Kind, TransferTask, load_transfer
from raysed.errors import UserError
from raysed.score import probes
from raysed.score.metrics import pair_cosines, pearson, spearman
from raysed.score.probes import Features, Labelled

SED_TASKS = tuple("CR MR MPQA SUBJ SST2 SST5 TREC MRPC SICKEntailment SICKRelatedness STSBenchmark".split())
"""The columns of SED table 7."""


@dataclass(frozen=True)
class ProbeJob:
    """One probe, independent of all others: a whole task, or one outer fold of a nested one.

    Attributes:
        fold: number of the outer fold; None where there is none.
        rows: per split, where its sentences are in `sentences_of(tasks)`: int64 [N, sides].
        protocol: in words.
    """

    task: str
    kind: Kind
    fold: int | None
    seed: int
    rows: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    protocol: str

    @property
    def outer_fold(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in the split `all` of a nested task its training and its test rows are."""
        return probes.stratified_folds(self.labels["all"], self.seed)[self.fold]

    @property
    def training_rows(self) -> np.ndarray:
        """Where in `sentences_of(tasks)` the sentences are that its probe is fitted on, of both sides."""
        return np.unique(self.rows["train"] if self.fold is None else self.rows["all"][self.outer_fold[0]])


def sentences_of(tasks: Iterable[TransferTask]) -> list[str]:
    """Return the distinct sentences of all tasks in first-seen order: what a model has to encode."""
    splits = [split for task in tasks for split in task.splits.values()]
    return list(dict.fromkeys(sentence for split in splits for side in split.sides for sentence in side))


def jobs(tasks: Sequence[TransferTask], seed: int = 1111) -> list[ProbeJob]:
    """Return what there is to do, task by task: ten jobs for a nested task, one for any other."""
    row, found = {sentence: i for i, sentence in enumerate(sentences_of(tasks))}, []
    for task in tasks:
        sides = {key: [[row[s] for s in side] for side in split.sides] for key, split in task.splits.items()}
        rows = {key: np.array(of_split, np.int64).T for key, of_split in sides.items()}
        labels = {key: split.labels for key, split in task.splits.items()}
        folds = range(FOLDS) if task.kind == "nested" else [None]
        found += [ProbeJob(task.name, task.kind, fold, seed, rows, labels, task.protocol) for fold in folds]
    return found


def run_probe(job: ProbeJob, embeddings_UD: Features) -> dict[str, Any]:
    """Train and test one probe on the embeddings of `sentences_of(tasks)`, which may be sparse.

    Returns:
        task, fold, protocol, dev (what the choice was made by, x100) and, x100: accuracy, for MRPC also f1, or pearson
        and spearman; for classifiers also C and whether the last fit converged.
    """
    data = {key: Labelled(_features(job, rows, embeddings_UD), job.labels[key]) for key, rows in job.rows.items()}
    about = {"task": job.task, "fold": job.fold, "protocol": job.protocol}
    if job.kind == "regression":
        predicted_N, dev = probes.regress(data["train"], data["dev"], data["test"].features, job.seed)
        gold_N = data["test"].labels
        scores = {"pearson": 100 * pearson(predicted_N, gold_N), "spearman": 100 * spearman(predicted_N, gold_N)}
        return {**about, **scores, "dev": dev}
    if job.kind == "nested":
        fit, held_out = job.outer_fold
        data = {"train": data["all"].at(fit), "test": data["all"].at(held_out)}
    train, test = data["train"], data["test"]
    if job.kind == "split":
        found = probes.classify_by_dev(train, data["dev"], test.features, probes.SPLIT_GRID)
    else:
        grid = probes.FOLD_GRID if job.kind == "folds" else probes.SPLIT_GRID
        found = probes.classify_by_folds(train, test.features, grid, job.seed)
    scores = {"accuracy": 100 * float(np.mean(found.predicted == test.labels))}
    if job.task == "MRPC":
        from sklearn.metrics import f1_score  # takes a second, and most processes need none of it

        scores["f1"] = 100 * float(f1_score(test.labels, found.predicted))
    return {**about, **scores, "dev": found.dev, "C": found.c, "converged": found.converged}


def _features(job: ProbeJob, rows_NS: np.ndarray, embeddings_UD: Features) -> Features:
    sides = [embeddings_UD[rows].astype(np.float32) for rows in rows_NS.T]
    if not all(np.isfinite(side.data if issparse(side) else side).all() for side in sides):
        raise UserError(f"{job.task}: some embeddings are not finite: the model has diverged; lower its learning rate")
    return probes.pair_features(*sides) if len(sides) == 2 else sides[0]


def combine(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Put the results of all jobs together, per task; the folds of a nested task become mean and deviation."""
    found: dict[str, dict[str, Any]] = {}
    by_task = sorted(results, key=lambda result: result["fold"] or 0)
    for task in dict.fromkeys(result["task"] for result in by_task):
        folds = [result for result in by_task if result["task"] == task]
        found[task] = {key: value for key, value in folds[0].items() if key not in ("task", "fold")}
        if folds[0]["fold"] is not None:
            accuracies = [fold["accuracy"] for fold in folds]
            found[task] |= {
                "accuracy": statistics.fmean(accuracies),
                "std": statistics.stdev(accuracies) if len(folds) > 1 else 0.0,
                "dev": statistics.fmean(fold["dev"] for fold in folds),
                "C": [fold["C"] for fold in folds],
                "converged": all(fold["converged"] for fold in folds),
            }
    return found


def score_transfer(
    tasks: Sequence[TransferTask],
    embeddings_UD: np.ndarray,
    seed: int = 1111,
    run: Callable[[Callable[[ProbeJob], dict], list[ProbeJob]], Iterable[dict]] = map,
) -> dict[str, dict[str, Any]]:
    """Score one model on all tasks by the embeddings of `sentences_of(tasks)`; `run` is called like `map`."""
    count = len(sentences_of(tasks))
    if embeddings_UD.ndim != 2 or len(embeddings_UD) != count:
        raise ValueError(f"{count} rows of embeddings expected, got shape {embeddings_UD.shape}")
    return combine(run(partial(run_probe, embeddings_UD=embeddings_UD), jobs(tasks, seed)))


def main_score(metrics: Mapping[str, Any]) -> float:
    """Return the number that tables show for a task: its accuracy, or the Pearson correlation of a regression."""
    return metrics["accuracy"] if "accuracy" in metrics else metrics["pearson"]


def transfer_average(scores: Mapping[str, Mapping[str, Any]], tasks: Sequence[str] | None = None) -> float | None:
    """Return the plain mean of some or all tasks' main scores, the papers' last column; None where one is missing."""
    names = list(scores) if tasks is None else tasks
    if not names or not set(names) <= set(scores):
        return None
    return statistics.fmean(main_score(scores[name]) for name in names)


# -- with other tasks on further sentences ---------------------------------------------------------------------------

_COLUMNS = ("question", "sentence", "label")
_SCHEMA = Schema(
    setting="evaluation.analysis.qnli",
    kind="questions and sentences",
    wanted={_COLUMNS: [_COLUMNS]},
    needed="question, sentence and label",
    text=_COLUMNS[:2],
)
_LABELS = {"entailment": 1, "not_entailment": 0}


@dataclass(frozen=True)
class Qnli:
    """Questions and sentences with labels, int64 [P]: 1 for `entailment`, 0 for `not_entailment`; both occur."""

    questions: list[str]
    answers: list[str]
    labels: np.ndarray

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct texts that a model has to embed."""
        return list(dict.fromkeys([*self.questions, *self.answers]))

    def score(self, x_UD: np.ndarray) -> float:
        """Return the area under the ROC curve x100 of the cosine, from the embeddings of `sentences`."""
        from sklearn.metrics import roc_auc_score  # takes a second, and most processes need none of it

        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        rows_P2 = np.array([[row[question], row[answer]] for question, answer in zip(self.questions, self.answers)])
        return 100 * float(roc_auc_score(self.labels, pair_cosines(x_UD, x_UD, rows_P2)))


@dataclass(frozen=True)
class FurtherTasks:
    """What is asked of the models."""

    transfer: list[TransferTask] = field(default_factory=list)
    qnli: Qnli | None = None

    def __bool__(self) -> bool:
        return bool(self.transfer) or self.qnli is not None

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences: those of the transfer tasks first, in the order of `sentences_of`."""
        return list(dict.fromkeys([*sentences_of(self.transfer), *(self.qnli.sentences if self.qnli else [])]))

    @cached_property
    def identity(self) -> str:
        """A digest of sentences and labels."""
        labels = [split.labels.tolist() for task in self.transfer for split in task.splits.values()]
        return stable_hash([self.sentences, labels, self.qnli.labels.tolist() if self.qnli else []])


def load_further(config: EvaluationConfig) -> FurtherTasks:
    """Read what the configuration asks for."""
    qnli = config.analysis.qnli
    return FurtherTasks(load_transfer(config.transfer), load_qnli(qnli) if qnli else None)


def load_qnli(source: str) -> Qnli:
    """Read QNLI from GLUE's dev.tsv, or from the validation split of a hub dataset's configuration `qnli`."""
    table = read_source(PairSource(source=source, name="qnli"), _SCHEMA, "validation")
    labels = table.columns["label"]
    for place, label in enumerate(labels):
        if label not in _LABELS:
            raise UserError(f"{table.where(place)}: label {label!r} is neither entailment nor not_entailment")
    if len(set(labels)) < 2:
        raise UserError(f"evaluation.analysis.qnli: {source} must have both entailment and not_entailment")
    return Qnli(table.texts("question"), table.texts("sentence"), np.array([_LABELS[label] for label in labels]))
