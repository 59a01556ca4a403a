"""How far learners are from the members' mean: what a learner has learnt."""

from typing import Any

import numpy as np

from raysed.report.results import Run
from raysed.report.section import Section
from raysed.store.text import Table


def _learners(run: Run) -> list[dict[str, Any]]:
    """Return mean squared distances per dimension on the evaluation's sentences, by recipe.

    At the pooling that learners are trained with where the run has it; less each model's mean, which
    `sed.target: centred_mean` leaves out.
    """
    found = []
    for recipe in {recipe.uncalibrated: recipe for recipe in run.job.recipes if recipe.distils}.values():
        if not recipe.members:  # teachers have other widths, and a pooling of their own
            continue
        learners, members = run.of(recipe.uncalibrated), run.of(recipe.ensemble)
        layers = 1 if 1 in learners[0].poolings else None
        centred = []
        for group in (learners, members):
            embeddings = [np.asarray(run.embeddings(model, layers), np.float64) for model in group]
            centred.append([x_UD - x_UD.mean(0) for x_UD in embeddings])
        mean_UD = np.mean(centred[1], axis=0)
        distances = [float(np.mean([((x_UD - mean_UD) ** 2).mean() for x_UD in models])) for models in centred]
        about = {"recipe": recipe.uncalibrated, "updates": int(run.meta(learners[0].weights)["steps"])}
        found.append({**about, "distance": distances[0], "members_distance": distances[1]})
    return found


SECTIONS = [
    Section(
        "learners",
        "Learners",
        90,
        _learners,
        "Mean squared distance of the learners from the members' mean, which they learn, and that of the members "
        "themselves. A learner that is farther away than the members had too few updates.",
        tables=lambda learners, report: Table.of(
            learners,
            {
                "recipe": lambda one: one["recipe"],
                "updates": lambda one: f"{one['updates']:,}",
                "distance": lambda one: f"{one['distance']:.2g}",
                "distance of the members": lambda one: f"{one['members_distance']:.2g}",
            },
            text=1,
        ),
    )
]
