"""The embedding space of a run's models, for its report: isotropy, edit distance, word frequency."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raysed.data.tokens import read_tokens
from raysed.model.encoder import load_start
from raysed.plan.artefacts import load_calibrated
from raysed.plan.check import Job
from raysed.score.analysis import edit_distance_table, edit_distances, frequency_table, isotropy, singular_values
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
    """Compares models on the first task of graded pairs among the dev task and the headline tasks, or on any of these.

    Args:
        shown: the models by label, the base first.
    """
    config, evaluation = job.config, job.evaluation
    names = [name for name in (config.evaluation.dev, *config.report_tasks()) if name]
    pairs = next((name for name in names if name in evaluation.pair_tasks), None)
    of_model = {
        label: load_calibrated(storage, model.embeddings, config.encoder.layers) for label, model in shown.items()
    }
    of_task = {label: evaluation.of_task(embeddings, pairs or names[0]) for label, embeddings in of_model.items()}
    words: dict[str, Any] = {"isotropy": {label: isotropy(x_ND, config.seed) for label, x_ND in of_task.items()}}
    pictured: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if pairs:
        cosines = {label: evaluation.cosines(embeddings, pairs)[0] for label, embeddings in of_model.items()}
        gold_P, distances = evaluation.tasks[pairs].gold, edit_distances(*evaluation.pair_sentences([pairs]))
        words["edit_distance"] = {"task": pairs, "models": edit_distance_table(distances, gold_P, cosines)}
        drawn = {"gold score": gold_P, **dict(list(cosines.items())[:1]), **dict(list(cosines.items())[-1:])}
        pictured = {label: (similarity_P, distances["words"]) for label, similarity_P in drawn.items()}
    if config.evaluation.analysis.frequency and (frequency := _frequencies(job, storage, next(iter(shown.values())))):
        words["frequency"] = frequency
    return Space(words, {label: singular_values(x_ND) for label, x_ND in of_task.items()}, pictured)


def _frequencies(job: Job, storage: Storage, base: "ScoredModel") -> list[dict[str, Any]]:
    """Of the base's input embeddings, by the corpus' token counts; nothing where no corpus was read."""
    if storage.entry("corpus") is None or not job.needs_corpus:
        return []
    encoder, tokenizer = load_start(job.config.encoder, storage, base.weights)
    embeddings_VD = encoder.transformer.get_input_embeddings().weight.detach().numpy()
    counts_V = np.bincount(read_tokens(storage.fetch("corpus")).input_ids, minlength=len(embeddings_VD))
    counts_V[tokenizer.all_special_ids] = 0
    return frequency_table(embeddings_VD, counts_V)
