"""From finished artefacts to what people look at: scores, plots, the report and the exported model."""

import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysed import plots
from raysed.bundled import word_overlap
from raysed.calibration import load_calibrated, load_calibration
from raysed.check import Job
from raysed.config import Layers
from raysed.encoder import load_start
from raysed.evaluation.sts import Embeddings, Evaluation, comparable, mean_embeddings
from raysed.export import Card, export_model, parity
from raysed.findings import LABELS, Row
from raysed.recipe import BASE, Recipe, parse_recipe
from raysed.report import Report, headline_table, layers_table
from raysed.space import Space, analyse
from raysed.storage import Storage
from raysed.tokens import LengthReport

_PACKAGES = (
    "raysed",
    "ray",
    "torch",
    "transformers",
    "datasets",
    "deepspeed",
    "safetensors",
    "pyarrow",
    "scipy",
    "numpy",
)
_PARITY_SENTENCES = 64
_PARITY = 1e-4
_VIEW_SETTINGS = {
    "synonym": ["synonym_share"],
    "mlm": ["mlm_rate", "mlm_model"],
    "back_translation": ["pivots", "beams"],
}
"""Settings of `views` that a kind depends on."""
_SAME = "each sentence of the corpus twice, told apart by dropout"


@dataclass(frozen=True)
class ScoredModel:
    """One model and where its embeddings of the evaluation's sentences lie.

    Attributes:
        recipe: e.g. `ct-sed-flow`.
        kind: `base`, `member` or `learner`.
        index: number among its like.
        embeddings: artefact with a file per pooling.
        poolings: the poolings.
        weights: artefact of the encoder, None for the pre-trained one.
        left_out: whether it has collapsed: it is scored, and nothing else comes of it.
    """

    recipe: str
    kind: str
    index: int
    embeddings: str
    poolings: tuple[Layers, ...]
    weights: str | None
    left_out: bool = False


@dataclass(frozen=True)
class Facts:
    """What the stages know beside scores."""

    cluster: str
    corpus: Mapping[str, Any]
    left_out: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    grids: Sequence[Mapping[str, Any]] = ()
    transfer: Sequence[Mapping[str, Any]] = ()
    qnli: Mapping[str, float] = field(default_factory=dict)
    pairs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)


def is_complete(job: Job, storage: Storage) -> bool:
    """Whether the run's report and model are there and depend on exactly these settings and inputs."""
    return bool(storage.finished("plots", job.depends) and storage.finished("model", job.depends))


def publish(
    job: Job, storage: Storage, models: Sequence[ScoredModel], facts: Facts, say: Callable[[str], None]
) -> None:
    """Scores all models, exports one, writes the report and says what came out.

    Args:
        job: the checked configuration.
        storage: the run directory.
        models: in reading order.
        facts: for the report and the model card.
        say: shows a line to the user.
    """
    rows = score(job, storage, models, facts)
    tasks, main = job.config.report_tasks(), job.config.encoder.layers
    chosen, why = choose(job, rows, models)
    export(job, storage, chosen, rows, facts)
    pictures: dict[str, str] = {}
    space = analyse(job, storage, _shown(job, models))
    storage.commit(
        "plots",
        lambda path: pictures.update(_draw(job, storage, models, chosen, rows, facts, space, path)),
        job.depends,
    )
    report = _report(job, storage, rows, facts, space, chosen, pictures)
    for name, text in (("report.json", report.to_json()), ("report.md", report.to_markdown())):
        storage.write_text(name, text)
    say("")
    say(headline_table(rows, tasks, main, labels=report.labels))
    by_layers = layers_table(rows, tasks)
    if by_layers:
        say(f"\nby pooled layers\n{by_layers}")
    say(f"\n{report.findings()}\n")
    say(f"report: {storage.uri('report.md')}   plots: {storage.uri('plots')}")
    say(f"model: {storage.uri('model')} ({chosen.recipe}, {why})")
    say(f"TensorBoard: tensorboard --logdir {storage.uri('logs')}")
    say(_example(job, storage, chosen))


