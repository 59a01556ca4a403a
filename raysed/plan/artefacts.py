"""What is known of a run's models once they are made, for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysed.config import Config, Layers
from raysed.make.scores import load_embeddings
from raysed.score.tasks import Embeddings
from raysed.store.storage import Storage


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


def load_calibrated(storage: Storage, name: str, layers: Layers) -> Embeddings:
    """Return what `Evaluation.score` takes, of a finished artefact of embeddings, calibrated or not."""
    return load_embeddings(storage.fetch(name), layers)
