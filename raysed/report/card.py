"""The model card of a run's exported model, from the run's settings and facts."""

from collections.abc import Collection
from typing import Any

from raysed.config import Config
from raysed.data.tokens import LengthReport
from raysed.model.export import Card
from raysed.recipe import BASE, SED, TEACHERS, Recipe, parse_recipe
from raysed.report.findings import worth
from raysed.report.results import Run, public_name, versions
from raysed.report.scores import AVERAGE, Scores, display_name
from raysed.report.sections.exported import sanity_words
from raysed.store.text import Table, number

_UNTOUCHED = (BASE, "base")
_VIEW_SETTINGS = {
    "synonym": ["synonym_share"],
    "mlm": ["mlm_rate", "mlm_model"],
    "back_translation": ["pivots", "beams"],
}
"""Settings of `views` that a kind depends on."""
_SAME = "each sentence of the corpus twice, told apart by dropout"


def card_of(run: Run, speed: str = "") -> Card:
    """Return what the card of the chosen model says; `speed` is how fast it is and where, in a line."""
    config, facts, scores = run.config, run.facts, run.scores
    model, recipe = run.choice.model, parse_recipe(run.choice.model.recipe)
    kinds = recipe.view_kinds(config)
    settings, defaults = _settings(config, recipe, kinds), _settings(Config(), recipe, kinds)
    views = {s: getattr(config, s).views for other in run.job.recipes for s in other.two_view_stages}
    return Card(
        name=f"{config.run}-{recipe.text}",
        recipe=recipe.text,
        base=public_name(config.encoder.path),
        teachers=[
            teacher.title
            for index, teacher in enumerate(config.teachers)
            if f"{TEACHERS}/members/{index:02d}" not in facts.left_out
        ],
        widths=config.sed.widths if recipe.distils else (),
        searches=facts.shares_space_of if recipe.text == f"{TEACHERS}-{SED}" else None,
        members=sum(name not in facts.left_out for name in facts.members.get(recipe.ensemble, [])),
        left_out=sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out),
        corpus=_corpus(config, recipe),
        lengths=LengthReport(**facts.corpus["lengths"]) if facts.corpus else LengthReport(config.encoder.max_length),
        scores=rows_that_matter(scores, recipe.text, model.kind, model.index).markdown(),
        choice=run.choice.words(),
        worth=worth(scores, model.recipe, model.kind),
        measure=scores.measure,
        sanity=sanity_words(run.sanity),
        formats=config.export.formats,
        fitted_on=scores.fitted_on if recipe.calibration else None,
        aggregation=config.evaluation.aggregation,
        settings={key: value for key, value in settings.items() if value != defaults[key]},
        versions=versions(),
        speed=speed,
        record={
            "recipe": recipe.text,
            "settings": settings,
            "versions": versions(),
            "measure": scores.measure,
            "scores": [entry for entry in scores.summary if entry["task"] == AVERAGE],
        },
        pairs=facts.pairs,
        views={stage: {kind: facts.views.get(kind, _SAME) for kind in kinds} for stage, kinds in views.items()},
    )


def rows_that_matter(scores: Scores, recipe: str, kind: str, index: int) -> Table:
    """Return what a model is to be compared with: the encoder that it comes from, and the best that costs no training.

    Where it has external teachers, the best of them is a line, too.
    """
    groups, own = scores.groups, (recipe, kind)
    best = scores.best_untrained(own, _UNTOUCHED)
    names = {_UNTOUCHED: "the encoder before any training"}
    names |= {best: f"{display_name(*best)}: the best that needs no training"} if best else {}
    names |= {(TEACHERS, "member"): "the best teacher"} if recipe.startswith(TEACHERS) else {}
    names[own] = "this model"
    values = {group: entry["max" if group == (TEACHERS, "member") else "mean"] for group, entry in groups.items()}
    values[own] = scores.average_of(recipe, kind, index)
    lines = []
    for group, name in names.items():
        entry = groups.get(group, {"n": 0})
        ends = f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry and entry["n"] == 1 else "-"
        lines.append([name, number(values.get(group)), *[ends] * bool(scores.draws)])
    return Table(["model", "score", *["95 %"] * bool(scores.draws)], lines, text=1)


def _corpus(config: Config, recipe: Recipe) -> str:
    """What a recipe has read of the corpus; empty where it has read other things only."""
    source = config.corpus.source
    names = map(public_name, [source] if isinstance(source, str) else source)
    fitted = bool(recipe.calibration) and config.flow.fit_on == "corpus"
    return ", ".join(names) if recipe.trains_on_corpus(config) or fitted else ""


def _settings(config: Config, recipe: Recipe, kinds: Collection[str]) -> dict[str, Any]:
    """The settings of the recipe's stages and kinds of views; the card names sources of text by what they hold."""
    blocks = config.model_dump(mode="json", exclude={"nli": {"train"}, "sts": {"train"}})
    blocks["views"] = {
        key: blocks["views"][key] for kind in _VIEW_SETTINGS if kind in kinds for key in _VIEW_SETTINGS[kind]
    }
    names = [*recipe.members, *(["combination"] if recipe.ensemble == TEACHERS else [])]
    names += [*(["sed"] if recipe.distils else []), *(["flow"] if "flow" in recipe.calibration else [])]
    return {f"{name}.{key}": value for name in ["views", *names] for key, value in blocks[name].items()}
