"""The embedding space of a run's models, for its report: isotropy, edit distance, word frequency."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raysed.data.tokens import read_tokens
from raysed.evaluation.analysis import edit_distance_table, edit_distances, frequency_table, isotropy, singular_values
from raysed.model.encoder import load_start
from raysed.plan.artefacts import load_calibrated
from raysed.plan.check import Job
from raysed.store.storage import Storage

if TYPE_CHECKING:
    from raysed.plan.artefacts import ScoredModel


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
    names = [name for name in (config.evaluation.dev, *config.report_tasks()) if name]
    task = next((name for name in names if name in job.evaluation.pair_tasks), None)
    if task is None:
        return _without_pairs(job, storage, shown, names[0])
    of_model = {
        label: load_calibrated(storage, model.embeddings, config.encoder.layers) for label, model in shown.items()
    }
    of_task = {label: job.evaluation.of_task(embeddings, task) for label, embeddings in of_model.items()}
    cosines = {label: job.evaluation.cosines(embeddings, task)[0] for label, embeddings in of_model.items()}
    gold_P = job.evaluation.tasks[task].gold
    distances = edit_distances(*job.evaluation.pair_sentences([task]))
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


def _without_pairs(job: Job, storage: Storage, shown: Mapping[str, "ScoredModel"], task: str) -> Space:
    """What can be said of the texts of a task that has no pairs."""
    x = {
        label: job.evaluation.of_task(load_calibrated(storage, model.embeddings, job.config.encoder.layers), task)
        for label, model in shown.items()
    }
    words: dict[str, Any] = {"isotropy": {label: isotropy(x_ND, job.config.seed) for label, x_ND in x.items()}}
    if job.config.evaluation.analysis.frequency and (found := _frequencies(job, storage, next(iter(shown.values())))):
        words["frequency"] = found
    return Space(words, {label: singular_values(x_ND) for label, x_ND in x.items()})


def _frequencies(job: Job, storage: Storage, base: "ScoredModel") -> list[dict[str, Any]]:
    """Of the base's input embeddings, by the corpus' token counts; nothing where no corpus was read."""
    if storage.entry("corpus") is None or not job.needs_corpus:
        return []
    encoder, tokenizer = load_start(job.config.encoder, storage, base.weights)
    embeddings_VD = encoder.transformer.get_input_embeddings().weight.detach().numpy()
    counts_V = np.bincount(read_tokens(storage.fetch("corpus")).input_ids, minlength=len(embeddings_VD))
    counts_V[tokenizer.all_special_ids] = 0
    return frequency_table(embeddings_VD, counts_V)
