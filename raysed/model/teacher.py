"""What a learner imitates: anything that gives a vector for a sentence.

Each kind of teacher is one class in one file of `raysed.model.teachers`, which is found without being listed anywhere.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raysed.config import EncoderConfig, Precision, TeacherConfig, stable_hash
from raysed.errors import UserError
from raysed.model import teachers
from raysed.store.files import sha256_of


class MissingSentence(UserError):
    """The teacher has no vector for a sentence."""


@dataclass(eq=False)
class Teacher(ABC):
    """A sentence encoder that answers and is not trained. A model is loaded when it is first needed, and then kept.

    Attributes:
        token_budget: tokens per forward pass; None: what suits the device.
        encoder: the run's own, whose width its members have.
        is_made_by_run: whether its vectors are artefacts of the run, which do not exist before it starts.
        is_model: whether its path is an encoder, which a learner can start from.
        is_stored: whether its vectors are looked up, so that the time this takes tells nothing.
        parameters: how many numbers it was trained to; 0 where that is not known.
        identity: what distinguishes its vectors from those of any other teacher; its name and place do not count.
    """

    config: TeacherConfig
    token_budget: int | None = None
    device: str = "cpu"
    precision: Precision = "fp32"
    encoder: EncoderConfig | None = None

    is_made_by_run: ClassVar[bool] = False
    is_model: ClassVar[bool] = False
    is_stored: ClassVar[bool] = False
    parameters: ClassVar[int] = 0
    identity: ClassVar[str]

    @cached_property
    def width(self) -> int:
        """Size of its vectors, found by asking it once."""
        return self.embed(["A sentence."]).shape[1]

    @classmethod
    @abstractmethod
    def takes(cls, path: str) -> bool:
        """Return whether `path` of a teacher's settings is of this kind."""

    @abstractmethod
    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Return one vector per sentence, float32 [N, D]; MissingSentence where it has none for one of them."""

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.config.title

    def knows(self, sentences: Sequence[str]) -> bool:
        """Whether it has a vector for each of them."""
        return True

    def _digest(self, files: Mapping[str, Path]) -> str:
        """Return a digest of files, by the names that count, and of how the teacher is asked."""
        digests = {name: sha256_of(path) for name, path in files.items()}
        return stable_hash([digests, self.config.model_dump(mode="json", exclude={"path", "name"})])

    def unload(self) -> None:
        """Free the memory of what was loaded; it is loaded again when it is needed."""
        self.__dict__.pop("_model", None)

    def check(self) -> None:
        """Raise `UserError` where the teacher cannot be used; called once, before the run starts."""
        if self.width < 1:
            raise UserError(f"teachers: {self.config.path!r} has embeddings of width {self.width}")


@cache
def kinds() -> tuple[type[Teacher], ...]:
    """Return every kind of teacher; models come last, because they take any path."""
    for info in pkgutil.iter_modules(teachers.__path__):
        importlib.import_module(f"{teachers.__name__}.{info.name}")
    return tuple(sorted(Teacher.__subclasses__(), key=lambda kind: kind.is_model))


def kind_of(path: str) -> type[Teacher]:
    """Return the kind of a teacher: the one that takes its path, or else a model.

    >>> [kind_of(path).__name__ for path in ("members:ct", "api.parquet", "intfloat/e5-small-v2")]
    ['Members', 'EmbeddingFile', 'ModelTeacher']
    """
    return next(kind for kind in kinds() if kind.takes(path))


def load_teacher(config: TeacherConfig, *arguments: Any, **named: Any) -> Teacher:
    """Return the teacher that a block of settings describes; see `Teacher` for further arguments."""
    return kind_of(config.path)(config, *arguments, **named)


def default_learner(paths: Iterable[str]) -> dict[str, str]:
    """Return settings of `encoder` for a learner that nobody has named: half of the first teacher that is a model.

    >>> default_learner(["members", "api.parquet", "intfloat/e5-small-v2"])
    {'path': 'intfloat/e5-small-v2', 'keep_layers': 'half'}
    >>> default_learner(["api.parquet"])
    {'path': 'bundled:encoder'}
    """
    models = [path for path in paths if kind_of(path).is_model]
    return {"path": models[0], "keep_layers": "half"} if models else {"path": EncoderConfig().path}
