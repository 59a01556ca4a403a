"""The models of a finished run, for measurements besides its report."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from raysed.config import Config
from raysed.context import ignore
from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel
from raysed.pipeline import ensemble_then_distill
from raysed.plan.check import check
from raysed.recipe import TEACHERS, parse_recipe
from raysed.report.results import RunResults
from raysed.runner import Run, backend_of
from raysed.store.status import finished_report
from raysed.store.storage import Storage


def finished(config: Config) -> RunResults:
    """Return the finished run of a config; raise `UserError` if it is not complete with exactly these settings."""
    job, storage = check(config), Storage(config.storage, config.run)
    if not finished_report(storage, job.depends):
        raise UserError(f"{storage} is not complete with these settings; complete it with raysed run first")
    backend = backend_of("local", storage, config.resources, ignore)  # it has nothing left to do
    run = Run(storage, backend, config.resources, ignore)
    return RunResults(job, storage, ensemble_then_distill(run, job), ensure=run.ensure)


def models_of(run: RunResults) -> Iterator[tuple[dict[str, Any], NativeModel]]:
    """Yield (report fields, model) for the run's recipes.

    It leaves out external teachers, collapsed models, and flows of single tasks, which embed no other sentences.
    """
    config = run.config
    for model in run.models:
        is_of_tasks = config.flow.per_task and parse_recipe(model.recipe).calibration
        is_listed = model.recipe in config.recipes and model.recipe != TEACHERS
        if is_listed and not (model.left_out or is_of_tasks):
            about = {"recipe": model.recipe, "kind": model.kind, "index": model.index}
            yield about | {"layers": config.encoder.pool_layers}, run.load(model)


def embed(model: NativeModel | LibraryModel, sentences: Sequence[str]) -> np.ndarray:
    """Return embeddings [N, D], computed on a GPU if available."""
    if not isinstance(model, LibraryModel) and torch.cuda.is_available():
        model.encoder.to("cuda")
    return model.embed(sentences)