def score(job: Job, storage: Storage, models: Sequence[ScoredModel], facts: Facts) -> list[Row]:
    """Scores every model at every pooling, every ensemble by its mean embedding, grid models and word overlap."""
    overlap = Row("word-overlap", "baseline", 0, None, 0, score_word_overlap(job.evaluation))
    rows = [overlap, *grid_rows(job, facts.grids)]
    for recipe in dict.fromkeys(model.recipe for model in models):
        group = [model for model in models if model.recipe == recipe]
        for model in group:
            rows += [
                Row(recipe, model.kind, model.index, None, layers, scores, model.left_out)
                for layers in model.poolings
                for scores in [job.evaluation.score(_load(storage, model, layers))]
            ]
        healthy = [model for model in group if not model.left_out]
        if group[0].kind == "member" and healthy:
            rows.append(_ensemble(job, storage, healthy))
    return rows


def choose(job: Job, rows: Sequence[Row], models: Sequence[ScoredModel]) -> tuple[ScoredModel, str]:
    """Chooses the model to export, and says why.

    It comes from `export.recipe`, or from the last recipe; where that ends in a calibration, its version without it
    competes on the dev task, because a calibration may hurt. Of several like models the best on the dev task is taken.
    """
    config = job.config
    last = parse_recipe(config.export.recipe or config.recipes[-1])
    texts = [last.text] if config.export.recipe else list(dict.fromkeys([last.uncalibrated, last.text]))
    if config.flow.per_task:  # a calibration for each task is not one model
        texts = [last.uncalibrated]
    candidates = [model for model in models if model.recipe in texts]
    candidates = [model for model in candidates if not model.left_out] or candidates
    dev, main = config.evaluation.dev, config.encoder.layers
    if dev is None:
        model = next(model for model in candidates if model.recipe == texts[-1])
        return model, "the last recipe; no dev task to choose on"
    scores = {
        (row.recipe, row.index): comparable(row.metrics[dev]["spearman"])
        for row in rows
        if row.kind in ("base", "member", "learner") and row.layers == main
    }
    best = max(candidates, key=lambda model: scores[model.recipe, model.index])
    among = f" of {len(candidates)}" if len(candidates) > 1 else ""
    return best, f"best{among} on {dev}: {scores[best.recipe, best.index]:.1f}" if among else "as asked for"


def export(job: Job, storage: Storage, chosen: ScoredModel, rows: Sequence[Row], facts: Facts) -> None:
    """Writes `model/`, and compares its vectors with the model in memory before it is published.

    Raises:
        RuntimeError: they differ.
    """
    config = job.config
    encoder, tokenizer = load_start(config.encoder, storage, chosen.weights)
    calibration = None
    if parse_recipe(chosen.recipe).calibration:
        calibration = load_calibration(storage.fetch(chosen.embeddings) / f"layers-{config.encoder.layers}")
    options: dict[str, Any] = {
        "layers": config.encoder.layers,
        "max_length": config.encoder.max_length,
        "calibration": calibration,
    }

    def write(path: Path) -> None:
        export_model(encoder, tokenizer, path, card=_card(job, chosen, rows, facts), **options)
        difference = parity(path, encoder, tokenizer, job.evaluation.sentences[:_PARITY_SENTENCES], **options)
        if not difference < _PARITY:
            raise RuntimeError(f"the exported model's vectors differ from the trained model's by {difference:.2g}")

    storage.commit("model", write, job.depends, {"recipe": chosen.recipe, "index": chosen.index})


def first_healthy(models: Sequence[ScoredModel], recipe: str) -> ScoredModel | None:
    """Returns the first model of a recipe that has not collapsed, or the first one; None where there is none."""
    group = sorted((model for model in models if model.recipe == recipe), key=lambda model: model.left_out)
    return group[0] if group else None


