"""The exported model's card (`README.md`), and its settings and scores for programs (`raysed.json`)."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCardData

from raysed.config import Config, ExportConfig
from raysed.model.calibration import Flow
from raysed.model.prompts import read_settings
from raysed.model.teacher import kind_of
from raysed.plan.tables import reads_corpus
from raysed.recipe import SED, TEACHERS, Recipe, parse_recipe
from raysed.registry import calibrations, stages
from raysed.report.results import RunResults, public_name, versions
from raysed.report.scores import AVERAGE
from raysed.report.verdict import comparisons, comparisons_table, verdict
from raysed.store.files import visible
from raysed.store.text import render, sentence, size

_WAYS = {
    "all": "the correlation over all its pairs together",
    "mean": "the plain mean over its subsets",
    "wmean": "the mean over its subsets, weighted by their numbers of pairs",
}
"""How tasks with several subsets are scored, by aggregation."""


def write_card(run: RunResults, path: Path) -> None:
    """Write the card and `raysed.json` of the chosen model into its directory."""
    config, model, chosen, facts = run.config, run.exported_model, run.choice.model, run.facts
    recipe, base = parse_recipe(chosen.recipe), public_name(config.encoder.path)
    start = f"some layers of {base}" if config.encoder.is_cut else base
    # Paths of texts are private; the card describes the content.
    texts = {"nli": {"train"}, "sts": {"train"}, "views": {"files"}}
    blocks, known = (settings.model_dump(mode="json", exclude=texts) for settings in (config, Config()))
    if config.old:
        blocks["combination"]["turn"] = config.old.title
    settings, defaults = _settings(blocks, recipe), _settings(known, recipe)
    record = {"recipe": recipe.text, "settings": settings, "versions": versions(), "measure": run.scores.measure}
    record["scores"] = [entry for entry in run.scores.summary if entry["task"] == AVERAGE]
    (path / "raysed.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    members = sum(name not in facts.left_out for name in facts.members.get(recipe.ensemble, []))
    teachers = [teacher.title + " (with code of its own)" * teacher.trust_remote_code for teacher in config.teachers]
    teachers = " and ".join(filter(None, [", ".join(teachers[:-1]), *teachers[-1:]]))
    sources = [config.corpus.source] if isinstance(config.corpus.source, str) else config.corpus.source
    # Names of files are private, too, and that of the run may have one.
    name = f"{Path(base).name}-{recipe.text}"
    named = [source if source.startswith("bundled:") else "private text" for source in sources]
    corpus = ", ".join(dict.fromkeys(named)) if reads_corpus(recipe, config) else ""
    row = run.scores.exported
    found = {task: row.metrics[task].get("spearman") for task in run.scores.tasks} if row else {}
    correlations = {task: score for task, score in found.items() if score is not None}
    metrics = [row.metrics[task] for task in run.scores.tasks] if row else []
    ways = sorted({_WAYS[of_task["aggregation"]] for of_task in metrics if "subsets" in of_task})
    text = render(
        "model_card.md",
        run=run,
        config=config,
        facts=facts,
        texts=(not recipe.distils and facts.members_corpus) or facts.corpus,
        recipe=recipe,
        start=start,
        name=name,
        metadata=metadata(_models_behind(run), config.export, name, correlations),
        members=members,
        teachers=teachers,
        corpus=corpus,
        left_out=sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out),
        story=story(recipe, start, members, teachers, model.encoder.is_static),
        has_own_code=config.encoder.trust_remote_code and has_own_code(path),
        has_flow=isinstance(model.calibration, Flow),
        encoder=model.encoder,
        searches=facts.shares_space_of if recipe.text == f"{TEACHERS}-{SED}" else None,
        trained_on=(corpus or "the pairs named below") if recipe.members or recipe.distils else "",
        ways=ways,
        worth=verdict(run),
        scores=comparisons_table(comparisons(run), run.scores),
        parameters=model.parameters / 1e6,
        weights=size(sum(file.stat().st_size for file in visible(path, "**/*.safetensors"))),
        # Further digits would differ between measurements.
        speed=float(f"{run.speed:.2g}"),
        processor=f"{platform.machine()}, {torch.get_num_threads()} threads",
        settings={key: value for key, value in settings.items() if value != defaults[key]},
        versions=versions(),
    )
    (path / "README.md").write_text(text, encoding="utf-8")


def has_own_code(path: Path) -> bool:
    """Return whether an export contains custom code of its encoder."""
    return "auto_map" in read_settings(path / "config.json")


def _models_behind(run: RunResults) -> list[str]:
    """Return the models from elsewhere that the exported one was made of."""
    teachers = [teacher.path for teacher in run.config.teachers if kind_of(teacher.path).is_model]
    is_taught = parse_recipe(run.choice.model.recipe).ensemble == TEACHERS
    return [run.config.encoder.path, *(teachers if is_taught else ())]


def metadata(models: Sequence[str], export: ExportConfig, name: str, scores: Mapping[str, float]) -> str:
    """Return YAML for model hubs: those of the `models` it was made of that are on a hub, and correlations by task."""
    bases = [path for path in dict.fromkeys(models) if _is_hub_id(path)]
    results = [
        EvalResult(
            task_type="semantic-similarity",
            dataset_type=re.sub(r"[^\w.-]+", "-", task),
            dataset_name=task,
            metric_type="spearman_cosine",
            metric_name="Spearman Cosine",
            metric_value=round(score / 100, 4),
        )
        for task, score in scores.items()
    ]
    return ModelCardData(
        base_model=bases or None,
        base_model_relation="finetune" if len(bases) > 1 else None,  # a hub would take several for a merge
        license=export.license and export.license.lower(),
        language=export.language or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "raysed"],
        model_name=name,
        eval_results=results or None,
    ).to_yaml()


def _is_hub_id(path: str) -> bool:
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path) is not None and not Path(path).exists()


def story(recipe: Recipe, base: str, members: int, teachers: str = "", is_static: bool = False) -> str:
    """Describe the recipe in one sentence, without stage names."""
    learner = f"one new copy of {base}"
    parts = [f"The encoder is {base} as it is"]
    if is_static:
        learner = f"a static model (one vector per token), which started from {base}'s embeddings of single tokens,"
        parts = [f"The model is static: {base}'s embeddings of single tokens, weighted by frequency"]
    if recipe.members:
        trained = ", then with ".join(stages()[stage].words for stage in recipe.members)
        copies = f"{members} copies of {base} were" if members > 1 else f"{base} was"
        parts = [f"{copies} trained with {trained}" + ", each with a different random seed" * (members > 1)]
        parts += ["this model is one of them"] if members > 1 and not recipe.distils else []
    if recipe.distils:
        learnt = f"the embeddings of {teachers}" if recipe.ensemble == TEACHERS else "the average of their embeddings"
        parts = [*(parts if recipe.members else []), f"{learner} was trained to reproduce {learnt}"]
    parts += [calibrations()[stage].words for stage in recipe.calibration]
    return sentence("; ".join(parts))


def _settings(blocks: Mapping[str, Mapping[str, Any]], recipe: Recipe) -> dict[str, Any]:
    names = [*(["views"] if recipe.two_view_stages else []), *recipe.members]
    names += ["combination"] if recipe.ensemble == TEACHERS else []
    names += ["sed"] if recipe.distils else []
    names += ["flow", "calibration"] if recipe.calibration else []
    settings = {f"{name}.{key}": value for name in names for key, value in blocks[name].items()}
    settings |= {f"encoder.{name}": blocks["encoder"][name] for name in ("keep_layers", "vocabulary")}
    # Others of `model_kwargs` may be paths.
    settings["encoder.num_hidden_layers"] = blocks["encoder"]["model_kwargs"].get("num_hidden_layers")
    return settings
