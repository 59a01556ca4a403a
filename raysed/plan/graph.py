"""Build the graph of everything that a run makes from its checked configuration."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from raysed.cluster.execute import Engine, How
from raysed.cluster.resources import Cluster
from raysed.config import CorpusConfig, derive_seed, dump_config, fitted_on
from raysed.data.candidates import candidates_summary
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.graph import Artefact, Candidates, ExternalInput, Graph, Input, Needs, OutcomeMember
from raysed.make import models, scores, targets, text
from raysed.make.candidates import candidates
from raysed.make.fidelity import learner_fidelity
from raysed.make.work import Sentences
from raysed.model.int8 import int8_summary
from raysed.model.pretrained import load_tokenizer
from raysed.model.prompts import learner_prompts, with_prompts
from raysed.model.shape import shape_of
from raysed.model.teacher import Teacher
from raysed.model.views import weights_bytes
from raysed.plan.artefacts import (
    COMBINED_EMBEDDINGS,
    TEACHER_SCORES,
    TEACHER_SELECTION,
    ScoredModel,
    outcome_of,
    soup_of,
    teachers_left_out,
)
from raysed.plan.check import Job
from raysed.plan.requirements import CORPUS, MEMBERS_CORPUS, corpora, models_of, trainings_of, trains_on_corpus
from raysed.plan.size import known_rows, largest_need, plan_run
from raysed.recipe import BASE, SED, TEACHERS, WHITEN, Recipe, last_stage, member_nodes, node_of, parse_recipe
from raysed.registry import stages
from raysed.score.ensemble import by_title, summary_lines
from raysed.score.tasks import DevTask, Evaluation
from raysed.store.storage import Entry
from raysed.train.memory import embedding_need
from raysed.train.stage import BEST_ON_DEV

log = logging.getLogger(__name__)

_START = "encoder/start"  # tokenizer and vectors that a static learner starts from
_BASE_EMBEDDINGS = f"{BASE}/embeddings/00"
_TARGETS_OF_TEACHERS = f"{TEACHERS}-{SED}/targets"
_CANDIDATES = f"{TEACHERS}-{SED}/candidates"


class Plan:
    """All that a run makes.

    Attributes:
        scored: models that may be scored, by recipe.
        centres: by ensemble, the artefact that has its mean vector over the corpus, in a file `MEAN`.
    """

    def __init__(self, job: Job):
        config = job.config
        self.job, self.config, self.shape = job, config, shape_of(config.encoder)
        self.artefacts: dict[str, Artefact] = {}
        self.scored: dict[str, list[ScoredModel]] = defaultdict(list)
        self.centres: dict[str, str] = {}
        self._encoder = ExternalInput(job.inputs["encoder"], config.encoder, job.watched["encoder"])
        self._start = _START if config.encoder.static else None
        self._learners_start = OutcomeMember(outcome_of("mlm"), 0) if config.sed.start == "mlm" else self._start
        self._poolings = tuple(dict.fromkeys([*config.evaluation.layers, config.encoder.layers]))
        self._prepare_evaluation()
        # One of each set of recipes that differ only in calibration.
        self._distilling = list({recipe.uncalibrated: recipe for recipe in job.recipes if recipe.distils}.values())
        of_members = ((index, teacher.config) for index, teacher in enumerate(job.teachers) if teacher.is_made_by_run)
        self._teachers_here = {index: node_of(teacher, job.recipes) for index, teacher in of_members}
        self._is_combined = any(recipe.ensemble == TEACHERS for recipe in self._distilling)
        means = [recipe.ensemble for recipe in self._distilling if recipe.members]
        means += self._teachers_here.values() if self._is_combined else []
        self._targets = {node: f"{node}-{SED}/targets" for node in means}
        self._make_inputs()
        self._embed(BASE, "base", 0, self._start, "the untouched encoder")
        for index, teacher in enumerate(job.teachers):  # members of this run follow in `_make_targets`
            if index in job.unscored:
                log.info("not scored: %s has no embeddings for the evaluation's sentences", teacher.title)
            elif not teacher.is_made_by_run:
                inputs = {
                    "teacher": ExternalInput(teacher.identity, teacher, [teacher.watched]),
                    "sentences": self._sentences,
                }
                self._add_teacher(index, scores.teacher_embeddings, inputs)
        for recipe in self._calibrations_of_base():
            self._calibrate(recipe, may_fail=recipe.calibration not in {r.calibration for r in job.recipes})
        for depth in member_nodes(job.recipes):
            self._make_members(depth)
        self._make_targets()
        self._make_learners()
        for recipe in job.recipes:
            if recipe.calibration and recipe.ensemble != BASE:
                self._calibrate(recipe, may_fail=True)
        self.graph = Graph(list(self.artefacts.values()))

    def _prepare_evaluation(self) -> None:
        """Tokenise the sentences of all tasks, and those of the dev task."""
        config, evaluation = self.config, self.job.evaluation
        self._prompts = learner_prompts(config.search, config.encoder)
        tokens, self._dev = None, None
        if not self._start:  # otherwise the run makes the tokenizer
            asked = with_prompts(evaluation.sentences, evaluation.roles, self._prompts)
            tokens = tokenize(load_tokenizer(config.encoder), asked, config.encoder.max_length)
        sentences = Sentences(evaluation.sentences, tokens, evaluation, self._prompts)
        prompts = self._prompts if any(role in self._prompts for role in evaluation.roles) else {}
        # Rows of embeddings follow the order of the tasks, which dicts do not tell.
        self._sentences = ExternalInput([self.job.inputs["tasks"], list(evaluation.tasks), prompts], sentences)
        if config.evaluation.dev is not None:
            own = Evaluation([evaluation.tasks[config.evaluation.dev]])
            rows = evaluation.rows_of(own)
            dev = DevTask(own, tokens and tokens.take(rows), rows, config.encoder.layers, self._prompts)
            self._dev = ExternalInput(dev.identity, dev)

    def _add(
        self,
        name: str,
        title: str,
        make: Callable,
        stage: str,
        inputs: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        untracked: Mapping[str, Any] | None = None,
        **needs: Any,
    ) -> str:
        self.artefacts[name] = Artefact(
            name, title, make, Needs(stage, **needs), inputs, settings or {}, untracked or {}
        )
        return name

    # training data

    def _make_inputs(self) -> None:
        job, corpus = self.job, {"corpus": self.config.corpus, "seed": self.config.seed}
        inputs = {
            "encoder": self._encoder,
            "source": ExternalInput(job.inputs["corpus"], watched=job.watched["corpus"]),
        }
        if self._start:
            self._add(_START, "encoder", text.static_start, "encoder", {**inputs, "start": None}, corpus)
        if job.needs_corpus:
            inputs["start"] = self._start
            for name, block in corpora(self.config, job.recipes).items():
                settings, say = {**corpus, "corpus": block}, partial(self._say_corpus, name)
                if self.config.search.enabled:
                    settings |= {"search": self.config.search.query_settings(), "prompts": self._prompts}
                self._add(name, name.replace("-", " "), text.sentence_table, "corpus", inputs, settings, say=say)
        for kind, rows in job.pairs.items():
            inputs = {"encoder": self._encoder, "rows": ExternalInput(job.inputs[kind], rows)}
            title, say = f"labelled pairs ({kind})", partial(_say_summary, f"{kind} pairs")
            self._add(f"pairs/{kind}", title, text.labelled_pairs, "pairs", inputs, say=say)
        for kind, rows in job.views.items():
            self._make_views(kind, rows)

    def _make_views(self, kind: str, rows: Any) -> None:
        config, name = self.config, f"views/{kind}"
        source: Input = ExternalInput(self.job.inputs[name], rows, self.job.watched[name])
        if rows is None:
            options = {
                "worker": text.ViewBlocks,
                "rows": lambda rows: 512,
                "weights": partial(weights_bytes, kind, config.views, config.encoder),
            }
            inputs = {"corpus": "corpus", "source": source, "encoder": self._encoder}
            settings = {"kind": kind, "seed": derive_seed(config.seed, "views", kind)}
            kept = inputs, settings, {"views": ExternalInput(None, config.views)}
            title, about = f"rewritten sentences ({kind})", {"by": "blocks", "group": name, "is_intermediate": True}
            source = self._add(f"{name}.text", title, text.rewritten_views, "views", *kept, **about, options=options)
        inputs = {"encoder": self._encoder, "rows": source}
        settings = {"kind": kind, "max_unusable": config.views.max_unusable}
        say = partial(_say_summary, f"{kind} views")
        self._add(name, f"views ({kind})", text.view_table, "views", inputs, settings, say=say)

    def _say_corpus(self, name: str, entry: Entry) -> Iterator[str]:
        yield f"{name.replace('-', ' ')}: {entry.meta['summary']}"
        yield f"tokens: {entry.meta['length_summary']}"
        if name != CORPUS:
            return
        is_trained_on = any(trains_on_corpus(recipe, self.config) for recipe in self.job.recipes)
        sed = self.config.sed if self._distilling and not self.config.search.enabled else None
        for warning in text.small_corpus(entry.meta["report"]["kept"], is_trained_on, sed):
            log.warning(warning)

    # existing models

    def _embed(self, recipe: str, kind: str, index: int, model: Input | None, what: str) -> None:
        inputs = {"encoder": self._encoder, "model": model, "sentences": self._sentences}
        name, kept = f"{recipe}/embeddings/{index:02d}", (inputs, {"layers": self._poolings})
        self._add(name, f"embeddings by {what}", scores.embeddings, "evaluation", *kept, by="task")
        self.scored[recipe].append(ScoredModel(recipe, kind, index, name, self._poolings, model=model))

    def _add_teacher(self, index: int, make: Callable, inputs: Mapping[str, Input]) -> None:
        layers, name = self.config.encoder.layers, f"{TEACHERS}/embeddings/{index:02d}"
        title = f"embeddings by {self.job.teachers[index].title}"
        self._add(name, title, make, "teachers", inputs, {"layers": layers})
        label = f"{TEACHERS}/members/{index:02d}"
        scored = ScoredModel(TEACHERS, "member", index, name, (layers,), model=ExternalInput(label, label))
        self.scored[TEACHERS].append(scored)

    # members

    def _make_members(self, nodes: Sequence[str]) -> None:
        """Add all nodes of one depth, which train in one experiment."""
        stage, tried, config = "+".join(nodes), {}, self.config
        for node in nodes:
            bounds = config.sts.lower_bounds if last_stage(node).is_grid else [None]
            places = [(bound, index) for bound in bounds for index in range(models_of(node, config))]
            tried[node] = {self._add_member(node, index, bound, stage): bound for bound, index in places}
        for node, names in tried.items():
            inputs: dict[str, Any] = {"members": Candidates(tuple(names))}
            settings = {"node": node, "min_members": config.members.min_members}
            if last_stage(node).is_grid:
                make, title, inputs["dev"] = models.grid_choice, f"lower bound of {node}", self._dev
                sts = config.sts.model_copy(update={"train": []})
                settings |= {"sts": sts, "choice": sts.choices(), "models": sts.models, "task": config.evaluation.dev}
                settings["bounds"] = names
            else:
                make, title = models.ensemble, f"ensemble of {node}"
                settings["is_used"] = any(
                    (recipe.distils and recipe.ensemble == node) or recipe.ensemble.startswith(f"{node}-")
                    for recipe in self.job.recipes
                )
            about = {"is_outcome": True, "group": node, "say": partial(_say_outcome, node)}
            self._add(outcome_of(node), title, make, stage, inputs, settings, **about)
        used = {recipe.ensemble for recipe in self.job.recipes}
        for node in (node for node in nodes if node in used):
            for index in range(models_of(node, config)):
                self._embed(
                    node, "member", index, OutcomeMember(outcome_of(node), index), f"member {index:02d} of {node}"
                )
            if models_of(node, config) > 1:
                members = OutcomeMember(outcome_of(node), None, "healthy")
                inputs = {"encoder": self._encoder, "model": members, "sentences": self._sentences}
                kept, title = (inputs, {"layers": [config.encoder.layers]}), f"embeddings by the mean weights of {node}"
                self._add(soup_of(node), title, scores.embeddings, "evaluation", *kept, by="task", may_fail=True)
                if last_stage(node).labels is None and self.job.needs_corpus:
                    self.centres[node] = self._targets.get(node) or self._add_centre(node, members)

    def _add_centre(self, node: str, members: OutcomeMember) -> str:
        inputs = {"encoder": self._encoder, "model": members, "corpus": "corpus"}
        kept, title = (inputs, {"layers": self.config.encoder.layers}), f"mean vector of {node}"
        return self._add(f"{node}/centre", title, scores.centre, "evaluation", *kept, by="task")

    def _add_member(self, node: str, index: int, bound: float | None, stage: str) -> str:
        config, (*before, kind) = self.config, node.split("-")
        parent = OutcomeMember(outcome_of("-".join(before)), index, "healthy") if before else self._start
        block, members, stage_of = getattr(config, kind), config.members, stages()[kind]
        tables = {name: name for name in stage_of.tables(block)}
        if CORPUS in tables and MEMBERS_CORPUS in self.artefacts:
            tables[CORPUS] = MEMBERS_CORPUS
        inputs: dict[str, Any] = {"encoder": self._encoder, "start": parent, **tables}
        keep = stage_of.keeps(block, has_dev=self._dev is not None)
        without = {"train": [], "keep": keep}
        block = block.model_copy(update={name: without[name] for name in without if hasattr(block, name)})
        # All bounds share seeds: their models differ in the bound, not in the order of batches.
        seed = derive_seed(config.seed, node, index)
        every = getattr(block, "evaluate_every", None) or members.evaluate_every
        settings = {"stage": kind, kind: block, "seed": seed, "precision": members.precision}
        if CORPUS in tables:
            settings["share"] = members.share
        how = {"checkpoint_every": members.checkpoint_every, "max_retries": members.max_retries}
        untracked: dict[str, Any] = {"how": {"evaluate_every": every, **how}}
        if self._dev and not before:
            untracked["base"] = _BASE_EMBEDDINGS
        name, title = f"{node}/members/{index:02d}", f"member {index:02d} of {node}"
        options = {
            "worker": models.train_member,
            "updates": partial(models.member_updates, node),
            "tables": tables,
            "rows_per_update": stage_of.rows_per_update(block),
            "memory": partial(largest_need, [node], config, self.shape),
        }
        if bound is not None:
            settings |= {"lower_bound": bound, "criterion": stage_of.criterion(block)}
            name = f"{node}/grid/{bound:g}/{index:02d}"
            title = f"grid model {index:02d} of {node} with lower bound {bound:g}"
            if block.scheduler == "asha" and len(block.lower_bounds) > 1:
                needed = min(members.min_members or block.models, block.models)
                options["halving"] = partial(models.grid_halving, sts=block, needed=needed, evaluate_every=every)
        if keep == BEST_ON_DEV:
            inputs["dev"], settings["evaluate_every"] = self._dev, every
        else:
            untracked["dev"] = self._dev
        about = {"by": "tune", "group": node, "is_intermediate": True, "options": options}
        return self._add(name, title, models.member, stage, inputs, settings, untracked, **about)

    # targets and learners

    def _make_targets(self) -> None:
        for index, node in self._teachers_here.items():
            names = tuple(f"{node}/embeddings/{i:02d}" for i in range(models_of(node, self.config)))
            inputs = {"embeddings": OutcomeMember(outcome_of(node), None, "sound", names), "sentences": self._sentences}
            self._add_teacher(index, targets.mean_of_members, inputs)
        precision, kept_in = self.config.resources.encode_precision, self.config.sed.target_precision
        options = {"worker": targets.MeanBlocks, "rows": targets.block_rows, "title": "average teachers"}
        about = {"by": "blocks", "group": "mean", "is_intermediate": True, "options": options}
        for node, name in self._targets.items():
            members = OutcomeMember(outcome_of(node), None, "healthy")
            inputs = {"corpus": "corpus", "encoder": self._encoder, "teachers": members}
            settings = {"precision": precision, "target_precision": kept_in}
            stage, title = "+".join(self._targets.values()), f"targets of {node}-{SED}"
            self._add(name, title, targets.mean_targets, stage, inputs, settings, **about)
        if self._is_combined:
            self._combine({index: self._targets[node] for index, node in self._teachers_here.items()})

    def _combine(self, means: Mapping[int, str]) -> None:
        """Add the teachers' scores, their combined target, and its embeddings of the evaluation's sentences."""
        config, job, sed = self.config, self.job, self.config.sed
        scored = tuple(f"{TEACHERS}/embeddings/{index:02d}" for index in range(len(job.teachers)))
        if len(job.teachers) > 1 and not job.unscored:
            self._score_together(scored)
        inputs = {f"teacher {i}": means.get(i) or self._add_rows(i, teacher) for i, teacher in enumerate(job.teachers)}
        own = type(sed)(widths=sed.widths, head=sed.head, target_precision=sed.target_precision)
        settings = {"combination": config.combination, "widths": list(job.widths), "sed": own}
        if config.combination.leave_out and TEACHER_SELECTION in self.artefacts:
            inputs["choice"] = TEACHER_SELECTION
        inputs |= {"corpus": "corpus", "encoder": self._encoder, "start": self._learners_start}
        about = {"by": "task", "is_intermediate": True, "options": {"on_cpus": True}}
        make, stage = targets.combined_targets, "combination"
        self._add(_TARGETS_OF_TEACHERS, "targets of the teachers", make, stage, inputs, settings, **about)
        if config.search.enabled:
            settings = {"search": config.search.mining_settings(), "target_precision": sed.target_precision}
            about |= {"say": lambda entry: [f"search: {candidates_summary(entry.meta)}"]}
            given = {"corpus": "corpus", "targets": _TARGETS_OF_TEACHERS}
            self._add(_CANDIDATES, "candidates for the queries", candidates, stage, given, settings, **about)
        if not job.unscored:
            kept = {"targets": _TARGETS_OF_TEACHERS, "embeddings": scored}, {"layers": config.encoder.layers}
            self._add(
                COMBINED_EMBEDDINGS, "embeddings by all teachers together", targets.combined_embeddings, stage, *kept
            )

    def _score_together(self, embeddings: tuple[str, ...]) -> None:
        """Add the teachers' scores, alone and together, and the choice of the best on the dev task."""
        evaluation, how = self.config.evaluation, self.config.combination
        settings = {
            "combination": type(how)(how=how.how, weights=how.weights, balance=how.balance)
        }  # the settings that change cosines
        about = {"by": "task", "group": TEACHER_SCORES, "options": {"on_cpus": True}}
        if self._dev:
            inputs, make = {"embeddings": embeddings, "dev": self._dev}, targets.choice_of_teachers
            self._add(TEACHER_SELECTION, "choice of teachers", make, "teachers", inputs, settings, **about)
        inputs = {
            "embeddings": embeddings,
            "sentences": self._sentences,
            "choice": TEACHER_SELECTION if self._dev else None,
        }
        ways = {
            name: getattr(self.job.evaluation.tasks[name], "aggregation", None) for name in evaluation.report_tasks()
        }
        settings |= {"tasks": ways, "layers": self.config.encoder.layers}
        make, title = targets.worth_of_teachers, "scores of the teachers, alone and together"
        self._add(TEACHER_SCORES, title, make, "teachers", inputs, settings, say=self._say_worth, **about)

    def _add_rows(self, index: int, teacher: Teacher) -> str:
        name, title = f"{TEACHERS}/rows/{teacher.identity}", f"embeddings of the corpus by {teacher.title}"
        options = {"worker": targets.TeacherBlocks, "rows": lambda rows: targets.ROWS_PER_GROUP}
        options |= {"need": partial(embedding_need, teacher.title, teacher.weights_bytes)}
        about = {"by": "blocks", "group": name, "is_intermediate": True, "options": options}
        inputs = {"corpus": "corpus", "teacher": ExternalInput(teacher.identity, teacher.config, [teacher.watched])}
        settings = {"precision": self.config.resources.encode_precision}
        if settings["precision"] == "int8" and teacher.is_model:
            inputs["int8"] = f"{TEACHERS}/int8/{index:02d}"
            needs = {"by": "task", "say": lambda entry: [int8_summary(teacher.title, entry.meta)]}
            given, words = {"corpus": "corpus", "teacher": inputs["teacher"]}, f"8-bit weights of {teacher.title}"
            self._add(inputs["int8"], words, targets.teacher_in_int8, "teachers", given, **needs)
        return self._add(name, title, targets.teacher_rows, "teachers", inputs, settings, **about)

    def _make_learners(self) -> None:
        stage = "+".join(recipe.uncalibrated for recipe in self._distilling)
        config, sed, names = self.config, self.config.sed, {}
        memory = partial(largest_need, [SED], config, self.shape)
        about = {"by": "train", "options": {"worker": models.train_learners, "memory": memory}}
        for recipe, index in ((recipe, index) for recipe in self._distilling for index in range(sed.learners)):
            of = recipe.uncalibrated
            keep = "best_on_dev" if any(stages()[name].is_grid for name in recipe.members) else sed.keep
            target = sed.target or ("mean" if recipe.ensemble == TEACHERS else last_stage(recipe.ensemble).target)
            # Neutral precision and start: both already count through the inputs.
            block = {"target_precision": "fp32", "start": "encoder", "keep": keep, "target": target}
            block = sed.model_copy(update=block)
            settings = {"sed": block, "keep": keep, "seed": derive_seed(config.seed, of, "learner", index)}
            inputs = {"encoder": self._encoder, "start": self._learners_start, "targets": f"{of}/targets"}
            if config.search.enabled:
                inputs |= {"corpus": "corpus", "candidates": _CANDIDATES}
            untracked: dict[str, Any] = {"how": {"max_retries": sed.max_retries}}
            if self._dev and sed.start == "encoder" and sed.head in (None, "drop"):
                untracked["base"] = _BASE_EMBEDDINGS
            (inputs if keep == "best_on_dev" else untracked)["dev"] = self._dev
            name, title = f"{of}/learners/{index:02d}", f"learner {index:02d} of {of}"
            self._add(name, title, models.learner, stage, inputs, settings, untracked, **about)
            names[name] = of, index, title
        for name, (of, index, title) in names.items():  # when all learners are there, so that they train together
            self._embed(of, "learner", index, name, title)
            if index == 0:
                inputs = {"corpus": "corpus", "targets": f"{of}/targets", "model": name, "encoder": self._encoder}
                kept, title = (inputs, {"layers": config.encoder.layers}), f"comparison of {of} with its teachers"
                self._add(f"{of}/fidelity/00", title, learner_fidelity, "evaluation", *kept, by="task")

    # calibrations

    def _calibrations_of_base(self) -> list[Recipe]:
        """Return the base with every calibration of the run, and whitened: the best row that needs no training.

        Whitening is left out if nothing else would read the text that it is fitted on.
        """
        calibrations, fit_on = [r.calibration for r in self.job.recipes if r.calibration], self.config.flow.fit_on
        texts = ["-".join([BASE, *calibration]) for calibration in calibrations]
        if texts or fit_on == "tasks" or (fit_on == "corpus" and self.job.needs_corpus):
            texts.append(f"{BASE}-{WHITEN}")
        return [parse_recipe(text) for text in dict.fromkeys(texts)]

    def _calibrate(self, recipe: Recipe, may_fail: bool) -> None:
        if recipe.text in self.scored:
            return
        of_models = self.scored.get(recipe.uncalibrated, [])
        fits = self.config.flow.fits if "flow" in recipe.calibration and len(of_models) == 1 else 1
        for of in of_models:
            for fit in range(fits):
                self._add_calibration(recipe, of, fit, may_fail)

    def _add_calibration(self, recipe: Recipe, of: ScoredModel, fit: int, may_fail: bool) -> None:
        config, main = self.config, self.config.encoder.layers
        poolings = of.poolings if fit == 0 else (main,)  # side tables show only the first fit
        settings = {
            "stages": list(recipe.calibration),
            "flow": config.flow,
            "calibration": config.calibration,
            "seed": derive_seed(config.seed, recipe.text, of.index, *([fit] if fit else [])),
            "layers": list(poolings),
            "main": poolings.index(main),
        }
        model, fit_on = of.model, config.flow.fit_on
        if isinstance(model, OutcomeMember):  # no collapsed members: equal vectors cannot be calibrated
            model = OutcomeMember(model.outcome, model.index, "sound")
        inputs = {"embeddings": of.embeddings, "model": model, "sentences": self._sentences, "encoder": self._encoder}
        if fit_on == "tasks":
            inputs["text"] = None
        else:
            settings["run_seed"] = config.seed
            table = "corpus" if fit_on == "corpus" else f"pairs/{fit_on}"
            given = CorpusConfig(source=fit_on), self.job.watched["fit_on"]
            inputs["text"] = table if fit_on in fitted_on() else ExternalInput(self.job.inputs["fit_on"], *given)
        if "natsv" in recipe.calibration and config.calibration.natsv_k == "dev":
            inputs["dev"] = self._dev
        index, options = of.index + fit, {"on_cpus": fit_on == "tasks"}
        name, title = f"{recipe.text}/calibrations/{index:02d}", f"calibration {index:02d} of {recipe.text}"
        kept = inputs, settings, {"poolings": list(of.poolings)}
        about = {"by": "task", "group": of.embeddings, "may_fail": may_fail, "options": options, "say": _say_unfitted}
        self._add(name, title, scores.calibration, "calibration", *kept, **about)
        self.scored[recipe.text].append(ScoredModel(recipe.text, of.kind, index, name, poolings, model=of.model))

    # for the executor and the report

    def how(self, engine: Engine = "ray") -> How:
        """Return how the run is executed."""
        config = self.config
        return How(
            config.resources,
            engine,
            members=config.members.count,
            learner_workers=config.sed.workers,
            hub_models=self.job.hub_models,
            check_room=self._check_room,
            settings=dump_config(config),
        )

    def _check_room(self, cluster: Cluster, sentences: int | None, free: int | None) -> None:
        """Raise UserError if the disk is too small, or a training fits on no node."""
        rows, job = known_rows(self.job, sentences), self.job
        _, bytes_ = plan_run(self.config, job.recipes, self.shape, rows, cluster, job.widths)
        needed = sum(bytes_.values())
        if free is not None and free < needed:
            most = max(bytes_, key=bytes_.__getitem__)
            raise UserError(
                f"storage: {self.config.storage}/{self.config.run} has {free / 1e9:.1f} GB free, but this run needs "
                f"about {needed / 1e9:.1f} GB, {bytes_[most] / 1e9:.1f} GB of it for {most}; free some space, or "
                "choose another --storage"
            )

    def recipes(self) -> list[str]:
        """Return the recipes that are scored, in reading order: the base, then ensemble, learner and result of each."""
        texts = [BASE, *(recipe.text for recipe in self._calibrations_of_base())]
        for recipe in self.job.recipes:
            texts += [recipe.ensemble, *([recipe.uncalibrated] if recipe.distils else []), recipe.text]
        return list(dict.fromkeys(texts))

    def totals(self) -> dict[str, int]:
        """Return the number of trainings by directory."""
        nodes = [node for depth in member_nodes(self.job.recipes) for node in depth]
        kinds = {node: "grid" if last_stage(node).is_grid else "members" for node in nodes}
        found = {f"{node}/{kind}": trainings_of(node, self.config) for node, kind in kinds.items()}
        return found | {f"{recipe.uncalibrated}/learners": self.config.sed.learners for recipe in self._distilling}

    def _say_worth(self, entry: Entry) -> Iterator[str]:
        yield from summary_lines(by_title(entry.meta, [teacher.title for teacher in self.job.teachers]))
        chosen, how = entry.meta.get("chosen"), self.config.combination
        if chosen and len(chosen) < len(self.job.teachers) and not how.leave_out:
            yield "All teachers are distilled; combination.leave_out: true distils only the best on the dev task."
        for name, reason in teachers_left_out(self.job, entry).items():
            yield f"left out: {name}: {reason}"


def _say_summary(what: str, entry: Entry) -> Iterator[str]:
    yield f"{what}: {entry.meta['summary']}"


def _say_unfitted(entry: Entry) -> Iterator[str]:
    if why := scores.poolings_without_fit(entry.meta):
        yield f"left out: {entry.name}: {why}"


def _say_outcome(node: str, entry: Entry) -> Iterator[str]:
    for name, reason in entry.meta["left_out"].items():
        yield f"left out: {name}: {reason}"
    if grid := entry.meta.get("grid"):
        yield f"{node}: lower bound {grid['winner']:g} wins with {grid['score']:.2f} on {grid['task']}"
