"""The model card of a run's exported model, from the run's settings and facts."""

import importlib.metadata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raysed.config import Config
from raysed.data.tokens import LengthReport
from raysed.model.export import Card
from raysed.plan.artefacts import Facts
from raysed.plan.check import Job
from raysed.recipe import SED, TEACHERS, Recipe, parse_recipe
from raysed.report.choice import Choice
from raysed.report.document import rows_that_matter, sanity_words
from raysed.report.findings import worth
from raysed.report.results import AVERAGE, LABELS, Results

_PACKAGES = "raysed ray torch transformers datasets deepspeed safetensors pyarrow scipy numpy".split()
_VIEW_SETTINGS = {
    "synonym": ["synonym_share"],
    "mlm": ["mlm_rate", "mlm_model"],
    "back_translation": ["pivots", "beams"],
}
"""Settings of `views` that a kind depends on."""
_SAME = "each sentence of the corpus twice, told apart by dropout"


def card_of(
    job: Job, facts: Facts, choice: Choice, results: Results, sanity: Mapping[str, int], speed: str = ""
) -> Card:
    """Returns what the card of the chosen model says.

    Args:
        sanity: see `raysed.report.document.Report.sanity`.
    """
    config, recipe = job.config, parse_recipe(choice.model.recipe)
    kinds = recipe.view_kinds(config)
    settings, defaults = _settings(config, recipe, kinds), _settings(Config(), recipe, kinds)
    return Card(
        name=f"{config.run}-{recipe.text}",
        recipe=recipe.text,
        base=_public_name(config.encoder.path),
        teachers=[
            teacher.title
            for index, teacher in enumerate(config.teachers)
            if f"{TEACHERS}/members/{index:02d}" not in facts.left_out
        ],
        widths=config.sed.widths if recipe.distils else (),
        searches=facts.shares_space_of if recipe.text == f"{TEACHERS}-{SED}" else None,
        members=sum(name not in facts.left_out for name in facts.members.get(recipe.ensemble, [])),
        left_out=sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out),
        corpus=_text_of(job, recipe),
        lengths=LengthReport(**facts.corpus["lengths"]) if facts.corpus else LengthReport(config.encoder.max_length),
        scores=rows_that_matter(results, recipe.text, choice.model.kind, choice.model.index).markdown(),
        choice=choice.words(),
        worth=worth(results, choice.model.recipe, choice.model.kind),
        measure=results.measure,
        sanity=sanity_words(sanity),
        formats=config.export.formats,
        fitted_on=results.fitted_on if recipe.calibration else None,
        aggregation=config.evaluation.aggregation,
        settings={key: value for key, value in settings.items() if value != defaults[key]},
        versions=versions(),
        speed=speed,
        record={
            "recipe": recipe.text,
            "settings": settings,
            "versions": versions(),
            "measure": results.measure,
            "scores": [entry for entry in results.summary if entry["task"] == AVERAGE],
        },
        pairs=facts.pairs,
        views={stage: {kind: facts.views.get(kind, _SAME) for kind in kinds} for stage, kinds in _views(job).items()},
    )


def versions() -> dict[str, str]:
    """Returns the versions of the packages that decide a run's numbers."""
    return {package: importlib.metadata.version(package) for package in _PACKAGES}


def labels_by_stage(job: Job) -> dict[str, str]:
    """Returns the labels that stages train on: pairs labelled entailment are labelled, whatever is made of them."""
    return {**LABELS, **{stage: LABELS["nli"] for stage, kinds in _views(job).items() if "entailment" in kinds}}


def seen_by_calibrations(config: Config) -> str:
    """Returns `tasks`, `corpus`, `nli`, or what a reader should call the source."""
    return _public_name(config.flow.fit_on)


def _views(job: Job) -> dict[str, list[str]]:
    """Kinds of views by stage."""
    return {stage: getattr(job.config, stage).views for recipe in job.recipes for stage in recipe.two_view_stages}


def _text_of(job: Job, recipe: Recipe) -> str:
    """What a recipe has read of the corpus; empty where it has read other things only."""
    source = job.config.corpus.source
    names = map(_public_name, [source] if isinstance(source, str) else source)
    fitted = bool(recipe.calibration) and job.config.flow.fit_on == "corpus"
    return ", ".join(names) if recipe.trains_on_corpus(job.config) or fitted else ""


def _public_name(path: str) -> str:
    """A local path says nothing to a reader of the card, its last part does."""
    return Path(path).name if Path(path).is_absolute() or Path(path).exists() else path


def _settings(config: Config, recipe: Recipe, kinds: Collection[str]) -> dict[str, Any]:
    """The settings of the recipe's stages and kinds of views; the card names sources of text by what they hold."""
    blocks = config.model_dump(mode="json", exclude={"nli": {"train"}, "sts": {"train"}})
    blocks["views"] = {
        key: blocks["views"][key] for kind in _VIEW_SETTINGS if kind in kinds for key in _VIEW_SETTINGS[kind]
    }
    names = [*recipe.members, *(["combination"] if recipe.ensemble == TEACHERS else [])]
    names += [*(["sed"] if recipe.distils else []), *(["flow"] if "flow" in recipe.calibration else [])]
    return {f"{name}.{key}": value for name in ["views", *names] for key, value in blocks[name].items()}
