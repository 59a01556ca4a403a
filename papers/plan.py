"""The runs of a table with all settings, and the places of its cells in their reports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.data import Finder, Request
from papers.published import TABLES, Row, Table, load_published, load_yaml
from raysed.config import Config, dump_config, find_config, load_config, stable_hash
from raysed.data.corpus import corpus_fingerprint
from raysed.errors import UserError
from raysed.plan.tables import reads_corpus, view_kinds
from raysed.recipe import BASE, Recipe, parse_recipe

Place = dict[str, Any]
"""Where a value is, see `papers/tables/runs.yaml`."""
_WITH = "-with-"
"""Joins a run's name and those of the `changes` to it."""


@dataclass
class Plan:
    """The runs of a table.

    Attributes:
        configs: by run, without those left out.
        same: by run, the run whose report it uses: itself or an equal one.
        missing: missing data, with the places searched.
        missing_tasks: tasks of the table that no run scores.
        different: how graded pairs differ from the paper's, by name of the data.
        masked: files of views to write by a masked language model, each with the config of its corpus and the model.
        further: measurements besides the report, with the data they need, if any.
        notes: substitutes for data and encoders.
    """

    table: Table
    definition: dict[str, Any]
    configs: dict[str, Config] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    missing_tasks: set[str] = field(default_factory=set)
    different: dict[str, str] = field(default_factory=dict)
    masked: dict[str, tuple[Config, str]] = field(default_factory=dict)
    further: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def variants(self, row: Row) -> dict[str, Place]:
        """Return the ways to compare a row, by name; a single one is unnamed."""
        own = self._of_row(row)
        if "variants" in own:
            return own["variants"]
        return {"": {}} if "layers" in own else self.definition.get("variants", {"": {}})

    def run_of(self, row: Row, column: str, variant: Place) -> str:
        own = self._of_row(row)
        of_cell = own.get("columns", {}).get(column, {})
        candidates = (variant, of_cell, own, self._of_column(column))
        named = next((place["run"] for place in candidates if "run" in place), None)
        return _WITH.join([named or self.definition["runs"][row.encoder], *variant.get("with", [])])

    def runs_of(self, row: Row, variant: Place) -> list[str]:
        """Return the runs that have the values of a row, in column order."""
        columns = [column for column in self.table.columns if column != self.table.average]
        return list(dict.fromkeys(self.run_of(row, column, variant) for column in columns))

    def places(self, row: Row, column: str, variant: Place) -> list[Place]:
        """Return the place of a cell's value, or of all values whose mean it is."""
        if column == self.table.average:
            others = [other for other in self.table.columns if other != column]
            return [place for other in others for place in self.places(row, other, variant)]
        place: Place = {"section": "rows", "value": "metrics.{task}.{metric}"}
        if row.recipe:
            recipe = parse_recipe(row.recipe)
            kind = "learner" if recipe.distils else "member" if recipe.members else "base"
            place |= {"recipe": row.recipe, "kind": kind}
        if column in self.definition["tasks"]:
            place["task"] = column
        place |= self.definition.get("place", {}) | self._of_column(column)
        place |= {key: value for key, value in self._of_row(row).items() if key not in ("variants", "columns")}
        place |= {**variant, "run": self.run_of(row, column, variant)}
        return [{**place, "task": task} for task in place["tasks"]] if "tasks" in place else [place]

    def _of_row(self, row: Row) -> dict[str, Any]:
        return self.definition.get("rows", {}).get(row.label, {})

    def _of_column(self, column: str) -> dict[str, Any]:
        return self.definition.get("columns", {}).get(column, {})


def make_plan(request: Request) -> Plan:
    """Resolve the settings of every run of a table, and look for its data.

    Raises:
        UserError: for example, at the scale `paper`, data is missing.
    """
    definitions = load_yaml(TABLES / "runs.yaml")
    if request.table in definitions["no_scores"]:
        raise UserError(
            f"{request.table} {definitions['no_scores'][request.table]}; it prints no score that could be compared"
        )
    if request.table not in definitions["tables"]:
        raise UserError(f"{request.table!r} is no table; name one of {', '.join(definitions['tables'])}")
    plan = Plan(load_published()[request.table], definitions["tables"][request.table])
    finder = Finder(definitions["data"], definitions["small"]["pairs"], request)
    asked = plan.definition.get("further", {})
    plan.further = {what: data and finder.source(data) for what, data in asked.items()}
    has_data = all(plan.further[what] for what, data in asked.items() if data)
    for name, recipes in _recipes_by_run(plan).items() if has_data else ():
        builder = _Builder(name, request, plan, finder, _definition(definitions, name), definitions["small"])
        if config := builder.config(recipes):
            plan.configs[name] = config
    plan.missing, plan.notes = finder.missing, list(dict.fromkeys(finder.notes))
    plan.different = finder.different
    if plan.missing and not request.small:
        wanted = "; ".join(f"{name} ({places})" for name, places in plan.missing.items())
        raise UserError(
            f"{request.table} needs data that is not in {request.data}: {wanted}; add it, or name another --data"
        )
    _merge_equal(plan)
    return plan


