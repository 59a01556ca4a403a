"""A table from its runs to its files."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysed.config import Config
from raysed.errors import RunFailed
from raysed.reproduce.compare import SMALL_NOTE, Comparison, compare
from raysed.reproduce.data import Request
from raysed.reproduce.plan import Plan
from raysed.store.storage import Storage


@dataclass(frozen=True)
class Runner:
    """How runs are checked and done: `raysed.plan.check.check` and `raysed.pipeline.run`."""

    check: Callable[[Config], Any]
    run: Callable[[Config], Any]


def reproduce(request: Request, plan: Plan, runner: Runner, say: Callable[[str], None] = print) -> Comparison:
    """Does the runs of a table and writes `<table>.md` and `<table>.json` to the output directory.

    All settings and inputs are checked before the first run starts. Each run's report.json is copied to
    `<table>/<run>.json`, because runs that share a directory write theirs over it.

    Args:
        plan: of `make_plan`.

    Raises:
        UserError: a wrong setting or input.
        RunFailed: a run ended without a complete report.
    """
    for config in plan.configs.values():
        runner.check(config)
    if request.small:
        say(SMALL_NOTE)
    reports = {}
    for place, (name, config) in enumerate(plan.configs.items(), start=1):
        say(f"{request.table}: run {place} of {len(plan.configs)}: {name} ({', '.join(config.recipes)})")
        runner.run(config)
        reports[name] = _keep_report(config, request.output / request.name / f"{name}.json")
    comparison = compare(plan, request, reports)
    path = request.output / request.name
    path.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(comparison.to_markdown(), encoding="utf-8")
    text = json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    say(f"\n{comparison.to_markdown()}\nwritten: {path}.md, {path}.json")
    return comparison


def _keep_report(config: Config, path: Path) -> tuple[str, dict[str, Any]]:
    """Copies the report of a run; returns where it is, and what it says."""
    storage = Storage(config.storage, config.run)
    text = storage.read_text("report.json")
    report = json.loads(text) if text else {}
    if report.get("status") != "complete":
        raise RunFailed(f"{storage} has no complete report.json: {report.get('error', 'there is none')}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path), report
