"""The model card of a run's exported model (`README.md`), and what is too long for it (`raysed.json`)."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raysed.config import Config
from raysed.data.tokens import LengthReport
from raysed.model.export import has_own_code
from raysed.model.flow import Flow
from raysed.model.formats import FILES
from raysed.recipe import BASE, SED, TEACHERS, Recipe, parse_recipe
from raysed.registry import calibrations, stages
from raysed.report.findings import worth
from raysed.report.results import Run, public_name, versions
from raysed.report.scores import AVERAGE, Scores, display_name
from raysed.report.sections.exported import sanity_words
from raysed.store.text import Table, number, render, sentence, size

_FITTED_ON = {
    "tasks": "the sentences of the very tasks of the scores (without the gold scores): expect less on other text",
    "corpus": "the corpus",
    "nli": "the sentences of the labelled pairs",
}
_AGGREGATIONS = {
    "all": "the correlation over all its pairs together",
    "mean": "the plain mean over its subsets",
    "wmean": "the mean over its subsets, weighted by their numbers of pairs",
}
_LAYERS = {1: "last layer", "first_last": "first and the last layer"}
_UNTOUCHED = (BASE, "base")
_VIEW_SETTINGS = {"synonym": ["synonym_share"], "mlm": ["mlm_rate", "mlm_model"], "back_translation": ["pivots"]}
"""Settings of `views` that a kind depends on."""
_SAME = "each sentence of the corpus twice, told apart by dropout"


def write_card(run: Run, path: Path, speed: str) -> None:
    """Write the card of the chosen model into its directory, beside the model's files.

    Args:
        speed: how fast the model is and where that was measured, in a line.
    """
    config, model, chosen = run.config, run.exported, run.choice.model
    recipe, base = parse_recipe(chosen.recipe), public_name(config.encoder.path)
    kinds = recipe.view_kinds(config)
    settings, defaults = _settings(config, recipe, kinds), _settings(Config(), recipe, kinds)
    record = {"recipe": recipe.text, "settings": settings, "versions": versions(), "measure": run.scores.measure}
    record["scores"] = [entry for entry in run.scores.summary if entry["task"] == AVERAGE]
    (path / "raysed.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sizes = {
        "parameters": f"{sum(tensor.numel() for tensor in model.encoder.parameters()) / 1e6:,.1f} million",
        "weights": size(sum(file.stat().st_size for file in path.rglob("*.safetensors"))),
        "numbers per sentence": str(model.encoder.width),
        "longest text": f"{config.encoder.max_length} tokens",
        "speed": speed,
    }
    text = render(
        "model_card.md",
        run=run,
        config=config,
        recipe=recipe,
        base_model=base_model(base),
        story=story(recipe, base, *_ensemble(run, recipe), model.encoder.is_static),
        has_own_code=has_own_code(path),
        has_flow=isinstance(model.calibration, Flow),
        files=[FILES[name] for name in config.export.formats],
        width=model.encoder.width,
        searches=run.facts.shares_space_of if recipe.text == f"{TEACHERS}-{SED}" else None,
        trained_on=(_corpus(config, recipe) or "the pairs named below") if recipe.members or recipe.distils else "",
        worth=worth(run.scores, chosen.recipe, chosen.kind),
        sanity=sentence(sanity_words(run.sanity)),
        aggregation=_AGGREGATIONS[config.evaluation.aggregation],
        scores=rows_that_matter(run.scores, chosen.recipe, chosen.kind, chosen.index),
        size=Table(["what", "value"], list(sizes.items())),
        training=_training(run, recipe, {key: value for key, value in settings.items() if value != defaults[key]}),
        versions={package: versions()[package] for package in ("raysed", "torch", "transformers")},
    )
    (path / "README.md").write_text(text, encoding="utf-8")


def rows_that_matter(scores: Scores, recipe: str, kind: str, index: int) -> Table:
    """Return a model's score beside those of its base, the best that costs no training, and its best teacher."""
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


def base_model(base: str) -> str:
    """Return the line that tells model hubs the base; empty where that is no hub id."""
    is_hub_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) and not Path(base).exists()
    return yaml.safe_dump({"base_model": base}, allow_unicode=True) if is_hub_id else ""


