"""Everything about a run that can be checked before anything is started, and the identity of its inputs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from raysed.config import Config, CorpusConfig, stable_hash
from raysed.corpus import check_corpus, corpus_fingerprint
from raysed.encoder import check_encoder, encoder_path
from raysed.errors import UserError
from raysed.evaluation.sts import Evaluation, StsTask, load_task
from raysed.recipe import Recipe, parse_recipes
from raysed.storage import sha256_of


@dataclass(frozen=True)
class Job:
    """A checked configuration.

    Attributes:
        config: the settings, with absolute paths.
        recipes: parsed.
        evaluation: all tasks, loaded.
        inputs: identities of encoder, corpus, tasks and other text to fit on, for dependencies.
        layers: number of the encoder's blocks.
    """

    config: Config
    recipes: list[Recipe]
    evaluation: Evaluation
    inputs: dict[str, Any]
    layers: int

    @property
    def needs_corpus(self) -> bool:
        """Whether anything is trained or fitted on the corpus."""
        return _needs_corpus(self.config, self.recipes)

    @property
    def depends(self) -> dict[str, Any]:
        """What the finished run depends on: everything but where it lies."""
        settings = self.config.model_dump(mode="json", exclude={"storage", "run", "resources"})
        return {"config": settings, "inputs": self.inputs}


def check(config: Config) -> Job:
    """Checks recipes, encoder, corpus and tasks, without training or starting anything.

    Raises:
        UserError: names the setting or the file and line.
    """
    recipes = parse_recipes(config.recipes)
    if config.export.recipe and config.export.recipe not in config.recipes:
        raise UserError(
            f"export.recipe is {config.export.recipe!r}, which is not in recipes ({', '.join(config.recipes)})"
        )
    config = _absolute_paths(config)
    layers = check_encoder(config.encoder)
    for depth in config.evaluation.learner_layers:
        if isinstance(depth, int) and not 1 <= depth <= layers:
            raise UserError(f"evaluation.learner_layers has {depth}, but {config.encoder.path!r} has {layers} layers")
    corpus = _corpus_identity(config) if _needs_corpus(config, recipes) else None
    tasks = [load_task(name, task) for name, task in config.evaluation.tasks.items()]
    evaluation = Evaluation(tasks, config.evaluation.aggregation)
    inputs = {
        "encoder": _encoder_identity(config),
        "corpus": corpus,
        "tasks": {task.name: _task_identity(task) for task in tasks},
    }
    inputs["dev"] = inputs["tasks"].get(config.evaluation.dev)
    if config.flow.fit_on not in ("tasks", "corpus"):
        inputs["fit_on"] = _other_text(config.flow.fit_on)
    return Job(config, recipes, evaluation, inputs, layers)


def _absolute_paths(config: Config) -> Config:
    """Workers have other working directories, so local paths are resolved here, once."""
    encoder = config.encoder.model_copy(update={"path": _absolute(config.encoder.path)})
    tasks = {
        name: task.model_copy(update={"source": _absolute(task.source)})
        for name, task in config.evaluation.tasks.items()
    }
    evaluation = config.evaluation.model_copy(update={"tasks": tasks})
    flow = config.flow.model_copy(update={"fit_on": _absolute(config.flow.fit_on)})
    return config.model_copy(update={"encoder": encoder, "evaluation": evaluation, "flow": flow})


def _absolute(path: str) -> str:
    local = os.path.abspath(os.path.expanduser(path))
    return local if os.path.exists(local) and path not in ("tasks", "corpus") else path


def _needs_corpus(config: Config, recipes: list[Recipe]) -> bool:
    fits_on_it = config.flow.fit_on == "corpus" and any(recipe.calibration for recipe in recipes)
    return fits_on_it or any(recipe.members for recipe in recipes)


def _corpus_identity(config: Config) -> dict[str, Any]:
    check_corpus(config.corpus)
    settings = config.corpus.model_dump(mode="json", exclude={"source"})
    return {**corpus_fingerprint(config.corpus), **settings, "seed": config.seed}


def _other_text(source: str) -> dict[str, Any]:
    """Checks and identifies the text that calibrations are fitted on."""
    text = CorpusConfig(source=source)
    try:
        check_corpus(text)
        return corpus_fingerprint(text)
    except UserError as error:
        raise UserError(str(error).replace("corpus.source", "flow.fit_on")) from None


def _encoder_identity(config: Config) -> dict[str, Any]:
    """What the weights are, not where they lie: a digest of local files, the commit of a hub model."""
    path = Path(encoder_path(config.encoder))
    settings = config.encoder.model_dump(mode="json", exclude={"path", "layers", "trust_remote_code"})
    if not path.is_dir():
        return {"id": config.encoder.path, "commit": _cached_commit(config), **settings}
    files = sorted(p for p in path.iterdir() if p.suffix in (".json", ".safetensors", ".txt", ".model", ".py"))
    return {"files": stable_hash({p.name: sha256_of(p) for p in files}), **settings}


def _cached_commit(config: Config) -> str | None:
    """The hub's commit that was just loaded, by the name of its folder in the cache."""
    options = {key: value for key, value in config.encoder.model_kwargs.items() if key in ("cache_dir", "revision")}
    found = try_to_load_from_cache(config.encoder.path, "config.json", **options)
    return Path(found).parent.name if isinstance(found, str) else None


def _task_identity(task: StsTask) -> str:
    return stable_hash([[name, *map(list, subset)] for name, subset in task.subsets.items()])
