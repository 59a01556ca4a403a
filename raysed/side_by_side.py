"""Score any models side by side and beside words alone, as `raysed evaluate` shows them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raysed.config import Config, CorpusConfig, Layers
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.transfer import TransferTask, load_transfer
from raysed.model.load import load_model
from raysed.report.findings import Difference
from raysed.report.scores import display_name
from raysed.report.sections.unlabelled import neighbours_table, unlabelled_table
from raysed.score.intervals import resample
from raysed.score.leaderboard import load_mteb, score_mteb
from raysed.score.lexical import baselines, transfer_baselines
from raysed.score.tasks import Evaluation, main_score, mean_score
from raysed.score.transfer import ProbeJob, score_transfer, sentences_of, transfer_average
from raysed.score.transfer import main_score as transfer_score
from raysed.score.unlabelled import CANNOT_BE_TOLD, unlabelled_scores
from raysed.store.progress import Progress, one_by_one, steps
from raysed.store.text import Table, number

Row = dict[str, Any]
"""A model's name, description, layers and whatever scores it has."""


@dataclass(frozen=True)
class Benchmark:
    """Everything that each model is scored on."""

    config: Config
    evaluation: Evaluation
    transfer: list[TransferTask]
    sentences: list[str]
    """Without labels, for what can be said about a model without any."""
    mteb: list[Any]

    @property
    def poolings(self) -> tuple[Layers, ...]:
        """The pooled layers of the similarities and, where there are transfer tasks, of their features."""
        main, of_transfer = self.config.encoder.layers, self.config.evaluation.transfer.layers
        return (main, main if of_transfer is None else of_transfer) if self.transfer else (main,)


def load_benchmark(config: Config, texts: Sequence[str], mteb: Sequence[str]) -> Benchmark:
    """Read the tasks of a config, files of sentences without labels, and tasks of MTEB by their names."""
    evaluation = Evaluation.load(config.evaluation, config.seed)
    transfer = load_transfer(config.evaluation.transfer)
    chunks = sentence_chunks(CorpusConfig(source=list(texts)), 0, CorpusReport()) if texts else []
    return Benchmark(config, evaluation, transfer, [s for _, chunk in chunks for s in chunk], load_mteb(mteb))


def score_model(name: str, benchmark: Benchmark) -> Row:
    """Embed every sentence once and score one model."""
    config, evaluation, tasks = benchmark.config, benchmark.evaluation, benchmark.transfer
    device = "cuda" if config.resources.gpu is not False and torch.cuda.is_available() else "cpu"
    budget, poolings = config.resources.encode_token_budget, benchmark.poolings
    model = load_model(name, poolings, config.encoder.max_length, token_budget=budget, device=device)
    print(f"{name}: {model.description}")
    transfer_sentences = sentences_of(tasks)
    texts = list(dict.fromkeys([*evaluation.sentences, *transfer_sentences]))
    progress = Progress(f"embed with {name}", len(texts))
    found = model.embed(texts, progress.update) if texts else [np.zeros((0, 1))]
    progress.close()
    # A sentence-transformers model has one pooling, whatever was asked for.
    similarity, features = (dict(zip(model.poolings, found)).get(at, found[0]) for at in (poolings[0], poolings[-1]))

    result: Row = {"model": name, "description": model.description, "layers": list(model.poolings)}
    x_UD = similarity[: len(evaluation.sentences)]
    names = list(evaluation.tasks)
    scored = one_by_one(f"score {name}", names, names) if names else []
    result["outcomes"] = {task: evaluation.outcome(x_UD, task) for task in scored}
    result["metrics"] = evaluation.score_outcomes(result["outcomes"])
    if tasks:
        row = {sentence: i for i, sentence in enumerate(texts)}
        rows = [row[sentence] for sentence in transfer_sentences]
        probes = score_transfer(tasks, features[rows], config.evaluation.transfer.seed, _probed(f"probe {name}"))
        result |= {"transfer": probes, "transfer_average": transfer_average(probes)}
    if benchmark.sentences:
        with steps(f"look at sentences with {name}", 1):
            result["unlabelled"] = unlabelled_scores(benchmark.sentences, lambda some: model.embed(some)[0])
    if benchmark.mteb:
        result["mteb"] = score_mteb(model, benchmark.mteb, name)
    return result


