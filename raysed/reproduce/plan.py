"""Which runs a table needs, with all their settings, and where the values of its cells are in their reports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysed.cli import find_config
from raysed.config import Config, dump_config, load_config
from raysed.errors import UserError
from raysed.recipe import BASE, Recipe, parse_recipe
from raysed.reproduce.data import Finder, Request
from raysed.reproduce.published import Row, Table, load_published, load_yaml

Place = dict[str, Any]
"""Where a value is, see `jobs/tables/runs.yaml`."""


@dataclass
class Plan:
    """The runs of a table.

    Attributes:
        table: as published.
        definition: its entry in `runs.yaml`.
        configs: by name of the run; runs that are left out are not there.
        same: run to the one that gives its report, itself or an equal one.
        missing: data that is not there, with the places where it was looked for.
        missing_tasks: tasks of the table that no run scores.
        notes: what stands in for what.
    """

    table: Table
    definition: dict[str, Any]
    configs: dict[str, Config] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    missing_tasks: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def variants(self, row: Row) -> dict[str, Place]:
        """Returns the ways to compare a row, by name; one without a name where there is only one."""
        own = self._of_row(row)
        if "variants" in own:
            return own["variants"]
        return {"": {}} if "layers" in own else self.definition.get("variants", {"": {}})

    def run_of(self, row: Row, variant: Place) -> str:
        """Returns the run that has the values of a row."""
        return variant.get("run") or self._of_row(row).get("run") or self.definition["runs"][row.encoder]

    def places(self, row: Row, column: str, variant: Place) -> list[Place]:
        """Returns where the value of a cell is, or all the values that it is the mean of."""
        if column == self.table.average:
            others = [other for other in self.table.columns if other != column]
            return [place for other in others for place in self.places(row, other, variant)]
        place: Place = {"section": "rows", "value": "metrics.{task}.{metric}"}
        if row.recipe:
            place |= {"recipe": row.recipe, "kind": _kind(parse_recipe(row.recipe))}
        if column in self.definition["tasks"]:
            place["task"] = column
        place |= self.definition.get("place", {}) | self.definition.get("columns", {}).get(column, {})
        place |= {key: value for key, value in self._of_row(row).items() if key != "variants"}
        place |= {**variant, "run": self.run_of(row, variant)}
        return [{**place, "task": task} for task in place["tasks"]] if "tasks" in place else [place]

    def _of_row(self, row: Row) -> dict[str, Any]:
        return self.definition.get("rows", {}).get(row.label, {})


def list_tables(directory: Path) -> dict[str, str]:
    """Returns name and title of each table that can be run."""
    published = load_published(directory)
    return {name: published[name].title for name in load_yaml(directory / "runs.yaml")["tables"]}


def make_plan(request: Request, directory: Path, configs: Path) -> Plan:
    """Resolves the settings of every run of a table, and looks for its data.

    Args:
        request: what the user asks for.
        directory: of `published.yaml` and `runs.yaml`.
        configs: of the configs that the runs start from.

    Raises:
        UserError: no such table, a wrong setting; at the scale `paper`, data that is missing or of another size.
    """
    definitions = load_yaml(directory / "runs.yaml")
    if request.table not in definitions["tables"]:
        raise UserError(f"{request.table!r} is no table; there are {', '.join(definitions['tables'])}")
    plan = Plan(load_published(directory)[request.table], definitions["tables"][request.table])
    finder = Finder(definitions["data"], definitions["small"]["pairs"], request)
    for name, recipes in _recipes_by_run(plan).items():
        builder = _Builder(request, plan, finder, definitions["runs"][name], definitions["small"]["set"])
        config = builder.config(definitions["runs"][name].get("run", name), recipes, configs)
        if config:
            plan.configs[name] = config
    plan.missing, plan.notes = finder.missing, finder.notes
    if plan.missing and not request.small:
        wanted = "; ".join(f"{name} ({places})" for name, places in plan.missing.items())
        raise UserError(
            f"{request.table} needs data that is not in {request.data}: {wanted}: put it there, or name another --data"
        )
    _merge_equal(plan)
    return plan


def _recipes_by_run(plan: Plan) -> dict[str, list[str]]:
    """What each run has to make, in the order of the table."""
    runs: dict[str, list[str]] = {}
    for row in plan.table.rows:
        if not row.copied:
            for variant in plan.variants(row).values():
                recipes = [row.recipe] if row.recipe else plan.definition.get("recipes", [])
                runs.setdefault(plan.run_of(row, variant), []).extend(recipes)
    return {name: list(dict.fromkeys(recipes)) for name, recipes in runs.items() if recipes}


@dataclass(frozen=True)
class _Builder:
    """Makes the settings of one run."""

    request: Request
    plan: Plan
    finder: Finder
    run: Mapping[str, Any]
    small: Mapping[str, Any]

    def config(self, name: str, recipes: list[str], configs: Path) -> Config | None:
        """The settings, or None where nothing can be run."""
        path, own = find_config(self.run["config"], configs), self.run.get("set", {})
        forced = [*_items(self._small()), *self.request.overrides]
        every_task = {name: {"source": name} for name in self._names()}
        flow = load_config(path, [*_items({**own, **self._evaluation(every_task)}), *forced]).flow
        data, recipes = self._data(recipes, flow.fit_on)
        tasks = self._tasks()
        scored = [task for task in self.plan.definition["tasks"] if task in tasks]
        if not scored or not recipes:
            return None
        settings = {**own, **data, **self._evaluation(tasks), "run": f"small-{name}" if self.request.small else name}
        settings |= {"storage": self.request.storage} if self.request.storage else {}
        if flow.fit_tasks:
            settings["flow.fit_tasks"] = [task for task in flow.fit_tasks if task in scored] or None
        settings |= _export(recipes, flow.per_task)
        return load_config(path, [*_items(settings), *forced])

    def _small(self) -> dict[str, Any]:
        if not self.request.small:
            return {}
        return {**self.small, **({"encoder.path": self.request.encoder} if self.request.encoder else {})}

    def _data(self, recipes: list[str], fit_on: str) -> tuple[dict[str, Any], list[str]]:
        """The settings that name data, and the recipes that can be run with what is there."""
        found, runnable = {}, list(recipes)
        always = self.plan.definition.get("data", {})
        for key, name in {**self.run.get("data", {}), **always}.items():
            needing = [recipe for recipe in recipes if key in always or _needs(key, parse_recipe(recipe), fit_on)]
            if needing and not self.request.sets(key):
                found[key] = self.finder.source(name)
                runnable = runnable if found[key] else [recipe for recipe in runnable if recipe not in needing]
        return {key: source for key, source in found.items() if source}, runnable

    def _tasks(self) -> dict[str, dict[str, Any] | None]:
        """The tasks that are there; None for those that the user sets."""
        found = {}
        for name in self._names():
            is_set = self.request.sets(f"evaluation.tasks.{name}")
            task = None if is_set else self.finder.task(name)
            if task or is_set:
                found[name] = task
            else:
                self.plan.missing_tasks.add(name)
        return found

    def _names(self) -> list[str]:
        """The table's tasks and the dev task."""
        return list(dict.fromkeys([*self.plan.definition["tasks"], *([self.run["dev"]] if "dev" in self.run else [])]))

    def _evaluation(self, tasks: Mapping[str, Any]) -> dict[str, Any]:
        aggregation = self.plan.table.aggregation
        return {
            "evaluation.tasks": {name: task for name, task in tasks.items() if task},
            "evaluation.dev": self.run.get("dev"),
            "evaluation.report": [name for name in self.plan.definition["tasks"] if name in tasks],
            **({"evaluation.aggregation": aggregation} if aggregation else {}),
        }


