"""An ONNX file with a tokenizer beside it as a teacher; ONNX Runtime runs it on the CPU."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import TIMEOUT_MAX

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from raysed.config import Role
from raysed.data.tokens import SAMPLE_TEXTS, TokenTable, batches_by_tokens, tokenize
from raysed.errors import UserError, first_line, install_command
from raysed.model.encoding import default_token_budget
from raysed.model.formats import OnnxFile
from raysed.model.pretrained import LOAD_ERRORS
from raysed.model.teacher import Teacher
from raysed.store.files import check_content, files_of_model

_SUFFIX, _USUAL = ".onnx", "model.onnx"
_NOT_READ = {_SUFFIX, ".md", ".metadata", ".lock"}
"""Suffixes of files that change no vector: other models, documentation, download records."""
_OF_TOKENS, _OF_SENTENCE = ("last_hidden_state", "token_embeddings"), "sentence_embedding"
_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_MAX_TRY_S = 60.0
_LONGEST_TRIED = 1024
"""Maximum tokens of the sentence that `check` tries."""


@dataclass(frozen=True)
class _OnnxGraph:
    """A loaded ONNX file.

    Attributes:
        output: name of the output to read, vectors of tokens or sentences.
        following: sentence-transformers modules after that output. If empty, vectors of tokens are averaged.
        place: the teacher, for messages.
    """

    file: OnnxFile
    output: str
    following: nn.Sequential
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    place: str

    def embed(self, table: TokenTable, seconds: float = TIMEOUT_MAX) -> np.ndarray:
        """Embed all sentences as one padded batch; UserError for a bad shape."""
        mask_BL = np.arange(table.lengths.max()) < table.lengths[:, None]
        ids_BL = np.full(mask_BL.shape, self.tokenizer.pad_token_id or 0)
        ids_BL[mask_BL] = table.input_ids
        columns = dict(zip(_INPUTS, (ids_BL, mask_BL, np.zeros_like(ids_BL))))
        batch = {name: columns[name].astype(_TYPES[kind]) for name, kind in self.file.inputs.items()}
        size = "{} sentences of up to {} tokens".format(*mask_BL.shape)
        try:
            found = self.file.run(self.output, batch, seconds)
        except Exception as error:  # ONNX Runtime may raise anything
            limit = f", and to take less than {seconds:g} s for these" if seconds < TIMEOUT_MAX else ""
            right = f"export it for any number of sentences and tokens{limit}, or lower max_length"
            raise UserError(f"it fails on {size} ({first_line(error)}); {right}", setting=self.place) from None
        expected = mask_BL.shape[: 1 if self.output == _OF_SENTENCE else 2]
        if found.shape[:-1] != expected:
            problem = f"its output {self.output} has the shape {list(found.shape)} for {size}"
            right = f"it must have the shape [{', '.join(map(str, expected))}, width]"
            raise UserError(f"{problem}; {right}", setting=self.place)
        states, mask_BL = torch.from_numpy(found.astype(np.float32)), torch.from_numpy(mask_BL).long()
        if self.output == _OF_SENTENCE:
            features = {_OF_SENTENCE: states}
        elif self.following:
            features = {"token_embeddings": states, "attention_mask": mask_BL}
        else:
            features = {_OF_SENTENCE: (states * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1, keepdim=True)}
        with torch.inference_mode():
            return self.following(features)[_OF_SENTENCE].numpy()


class OnnxModel(Teacher):
    """An `.onnx` file, or a directory with one and without safetensors."""

    @classmethod
    def takes(cls, path: str) -> bool:
        place = Path(path).expanduser()
        if not os.path.isdir(place):  # False, not an error, for strings that cannot be a path
            return place.suffix == _SUFFIX
        has_weights = any(any(place.glob(pattern)) for pattern in ("*.safetensors", "0_*/*.safetensors"))
        return bool(_files(place)) and not has_weights

    @cached_property
    def _places(self) -> tuple[Path, Path]:
        """The ONNX file and its model's directory."""
        path = Path(self.config.path).expanduser()
        if path.is_dir():
            files = _files(path)
            files = [file for file in files if file.name == _USUAL] or files
            if len(files) > 1:
                raise self._refused(f"has several ONNX files; name one of them, such as {files[0]}")
            return files[0], path
        if not path.is_file():
            raise self._refused("is not a file")
        return path, path.parents[1] if path.parent.name == "onnx" else path.parent

    @property
    def _directory(self) -> Path:
        return self._places[1]

    @cached_property
    def identity(self) -> str:
        file, directory = self._places
        return self._digest([file, *files_of_model(directory, lambda suffix: suffix not in _NOT_READ)])

    @cached_property
    def _model(self) -> _OnnxGraph:
        if importlib.util.find_spec("onnxruntime") is None:
            raise self._refused(f"needs ONNX Runtime, which is not installed: run {install_command('onnx')}")
        file, directory = self._places
        check_content(directory, f"teachers: {self.config.path!r}")
        try:
            opened = OnnxFile(file)
        except Exception as error:  # ONNX Runtime may raise anything
            raise self._refused(f"cannot be loaded by ONNX Runtime: {first_line(error)}") from None
        given = opened.inputs.items()
        wrong = [f"{name} ({kind})" for name, kind in given if name not in _INPUTS or kind not in _TYPES]
        if wrong:
            raise self._refused(f"needs the inputs {', '.join(wrong)}; it may have {', '.join(_INPUTS)}, as integers")
        where, longest, modules = self._following(directory)
        names = opened.outputs
        of_tokens = [name for name in _OF_TOKENS if name in names]
        if of_tokens and (modules or _OF_SENTENCE not in names):
            output, following = of_tokens[0], modules
        elif _OF_SENTENCE in names:  # pooling is part of the graph
            output, following = _OF_SENTENCE, [each for each in modules if type(each).__name__ == "Normalize"]
        else:
            wanted = f"{', '.join(_OF_TOKENS)} or {_OF_SENTENCE}"
            raise self._refused(f"has the outputs {', '.join(names)}; one must be called {wanted}")
        tokenizer = self._tokenizer(directory / where)
        max_length = min(longest, tokenizer.model_max_length) if longest else self.config.max_length
        place = f"teachers: {self.config.path!r}"
        return _OnnxGraph(opened, output, nn.Sequential(*following), tokenizer, max_length, place)

    def _following(self, directory: Path) -> tuple[str, int | None, list[nn.Module]]:
        from raysed.model import library  # takes seconds

        try:
            return library.pooling_and_heads(directory)
        except UserError as error:
            raise self._refused(error.problem) from None
        except library.NotPackable as error:
            raise self._refused(f"cannot be used as an ONNX file: {error}") from None
        except LOAD_ERRORS as error:
            raise self._refused(f"has modules that cannot be read: {first_line(error)}") from None

    def _tokenizer(self, directory: Path) -> PreTrainedTokenizerBase:
        try:
            tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        except LOAD_ERRORS:
            tokenizer = ()
        if len(tokenizer) == 0 or len(tokenizer) <= len(tokenizer.all_special_ids):  # vocabulary is missing
            raise self._refused(f"has no tokenizer; add its files, such as tokenizer.json, to {directory}")
        return tokenizer

    def _tokens(self, sentences: Sequence[str], role: Role = "") -> TokenTable:
        return tokenize(self._model.tokenizer, self._with_prompt(sentences, role), self._model.max_length)

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        table = self._tokens(sentences, role)
        passes = list(batches_by_tokens(table.lengths, self.token_budget or default_token_budget("cpu")))
        x_ND = np.concatenate([self._model.embed(table.take(rows)) for rows in passes])
        return x_ND[np.argsort(np.concatenate(passes))]

    def check(self) -> None:
        """Load it and embed a short and a long sentence in one batch."""
        if self.config.pool_layers != 1:
            problem = f"gives its last layer only, but pool_layers is {self.config.pool_layers}; leave it out"
            raise self._refused(problem)
        pair = self._tokens([SAMPLE_TEXTS[1], "word " * min(self._model.max_length, _LONGEST_TRIED)])
        if not np.isfinite(self._model.embed(pair, _MAX_TRY_S)).all():
            raise self._refused("has embeddings that are not finite")
        super().check()

    def _refused(self, problem: str) -> UserError:
        return UserError(f"teachers: {self.config.path!r} {problem}")


def _files(directory: Path) -> list[Path]:
    found = [*directory.glob(f"*{_SUFFIX}"), *directory.glob(f"onnx/*{_SUFFIX}")]
    return sorted(path for path in found if path.is_file())
