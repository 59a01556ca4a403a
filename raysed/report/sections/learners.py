"""Distance of learners from their target, the members' mean."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from raysed.report.results import RunResults
from raysed.report.section import Block, Section
from raysed.store.text import Table, number


def _learners(run: RunResults) -> list[dict[str, Any]]:
    """Return mean squared distances per dimension on the evaluation's sentences, by recipe.

    Each model's mean vector is subtracted first, because `sed.target: centred_mean` omits it. Models pool their last
    layer, as learners train, if the run scored that pooling.
    """
    found = []
    # External teachers have other widths and their own pooling.
    recipes = {recipe.uncalibrated: recipe for recipe in run.job.recipes if recipe.distils and recipe.members}
    for recipe in recipes.values():
        learners, members = run.models_of(recipe.uncalibrated), run.models_of(recipe.ensemble)
        layers = 1 if 1 in learners[0].poolings else None
        centred = []
        for group in (learners, members):
            embeddings = [np.asarray(run.embeddings(model, layers), np.float64) for model in group]
            centred.append([x_UD - x_UD.mean(0) for x_UD in embeddings])
        mean_UD = np.mean(centred[1], axis=0)
        distances = [float(np.mean([((x_UD - mean_UD) ** 2).mean() for x_UD in models])) for models in centred]
        about = {"recipe": recipe.uncalibrated, "updates": int(run.meta(learners[0].weights)["steps"])}
        of_members = distances[1] if len(members) > 1 else None  # one is its own mean
        found.append({**about, "distance": distances[0], "members_distance": of_members})
    return found


def _blocks(learners: list[dict[str, Any]], run: RunResults) -> Iterator[Block]:
    columns = {
        "recipe": lambda learner: learner["recipe"],
        "updates": lambda learner: f"{learner['updates']:,}",
        "distance": lambda learner: f"{learner['distance']:.2g}",
        "distance of the members": lambda learner: number(learner["members_distance"], ".2g"),
    }
    yield Table.of(learners, columns, text=1)


SECTIONS = [
    Section(
        "learners",
        "Learners",
        90,
        _learners,
        "Mean squared distance of each recipe's learners, and of its members, from the learners' target: the members' "
        "mean. A learner farther away than the members had too few updates.",
        blocks=_blocks,
    )
]
