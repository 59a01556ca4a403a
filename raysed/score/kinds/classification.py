"""Labelled texts: how well SentEval's linear probe predicts the labels, see `probes`."""

import itertools
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from raysed.bundled import PREFIX
from raysed.config import TaskConfig
from raysed.data.graded import graded_schema
from raysed.data.rows import Schema, column_names, read_source
from raysed.data.sources import Hub, ending, find
from raysed.errors import UserError
from raysed.score import probes
from raysed.score.kinds import EvaluationTask
from raysed.score.lexical import Vectors
from raysed.score.probes import Features, Labelled
from raysed.store.progress import report_part

FOLDS = 5
"""Without a test part, a probe trained on the other folds predicts each text."""
_LEXICAL_GRID = tuple(2.0**exponent for exponent in range(-2, 8, 2))
"""Unit vectors of words need weaker regularisation than embeddings."""
TEXT_COLUMNS = ("text", "sentence", "utterance", "title")
LABEL_COLUMNS = ("label", "class", "category", "intent", "topic")
"""Common names; the first column found is used."""
FEWEST_TEXTS = 5
"""Per class: every fold of a classification needs one."""


def classes_schema(config: TaskConfig, setting: str) -> Schema:
    """Return the schema of a file of labelled texts."""
    text, label = config.columns.text, config.columns.label
    return Schema(
        setting=setting,
        kind="texts with a label",
        wanted={
            ("text",): [(name,) for name in ([text] if text else TEXT_COLUMNS)],
            ("label",): [(name,) for name in ([label] if label else LABEL_COLUMNS)],
        },
        needed=f"{text or 'text'} and {label or 'label'}",
        optional={"split": "split"},
        text=("text",),
        remedy=f"; name yours in {setting}.columns",
    )


def _check_classes(classes: Sequence[str], ids: np.ndarray, source: str, setting: str) -> None:
    if len(classes) < 2:
        found = f"all {len(ids):,} texts of {source} have the label {classes[0]!r}" if classes else ""
        found = found or f"{source} has no text with a label"
        raise UserError(f"{setting}: {found}; at least two labels are needed")
    counts = np.bincount(ids)
    if counts.min() < FEWEST_TEXTS:
        few = classes[int(counts.argmin())]
        raise UserError(
            f"{setting}: the label {few!r} of {source} has {counts.min()} of {len(ids):,} texts, but "
            f"each of {len(classes):,} labels needs at least {FEWEST_TEXTS}; add texts, merge labels or leave it out"
        )


