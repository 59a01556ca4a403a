"""From finished artefacts to what people look at: scores, plots, the report and the exported model."""

import json
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysed.config import Config, Layers, derive_seed
from raysed.data.tokens import SentenceTable, tokenize
from raysed.model.affine import CalibrationMap, load_calibration
from raysed.model.encoder import Encoder, load_start
from raysed.model.encoding import encode
from raysed.model.export import Card, export_model, parity
from raysed.model.formats import write_formats
from raysed.plan.artefacts import Facts, ScoredModel, first_healthy, load_calibrated
from raysed.plan.check import Job
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report import plots
from raysed.report.card import card_of, labels_by_stage, seen_by_calibrations, versions
from raysed.report.charts import Chart, PairTexts, draw_charts
from raysed.report.choice import Choice, choose
from raysed.report.document import Report, headline_table, how_to_repeat, layers_table, sanity_words
from raysed.report.failures import changed_pairs, worst_pairs
from raysed.report.findings import worth
from raysed.report.formats import compare_formats, formats_table
from raysed.report.results import Draws, Group, Results, Row
from raysed.report.space import Space, analyse
from raysed.report.teachers import compare, searches, speed_of, teachers_table
from raysed.report.widths import scores_by_width
from raysed.score.baselines import baselines
from raysed.score.intervals import resample
from raysed.score.tasks import Embeddings, Outcomes, Task, mean_embeddings, score_by
from raysed.score.triples import Embed, answered_by, answered_by_words, triples
from raysed.score.unlabelled import MOST_SENTENCES, unlabelled_scores
from raysed.store import unchanged
from raysed.store.metrics import log_pictures
from raysed.store.progress import steps, tell
from raysed.store.storage import Storage

_FEWEST_SENTENCES = 20
"""Of a corpus that is looked at without labels; the tasks' sentences are, where it has fewer."""
_FURTHER_STEPS = 5
"""Beside one for each model, for the progress."""
_PARITY_SENTENCES = 64
_PARITY, _CALIBRATED_PARITY = 1e-4, 1e-3
"""Whitening enlarges the rounding of weak directions: by 1e2 and more where it was fitted on few sentences."""


def is_complete(job: Job, storage: Storage) -> bool:
    """Whether the run's report, and its model if any, are there and depend on exactly these settings and inputs."""
    names = unchanged.results_of(storage)
    return unchanged.has_report(storage) and all(storage.finished(name, job.depends) for name in names)


@dataclass(frozen=True)
class _Finished:
    """A run of which everything is made but what follows from scores; its models are in reading order."""

    job: Job
    storage: Storage
    models: Sequence[ScoredModel]
    facts: Facts

    @property
    def config(self) -> Config:
        return self.job.config

    def embeddings(self, model: ScoredModel, layers: Layers | None = None) -> Embeddings:
        """A model's embeddings, by default at the pooling of the headline."""
        return load_calibrated(self.storage, model.embeddings, self.config.encoder.layers if layers is None else layers)

    def together(self, recipe: str, members: Sequence[ScoredModel]) -> Embeddings | None:
        """What an ensemble says as one; None of teachers that were not combined, or of one that says the same alone."""
        if recipe != TEACHERS:
            return mean_embeddings([self.embeddings(member) for member in members])
        name = self.facts.together
        if name is None or (len(members) == 1 and self.storage.entry(name).meta["kept"] == 1):
            return None
        return load_calibrated(self.storage, name, self.config.encoder.layers)


def publish(
    job: Job, storage: Storage, models: Sequence[ScoredModel], facts: Facts, say: Callable[[str], None]
) -> None:
    """Scores all models, exports one unless that is refused, writes the report and says what came out.

    Args:
        facts: for the report and the model card.
    """
    run = _Finished(job, storage, models, facts)
    tell(stage="report")
    with steps("score and report", len(models) + _FURTHER_STEPS) as begin:
        choice, report = _scored_and_written(run, begin)
    _tell(run, choice, report, say)


