"""Everything about a run that can be checked before anything is started, and the identity of its inputs."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysed.config import Config, stable_hash
from raysed.corpus import check_corpus, corpus_fingerprint
from raysed.encoder import check_encoder, encoder_path
from raysed.errors import UserError
from raysed.evaluation.sts import Evaluation, StsTask, load_task
from raysed.recipe import Recipe, parse_recipes


@dataclass(frozen=True)
class Job:
    """A checked configuration.

    Attributes:
        config: the settings, with absolute paths.
        recipes: parsed.
        evaluation: all tasks, loaded.
        inputs: identities of encoder, corpus and tasks, for dependencies.
        layers: number of the encoder's blocks.
    """

    config: Config
    recipes: list[Recipe]
    evaluation: Evaluation
    inputs: dict[str, Any]
    layers: int

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
    if any(recipe.members for recipe in recipes):
        check_corpus(config.corpus)
    tasks = [load_task(name, task) for name, task in config.evaluation.tasks.items()]
    if not tasks:
        raise UserError("evaluation.tasks is empty; name at least one file of graded sentence pairs")
    evaluation = Evaluation(tasks, config.evaluation.aggregation)
    inputs = {
        "encoder": _encoder_identity(config),
        "corpus": {
            **corpus_fingerprint(config.corpus),
            **config.corpus.model_dump(mode="json", exclude={"source"}),
            "seed": config.seed,
        },
        "tasks": {task.name: _task_identity(task) for task in tasks},
    }
    inputs["dev"] = inputs["tasks"].get(config.evaluation.dev)
    return Job(config, recipes, evaluation, inputs, layers)


def _absolute_paths(config: Config) -> Config:
    """Workers have other working directories, so local paths are resolved here, once."""
    encoder = config.encoder.model_copy(update={"path": _absolute(config.encoder.path)})
    tasks = {
        name: task.model_copy(update={"source": _absolute(task.source)})
        for name, task in config.evaluation.tasks.items()
    }
    evaluation = config.evaluation.model_copy(update={"tasks": tasks})
    return config.model_copy(update={"encoder": encoder, "evaluation": evaluation})


def _absolute(path: str) -> str:
    return os.path.abspath(path) if os.path.exists(path) else path


def _encoder_identity(config: Config) -> dict[str, Any]:
    """What the weights are, not where they lie: a digest of local files, the commit of a hub model."""
    path = Path(encoder_path(config.encoder))
    settings = config.encoder.model_dump(mode="json", exclude={"path", "layers", "trust_remote_code"})
    if not path.is_dir():
        return {"id": str(path), **settings}
    files = sorted(p for p in path.iterdir() if p.suffix in (".json", ".safetensors", ".txt", ".model"))
    return {"files": stable_hash({p.name: _digest(p) for p in files}), **settings}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _task_identity(task: StsTask) -> str:
    return stable_hash([[name, *map(list, subset)] for name, subset in task.subsets.items()])
