"""Check all that can be checked before a run starts, and identify its inputs."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from raysed.config import PROMPTS, Config, CorpusConfig, Layers, fitted_on, stable_hash, with_absolute_paths
from raysed.data.corpus import check_corpus, corpus_fingerprint, queries_fingerprint
from raysed.data.pairs import PairRows, entailment, load_nli, load_views
from raysed.errors import UserError, public
from raysed.made import ExternalInput
from raysed.make.inputs import Sentences
from raysed.model.pretrained import (
    check_encoder,
    check_start,
    keeps_all_layers,
    load_tokenizer,
    text_tokenizer,
    width_of,
)
from raysed.model.prompts import Prompts, learner_prompts
from raysed.model.shape import Shape, shape_of
from raysed.model.teacher import Teacher, load_teacher
from raysed.model.vocabulary import check_vocabulary
from raysed.plan.consistency import check_depths, check_settings, check_width
from raysed.plan.tables import reads_corpus, view_kinds
from raysed.recipe import TEACHERS, Recipe, parse_recipes
from raysed.registry import stages
from raysed.score.seen import without_seen
from raysed.score.tasks import DevTask, Evaluation
from raysed.store.files import Watched
from raysed.store.hub import model_identity


@dataclass(frozen=True)
class Job:
    """A checked configuration, with absolute paths."""

    config: Config
    recipes: list[Recipe]
    evaluation: Evaluation
    inputs: dict[str, Any]
    """Identities of encoder, corpus, tasks and whatever else artefacts depend on."""
    pairs: dict[str, PairRows] = field(default_factory=dict)
    views: dict[str, PairRows] = field(default_factory=dict)
    """By kind that has a table."""
    teachers: Sequence[Teacher] = ()
    """Models that learners imitate, unloaded until needed."""
    widths: tuple[int, ...] = ()
    old: Teacher | None = None
    """The model whose space targets are rotated into."""
    unscored: frozenset[int] = frozenset()
    """Indices of teachers without embeddings of the evaluation's sentences."""
    watched: Mapping[str, list[Watched]] = field(default_factory=dict)
    """Files and models behind `inputs`, by the names there."""

    @property
    def needs_corpus(self) -> bool:
        """Whether anything is trained or fitted on the corpus."""
        return self.inputs["corpus"] is not None

    @property
    def depends(self) -> dict[str, Any]:
        """What the finished run depends on: all but its name, its storage, and how work is spread."""
        settings = self.config.model_dump(mode="json", exclude={"storage", "run", "resources"})
        return {"config": settings, "resources": self.config.resources.identity(), "inputs": self.inputs}

    @property
    def distilling(self) -> list[Recipe]:
        """One of each set of recipes with learners that differ only in calibration."""
        return list({recipe.uncalibrated: recipe for recipe in self.recipes if recipe.distils}.values())

    @property
    def is_combined(self) -> bool:
        """Whether learners imitate `teachers`."""
        return any(recipe.ensemble == TEACHERS for recipe in self.distilling)

    @property
    def poolings(self) -> list[Layers]:
        """Numbers of layers that embeddings of the evaluation pool."""
        return list(dict.fromkeys([*self.config.evaluation.pool_layers, self.config.encoder.pool_layers]))

    # What most steps read, prepared once.

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.config.encoder)

    @cached_property
    def prompts(self) -> Prompts:
        """Prompts of the run's own models, by role."""
        return learner_prompts(self.config.corpus, self.config.encoder)

    @cached_property
    def encoder(self) -> ExternalInput:
        return self.external("encoder", self.config.encoder)

    @cached_property
    def sentences(self) -> ExternalInput:
        """The evaluation's sentences, tokenised unless the run makes the tokenizer."""
        evaluation, tokens = self.evaluation, None
        if not self.config.encoder.static:
            tokenizer = text_tokenizer(self.config.encoder, prompts=self.prompts)
            tokens = tokenizer(evaluation.sentences, evaluation.roles)
        prompts = self.prompts if any(role in self.prompts for role in evaluation.roles) else {}
        # Rows of embeddings follow the order of the tasks, which equal dicts need not share.
        identity = [self.inputs["tasks"], list(evaluation.tasks), prompts]
        return ExternalInput(identity, Sentences(evaluation, tokens, self.prompts))

    @cached_property
    def dev(self) -> ExternalInput | None:
        """The dev task."""
        name, tokens = self.config.evaluation.dev, self.sentences.value.tokens
        if name is None:
            return None
        own = Evaluation([self.evaluation.tasks[name]])
        rows = self.evaluation.rows_of(own)
        dev = DevTask(own, tokens and tokens.take(rows), rows, self.config.encoder.pool_layers, self.prompts)
        return ExternalInput(dev.identity, dev)

    def external(self, name: str, value: Any = None) -> ExternalInput:
        """Return one of `inputs`, with the files behind it."""
        return ExternalInput(self.inputs[name], value, self.watched[name])


