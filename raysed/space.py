"""The embedding space of a run's models, for its report: isotropy, edit distance, word frequency."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raysed.calibration import load_calibrated
from raysed.check import Job
from raysed.encoder import load_start
from raysed.evaluation.analysis import edit_distance_table, edit_distances, frequency_table, isotropy, singular_values
from raysed.storage import Storage
from raysed.tokens import read_tokens

if TYPE_CHECKING:
    from raysed.results import ScoredModel


@dataclass(frozen=True)
class Space:
    """What there is to say and to draw.

    Attributes:
        words: what `Report.analysis` takes.
        spectra: see `plots.plot_spectra`.
        distances: see `plots.plot_edit_distance`.
    """

    words: dict[str, Any] = field(default_factory=dict)
    spectra: dict[str, np.ndarray] = field(default_factory=dict)
    distances: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


def analyse(job: Job, storage: Storage, shown: Mapping[str, "ScoredModel"]) -> Space:
    """Compares models on the sentences of the dev task, or of the first headline task where there is no dev task.

    Args:
        job: the checked configuration.
        storage: the run directory.
        shown: the models by label, the base first.
    """
    config = job.config
    task = config.evaluation.dev or config.report_tasks()[0]
    of_model = {
        label: load_calibrated(storage, model.embeddings, config.encoder.layers) for label, model in shown.items()
    }
    of_task = {label: job.evaluation.of_task(embeddings, task) for label, embeddings in of_model.items()}
    cosines = {label: job.evaluation.cosines(embeddings, task)[0] for label, embeddings in of_model.items()}
    first, second, gold_P = _pairs(job, task)
    distances = edit_distances(first, second)
    words: dict[str, Any] = {
        "isotropy": {label: isotropy(x_ND, config.seed) for label, x_ND in of_task.items()},
        "edit_distance": {"task": task, "models": edit_distance_table(distances, gold_P, cosines)},
    }
    if config.evaluation.analysis.frequency and (frequency := _frequencies(job, storage, next(iter(shown.values())))):
        words["frequency"] = frequency
    pictured = {"gold score": gold_P, **dict(list(cosines.items())[:1]), **dict(list(cosines.items())[-1:])}
    return Space(
        words,
        {label: singular_values(x_ND) for label, x_ND in of_task.items()},
        {label: (similarity_P, distances["words"]) for label, similarity_P in pictured.items()},
    )


def _pairs(job: Job, task: str) -> tuple[list[str], list[str], np.ndarray]:
    subsets = job.evaluation.tasks[task].subsets.values()
    first, second = ([sentence for subset in subsets for sentence in subset[side]] for side in (0, 1))
    return first, second, np.concatenate([gold for _, _, gold in subsets])


def _frequencies(job: Job, storage: Storage, base: "ScoredModel") -> list[dict[str, Any]]:
    """Of the base's input embeddings, by the corpus' token counts; nothing where no corpus was read."""
    if storage.entry("corpus") is None or not job.needs_corpus:
        return []
    weights = storage.fetch(base.weights) if base.weights else None
    encoder, tokenizer = load_start(job.config.encoder, weights)
    embeddings_VD = encoder.transformer.get_input_embeddings().weight.detach().numpy()
    counts_V = np.bincount(read_tokens(storage.fetch("corpus")).input_ids, minlength=len(embeddings_VD))
    counts_V[tokenizer.all_special_ids] = 0
    return frequency_table(embeddings_VD, counts_V)
