"""GLUE's QNLI: does a sentence answer a question? Scored by the cosine alone, without training (BERT-flow table 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from raysed.config import PairSource
from raysed.data.rows import Schema, read_source
from raysed.errors import UserError
from raysed.score.metrics import pair_cosines

_SCHEMA = Schema(
    setting="evaluation.analysis.qnli",
    kind="questions and sentences",
    wanted={("question", "sentence", "label"): [("question", "sentence", "label")]},
    needed="question, sentence and label",
    text=("question", "sentence"),
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


def load_qnli(source: str) -> Qnli:
    """Read QNLI.

    Args:
        source: GLUE's dev.tsv or another file (columns question, sentence, label), or a hub dataset, of which the
            configuration `qnli` and the split `validation` are read.

    Raises:
        UserError: names the source, in a file the line, and what is wrong.
    """
    table = read_source(PairSource(source=source, name="qnli"), _SCHEMA, "validation")
    names = table.classes.get("label")
    labels = [_label(value, names, table.where(place)) for place, value in enumerate(table.columns["label"])]
    if len(set(labels)) < 2:
        raise UserError(f"evaluation.analysis.qnli: {source} must have both entailment and not_entailment")
    return Qnli(table.texts("question"), table.texts("sentence"), np.array(labels, dtype=np.int64))


def _label(value: Any, names: Sequence[str] | None, where: str) -> int:
    label = names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
    if label not in _LABELS:
        raise UserError(f"{where}: label {label!r} is neither entailment nor not_entailment")
    return _LABELS[label]
