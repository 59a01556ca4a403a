"""BERT-flow's measurements besides scores: word frequency (table 1), QNLI (table 4), edit distance (table 6).

The `*_of_run` functions return rows like those of a report, which `jobs/reproduce.py` puts beside the paper's.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from papers.finished import embed, models_of
from raysed.config import PairSource
from raysed.data.rows import Schema, read_source
from raysed.data.tokens import read_tokens
from raysed.errors import UserError
from raysed.report.charts import BLUE, GREEN, ORANGE, Chart
from raysed.report.results import RunResults
from raysed.score.metrics import pair_cosines, spearman

FREQUENCY_BINS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))
"""Ranks of word frequency (BERT-flow table 1, which prints the last bin as 5K to 1K)."""
NEIGHBOURS = (3, 5, 7)
_BLOCK_ROWS = 1024
_SYMBOL = re.compile(r"\w+|[^\w\s]")
_NEAR = 4
"""BERT-flow figure 2 marks pairs up to this edit distance."""


# -- edit distance -----------------------------------------------------------------------------------------------------


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the insertions, deletions and replacements of symbols that turn `a` into `b` (Levenshtein 1966)."""
    symbols = {symbol: i for i, symbol in enumerate({*a, *b})}
    b_M, place_M = np.array([symbols[symbol] for symbol in b], np.int64), np.arange(len(b) + 1)
    row_M = place_M
    for i, symbol in enumerate(a, start=1):
        kept_M = np.minimum(row_M[1:] + 1, row_M[:-1] + (b_M != symbols[symbol]))
        # An insertion costs 1 per place, so the cheapest predecessor has the least cost minus place.
        row_M = np.minimum.accumulate(np.append(i, kept_M) - place_M) + place_M
    return int(row_M[-1])


