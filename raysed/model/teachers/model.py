"""A model as a teacher: sentence-transformers, an export of this project, or a plain transformer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from raysed.config import Role, stable_hash
from raysed.data.tokens import SAMPLE_TEXTS
from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.precision import is_bf16
from raysed.model.teacher import Teacher
from raysed.store.files import digest_of, files_of_model
from raysed.store.hub import MODEL_FILES, model_directory, other_code


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
        """A digest of files, prompts and the settings that matter."""
        directory, is_trusted = self._directory, self.config.trust_remote_code
        read = MODEL_FILES | ({".bin", ".py"} if is_trusted else {".bin"})
        files = files_of_model(directory, read.__contains__)
        digests = {str(path.relative_to(directory)): digest_of(path) for path in files}
        digests |= other_code(directory, is_trusted)
        unused = {"path", "name", "query_prompt", "document_prompt", *(() if is_trusted else ("trust_remote_code",))}
        if (directory / "modules.json").is_file():  # whose modules pool and cut texts their own way
            unused |= {"pool_layers", "max_length"}
        return stable_hash([digests, self.config.model_dump(mode="json", exclude=unused), self.prompts])

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