class LabelledTask(EvaluationTask):
    """N texts with class ids `labels`, int64 [N]; `scored`, bool [N], marks the texts that are scored."""

    has_test_part: ClassVar[bool] = False
    """Whether only the test rows are scored, if there are any."""

    def __init__(
        self,
        name: str,
        texts: list[str],
        labels: np.ndarray,
        classes: list[str],
        test: np.ndarray | None = None,
        seed: int = 0,
    ):
        self.name, self.texts, self.labels, self.classes, self._seed = name, texts, labels, classes, seed
        self.size = f"{len(texts):,} texts, {len(classes)} classes"
        self.sentences = list(dict.fromkeys(texts))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self.rows = np.array([row[text] for text in texts])
        """Index in `sentences` of each text, int64 [N]."""
        self.scored = test if self.has_test_part and test is not None else np.ones(len(texts), bool)

    @classmethod
    def load(cls, name: str, config: TaskConfig, seed: int, aggregation: str) -> "LabelledTask":
        """Read texts with a label: a file or hub dataset with a column for each.

        If a column `split` has both `test` and other rows, a classification predicts only the test rows. `config.split`
        selects one split instead. Rows without text or label are dropped. At least two labels are required, and five
        texts of each.
        """
        setting = f"evaluation.tasks.{name}"
        rows = read_source(config, classes_schema(config, setting), "test")
        labels = ["" if value is None else str(value).strip() for value in rows.columns["label"]]
        texts = rows.texts("text")
        kept = [i for i, (text, label) in enumerate(zip(texts, labels)) if text.strip() and label]
        classes, ids = np.unique([labels[i] for i in kept], return_inverse=True) if kept else ([], np.zeros(0, int))
        classes = list(map(str, classes))
        _check_classes(classes, ids, rows.name, setting)
        splits = [rows.columns["split"][i] for i in kept] if config.split is None else []
        test = np.array([split == "test" for split in splits], bool)
        is_divided = test.any() and not test.all()
        if cls.has_test_part and is_divided and (np.bincount(ids[~test]) > 1).sum() < 2:
            raise UserError(
                f"{setting}: {rows.name} has too few texts outside of its split 'test' to learn from; add two of each "
                f"of two labels, or set {setting}.split to read one split"
            )
        return cls(name, [texts[i] for i in kept], ids.astype(np.int64), classes, test if is_divided else None, seed)

    def content(self) -> list[Any]:
        return [self.kind, self.texts, self.labels.tolist(), self.scored.tolist(), self._seed]

    def items(self) -> list[tuple[str, ...]]:
        """Return the texts that are scored; the others are only trained on."""
        return [(self.texts[i],) for i in np.flatnonzero(self.scored)]

    def without(self, rows: Sequence[int]) -> "LabelledTask | None":
        kept = np.delete(np.arange(len(self.texts)), np.flatnonzero(self.scored)[rows])
        ids, labels = np.unique(self.labels[kept], return_inverse=True)
        scored = self.scored[kept]
        if len(ids) < 2 or np.bincount(labels).min() < FEWEST_TEXTS or not scored.any():
            return None
        texts, classes = [self.texts[i] for i in kept], [self.classes[i] for i in ids]
        return type(self)(self.name, texts, labels, classes, None if scored.all() else scored, self._seed)

    def strata(self) -> list[tuple[slice, float]]:
        return [(slice(0, int(self.scored.sum())), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return the accuracy x100 of predicted classes, [M, R]."""
        gold = self.labels[self.scored]
        return 100 * np.stack([outcome == gold for outcome in outcomes]) @ counts_PR / counts_PR.sum(0)


class Classification(LabelledTask):
    """Scores models by the accuracy of a logistic regression on their embeddings.

    With a test part, the probe learns from the other rows. Without one, a probe predicts each of five folds from the
    rest. Folds of the training rows choose the strength of regularisation.
    """

    kind, main, measure = "classification", "accuracy", "accuracy of a linear probe"
    has_test_part = True

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        """Return whether the file has a column of texts and one of labels, but no pairs of sentences with a score."""
        if config.queries or config.qrels or config.source.startswith(PREFIX):
            return False
        if os.path.isdir(os.path.expanduser(config.source)) or ending(config.source) == ".txt":
            return False
        (source,) = find(config.source, setting, "a task", Hub(config.source, config.name, config.split or "test"))
        if isinstance(source, Hub):
            return bool(config.columns.text or config.columns.label)
        names = column_names(source)
        return graded_schema(config, setting).find(names) is None and bool(classes_schema(config, setting).find(names))

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return the predicted class of every test row, int64 [N_test]."""
        return self._predict(np.asarray(x_UD, np.float32)[self.rows], probes.SPLIT_GRID, self._seed, FOLDS)

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        return self._predict(vectors(self.texts), _LEXICAL_GRID, None, 3)

    def _predict(self, features: Features, grid: Sequence[float], seed: int | None, count: int) -> np.ndarray:
        """Return predicted classes from the features of all texts; `count` folds drawn by `seed` choose C."""
        labels_N, predicted_N = self.labels, np.zeros_like(self.labels)
        folds = [(np.flatnonzero(~self.scored), np.flatnonzero(self.scored))]
        if self.scored.all():
            folds = probes.stratified_folds(labels_N, self._seed, FOLDS)
        fits, done = len(folds) * count * len(grid), itertools.count(1)  # up to half a minute each
        for rows, held_out in folds:
            train = Labelled(features[rows], labels_N[rows])
            parts = train.folds(seed, min(count, int(np.bincount(train.labels).max())))  # every fold needs a text
            found = probes.classify(train, features[held_out], grid, parts, lambda: report_part(next(done) / fits))
            predicted_N[held_out] = found.predicted
        report_part(0.0)  # few texts of a class make fewer folds
        return predicted_N[self.scored]

    def metrics(self, outcome: np.ndarray) -> dict[str, float | int]:
        """Return accuracy and macro F1, x100, and the number of predicted texts and of classes."""
        from sklearn.metrics import f1_score  # takes a second; most processes never need it

        gold = self.labels[self.scored]
        return {
            "accuracy": 100 * float(np.mean(outcome == gold)),
            "macro_f1": 100 * float(f1_score(gold, outcome, average="macro")),
            "texts": len(gold),
            "classes": len(self.classes),
        }
