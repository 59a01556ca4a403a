"""Rows, grids and trainings of made-up runs, for the tests of the report."""

import re
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from raysed.report import findings as made
from raysed.report.document import Document
from raysed.report.results import PairComparison
from raysed.report.scores import Row, ScoreTable
from raysed.report.section import all_sections

TASKS = ["sts12", "sts13"]


def row(recipe, kind, score, index=0, layers=2, lower_bound=None):
    """A model whose two headline scores are `score` - 1 and `score` + 1; the dev score is far off."""
    metrics = {
        "sts12": {"spearman": score - 1, "pearson": score, "pairs": 20, "aggregation": "mean"},
        "sts13": {"spearman": score + 1, "pearson": score, "pairs": 10, "aggregation": "mean"},
        "dev": {"spearman": score / 2, "pearson": score, "pairs": 5, "aggregation": "mean"},
    }
    return Row(recipe, kind, index, lower_bound, layers, metrics)


def scored(rows, **more):
    """Their table; without `draws`, every resample gives the same scores, so that each difference is clear."""
    more = {"measure": "Spearman, x100, mean over sts12, sts13", "sizes": dict.fromkeys(TASKS, "20 pairs"), **more}
    more["measures"] = dict.fromkeys(TASKS, "Spearman")
    table = ScoreTable(rows, TASKS, 2, **more)
    if "draws" in more:
        return table
    means = {(*group, "mean"): found["mean"] for group, found in table.groups.items()}
    means |= {(one.recipe, one.kind, one.index): one.average(TASKS) for one in table.counted}
    return replace(table, draws={key: np.full(2, mean) for key, mean in means.items() if mean is not None})


def full_run():
    """Shuffled on purpose: no table may depend on the order in which models were scored."""
    return [
        row("ct-sed-flow", "learner", 69.6),
        *(row("ct", "member", score, i) for i, score in enumerate([68.0, 70.0, 69.0])),
        row("base-flow", "base", 73.0),
        row("ct", "member", 99.0, layers=1),
        row("ct-sed", "learner", 70.0),
        row("ct-sed", "learner", 71.5, layers=1),
        row("ct", "ensemble", 70.8),
        row("base", "base", 66.0),
        row("word-overlap", "baseline", 60.0, layers=0),
    ]


def entry(summary, recipe, kind, task):
    (found,) = [e for e in summary if (e["recipe"], e["kind"], e["task"]) == (recipe, kind, task)]
    return found


def run_of(scores, dev=None, left_out=(), run="r"):
    """What the report reads of a run whose sections have their data, but no models."""
    evaluation = SimpleNamespace(dev=dev, report_tasks=lambda: TASKS)
    encoder = SimpleNamespace(trust_remote_code=False)
    return SimpleNamespace(
        scores=scores,
        costs={},
        config=SimpleNamespace(run=run, recipes=["ct"], evaluation=evaluation, encoder=encoder),
        facts=SimpleNamespace(left_out=dict(left_out), members={}),
        job=SimpleNamespace(recipes=[]),
        models=[],
        evaluation=SimpleNamespace(tasks={name: SimpleNamespace(kind="pairs") for name in (dev, *TASKS)}),
        storage=SimpleNamespace(uri=lambda name: f"runs/{run}/{name}"),
        pair_comparison=None,
        caveat="",
        choice=SimpleNamespace(model=SimpleNamespace(recipe="ct-flow")),
    )


def findings(rows, left_out=(), **scores):
    """Their texts, without intervals of a single number."""
    found = made.findings(run_of(scored(rows, **scores), left_out=left_out))
    return [re.sub(r" \((\S+) to \1\)", "", finding.text) for finding in found]


def report_of(rows=None, dev=None, left_out=(), **data):
    """A report of some rows; data by section, with `__` for a dot."""
    data = {name.replace("__", "."): part for name, part in data.items()}
    if dev:
        data["config"] = {"evaluation": {"dev": dev}}
    assert set(data) <= {section.name for section in all_sections()}
    return Document(run_of(scored(full_run() if rows is None else rows), dev, left_out), data)


def grid(scores, recipe="sts", **changes):
    """A grid as the report takes it, from lower bound to its models' dev scores."""
    bounds = [
        {
            "lower_bound": bound,
            "scores": values,
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "max": max(values),
        }
        for bound, values in scores.items()
    ]
    first, *others = sorted(bounds, key=lambda b: -b["mean"])
    return {
        "recipe": recipe, "measure": "Spearman correlation",
        "task": "dev", "winner": first["lower_bound"], "score": first["mean"],
        "runner_up": others[0]["lower_bound"] if others else None,
        "margin": first["mean"] - others[0]["mean"] if others else None, "bounds": bounds, **changes,
    }  # fmt: skip


def judged(gold_P, cosine_P, model="ct (exported)", task="dev", text="It rains."):
    return PairComparison(task, model, [text] * len(gold_P), [text] * len(gold_P), gold_P, cosine_P, cosine_P)
