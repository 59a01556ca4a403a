"""Models as callables for `map_batches` of your own Ray Data."""

from os import PathLike
from typing import Any

import torch

from raysed.config import Precision, Role, TeacherConfig
from raysed.model.teacher import load_teacher


class Embedder:
    """Adds embeddings of a column of sentences to batches.

        dataset.map_batches(
            Embedder, fn_constructor_args=("models/mine",), compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1
        )

    Args:
        model: as in `teachers`: a directory, hub id, or file of embeddings.
        output: the new column, float32 [N, D].
        device: None: a GPU if the actor has one.
        precision: `auto`: bf16 if the device is fast in it.
        role: `query` or `document` puts the model's prompt for it before each sentence.
    """

    def __init__(
        self,
        model: str | PathLike,
        column: str = "sentence",
        output: str = "embedding",
        device: str | None = None,
        precision: Precision = "fp32",
        role: Role = "",
    ):
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._teacher = load_teacher(TeacherConfig(path=str(model)), device=device, precision=precision)
        self._column, self._output, self._role = column, output, role

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch (columns as NumPy arrays, Ray Data's default) with the new column."""
        return {**batch, self._output: self._teacher.embed(batch[self._column].tolist(), self._role)}
