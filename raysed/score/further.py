"""Tasks that a run scores on further sentences: transfer tasks, and GLUE's QNLI by the cosine (BERT-flow table 4)."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from raysed.config import EvaluationConfig, PairSource, stable_hash
from raysed.data.rows import Schema, read_source
from raysed.data.transfer import TransferTask, load_transfer
from raysed.errors import UserError
from raysed.score.metrics import pair_cosines
from raysed.score.transfer import sentences_of

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
    names, labels = table.classes.get("label"), []
    for place, value in enumerate(table.columns["label"]):
        label = names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
        if label not in _LABELS:
            raise UserError(f"{table.where(place)}: label {label!r} is neither entailment nor not_entailment")
        labels.append(_LABELS[label])
    if len(set(labels)) < 2:
        raise UserError(f"evaluation.analysis.qnli: {source} must have both entailment and not_entailment")
    return Qnli(table.texts("question"), table.texts("sentence"), np.array(labels, dtype=np.int64))
