"""Teachers: anything that maps a sentence to a vector, for a learner to imitate.

`discover` finds each kind as one class in one file of `raysed.model.teachers`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raysed.config import EncoderConfig, Precision, Role, TeacherConfig
from raysed.errors import UserError, public
from raysed.model.pretrained import LOAD_ERRORS, configuration_of, load_tokenizer, longest_input
from raysed.model.prompts import prompts_of
from raysed.registry import discover
from raysed.store.files import Watched
from raysed.store.hub import model_identity

LONGEST_TEXT = 512
"""Tokens of a text that a distillation reads at most; attention is quadratic in them."""


@dataclass(eq=False)
class Teacher(ABC):
    """A frozen sentence encoder. It loads a model on first use and keeps it.

    Attributes:
        encoder: the run's own encoder, which gives members their width.
        is_made_by_run: the run itself makes its vectors.
        is_model: a learner can start from its path.
        is_stored: its vectors are looked up, so its speed means nothing.
        parameters: 0 if unknown.
        description: how a model pools, in words.
        identity: fingerprint of its vectors, independent of its name and location.
    """

    config: TeacherConfig
    device: str = "cpu"
    precision: Precision = "fp32"
    encoder: EncoderConfig | None = None

    is_made_by_run: ClassVar[bool] = False
    is_model: ClassVar[bool] = False
    is_stored: ClassVar[bool] = False
    parameters: ClassVar[int] = 0
    description: ClassVar[str] = ""
    identity: ClassVar[str]
    _directory: ClassVar[Path | None] = None
    """A model's files, which may have prompts."""

    @cached_property
    def width(self) -> int:
        """Size of its vectors, by embedding one sentence."""
        return self.embed(["A sentence."]).shape[1]

    @classmethod
    @abstractmethod
    def takes(cls, path: str) -> bool:
        """Return whether a teacher with this `path` is of this kind."""

    @abstractmethod
    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        """Return one vector per sentence, float32 [N, D]; raise UserError if it lacks one."""

    @cached_property
    def prompts(self) -> dict[Role, str]:
        """Prompts of queries and documents, from settings or model files; other texts get `prompt`."""
        given: dict[Role, str | None] = {"query": self.config.query_prompt, "document": self.config.document_prompt}
        try:
            found = prompts_of(self._directory) if self._directory else {}
        except UserError as error:
            raise error.at(f"teachers: {self.config.path!r}") from None
        return found | {role: prompt for role, prompt in given.items() if prompt is not None}

    @property
    def title(self) -> str:
        return self.config.title

    def weights_bytes(self) -> int:
        """Return the memory of its weights in fp32; 0 if it never runs on a GPU and needs little."""
        return 0

    def knows(self, sentences: Sequence[str]) -> bool:
        """Return whether it can embed all these sentences."""
        return True

    @property
    def watched(self) -> Watched:
        """Its files, or the commit of a hub model."""
        path, look, known = self.config.path, partial(_identity_of, self.config), self.identity
        if self.is_model and not os.path.exists(os.path.expanduser(path)):  # do not ask a hub each time
            look = partial(model_identity, EncoderConfig(path=path, trust_remote_code=self.config.trust_remote_code))
            known = look()
        return Watched(f"teachers: {public(path)}", look, known)

    def _with_prompt(self, sentences: Sequence[str], role: Role) -> list[str]:
        prompt = "" if role.startswith("prompted") else self.prompts.get(role, self.config.prompt)
        return [f"{prompt}{sentence}" for sentence in sentences]

    def unload(self) -> None:
        """Free the loaded model; the next use loads it again."""
        self.__dict__.pop("_model", None)

    def check(self) -> None:
        """Raise UserError if the teacher is unusable; called once, before a run."""
        if self.width < 1:
            raise UserError(f"teachers: {self.config.path!r} has embeddings of width {self.width}")


def _identity_of(config: TeacherConfig) -> str:
    return load_teacher(config).identity


@cache
def kinds() -> tuple[type[Teacher], ...]:
    """Return every kind of teacher, models last because they accept any path."""
    return tuple(sorted(discover("raysed.model.teachers", Teacher).values(), key=lambda kind: kind.is_model))


def kind_of(path: str) -> type[Teacher]:
    """Return the first kind that takes a path.

    >>> [kind_of(path).__name__ for path in ("members:ct", "api.parquet", "intfloat/e5-small-v2")]
    ['Members', 'EmbeddingFile', 'ModelTeacher']
    """
    return next(kind for kind in kinds() if kind.takes(path))


def load_teacher(config: TeacherConfig, *arguments: Any, **named: Any) -> Teacher:
    """Build a teacher from its settings; `Teacher` lists further arguments."""
    return kind_of(config.path)(config, *arguments, **named)


def limit_of(paths: Iterable[str], learner: EncoderConfig | None = None) -> int:
    """Return how many tokens all these teachers and a learner can read, at most 512; files of embeddings do not count.

    Raises:
        UserError: the learner cannot be read.
    """
    from raysed.model.library import most_tokens  # takes seconds

    limits = [LONGEST_TEXT]
    if learner and not learner.static:
        limits.append(longest_input(configuration_of(learner), learner.trust_remote_code))
        limits.append(load_tokenizer(learner).model_max_length)
    for path in (path for path in paths if kind_of(path).is_model):
        with suppress(*LOAD_ERRORS):  # the checks of teachers report a missing model
            limits.append(most_tokens(path))
    return min(limits)


def default_learner(paths: Iterable[str]) -> dict[str, str]:
    """Return the learner's default `encoder` settings: half the layers of the first teacher that is a model.

    >>> default_learner(["members", "api.parquet", "intfloat/e5-small-v2"])
    {'path': 'intfloat/e5-small-v2', 'keep_layers': 'half'}
    >>> default_learner(["api.parquet"])
    {'path': 'bundled:encoder'}
    """
    models = [path for path in paths if kind_of(path).is_model]
    return {"path": models[0], "keep_layers": "half"} if models else {"path": EncoderConfig().path}