def _scored_and_written(run: _Finished, begin: Callable[[str], None]) -> tuple[Choice, Report]:
    """All of it but words on the terminal; `begin` is told the steps."""
    results = _score(run, begin)
    choice = choose(run.config, results.rows, run.models)
    exported = _exported(run, choice)
    untouched = load_start(run.config.encoder, run.storage, choice.base_weights)
    shown = {
        BASE: _embedder(run.config, *untouched, None),
        choice.model.recipe: _embedder(run.config, *exported),
    }
    sanity = {
        "triples": len(triples()),
        "exported": answered_by(shown[choice.model.recipe]),
        "base": answered_by(shown[BASE]),
        "words": answered_by_words(),
    }
    begin("export")
    width, speed = speed_of(shown[choice.model.recipe], run.job.evaluation.sentences)
    formats: list[dict[str, Any]] = []
    if choice.refusal:
        run.storage.remove("model")  # of other settings or inputs
    else:
        card = card_of(run.job, run.facts, choice, results, sanity, _speed_words(speed))
        formats = _export(run, choice, exported, card)
    begin("sentences without labels")
    sentences = _some_sentences(run)
    unlabelled = {name: unlabelled_scores(sentences, embed) for name, embed in shown.items()}
    begin("embedding space and plots")
    space = analyse(run.job, run.storage, _shown(run))
    teachers = compare(run.job, run.storage, results, exported[0], choice, width, speed)
    searching: list[dict[str, Any]] = []
    if run.facts.shares_space_of:
        searching = searches(run.job, run.storage, results, run.models, run.facts.shares_space_of)
    listed = [*teachers[:-1], *searching, *teachers[-1:]]
    judged = _judged(run, choice, results)
    report = _report(run, results, space, unlabelled, choice, sanity, listed, formats, judged)

    def write(path: Path) -> None:
        pictures, charts = _draw(run, results, space, teachers, judged, path)
        log_pictures(run.storage, path)
        drawn = replace(report, plots=pictures, charts=charts)
        texts = (drawn.to_html(), drawn.to_markdown(), drawn.to_json())
        for name, text in zip(("report.html", "report.md", "report.json"), texts):
            run.storage.write_text(name, text)

    # The report is written before the manifest names the plots, so a run that counts as complete has one.
    run.storage.commit("plots", write, run.job.depends, {"refusal": choice.refusal})
    return choice, report


def _tell(run: _Finished, choice: Choice, report: Report, say: Callable[[str], None]) -> None:
    say(f"\n{headline_table(report.results).plain()}")
    if by_layers := layers_table(report.results):
        say(f"\nby pooled layers\n{by_layers.plain()}")
    if by_width := report.by_width():
        say(f"\nby width\n{by_width.plain()}")
    if report.teachers:
        say(f"\nteachers and the exported model\n{teachers_table(report.teachers).plain()}")
    if report.formats:
        say(f"\nformats of the exported model\n{formats_table(report.formats, run.config.evaluation.dev).plain()}")
    say(f"\n{report.findings()}\n")
    say(f"report: {run.storage.uri('report.html')}   as text: {run.storage.uri('report.md')}")
    if not choice.refusal:
        say(f"model: {run.storage.uri('model')}: {choice.words()}; {sanity_words(report.sanity)}")
    say(f"TensorBoard: tensorboard --logdir {run.storage.uri('logs')}")
    say(f"\n{choice.refusal}" if choice.refusal else _example(run, choice.model))


def publish_failure(config: Config, storage: Storage, error: Exception) -> None:
    """Writes the `report.json` of a run that has failed."""
    settings = config.model_dump(mode="json")
    failed = {"run": config.run, "status": "failed", "error": str(error), "config": settings}
    storage.write_text("report.json", json.dumps(failed, indent=1))


