"""What to train when there is a teacher, and what when there is none: each way for some minutes on two cores.

    python benchmarks/equal_time.py --output FILE [--storage runs] [--only ct ...]

The numbers of updates below were chosen so that a whole run, start and scores included, takes five to eight minutes on
two idle cores of an Intel Xeon with AMX. FILE gets the seconds that it really took. What is in FILE is not done again.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from raysed.score.tasks import main_score
from raysed.store.text import Table, number

from harness import DATA, ROOT
from runs import report_of

CONFIG = ROOT / "benchmarks/distillation.yaml"
NEVER = 10**9
PAPERS = {
    "teachers": [],
    "encoder.layers": 2,
    "evaluation.layers": [2],
    "corpus.source": str(DATA / "corpus/wikipedia-12k.txt"),
    "members": {"count": 4, "evaluate_every": NEVER, "checkpoint_every": NEVER},
    "sed": {"evaluate_every": NEVER},
}
"""Three layers that behave like an encoder that was never tuned for sentences, and the papers' own learner."""
PAIRS = {"train": [str(DATA / "nli/snli-sample.tsv"), str(DATA / "nli/sick-train.tsv")]}
WAYS: dict[str, dict[str, Any]] = {
    "untrained": {**PAPERS, "recipes": ["base-whiten", "base-flow"]},
    "ct": {**PAPERS, "recipes": ["ct-sed", "ct-sed-flow"], "ct.steps": 540},
    "nli": {**PAPERS, "recipes": ["nli-sed", "nli-sed-flow"], "nli": {**PAIRS, "epochs": 1}},
    "bsl": {
        **PAPERS,
        "recipes": ["bsl", "bsl-flow"],
        "members.count": 1,
        "nli": PAIRS,
        "bsl": {"views": ["entailment"], "steps": 900, "learning_rate": 1e-4},
    },
    "sts": {
        **PAPERS,
        "recipes": ["sts-sed", "sts-sed-flow"],
        "sts": {"train": str(DATA / "sts/stsb-train.tsv"), "lower_bounds": [0.0, 0.3], "models": 2, "epochs": 1},
    },
    "first three layers": {"recipes": ["teachers-sed"], "sed.epochs": 1.05},
    "layers 0, 2, 5": {
        "recipes": ["teachers-sed"],
        "encoder.model_kwargs": {},
        "encoder.keep_layers": [0, 2, 5],
        "sed.epochs": 1.05,
    },
    "table": {
        "recipes": ["teachers-sed"],
        "encoder.model_kwargs": {},
        "encoder.static": {},
        "sed.learning_rate": 0.01,
        "sed.batch_size": 256,
        "sed.epochs": 3,
    },
}
"""Settings beside those of CONFIG, by name of the way."""


def main() -> None:
    """Runs them and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all scores; what is in it stays")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS), help="these ways")
    arguments = parser.parse_args()
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for name in arguments.only:
        if name not in found:
            found[name] = trained(name, arguments.storage)
            arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found).markdown())


def trained(name: str, storage: Path) -> dict[str, Any]:
    """Runs one way from nothing; returns its wall time and the scores by model and task."""
    run = "equal-" + name.replace(", ", "-").replace(" ", "-")
    shutil.rmtree(storage / run, ignore_errors=True)
    settings = {
        **WAYS[name],
        "evaluation.tasks.trecqa": str(DATA / "retrieval/trecqa-dev"),
        "export.recipe": WAYS[name]["recipes"][-1],
        "export.allow_worse": True,
    }
    began = time.monotonic()
    report = report_of(CONFIG, run, storage, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    seconds = time.monotonic() - began
    scores: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"]:
        for task, metrics in row["metrics"].items():
            if (score := main_score(metrics)) is not None:
                scores.setdefault(f"{row['recipe']} {row['kind']}", {}).setdefault(task, []).append(score)
    means = {model: {task: sum(all_) / len(all_) for task, all_ in tasks.items()} for model, tasks in scores.items()}
    return {"seconds": seconds, "scores": means}


def table(found: dict[str, Any]) -> Table:
    """Returns a line for each model, those that several runs share once."""
    tasks = list(dict.fromkeys(task for run in found.values() for scores in run["scores"].values() for task in scores))
    lines, seen = [], []
    for name, run in found.items():
        for model, scores in run["scores"].items():
            if (model, scores) in seen:
                continue
            seen.append((model, scores))
            lines.append([name, model, f"{run['seconds']:.0f}", *(number(scores.get(task)) for task in tasks)])
    return Table(["way", "model", "seconds", *tasks], lines)


if __name__ == "__main__":
    main()
