"""Baselines of words alone, which cost no model: a gain over nothing is no gain.

Word overlap and TF-IDF score tasks of every kind, BM25 retrieval. Frequencies are those of a task's own texts.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from raysed.data.transfer import TransferTask
from raysed.score.lexical import BM25, TF_IDF, WORD_OVERLAP, fit_rows
from raysed.score.tasks import Evaluation
from raysed.score.transfer import ProbeJob, combine, jobs, run_probe, sentences_of


def baselines(
    evaluation: Evaluation, each: Callable[[list[tuple[str, str, int]]], Iterable[tuple[str, str, int]]] = iter
) -> dict[str, dict[str, np.ndarray]]:
    """Return every baseline's outcomes by task, by the name of its row; one that fits no task is not there.

    `each` goes through the steps (names of task and baseline, number of the part), and may show how far it is.
    """
    tasks = evaluation.tasks.values()
    parts = {(task.name, name): parts for task in tasks for name, parts in task.lexical().items()}
    found: dict[str, dict[str, np.ndarray]] = {}
    for task, name, part in each([(*key, part) for key, of_key in parts.items() for part in range(len(of_key))]):
        outcome, known = parts[task, name][part](), found.setdefault(name, {}).get(task)
        found[name][task] = outcome if known is None else np.maximum(known, outcome)
    return {name: found[name] for name in (WORD_OVERLAP, TF_IDF, BM25) if name in found}


def transfer_baselines(
    tasks: Sequence[TransferTask], seed: int = 1111, run: Callable[..., Iterable[dict[str, Any]]] = map
) -> dict[str, dict[str, dict[str, Any]]]:
    """Score TF-IDF as the features of transfer tasks; returns by the name of its row what `score_transfer` returns."""
    return {TF_IDF: combine(run(partial(run_word_probe, counts_UV=word_counts(tasks)), jobs(tasks, seed)))}


def word_counts(tasks: Sequence[TransferTask]) -> csr_matrix:
    """Return how often each of `sentences_of(tasks)` has each word of all of them, float32 [U, V]."""
    from sklearn.feature_extraction.text import CountVectorizer

    return fit_rows(CountVectorizer(dtype=np.float32), sentences_of(tasks))


def run_word_probe(job: ProbeJob, counts_UV: csr_matrix) -> dict[str, Any]:
    """Train and test one probe on TF-IDF with logarithmic counts.

    Words and their frequencies are those of the sentences that the probe is fitted on, each counted once; so every
    outer fold has its own.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    fitted_NV = counts_UV[job.training_rows]
    known = np.flatnonzero(fitted_NV.getnnz(axis=0))
    if not len(known):
        return run_probe(job, csr_matrix((counts_UV.shape[0], 1), dtype=np.float32))
    weights = TfidfTransformer(sublinear_tf=True).fit(fitted_NV[:, known])
    return run_probe(job, weights.transform(counts_UV[:, known]))