def _score(run: _Finished, begin: Callable[[str], None]) -> Results:
    """Scores every model at every pooling, every ensemble by its mean embedding, grid models and words alone."""
    evaluation, tasks, main = run.job.evaluation, run.config.report_tasks(), run.config.encoder.layers
    rows, headline = [], {}
    begin("words alone")
    for name, outcomes in baselines(evaluation).items():
        rows.append(Row(name, "baseline", 0, None, 0, evaluation.score_outcomes(outcomes)))
        if set(tasks) <= set(outcomes):  # BM25 is for retrieval alone
            headline[name, "baseline"] = [_on(tasks, outcomes)]
    rows += _grid_rows(run)
    for recipe in dict.fromkeys(model.recipe for model in run.models):
        group = [model for model in run.models if model.recipe == recipe]
        for model in group:
            begin(recipe)
            for layers in model.poolings:
                outcomes = evaluation.outcomes(run.embeddings(model, layers))
                scores = evaluation.score_outcomes(outcomes)
                rows.append(Row(recipe, model.kind, model.index, None, layers, scores, model.left_out))
                if layers == main and not model.left_out:
                    headline.setdefault((recipe, model.kind), []).append(_on(tasks, outcomes))
        healthy = [model for model in group if not model.left_out]
        together = run.together(recipe, healthy) if group[0].kind == "member" and healthy else None
        if together is not None:
            outcomes = evaluation.outcomes(together)
            rows.append(Row(recipe, "ensemble", 0, None, main, evaluation.score_outcomes(outcomes)))
            headline[recipe, "ensemble"] = [_on(tasks, outcomes)]
    results = Results(rows, tasks, main, labels_by_stage(run.job), fitted_on=seen_by_calibrations(run.config))
    begin("intervals")
    return replace(results, draws=_resampled(run, results, headline))


def _on(tasks: Sequence[str], outcomes: Outcomes) -> Outcomes:
    return {task: outcomes[task] for task in tasks}


def _resampled(run: _Finished, results: Results, outcomes: Mapping[Group, Sequence[Outcomes]]) -> Draws:
    """Of every group the mean, and of groups of several models the one with the best headline score, too."""
    groups = {(*group, "mean"): models for group, models in outcomes.items()}
    for group, models in outcomes.items():
        scores = [row.average(results.tasks) for row in results.counted if (row.recipe, row.kind) == group]
        if len(scores) > 1 and None not in scores:
            groups[(*group, "best")] = [models[int(np.argmax(scores))]]
    draws = resample(run.job.evaluation, groups, results.tasks, seed=derive_seed(run.config.seed, "bootstrap"))
    single = {(*group, "best"): draws[(*group, "mean")] for group in outcomes if (*group, "best") not in groups}
    return {**draws, **single}


_Exported = tuple[Encoder, Any, CalibrationMap | None]
"""Encoder, tokenizer and calibration."""


def _exported(run: _Finished, choice: Choice) -> _Exported:
    """The model that is exported."""
    config, storage, chosen = run.config, run.storage, choice.model
    encoder, tokenizer = load_start(config.encoder, storage, chosen.weights)
    if not parse_recipe(chosen.recipe).calibration:
        return encoder, tokenizer, None
    place = storage.fetch(chosen.embeddings) / f"layers-{config.encoder.layers}"
    return encoder, tokenizer, load_calibration(place)


def _speed_words(speed: float) -> str:
    """To two digits: more of them would differ from one measurement to the next."""
    threads = torch.get_num_threads()
    where = f"{platform.machine()}, {threads} thread{'s' * (threads > 1)}"
    return f"about {float(f'{speed:.2g}'):,.0f} sentences per second in one process ({where})"


def _export(run: _Finished, choice: Choice, exported: _Exported, card: Card) -> list[dict[str, Any]]:
    """Writes `model/`, and compares its vectors with the model in memory before it is published.

    Returns:
        What `compare_formats` returned.

    Raises:
        RuntimeError: they differ.
        RunFailed: those of another format do.
    """
    config, storage, chosen = run.config, run.storage, choice.model
    encoder, tokenizer, calibration = exported
    options: dict[str, Any] = {
        "layers": config.encoder.layers,
        "max_length": config.encoder.max_length,
        "calibration": calibration,
    }

    sentences, dev = run.job.evaluation.sentences, run.job.evaluation.tasks.get(config.evaluation.dev)
    tolerance = _PARITY if calibration is None else _CALIBRATED_PARITY
    formats: list[dict[str, Any]] = []

    def write(path: Path) -> None:
        export_model(encoder, tokenizer, path, card=card, **options)
        difference = parity(path, encoder, tokenizer, sentences[:_PARITY_SENTENCES], **options)
        if not difference < tolerance:
            raise RuntimeError(f"the exported model's vectors differ from the trained model's by {difference:.2g}")
        if config.export.formats:
            write_formats(path, config.export.formats)
            expected_ND = _embedder(config, *exported)(sentences[:_PARITY_SENTENCES])
            formats[:] = compare_formats(path, config.export.formats, sentences, expected_ND, tolerance, dev)

    storage.commit("model", write, run.job.depends, {"recipe": chosen.recipe, "index": chosen.index})
    return formats


