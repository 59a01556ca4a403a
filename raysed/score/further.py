"""Tasks that a run scores on further sentences: transfer tasks and QNLI."""

from dataclasses import dataclass, field
from functools import cached_property

from raysed.config import EvaluationConfig, stable_hash
from raysed.data.transfer import TransferTask, load_transfer
from raysed.score.qnli import Qnli, load_qnli
from raysed.score.transfer import sentences_of


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
    """Read what the configuration asks for.

    Raises:
        UserError: a file, a split or a task that is not there.
    """
    return FurtherTasks(
        load_transfer(config.transfer), load_qnli(config.analysis.qnli) if config.analysis.qnli else None
    )