def word_edits(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return the edit distance of each pair in lower-cased words, int64 [P]; punctuation marks count as words.

    The gold scores of STS-B's dev pairs correlate with it at -24.0, and at -20.2 if characters are counted. BERT-flow
    prints -24.6 (table 6), but not what it counts.
    """
    cut = [[_SYMBOL.findall(sentence.lower()) for sentence in side] for side in (first, second)]
    return np.array([edit_distance(a, b) for a, b in zip(*cut)], dtype=np.int64)


def edit_distances(first: Sequence[str], second: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the edit distance of each pair of sentences in `characters` and in `words`, int64 [P] each."""
    characters_P = np.array([edit_distance(a, b) for a, b in zip(first, second)], dtype=np.int64)
    return {"characters": characters_P, "words": word_edits(first, second)}


def edit_distance_table(
    distances: Mapping[str, np.ndarray], gold_P: np.ndarray, similarities: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return Spearman x100 of similarities, and of the gold score, with edit distance (BERT-flow table 6)."""
    sides = {**distances, "gold": gold_P}
    return {
        name: {side: 100 * spearman(similarity_P, values_P) for side, values_P in sides.items()}
        for name, similarity_P in {"gold": gold_P, **similarities}.items()
    }


def edit_distance_chart(task: str, edits_P: np.ndarray, gold_P: np.ndarray, cosines: Mapping[str, np.ndarray]) -> Chart:
    """Chart edit distance in words against the gold score and each model's cosine, as BERT-flow's figure 2."""
    tenths = np.array_split(np.argsort(edits_P, kind="stable"), min(10, len(edits_P)))
    # Jitter: distances are whole numbers, and gold scores have few values.
    jitter_2P = np.random.default_rng(0).uniform(-1, 1, (2, len(edits_P)))
    moved_P, moved_gold_P = edits_P + 0.4 * jitter_2P[0], gold_P + 0.015 * np.ptp(gold_P) * jitter_2P[1]
    is_near_P = edits_P <= _NEAR
    alpha = min(0.5, 600 / len(edits_P))

    def draw(axes: Any, title: str, label: str, x_P: np.ndarray) -> None:
        for drawn_P, colour in ((~is_near_P, BLUE), (is_near_P, GREEN)):
            axes.scatter(x_P[drawn_P], moved_P[drawn_P], s=8, alpha=alpha, color=colour, linewidths=0, rasterized=True)
        axes.scatter([], [], s=16, color=GREEN, label=f"edit distance of at most {_NEAR}")
        means = ([values_P[rows].mean() for rows in tenths] for values_P in (x_P, edits_P))
        axes.plot(*means, "o-", markersize=4, color=ORANGE, label="mean of a tenth of the pairs, by edit distance")
        axes.set(title=title, xlabel=label, ylabel="edit distance, words")

    panels = [partial(draw, title="gold score", label=f"graded score of {task}", x_P=moved_gold_P)]
    panels += [partial(draw, title=model, label="cosine", x_P=cosine_P) for model, cosine_P in cosines.items()]
    similarities = {"gold score": gold_P, **cosines}
    correlations = ", ".join(f"{name} {100 * spearman(x_P, edits_P):.1f}" for name, x_P in similarities.items())
    title = f"Edit distance and similarity of {len(gold_P):,} pairs of {task}; Spearman: {correlations}"
    return Chart("edit-distance", title, panels)


def edit_distance_of_run(run: RunResults) -> tuple[list[dict[str, Any]], Chart]:
    """Return the table for the dev task, or else the first headline task, by recipe and for the gold score.

    The chart is BERT-flow's figure 2, with a panel for the gold score and for each recipe.
    """
    task = run.evaluation.tasks[run.config.evaluation.dev or run.config.evaluation.report_tasks()[0]]
    models = {m.recipe: m for m in run.models if m.recipe in run.config.recipes and m.index == 0}
    cosines = {recipe: run.evaluation.outcome(run.embeddings(model), task.name) for recipe, model in models.items()}
    distances = edit_distances(task.first, task.second)
    table = edit_distance_table(distances, task.gold, cosines)
    chart = edit_distance_chart(task.name, distances["words"], task.gold, cosines)
    return [{"recipe": recipe, **found} for recipe, found in table.items()], chart


# -- word frequency ----------------------------------------------------------------------------------------------------


def frequency_table(embeddings_VD: np.ndarray, counts_V: np.ndarray) -> list[dict[str, Any]]:
    """Measure norms and distances of word embeddings by word frequency (BERT-flow table 1).

    Words with count 0, such as special tokens, are neither ranked nor neighbours.

    Returns:
        For every bin of ranks that the words fill: `ranks` (from, below) and mean l2 `norm`; by number of neighbours,
        the mean `distance` to the nearest words and the mean of the largest `dot` products.
    """
    used = np.flatnonzero(counts_V)
    x_VD = torch.from_numpy(np.asarray(embeddings_VD[used[np.argsort(-counts_V[used], kind="stable")]], np.float32))
    bins = [(start, stop) for start, stop in FREQUENCY_BINS if stop <= len(x_VD)]
    if not bins or len(x_VD) <= max(NEIGHBOURS):
        return []
    nearest, largest = [], []
    for start in range(0, bins[-1][1], _BLOCK_ROWS):
        block_BD = x_VD[start : min(start + _BLOCK_ROWS, bins[-1][1])]
        for values_BV, found, best in ((-torch.cdist(block_BD, x_VD), nearest, -1), (block_BD @ x_VD.T, largest, 1)):
            values_BV.diagonal(start).fill_(-torch.inf)
            found.append(best * values_BV.topk(max(NEIGHBOURS)).values)
    nearest_NK, largest_NK, norm_V = torch.cat(nearest), torch.cat(largest), x_VD.norm(dim=1)
    return [
        {
            "ranks": [start, stop],
            "norm": float(norm_V[start:stop].mean()),
            "distance": {str(k): float(nearest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
            "dot": {str(k): float(largest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
        }
        for start, stop in bins
    ]


def frequency_of_run(run: RunResults) -> list[dict[str, Any]]:
    """Return the table of the original encoder's input embeddings, with counts from the run's corpus."""
    encoder, tokenizer = run.base_model.encoder, run.base_model.tokenizer
    embeddings_VD = encoder.transformer.get_input_embeddings().weight.detach().numpy()
    ids = read_tokens(run.storage.fetch("corpus")).input_ids
    counts_V = np.bincount(ids, minlength=len(embeddings_VD))
    counts_V[tokenizer.all_special_ids] = 0
    return frequency_table(embeddings_VD, counts_V)


# -- question and answer -----------------------------------------------------------------------------------------------

_COLUMNS = ("question", "sentence", "label")
_SCHEMA = Schema(
    setting="QNLI",
    kind="questions and sentences",
    wanted={_COLUMNS: [_COLUMNS]},
    needed="question, sentence and label",
    text=_COLUMNS[:2],
)
_LABELS = {"entailment": 1, "not_entailment": 0}


@dataclass(frozen=True)
class Qnli:
    """Questions and sentences with labels, int64 [P]: 1 for `entailment`, 0 for `not_entailment`; both occur."""

    questions: list[str]
    answers: list[str]
    labels: np.ndarray

    @cached_property
    def sentences(self) -> list[str]:
        """Distinct texts that a model has to embed."""
        return list(dict.fromkeys([*self.questions, *self.answers]))

    def score(self, x_UD: np.ndarray) -> float:
        """Return the area under the ROC curve x100 of the cosine, from the embeddings of `sentences`."""
        from sklearn.metrics import roc_auc_score

        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        rows_P2 = np.array([[row[question], row[answer]] for question, answer in zip(self.questions, self.answers)])
        return 100 * float(roc_auc_score(self.labels, pair_cosines(x_UD, x_UD, rows_P2)))


def load_qnli(source: str) -> Qnli:
    """Read QNLI from GLUE's dev.tsv, or from the validation split of a hub dataset's configuration `qnli`."""
    table = read_source(PairSource(source=source, config_name="qnli"), _SCHEMA, "validation")
    labels = table.columns["label"]
    for place, label in enumerate(labels):
        if label not in _LABELS:
            raise UserError(f"{table.where(place)}: label {label!r} is neither entailment nor not_entailment")
    if len(set(labels)) < 2:
        raise UserError(f"QNLI: {source} must have both entailment and not_entailment")
    return Qnli(table.texts("question"), table.texts("sentence"), np.array([_LABELS[label] for label in labels]))


def qnli_of_run(run: RunResults, source: str) -> list[dict[str, Any]]:
    """Return the area under the ROC curve of every model."""
    qnli = load_qnli(source)
    return [{**about, "auc": qnli.score(embed(model, qnli.sentences))} for about, model in models_of(run)]
