"""Tasks apart from graded pairs, which need further sentences: transfer tasks and QNLI."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from raysed.config import Config, stable_hash
from raysed.score.analysis import load_qnli
from raysed.score.transfer import TransferTask, load_transfer, sentences_of


@dataclass(frozen=True)
class FurtherTasks:
    """What is asked of the models.

    Attributes:
        transfer: transfer tasks.
        qnli: questions, sentences and labels, or None.
    """

    transfer: list[TransferTask] = field(default_factory=list)
    qnli: tuple[list[str], list[str], np.ndarray] | None = None

    def __bool__(self) -> bool:
        return bool(self.transfer) or self.qnli is not None

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences: those of the transfer tasks first, in the order of `sentences_of`."""
        questions, answers, _ = self.qnli or ((), (), ())
        return list(dict.fromkeys([*sentences_of(self.transfer), *questions, *answers]))

    @cached_property
    def identity(self) -> str:
        """A digest of sentences and labels."""
        labels = [split.labels.tolist() for task in self.transfer for split in task.splits.values()]
        return stable_hash([self.sentences, labels, [] if self.qnli is None else self.qnli[2].tolist()])


def load_further(config: Config) -> FurtherTasks:
    """Reads what the configuration asks for.

    Raises:
        UserError: a file, a split or a task that is not there.
    """
    transfer = load_transfer(config.evaluation.transfer) if config.evaluation.transfer.source else []
    qnli = config.evaluation.analysis.qnli
    return FurtherTasks(transfer, load_qnli(qnli) if qnli else None)
