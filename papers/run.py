"""Run a table and write its files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import raysed
from papers.compare import SMALL_NOTE, Comparison, compare
from papers.data import Request
from papers.plan import Plan
from raysed.api import run_config
from raysed.config import Config
from raysed.report.results import RunResults

Rows = list[dict[str, Any]]


def _run(config: Config) -> raysed.Result:
    return run_config(config, verbose=True, starts_ray=True)


def write_masked(config: Config, model: str, file: Path) -> str:
    """Write views by a masked language model; return a summary."""
    from papers.views import masked_maker, write_views  # takes seconds

    file.parent.mkdir(parents=True, exist_ok=True)
    return write_views(masked_maker(config, model), config, file, "tokens")


def measure(config: Config, further: Mapping[str, str | None], picture: Path) -> dict[str, Rows]:
    """Measure what a table needs of a finished run besides its report; return it by name in `runs.yaml`.

    BERT-flow's figure 2 is written to `picture`.
    """
    from papers.analysis import edit_distance_of_run, frequency_of_run, qnli_of_run
    from papers.finished import finished
    from papers.transfer import rows_of_run

    def edit_distance(run: RunResults, source: str | None) -> Rows:
        rows, chart = edit_distance_of_run(run)
        chart.save(picture)
        return rows

    known = {
        "transfer": rows_of_run,
        "qnli": qnli_of_run,
        "edit_distance": edit_distance,
        "frequency": lambda run, source: frequency_of_run(run),
    }
    return {name: known[name](finished(config), source) for name, source in further.items()}


def reproduce(
    request: Request,
    plan: Plan,
    check: Callable[[Config], Any] = raysed.check,
    run: Callable[[Config], raysed.Result] = _run,
    measure: Callable[[Config, Mapping[str, str | None], Path], dict[str, Rows]] = measure,
    say: Callable[[str], None] = print,
    write: Callable[[Config, str, Path], str] = write_masked,
) -> Comparison:
    """Do the runs of a table and write `<table>.md` and `<table>.json` to the output directory.

    BERT-flow table 6 also writes `<table>.png`, the paper's figure 2.

    All settings and inputs are checked before the first run starts. `<table>/<run>.json` keeps each run's report and
    measurements, because runs that share a directory overwrite each other's report.json.
    """
    for file, (config, model) in plan.masked.items():
        if not Path(file).exists():
            say(f"{file}: {write(config, model, Path(file))}")
    for config in plan.configs.values():
        check(config)
    if request.small:
        say(SMALL_NOTE)
    directory = request.output / request.name
    directory.mkdir(parents=True, exist_ok=True)
    reports = {}
    for place, (name, config) in enumerate(plan.configs.items(), start=1):
        say(f"{request.table}: run {place} of {len(plan.configs)}: {name} ({', '.join(config.recipes)})")
        measured = {**run(config).report, **measure(config, plan.further, directory.with_suffix(".png"))}
        path = directory / f"{name}.json"
        path.write_text(_as_json(measured), encoding="utf-8")
        reports[name] = (str(path), measured)
    comparison = compare(plan, request, reports)
    directory.with_suffix(".md").write_text(comparison.to_markdown(), encoding="utf-8")
    directory.with_suffix(".json").write_text(_as_json(comparison.to_dict()), encoding="utf-8")
    endings = (".md", ".json", ".png") if "edit_distance" in plan.further else (".md", ".json")
    say(f"\n{comparison.to_markdown()}\nwritten: {', '.join(f'{directory}{ending}' for ending in endings)}")
    return comparison


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
