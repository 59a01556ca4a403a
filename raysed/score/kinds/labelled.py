"""Labelled texts: a file with a text and a label in each row."""

import logging
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from raysed.bundled import PREFIX
from raysed.config import TaskConfig
from raysed.data.graded import graded_schema
from raysed.data.rows import Schema, column_names, read_source
from raysed.data.sources import Hub, ending, find, parquet_parts
from raysed.errors import UserError
from raysed.score.kinds import EvaluationTask

log = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "sentence", "utterance", "title")
LABEL_COLUMNS = ("label", "class", "category", "intent", "topic")
"""Common names; the first column found is used."""
FEWEST_TEXTS = 5
"""Per class: fewer could not win a vote of the nearest texts."""


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
    """N texts with class ids `labels`, int64 [N]."""

    def __init__(self, name: str, texts: list[str], labels: np.ndarray, classes: list[str]):
        self.name, self.texts, self.labels, self.classes = name, texts, labels, classes
        self.size = f"{len(texts):,} texts, {len(classes)} classes"
        self.sentences = list(dict.fromkeys(texts))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self.rows = np.array([row[text] for text in texts])
        """Index in `sentences` of each text, int64 [N]."""

    @classmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> Self:
        """Read texts with a label: a file or hub dataset with a column for each.

        Rows without text or label are dropped and counted in a note. At least two labels are required, and five texts
        of each.
        """
        setting = f"evaluation.tasks.{name}"
        rows = read_source(config, classes_schema(config, setting), split)
        # NaN, which differs from itself, stands for no label in files of pandas and Python.
        labels = ["" if value is None or value != value else str(value).strip() for value in rows.columns["label"]]
        texts = rows.texts("text")
        kept = [i for i, (text, label) in enumerate(zip(texts, labels)) if text.strip() and label]
        classes, ids = np.unique([labels[i] for i in kept], return_inverse=True) if kept else ([], np.zeros(0, int))
        classes = list(map(str, classes))
        _check_classes(classes, ids, rows.name, setting)
        if dropped := len(texts) - len(kept):
            log.info("%s: %d of %d rows lack a text or a label and are left out", setting, dropped, len(texts))
        return cls(name, [texts[i] for i in kept], ids.astype(np.int64), classes)

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        """Return whether the file has a column of texts and one of labels, but no pairs of sentences with a score."""
        if config.queries or config.qrels or config.source.startswith(PREFIX):
            return False
        path = os.path.expanduser(config.source)
        if ending(path) == ".txt" or (os.path.isdir(path) and not parquet_parts(path)):
            return False
        hub = Hub(config.source, config.config_name, config.split or "test")
        (source,) = find(config.source, setting, "a task", hub)
        if isinstance(source, Hub):
            return bool(config.columns.text or config.columns.label)
        names = column_names(source)
        return graded_schema(config, setting).find(names) is None and bool(classes_schema(config, setting).find(names))

    def content(self) -> list[Any]:
        return [self.kind, self.texts, self.labels.tolist()]

    def items(self) -> list[tuple[str, ...]]:
        return [(text,) for text in self.texts]

    def without(self, rows: Sequence[int]) -> "LabelledTask | None":
        kept = np.delete(np.arange(len(self.texts)), rows)
        ids, labels = np.unique(self.labels[kept], return_inverse=True)
        if len(ids) < 2 or np.bincount(labels).min() < FEWEST_TEXTS:
            return None
        return type(self)(self.name, [self.texts[i] for i in kept], labels, [self.classes[i] for i in ids])

    def strata(self) -> list[tuple[slice, float]]:
        return [(slice(0, len(self.texts)), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return the accuracy x100 of predicted classes, [M, R]."""
        return 100 * np.stack([outcome == self.labels for outcome in outcomes]) @ counts_PR / counts_PR.sum(0)