def _some_sentences(run: _Finished) -> list[str]:
    """A thousand sentences of the corpus, one after the other, where one was read; else those of the tasks."""
    if run.storage.entry("corpus") is None or not run.job.needs_corpus:
        return run.job.evaluation.sentences
    table = SentenceTable(run.storage.fetch("corpus"))
    if len(table) < _FEWEST_SENTENCES:
        return run.job.evaluation.sentences
    first = int(np.random.default_rng(run.config.seed).integers(max(len(table) - MOST_SENTENCES, 0) + 1))
    return table.rows(first, min(first + MOST_SENTENCES, len(table)), ("sentence",)).column("sentence").to_pylist()


def _embedder(config: Config, encoder: Encoder, tokenizer: Any, calibration: CalibrationMap | None) -> Embed:
    def embed(sentences: Sequence[str]) -> np.ndarray:
        tokens = tokenize(tokenizer, list(sentences), config.encoder.max_length)
        x_BD = encode(encoder, tokens, (config.encoder.layers,), config.resources.encode_token_budget)[0]
        return calibration.transform(x_BD) if calibration else x_BD

    return embed


def _grid_rows(run: _Finished) -> list[Row]:
    """Rows of the grid models that were trained to the end: their dev score is all that was measured of them."""
    rows = []
    for grid in run.facts.grids:
        task = run.job.evaluation.tasks[grid["task"]]
        for bound in (bound for bound in grid["bounds"] if bound["stopped_at"] is None):
            for index, value in enumerate(bound["scores"]):
                metrics = {grid["task"]: _grid_metrics(task, grid["criterion"], value)}
                rows.append(
                    Row(grid["recipe"], "grid", index, bound["lower_bound"], run.config.encoder.layers, metrics)
                )
    return rows


def _grid_metrics(task: Task, criterion: str, value: float) -> dict[str, Any]:
    return {criterion: value, "pairs": task.task.pairs} if task.kind == "pairs" else {task.main: value}


