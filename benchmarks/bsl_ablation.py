"""BSL's ablations of the momentum (table 6) and of the views (table 4) at the scale of a CPU: one run for each case.

    python benchmarks/bsl_ablation.py momentum --storage /tmp/ablation
    python benchmarks/bsl_ablation.py views --storage /tmp/ablation

All cases share a run directory, so that views are made once. Prints a Markdown table of the scores, and what the watch
for collapse said.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "momentum": [
        *({"bsl.momentum": momentum} for momentum in (0.999, 0, 0.5, 0.9, 0.99, 1)),
        *({"bsl.momentum": momentum, "bsl.predictor": "none"} for momentum in (0.999, 0)),
    ],
    "views": [{"bsl.views": f"[{kinds}]"} for kinds in ("mlm", "synonym", "same", "mlm, entailment")],
}
RUN = "bsl-ablation"


def run(case: dict, storage: Path, others: list[str]) -> dict:
    """Trains the members of one case; the views of the first one serve all."""
    settings = {
        "recipes": "[bsl]",
        "bsl.views": "[entailment]",
        "members.count": 2,
        "export.allow_worse": "true",
        **case,
    }
    items = [f"--set={key}={value}" for key, value in settings.items()] + [f"--set={item}" for item in others]
    job = [sys.executable, ROOT / "jobs/ensemble_then_distill.py", "--config", "bundled-bsl", "--run", RUN]
    subprocess.run([*job, "--storage", storage, *items], check=True, cwd=ROOT)
    return json.loads((storage / RUN / "report.json").read_text())


def line(report: dict, task: str) -> str:
    """A line of the table: scores of the members, and how many collapsed."""
    layers = report["config"]["encoder"]["layers"]
    rows = [row for row in report["rows"] if (row["recipe"], row["layers"]) == ("bsl", layers)]
    scores = [row["metrics"][task]["spearman"] for row in rows if row["kind"] == "member"]
    base = next(r for r in report["rows"] if (r["recipe"], r["layers"]) == ("base", layers))["metrics"][task][
        "spearman"
    ]
    run = Path(report["storage"])
    storage = Storage(str(run.parent), run.name)
    histories = [storage.fetch(f"bsl/members/{i:02d}") / "history.jsonl" for i in range(len(scores))]
    ends = [json.loads(history.read_text().splitlines()[-1]) for history in histories]
    measures = [statistics.fmean(end[name] for end in ends) for name in ("spread", "directions", "cosine")]
    bsl = report["config"]["bsl"]
    cells = [
        ", ".join(bsl["views"]),
        f"{bsl['momentum']:g}",
        bsl["predictor"],
        ", ".join(f"{score:.2f}" for score in scores),
        f"{statistics.fmean(scores):.2f}",
        f"{statistics.fmean(scores) - base:+.2f}",
        *(f"{measure:.2f}" for measure in measures),
        f"{len(report['members'])} of {len(scores)}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ablation", choices=CASES)
    parser.add_argument("--storage", type=Path, required=True, help="where the run lies")
    parser.add_argument("--task", default="stsb-dev", help="the task of the table")
    parser.add_argument("--set", dest="others", action="append", default=[], help="other settings, e.g. bsl.steps=100")
    arguments = parser.parse_args()
    lines = []
    for case in CASES[arguments.ablation]:
        report = run(case, arguments.storage.resolve(), arguments.others)
        report["storage"] = arguments.storage / RUN
        lines.append(line(report, arguments.task))
        print(lines[-1], flush=True)
    header = (
        "| views | momentum | predictor | seeds | mean | over the base | spread | directions | cosine | collapsed |"
    )
    print("\n".join([header, "|---|---:|---|---|---:|---:|---:|---:|---:|---:|", *lines]))


if __name__ == "__main__":
    main()
