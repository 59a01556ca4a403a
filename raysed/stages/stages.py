"""The stages of a run, one method each; pipeline.py has their order.

Each reads and writes the run directory, and does nothing where the manifest says that it is done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raysed.cluster.autoscaling import gather
from raysed.cluster.forks import are_forked
from raysed.cluster.need import Need
from raysed.cluster.resources import (
    Cluster,
    Share,
    current_cluster,
    plan_learners,
    plan_members,
    plan_rewriters,
    plan_teachers,
    uses_gpu,
    waste_of_members,
)
from raysed.cluster.usage import measured
from raysed.cluster.versions import check_versions
from raysed.config import stable_hash
from raysed.data.pair_table import write_pairs
from raysed.data.pairs import usable
from raysed.data.tokens import LengthReport, tokenize
from raysed.errors import RunFailed, UserError
from raysed.model.combination import Combination
from raysed.model.encoder import load_start_tokenizer
from raysed.model.shape import shape_of
from raysed.model.static_start import write_static
from raysed.model.views import weights_bytes
from raysed.plan.artefacts import Calibration, Embedding, Facts, Learner, Member, load_calibrated, plan_node
from raysed.plan.check import Job, check_tokenizer
from raysed.plan.lineage import Lineage, on_base
from raysed.plan.size import known_rows, largest_need, need_of_learner, plan_run, workers_for
from raysed.recipe import BASE, SED, TEACHERS, Recipe, member_nodes, node_of, parse_recipe
from raysed.registry import stages
from raysed.score.tasks import comparable, main_score, mean_embeddings, score_by
from raysed.stages import members, probing
from raysed.stages.corpus import too_little, write_sentence_table
from raysed.stages.frozen import calibrate_all, embed_all
from raysed.stages.learner import distill
from raysed.stages.rewriting import rewrite
from raysed.stages.teacher_mean import TeacherPlan, write_targets
from raysed.stages.teachers import COMBINATION, AskedTeacher, TaughtTable, combine, embed_corpus, embed_sentences
from raysed.store.progress import tell
from raysed.store.status import read_timings
from raysed.store.storage import Entry, Storage

log = logging.getLogger(__name__)

ENCODER_START = "encoder/start"
"""Tokenizer and vectors that a static learner starts from."""


@dataclass
class Stages:
    """The stages of one run; what they hand on lies in the run directory, and is read from there.

    In memory is only what no artefact tells: which artefacts this run has accepted so far (`lineage`), and what could
    not be made; and, for the report alone, what `probe` computes from its artefacts.

    Attributes:
        job: the checked configuration.
        storage: the run directory.
        say: shows a line to the user.
        left_out: why members and calibrations are missing, by name.
        transfer: scores of transfer tasks, see `probing.probe`.
        qnli: AUC by model, likewise.
        together: artefact of what the teachers from outside say as one, where they were combined and scored.
        choices: what was chosen of the teachers on the dev task, and with which scores, in a line each.
    """

    job: Job
    storage: Storage
    say: Callable[[str], None]
    left_out: dict[str, str] = field(default_factory=dict)
    transfer: list[dict[str, Any]] = field(default_factory=list)
    qnli: dict[str, float] = field(default_factory=dict)
    together: str | None = None
    choices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.job.config
        self.config, self.lineage = config, Lineage(self.job)
        self.shape = shape_of(config.encoder)
        self.cluster, self._is_gathered = current_cluster(), False
        self.gpu = uses_gpu(config, self.cluster)
        if not self.cluster.autoscaling:
            self.gather_cluster()

    def gather_cluster(self) -> None:
        """Waits for the machines that can be used, where more may come, and refuses what fits on none of them."""
        if self._is_gathered:
            return
        nodes = [node for depth in member_nodes(self.job.recipes) for node in depth]
        learners = self.config.sed.learners * len(self._distilling())
        workers = max((workers_for(node, self.config.members.count, self.config) for node in nodes), default=1)
        self.cluster = gather(self.config, self._need(nodes), learners, self.say, workers)
        self.gpu = uses_gpu(self.config, self.cluster)  # GPUs may have come
        self._is_gathered = True
        check_versions(self.job.hub_models)
        share = plan_members(self.cluster, self.config, workers, self._need(nodes))
        self._check_disk()
        self.say(f"cluster: {self.cluster}; members: {share}")
        if self.storage.is_local and len(self.cluster.nodes) > 1:
            log.warning("storage %s must be a directory that all nodes share; otherwise use a URI", self.storage)

    def _need(self, nodes: Sequence[str]) -> Need:
        return largest_need(nodes, self.config, self.shape, gpu=self.gpu, kind=self.cluster.gpu)

    def _learners_need(self) -> Need:
        return need_of_learner(self.config, self.shape, gpu=self.gpu, kind=self.cluster.gpu)

    # encoder, corpus and tokens

    def make_encoder(self) -> None:
        """Loads the encoder, or makes a static one: a table of one vector per token."""
        config, start = self.config, None
        if config.encoder.static:
            start, depends = ENCODER_START, {"encoder": self.job.inputs["encoder"]}
            self.lineage.encoder = self._made("encoder", start, depends, lambda path, _: write_static(config, path))
        self.tokenizer = load_start_tokenizer(config.encoder, self.storage, start)
        check_tokenizer(self.job.recipes, self.tokenizer, config.encoder)
        self.tokens = tokenize(self.tokenizer, self.job.evaluation.sentences, config.encoder.max_length)

    def write_corpus(self) -> None:
        """Cleans, draws and tokenises the corpus into the sentence table."""
        if not self.job.needs_corpus:
            return
        entry = self._made("corpus", "corpus", self.lineage.corpus(), self._write_corpus)
        self.say(f"corpus: {entry.meta['summary']}")
        self.say(f"tokens: {entry.meta['length_summary']}")
        if self._is_gathered:  # else it is checked when it is
            self._check_disk()
        for warning in too_little(self.config, self.job.recipes, entry.meta["lengths"]["sentences"]):
            log.warning(warning)

    def _write_corpus(self, path: Path, meta: dict[str, Any]) -> None:
        meta |= write_sentence_table(self.config, self.tokenizer, path)

    def write_pairs(self) -> None:
        """Tokenises the labelled sentence pairs into one table per kind of label."""
        for kind in self.job.pairs:
            depends = {"encoder": self.job.inputs["encoder"], kind: self.job.inputs[kind]}
            entry = self._made("pairs", f"pairs/{kind}", depends, partial(self._write_pairs, kind))
            self.say(f"{kind} pairs: {entry.meta['summary']}")

    def _write_pairs(self, kind: str, path: Path, meta: dict[str, Any]) -> None:
        pairs = self.job.pairs[kind]
        write_pairs(pairs, self.tokenizer, self.config.encoder.max_length, path)
        meta |= {"summary": pairs.summary(), "pairs": len(pairs)}

    def write_views(self) -> None:
        """Writes the two views of each kind in use as a table that all members share."""
        for kind in self.job.views:
            write = partial(self._write_views, kind)
            entry = self._made("views", f"views/{kind}", self.lineage.views(kind), write)
            self.say(f"{kind} views: {entry.meta['summary']}")
        for recipe in self.job.recipes:
            self._check_views(recipe)

    def _write_views(self, kind: str, path: Path, meta: dict[str, Any]) -> None:
        config, rows, counts = self.config, self.job.views[kind], ""
        if rows is None:
            share = plan_rewriters(self._cluster_now(), config, weights_bytes(kind, config.views, config.encoder))
            made = rewrite(kind, config, self.storage, share, self.lineage.texts(kind))
            rows = usable(made.first, made.second, f"{kind} views", config.views.max_unusable)
            counts = f"; {made.counts}"
        lengths = LengthReport(config.encoder.max_length)
        write_pairs(rows, self.tokenizer, config.encoder.max_length, path, lengths)
        meta |= {"pairs": len(rows), "summary": f"{rows.summary()}{counts}; {lengths}"}

    def _check_views(self, recipe: Recipe) -> None:
        rows = self._rows()
        for stage in recipe.two_view_stages:
            pairs = sum(rows[table] for table in stages()[stage].tables(getattr(self.config, stage)))
            if pairs < 2:
                raise UserError(
                    f"recipe {recipe.text!r}: {stage} needs at least 2 pairs of views, but {pairs} were found"
                )

    def _made(
        self, stage: str, name: str, depends: Mapping[str, Any], write: Callable[[Path, dict[str, Any]], None]
    ) -> Entry:
        """Returns an artefact, which is made where it is not there: `write` fills its directory and its meta data."""
        entry = self.storage.finished(name, depends)
        if entry is None:
            with self._timed(stage):
                meta: dict[str, Any] = {}
                entry = self.storage.commit(name, lambda path: write(path, meta), depends, meta)
        return entry

    def _rows(self) -> dict[str, int]:
        """Sizes of the tables that members learn from, by artefact."""
        names = [*(f"pairs/{kind}" for kind in self.job.pairs), *(f"views/{kind}" for kind in self.job.views)]
        rows = {name: self.storage.entry(name).meta["pairs"] for name in names}
        if self.job.needs_corpus:
            rows["corpus"] = self.storage.entry("corpus").meta["lengths"]["sentences"]
        return rows

    # members and grid

    def train_members(self, nodes: list[str]) -> None:
        """Trains all nodes of one depth in one Tune experiment."""
        planned = {node: self._to_train(node) for node in nodes}
        count = sum(workers_for(node, len(group), self.config) for node, group in planned.items())
        cluster = self._cluster_now()
        share = plan_members(cluster, self.config, count, self._need(nodes))
        if self.config.members.stack == 1 and (waste := waste_of_members(cluster, self.config, share, count)):
            log.warning(waste)
        with self._timed("+".join(nodes)):
            outcome = members.train_members(planned, self.config, self.storage, share, self._rows())
        for node, group in planned.items():
            failures = {m.name: outcome.failed[m.name] for m in group if m.name in outcome.failed}
            self._leave_out(failures)
            if node in outcome.ladders and self._grid(node) is None:
                self._choose_bound(node, group, outcome)
            else:
                self._accept(node, len(group), failures, outcome.user_mistake)
                self.lineage.ensembles[node] = [outcome.finished[m.name] for m in group if m.name in outcome.finished]
                self._leave_out_collapsed(node)
        used = {recipe.ensemble for recipe in self.job.recipes}
        with self._timed("evaluation"):
            self._embed([embedding for node in nodes if node in used for embedding in self.lineage.embeddings(node)])

    def _to_train(self, node: str) -> list[Member]:
        """The members of a node; where a grid was decided before, its losers need no training, be they there or not."""
        grid = self._grid(node)
        return [member for member in self._members(node) if grid is None or member.lower_bound == grid["winner"]]

    def _members(self, node: str) -> list[Member]:
        return plan_node(node, self.config, self.job.inputs, self.lineage.parents(node), self.lineage.base_dev)

    def _grid(self, node: str) -> dict[str, Any] | None:
        """How the lower bound of a node was decided; None where it is not, or where there is nothing to decide."""
        group = self._members(node)
        if group[0].lower_bound is None:
            return None
        choice = self.storage.finished(f"{node}/grid/choice", self.lineage.grid_choice(group))
        return choice and choice.meta["grid"]

    def _choose_bound(self, node: str, group: list[Member], outcome: members.Outcome) -> None:
        """Makes the models of the best lower bound the ensemble, and keeps the decision."""
        complete = self._complete_bounds(node, group, outcome)
        scores = {bound: [entry.meta["dev"] for entry in entries] for bound, entries in complete.items()}
        grid = members.describe_grid(node, scores, outcome.ladders[node], self.config)
        self.storage.commit(
            f"{node}/grid/choice",
            lambda path: (path / "choice.json").write_text(json.dumps(grid, indent=1)),
            self.lineage.grid_choice(group),
            {"grid": grid},
        )
        for member in group:
            if member.name not in outcome.finished:  # stopped on its way
                self.storage.checkpoints(member.name, member.depends).clear()
        self.lineage.ensembles[node] = complete[grid["winner"]]
        self.say(f"{node}: lower bound {grid['winner']:g} wins with {grid['score']:.2f} on {grid['task']}")

    def _complete_bounds(self, node: str, group: list[Member], outcome: members.Outcome) -> dict[float, list[Entry]]:
        """The finished models of every lower bound that has enough of them."""
        finished: dict[float, list[Entry]] = {}
        for member in group:
            if member.name in outcome.finished:
                finished.setdefault(member.lower_bound, []).append(outcome.finished[member.name])
        count = len({member.index for member in group})
        needed = self._needed(count)
        complete = {bound: entries for bound, entries in finished.items() if len(entries) >= needed}
        if not complete:
            failures = {name: why for name, why in outcome.failed.items() if name.startswith(f"{node}/grid/")}
            name, reason = next(iter(failures.items()), (node, "no model was trained to the end"))
            message = f"no lower bound of {node} has the {needed} models it needs; {name}: {reason}"
            raise UserError(message) if outcome.user_mistake else RunFailed(message)
        return complete

    def _leave_out(self, failures: Mapping[str, str]) -> None:
        """Keeps for the report why members failed, and says it."""
        self.left_out |= failures
        for name, reason in failures.items():
            self.say(f"left out: {name}: {reason}")

    def _needed(self, count: int) -> int:
        """How many of so many models must be there: `members.min_members` may be more than a group has."""
        return min(self.config.members.min_members or count, count)

    def _accept(self, node: str, count: int, failures: Mapping[str, str], user_mistake: bool) -> None:
        needed = self._needed(count)
        if count - len(failures) < needed:
            name, reason = next(iter(failures.items()))
            message = (
                f"only {count - len(failures)} of {count} members of {node} could be trained, but {needed} are needed "
                f"(members.min_members); {name}: {reason}"
            )
            raise UserError(message) if user_mistake else RunFailed(message)

    def _leave_out_collapsed(self, node: str) -> None:
        """Members that give one vector to everything are scored and reported, but neither averaged nor continued."""
        entries = self.lineage.ensembles[node]
        collapsed = {entry.name: entry.meta["collapsed"] for entry in entries if "collapsed" in entry.meta}
        self._leave_out(collapsed)
        healthy = len(entries) - len(collapsed)
        needed = self._needed(len(entries)) if self.config.members.min_members else 1
        if healthy < needed and self._is_used(node):
            name, reason = next(iter(collapsed.items()))
            raise UserError(
                f"only {healthy} of {len(entries)} members of {node} have not collapsed, but {needed} are needed; "
                f"{name}: {reason}; try a lower learning rate, and for bsl a momentum near 1 and a predictor"
            )

    def _is_used(self, node: str) -> bool:
        """Whether something is made of a node's members."""
        return any(
            (recipe.distils and recipe.ensemble == node) or recipe.ensemble.startswith(f"{node}-")
            for recipe in self.job.recipes
        )

    # mean and learner

    def ask_teachers(self) -> None:
        """Takes up the teachers from outside, and has them embed the evaluation's sentences."""
        sentences, layers = self.job.evaluation.sentences, self.config.encoder.layers
        for index in self.lineage.teachers():
            job, teacher = self._taken_up(index), self._asked()[index]
            with self._timed("teachers"):
                if not embed_sentences(job.name, job.depends, teacher, sentences, layers, self.storage):
                    self.lineage.unscored.add(job.model)
                    self.say(f"not scored: {teacher.config.title} has no embeddings of the evaluation's sentences")

    def _taken_up(self, index: int) -> Embedding:
        """Makes a teacher an artefact that others can depend on; returns what it is to embed."""
        name, depends = self.lineage.teachers()[index]
        self._made("teachers", name, depends, lambda path, meta: (path / "teacher").touch())
        return self.lineage.asked(index)

    def _asked(self) -> list[AskedTeacher]:
        found = zip(self.config.teachers, self.job.inputs["teachers"], self.job.widths, strict=True)
        return [AskedTeacher(*teacher) for teacher in found]

    def take_up_members(self) -> None:
        """Makes teachers of the run's own members where `teachers` names them; from here on all teachers are there."""
        if not self.config.teachers:
            return
        for index, teacher in enumerate(self.config.teachers):
            if teacher.is_members:
                job = self._taken_up(index)
                self._made(
                    "teachers", job.name, job.depends, partial(self._write_mean, node_of(teacher, self.job.recipes))
                )
        self.lineage.ensembles[TEACHERS] = [self.storage.entry(name) for name, _ in self.lineage.teachers().values()]

    def _write_mean(self, node: str, path: Path, meta: dict[str, Any]) -> None:
        """What the members of an ensemble make of the evaluation's sentences, as one."""
        layers, healthy = self.config.encoder.layers, {entry.name for entry in self.lineage.healthy(node)}
        jobs = [job for job in self.lineage.embeddings(node) if job.model in healthy]
        mean_UD = mean_embeddings([load_calibrated(self.storage, job.name, layers) for job in jobs])
        np.save(path / f"layers-{layers}.npy", mean_UD)
        meta |= {"width": mean_UD.shape[1], "parameters": None, "sentences_per_second": None}

    def combine_teachers(self) -> None:
        """Has the teachers from outside embed the corpus, and makes one target of what they say."""
        recipe = next((recipe for recipe in self._distilling() if recipe.ensemble == TEACHERS), None)
        if recipe is None:
            return
        name, depends = self.lineage.targets(recipe)
        if self.config.combination.chooses_on_dev and self.lineage.unscored:
            setting = "leave_out" if self.config.combination.leave_out else "weights"
            raise UserError(
                f"combination.{setting} is chosen by the dev task, but a file of embeddings lacks its sentences; add "
                f"them to the file, or leave combination.{setting} out"
            )
        if not self.storage.finished(name, depends):
            with self._timed("teachers"):
                outside = [teacher for teacher in self._asked() if not teacher.config.is_members]
                embed_corpus(outside, self.config, self.storage, partial(plan_members, self._cluster_now()))
            start = self.lineage.learners(recipe)[0].start
            share = plan_members(self._cluster_now(), self.config, 1)
            with self._timed("combination"):
                means = self.lineage.means_of_members()
                table = TaughtTable(name, depends, self._asked(), means, self.config, self.storage, start)
                combine(table, self._score_on_dev(), share)
        meta = self.storage.entry(name).meta
        self._say_who_counts(meta.get("trace", []))
        self._say_how_much(meta.get("weights_trace", []))
        if not self.lineage.unscored:
            self.together, needs = self.lineage.together()
            self._made("combination", self.together, needs, partial(self._write_together, name))

    def _score_on_dev(self) -> Callable[[Combination], float]:
        """Of what the combined teachers say; -200 where there is no score."""
        evaluation, dev, layers = self.job.evaluation, self.config.evaluation.dev, self.config.encoder.layers
        names, storage = [job.name for job in self.lineage.embeddings(TEACHERS)], self.storage

        def score(combination: Combination) -> float:
            parts = [load_calibrated(storage, name, layers)[evaluation.rows(dev)] for name in names]
            return comparable(main_score(evaluation.score({dev: combination.target(parts)})[dev]))

        return score

    def _say_who_counts(self, trace: Sequence[tuple[list[int], float]]) -> None:
        """Which teachers `combination.leave_out` has chosen, step by step, and why the others are left out."""
        if not trace:
            return
        titles = [teacher.title for teacher in self.config.teachers]
        steps = [f"{' + '.join(titles[k] for k in chosen)} {score:.1f}" for chosen, score in trace]
        self._say_choice(f"teachers, by {self.config.evaluation.dev}: {'; '.join(steps)}")
        chosen, score = trace[-1]
        reason = f"does not raise the combination of {' + '.join(titles[k] for k in chosen)} ({score:.1f})"
        others = [k for k in range(len(titles)) if k not in chosen]
        self._leave_out({f"{TEACHERS}/members/{k:02d}": f"{titles[k]} {reason}" for k in others})

    def _say_how_much(self, trace: Sequence[tuple[list[float], float]]) -> None:
        """Which weights `combination.weights: dev` has chosen, step by step."""
        if trace:
            steps = [f"{', '.join(f'{weight:g}' for weight in weights)} {score:.1f}" for weights, score in trace]
            self._say_choice(f"weights of the teachers, by {self.config.evaluation.dev}: {'; '.join(steps)}")

    def _say_choice(self, line: str) -> None:
        self.choices.append(line)
        self.say(line)

    def _write_together(self, targets: str, path: Path, meta: dict[str, Any]) -> None:
        """What the combined teachers make of the evaluation's sentences."""
        layers = self.config.encoder.layers
        combination = Combination.load(self.storage.fetch(targets) / COMBINATION)
        jobs = self.lineage.embeddings(TEACHERS)
        parts = [load_calibrated(self.storage, job.name, layers) for job in jobs]
        np.save(path / f"layers-{layers}.npy", combination.target(parts))
        meta["kept"] = combination.kept

    def average_teachers(self) -> None:
        """Streams the means of the ensembles' embeddings into target tables, all in one pass over the corpus."""
        ensembles = {}
        for node in self._averaged():
            name, needs = self.lineage.targets(parse_recipe(f"{node}-{SED}"))
            if not self.storage.finished(name, needs):
                ensembles[name] = [entry.name for entry in self.lineage.healthy(node)], needs
        if not ensembles:
            return
        first = [self.storage.fetch(names[0]) for names, _ in ensembles.values()]
        sizes = [sum(p.stat().st_size for p in path.iterdir()) for path in first]
        count = sum(len(names) for names, _ in ensembles.values())
        share, groups = plan_teachers(self._cluster_now(), self.config, count, max(sizes))
        res = self.config.resources
        plan = TeacherPlan(
            share,
            groups,
            res.encode_token_budget,
            res.silence_seconds,
            self.config.encoder.trust_remote_code,
            res.encode_precision,
            self.config.sed.target_precision,
        )
        with self._timed("+".join(ensembles)):
            write_targets(ensembles, self.storage, plan)

    def _averaged(self) -> list[str]:
        """The ensembles of which something is to be made that needs their mean."""
        nodes = []
        for recipe in self._distilling():
            if recipe.members and self._missing(self.lineage.learners(recipe)):
                nodes.append(recipe.ensemble)
            elif recipe.ensemble == TEACHERS and not self.storage.finished(*self.lineage.targets(recipe)):
                nodes += [node_of(teacher, self.job.recipes) for teacher in self.config.teachers if teacher.is_members]
        return list(dict.fromkeys(nodes))

    def distil(self) -> None:
        """Trains all learners that are not there, as many at a time as there is room for."""
        recipes = {recipe.uncalibrated: self.lineage.learners(recipe) for recipe in self._distilling()}
        missing = {text: learners for text, learners in recipes.items() if self._missing(learners)}
        if missing:
            learners = self._missing([learner for group in missing.values() for learner in group])
            need = self._learners_need()
            count = sum(map(len, recipes.values()))
            share, at_once = plan_learners(self._cluster_now(), self.config, count, need)
            with self._timed("+".join(missing)):
                distill(learners, self.config, self.storage, share, at_once)
            for learner in self._missing(learners):
                raise RunFailed(f"{learner.name} ended without a result; see its log at {self.storage.uri('train')}")
        with self._timed("evaluation"):
            self._embed([embedding for text in recipes for embedding in self.lineage.embeddings(text)])

    def _distilling(self) -> list[Recipe]:
        """The recipes that distil, one of those that differ in their calibration only."""
        return list({recipe.uncalibrated: recipe for recipe in self.job.recipes if recipe.distils}.values())

    def _missing(self, learners: Sequence[Learner]) -> list[Learner]:
        return [learner for learner in learners if not self.storage.finished(learner.name, learner.depends)]

    # calibration

    def calibrate_base(self) -> None:
        """Fits the calibrations on the base, before anything is trained: what fails there would fail later, too."""
        jobs = [job for recipe in self.lineage.calibrations_of_base() for job in self.lineage.calibrations(recipe)]
        failures = self._calibrate(jobs)  # together, so that their text is embedded once
        asked = {recipe.calibration for recipe in self.job.recipes}
        for job in jobs:
            if job.name in failures and job.stages in asked:
                raise UserError(f"{job.name}: {failures[job.name]}")

    def calibrate(self) -> None:
        """Fits the recipes' calibrations on their models, each on its own frozen embeddings.

        A model whose calibration fails is left out and stays without it: nothing that was trained is lost by it.
        """
        self._calibrate([job for recipe in self.job.recipes if recipe.calibration for job in self._of_models(recipe)])

    def _of_models(self, recipe: Recipe) -> list[Calibration]:
        return self.lineage.calibrations(recipe) if recipe.ensemble != BASE else []

    def _calibrate(self, jobs: Sequence[Calibration]) -> dict[str, str]:
        """Fits them, and leaves out what could not be fitted; returns which have none at the main pooling, and why."""
        with self._timed("calibration"):
            share = self._frozen_share(len({job.embedding.name for job in jobs}))
            failures = calibrate_all(jobs, self.job.evaluation, self.config, self.storage, share)
        for job in jobs:
            poolings = job.poolings
            if job.name in failures:
                self.lineage.unfitted[job.name] = set(poolings)
                self._leave_out({job.name: failures[job.name]})
            elif failed := self.storage.entry(job.name).meta.get("failed"):
                self.lineage.unfitted[job.name] = {layers for layers in poolings if str(layers) in failed}
                words = [f"no fit with {layers} pooled layers: {reason}" for layers, reason in failed.items()]
                self._leave_out({job.name: "; ".join(words)})
        return failures

    # further tasks

    def probe(self) -> None:
        """Scores models of every recipe on transfer tasks and QNLI, where there are some."""
        if self.job.further:
            asked = {on_base(recipe) for recipe in self.job.recipes} | {recipe.text for recipe in self.job.recipes}
            models = [
                model for model in self.lineage.models() if model.kind != "base" or model.recipe in {BASE, *asked}
            ]
            with self._timed("transfer"):
                self.transfer, self.qnli = probing.probe(
                    self.job.further, models, self._probed_teachers(), self.config, self.storage, self._frozen_share(1)
                )

    def _probed_teachers(self) -> dict[str | None, Embedding]:
        """What each teacher from outside makes of the further sentences; files of embeddings may not have them."""
        sentences, identity = self.job.further.sentences, self.job.further.identity
        layers = self.config.evaluation.transfer.layers or self.config.encoder.layers
        found: dict[str | None, Embedding] = {}
        for index, (name, depends) in self.lineage.teachers().items():
            teacher = self._asked()[index]
            needs = {"teacher": stable_hash(depends), "sentences": identity, "layers": layers}
            job = Embedding(f"{TEACHERS}/probes/{index:02d}", name, (layers,), needs, index)
            if teacher.config.is_members:
                continue  # they are scored as members
            if embed_sentences(job.name, job.depends, teacher, sentences, layers, self.storage):
                found[name] = job
        return found

    # helpers

    def _cluster_now(self) -> Cluster:
        """What to plan a stage for: lost nodes of a cluster without an autoscaler may never come back."""
        if self.cluster.autoscaling:
            return self.cluster
        now = current_cluster()
        is_enough = now.largest_cpus >= 1 and (now.gpus > 0 or not self.gpu)
        return now if is_enough else self.cluster  # else the stage waits, and says for what

    def _frozen_share(self, count: int) -> Share | None:
        """Of a task on frozen encoders; None: no tasks, this process does it.

        Args:
            count: of the tasks, also of those that are done: one that is made again gets as many threads as before.
        """
        if self.gpu or len(self.cluster.nodes) > 1:
            return plan_members(self._cluster_now(), self.config, self.config.members.count)
        if are_forked() and count > 1:
            return plan_members(self._cluster_now(), self.config, count)
        return None  # it is as good as any, and has imported everything

    def embed_base(self) -> None:
        """Embeds the evaluation's sentences by the untouched encoder: every run shows what it started from."""
        with self._timed("evaluation"):
            (base,) = self.lineage.embeddings(BASE)
            self._embed([base])
        if dev := self.config.evaluation.dev:
            evaluation = self.job.evaluation
            embeddings_UD = load_calibrated(self.storage, base.name, self.config.encoder.layers)
            scores = evaluation.score({dev: embeddings_UD[evaluation.rows(dev)]})[dev]
            self.lineage.base_dev = {key: comparable(score_by(scores, key)) for key in ("spearman", "pearson")}

    def _embed(self, jobs: list[Embedding]) -> None:
        embed_all(jobs, self.tokens, self.config, self.storage, self._frozen_share(len(jobs)))

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Says that a stage begins; adds what it takes to what earlier attempts took."""
        tell(stage=stage)
        usages = read_timings(self.storage)
        try:
            with measured(usages.setdefault(stage, {})):
                yield
        finally:
            self.storage.write_text("timings.json", json.dumps(usages, indent=1))

    def facts(self) -> Facts:
        """Returns what the report and the model card say apart from scores."""
        corpus = self.storage.entry("corpus")
        nodes = [node for depth in member_nodes(self.job.recipes) for node in depth]
        return Facts(
            cluster=str(self.cluster),
            corpus=corpus.meta if corpus else {},
            left_out=self.left_out,
            members={node: [entry.name for entry in self.lineage.ensembles[node]] for node in nodes},
            grids=[grid for node in nodes if (grid := self._grid(node))],
            transfer=self.transfer,
            qnli=self.qnli,
            pairs={kind: pairs.summary() for kind, pairs in self.job.pairs.items()},
            views={kind: self.storage.entry(f"views/{kind}").meta["summary"] for kind in self.job.views},
            together=self.together,
            choices=self.choices,
            shares_space_of=self._shares_space_of(),
        )

    def _shares_space_of(self) -> str | None:
        """The name of the only teacher where learners give its own vectors: neither centred nor folded."""
        recipe = next((recipe for recipe in self._distilling() if recipe.ensemble == TEACHERS), None)
        if recipe is None or self.config.sed.target != "mean" or self.config.sed.head == "fold":
            return None
        targets = self.storage.entry(self.lineage.targets(recipe)[0])
        return self.config.teachers[0].title if targets.meta.get("shared") else None

    def _check_disk(self) -> None:
        """For the cluster that is there; it also refuses what fits on no node."""
        rows = known_rows(self.job)
        if self.job.needs_corpus and (corpus := self.storage.finished("corpus", self.lineage.corpus())):
            rows["corpus"] = corpus.meta["lengths"]["sentences"]
        plan = plan_run(self.config, self.job.recipes, self.shape, rows, self.cluster, widths=self.job.widths)
        needed, free = sum(plan.storage.values()), self.storage.free_bytes()
        if free is not None and free < needed:
            most = max(plan.storage, key=plan.storage.__getitem__)
            raise UserError(
                f"storage: {self.storage} has {free / 1e9:.1f} GB free, but this run needs about {needed / 1e9:.1f} "
                f"GB, {plan.storage[most] / 1e9:.1f} of them for {most}; free some space, or choose another --storage"
            )
