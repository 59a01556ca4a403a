"""One run of ensemble.yaml for each way of combining its teachers, and the scores of all of them in one table.

    python jobs/ensemble_then_distill.py --config benchmarks/ensemble-teachers.yaml
    python benchmarks/combinations.py --output FILE

All runs share a run directory, so every teacher is asked once.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import get_args

from raysed.config import CombinationConfig, load_config
from raysed.store.text import Table, number

from runs import report_of

HERE = Path(__file__).parent
CONFIG = HERE / "ensemble.yaml"
ALONE = {"the published one alone": 0, "the best one alone (sts-0)": 1}
WAYS = get_args(CombinationConfig.model_fields["how"].annotation)


def variants() -> dict[str, list[str]]:
    """Returns overrides of the config by what they are called."""
    teachers = [teacher.model_dump(include={"path", "name"}) for teacher in load_config(CONFIG).teachers]
    alone = {name: [f"teachers={json.dumps([teachers[index]])}"] for name, index in ALONE.items()}
    ways = {way: [f"combination.how={way}"] for way in WAYS}
    chosen = {f"{way}, chosen on dev": [*overrides, "combination.leave_out=true"] for way, overrides in ways.items()}
    return {**alone, **ways, **chosen}


def scores(report: dict, tasks: list[str]) -> dict[str, list[list[float]]]:
    """Returns the scores of teachers, of what they say together and of learners: by task, one for each model."""
    wanted = {
        ("teachers", "member"): "teachers",
        ("teachers", "ensemble"): "together",
        ("teachers-sed", "learner"): "learners",
    }
    found: dict[str, list[list[float]]] = {name: [] for name in wanted.values()}
    for row in report["rows"]:
        if name := wanted.get((row["recipe"], row["kind"])):
            found[name].append([row["metrics"][task]["spearman"] for task in tasks])
    return found


def main() -> None:
    """Runs them and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all scores; what is in it stays")
    parser.add_argument("--only", nargs="+", choices=list(variants()), help="these and no others")
    arguments = parser.parse_args()
    config = load_config(CONFIG)
    tasks = list(config.evaluation.tasks)
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for name in arguments.only or variants():
        overrides = [*variants()[name], "export.allow_worse=true"]  # all learners are wanted, whatever comes out
        report = report_of(CONFIG, config.run, Path(config.storage), overrides)
        found[name] = {**scores(report, tasks), "choices": report.get("choices", [])}
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    columns = [f"{what}, {task}" for task in tasks for what in ("together", "learners")]
    print(Table(["teachers", *columns], [[name, *_cells(scored, tasks)] for name, scored in found.items()]).plain())


def _cells(found: dict[str, list[list[float]]], tasks: list[str]) -> list[str]:
    """The score together, or of the only teacher, and mean and deviation of the learners, by task."""
    cells = []
    for place in range(len(tasks)):
        together = found["together"] or found["teachers"]
        learners = [scores[place] for scores in found["learners"]]
        spread = f"{number(statistics.fmean(learners))} ± {number(statistics.stdev(learners))}"
        cells += [number(together[0][place]), spread]
    return cells


if __name__ == "__main__":
    main()
