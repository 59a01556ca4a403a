"""The embedding space: isotropy, edit distance, question and answer, word frequency."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.report.charts import LINES, Axis, Chart, Pairs, Panel, Series, finite, ranks_in_words, sample_note
from raysed.report.document import Report
from raysed.report.results import Run
from raysed.report.section import Section
from raysed.report.sections.transfer import spread, with_spreads
from raysed.score.analysis import (
    edit_distance_table,
    edit_distances,
    effective_rank,
    frequency_table,
    isotropy,
    singular_values,
)
from raysed.store.text import Table, number

_FEW_EDITS = 4
"""Pairs of at most so many edits are set off in their chart (BERT-flow figure 2)."""


def _task(run: Run) -> tuple[str, bool]:
    """The first task of graded pairs among dev and headline tasks, or any of these; whether it has pairs."""
    names = [name for name in (run.config.evaluation.dev, *run.config.report_tasks()) if name]
    pairs = next((name for name in names if name in run.evaluation.pair_tasks), None)
    return pairs or names[0], pairs is not None


def _of_task(run: Run) -> dict[str, np.ndarray]:
    """Embeddings of the task's sentences by the base and the last recipe."""
    task, _ = _task(run)
    return {label: run.evaluation.of_task(run.embeddings(model), task) for label, model in run.pictured().items()}


def _isotropy_tables(models: Mapping[str, Mapping[str, float]], report: Report) -> Table:
    lines = []
    for name, found in models.items():
        cosine = round(found["cosine"], 3) + 0.0  # no minus before a zero
        lines.append([name, f"{cosine:.3f}", f"{found['effective_rank']:.1f}", f"{found['first_direction']:.1%}"])
    return Table(["models", "cosine of random pairs", "effective rank", "share of the first direction"], lines)


def spectrum_chart(spectra: Mapping[str, np.ndarray]) -> Chart | None:
    """Return the singular values of up to four embedding matrices on a logarithmic axis."""
    # What is below is rounding noise.
    kept = {label: values[values > 1e-6] for label, values in spectra.items() if (values > 1e-6).any()}
    if not kept:
        return None
    series = []
    for (label, values), (colour, line) in zip(kept.items(), LINES):
        weight = "wide" if colour == "blue" else ""  # a flow makes spectra equal: that below is seen
        texts = [f"{label}, number {i}: {value:.3g}" for i, value in enumerate(values, start=1)]
        x = np.arange(1, len(values) + 1)
        series.append(Series(x, values, colour, label, texts, mark="none", line=line, weight=weight))
    x = Axis.of("number of the singular value, largest first", [1, max(map(len, kept.values()))])
    y = Axis.of("size relative to the largest", np.concatenate(list(kept.values())), is_logarithmic=True)
    ranks = ", ".join(f"{label} {effective_rank(values):.0f}" for label, values in spectra.items())
    return Chart("spectrum", f"Singular values of the embeddings; effective rank: {ranks}", [Panel(x, y, series)])


def _cosines(run: Run) -> dict[str, np.ndarray]:
    task, _ = _task(run)
    return {label: run.evaluation.cosines(run.embeddings(m), task)[0] for label, m in run.pictured().items()}


def _edit_distance(run: Run) -> dict[str, Any]:
    task, has_pairs = _task(run)
    if not has_pairs:
        return {}
    distances = edit_distances(*run.evaluation.pair_sentences([task]))
    models = edit_distance_table(distances, run.evaluation.tasks[task].gold, _cosines(run))
    return {"task": task, "models": models}


def _edit_distance_tables(found: Mapping[str, Any], report: Report) -> Table:
    units = ("characters", "words", "gold")
    lines = [[name, *(number(row[unit]) for unit in units)] for name, row in found["models"].items()]
    return Table(["similarity", "edit distance, characters", "edit distance, words", "gold score"], lines)


def _edit_distance_chart(run: Run, found: Mapping[str, Any]) -> Chart | None:
    words_P = edit_distances(*run.evaluation.pair_sentences([found["task"]]))["words"]
    cosines = list(_cosines(run).items())
    shown = {"gold score": run.evaluation.tasks[found["task"]].gold, **dict(cosines[:1]), **dict(cosines[-1:])}
    return edit_distance_chart({label: (similarity_P, words_P) for label, similarity_P in shown.items()})