def grid_rows(job: Job, grids: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of the grid models that were trained to the end: their dev score is all that was measured of them."""
    rows = []
    for grid in grids:
        pairs = job.evaluation.tasks[grid["task"]].pairs
        for bound in (bound for bound in grid["bounds"] if bound["stopped_at"] is None):
            for index, value in enumerate(bound["scores"]):
                metrics = {grid["task"]: {grid["criterion"]: value, "pairs": pairs}}
                rows.append(
                    Row(grid["recipe"], "grid", index, bound["lower_bound"], job.config.encoder.layers, metrics)
                )
    return rows


def score_word_overlap(evaluation: Evaluation) -> dict[str, dict]:
    """Scores the baseline that needs no model, the cosine of word counts; returns what `Evaluation.score` returns."""
    return evaluation.score_similarities(word_overlap(*evaluation.pair_sentences()))


def _ensemble(job: Job, storage: Storage, members: Sequence[ScoredModel]) -> Row:
    """The cosine of the mean embedding."""
    layers = job.config.encoder.layers
    mean = mean_embeddings([_load(storage, member, layers) for member in members])
    return Row(members[0].recipe, "ensemble", 0, None, layers, job.evaluation.score(mean))


def _load(storage: Storage, model: ScoredModel, layers: Layers) -> Embeddings:
    return load_calibrated(storage, model.embeddings, layers)


# -- pictures and words ----------------------------------------------------------------------------------------------


def _draw(
    job: Job,
    storage: Storage,
    models: Sequence[ScoredModel],
    chosen: ScoredModel,
    rows: Sequence[Row],
    facts: Facts,
    space: Space,
    path: Path,
) -> dict[str, str]:
    layers = job.config.encoder.layers
    task = job.config.report_tasks()[0]
    base = next(model for model in models if model.recipe == BASE)
    agreement = {BASE: base, f"{chosen.recipe} (exported)": chosen}
    titles = plots.write_plots(
        path,
        rows,
        job.config.report_tasks(),
        layers,
        curves=_curves(storage, facts),
        spectra=space.spectra,
        agreement={
            f"{name}, {task}": job.evaluation.cosines(_load(storage, model, layers), task)
            for name, model in agreement.items()
        },
        grids=facts.grids,
        distances=space.distances,
    )
    return {f"plots/{Path(file).name}": title for file, title in titles.items()}


def _shown(job: Job, models: Sequence[ScoredModel]) -> dict[str, ScoredModel]:
    """The first healthy model of the base, and of the last recipe without and with its calibration."""
    last = parse_recipe(job.config.recipes[-1])
    calibrated_base = "-".join([BASE, *last.calibration])
    wanted = dict.fromkeys([BASE, calibrated_base, last.uncalibrated, last.text])
    return {text: model for text in wanted if (model := first_healthy(models, text))}


def _curves(storage: Storage, facts: Facts) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The training histories of the members of every node."""
    return {node: {name: _history(storage, name) for name in names} for node, names in facts.members.items()}


def _history(storage: Storage, name: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (storage.fetch(name) / "history.jsonl").read_text().splitlines()]
    return [{**entry, "dev": max(entry["dev"].values()) if "dev" in entry else None} for entry in entries]


def _report(
    job: Job,
    storage: Storage,
    rows: Sequence[Row],
    facts: Facts,
    space: Space,
    chosen: ScoredModel,
    pictures: Mapping[str, str],
) -> Report:
    config = job.config
    left_out = [_left_out(name, reason) for name, reason in facts.left_out.items()]
    return Report(
        run=config.run,
        rows=rows,
        tasks=config.report_tasks(),
        main_layers=config.encoder.layers,
        timings=json.loads(storage.read_text("timings.json") or "{}"),
        environment={**_versions(), "python": platform.python_version(), "cluster": facts.cluster, "device": _device()},
        config=config.model_dump(mode="json"),
        corpus={**facts.corpus.get("report", {}), **facts.corpus.get("lengths", {})},
        members=left_out,
        views=facts.views,
        labels=_labels(job),
        grids=facts.grids,
        transfer=facts.transfer,
        analysis={**space.words, **({"qnli": facts.qnli} if facts.qnli else {})},
        dev=config.evaluation.dev,
        exported=chosen.recipe,
        command=shlex.join(["python", *sys.argv]),
        plots=pictures,
    )


def _views(job: Job) -> dict[str, list[str]]:
    """Kinds of views by stage."""
    return {stage: getattr(job.config, stage).views for recipe in job.recipes for stage in recipe.two_view_stages}


def _labels(job: Job) -> dict[str, str]:
    """The labels that stages train on: pairs labelled entailment are labelled, whatever is made of them."""
    return {**LABELS, **{stage: LABELS["nli"] for stage, kinds in _views(job).items() if "entailment" in kinds}}


def _left_out(name: str, reason: str) -> dict[str, Any]:
    node, *_, index = name.split("/")
    return {"recipe": node, "index": int(index), "reason": reason}


def _card(job: Job, chosen: ScoredModel, rows: Sequence[Row], facts: Facts) -> Card:
    config = job.config
    recipe = parse_recipe(chosen.recipe)
    return Card(
        name=f"{config.run}-{chosen.recipe}",
        recipe=chosen.recipe,
        base=_public_name(config.encoder.path),
        members=sum(name not in facts.left_out for name in facts.members.get(recipe.ensemble, [])),
        left_out=sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out),
        corpus=_text_of(job, recipe),
        lengths=LengthReport(**facts.corpus["lengths"]) if facts.corpus else LengthReport(config.encoder.max_length),
        scores=headline_table(rows, config.report_tasks(), config.encoder.layers, markdown=True, labels=_labels(job)),
        tasks=config.report_tasks(),
        aggregation=config.evaluation.aggregation,
        settings=_settings(job, recipe),
        versions=_versions(),
        pairs=facts.pairs,
        views={stage: {kind: facts.views.get(kind, _SAME) for kind in kinds} for stage, kinds in _views(job).items()},
        language=None,
    )


