"""Score models side by side with each other and with lexical baselines, as `raysed evaluate` shows them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raysed.config import EncoderConfig, ResourcesConfig
from raysed.model.load import load_model
from raysed.model.prompts import embed_in_parts
from raysed.report.scores import display_name
from raysed.report.sections.unlabelled import neighbours_table, unlabelled_table
from raysed.score.intervals import Difference, interval, resample
from raysed.score.kinds.classification import part_done
from raysed.score.lexical import baselines
from raysed.score.tasks import Evaluation, main_score, mean_score
from raysed.score.unlabelled import LABELS_ADVICE, unlabelled_scores
from raysed.store.progress import steps, track
from raysed.store.text import Table, number

Row = dict[str, Any]
"""A model's name, description, layers and whatever scores it has."""


@dataclass(frozen=True)
class Benchmark:
    """What each model is scored on."""

    evaluation: Evaluation
    headline: list[str]
    """Tasks whose mean is shown."""
    encoder: EncoderConfig
    resources: ResourcesConfig
    sentences: list[str]
    """Unlabelled ones, for scores that need no labels."""


def score_model(name: str, benchmark: Benchmark) -> Row:
    """Score one model, embedding each sentence of the evaluation once."""
    evaluation, encoder, resources = benchmark.evaluation, benchmark.encoder, benchmark.resources
    device = "cuda" if resources.gpu is not False and torch.cuda.is_available() else "cpu"
    budget = resources.encode_token_budget
    model = load_model(name, encoder.layers, encoder.max_length, token_budget=budget, device=device)
    print(f"{name}: {model.description}")
    x_UD = np.zeros((0, 1))
    if evaluation.sentences:
        x_UD = embed_in_parts(model.embed, evaluation.sentences, evaluation.roles, f"embed with {name}")
    layers = [] if model.layers is None else [model.layers]
    result: Row = {"model": name, "description": model.description, "layers": layers}
    names = list(evaluation.tasks)
    scored = track(f"score {name}", names, names, part_done) if names else []
    result["outcomes"] = {task: evaluation.outcome(x_UD, task) for task in scored}
    result["metrics"] = evaluation.score_outcomes(result["outcomes"])
    if benchmark.sentences:
        with steps(f"score {name} without labels", 1):
            result["unlabelled"] = unlabelled_scores(benchmark.sentences, model.embed)
    return result


def score_bag_of_words(benchmark: Benchmark) -> list[Row]:
    """Score the lexical baselines, which need no model."""
    found = baselines(
        benchmark.evaluation,
        lambda steps: track("score lexical baselines", steps, [" by ".join(step) for step in steps], part_done),
    )
    return [
        {
            "model": display_name(name, "baseline"),
            "description": "lexical baseline",
            "layers": [],
            "outcomes": outcomes,
            "metrics": benchmark.evaluation.score_outcomes(outcomes),
        }
        for name, outcomes in found.items()
    ]


# What is printed ----------------------------------------------------------------------------------------------------


def describe(baseline_rows: list[Row], models: list[Row], benchmark: Benchmark) -> Iterator[str]:
    """Yield all tables as text, and how each model compares with the lexical baselines."""
    rows, evaluation = [*baseline_rows, *models], benchmark.evaluation
    if evaluation.tasks:
        columns = {"mean": lambda row: mean_score(row["metrics"], benchmark.headline)}
        columns |= {task: lambda row, t=task: main_score(row["metrics"].get(t, {})) for task in evaluation.tasks}
        yield _table(rows, columns)
        yield "\n".join(f"{name}: {task.size}; {task.measure}, x100" for name, task in evaluation.tasks.items())
        yield "\n".join(_gain(baseline_rows, models, benchmark))
    if unlabelled := {row["model"]: row["unlabelled"] for row in models if "unlabelled" in row}:
        yield f"{unlabelled_table(unlabelled).plain()}\n\n{neighbours_table(unlabelled).plain()}\n\n{LABELS_ADVICE}"


def _table(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], float | None]]) -> str:
    cells = {head: lambda row, value=value: number(value(row)) for head, value in columns.items()}
    return Table.of(rows, {"models": lambda row: row["model"], **cells}).plain()


def _gain(baseline_rows: list[Row], models: list[Row], benchmark: Benchmark) -> list[str]:
    """Compare each model's mean with the best lexical baseline and the best model, one sentence each."""
    tasks = benchmark.headline
    means = {row["model"]: mean_score(row["metrics"], tasks) for row in [*baseline_rows, *models]}
    scored = {row["model"]: [row["outcomes"]] for row in [*baseline_rows, *models] if means[row["model"]] is not None}
    with steps("compute intervals", 1):
        draws = resample(benchmark.evaluation, scored, tasks)
    lines = []
    own = [row["model"] for row in models if row["model"] in scored]
    best = {"the best lexical baseline": [row["model"] for row in baseline_rows if row["model"] in scored]}
    best["the best of these models"] = own
    for name in own:
        for what, names in best.items():
            other = max(names, key=means.__getitem__, default=name)
            if other != name:
                difference = Difference(means[name] - means[other], interval(draws[name] - draws[other]))
                lines.append(f"{name} is {difference.position()} {other}, {what}.")
    return [*lines, *(["In brackets: 95 % intervals over the sampling of pairs, queries and texts."] if lines else [])]