def _needs(key: str, recipe: Recipe, fit_on: str) -> bool:
    """Whether a recipe needs the data that a setting names."""
    fits = bool(recipe.calibration)
    return {
        "corpus.source": recipe.distils
        or bool({"mlm", "ct", "bsl"} & set(recipe.members))
        or (fits and fit_on == "corpus"),
        "nli.train": "nli" in recipe.members or (fits and fit_on == "nli"),
        "sts.train": "sts" in recipe.members,
        "flow.fit_on": fits,
    }[key]


def _export(recipes: list[str], per_task: bool) -> dict[str, Any]:
    """Flows of single tasks are not one model, so that another is exported."""
    if not per_task:
        return {"recipes": recipes, "export.recipe": None}
    plain = next((recipe for recipe in recipes if not parse_recipe(recipe).calibration), BASE)
    return {"recipes": list(dict.fromkeys([*recipes, plain])), "export.recipe": plain}


def _items(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def _kind(recipe: Recipe) -> str:
    return "learner" if recipe.distils else "member" if recipe.members else "base"


def _merge_equal(plan: Plan) -> None:
    """Finds runs that differ in their name only: at the scale `small` one encoder stands for several."""
    seen: dict[str, str] = {}
    for name, config in list(plan.configs.items()):
        plan.same[name] = seen.setdefault(dump_config(config.model_copy(update={"run": "any"})), name)
        if plan.same[name] != name:
            del plan.configs[name]
            plan.notes.append(f"{name} has the settings of {plan.same[name]} at this scale, and is not run again.")
