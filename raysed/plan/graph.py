"""Build the graph of a run's artefacts from its checked configuration."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from raysed.config import CorpusConfig, derive_seed, fitted_on
from raysed.graph import Artefact, ExternalInput, Graph, OutcomeMember, Short
from raysed.make.fidelity import learner_fidelity
from raysed.make.inputs import Sentences
from raysed.make.models import EnsembleOutcome, GridOutcome, Learner, Member
from raysed.make.scores import EvaluationEmbeddings, FittedCalibration
from raysed.make.targets import MeanTargets, mean_of_members
from raysed.make.text import labelled_pairs, long_lines, sentence_table, small_corpus, static_start, view_table
from raysed.model.pretrained import text_tokenizer
from raysed.model.prompts import learner_prompts
from raysed.model.shape import shape_of
from raysed.plan.artefacts import ScoredModel
from raysed.plan.check import Job
from raysed.plan.consistency import combination_warnings
from raysed.plan.requirements import CORPUS, MEMBERS_CORPUS, corpora, models_of, trainings_of, trains_on_corpus
from raysed.plan.size import largest_need
from raysed.plan.teachers import add_speeds, add_teacher, add_teachers, combine_teachers
from raysed.recipe import BASE, SED, TEACHERS, Recipe, last_stage, member_nodes, node_of, parse_recipe
from raysed.registry import stages
from raysed.score.tasks import DevTask, Evaluation
from raysed.store.storage import Entry

log = logging.getLogger(__name__)


class Plan:
    """The artefacts of a run, in the order of `raysed.pipeline`.

    Attributes:
        encoder, sentences, dev: inputs that most artefacts have.
        table: tables to train on, by name.
        scored: models that may be scored, by recipe.
    """

    def __init__(self, job: Job):
        config = job.config
        self.job, self.config, self.shape = job, config, shape_of(config.encoder)
        self.graph, self.scored = Graph(), defaultdict[str, list[ScoredModel]](list)
        self.encoder = ExternalInput(job.inputs["encoder"], config.encoder, job.watched["encoder"])
        self._poolings = tuple(dict.fromkeys([*config.evaluation.pool_layers, config.encoder.pool_layers]))
        # One of each set of recipes that differ only in calibration.
        self._distilling = list({recipe.uncalibrated: recipe for recipe in job.recipes if recipe.distils}.values())
        self._is_combined = any(recipe.ensemble == TEACHERS for recipe in self._distilling)
        self._prepare_evaluation()
        self._start = self._tables()
        self._base = self._embed(BASE, "base", 0, self._start, "the original encoder")
        teachers = add_teachers(self)
        add_speeds(self, self._start)
        for recipe in self._calibrations_of_base():
            self._calibrate(recipe, may_fail=recipe.calibration not in {r.calibration for r in job.recipes})
        members = {}
        for nodes in member_nodes(job.recipes):
            members |= self._members(nodes, members)
        # The mlm stage's first member, if learners start there.
        start = OutcomeMember(members["mlm"], 0) if config.sed.start == "mlm" else self._start
        self._learners(self._targets(members, teachers, start), start)
        for recipe in job.recipes:
            if recipe.calibration and recipe.ensemble != BASE:
                self._calibrate(recipe, may_fail=True)

    def _prepare_evaluation(self) -> None:
        """Tokenise the sentences of all tasks, and of the dev task."""
        config, evaluation = self.config, self.job.evaluation
        self._prompts = learner_prompts(config.corpus, config.encoder)
        tokens, self.dev = None, None
        if not config.encoder.static:  # otherwise the run makes the tokenizer
            tokenizer = text_tokenizer(config.encoder, prompts=self._prompts)
            tokens = tokenizer(evaluation.sentences, evaluation.roles)
        sentences = Sentences(evaluation, tokens, self._prompts)
        prompts = self._prompts if any(role in self._prompts for role in evaluation.roles) else {}
        # Rows of embeddings follow the order of the tasks, which equal dicts need not share.
        self.sentences = ExternalInput([self.job.inputs["tasks"], list(evaluation.tasks), prompts], sentences)
        if config.evaluation.dev is not None:
            own = Evaluation([evaluation.tasks[config.evaluation.dev]])
            rows = evaluation.rows_of(own)
            dev = DevTask(own, tokens and tokens.take(rows), rows, config.encoder.pool_layers, self._prompts)
            self.dev = ExternalInput(dev.identity, dev)

    # training data

    def _tables(self) -> Artefact | None:
        """Add the tables; return the tokenizer and vectors that a static learner starts from."""
        job, config, add, self.table = self.job, self.config, self.graph.add, dict[str, Artefact]()
        source = ExternalInput(job.inputs["corpus"], watched=job.watched["corpus"])
        inputs, settings = {"encoder": self.encoder, "source": source}, {"corpus": config.corpus, "seed": config.seed}
        start = None
        if config.encoder.static:
            own = {**inputs, "start": None}
            start = add(Artefact("encoder/start", "encoder", "encoder", static_start, own, settings))
        if job.needs_corpus:
            for name, block in corpora(config, job.recipes).items():
                own, lines = {**settings, "corpus": block}, partial(self._corpus_lines, name)
                if block.queries:
                    own["prompts"] = self._prompts
                given = {**inputs, "start": start}
                made = Artefact(name, name.replace("-", " "), "corpus", sentence_table, given, own, lines=lines)
                self.table[name] = add(made)
        for kind, rows in job.pairs.items():
            name, given = f"pairs/{kind}", {"encoder": self.encoder, "rows": ExternalInput(job.inputs[kind], rows)}
            title, lines = f"labelled pairs ({kind})", partial(_summary_line, f"{kind} pairs")
            self.table[name] = add(Artefact(name, title, "pairs", labelled_pairs, given, lines=lines))
        for kind, rows in job.views.items():
            name, given = (
                f"views/{kind}",
                {"encoder": self.encoder, "rows": ExternalInput(job.inputs[f"views/{kind}"], rows)},
            )
            title, lines = f"views ({kind})", partial(_summary_line, f"{kind} views")
            self.table[name] = add(Artefact(name, title, "views", view_table, given, lines=lines))
        return start

    def _corpus_lines(self, name: str, entry: Entry) -> Iterator[str]:
        yield f"{name.replace('-', ' ')}: {entry.meta['summary']}"
        if self.config.corpus.queries:
            yield f"queries: {entry.meta['query_summary']}"
        yield f"tokens: {entry.meta['length_summary']}"
        if name != CORPUS:
            return
        is_trained_on = any(trains_on_corpus(recipe, self.config) for recipe in self.job.recipes)
        sed = self.config.sed if self._distilling else None
        report = entry.meta["report"]
        small = small_corpus(report["kept"], is_trained_on, sed)
        for warning in [*long_lines(report["too_long"]), *small, *combination_warnings(self.config)]:
            log.warning(warning)

    # existing models

    def _embed(self, recipe: str, kind: str, index: int, model: Any, what: str) -> Artefact:
        name = f"{recipe}/embeddings/{index:02d}"
        made = self.graph.add(EvaluationEmbeddings(name, what, self.encoder, model, self.sentences, self._poolings))
        self.scored[recipe].append(ScoredModel(recipe, kind, index, name, self._poolings, model=model))
        return made

    # members

    def _members(self, nodes: Sequence[str], before: Mapping[str, Artefact]) -> dict[str, Artefact]:
        """Add all nodes of one depth, which train in one experiment; return their outcomes by node."""
        stage, config, trained, found = "+".join(nodes), self.config, {}, {}
        for node in nodes:
            bounds = config.sts.lower_bounds if last_stage(node).is_grid else [None]
            places = [(bound, index) for bound in bounds for index in range(models_of(node, config))]
            trained[node] = {self._member(node, *place, stage, before): place[0] for place in places}
        for node, members in trained.items():
            least = config.members.min_members
            if last_stage(node).is_grid:
                outcome = GridOutcome(node, stage, members, least, self.dev, config.evaluation.dev)
                found[node] = self.graph.add(outcome)
            else:
                is_used = any(
                    (recipe.distils and recipe.ensemble == node) or recipe.ensemble.startswith(f"{node}-")
                    for recipe in self.job.recipes
                )
                found[node] = self.graph.add(EnsembleOutcome(node, stage, list(members), least, is_used))
        for node in (node for node in nodes if node in {recipe.ensemble for recipe in self.job.recipes}):
            for index in range(models_of(node, config)):
                member = OutcomeMember(found[node], index)
                self._embed(node, "member", index, member, f"member {index:02d} of {node}")
        return found

    def _member(
        self, node: str, bound: float | None, index: int, stage: str, before: Mapping[str, Artefact]
    ) -> Artefact:
        config, (*parents, kind) = self.config, node.split("-")
        start = OutcomeMember(before["-".join(parents)], index, "healthy") if parents else self._start
        block, tables = getattr(config, kind), {}
        for name in stages()[kind].tables(block):
            tables[name] = self.table[name]
            if name == CORPUS and MEMBERS_CORPUS in self.table:
                tables[name] = self.table[MEMBERS_CORPUS]
        member = Member(
            node,
            index,
            bound,
            stage,
            block,
            config.members,
            # All bounds share seeds: their models differ in the bound, not in the order of batches.
            seed=derive_seed(config.seed, node, index),
            encoder=self.encoder,
            start=start,
            tables=tables,
            dev=self.dev,
            base=self._base if self.dev and not parents else None,
            memory=partial(largest_need, [node], config, self.shape),
        )
        return self.graph.add(member)

    # targets and learners

    def _nodes_of_teachers(self) -> dict[int, str]:
        """Return the ensembles of this run that are teachers, by index."""
        made = {index: teacher for index, teacher in enumerate(self.job.teachers) if teacher.is_made_by_run}
        return {index: node_of(teacher.config, self.job.recipes) for index, teacher in made.items()}

    def _means(self) -> list[str]:
        """Return the ensembles whose mean is a target or a part of one."""
        means = [recipe.ensemble for recipe in self._distilling if recipe.members]
        return list(dict.fromkeys([*means, *(self._nodes_of_teachers().values() if self._is_combined else [])]))

    def _targets(
        self, members: Mapping[str, Artefact], teachers: dict[int, Artefact], start: Any
    ) -> dict[str, Artefact]:
        """Add the learners' targets; return them by ensemble."""
        config, nodes, found = self.config, self._nodes_of_teachers(), {}
        for index, node in nodes.items():
            each = [self.graph.artefacts[f"{node}/embeddings/{i:02d}"] for i in range(models_of(node, config))]
            embeddings = OutcomeMember(members[node], None, "sound", tuple(each))
            inputs = {"embeddings": embeddings, "sentences": self.sentences}
            teachers[index] = add_teacher(self, index, mean_of_members, inputs)
        means = self._means()
        stage = "+".join(f"{node}-{SED}/targets" for node in means)
        precisions = config.resources.encode_precision, config.sed.target_precision
        for node in means:
            healthy = OutcomeMember(members[node], None, "healthy")
            mean = MeanTargets(f"{node}-{SED}", stage, self.table[CORPUS], self.encoder, healthy, *precisions)
            found[node] = self.graph.add(mean)
        if self._is_combined:
            embedded = tuple(teachers[index] for index in sorted(teachers))
            found[TEACHERS] = combine_teachers(self, embedded, {i: found[node] for i, node in nodes.items()}, start)
        return found

    def _learners(self, targets: Mapping[str, Artefact], start: Any) -> None:
        config, sed, learners = self.config, self.config.sed, {}
        stage = "+".join(recipe.uncalibrated for recipe in self._distilling)
        memory = partial(largest_need, [SED], config, self.shape)
        base = self._base if self.dev and sed.start == "encoder" and not sed.head else None
        for recipe, index in ((recipe, index) for recipe in self._distilling for index in range(sed.learners)):
            is_grid = any(stages()[name].is_grid for name in recipe.members)
            own = None if recipe.ensemble == TEACHERS else last_stage(recipe.ensemble).target
            block = {"checkpoint": "best_on_dev" if is_grid else sed.checkpoint, "target": sed.target or own or "mean"}
            learner = Learner(
                recipe.uncalibrated,
                index,
                stage,
                sed.model_copy(update=block),
                seed=derive_seed(config.seed, recipe.uncalibrated, "learner", index),
                encoder=self.encoder,
                start=start,
                targets=targets[recipe.ensemble],
                dev=self.dev,
                base=base,
                memory=memory,
            )
            learners[self.graph.add(learner)] = recipe, index
        for learner, (recipe, index) in learners.items():  # after all learners, which train together
            text, layers = recipe.uncalibrated, {"layers": config.encoder.pool_layers}
            self._embed(text, "learner", index, learner, learner.title)
            if index == 0:
                inputs = {"corpus": self.table[CORPUS], "targets": targets[recipe.ensemble], "model": learner}
                inputs["encoder"] = self.encoder
                name, title = f"{text}/fidelity/00", f"comparison of {text} with its teachers"
                self.graph.add(Artefact(name, title, "evaluation", learner_fidelity, inputs, layers, execution=Short()))

    # calibrations

    def _calibrations_of_base(self) -> list[Recipe]:
        """Return the base with every calibration of the run."""
        texts = ["-".join([BASE, *recipe.calibration]) for recipe in self.job.recipes if recipe.calibration]
        return [parse_recipe(text) for text in dict.fromkeys(texts)]

    def _calibrate(self, recipe: Recipe, may_fail: bool) -> None:
        if recipe.text in self.scored:
            return
        plain_models, config = self.scored.get(recipe.uncalibrated, []), self.config
        fits = config.flow.fits if "flow" in recipe.calibration and len(plain_models) == 1 else 1
        fit_on, text = config.flow.fit_on, None
        if fit_on not in fitted_on():
            source, watched = CorpusConfig(source=fit_on), self.job.watched["fit_on"]
            text = ExternalInput(self.job.inputs["fit_on"], source, watched)
        elif fit_on != "tasks":
            text = self.table[CORPUS if fit_on == CORPUS else f"pairs/{fit_on}"]
        dev = self.dev if "natsv" in recipe.calibration and config.calibration.natsv_k == "dev" else None
        for plain, fit in ((plain, fit) for plain in plain_models for fit in range(fits)):
            # Side tables show only the first fit.
            main, model = config.encoder.pool_layers, plain.model
            poolings = plain.poolings if fit == 0 else (main,)
            if isinstance(model, OutcomeMember):  # no collapsed members: equal vectors cannot be calibrated
                model = OutcomeMember(model.outcome, model.index, "sound")
            seed = derive_seed(config.seed, recipe.text, plain.index, *([fit] if fit else []))
            embeddings, index = self.graph.artefacts[plain.embeddings], plain.index + fit
            inputs = {"embeddings": embeddings, "model": model, "sentences": self.sentences}
            inputs |= {"encoder": self.encoder, "text": text} | ({"dev": dev} if dev else {})
            blocks, seeds = (config.flow, config.calibration), (seed, config.seed)
            made = FittedCalibration(recipe, index, inputs, blocks, seeds, poolings, main, plain.poolings, may_fail)
            scored = ScoredModel(recipe.text, plain.kind, index, self.graph.add(made).name, poolings, model=plain.model)
            self.scored[recipe.text].append(scored)

    # for the executor and the report

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


def _summary_line(what: str, entry: Entry) -> Iterator[str]:
    yield f"{what}: {entry.meta['summary']}"