def check(config: Config) -> Job:
    """Check recipes, encoder, corpus and tasks; train and start nothing."""
    recipes = check_settings(config)
    config = with_absolute_paths(config)
    _refuse_own_models(config)
    teachers = load_teachers(config)
    widths = check_teachers(config, teachers)  # before the encoder, which may be half of the first teacher
    config = _check_start(config)
    if config.sed.widths:
        check_width(config, width_of(config.encoder))
    old = _old_model(config) if config.old else None
    corpus, watched = None, defaultdict(list)
    if config.encoder.vocabulary:
        check_vocabulary(load_tokenizer(config.encoder), config.encoder.path)
    if config.encoder.static or config.encoder.vocabulary or any(reads_corpus(recipe, config) for recipe in recipes):
        check_corpus(config.corpus)
        sources = _look(watched["corpus"], "corpus.source", corpus_fingerprint, config.corpus)
        corpus = {**sources, **config.corpus.identity(), "seed": config.seed}
        if config.corpus.queries:
            corpus |= _look(watched["corpus"], "corpus.queries", queries_fingerprint, config.corpus)
    unused = {"path", "pool_layers", "vocabulary", "trust_remote_code", *PROMPTS}
    settings = config.encoder.model_dump(mode="json", exclude=unused)
    encoder = {**_look(watched["encoder"], "encoder.path", model_identity, config.encoder), **settings}
    if config.encoder.static:  # its vectors depend on the text, but not on queries
        encoder["corpus"] = {key: value for key, value in corpus.items() if key != "queries"}
    inputs = {"encoder": encoder, "corpus": corpus}
    pairs, views = _pairs_and_views(config, recipes)
    evaluation = _evaluation(config, recipes, pairs, views)
    inputs["tasks"] = {name: stable_hash(task.content()) for name, task in evaluation.tasks.items()}
    inputs |= {kind: rows.identity() for kind, rows in pairs.items()}
    inputs |= {f"views/{kind}": rows.identity() for kind, rows in views.items()}
    if config.flow.fit_on not in fitted_on():
        text = CorpusConfig(source=config.flow.fit_on)
        try:
            check_corpus(text)
            inputs["fit_on"] = _look(watched["fit_on"], "flow.fit_on", corpus_fingerprint, text)
        except UserError as error:
            raise (error.at("flow.fit_on") if error.setting else error) from None
    inputs["teachers"] = [teacher.identity for teacher in (*teachers, old) if teacher]
    unscored = frozenset(i for i, teacher in enumerate(teachers) if not teacher.knows(evaluation.sentences))
    masking = [(recipe.text, stage) for recipe in recipes for stage in recipe.members if stages()[stage].masks]
    if masking and load_tokenizer(config.encoder).mask_token_id is None:
        recipe, stage = masking[0]
        raise UserError(
            f"recipe {recipe!r}: {stage} needs a mask token, but the tokenizer of encoder.path {config.encoder.path!r} "
            f"has none; leave {stage} out, or use an encoder that was trained with one"
        )
    return Job(config, recipes, evaluation, inputs, pairs, views, teachers, widths, old, unscored, watched)


def _refuse_own_models(config: Config) -> None:
    own = os.path.abspath(os.path.expanduser(os.path.join(config.storage, config.run)))
    models = [("teachers", teacher.path) for teacher in config.teachers]  # the learner may be half of the first
    models += [("encoder.path", config.encoder.path), ("combination.turn", config.combination.turn)]
    for setting, path in models:
        if "://" not in config.storage and isinstance(path, str) and os.path.abspath(path).startswith(f"{own}{os.sep}"):
            problem = f"{path!r} is in this run's own directory, whose model it replaces"
            raise UserError(f"{problem}; copy it elsewhere and name the copy", setting=setting)