def edit_distance_chart(distances: Pairs) -> Chart | None:
    """Return edit distance against similarity, a panel per model; few edits are set off (BERT-flow figure 2)."""
    distances = finite(distances)
    panels = []
    for label, (similarity_P, distance_P) in distances.items():
        # Distances are whole numbers: moved apart a little, equal ones do not hide each other.
        y_P = distance_P + np.random.default_rng(0).uniform(-0.35, 0.35, len(distance_P))
        few_P, series = distance_P <= _FEW_EDITS, []
        for name, colour, rows in (("other pairs", "blue", ~few_P), (f"at most {_FEW_EDITS} edits", "orange", few_P)):
            numbers = zip(distance_P[rows], similarity_P[rows])
            texts = [f"{edits:g} edits, similarity {similarity:.2f}" for edits, similarity in numbers]
            if texts:
                series.append(Series(similarity_P[rows], y_P[rows], colour, name, texts, weight="faint"))
        panels.append(Panel(Axis.of("similarity", similarity_P), Axis.of("edit distance in words", y_P), series, label))
    title = f"Similarity and edit distance; Spearman: {ranks_in_words(distances)}"
    return Chart("edit-distance", title, panels, sample_note(distances)) if panels else None


def _qnli_tables(aucs: Mapping[str, float], report: Report) -> Table:
    """Means of like models, whose names differ in the number at the end, and how much they differ."""
    groups: dict[str, list[float]] = {}
    for name, auc in aucs.items():
        groups.setdefault(name.partition("/")[0], []).append(auc)
    names = [recipe if len(values) == 1 else f"{recipe} ({len(values)})" for recipe, values in groups.items()]
    lines = [[name, number(statistics.fmean(values))] for name, values in zip(names, groups.values())]
    return with_spreads(["models", "AUC"], lines, [spread(values) for values in groups.values()])


def _frequency(run: Run) -> list[dict[str, Any]]:
    """Of the base's input embeddings, by the corpus' token counts; nothing where no corpus was read."""
    if not (run.config.evaluation.analysis.frequency and run.has_corpus):
        return []
    encoder, tokenizer = run.untouched.encoder, run.untouched.tokenizer
    embeddings_VD = encoder.transformer.get_input_embeddings().weight.detach().numpy()
    counts_V = run.token_counts(len(embeddings_VD))
    counts_V[tokenizer.all_special_ids] = 0
    return frequency_table(embeddings_VD, counts_V)


def _frequency_tables(bins: Sequence[Mapping[str, Any]], report: Report) -> Table:
    lines = [["mean norm", *(number(bin_["norm"]) for bin_ in bins)]]
    measures = {"distance": "mean distance to the {} nearest words", "dot": "mean of the {} largest dot products"}
    for key, name in measures.items():
        lines += [[name.format(k), *(number(bin_[key][k]) for bin_ in bins)] for k in bins[0]["distance"]]
    return Table(["rank of frequency", *("{:,} to {:,}".format(*bin_["ranks"]) for bin_ in bins)], lines)


SECTIONS = [
    Section("space", "The embedding space", 100),
    Section(
        "analysis.isotropy",
        "Isotropy",
        101,
        lambda run: {label: isotropy(x_ND, run.config.seed) for label, x_ND in _of_task(run).items()},
        "How evenly the embeddings fill their space: in an even one, the mean cosine of random pairs is near 0, the "
        "effective rank is near the number of dimensions, and no direction has a large share of the squared lengths.",
        lambda run, _: spectrum_chart({label: singular_values(x_ND) for label, x_ND in _of_task(run).items()}),
        _isotropy_tables,
        is_part=True,
    ),
    Section(
        "analysis.edit_distance",
        "Edit distance",
        102,
        _edit_distance,
        lambda found, _: (
            f"Spearman correlation x100 of the similarity of {found['task']}'s pairs with their edit "
            "distance and with the gold score (BERT-flow table 6): a model that follows edit distance more than gold "
            "does judges by wording."
        ),
        _edit_distance_chart,
        _edit_distance_tables,
        is_part=True,
    ),
    Section(
        "analysis.qnli",
        "Question and answer",
        103,
        lambda run: run.facts.qnli,
        "How well the cosine of a question and a sentence tells whether the sentence answers it, without training "
        "(QNLI, BERT-flow table 4): area under the ROC curve x100; chance is 50.",
        tables=_qnli_tables,
        is_part=True,
    ),
    Section(
        "analysis.frequency",
        "Word frequency",
        104,
        _frequency,
        "The encoder's input word embeddings, by how frequent the words are in the corpus (BERT-flow table 1): where "
        "rare words lie farther out and farther apart, sentences are placed by the frequency of their words.",
        tables=_frequency_tables,
        is_part=True,
    ),
]