def score_words(benchmark: Benchmark) -> list[Row]:
    """Score the baselines that need no model."""
    evaluation, tasks = benchmark.evaluation, benchmark.transfer
    found = baselines(
        evaluation,
        lambda parts: one_by_one("score words alone", parts, [f"{task} by {baseline}" for task, baseline, _ in parts]),
    )
    seed, run = benchmark.config.evaluation.transfer.seed, _probed("probe words alone")
    transfer = transfer_baselines(tasks, seed, run) if tasks else {}
    rows = []
    for name in dict.fromkeys([*found, *transfer]):
        outcomes = found.get(name, {})
        row = {"model": display_name(name, "baseline"), "description": "the words alone", "layers": []}
        row |= {"outcomes": outcomes, "metrics": evaluation.score_outcomes(outcomes)}
        if name in transfer:
            row |= {"transfer": transfer[name], "transfer_average": transfer_average(transfer[name])}
        rows.append(row)
    return rows


def _probed(title: str) -> Callable[..., Iterator[dict]]:
    def run(probe: Callable[[ProbeJob], dict], jobs: list[ProbeJob]) -> Iterator[dict]:
        return map(probe, one_by_one(title, jobs, [job.task for job in jobs]))

    return run


# What is printed ----------------------------------------------------------------------------------------------------


def describe(words: list[Row], models: list[Row], benchmark: Benchmark) -> Iterator[str]:
    """Yield all tables as text, and what each model is worth against words alone."""
    rows, evaluation = [*words, *models], benchmark.evaluation
    if evaluation.tasks:
        yield scores_table(rows, benchmark.config)
        yield "\n".join(f"{name}: {task.size}; {task.measure}, x100" for name, task in evaluation.tasks.items())
        yield "\n".join(_worth(words, models, benchmark))
    if probed := [row for row in rows if "transfer" in row]:
        names = list(probed[0]["transfer"])
        lines = [[row["transfer_average"], *(transfer_score(row["transfer"][n]) for n in names)] for row in probed]
        yield _table(probed, ["mean", *names], lines)
    if unlabelled := {row["model"]: row["unlabelled"] for row in models if "unlabelled" in row}:
        yield f"{unlabelled_table(unlabelled).plain()}\n\n{neighbours_table(unlabelled).plain()}\n\n{CANNOT_BE_TOLD}"
    if benchmark.mteb:
        names = list(models[0]["mteb"])
        yield _table(models, names, [[row["mteb"][name] for name in names] for row in models])


def scores_table(rows: Sequence[Row], config: Config) -> str:
    """Return the scores x100 per model: the mean over the headline tasks, and every task; `-` where there is none."""
    headline, tasks = config.report_tasks(), list(config.evaluation.tasks)
    found = [row["metrics"] for row in rows]
    lines = [[mean_score(m, headline), *(main_score(m.get(task, {})) for task in tasks)] for m in found]
    return _table(rows, ["mean", *tasks], lines)


def _table(rows: Sequence[Row], columns: Sequence[str], lines: Sequence[Sequence[float | None]]) -> str:
    cells = [[row["model"], *map(number, line)] for row, line in zip(rows, lines)]
    return Table(["models", *columns], cells).plain()


def _worth(words: list[Row], models: list[Row], benchmark: Benchmark) -> list[str]:
    """A sentence per model: its mean against the best of words alone, and against the best other model."""
    tasks = benchmark.config.report_tasks()
    means = {row["model"]: mean_score(row["metrics"], tasks) for row in [*words, *models]}
    scored = {row["model"]: row for row in [*words, *models] if means[row["model"]] is not None}
    with steps("resample for intervals", 1):
        draws = resample(benchmark.evaluation, {name: [row["outcomes"]] for name, row in scored.items()}, tasks)
    best, first = (
        max((row["model"] for row in some if row["model"] in scored), key=means.get, default=None)
        for some in (words, models)
    )
    lines = []
    for name in (row["model"] for row in models if row["model"] in scored):
        for other, what in {best: "the best of words alone", first: "the best of these models"}.items():
            if other is not None and other != name:
                difference = Difference(means[name] - means[other], draws[name] - draws[other])
                lines.append(f"{name} is {difference.position()} {other}, {what}.")
    return [*lines, *(["In brackets: 95 % intervals over the draw of pairs, queries and texts."] if lines else [])]
