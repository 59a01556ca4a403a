"""From a checked configuration to the graph of everything that the run makes."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.cluster.execute import How
from raysed.cluster.resources import Cluster
from raysed.config import FIT_ON, CorpusConfig, Layers, derive_seed, dump_config
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.graph import Artefact, Given, Graph, Input, Needs, Pick, Tried
from raysed.make import models, scores, targets, text
from raysed.make.work import Sentences
from raysed.model.pretrained import load_tokenizer
from raysed.model.shape import shape_of
from raysed.model.teacher import Teacher
from raysed.model.views import weights_bytes
from raysed.plan.artefacts import TOGETHER, ScoredModel, choices, outcome_of, teachers_left_out, trainings_of
from raysed.plan.check import Job
from raysed.plan.size import known_rows, largest_need, need_of_learner, plan_run
from raysed.recipe import BASE, SED, TEACHERS, WHITEN, Recipe, member_nodes, node_of, parse_recipe
from raysed.registry import stages
from raysed.score.dev import DevTask
from raysed.score.lexical import TF_IDF
from raysed.score.tasks import Evaluation
from raysed.store.storage import Entry

log = logging.getLogger(__name__)

ENCODER_START = "encoder/start"
"""Tokenizer and vectors that a static learner starts from."""
_BASE_EMBEDDINGS = f"{BASE}/embeddings/00"


class Plan:
    """All that a run makes.

    Attributes:
        notes: lines for the user before anything is made.
    """

    def __init__(self, job: Job):
        config = job.config
        self.job, self.config, self.shape = job, config, shape_of(config.encoder)
        self.artefacts: list[Artefact] = []
        self.scored: dict[str, list[ScoredModel]] = {}
        self.notes: list[str] = []
        self._encoder = Given(job.inputs["encoder"], config.encoder)
        self._start = ENCODER_START if config.encoder.static else None
        self._poolings = tuple(dict.fromkeys([*config.evaluation.layers, config.encoder.layers]))
        tokens = self._tokens(job.evaluation.sentences)
        self._sentences = Given(job.inputs["tasks"], Sentences(job.evaluation.sentences, tokens, job.evaluation))
        self._dev = self._dev_task(tokens)
        self._make_inputs()
        self._embed(BASE, "base", 0, self._start, "the untouched encoder")
        self._embed_by_teachers()
        for recipe in self._calibrations_of_base():
            self._calibrate(recipe, may_fail=recipe.calibration not in {r.calibration for r in job.recipes})
        for depth in member_nodes(job.recipes):
            self._make_members(depth)
        self._make_targets()
        self._make_learners()
        for recipe in job.recipes:
            if recipe.calibration and recipe.ensemble != BASE:
                self._calibrate(recipe, may_fail=True)
        if job.further:
            self._probe()
        self.graph = Graph(self.artefacts)

    # what is learnt from

    def _add(self, name: str, title: str, make: Callable, stage: str, **about: Any) -> str:
        kept = {key: about.pop(key) for key in ("inputs", "settings", "beside") if key in about}
        self.artefacts.append(Artefact(name, title, make, Needs(stage, **about), **kept))
        return name

    def _tokens(self, sentences: Sequence[str]) -> Any:
        if self._start:
            return None  # the tokenizer is yet to be made
        return tokenize(load_tokenizer(self.config.encoder), sentences, self.config.encoder.max_length)

    def _dev_task(self, tokens: Any) -> Given | None:
        evaluation, name = self.job.evaluation, self.config.evaluation.dev
        if name is None:
            return None
        own = Evaluation([evaluation.tasks[name]])
        row = {sentence: i for i, sentence in enumerate(evaluation.sentences)}
        rows = np.array([row[sentence] for sentence in own.sentences])
        dev = DevTask(own, tokens and tokens.take(rows), rows, self.config.encoder.layers)
        return Given(dev.identity, dev)

    def _make_inputs(self) -> None:
        """Encoder, corpus, labelled pairs and views."""
        job, config = self.job, self.config
        corpus = {"corpus": config.corpus, "seed": config.seed}
        inputs = {"encoder": self._encoder, "start": self._start, "source": Given(job.inputs["corpus"])}
        if self._start:
            about = {"inputs": {**inputs, "start": None}, "settings": corpus}
            self._add(ENCODER_START, "encoder", text.static_start, "encoder", **about)
        if job.needs_corpus:
            about = {"inputs": inputs, "settings": corpus, "say": self._say_corpus}
            self._add("corpus", "corpus", text.sentence_table, "corpus", **about)
        for kind, rows in job.pairs.items():
            inputs = {"encoder": self._encoder, "rows": Given(job.inputs[kind], rows)}
            say = partial(_say_summary, f"{kind} pairs")
            self._add(f"pairs/{kind}", f"labelled pairs ({kind})", text.labelled_pairs, "pairs", inputs=inputs, say=say)
        for kind, rows in job.views.items():
            self._make_views(kind, rows)

    def _make_views(self, kind: str, rows: Any) -> None:
        config, name = self.config, f"views/{kind}"
        source: Input = Given(self.job.inputs[name], rows)
        if rows is None:
            options = {
                "worker": text.ViewBlocks,
                "rows": lambda rows: 512,
                "weights": partial(weights_bytes, kind, config.views, config.encoder),
                "check": text.check_rewritten,
                "joins_here": True,
            }
            source = self._add(
                f"{name}.text",
                f"rewritten sentences ({kind})",
                text.rewritten_views,
                "views",
                inputs={"corpus": "corpus", "source": source, "encoder": self._encoder},
                settings={"kind": kind, "seed": derive_seed(config.seed, "views", kind)},
                beside={"views": Given(None, config.views)},
                by="blocks",
                group=name,
                is_intermediate=True,
                options=options,
            )
        inputs = {"encoder": self._encoder, "rows": source}
        settings = {"kind": kind, "max_unusable": config.views.max_unusable}
        say = partial(_say_summary, f"{kind} views")
        self._add(name, f"views ({kind})", text.view_table, "views", inputs=inputs, settings=settings, say=say)

    def _say_corpus(self, entry: Entry) -> Iterator[str]:
        config, recipes = self.config, self.job.recipes
        yield f"corpus: {entry.meta['summary']}"
        yield f"tokens: {entry.meta['length_summary']}"
        sed = config.sed if any(recipe.distils for recipe in recipes) else None
        is_trained_on = any(recipe.trains_on_corpus(config) for recipe in recipes)
        for warning in text.small_corpus(entry.meta["rows"], is_trained_on, sed):
            log.warning(warning)

    # models that are there

    def _embed(self, recipe: str, kind: str, index: int, model: Input | None, what: str, probes: Any = None) -> None:
        inputs = {"encoder": self._encoder, "model": model, "sentences": self._sentences}
        name, settings = f"{recipe}/embeddings/{index:02d}", {"layers": self._poolings}
        title = f"embeddings by {what}"
        self._add(name, title, scores.embeddings, "evaluation", by="task", inputs=inputs, settings=settings)
        self._score(recipe, kind, index, name, self._poolings, model, probes)

    def _score(
        self, recipe: str, kind: str, index: int, name: str, poolings: tuple, model: Input | None, probes: Any = None
    ) -> None:
        self.scored.setdefault(recipe, []).append(
            ScoredModel(recipe, kind, index, name, poolings, model=model, probes=probes)
        )

    def _embed_by_teachers(self) -> None:
        """External teachers; those that are members follow when these are trained."""
        for index, teacher in enumerate(self.job.teachers):
            if teacher.is_made_by_run:
                continue
            if index in self.job.unscored:
                self.notes.append(f"not scored: {teacher.title} has no embeddings of the evaluation's sentences")
                continue
            inputs = {"teacher": Given(teacher.identity, teacher), "sentences": self._sentences}
            self._add_teacher(index, scores.teacher_embeddings, inputs)

    def _add_teacher(self, index: int, make: Callable, inputs: Mapping[str, Input]) -> None:
        layers, title = self.config.encoder.layers, self.job.teachers[index].title
        name = f"{TEACHERS}/embeddings/{index:02d}"
        about = {"inputs": inputs, "settings": {"layers": layers}}
        self._add(name, f"embeddings by {title}", make, "teachers", **about)
        label = f"{TEACHERS}/members/{index:02d}"
        self._score(TEACHERS, "member", index, name, (layers,), Given(label, label))

    # members

    def _make_members(self, nodes: Sequence[str]) -> None:
        """All nodes of one depth, which train in one experiment."""
        stage, outcomes = "+".join(nodes), []
        for node in nodes:
            names = {}
            for bound in self.config.sts.lower_bounds if node.endswith("sts") else [None]:
                for index in range(self._count(node)):
                    names[self._add_member(node, index, bound, stage)] = bound
            outcomes.append((node, names))
        for node, names in outcomes:
            self._add_outcome(node, names, stage)
        used = {recipe.ensemble for recipe in self.job.recipes}
        for node in nodes:
            for index in range(self._count(node)) if node in used else ():
                model, probed = Pick(outcome_of(node), index), Pick(outcome_of(node), index, "probed")
                self._embed(node, "member", index, model, f"member {index:02d} of {node}", probed)

    def _count(self, node: str) -> int:
        """Models of an ensemble, if none is left out."""
        return self.config.sts.models if "sts" in node.split("-") else self.config.members.count

    def _add_member(self, node: str, index: int, bound: float | None, stage: str) -> str:
        config, (*before, kind) = self.config, node.split("-")
        parent = Pick(outcome_of("-".join(before)), index, "healthy") if before else self._start
        block, members, stage_of = getattr(config, kind), config.members, stages()[kind]
        tables = stage_of.tables(block)
        inputs: dict[str, Any] = {"encoder": self._encoder, "start": parent, **dict(zip(tables, tables))}
        block = block.model_copy(update={"train": []}) if hasattr(block, "train") else block
        # The models of all bounds share their seeds: they differ in the bound, not in the order of their batches.
        seed = derive_seed(config.seed, node, index)
        settings = {"stage": kind, kind: block, "seed": seed, "precision": config.members.precision}
        how = {
            "evaluate_every": stage_of.evaluate_every(block, members),
            "checkpoint_every": members.checkpoint_every,
            "max_retries": members.max_retries,
        }
        beside: dict[str, Any] = {"how": how, **({} if before or not self._dev else {"base": _BASE_EMBEDDINGS})}
        name, title = f"{node}/members/{index:02d}", f"member {index:02d} of {node}"
        first = next(recipe.text for recipe in self.job.recipes if kind in recipe.members)
        options = {
            "worker": models.train_members,
            "updates": partial(models.member_updates, first),
            "tables": list(tables),
            "place": (bound, index),
            "together": stage_of.members_together(members),
            "rows_per_update": stage_of.rows_per_update(block),
            "memory": partial(largest_need, [node], config, self.shape),
        }
        if bound is not None:
            settings |= {"lower_bound": bound, "criterion": stage_of.criterion(block)}
            name = f"{node}/grid/{bound:g}/{index:02d}"
            title = f"grid model {index:02d} of {node} with lower bound {bound:g}"
            ladder = {"sts": config.sts, "models": config.sts.models}
            ladder["needed"] = min(members.min_members or config.sts.models, config.sts.models)
            options["ladder"] = partial(models.grid_ladder, **ladder, evaluate_every=how["evaluate_every"])
        if bound is not None or getattr(block, "keep", None) == "best_on_dev":
            inputs["dev"], settings["evaluate_every"] = self._dev, how["evaluate_every"]
        else:
            beside["dev"] = self._dev
        about = {"by": "tune", "group": node, "is_intermediate": True, "options": options}
        kept = {"inputs": inputs, "settings": settings, "beside": beside}
        return self._add(name, title, models.member, stage, **about, **kept)

    def _add_outcome(self, node: str, names: Mapping[str, float | None], stage: str) -> None:
        config, inputs = self.config, {"members": Tried(tuple(names))}
        settings: dict[str, Any] = {"node": node, "min_members": config.members.min_members}
        if node.endswith("sts"):
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
        self._add(outcome_of(node), title, make, stage, inputs=inputs, settings=settings, **about)

    # targets and learners

    @property
    def distilling(self) -> list[Recipe]:
        """The recipes that distil, one of those that differ in their calibration only."""
        return list({recipe.uncalibrated: recipe for recipe in self.job.recipes if recipe.distils}.values())

    def _make_targets(self) -> None:
        teaching = any(recipe.ensemble == TEACHERS for recipe in self.distilling)
        of_members = {
            index: node_of(teacher.config, self.job.recipes)
            for index, teacher in enumerate(self.job.teachers)
            if teacher.is_made_by_run
        }
        for index, node in of_members.items():
            names = tuple(f"{node}/embeddings/{i:02d}" for i in range(self._count(node)))
            inputs = {"embeddings": Pick(outcome_of(node), None, "sound", names)}
            self._add_teacher(index, targets.mean_of_members, inputs)
        nodes = [recipe.ensemble for recipe in self.distilling if recipe.members]
        nodes += of_members.values() if teaching else []
        names = {node: f"{node}-{SED}/targets" for node in dict.fromkeys(nodes)}
        for node, name in names.items():
            self._add_mean(node, name, "+".join(names.values()))
        if teaching:
            self._combine({index: names[node] for index, node in of_members.items()})

    def _add_mean(self, node: str, name: str, stage: str) -> None:
        config = self.config
        inputs = {"corpus": "corpus", "encoder": self._encoder, "teachers": Pick(outcome_of(node), None, "healthy")}
        res = config.resources.encode_precision
        settings = {"precision": res, "target_precision": config.sed.target_precision}
        options = {"worker": targets.MeanBlocks, "rows": targets.block_rows, "title": "average teachers"}
        about = {"by": "blocks", "group": "mean", "is_intermediate": True, "options": options}
        title = f"targets of {node}-{SED}"
        self._add(name, title, targets.mean_targets, stage, **about, inputs=inputs, settings=settings)

    def _combine(self, means: Mapping[int, str]) -> None:
        """One target of what all teachers say, and what they say together of the evaluation's sentences."""
        config, job, inputs = self.config, self.job, {}
        how = {"precision": config.resources.encode_precision}
        for index, teacher in enumerate(job.teachers):
            inputs[f"teacher {index}"] = means.get(index) or self._add_rows(teacher, how)
        sed = config.sed
        settings = {
            "combination": config.combination,
            "widths": list(job.widths),
            "sed": type(sed)(widths=sed.widths, head=sed.head, target_precision=sed.target_precision),
        }
        scored = tuple(f"{TEACHERS}/embeddings/{index:02d}" for index in range(len(job.teachers)))
        if config.combination.chooses_on_dev:
            inputs |= {"dev": self._dev, "embeddings": scored}
        inputs |= {"corpus": "corpus", "encoder": self._encoder, "start": self._start_of_learners()}
        about = {"by": "task", "is_intermediate": True, "options": {"on_cpus": True}, "say": self._say_choices}
        kept = {"inputs": inputs, "settings": settings}
        name = f"{TEACHERS}-{SED}/targets"
        self._add(name, "what the teachers say", targets.combined_targets, "combination", **about, **kept)
        if not job.unscored:
            inputs = {"targets": name, "embeddings": scored}
            kept = {"inputs": inputs, "settings": {"layers": config.encoder.layers}}
            self._add(TOGETHER, "teachers as one", targets.combined_embeddings, "combination", **kept)

    def _add_rows(self, teacher: Teacher, how: Mapping[str, Any]) -> str:
        name = f"{TEACHERS}/rows/{teacher.identity}"
        if any(artefact.name == name for artefact in self.artefacts):
            return name
        options = {"worker": targets.TeacherBlocks, "rows": lambda rows: targets.ROWS_PER_GROUP, "joins_here": True}
        about = {"by": "blocks", "group": name, "is_intermediate": True, "options": options}
        inputs = {"corpus": "corpus", "teacher": Given(teacher.identity, teacher.config)}
        title = f"embeddings of the corpus by {teacher.title}"
        return self._add(name, title, targets.teacher_rows, "teachers", **about, inputs=inputs, settings=how)

    def _start_of_learners(self) -> Input | None:
        return Pick(outcome_of("mlm"), 0) if self.config.sed.start == "mlm" else self._start

    def _make_learners(self) -> None:
        recipes, sed = self.distilling, self.config.sed
        stage = "+".join(recipe.uncalibrated for recipe in recipes)
        for recipe in recipes:
            keep = "best_on_dev" if "sts" in recipe.members else sed.keep
            for index in range(sed.learners):
                self._add_learner(recipe.uncalibrated, keep, index, stage)
        for recipe in recipes:
            for index in range(sed.learners):
                of = recipe.uncalibrated
                self._embed(of, "learner", index, f"{of}/learners/{index:02d}", f"learner {index:02d} of {of}")

    def _add_learner(self, recipe: str, keep: str, index: int, stage: str) -> None:
        config, sed = self.config, self.config.sed
        # What counts for targets is part of these.
        block = sed.model_copy(update={"target_precision": "fp32", "start": "encoder", "keep": keep})
        settings = {"sed": block, "keep": keep, "seed": derive_seed(config.seed, recipe, "learner", index)}
        inputs = {"encoder": self._encoder, "start": self._start_of_learners(), "targets": f"{recipe}/targets"}
        beside: dict[str, Any] = {"how": {"max_retries": sed.max_retries}}
        if self._dev and sed.start == "encoder" and not sed.head:
            beside["base"] = _BASE_EMBEDDINGS
        (inputs if keep == "best_on_dev" else beside)["dev"] = self._dev
        memory = partial(need_of_learner, config, self.shape)
        about = {"by": "train", "options": {"worker": models.train_learners, "memory": memory, "workers": sed.workers}}
        kept = {"inputs": inputs, "settings": settings, "beside": beside}
        name, title = f"{recipe}/learners/{index:02d}", f"learner {index:02d} of {recipe}"
        self._add(name, title, models.learner, stage, **about, **kept)

    # calibrations

    def _calibrations_of_base(self) -> list[Recipe]:
        """The base under every calibration of the run, and whitened: the best row that costs no training.

        Whitening is left out where nothing else would read the text that it is fitted on.
        """
        config = self.config
        texts = [on_base(recipe) for recipe in self.job.recipes if recipe.calibration]
        if texts or config.flow.fit_on == "tasks" or (config.flow.fit_on == "corpus" and self.job.needs_corpus):
            texts.append(f"{BASE}-{WHITEN}")
        return [parse_recipe(text) for text in dict.fromkeys(texts)]

    def _calibrate(self, recipe: Recipe, may_fail: bool) -> None:
        if recipe.text in self.scored:
            return
        config, main = self.config, self.config.encoder.layers
        of_models = self.scored.get(recipe.uncalibrated, [])
        fits = config.flow.fits if "flow" in recipe.calibration and len(of_models) == 1 else 1
        for of in of_models:
            for fit in range(fits):
                poolings = of.poolings if fit == 0 else (main,)  # side tables have one
                settings = {
                    "stages": list(recipe.calibration),
                    "flow": config.flow,
                    "calibration": config.calibration,
                    "seed": derive_seed(config.seed, recipe.text, of.index, *([fit] if fit else [])),
                    "layers": list(poolings),
                    "main": poolings.index(main),
                }
                model = of.model
                if isinstance(model, Pick):  # equal vectors cannot be calibrated
                    model = Pick(model.outcome, model.index, "sound")
                inputs = {"embeddings": of.embeddings, "model": model, "sentences": self._sentences}
                inputs |= {"encoder": self._encoder, **self._text_to_fit(settings)}
                if "natsv" in recipe.calibration and config.calibration.natsv_k == "dev":
                    inputs["dev"] = self._dev
                index = of.index + fit
                name, title = f"{recipe.text}/calibrations/{index:02d}", f"calibration {index:02d} of {recipe.text}"
                options = {"on_cpus": config.flow.fit_on == "tasks"}
                about = {"by": "task", "group": of.embeddings, "may_fail": may_fail, "options": options}
                about["say"] = _say_unfitted
                kept = {"inputs": inputs, "settings": settings, "beside": {"poolings": list(of.poolings)}}
                self._add(name, title, scores.calibration, "calibration", **about, **kept)
                self._score(recipe.text, of.kind, index, name, poolings, of.model, of.probes)

    def _text_to_fit(self, settings: dict[str, Any]) -> dict[str, Input | None]:
        fit_on = self.config.flow.fit_on
        if fit_on == "tasks":
            return {"text": None}
        settings["run_seed"] = self.config.seed
        if fit_on in FIT_ON:
            return {"text": "corpus" if fit_on == "corpus" else f"pairs/{fit_on}"}
        return {"text": Given(self.job.inputs["fit_on"], CorpusConfig(source=fit_on))}

    # further tasks

    def _probe(self) -> None:
        """The base, teachers, and members and learners of every recipe, the first of each or all."""
        config, further = self.config, self.job.further
        transfer = config.evaluation.transfer
        layers = transfer.layers or config.encoder.layers
        tokens = self._tokens(further.sentences)
        sentences = Given(further.identity, Sentences(further.sentences, tokens))
        given = {"further": Given(further.identity, further)}
        seed = {"seed": transfer.seed}
        probed: list[tuple[ScoredModel, str]] = []
        vectors: dict[tuple[str, int], str] = {}
        for scored in self._probed():
            recipe = parse_recipe(scored.recipe)
            key = recipe.uncalibrated, scored.index
            if recipe.calibration and (layers not in scored.poolings or config.flow.per_task):
                continue
            if key not in vectors:
                vectors[key] = self._add_probe_embeddings(*key, scored, sentences, layers)
            if vectors[key]:
                probed.append((scored, vectors[key]))
        if further.transfer:
            about = {"inputs": given, "settings": seed}
            self._add(f"{TF_IDF}/transfer/00", "transfer tasks", scores.word_probes, "transfer", **about)
        for scored, name in probed:
            calibrated = scored.embeddings if parse_recipe(scored.recipe).calibration else None
            inputs = {"vectors": name, "calibration": calibrated, **given}
            about = {"inputs": inputs, "settings": {**seed, "layers": layers}}
            name = f"{scored.recipe}/transfer/{scored.index:02d}"
            self._add(name, "transfer tasks", scores.probes, "transfer", **about)

    def _probed(self) -> Iterator[ScoredModel]:
        asked = {on_base(recipe) for recipe in self.job.recipes} | {recipe.text for recipe in self.job.recipes}
        many = None if self.config.evaluation.transfer.models == "all" else 1
        for recipe in self.recipes():
            group = self.scored.get(recipe, [])
            if group and (group[0].kind != "base" or recipe in {BASE, *asked}):
                yield from group[: None if recipe == TEACHERS else many]

    def _add_probe_embeddings(
        self, recipe: str, index: int, scored: ScoredModel, sentences: Given, layers: Layers
    ) -> str:
        name, title = f"{recipe}/probes/{index:02d}", f"embeddings for probes by {recipe}"
        if recipe != TEACHERS:
            inputs = {"encoder": self._encoder, "model": scored.probes or scored.model, "sentences": sentences}
            about = {"by": "task", "inputs": inputs, "settings": {"layers": [layers]}, "is_intermediate": True}
            return self._add(name, title, scores.embeddings, "transfer", **about)
        teacher = self.job.teachers[index]
        if teacher.is_made_by_run or index in self.job.unprobed:  # the members are scored themselves
            return ""
        inputs = {"teacher": Given(teacher.identity, teacher), "sentences": sentences}
        about = {"inputs": inputs, "settings": {"layers": layers}, "is_intermediate": True}
        return self._add(name, title, scores.teacher_embeddings, "transfer", **about)

    # what executes it, and what the report reads

    def how(self) -> How:
        """Return how the run is executed."""
        config = self.config
        return How(
            config.resources,
            config.tracking,
            config.run,
            members=config.members.count,
            learner_workers=config.sed.workers,
            stack=config.members.stack,
            hub_models=self.job.hub_models,
            check_room=self._check_room,
            settings=dump_config(config),
            notes=self.notes,
        )

    def _check_room(self, cluster: Cluster, sentences: int | None, free: int | None) -> None:
        """Refuse a disk that is too small, and a training that fits on no node."""
        job, rows = self.job, known_rows(self.job)
        if job.needs_corpus and sentences is not None:
            rows["corpus"] = sentences
        bytes_ = plan_run(self.config, job.recipes, self.shape, rows, cluster, widths=job.widths).storage
        needed = sum(bytes_.values())
        if free is not None and free < needed:
            most = max(bytes_, key=bytes_.__getitem__)
            raise UserError(
                f"storage: {self.config.storage}/{self.config.run} has {free / 1e9:.1f} GB free, but this run needs "
                f"about {needed / 1e9:.1f} GB, {bytes_[most] / 1e9:.1f} of them for {most}; free some space, or "
                "choose another --storage"
            )

    def recipes(self) -> list[str]:
        """Return all that is scored, in reading order: the base, then every recipe's, calibrated ones after."""
        texts = [BASE, *(recipe.text for recipe in self._calibrations_of_base())]
        for recipe in self.job.recipes:
            texts += [recipe.ensemble, *([recipe.uncalibrated] if recipe.distils else []), recipe.text]
        return list(dict.fromkeys(texts))

    def totals(self) -> dict[str, int]:
        """Return how many trainings of each kind the run has, by the directory that they lie in, and teachers."""
        found = {}
        for node in (node for depth in member_nodes(self.job.recipes) for node in depth):
            found[f"{node}/{'grid' if node.endswith('sts') else 'members'}"] = trainings_of(node, self.config)
        return found | {f"{recipe.uncalibrated}/learners": self.config.sed.learners for recipe in self.distilling}

    def titles(self) -> dict[str, str]:
        """Return what people call stages, and the directories of `totals`."""
        titles = {
            "corpus": "reading the corpus",
            "pairs": "reading labelled pairs",
            "views": "making views",
            "encoder": "making the encoder",
            "evaluation": "embedding the sentences of the evaluation",
            "teachers": "asking the teachers",
            "combination": "combining the teachers",
            "calibration": "fitting calibrations",
            "transfer": "transfer tasks",
            "report": "scores, export and report",
        }
        for artefact in self.graph.artefacts.values():
            stage, by = artefact.needs.stage, artefact.needs.by
            recipes = " and ".join(part.removesuffix("/targets") for part in stage.split("+"))
            kinds = {"tune": "members of", "train": "learners of", "blocks": "mean of the members for"}
            if by in kinds:
                titles.setdefault(stage, f"{kinds[by]} {recipes}")
        for place in self.totals():
            node, _, kind = place.rpartition("/")
            titles.setdefault(place, f"{'grid models' if kind == 'grid' else kind} of {node}")
        return titles

    def _say_choices(self, taught: Entry) -> Iterator[str]:
        yield from choices(self.job, taught)
        for name, reason in teachers_left_out(self.job, taught).items():
            yield f"left out: {name}: {reason}"


def on_base(recipe: Recipe) -> str:
    """Return the recipe of the untouched encoder with the same calibration."""
    return "-".join([BASE, *recipe.calibration])


def _say_summary(what: str, entry: Entry) -> Iterable[str]:
    return [f"{what}: {entry.meta['summary']}"]


def _say_unfitted(entry: Entry) -> Iterator[str]:
    if why := scores.poolings_without_fit(entry.meta):
        yield f"left out: {entry.name}: {why}"


def _say_outcome(node: str, entry: Entry) -> Iterator[str]:
    for name, reason in entry.meta["left_out"].items():
        yield f"left out: {name}: {reason}"
    if grid := entry.meta.get("grid"):
        yield f"{node}: lower bound {grid['winner']:g} wins with {grid['score']:.2f} on {grid['task']}"
