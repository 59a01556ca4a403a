"""Compare models with each other and with lexical baselines, for `raysed evaluate`."""

from collections.abc import Iterator, Sequence
from typing import Any

from raysed.config import Config
from raysed.model.load import load_model
from raysed.model.prompts import embed_in_parts
from raysed.report.scores import display_name
from raysed.resources import device_here
from raysed.score.intervals import Difference, interval, resample
from raysed.score.tasks import Evaluation, ModelScores, main_score, mean_score
from raysed.store.progress import steps
from raysed.store.text import Table, number

Row = dict[str, Any]
"""A model's name, description, layers and scores: `metrics` and `outcomes` by task."""


def score_model(name: str, evaluation: Evaluation, config: Config) -> Row:
    """Score one model; embed each sentence of the evaluation once."""
    encoder, budget, device = config.encoder, config.resources.encode_token_budget, device_here(config.resources.gpu)
    model = load_model(name, encoder.pool_layers, encoder.max_length, token_budget=budget, device=device)
    print(f"{name}: {model.description}")
    x_UD = embed_in_parts(model.embed, evaluation.sentences, evaluation.roles, f"embed with {name}")
    with steps(f"score {name}", len(evaluation.tasks)) as begin:
        scores = evaluation.score(x_UD, begin)
    return _row(name, model.description, [] if model.layers is None else [model.layers], scores)


def score_baselines(evaluation: Evaluation) -> list[Row]:
    """Score the lexical baselines."""
    count = sum(len(task.lexical()) for task in evaluation.tasks.values())
    with steps("score lexical baselines", count) as begin:
        baselines = evaluation.score_baselines(begin)
    return [_row(display_name(name, "baseline"), "lexical baseline", [], scores) for name, scores in baselines.items()]


def _row(name: str, description: str, layers: list[Any], scores: ModelScores) -> Row:
    about = {"model": name, "description": description, "layers": layers}
    return {**about, "metrics": scores.metrics, "outcomes": scores.outcomes}


def describe(
    baselines: Sequence[Row], models: Sequence[Row], evaluation: Evaluation, headline: Sequence[str]
) -> Iterator[str]:
    """Yield all tables and comparisons as text; `headline` names the tasks of the mean."""
    columns = {"models": lambda row: row["model"], "mean": lambda row: number(mean_score(row["metrics"], headline))}
    for task in evaluation.tasks:
        columns[task] = lambda row, task=task: number(main_score(row["metrics"].get(task, {})))
    yield Table.of([*baselines, *models], columns).plain()
    yield "\n".join(f"{name}: {task.size}; {task.measure}, x100" for name, task in evaluation.tasks.items())
    yield "\n".join(_differences(baselines, models, evaluation, headline))


def _differences(
    baselines: Sequence[Row], models: Sequence[Row], evaluation: Evaluation, headline: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each model's mean against the best lexical baseline and the best model."""
    means = {row["model"]: mean_score(row["metrics"], headline) for row in [*baselines, *models]}
    outcomes = {row["model"]: [row["outcomes"]] for row in [*baselines, *models] if means[row["model"]] is not None}
    with steps("compute intervals", 1):
        draws = resample(evaluation, outcomes, headline)
    found = False
    for name in (row["model"] for row in models if row["model"] in outcomes):
        for rows, what in ((baselines, "the best lexical baseline"), (models, "the best of these models")):
            others = [row["model"] for row in rows if row["model"] in outcomes]
            best = max(others, key=means.__getitem__, default=name)
            if best != name:
                difference = Difference(means[name] - means[best], interval(draws[name] - draws[best]))
                yield f"{name} is {difference.position()} {best}, {what}."
                found = True
    if found:
        yield "In brackets: 95 % intervals over the sampling of pairs, queries and texts."
