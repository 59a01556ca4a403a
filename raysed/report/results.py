"""A finished run, as sections of the report read it. In the report, only this file knows where artefacts are."""

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from raysed._version import __version__
from raysed.config import Config, Layers, derive_seed
from raysed.data.parquet import SentenceTable
from raysed.data.tokens import Tokenizer, with_prompts
from raysed.made import Made
from raysed.make.scores import load_embeddings
from raysed.model.calibration import load_calibration
from raysed.model.load import NativeModel
from raysed.model.pretrained import load_start
from raysed.model.prompts import Prompts
from raysed.model.vocabulary import cut, missing_share, used_tokens
from raysed.plan.check import Job
from raysed.plan.results import EvaluatedModel, Results
from raysed.plan.tables import corpora
from raysed.plan.teachers import SPEEDS
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report.choice import Choice, choose
from raysed.report.scores import ORIGINAL, Compared, Draws, Group, Row, ScoreTable, stage_labels
from raysed.score.intervals import interval, resample
from raysed.score.neighbours import MOST_SENTENCES
from raysed.score.tasks import Embeddings, Evaluation, Outcomes, mean_embeddings
from raysed.store.storage import Storage
from raysed.store.text import size

_PACKAGES = "ray torch transformers datasets deepspeed safetensors pyarrow scipy numpy".split()
_FEWEST_SENTENCES = 20
"""A smaller corpus shows nothing without labels; use the tasks' sentences instead."""
_TIMED = 500
"""Approximate number of sentences for timing the exported model."""


@dataclass(frozen=True)
class PairComparison:
    """Graded pairs with cosines by the original encoder (`before_P`) and by the chosen model (`after_P`)."""

    task: str
    model: str
    first: Sequence[str]
    second: Sequence[str]
    gold_P: np.ndarray
    before_P: np.ndarray
    after_P: np.ndarray