# -- pictures and words ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """The first headline task of graded pairs, as the untouched encoder and the chosen model see it.

    Attributes:
        task: its name.
        model: the title of the chosen model.
        texts: of the P pairs.
        gold_P: their graded scores.
        before_P: cosines by the untouched encoder.
        after_P: those by the chosen model.
    """

    task: str
    model: str
    texts: PairTexts
    gold_P: np.ndarray
    before_P: np.ndarray
    after_P: np.ndarray


def _judged(run: _Finished, choice: Choice, results: Results) -> _Judged | None:
    """Nothing where no headline task has graded pairs."""
    evaluation = run.job.evaluation
    name = next((task for task in results.tasks if task in evaluation.pair_tasks), None)
    if name is None:
        return None
    base = next(model for model in run.models if model.recipe == BASE)
    before_P, gold_P = evaluation.cosines(run.embeddings(base), name)
    after_P, _ = evaluation.cosines(run.embeddings(choice.model), name)
    task = evaluation.tasks[name]
    return _Judged(name, choice.title, PairTexts(task.first, task.second), gold_P, before_P, after_P)


def _draw(
    run: _Finished,
    results: Results,
    space: Space,
    teachers: Sequence[Mapping[str, Any]],
    judged: _Judged | None,
    path: Path,
) -> tuple[dict[str, str], dict[str, Chart]]:
    """Writes the pictures; returns by path in the run directory their titles, and the same numbers as charts."""
    shown = plots.Pictured(
        trainings=_trainings(run, results),
        spectra=space.spectra,
        grids=run.facts.grids,
        distances=space.distances,
        teachers=teachers,
    )
    if judged:
        agreement = {BASE: (judged.before_P, judged.gold_P), judged.model: (judged.after_P, judged.gold_P)}
        shown = replace(shown, agreement=agreement, agreement_task=judged.task)
    titles = plots.write_plots(path, results, shown)
    charts = draw_charts(results, shown, judged and judged.texts)
    return (
        {f"plots/{Path(file).name}": title for file, title in titles.items()},
        {f"plots/{file}": chart for file, chart in charts.items()},
    )


def _shown(run: _Finished) -> dict[str, ScoredModel]:
    """The first healthy model of the base, and of the last recipe without and with its calibration."""
    last = parse_recipe(run.config.recipes[-1])
    calibrated_base = "-".join([BASE, *last.calibration])
    wanted = dict.fromkeys([BASE, calibrated_base, last.uncalibrated, last.text])
    return {text: model for text in wanted if (model := first_healthy(run.models, text))}


def _trainings(run: _Finished, results: Results) -> dict[str, plots.Training]:
    """The training histories of the members of every node, and of the learners of every recipe that distils."""
    shown, dev = {}, run.config.evaluation.dev
    for node, names in run.facts.members.items():
        criterion = run.config.sts.criterion if node.endswith("sts") else "spearman"
        base = _dev_scores(results, dev, {"base": (BASE, "base")}, criterion)
        shown[node] = plots.Training("member", _curves(run.storage, "member", names), base, criterion)
    for text in dict.fromkeys(recipe.uncalibrated for recipe in run.job.recipes if recipe.distils):
        node = parse_recipe(text).ensemble
        others = {"base": (BASE, "base"), "members, mean": (node, "member"), "full ensemble": (node, "ensemble")}
        names = [model.weights for model in run.models if model.recipe == text]
        curves = _curves(run.storage, "learner", names)
        shown[text] = plots.Training("learner", curves, _dev_scores(results, dev, others))
    return shown


def _dev_scores(
    results: Results, dev: str | None, groups: Mapping[str, Group], criterion: str = "spearman"
) -> dict[str, float]:
    """Mean dev scores of groups of like models, as far as there are any; equal embeddings have none."""
    found = {
        name: [
            score
            for row in results.counted
            if (row.recipe, row.kind) == group and dev in row.metrics
            if (score := score_by(row.metrics[dev], criterion)) is not None
        ]
        for name, group in groups.items()
    }
    return {name: statistics.fmean(scores) for name, scores in found.items() if scores}


def _curves(storage: Storage, what: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Histories by `member 00` and the like; the models of a grid's winner are its members."""
    return {f"{what} {name.rpartition('/')[2]}": _history(storage, name) for name in names}


def _history(storage: Storage, name: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (storage.fetch(name) / "history.jsonl").read_text().splitlines()]
    return [{**entry, "dev": max(entry["dev"].values()) if "dev" in entry else None} for entry in entries]


def _report(
    run: _Finished,
    results: Results,
    space: Space,
    unlabelled: Mapping[str, Mapping[str, Any]],
    choice: Choice,
    sanity: Mapping[str, int],
    teachers: Sequence[Mapping[str, Any]],
    formats: Sequence[Mapping[str, Any]],
    judged: _Judged | None,
) -> Report:
    """All of it but pictures."""
    config, storage, facts = run.config, run.storage, run.facts
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return Report(
        run=config.run,
        results=results,
        timings=json.loads(storage.read_text("timings.json") or "{}"),
        environment={**versions(), "python": platform.python_version(), "cluster": facts.cluster, "device": device},
        config=config.model_dump(mode="json"),
        corpus={**facts.corpus.get("report", {}), **facts.corpus.get("lengths", {})},
        members=[_left_out(name, reason) for name, reason in facts.left_out.items()],
        views=facts.views,
        grids=facts.grids,
        transfer=facts.transfer,
        analysis={**space.words, **({"qnli": facts.qnli} if facts.qnli else {}), "unlabelled": unlabelled},
        dev=config.evaluation.dev,
        exported=None if choice.refusal else choice.model.recipe,
        export=choice.words(),
        refusal=choice.refusal or "",
        worth=worth(results, choice.model.recipe, choice.model.kind),
        sanity=sanity,
        learners=_distances(run),
        widths=scores_by_width(config, run.job.evaluation, storage, run.models),
        teachers=teachers,
        choices=run.facts.choices,
        formats=formats,
        failures=_failures(judged),
        changes=_changes(judged),
        command=_typed(),
        repeat=how_to_repeat(storage.location, storage.run, _main_job()),
    )


