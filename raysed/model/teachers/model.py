"""A model as a teacher: sentence-transformers, an export of this project, or a plain transformer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from raysed.config import Role
from raysed.data.tokens import SAMPLE_TEXTS
from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.precision import is_bf16
from raysed.model.teacher import Teacher
from raysed.store.files import files_of_model
from raysed.store.hub import MODEL_FILES, model_directory


class ModelTeacher(Teacher):
    """Any model that `load_model` loads, with a prompt before each sentence."""

    is_model = True

    @classmethod
    def takes(cls, path: str) -> bool:
        """Return True: `kinds` tries models last."""
        return True

    @cached_property
    def _model(self) -> NativeModel | LibraryModel:
        config, place = self.config, f"teachers: {self.config.path!r}"
        try:
            bf16 = is_bf16(self.precision, self.device, self.weights_bytes() // 4)
        except SafetensorError:  # a damaged file, which is named when it is loaded
            bf16 = False
        options = {"device": self.device, "place": place, "dtype": torch.bfloat16 if bf16 else torch.float32}
        options["trust_remote_code"] = config.trust_remote_code
        prompts = {**self.prompts, **({"": ""} if config.prompt else {})}  # replaces the model's default
        try:
            loaded = load_model(config.path, config.pool_layers, config.max_length, **options)
        except UserError as error:
            if config.trust_remote_code or "custom code" not in str(error):
                raise
            raise UserError(f"{error}; set teachers.trust_remote_code to run the code that comes with it") from None
        return replace(loaded, prompts=prompts)

    @cached_property
    def _directory(self) -> Path:
        place = f"teachers: {self.config.path!r}"
        return model_directory(self.config.path, place, self.config.trust_remote_code)

    @cached_property
    def identity(self) -> str:
        read = MODEL_FILES | ({".bin", ".py"} if self.config.trust_remote_code else {".bin"})
        return self._digest(files_of_model(self._directory, read.__contains__))

    def weights_bytes(self) -> int:
        """Return the memory of its weights in fp32, from the shapes in its files."""
        found = 0
        for path in files_of_model(self._directory, ".safetensors".__eq__):
            with safe_open(path, "numpy") as file:
                found += sum(4 * math.prod(file.get_slice(name).get_shape()) for name in file.keys())
        return found or sum(path.stat().st_size for path in files_of_model(self._directory, ".bin".__eq__))

    @property
    def parameters(self) -> int:
        return self._model.parameters

    @property
    def description(self) -> str:
        return self._model.description

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        texts = sentences if role in self.prompts else self._with_prompt(sentences, role)
        return self._model.embed(texts, role)

    def check(self) -> None:
        """Load it and embed two sentences; raise UserError unless numbers are finite."""
        super().check()
        if not np.isfinite(self.embed(SAMPLE_TEXTS)).all():
            raise UserError(f"teachers: the embeddings of {self.config.path!r} are not finite")