def _definition(definitions: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a run of `runs.yaml`, with the changes in its name."""
    base, *changes = name.split(_WITH)
    run = definitions["runs"][base]
    settings = dict(run.get("set", {}))
    for change in changes:
        settings |= definitions["changes"][change]
    return {**run, "set": settings}


def _recipes_by_run(plan: Plan) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for row in plan.table.rows:
        if not row.copied:
            for variant in plan.variants(row).values():
                recipes = [row.recipe] if row.recipe else plan.definition.get("recipes", [])
                for run in plan.runs_of(row, variant):
                    runs.setdefault(run, []).extend(recipes)
    return {name: list(dict.fromkeys(recipes)) for name, recipes in runs.items() if recipes}


@dataclass(frozen=True)
class _Builder:
    name: str
    request: Request
    plan: Plan
    finder: Finder
    run: Mapping[str, Any]
    small: Mapping[str, Any]

    def config(self, recipes: list[str]) -> Config | None:
        """Return the settings; None if nothing can be run."""
        path, own = find_config(self.run["config"]), dict(self.run.get("set", {}))
        small = {**self.small["set"], **self.run.get("small", {})} if self.request.small else {}
        small |= {"encoder.path": self.request.encoder} if self.request.small and self.request.encoder else {}
        forced = [*_items(small), *self.request.overrides]
        every_task = self._evaluation({name: {"source": name} for name in self._names()})
        wanted = load_config(path, [*_items({**own, **every_task}), *forced])
        filler = self._filler(wanted, recipes)
        data, recipes = self._data(recipes, wanted, filler)
        tasks = self._tasks()
        scored = [task for task in self.plan.definition["tasks"] if task in tasks]
        if not scored or not recipes:
            return None
        run = self.run.get("run", self.name)
        settings = {**own, **data, **self._evaluation(tasks), "run": f"small-{run}" if self.request.small else run}
        settings |= {"storage": self.request.storage} if self.request.storage else {}
        if wanted.flow.fit_tasks:
            settings["flow.fit_tasks"] = [task for task in wanted.flow.fit_tasks if task in scored] or None
        if wanted.flow.per_task:  # flows of single tasks are not one model, so export another
            plain = next((recipe for recipe in recipes if not parse_recipe(recipe).calibration), BASE)
            settings |= {"recipes": list(dict.fromkeys([*recipes, plain])), "export.recipe": plain}
        else:
            settings |= {"recipes": recipes, "export.recipe": None, "export.allow_worse": True}
        config = load_config(path, [*_items(settings), *forced])
        if not filler:
            return config
        file = self._masked_file(config, filler)
        return load_config(path, [*_items({**settings, "views.files": file}), *forced])

    def _filler(self, config: Config, recipes: list[str]) -> str | None:
        """Return the model that fills masked tokens if this makes the views: by design, or as a substitute if small."""
        name, model = self.run.get("data", {}).get("views.files"), self.small["views"] if self.request.small else None
        needing = [recipe for recipe in recipes if _needs("views.files", parse_recipe(recipe), config)]
        if not name or not needing or self.request.sets("views.files") or self.finder.source(name):
            return None
        if model:
            self.finder.notes.append(f"Views by {model}, a masked language model, stand in for {name}.")
        return model or self.finder.filler(name)

    def _masked_file(self, config: Config, filler: str) -> str:
        """Return the file of masked views of a run's corpus, which the job writes if it does not exist."""
        corpus = [corpus_fingerprint(config.corpus), config.corpus.identity()]
        digest = stable_hash([*corpus, config.seed, config.encoder.max_length, filler])
        file = str((self.request.output / "data" / f"masked-{digest}.parquet").resolve())
        self.plan.masked[file] = config, filler
        return file

    def _data(self, recipes: list[str], config: Config, filler: str | None) -> tuple[dict[str, Any], list[str]]:
        """Return the settings that name data, and the recipes that have all their data."""
        found, runnable = {}, list(recipes)
        for key, name in self.run.get("data", {}).items():
            needing = [recipe for recipe in recipes if _needs(key, parse_recipe(recipe), config)]
            if filler and key == "views.files":
                continue
            if filler and key == "corpus.source":
                needing += [recipe for recipe in recipes if _needs("views.files", parse_recipe(recipe), config)]
            if needing and not self.request.sets(key):
                found[key] = self.finder.source(name)
                runnable = runnable if found[key] else [recipe for recipe in runnable if recipe not in needing]
        return {key: source for key, source in found.items() if source}, runnable

    def _tasks(self) -> dict[str, dict[str, Any] | None]:
        """Return the tasks that have data; None for those that the user sets."""
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
        return list(dict.fromkeys([*self.plan.definition["tasks"], *([self.run["dev"]] if "dev" in self.run else [])]))

    def _evaluation(self, tasks: Mapping[str, Any]) -> dict[str, Any]:
        aggregation = self.plan.table.aggregation
        return {
            "evaluation.tasks": {name: task for name, task in tasks.items() if task},
            "evaluation.dev": self.run.get("dev"),
            "evaluation.report": [name for name in self.plan.definition["tasks"] if name in tasks],
            **({"evaluation.aggregation": aggregation} if aggregation else {}),
        }


def _needs(key: str, recipe: Recipe, config: Config) -> bool:
    """Return whether a recipe needs the data that a setting names."""
    fit_on = config.flow.fit_on if recipe.calibration else None
    views = view_kinds(recipe, config)
    return {
        "corpus.source": reads_corpus(recipe, config),
        "nli.train": "nli" in recipe.members or "entailment" in views or fit_on == "nli",
        "sts.train": "sts" in recipe.members,
        "views.files": "files" in views,
        "flow.fit_on": fit_on is not None,
    }[key]


def _items(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def _merge_equal(plan: Plan) -> None:
    """Merge runs that differ only in name and recipes: at the scale `small`, one encoder stands for several."""
    seen: dict[str, str] = {}
    for name, config in list(plan.configs.items()):
        first = seen.setdefault(dump_config(config.model_copy(update={"run": "any", "recipes": ["base"]})), name)
        plan.same[name] = first
        if first != name:
            recipes = list(dict.fromkeys([*plan.configs[first].recipes, *config.recipes]))
            plan.configs[first] = plan.configs[first].model_copy(update={"recipes": recipes})
            del plan.configs[name]
            plan.notes.append(f"{name} has the settings of {first} at this scale, and is not run again.")
