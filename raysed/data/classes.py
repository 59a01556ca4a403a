"""Texts with a label: what a user's own classification or clustering task is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Schema, read_source
from raysed.errors import UserError


@dataclass(frozen=True)
class LabelledTexts:
    """N texts with one label each; rows left out are `unlabelled` or `empty`."""

    name: str
    texts: list[str]
    labels: np.ndarray
    """Class ids, int64 [N]."""
    classes: list[str]
    """Names of the classes, by id."""
    test: np.ndarray | None = None
    """Which texts are to be predicted, bool [N]; None where the source does not divide them."""
    unlabelled: int = 0
    empty: int = 0


TEXT_COLUMNS = ("text", "sentence", "utterance", "title")
LABEL_COLUMNS = ("label", "class", "category", "intent", "topic")
"""What the columns are often called; the first that is there is taken."""
FEWEST = 5
"""Texts of each class: every fold of a classification needs one."""


def classes_schema(config: TaskConfig, setting: str) -> Schema:
    """Return what is wanted of a file of labelled texts."""
    named = config.columns
    return Schema(
        setting=setting,
        kind="texts with a label",
        wanted={
            ("text",): [(name,) for name in ([named.text] if named.text else TEXT_COLUMNS)],
            ("label",): [(name,) for name in ([named.label] if named.label else LABEL_COLUMNS)],
        },
        needed=f"{named.text or 'text'} and {named.label or 'label'}",
        optional={"split": "split"},
        text=("text",),
        remedy=f"; name yours in {setting}.columns",
    )


def load_classes(name: str, config: TaskConfig) -> LabelledTexts:
    """Read texts with a label: a file or a hub dataset with a column for each.

    Where a column `split` has rows of `test` and of another name, the test rows are what is predicted; `config.split`
    takes the rows of one split alone. Rows without text or label are left out and counted. At least two labels are
    needed, and five texts of each.
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
    return LabelledTexts(
        name,
        [texts[i] for i in kept],
        ids.astype(np.int64),
        # The name behind a number, where the hub says it.
        [names[int(v)] if names and v.isdigit() and int(v) < len(names) else str(v) for v in classes],
        test if test.any() and not test.all() else None,
        unlabelled=sum(1 for text, label in zip(texts, labels) if text.strip() and not label),
        empty=sum(1 for text in texts if not text.strip()),
    )


def _check_classes(classes: Sequence[str], ids: np.ndarray, source: str, setting: str) -> None:
    if len(classes) < 2:
        found = f"{source} has no text with a label"
        if classes:
            found = f"all {len(ids):,} texts of {source} have the label {classes[0]!r}"
        raise UserError(f"{setting}: {found}; at least two labels are needed")
    counts = np.bincount(ids)
    if counts.min() < FEWEST:
        few = classes[int(counts.argmin())]
        raise UserError(
            f"{setting}: the label {few!r} of {source} has {counts.min()} of {len(ids):,} texts, but "
            f"each of {len(classes):,} labels needs at least {FEWEST}; add some, merge labels or leave it out"
        )
