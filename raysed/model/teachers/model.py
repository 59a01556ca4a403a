"""A model as a teacher: sentence-transformers, an export of this project, or a plain transformer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.precision import uses_bf16
from raysed.model.teacher import Teacher
from raysed.store.hub import model_directory

_IDENTIFYING = {".json", ".safetensors", ".txt", ".model", ".bin", ".spm"}


class ModelTeacher(Teacher):
    """Any model that `load_model` loads, with a prompt before each sentence."""

    is_model = True

    @classmethod
    def takes(cls, path: str) -> bool:
        """Return True: a path of no other kind names a model."""
        return True

    @cached_property
    def _model(self) -> NativeModel | LibraryModel:
        config, place = self.config, f"teachers: {self.config.path!r}"
        options = {"token_budget": self.token_budget, "device": self.device, "place": place}
        model = load_model(config.path, (config.layers,), config.max_length, **options)
        if isinstance(model, NativeModel):
            return replace(model, bf16=uses_bf16(self.precision, self.device))
        return model

    @cached_property
    def identity(self) -> str:
        """Digest of its files and settings."""
        directory = model_directory(self.config.path, f"teachers: {self.config.path!r}")
        paths = [path for path in sorted(directory.rglob("*")) if path.suffix in _IDENTIFYING and path.is_file()]
        return self._digest({str(path.relative_to(directory)): path for path in paths})

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self._model.parameters

    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Return one vector per sentence, float32 [N, D]."""
        return self._model.embed([f"{self.config.prompt}{sentence}" for sentence in sentences])[0]

    def check(self) -> None:
        """Load it, embed a sentence and require finite numbers."""
        super().check()
        if not np.isfinite(self.embed(["A sentence."])).all():
            raise UserError(f"teachers: the embeddings of {self.config.path!r} are not finite")
