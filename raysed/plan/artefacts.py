"""What a run makes: every artefact's name, seed, start and dependencies, as objects, and how its arrays are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from raysed.config import Config, Layers, derive_seed
from raysed.model.affine import CalibrationMap, save_calibration
from raysed.registry import stages
from raysed.score.tasks import Embeddings
from raysed.store.storage import Entry, Storage

GRID_CHOICE = {"lower_bounds", "models", "criterion", "statistic", "scheduler", "asha_reduction", "asha_rungs"}
"""Settings of `sts` that decide which lower bound wins."""


_GRID_SETTINGS = {*GRID_CHOICE, "train", "evaluate_every"}
"""Settings of `sts` that a single grid model does not depend on (those that count in its selection stand there)."""


@dataclass(frozen=True)
class Member:
    """One model to train.

    Attributes:
        name: of its artefact, e.g. `ct/members/00` or `sts/grid/0.35/00`.
        stage: what it is trained to do.
        index: its number in the ensemble.
        seed: of its batches and of everything random in its updates.
        start: artefact of the model that it continues, None for the pre-trained encoder.
        depends: everything that its weights depend on.
        lower_bound: of a grid model.
        start_dev: dev score of the model that it continues, where it is known; for its history alone.
    """

    name: str
    stage: str
    index: int
    seed: int
    start: str | None
    depends: dict[str, Any]
    lower_bound: float | None = None
    start_dev: float | None = None


def plan_node(
    node: str,
    config: Config,
    inputs: Mapping[str, Any],
    parents: Sequence[Entry | None],
    base_dev: Mapping[str, float] | None = None,
) -> list[Member]:
    """Returns the members of one node of the recipe tree; of a grid, those of every lower bound.

    Args:
        node: e.g. `ct`, `nli-ct` or `sts`.
        inputs: identities of encoder, corpus, views, labelled pairs and dev task.
        parents: the finished models that the node continues, one each; None stands for the pre-trained encoder.
        base_dev: scores of the encoder that all recipes start from on the dev task, by correlation.
    """
    *before, stage = node.split("-")
    start_dev = (base_dev or {}).get(criterion_of(stage, config)) if not before else None
    if stage != "sts":
        return [_member(node, stage, i, config, inputs, start, start_dev) for i, start in enumerate(parents)]
    return [
        _member(node, stage, index, config, inputs, start, start_dev, bound)
        for bound in config.sts.lower_bounds
        for index, start in enumerate(parents[: config.sts.models])
    ]


def trainings_of(node: str, config: Config) -> int:
    """Returns how many models of a node are trained, if none of those that they continue is left out.

    Args:
        node: e.g. `ct`, `sts` or `sts-ct`.

    >>> config = Config(sts={"models": 3})
    >>> [trainings_of(node, config) for node in ("ct", "sts", "sts-ct")]
    [10, 60, 3]
    """
    *before, stage = node.split("-")
    if stage == "sts":
        return len(config.sts.lower_bounds) * config.sts.models
    return config.sts.models if "sts" in before else config.members.count


def criterion_of(stage: str, config: Config) -> str:
    """Returns the correlation that a stage's dev scores are.

    Args:
        stage: e.g. `sts`.
    """
    return config.sts.criterion if stage == "sts" else "spearman"


def _member(
    node: str,
    stage: str,
    index: int,
    config: Config,
    inputs: Mapping[str, Any],
    start: Entry | None,
    start_dev: float | None,
    bound: float | None = None,
) -> Member:
    # The models of all bounds share their seeds: they differ in the bound, not in the order of their batches.
    seed = derive_seed(config.seed, node, index)
    settings = config.model_dump(mode="json")[stage]
    tables = [table.removeprefix("pairs/") for table in stages()[stage].tables(getattr(config, stage))]
    tables = {name: inputs[name] for name in tables}
    settings = {key: value for key, value in settings.items() if bound is None or key not in _GRID_SETTINGS}
    depends = {"encoder": inputs["encoder"], **tables, stage: settings, "seed": seed}
    depends["precision"] = config.members.precision
    if start is not None:
        depends["start"] = start.fingerprint
    if settings.get("keep") == "best_on_dev" or bound is not None:
        depends["selection"] = {
            "dev": inputs["dev"],
            "layers": config.encoder.layers,
            "evaluate_every": stages()[stage].evaluate_every(getattr(config, stage), config.members),
        }
    if bound is None:
        name = f"{node}/members/{index:02d}"
        return Member(name, stage, index, seed, start and start.name, depends, start_dev=start_dev)
    depends |= {"lower_bound": bound, "criterion": config.sts.criterion}
    name = f"{node}/grid/{bound:g}/{index:02d}"
    return Member(name, stage, index, seed, start and start.name, depends, bound, start_dev)


@dataclass(frozen=True)
class Learner:
    """One learner to train.

    Attributes:
        name: of its artefact, e.g. `ct-sed/learners/00`.
        seed: of its batch order and dropout.
        targets: artefact of the target table.
        depends: everything that its weights depend on.
        start: artefact of the model that it starts from, None for the pre-trained encoder.
        keep: `last`, or with early stopping `best_on_dev` or `best_on_held_out`.
        start_dev: dev score of the model that it starts from, where it is known; for its history alone.
    """

    name: str
    seed: int
    targets: str
    depends: dict[str, Any]
    start: str | None = None
    keep: str = "last"
    start_dev: float | None = None


@dataclass(frozen=True)
class Embedding:
    """Embeddings to make: of the evaluation's sentences, by one encoder.

    Attributes:
        name: of the artefact, e.g. `ct/embeddings/00`.
        model: artefact of the encoder; None for the pre-trained one.
        poolings: one file each.
        depends: everything that the numbers depend on.
        index: of the model among its like.
    """

    name: str
    model: str | None
    poolings: tuple[Layers, ...]
    depends: dict[str, Any]
    index: int = 0


@dataclass(frozen=True)
class Calibration:
    """A calibration to fit per pooling (and task, with `flow.per_task`), and its version of the embeddings.

    Attributes:
        name: of the artefact, e.g. `ct-sed-flow/calibrations/00`.
        stages: e.g. `("flow",)` or `("sn", "natsv")`.
        embedding: what it is applied to.
        seed: of the fit.
        depends: everything that it depends on.
        poolings: those of the embedding that it is fitted at.
        index: among the recipe's calibrations: there may be several of one model.
    """

    name: str
    stages: tuple[str, ...]
    embedding: Embedding
    seed: int
    depends: dict[str, Any]
    poolings: tuple[Layers, ...]
    index: int = 0


@dataclass(frozen=True)
class ScoredModel:
    """One model and where its embeddings of the evaluation's sentences lie.

    Attributes:
        recipe: e.g. `ct-sed-flow`.
        kind: `base`, `member` or `learner`.
        index: number among its like.
        embeddings: artefact with a file per pooling.
        poolings: the poolings.
        weights: artefact of the encoder, None for the pre-trained one.
        left_out: whether it has collapsed: it is scored, and nothing else comes of it.
    """

    recipe: str
    kind: str
    index: int
    embeddings: str
    poolings: tuple[Layers, ...]
    weights: str | None
    left_out: bool = False


def first_healthy(models: Sequence[ScoredModel], recipe: str) -> ScoredModel | None:
    """Returns the first model of a recipe that has not collapsed, or the first one; None where there is none."""
    group = sorted((model for model in models if model.recipe == recipe), key=lambda model: model.left_out)
    return group[0] if group else None


@dataclass(frozen=True)
class Facts:
    """What the stages know apart from scores."""

    cluster: str
    corpus: Mapping[str, Any]
    left_out: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    grids: Sequence[Mapping[str, Any]] = ()
    transfer: Sequence[Mapping[str, Any]] = ()
    qnli: Mapping[str, float] = field(default_factory=dict)
    pairs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    together: str | None = None
    """Artefact of what the teachers from outside say as one; None where they were not combined or scored."""
    choices: Sequence[str] = ()
    """What was chosen of the teachers on the dev task, in a line each."""
    shares_space_of: str | None = None
    """The only teacher, where learners share its space."""


_OF_TASK = "embeddings.npy"


def write_calibrated(
    directory: Path, layers: Layers, task: str | None, calibration: CalibrationMap, embeddings_ND: np.ndarray
) -> None:
    """Writes a calibration and its version of the embeddings into an artefact's directory.

    Args:
        task: the task that it is for; None: all together.
        embeddings_ND: before it is applied: of the task's sentences, or of all.
    """
    folder = directory / f"layers-{layers}"
    file = directory / f"layers-{layers}.npy"
    if task is not None:
        folder = folder / quote(task, safe="")
        file = folder / _OF_TASK
    folder.mkdir(parents=True)
    save_calibration(calibration, folder)
    np.save(file, calibration.transform(embeddings_ND))


def load_calibrated(storage: Storage, name: str, layers: Layers) -> Embeddings:
    """Returns what `Evaluation.score` takes, of a finished artefact of embeddings, calibrated or not.

    Args:
        name: of the artefact, e.g. `ct/embeddings/00` or `ct-sed-flow/calibrations/00`.

    Returns:
        float32 [U, D]; where every task has a calibration of its own (`flow.per_task`), by task [U_task, D].
    """
    directory = storage.fetch(name)
    files = sorted((directory / f"layers-{layers}").glob(f"*/{_OF_TASK}"))
    if files:
        return {unquote(file.parent.name): np.load(file) for file in files}
    return np.load(directory / f"layers-{layers}.npy")
