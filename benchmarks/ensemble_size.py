"""What an ensemble gains with its size, and what learners keep of that: members that learnt from graded pairs, no CT.

    ../shared/data/teachers ../teachers
    python benchmarks/ensemble_size.py --output FILE [--storage runs]

Eight members (ensemble_size.yaml) in groups of 1, 2, 4 and 8 teach a learner per group and seed, each for as many
updates on the same sentences, from the same start; all targets are turned towards it. Scores are of pairs that neither
trained nor chose anything, with 95 % intervals over the items and the groups. What is in FILE is not trained again.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from headline import embedded

from raysed.config import load_config
from raysed.plan.check import load_evaluation
from raysed.process import prepare_process
from raysed.report.charts import GREEN, ORANGE, Chart
from raysed.score.intervals import interval, resample
from raysed.score.tasks import mean_score
from raysed.store.storage import Storage
from raysed.store.text import Table, number

from harness import ROOT
from runs import report_of

CONFIG = ROOT / "benchmarks/ensemble_size.yaml"
GROUPS = {1: [[0], [2], [4]], 2: [[0, 1], [2, 3], [4, 5]], 4: [[0, 1, 2, 3], [4, 5, 6, 7]], 8: [list(range(8))] * 2}
"""Members by the size of the ensemble; a learner for each group, of different seeds."""
DEV = "evaluation.tasks={stsb-dev: {source: ../shared/data/sts/stsb-dev.tsv, aggregation: all}}"
"""All that runs are scored on; the tests are embedded once, in the end."""
LEARN = {
    "recipes": "[teachers-sed]",
    "combination": "{how: mean, turn: true}",
    "corpus.source": "[../shared/data/corpus/english-38k.txt, ../shared/data/corpus/wikipedia-12k.txt]",
    "corpus.sentences": "49000",
    "sed": "{loss: mse, batch_size: 64, epochs: 2.09, learning_rate: 5.0e-4, decay: linear, evaluate_every: 800}",
}
YEARS = ("sts12", "sts13", "sts15")
SHOWN = 4.0
"""Points on the y axes: less would make chance look like a gain."""
KINDS = {"ensemble": ORANGE, "learner": GREEN}
"""What is scored of each size, and its colour."""


def main() -> None:
    """Trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all scores, and .png for the picture")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs and of the models")
    arguments = parser.parse_args()
    prepare_process()
    config, storage = load_config(CONFIG), arguments.storage.resolve()
    models = storage / f"{config.run}-models"
    if not (models / "members").exists():
        report_of(CONFIG, config.run, storage, [DEV])
        run = Storage(str(storage), config.run)
        for index in range(config.sts.models):
            shutil.copytree(run.fetch(f"sts/grid/0/{index:02d}"), models / f"members/{index:02d}")
    members = sorted((models / "members").iterdir())
    learners: dict[int, list[Path]] = {}
    for size, groups in GROUPS.items():
        for place, group in enumerate(groups):
            to = models / f"learners/{size}-{place}"
            if not to.exists():
                learn([members[index] for index in group], config.run, storage, seed=place, to=to)
            learners.setdefault(size, []).append(to)
    found = measured(members, learners)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found).markdown())
    picture(found, arguments.output.with_suffix(".png"))


def learn(members: list[Path], name: str, storage: Path, seed: int, to: Path) -> None:
    """Distils some members into one learner, kept in `to`."""
    teachers = json.dumps([{"path": str(path), "max_length": 64} for path in members])
    overrides = [f"{key}={value}" for key, value in LEARN.items()] + [f"teachers={teachers}", f"seed={seed}", DEV]
    run = f"{name}-learner"
    report_of(CONFIG, run, storage, overrides)
    shutil.copytree(Storage(str(storage), run).fetch("teachers-sed/learners/00"), to)


def measured(members: list[Path], learners: Mapping[int, list[Path]]) -> dict[str, dict[str, list[float]]]:
    """Returns by row and column the score, and the interval of the difference to members alone."""
    evaluation = load_evaluation(load_config(CONFIG))
    texts = tuple(evaluation.sentences)
    x_MND = [embedded(path, texts) for path in members]
    groups = {f"ensembles of {n}": [np.mean([x_MND[i] for i in g], axis=0) for g in of] for n, of in GROUPS.items()}
    groups |= {f"learners of {n}": [embedded(path, texts) for path in paths] for n, paths in learners.items()}
    groups = {"members": x_MND, **groups}
    scored = {name: [evaluation.score(x_ND) for x_ND in group] for name, group in groups.items()}
    outcomes = {name: [of.outcomes for of in group] for name, group in scored.items()}
    columns = {"stsb-test": ("stsb-test",), "years": YEARS, "trecqa": ("trecqa",)}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in groups}
    for seed, (column, tasks) in enumerate(columns.items()):
        draws = resample(evaluation, outcomes, tasks, seed=seed)
        for name, group in scored.items():
            scores = [mean_score(of.metrics, tasks) for of in group]
            of_one = draws["learners of 1"] if name.startswith("learners") else draws["members"]
            found[name][column] = [float(np.mean(scores)), *map(float, interval(draws[name] - of_one))]
    return found


def table(found: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Returns scores, and what each row has above one member, or above learners of one."""
    columns = next(iter(found.values()))
    header = ["models", *(title for column in columns for title in (column, "gain"))]
    rows = [
        [name, *(cell for score, low, high in of.values() for cell in (number(score), f"{low:+.1f} to {high:+.1f}"))]
        for name, of in found.items()
    ]
    return Table(header, rows)


def picture(found: Mapping[str, Mapping[str, list[float]]], path: Path) -> None:
    """Draws the scores against the number of members."""

    def draw(axes: Any, column: str) -> None:
        lines = {f"{kind}s of so many": [found[f"{kind}s of {n}"][column][0] for n in GROUPS] for kind in KINDS}
        for (name, line), colour in zip(lines.items(), KINDS.values(), strict=True):
            axes.plot(list(GROUPS), line, "o-", color=colour, label=name)
        middle = float(np.mean(list(lines.values())))
        axes.set(xlabel="members", ylabel=f"{column}, x100", ylim=(middle - SHOWN / 2, middle + SHOWN / 2))

    panels = [partial(draw, column=column) for column in next(iter(found.values()))]
    Chart("ensemble-size", "What an ensemble gains with its size, and its learner", panels).save(path)


if __name__ == "__main__":
    main()
