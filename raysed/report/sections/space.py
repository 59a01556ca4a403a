"""The embedding space: isotropy, edit distance, question and answer, word frequency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.report.charts import LINES, Axis, Chart, Panel, Series, pairs_chart
from raysed.report.document import Report
from raysed.report.results import Run
from raysed.report.scores import means_table
from raysed.report.section import Section
from raysed.score.analysis import (
    edit_distance_table,
    edit_distances,
    effective_rank,
    frequency_table,
    isotropy,
    singular_values,
)
from raysed.store.text import Table, number


def _task(run: Run) -> tuple[str, bool]:
    """The first task of graded pairs among dev and headline tasks, or any of these; whether it has pairs."""
    names = [name for name in (run.config.evaluation.dev, *run.config.report_tasks()) if name]
    pairs = [name for name in names if name in run.evaluation.pair_tasks]
    return (pairs or names)[0], bool(pairs)


def _of_task(run: Run) -> dict[str, np.ndarray]:
    """Embeddings of the task's sentences by the base and the last recipe."""
    task, _ = _task(run)
    return {label: run.evaluation.of_task(run.embeddings(model), task) for label, model in run.pictured().items()}


def _isotropy_tables(models: Mapping[str, Mapping[str, float]], report: Report) -> Table:
    columns = {
        "models": lambda model: model[0],
        "cosine of random pairs": lambda model: f"{model[1]['cosine']:.3f}",
        "effective rank": lambda model: f"{model[1]['effective_rank']:.1f}",
        "share of the first direction": lambda model: f"{model[1]['first_direction']:.1%}",
    }
    return Table.of(models.items(), columns)


def spectrum_chart(spectra: Mapping[str, np.ndarray]) -> Chart | None:
    """Return the singular values of up to four embedding matrices on a logarithmic axis."""
    # What is below is rounding noise.
    kept = {label: values[values > 1e-6] for label, values in spectra.items() if (values > 1e-6).any()}
    if not kept:
        return None
    series = []
    for (label, values), (colour, line) in zip(kept.items(), LINES):
        texts = [f"{label}, number {i}: {value:.3g}" for i, value in enumerate(values, start=1)]
        x = np.arange(1, len(values) + 1)
        series.append(Series(x, values, colour, label, texts, mark="none", line=line))
    x = Axis.of("number of the singular value, largest first", [1, max(map(len, kept.values()))])
    y = Axis.of("size relative to the largest", np.concatenate(list(kept.values())), is_logarithmic=True)
    ranks = ", ".join(f"{label} {effective_rank(values):.0f}" for label, values in spectra.items())
    return Chart("spectrum", f"Singular values of the embeddings; effective rank: {ranks}", [Panel(x, y, series)])


def _cosines(run: Run) -> dict[str, np.ndarray]:
    task, _ = _task(run)
    return {label: run.evaluation.outcome(run.embeddings(m), task) for label, m in run.pictured().items()}


def _edit_distance(run: Run) -> dict[str, Any]:
    task, has_pairs = _task(run)
    if not has_pairs:
        return {}
    pairs = run.evaluation.tasks[task]
    models = edit_distance_table(edit_distances(pairs.first, pairs.second), pairs.gold, _cosines(run))
    return {"task": task, "models": models}


def _edit_distance_tables(found: Mapping[str, Any], report: Report) -> Table:
    columns = {
        "similarity": lambda model: model[0],
        "edit distance, characters": lambda model: number(model[1]["characters"]),
        "edit distance, words": lambda model: number(model[1]["words"]),
        "gold score": lambda model: number(model[1]["gold"]),
    }
    return Table.of(found["models"].items(), columns)


def _edit_distance_chart(run: Run, found: Mapping[str, Any]) -> Chart | None:
    """Return the cosines of the base and the last recipe against edit distance (BERT-flow figure 2)."""
    pairs, cosines = run.evaluation.tasks[found["task"]], list(_cosines(run).items())
    words_P = edit_distances(pairs.first, pairs.second)["words"]
    texts = [f"{edits:g} edits" for edits in words_P]
    models = dict([cosines[0], cosines[-1]])
    return pairs_chart(
        "edit-distance", "Cosines and edit distance", ("edit distance in words", words_P), "cosine", models, texts
    )


def _qnli_tables(aucs: Mapping[str, float], report: Report) -> Table:
    """Means of like models, whose names differ in the number at the end, and how much they differ."""
    found = []
    for name, auc in aucs.items():
        recipe = parse_recipe(name.partition("/")[0])
        kind = "learner" if recipe.distils else "base" if recipe.ensemble == BASE else "member"
        found.append(((recipe.text, kind), {"AUC": auc}))
    return means_table(found, spread_of="AUC")


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
