"""Texts with a label: what a user's own classification or clustering task is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Schema, read_source
from raysed.errors import UserError


@dataclass(frozen=True)
class LabelledTexts:
    """N texts with one label each.

    Attributes:
        labels: class ids, int64 [N].
        classes: names of the classes, by id.
        test: which texts are to be predicted, bool [N]; None where the source does not divide them.
    """

    name: str
    texts: list[str]
    labels: np.ndarray
    classes: list[str]
    test: np.ndarray | None = None


TEXT_COLUMNS = ("text", "sentence", "utterance", "title")
LABEL_COLUMNS = ("label", "class", "category", "intent", "topic")
"""What the columns are often called; the first that is there is taken."""
FEWEST = 5
"""Texts of each class: every fold of a classification needs one."""


def classes_schema(config: TaskConfig, setting: str) -> Schema:
    """Return what is wanted of a file of labelled texts."""
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


def load_classes(name: str, config: TaskConfig) -> LabelledTexts:
    """Read texts with a label: a file or a hub dataset with a column for each.

    Where a column `split` has rows of `test` and of another name, the test rows are what is predicted; `config.split`
    takes the rows of one split alone. Rows without text or label are left out. At least two labels are needed, and
    five texts of each.
    """
    setting = f"evaluation.tasks.{name}"
    rows = read_source(config, classes_schema(config, setting), "test")
    labels = ["" if value is None else str(value).strip() for value in rows.columns["label"]]
    texts, names = rows.texts("text"), rows.classes.get("label")
    kept = [i for i, (text, label) in enumerate(zip(texts, labels)) if text.strip() and label]
    classes, ids = np.unique([labels[i] for i in kept], return_inverse=True) if kept else ([], np.zeros(0, np.int64))
    _check_classes(list(map(str, classes)), ids, rows.name, setting)
    splits = [rows.columns["split"][i] for i in kept] if config.split is None else []
    test = np.array([split == "test" for split in splits], bool)
    if names:  # the name behind a number, where the hub says it
        classes = [names[int(v)] if v.isdigit() and int(v) < len(names) else v for v in classes]
    is_divided = test.any() and not test.all()
    return LabelledTexts(
        name, [texts[i] for i in kept], ids.astype(np.int64), list(map(str, classes)), test if is_divided else None
    )


def _check_classes(classes: Sequence[str], ids: np.ndarray, source: str, setting: str) -> None:
    if len(classes) < 2:
        found = f"all {len(ids):,} texts of {source} have the label {classes[0]!r}" if classes else ""
        found = found or f"{source} has no text with a label"
        raise UserError(f"{setting}: {found}; at least two labels are needed")
    counts = np.bincount(ids)
    if counts.min() < FEWEST:
        few = classes[int(counts.argmin())]
        raise UserError(
            f"{setting}: the label {few!r} of {source} has {counts.min()} of {len(ids):,} texts, but "
            f"each of {len(classes):,} labels needs at least {FEWEST}; add some, merge labels or leave it out"
        )