def _check_start(config: Config) -> Config:
    """Check the encoder; return the config without `encoder.keep_layers` if that keeps all.

    The encoder is loaded if the run needs it only after teachers have embedded the corpus, or if it is cut.
    """
    try:
        check_depths(config, check_encoder(config.encoder))
        if keeps_all_layers(config.encoder):
            whole = config.encoder.model_copy(update={"keep_layers": None})
            config = config.model_copy(update={"encoder": whole})
        if config.teachers or config.encoder.is_cut:
            check_start(config.encoder.model_copy(update={"max_length": 3}))  # a static learner has no limit
    except UserError as error:
        if error.setting != "encoder.path" or config.encoder.path not in [block.path for block in config.teachers]:
            raise
        raise UserError(f"{error.problem.rstrip('.')}; name another learner", setting="teachers") from None
    return config


def load_evaluation(config: Config) -> Evaluation:
    """Read the tasks of a config as a run scores them, without the pairs that its recipes train on."""
    recipes = parse_recipes(config.recipes)
    return _evaluation(config, recipes, *_pairs_and_views(config, recipes))


def _pairs_and_views(config: Config, recipes: Sequence[Recipe]) -> tuple[dict[str, PairRows], dict[str, PairRows]]:
    """Return the training pairs by stage, and the views by kind."""
    names = {name for recipe in recipes for name in recipe.members}
    if config.flow.fit_on in stages() and any(recipe.calibration for recipe in recipes):
        names.add(config.flow.fit_on)
    loaded = {name: stages()[name].load_pairs(getattr(config, name)) for name in sorted(names)}
    pairs = {name: rows for name, rows in loaded.items() if rows is not None}
    kinds = dict.fromkeys(kind for recipe in recipes for kind in view_kinds(recipe, config))
    return pairs, {kind: _view_rows(kind, config, pairs.get("nli")) for kind in kinds}


def _evaluation(
    config: Config, recipes: Sequence[Recipe], pairs: Mapping[str, PairRows], views: Mapping[str, PairRows]
) -> Evaluation:
    trained = {stage for recipe in recipes for stage in recipe.members}  # a flow fits on pairs without their labels
    tables = {f"{name}.train": rows for name, rows in pairs.items() if name in trained}
    tables |= {f"views of the kind {kind}": rows for kind, rows in views.items()}
    items = {name: zip(rows.first, rows.second) for name, rows in tables.items()}
    return without_seen(Evaluation.load(config.evaluation), config.evaluation, items)


def load_teachers(config: Config) -> list[Teacher]:
    """Return the teachers; their models are loaded when they are first used, in fp32 unless bf16 is asked for."""
    precision = "bf16" if config.resources.encode_precision == "bf16" else "fp32"
    return [load_teacher(block, precision=precision, encoder=config.encoder) for block in config.teachers]


def check_teachers(config: Config, teachers: Sequence[Teacher]) -> tuple[int, ...]:
    """Check the teachers, loaded one at a time, and return their widths."""
    widths = []
    known: dict[str, Teacher] = {}
    for teacher in teachers:
        same = known.setdefault(teacher.identity, teacher)  # before loading: loaded files may be newer
        if same is not teacher:
            raise UserError(
                f"teachers: {same.config.path!r} and {teacher.config.path!r} are the same; name it once "
                "(combination.weights can double it)"
            )
        teacher.check()
        widths.append(teacher.width)
        teacher.unload()
    if len(set(widths)) > 1 and config.combination.how == "mean":
        listed = ", ".join(f"{teacher.title} {width}" for teacher, width in zip(teachers, widths))
        raise UserError(
            f"combination.how: mean needs teachers of equal width, but they have {listed}; use concatenated"
        )
    return tuple(widths)


def _old_model(config: Config) -> Teacher:
    (old,) = load_teachers(config.model_copy(update={"teachers": [config.old]}))
    width = width_of(config.encoder)
    try:
        old.check()
    except UserError as error:
        raise UserError(str(error).removeprefix("teachers: "), setting="combination.turn") from None
    if old.width != width:
        problem = f"{old.title} embeds in {old.width} numbers, but the learner in {width}; they must be equal"
        raise UserError(problem, setting="combination.turn")
    old.unload()
    return old


def _view_rows(kind: str, config: Config, nli: PairRows | None) -> PairRows:
    if kind == "files":
        return load_views(config.views)
    return entailment(nli or load_nli(config.nli.train))


def _look(watched: list[Watched], setting: str, look: Callable[[Any], Any], config: Any) -> Any:
    name = setting.rpartition(".")[2]
    what = public(f"{setting} {getattr(config, name if hasattr(config, name) else 'source')}")
    watched.append(found := Watched(what, partial(look, config), look(config)))
    return found.known
