"""Who is made from what: names, seeds and dependencies of everything that a run makes after its members.

An artefact is made again when something that it depends on has changed, so this is the place to look when it is not, or
when it should not be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysed.config import FIT_ON, Layers, ResourcesConfig, derive_seed, stable_hash
from raysed.plan.artefacts import (
    GRID_CHOICE,
    Calibration,
    Embedding,
    Learner,
    Member,
    ScoredModel,
    trainings_of,
)
from raysed.plan.check import Job
from raysed.recipe import BASE, SED, TEACHERS, WHITEN, Recipe, member_nodes, node_of, parse_recipe
from raysed.store.storage import Entry

_SED_WITHOUT_EFFECT = {
    *("learners", "workers", "zero_stage", "checkpoint_every", "evaluate_every", "max_retries", "patience", "start"),
    "target_precision",
}
"""Settings of `sed` that do not change a learner's weights, beyond the order of sums, or that count elsewhere."""


@dataclass
class Lineage:
    """The family tree of a run.

    Attributes:
        job: the checked configuration.
        ensembles: the finished members of every node that has been trained.
        encoder: the static encoder that was made here, where there is one.
        unfitted: by calibration that has been tried, the poolings at which there is none.
        unscored: teachers that know nothing of the evaluation's sentences.
        base_dev: the base's scores on the dev task, by correlation, where there is one; for histories of trainings.
    """

    job: Job
    ensembles: dict[str, list[Entry]] = field(default_factory=dict)
    encoder: Entry | None = None
    unfitted: dict[str, set[Layers]] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)
    base_dev: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = self.job.config

    def totals(self) -> dict[str, int]:
        """Returns how many trainings of each kind the run has, by the directory that they lie in, and teachers.

        E.g. 8 at `sts/grid`, 10 at `ct/members`, 3 at `ct-sed/learners`; fewer will be there where some fail.
        """
        totals = {}
        if self.config.teachers:
            totals[f"{TEACHERS}/members"] = len(self.config.teachers)
        for node in (node for depth in member_nodes(self.job.recipes) for node in depth):
            kind = "grid" if node.endswith("sts") else "members"
            totals[f"{node}/{kind}"] = trainings_of(node, self.config)
        for recipe in (recipe for recipe in self.job.recipes if recipe.distils):
            totals[f"{recipe.uncalibrated}/learners"] = self.config.sed.learners
        return totals

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
            f"{TEACHERS}/members": "teachers",
        }
        for depth in member_nodes(self.job.recipes):
            titles["+".join(depth)] = f"members of {' and '.join(depth)}"
        for place in self.totals():
            node, _, kind = place.rpartition("/")
            titles.setdefault(place, f"{'grid models' if kind == 'grid' else kind} of {node}")
        learners = [recipe.uncalibrated for recipe in self.job.recipes if recipe.distils]
        titles["+".join(learners)] = f"learners of {' and '.join(learners)}"
        return titles

    def models(self) -> list[ScoredModel]:
        """Returns all models of the run in reading order: the base, then every recipe's, calibrated ones after."""
        texts = [BASE, *(recipe.text for recipe in self.calibrations_of_base())]
        for recipe in self.job.recipes:
            texts += [recipe.ensemble, *([recipe.uncalibrated] if recipe.distils else []), recipe.text]
        return [model for text in dict.fromkeys(texts) for model in self._models(parse_recipe(text))]

    def _models(self, recipe: Recipe) -> list[ScoredModel]:
        kind = "base" if recipe.ensemble == BASE else "learner" if recipe.distils else "member"
        if recipe.calibration:
            named = [(fit.name, fit.index, fit.poolings, fit.embedding) for fit in self.calibrations(recipe)]
        else:
            named = [(of.name, of.index, of.poolings, of) for of in self.embeddings(recipe.uncalibrated)]
        collapsed, models = self.collapsed(), []
        for name, index, poolings, of in named:
            poolings = tuple(layers for layers in poolings if layers not in self.unfitted.get(name, ()))
            if self.config.encoder.layers in poolings:
                models.append(ScoredModel(recipe.text, kind, index, name, poolings, of.model, of.model in collapsed))
        return models

    def calibrations_of_base(self) -> list[Recipe]:
        """Returns the base under every calibration of the run, and whitened: the best row that costs no training.

        It is left out where nothing else would read the text that it is fitted on.
        """
        texts = [on_base(recipe) for recipe in self.job.recipes if recipe.calibration]
        if (
            texts
            or self.config.flow.fit_on == "tasks"
            or (self.config.flow.fit_on == "corpus" and self.job.needs_corpus)
        ):
            texts.append(f"{BASE}-{WHITEN}")
        return [parse_recipe(text) for text in dict.fromkeys(texts)]

    def corpus(self) -> dict[str, Any]:
        """What the corpus and everything learnt from it depend on."""
        return {"corpus": self.job.inputs["corpus"], "encoder": self.job.inputs["encoder"]}

    def texts(self, kind: str) -> dict[str, Any]:
        """What the text of the views of a kind depends on."""
        return {kind: self.job.inputs[f"views/{kind}"]}

    def views(self, kind: str) -> dict[str, Any]:
        """What the table of views of a kind depends on."""
        return {"encoder": self.job.inputs["encoder"], **self.texts(kind)}

    def healthy(self, node: str) -> list[Entry]:
        """Returns the members of a node that have not collapsed: those that are continued and averaged."""
        return [entry for entry in self.ensembles[node] if "collapsed" not in entry.meta]

    def collapsed(self) -> set[str]:
        """Returns the names of all members that have collapsed."""
        return {e.name for entries in self.ensembles.values() for e in entries if "collapsed" in e.meta}

    def parents(self, node: str) -> list[Entry | None]:
        """Returns the models that a node continues; None stands for the pre-trained encoder."""
        before, _, stage = node.rpartition("-")
        if before:
            return list(self.healthy(before))
        return [self.encoder] * (self.config.sts.models if stage == "sts" else self.config.members.count)

    def grid_choice(self, group: Sequence[Member]) -> dict[str, Any]:
        """What the choice of a grid's lower bound depends on."""
        sts = self.config.sts.model_dump(mode="json", include=GRID_CHOICE)
        return {
            "models": stable_hash([m.depends for m in group]),
            **sts,
            "min_members": self.config.members.min_members,
        }

    def targets(self, recipe: Recipe) -> tuple[str, dict[str, Any]]:
        """Returns name and dependencies of a recipe's target table."""
        teachers = {entry.name: entry.fingerprint for entry in self.healthy(recipe.ensemble)}
        depends = {"teachers": teachers, **self.corpus(), **of_precision(self.config.resources)}
        if self.config.sed.target_precision != "fp32":
            depends["precision"] = self.config.sed.target_precision
        if recipe.ensemble == TEACHERS:
            depends["combination"] = self.config.combination.model_dump(mode="json")
            if self.config.combination.chooses_on_dev:
                depends["selection"] = {"dev": self.job.inputs["dev"], "layers": self.config.encoder.layers}
            if self.config.sed.widths:
                depends["order"] = "principal directions"
            if self.config.sed.head:
                depends["width"] = "of the combination"
        return f"{recipe.uncalibrated}/targets", depends

    def teachers(self) -> dict[int, tuple[str, dict[str, Any]]]:
        """Names and dependencies of the teachers by number: of those from outside, and of members that are trained."""
        found = {}
        for index, (teacher, identity) in enumerate(zip(self.config.teachers, self.job.inputs["teachers"])):
            depends = {"teacher": identity}
            if teacher.is_members:
                node = node_of(teacher, self.job.recipes)
                if node not in self.ensembles:
                    continue
                depends = {"members": {entry.name: entry.fingerprint for entry in self.healthy(node)}}
            found[index] = (f"{TEACHERS}/members/{index:02d}", depends)
        return found

    def asked(self, index: int) -> Embedding:
        """Returns what is to be embedded by a teacher: the evaluation's sentences."""
        (name, depends), layers = self.teachers()[index], self.config.encoder.layers
        if self.config.teachers[index].is_members:
            return self._embedding(TEACHERS, index, name, stable_hash(depends), (layers,))
        # Whatever encoder is to learn from it, a teacher from outside says the same.
        needs = {"teacher": stable_hash(depends), "tasks": self.job.inputs["tasks"], "layers": [layers]}
        return Embedding(f"{TEACHERS}/embeddings/{index:02d}", name, (layers,), needs, index)

    def means_of_members(self) -> dict[int, str]:
        """Returns the target tables of the ensembles that are teachers, by the teacher's number."""
        return {
            index: self.targets(parse_recipe(f"{node_of(teacher, self.job.recipes)}-{SED}"))[0]
            for index, teacher in enumerate(self.config.teachers)
            if teacher.is_members
        }

    def together(self) -> tuple[str, dict[str, Any]]:
        """Returns name and dependencies of what the combined teachers make of the evaluation's sentences."""
        _, targets = self.targets(parse_recipe(f"{TEACHERS}-sed"))
        depends = {"targets": stable_hash(targets), "tasks": self.job.inputs["tasks"]}
        return f"{TEACHERS}/together", {**depends, "layers": self.config.encoder.layers}

    def learners(self, recipe: Recipe) -> list[Learner]:
        """Returns the learners of a recipe."""
        targets, target_depends = self.targets(recipe)
        settings = self.config.sed.model_dump(mode="json", exclude=_SED_WITHOUT_EFFECT)
        keep = "best_on_dev" if "sts" in recipe.members else self.config.sed.keep
        start = self._start_of_learners()
        depends = {"targets": stable_hash(target_depends), "sed": {**settings, "keep": keep}, **self.corpus()}
        if start:
            depends["start"] = start.fingerprint
        if keep != "last":
            depends["selection"] = self.config.sed.model_dump(include={"evaluate_every", "patience"})
        if keep == "best_on_dev":
            depends["selection"] |= {"dev": self.job.inputs["dev"], "layers": self.config.encoder.layers}
        is_base = self.config.sed.start == "encoder" and not self.config.sed.head
        start_dev = self.base_dev.get("spearman") if is_base else None
        learners = []
        for index in range(self.config.sed.learners):
            seed = derive_seed(self.config.seed, recipe.uncalibrated, "learner", index)
            name = f"{recipe.uncalibrated}/learners/{index:02d}"
            needs = {**depends, "seed": seed}
            learners.append(Learner(name, seed, targets, needs, start and start.name, keep, start_dev))
        return learners

    def _start_of_learners(self) -> Entry | None:
        """The pre-trained encoder (None, unless it was made here), or the first member after `mlm`."""
        return self.ensembles["mlm"][0] if self.config.sed.start == "mlm" else self.encoder

    def embeddings(self, uncalibrated: str) -> list[Embedding]:
        """Returns what is to be embedded for the models of a recipe without calibration."""
        recipe = parse_recipe(uncalibrated)
        main = self.config.encoder.layers
        poolings = tuple(dict.fromkeys([*self.config.evaluation.layers, main]))
        if recipe.ensemble == BASE:
            made = self.encoder and self.encoder.name
            return [self._embedding(BASE, 0, made, self.job.inputs["encoder"], poolings)]
        if recipe.distils:
            finished = [(learner.name, stable_hash(learner.depends)) for learner in self.learners(recipe)]
        else:
            finished = [(entry.name, entry.fingerprint) for entry in self.ensembles[recipe.ensemble]]
        if recipe.text == TEACHERS:  # they bring their own pooling
            poolings = (main,)
        return [
            self._embedding(uncalibrated, index, name, print_, poolings)
            for index, (name, print_) in enumerate(finished)
            if name not in self.unscored
        ]

    def _embedding(self, node: str, index: int, model: str | None, identity: Any, poolings: tuple) -> Embedding:
        depends = {
            "model": identity,
            "encoder": self.job.inputs["encoder"],
            "tasks": self.job.inputs["tasks"],
            "layers": list(poolings),
        }
        return Embedding(f"{node}/embeddings/{index:02d}", model, poolings, depends, index)

    def calibrations(self, recipe: Recipe) -> list[Calibration]:
        """Returns what is to be fitted for a recipe: one for each of its models, or `flow.fits` of them."""
        settings = {
            "stages": list(recipe.calibration),
            "flow": self.config.flow.model_dump(mode="json", exclude={"fits"}),
            "calibration": self.config.calibration.model_dump(mode="json"),
        }
        fit_on = self.config.flow.fit_on
        if fit_on != "tasks":
            settings["text"] = self.job.inputs[fit_on if fit_on in FIT_ON else "fit_on"]
        if "natsv" in recipe.calibration and self.config.calibration.natsv_k == "dev":
            settings["selection"] = {"dev": self.job.inputs["dev"], "aggregation": self._dev_aggregation()}
        calibrations, collapsed, embeddings = [], self.collapsed(), self.embeddings(recipe.uncalibrated)
        fits = self.config.flow.fits if "flow" in recipe.calibration and len(embeddings) == 1 else 1
        for embedding in embeddings:
            if embedding.model in collapsed:  # equal vectors cannot be calibrated
                continue
            for fit in range(fits):
                seed = derive_seed(self.config.seed, recipe.text, embedding.index, *([fit] if fit else []))
                depends = {**settings, "embedding": stable_hash(embedding.depends), "seed": seed}
                index = embedding.index + fit
                name = f"{recipe.text}/calibrations/{index:02d}"
                poolings = embedding.poolings if fit == 0 else (self.config.encoder.layers,)  # side tables have one
                calibrations.append(Calibration(name, recipe.calibration, embedding, seed, depends, poolings, index))
        return calibrations

    def _dev_aggregation(self) -> str:
        evaluation = self.config.evaluation
        return evaluation.tasks[evaluation.dev].aggregation or evaluation.aggregation


def on_base(recipe: Recipe) -> str:
    """Returns the recipe of the untouched encoder with the same calibration."""
    return "-".join([BASE, *recipe.calibration])


def of_precision(resources: ResourcesConfig) -> dict[str, Any]:
    """Returns what tells embeddings in one precision from those in another; nothing where the machine chooses.

    >>> of_precision(ResourcesConfig()), of_precision(ResourcesConfig(encode_precision="bf16"))
    ({}, {'encode_precision': 'bf16'})
    """
    asked = resources.encode_precision
    return {} if asked == "auto" else {"encode_precision": asked}