def story(recipe: Recipe, base: str, members: int, teachers: Sequence[str] = (), is_static: bool = False) -> str:
    """Return the recipe in one sentence, for someone who knows none of its names."""
    learner = base
    parts = [f"The encoder is {base} as it is"]
    if is_static:
        learner = f"A table of one vector per token, which started from what {base} says of each token alone,"
        parts = [f"The model is a table of what {base} says of each token alone, weighted by frequency"]
    if recipe.members:
        trained = ", then with ".join(stages()[stage].words for stage in recipe.members)
        copies = f"{members} copies of {base} were" if members > 1 else f"{base} was"
        parts = [f"{copies} trained with {trained}" + ", each with its own random numbers" * (members > 1)]
    if recipe.ensemble == TEACHERS:
        say = "says" if len(teachers) == 1 else "together say"
        parts = [f"{learner} learned to give what {_listed(teachers)} {say} of a sentence"]
    elif recipe.distils:
        parts.append(f"one new copy of {base} learned to give the average of their embeddings")
    elif members > 1 and recipe.members:
        parts.append("this model is one of them")
    return "; ".join([*parts, *(calibrations()[stage].words for stage in recipe.calibration)]) + "."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _ensemble(run: Run, recipe: Recipe) -> tuple[int, list[str]]:
    """How many members were averaged, and the names of the teachers that were."""
    left_out = run.facts.left_out
    members = sum(name not in left_out for name in run.facts.members.get(recipe.ensemble, []))
    names = {f"{TEACHERS}/members/{index:02d}": teacher.title for index, teacher in enumerate(run.config.teachers)}
    return members, [title for name, title in names.items() if name not in left_out]


def _training(run: Run, recipe: Recipe, settings: Mapping[str, Any]) -> Table:
    config, facts, corpus = run.config, run.facts, _corpus(run.config, recipe)
    members, teachers = _ensemble(run, recipe)
    rows = {"base encoder": public_name(config.encoder.path)}
    if recipe.ensemble == TEACHERS:
        rows["teachers"] = _listed(teachers)
    elif recipe.distils:
        left_out = sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out)
        rows["members"] = f"{members} averaged, {left_out} left out"
    rows |= {f"{stage} pairs": facts.pairs[stage] for stage in recipe.members if stage in facts.pairs}
    for stage in (stage for stage in recipe.members if stage in recipe.two_view_stages):
        kinds = getattr(config, stage).views
        rows |= {f"{stage} views: {kind}": facts.views.get(kind, _SAME) for kind in kinds}
    if corpus:
        lengths = LengthReport(**facts.corpus["lengths"]) if facts.corpus else LengthReport(config.encoder.max_length)
        cut = 100 * lengths.truncated_sentences / max(lengths.sentences, 1)
        lost = 100 * lengths.lost_tokens / max(lengths.tokens + lengths.lost_tokens, 1)
        rows["corpus"] = f"{corpus}: {lengths.sentences:,} sentences, {lengths.tokens:,} tokens"
        rows[f"cut at {lengths.max_length} tokens"] = (
            f"{cut:.2f} % of the sentences, which lost {lost:.2f} % of all tokens"
        )
    if recipe.calibration and run.scores.fitted_on:
        rows["calibration fitted on"] = _FITTED_ON.get(run.scores.fitted_on, run.scores.fitted_on)
    layers = config.encoder.layers
    rows["pooling"] = f"mean over all tokens of the {_LAYERS.get(layers, f'last {layers} layers')}"
    if run.exported.encoder.is_static:
        rows["pooling"] = "mean over the vectors of all tokens, without special ones"
    rows |= {f"`{key}`": f"`{value}`" for key, value in settings.items()}
    return Table(["what", "value"], list(rows.items()))


def _corpus(config: Config, recipe: Recipe) -> str:
    """What a recipe has read of the corpus; empty where it has read other things only."""
    source = config.corpus.source
    names = map(public_name, [source] if isinstance(source, str) else source)
    fitted = bool(recipe.calibration) and config.flow.fit_on == "corpus"
    return ", ".join(names) if recipe.trains_on_corpus(config) or fitted else ""


def _settings(config: Config, recipe: Recipe, kinds: Collection[str]) -> dict[str, Any]:
    """The settings of the recipe's stages and kinds of views; the card names sources of text by what they hold."""
    blocks = config.model_dump(mode="json", exclude={"nli": {"train"}, "sts": {"train"}})
    of_views = [key for kind, keys in _VIEW_SETTINGS.items() if kind in kinds for key in keys]
    blocks["views"] = {key: blocks["views"][key] for key in of_views}
    names = [*recipe.members, *(["combination"] if recipe.ensemble == TEACHERS else [])]
    names += [*(["sed"] if recipe.distils else []), *(["flow"] if "flow" in recipe.calibration else [])]
    return {f"{name}.{key}": value for name in ["views", *names] for key, value in blocks[name].items()}