def _failures(judged: _Judged | None) -> dict[str, Any]:
    """The pairs on which the chosen model fails most."""
    if judged is None:
        return {}
    pairs = worst_pairs(judged.texts.first, judged.texts.second, judged.gold_P, judged.after_P)
    return {"task": judged.task, "model": judged.model, "pairs": pairs} if pairs else {}


def _changes(judged: _Judged | None) -> dict[str, Any]:
    """The pairs that the chosen model judges most better or worse than the untouched encoder."""
    if judged is None:
        return {}
    texts = judged.texts
    pairs = changed_pairs(texts.first, texts.second, judged.gold_P, judged.before_P, judged.after_P)
    return {"task": judged.task, "model": judged.model, **pairs} if any(pairs.values()) else {}


def _typed() -> str:
    """The command as the user typed it."""
    words = ["raysed"] if Path(sys.argv[0]).name == "raysed" else ["python", sys.argv[0]]
    return shlex.join([*words, *sys.argv[1:]])


def _main_job() -> list[str]:
    """The main job as the user would type it: the script beside the job that runs, or the installed command."""
    path = Path(sys.argv[0]).with_name("ensemble_then_distill.py")
    return ["python", str(path)] if path.is_file() else ["raysed", "run"]


def _distances(run: _Finished) -> list[dict[str, Any]]:
    """How far learners, and the members themselves, are from the members' mean: what a learner has learnt.

    Mean squared distances per dimension on the evaluation's sentences, at the pooling that learners are trained with
    where the run has it; less each model's mean, which `sed.target: centred_mean` leaves out.
    """
    found = {}
    for recipe in {recipe.uncalibrated: recipe for recipe in run.job.recipes if recipe.distils}.values():
        if not recipe.members:  # of other widths, and with a pooling of their own
            continue
        learners, members = (
            [model for model in run.models if model.recipe == text and not model.left_out]
            for text in (recipe.uncalibrated, recipe.ensemble)
        )
        layers = 1 if 1 in learners[0].poolings else None
        of_learners, of_members = (
            [_centred(run.embeddings(m, layers)) for m in group] for group in (learners, members)
        )
        mean_UD = np.mean(of_members, axis=0)
        found[recipe.uncalibrated] = {
            "recipe": recipe.uncalibrated,
            "updates": int(run.storage.entry(learners[0].weights).meta["steps"]),
            "distance": _mean_distance(of_learners, mean_UD),
            "members_distance": _mean_distance(of_members, mean_UD),
        }
    return list(found.values())


def _centred(embeddings: Embeddings) -> np.ndarray:
    x_UD = np.asarray(embeddings, np.float64)
    return x_UD - x_UD.mean(0)


def _mean_distance(models: Sequence[np.ndarray], mean_UD: np.ndarray) -> float:
    return float(np.mean([((x_UD - mean_UD) ** 2).mean() for x_UD in models]))


def _left_out(name: str, reason: str) -> dict[str, Any]:
    node, *_, index = name.split("/")
    return {"recipe": node, "index": int(index), "reason": reason}


def _example(run: _Finished, chosen: ScoredModel) -> str:
    """Ranks sentences of the first headline task by similarity to one of them."""
    evaluation, headline = run.job.evaluation, run.config.report_tasks()
    task = evaluation.tasks[next((t for t in headline if t in evaluation.pair_tasks), headline[0])]
    query = task.first[int(np.argmax(task.gold))] if task.kind == "pairs" else task.sentences[0]
    sentences = run.job.evaluation.sentences
    embeddings_UD = run.embeddings(chosen)
    unit_UD = embeddings_UD / np.linalg.norm(embeddings_UD, axis=1, keepdims=True)
    start = sentences.index(query)
    cosine_U = unit_UD @ unit_UD[start]
    nearest = [i for i in np.argsort(-cosine_U) if i != start][:3]
    lines = [f"  {cosine_U[i]:.2f}  {sentences[i]}" for i in nearest]
    return "\n".join([f"\nOf {len(sentences):,} sentences, the model finds these nearest to: {query}", *lines])