def _text_of(job: Job, recipe: Recipe) -> str:
    """What a recipe has read of the corpus; empty where it has read other things only."""
    source = job.config.corpus.source
    names = map(_public_name, [source] if isinstance(source, str) else source)
    return ", ".join(names) if recipe.trains_on_corpus(job.config) else ""


def _public_name(path: str) -> str:
    """A local path says nothing to a reader of the card, its last part does."""
    return Path(path).name if Path(path).is_absolute() or Path(path).exists() else path


def _settings(job: Job, recipe: Recipe) -> dict[str, Any]:
    """The settings of the recipe's stages; the card names sources of text by what they hold."""
    blocks = job.config.model_dump(mode="json", exclude={"nli": {"train"}, "sts": {"train"}})
    kinds = recipe.view_kinds(job.config)
    blocks["views"] = {
        key: blocks["views"][key] for kind in _VIEW_SETTINGS if kind in kinds for key in _VIEW_SETTINGS[kind]
    }
    names = [*recipe.members, *(["sed"] if recipe.distils else []), *(["flow"] if "flow" in recipe.calibration else [])]
    return {f"{name}.{key}": value for name in ["views", *names] for key, value in blocks[name].items()}


def _versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in _PACKAGES}


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"


def _example(job: Job, storage: Storage, chosen: ScoredModel) -> str:
    """Ranks sentences of the first headline task by similarity to one of them."""
    task = job.evaluation.tasks[job.config.report_tasks()[0]]
    first, _, gold = next(iter(task.subsets.values()))
    query = first[int(np.argmax(gold))]
    sentences = job.evaluation.sentences
    embeddings_UD = _load(storage, chosen, job.config.encoder.layers)
    unit_UD = embeddings_UD / np.linalg.norm(embeddings_UD, axis=1, keepdims=True)
    start = sentences.index(query)
    cosine_U = unit_UD @ unit_UD[start]
    nearest = [i for i in np.argsort(-cosine_U) if i != start][:3]
    lines = [f"  {cosine_U[i]:.2f}  {sentences[i]}" for i in nearest]
    return "\n".join([f"\nThe model's nearest among {len(sentences):,} sentences to: {query}", *lines])
