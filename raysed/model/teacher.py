"""Teachers from outside of a run: any sentence encoder, or a file of embeddings that was made elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysed.config import Precision, TeacherConfig, stable_hash
from raysed.data.parquet import read_table
from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel, load_model, model_directory
from raysed.model.precision import uses_bf16
from raysed.store.storage import sha256_of

_SENTENCE, _EMBEDDING = ("sentence", "text"), "embedding"
_IDENTIFYING = {".json", ".safetensors", ".txt", ".model", ".bin", ".spm"}


class MissingSentence(UserError):
    """A file of embeddings lacks a sentence."""


class EmbeddingFile:
    """Embeddings that were made elsewhere: a Parquet file with columns `sentence` (or `text`) and `embedding`.

    Attributes:
        width: of the embeddings.

    Raises:
        UserError: names the file, and the row or the column that is wrong.
    """

    parameters = 0

    def __init__(self, path: Path):
        self._path = path
        try:
            table = read_table(path, memory_map=True)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"teachers: {path} cannot be read as a Parquet file: {error}") from None
        column = next((name for name in _SENTENCE if name in table.column_names), None)
        if column is None or _EMBEDDING not in table.column_names:
            raise UserError(
                f"teachers: {path} needs the columns sentence (or text) and embedding; it has "
                f"{', '.join(table.column_names)}"
            )
        sentences = table.column(column).to_pylist()
        self._x_ND = self._matrix(table.column(_EMBEDDING))
        self._rows = {sentence: row for row, sentence in enumerate(sentences)}
        if len(self._rows) < len(sentences):
            self._refuse_two_embeddings(sentences)
        self.width = self._x_ND.shape[1]

    def _matrix(self, column: pa.ChunkedArray) -> np.ndarray:
        lists = column.to_pylist() if not len(column) else column.combine_chunks()
        try:
            widths = set(pc.list_value_length(lists).to_pylist())
        except (AttributeError, TypeError, pa.ArrowException):
            raise UserError(f"teachers: the column embedding of {self._path} must hold lists of numbers") from None
        if len(widths) != 1 or None in widths:
            raise UserError(f"teachers: the embeddings of {self._path} must all have the same width, with none missing")
        x_ND = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
        broken = np.flatnonzero(~np.isfinite(x_ND).all(1))
        if len(broken):
            raise UserError(f"teachers: row {broken[0] + 1} of {self._path} has an embedding that is not finite")
        return x_ND

    def _refuse_two_embeddings(self, sentences: list[str]) -> None:
        """The same sentence twice is no harm where it has the same embedding."""
        for row, sentence in enumerate(sentences):
            last = self._rows[sentence]
            if not np.array_equal(self._x_ND[row], self._x_ND[last]):
                raise UserError(
                    f"teachers: rows {row + 1} and {last + 1} of {self._path} have the same sentence and different "
                    "embeddings; keep one of them"
                )

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Returns their embeddings, float32 [B, D].

        Raises:
            MissingSentence: the file has none of some sentence.
        """
        missing = [sentence for sentence in sentences if sentence not in self._rows]
        if missing:
            raise MissingSentence(
                f"teachers: {self._path} has no embedding of {len(missing):,} of {len(sentences):,} sentences, the "
                f"first of which is {missing[0][:60]!r}"
            )
        return self._x_ND[[self._rows[sentence] for sentence in sentences]].astype(np.float32)


class Teacher:
    """A sentence encoder that is asked, and not trained.

    Args:
        config: which model, and how it is asked.
        token_budget: tokens per forward pass; None: what suits the device.
        precision: see `uses_bf16`; a model that the sentence-transformers library computes stays as it is.

    Attributes:
        parameters: how many numbers it was trained to.

    Raises:
        UserError: there is no such model, or it does not load.
    """

    def __init__(
        self,
        config: TeacherConfig,
        token_budget: int | None = None,
        device: str = "cpu",
        precision: Precision = "fp32",
    ):
        self._prompt = config.prompt
        self._model = _load(config, token_budget, device)
        if isinstance(self._model, NativeModel):
            self._model = replace(self._model, bf16=uses_bf16(precision, device))
        module = self._model.encoder if isinstance(self._model, NativeModel) else self._model.model
        self.parameters = sum(tensor.numel() for tensor in module.parameters())

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Returns their embeddings, float32 [B, D]."""
        return self._model.embed([f"{self._prompt}{sentence}" for sentence in sentences])[0]


def load_teacher(
    config: TeacherConfig, token_budget: int | None = None, device: str = "cpu", precision: Precision = "fp32"
) -> Teacher | EmbeddingFile:
    """Loads a teacher; what it returns maps sentences to embeddings.

    Args:
        token_budget: tokens per forward pass; None: what suits the device.
        precision: of a model, see `Teacher`.

    Raises:
        UserError: it cannot be used.
    """
    if config.is_file:
        return EmbeddingFile(Path(config.path))
    return Teacher(config, token_budget, device, precision)


def check_teacher(config: TeacherConfig) -> tuple[int, str]:
    """Loads a teacher and asks it once.

    Returns:
        The width of its embeddings, and what identifies it: a digest of its files and of how it is asked.

    Raises:
        UserError: it cannot be used.
    """
    teacher = load_teacher(config)
    if isinstance(teacher, EmbeddingFile):
        return teacher.width, sha256_of(Path(config.path))[:16]
    x_BD = teacher(["A sentence."])
    if not np.isfinite(x_BD).all():
        raise UserError(f"teachers: the embeddings of {config.path!r} are not finite")
    directory = _as_teacher(config, lambda: model_directory(config.path))
    files = {
        str(path.relative_to(directory)): sha256_of(path)
        for path in sorted(directory.rglob("*"))
        if path.suffix in _IDENTIFYING and path.is_file()
    }
    return x_BD.shape[1], stable_hash([files, config.model_dump(mode="json", exclude={"path", "name"})])


def _load(config: TeacherConfig, token_budget: int | None, device: str) -> NativeModel | LibraryModel:
    load = lambda: load_model(  # noqa: E731
        config.path, (config.layers,), config.max_length, token_budget=token_budget, device=device
    )
    return _as_teacher(config, load)


def _as_teacher(config: TeacherConfig, action: Callable):
    """Messages about models name the option of another command."""
    try:
        return action()
    except UserError as error:
        text = str(error).replace(f"--model {config.path}", f"teachers: {config.path!r}")
        raise UserError(text.replace("encoder.max_length", "its max_length")) from None