@dataclass(frozen=True)
class RunResults:
    """A finished run. Each property is computed once, when first read."""

    job: Job
    storage: Storage
    facts: Results
    begin: Callable[[str], None] = lambda step: None
    """Called with the name of each step, for progress."""
    ensure: Callable[[Made], None] = lambda made: None
    """Makes what is to be read if its files are gone."""
    say: Callable[[str], None] = lambda line: None
    """Prints a line."""

    @property
    def config(self) -> Config:
        return self.job.config

    @property
    def models(self) -> Sequence[EvaluatedModel]:
        """In reading order."""
        return self.facts.models

    @property
    def evaluation(self) -> Evaluation:
        return self.job.evaluation

    def embeddings(self, model: EvaluatedModel, layers: Layers | None = None) -> Embeddings:
        """Return a model's embeddings of the tasks' sentences, by default at the headline pooling."""
        return load_embeddings(self.storage.fetch(model.embeddings.name), layers or self.config.encoder.pool_layers)

    def models_of(self, recipe: str) -> list[EvaluatedModel]:
        """Return the models of a recipe that have not collapsed."""
        return [model for model in self.models if model.recipe == recipe and not model.left_out]

    # -- scores ------------------------------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> ScoreTable:
        """Scores of models at every pooling, of ensembles (mean embeddings), grids and baselines."""
        model, (table, outcomes, _) = self.choice.model, self._scores
        table = replace(table, exported=table.row(model.recipe, model.kind, model.index))
        self.begin("intervals")
        draws, task_draws = self._resampled(table, outcomes)
        return replace(table, draws=draws, task_draws=task_draws)

    @cached_property
    def _scores(self) -> tuple[ScoreTable, dict[Group, list[Outcomes]], dict[Compared, Outcomes]]:
        """All scores without intervals, the outcomes of the headline tasks by group, and those of the dev task."""
        tasks, main = self.config.evaluation.report_tasks(), self.config.encoder.pool_layers
        rows: list[Row] = []
        headline: dict[Group, list[Outcomes]] = {}
        dev, on_dev = self.config.evaluation.dev, dict[Compared, Outcomes]()
        for row, outcomes in self._scored():
            rows.append(row)
            if row.layers == main and dev in outcomes:
                on_dev[row.recipe, row.kind, row.index] = {dev: outcomes[dev]}
            if row.layers in (main, 0) and not row.left_out and set(tasks) <= set(outcomes):  # BM25 is for retrieval
                headline.setdefault((row.recipe, row.kind), []).append({task: outcomes[task] for task in tasks})
        views = {s: getattr(self.config, s).views for recipe in self.job.recipes for s in recipe.two_view_stages}
        # Views made of pairs labelled entailment use labels.
        labels = stage_labels()
        labels |= {stage: labels["nli"] for stage, kinds in views.items() if "entailment" in kinds}
        known, flow = self.evaluation.tasks, self.config.flow
        is_apart = flow.fit_tasks and set(flow.fit_tasks) != set(tasks)
        fitted_on = ", ".join(flow.fit_tasks) if is_apart else public_name(flow.fit_on)
        measures = {known[name].measure for name in tasks}
        over = "mean over" if len(tasks) > 1 else "on"
        measure = f"{measures.pop() if len(measures) == 1 else 'Score'}, x100, {over} {', '.join(tasks)}"
        about: dict[str, Any] = {"fitted_on": fitted_on, "measure": measure}
        about["sizes"] = {name: task.size for name, task in known.items()}
        about["measures"] = {name: task.measure for name, task in known.items()}
        about["teachers"] = {i: block.title for i, block in enumerate(self.config.teachers) if not block.is_members}
        encoder, part = self.config.encoder, "vectors" if self.config.encoder.static else "layers"
        about["base_name"] = f"its {part} before training" if encoder.is_cut or encoder.static else ORIGINAL
        return ScoreTable(rows, tasks, main, labels, **about), headline, on_dev

    def _scored(self) -> Iterator[tuple[Row, Outcomes]]:
        evaluation, main = self.evaluation, self.config.encoder.pool_layers
        self.begin("lexical baselines")
        for name, scores in evaluation.score_baselines().items():
            yield Row(name, "baseline", 0, None, 0, scores.metrics), scores.outcomes
        yield from self._grid_models()
        for recipe in dict.fromkeys(model.recipe for model in self.models):
            for model in (model for model in self.models if model.recipe == recipe):
                self.begin(recipe)
                for layers in model.poolings:
                    scores = evaluation.score(self.embeddings(model, layers))
                    row = Row(recipe, model.kind, model.index, None, layers, scores.metrics, model.left_out)
                    yield row, scores.outcomes
            if (embeddings := self._combined(recipe)) is not None:
                scores = evaluation.score(embeddings)
                yield Row(recipe, "ensemble", 0, None, main, scores.metrics), scores.outcomes

    def _grid_models(self) -> Iterator[tuple[Row, Outcomes]]:
        """Yield the grid models; they have only a dev score."""
        for grid in self.facts.grids:
            task = self.evaluation.tasks[grid["task"]]
            for bound in grid["bounds"]:
                for index, value in enumerate(bound["scores"]):
                    metrics = {task.main: value, **({"pairs": task.task.pairs} if task.kind == "pairs" else {})}
                    about = (grid["recipe"], "grid", index, bound["lower_bound"], self.config.encoder.pool_layers)
                    yield Row(*about, {grid["task"]: metrics}), {}

    def _combined(self, recipe: str) -> Embeddings | None:
        """Return an ensemble's embeddings; None if teachers were not combined, or a single teacher is its own mean."""
        members = [model for model in self.models_of(recipe) if model.kind == "member"]
        if members and recipe != TEACHERS:
            return mean_embeddings([self.embeddings(member) for member in members])
        together = self.facts.together
        if not members or together is None or (len(members) == 1 and self.meta(together.name)["kept"] == 1):
            return None
        return load_embeddings(self.storage.fetch(together.name), self.config.encoder.pool_layers)

    def _resampled(
        self, scores: ScoreTable, outcomes: Mapping[Group, Sequence[Outcomes]]
    ) -> tuple[Draws, dict[str, Draws]]:
        """Return resampled headline scores of each group's mean and best model, the teachers and the exported model.

        Of the last two, also those on each of several tasks.
        """
        single: dict[Compared, list[Outcomes]] = {}
        verdict: dict[Compared, list[Outcomes]] = {}
        for group, models in outcomes.items():
            for row, of_row in zip(scores.rows_of(group), models):
                this = (*group, row.index)
                if row is scores.exported or group == (TEACHERS, "member"):
                    verdict[this] = [of_row]
                if this in verdict or this == scores.best(group):
                    single[this] = [of_row]
        draw = partial(resample, self.evaluation, seed=derive_seed(self.config.seed, "bootstrap"))
        several = {this: of_row for this, of_row in single.items() if len(outcomes[this[:2]]) > 1}
        draws = draw({**{(*group, "mean"): models for group, models in outcomes.items()}, **several}, scores.tasks)
        draws |= {this: draws[(*this[:2], "mean")] for this in single if this not in several}
        apart = scores.tasks if len(scores.tasks) > 1 and len(verdict) > 1 else ()
        return draws, {task: draw(verdict, [task]) for task in apart}

    # -- the exported model ------------------------------------------------------------------------------------------

    @cached_property
    def choice(self) -> Choice:
        config, (scores, _, outcomes) = self.config, self._scores
        dev, per_task = config.evaluation.dev, config.flow.per_task

        def interval_on_dev(a: EvaluatedModel, b: EvaluatedModel) -> tuple[float, float] | None:
            models = {place: [outcomes[m.recipe, m.kind, m.index]] for place, m in enumerate((a, b))}
            draws = resample(self.evaluation, models, [dev], seed=derive_seed(config.seed, "bootstrap"))
            return interval(draws[0] - draws[1])

        return choose(scores, self.models, config.recipes, config.export, dev, per_task, interval_on_dev)

    @cached_property
    def base_model(self) -> NativeModel:
        """The encoder before any training."""
        return self.load(next(model for model in self.models if model.recipe == BASE))

    @property
    def caveat(self) -> str:
        """What the scores leave out about the exported model, as sentences; empty if nothing."""
        if not self.config.encoder.vocabulary:
            return ""
        only = "The exported model has only the tokens of its corpus, and scores less on text that needs others."
        return f"Scores are those of the full vocabulary. {only}"

    @cached_property
    def exported_model(self) -> NativeModel:
        """The chosen model, with the vocabulary that it is exported with."""
        model = self.load(self.choice.model)
        if not self.config.encoder.vocabulary:
            return model
        own, before = Tokenizer(model.tokenizer, model.max_length, self.prompts), model.parameters
        tables = [SentenceTable(self.storage.fetch(name)) for name in corpora(self.config, self.job.recipes)]
        used = set[int]().union(*(used_tokens(table, own) for table in tables))
        model = replace(model, tokenizer=cut(model.encoder, model.tokenizer, used))
        counts = f"{len(own.pretrained):,} tokens become {len(model.tokenizer):,}"
        self.say(f"vocabulary: {counts}, {size(4 * before)} become {size(4 * model.parameters)}")
        for name, task in self.evaluation.tasks.items():
            if (share := missing_share(own, model.tokenizer, task.sentences)) > 0.1:
                self.say(f"warning: {share:.0%} of the tokens of {name} are gone, so the export scores less there")
        return model

    def load(self, model: EvaluatedModel) -> NativeModel:
        """Load a model, with its calibration at the headline pooling."""
        calibration = None
        if parse_recipe(model.recipe).calibration:
            place = self.storage.fetch(model.embeddings.name) / f"layers-{self.config.encoder.pool_layers}"
            calibration = load_calibration(place)
        if model.weights:
            self.ensure(model.weights)
        start = load_start(self.config.encoder, model.weights and self.storage.fetch(model.weights.name))
        for files in () if model.weights else self.job.watched["encoder"]:
            files.check()
        encoder = self.config.encoder
        return NativeModel(*start, encoder.pool_layers, encoder.max_length, calibration=calibration)

    @cached_property
    def costs(self) -> dict[Compared, dict[str, Any]]:
        """`parameters` of the chosen model and the teachers, and their `speed` as multiples of it; None if unknown."""
        own, speeds = self.choice.model, self.meta(SPEEDS)
        one = {"ratio": 1.0, "low": 1.0, "high": 1.0}
        parameters = self.exported_model.parameters
        found = {(own.recipe, own.kind, own.index): {"parameters": parameters, "speed": one if speeds else None}}
        for index in range(len(self.config.teachers)):
            meta = self.meta(f"{TEACHERS}/embeddings/{index:02d}")
            about = {"parameters": meta.get("parameters"), "speed": speeds.get(f"teacher {index}")}
            found[TEACHERS, "member", index] = about
        return found

    @cached_property
    def prompts(self) -> Prompts:
        """Prompts of the run's own models, by role."""
        return self.job.prompts

    @cached_property
    def speed(self) -> float:
        """Sentences per second that the chosen model embeds in this process."""
        sentences = with_prompts(self.evaluation.sentences, self.evaluation.roles, self.prompts)
        timed = sentences[:: max(len(sentences) // _TIMED, 1)]  # evenly spread, so lengths are typical
        began = time.monotonic()
        self.exported_model.embed(timed)
        return len(timed) / (time.monotonic() - began)

    @cached_property
    def pair_comparison(self) -> PairComparison | None:
        """The first headline task with graded pairs, or None."""
        name = next((task for task in self.scores.tasks if self.evaluation.tasks[task].kind == "pairs"), None)
        if name is None:
            return None
        base = next(model for model in self.models if model.recipe == BASE)
        task, models = self.evaluation.tasks[name], (base, self.choice.model)
        before_P, after_P = (self.evaluation.outcome(self.embeddings(model), name) for model in models)
        return PairComparison(name, self.choice.title, task.first, task.second, task.gold, before_P, after_P)

    # -- artefacts of the stages -------------------------------------------------------------------------------------

    def meta(self, name: str) -> Mapping[str, Any]:
        """Return the manifest's metadata of an artefact; empty if it does not exist."""
        entry = self.storage.entry(name)
        return entry.meta if entry else {}

    def sample_sentences(self) -> list[str]:
        """Return up to 1,000 consecutive corpus sentences; with fewer than 20, the tasks' sentences."""
        has_corpus = self.job.needs_corpus and self.storage.entry("corpus") is not None
        table = SentenceTable(self.storage.fetch("corpus")) if has_corpus else ()
        count = self.meta("corpus")["report"]["kept"] if has_corpus else 0  # without the queries, which come last
        if count < _FEWEST_SENTENCES:
            return list(dict.fromkeys(self.evaluation.sentences))
        first = int(np.random.default_rng(self.config.seed).integers(max(count - MOST_SENTENCES, 0) + 1))
        rows = table.rows(first, min(first + MOST_SENTENCES, count), ("sentence",))
        return rows.column("sentence").to_pylist()


def versions() -> dict[str, str]:
    """Return the versions of packages that affect a run's numbers."""
    others = {name: importlib.metadata.version(name) for name in _PACKAGES if find_spec(name)}
    return {"raysed": __version__, **others}


def public_name(path: str) -> str:
    """Return a source's public name: only the last part of a local path."""
    return Path(path).name if Path(path).is_absolute() or Path(path).exists() else path
