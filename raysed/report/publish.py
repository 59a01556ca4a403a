"""From finished artefacts to what people look at: scores, plots, the report and the exported model."""

import importlib.metadata
import json
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysed.config import Config, Layers, derive_seed
from raysed.data.tokens import LengthReport, tokenize
from raysed.evaluation.baselines import baselines
from raysed.evaluation.intervals import resample
from raysed.evaluation.similarity import Embeddings, Evaluation, mean_embeddings
from raysed.evaluation.triples import Embed, answered_by, answered_by_words, triples
from raysed.model.affine import CalibrationMap, load_calibration
from raysed.model.encoder import Encoder, encode, load_start
from raysed.model.export import Card, export_model, parity
from raysed.plan.artefacts import Facts, ScoredModel, first_healthy, load_calibrated
from raysed.plan.check import Job
from raysed.recipe import BASE, Recipe, parse_recipe
from raysed.report import plots
from raysed.report.choice import Choice, choose
from raysed.report.document import Report, headline_table, how_to_repeat, layers_table, sanity_words
from raysed.report.findings import LABELS, Row
from raysed.report.space import Space, analyse
from raysed.store.storage import Storage

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
    rows, draws = score(job, storage, models, facts)
    choice = choose(job.config, rows, models)
    chosen, sanity = choice.model, export(job, storage, choice, rows, facts, draws)
    pictures: dict[str, str] = {}
    space = analyse(job, storage, _shown(job, models))
    storage.commit(
        "plots",
        lambda path: pictures.update(_draw(job, storage, models, chosen, rows, facts, space, path)),
        job.depends,
    )
    report = _report(job, storage, models, rows, draws, facts, space, choice, sanity, pictures)
    for name, text in (("report.json", report.to_json()), ("report.md", report.to_markdown())):
        storage.write_text(name, text)
    say("")
    say(report.headline_table())
    by_layers = layers_table(rows, job.config.report_tasks())
    if by_layers:
        say(f"\nby pooled layers\n{by_layers}")
    say(f"\n{report.findings()}\n")
    say(f"report: {storage.uri('report.md')}   plots: {storage.uri('plots')}")
    say(f"model: {storage.uri('model')}: {choice.words()}; {sanity_words(sanity)}")
    say(f"TensorBoard: tensorboard --logdir {storage.uri('logs')}")
    say(_example(job, storage, chosen))


def publish_failure(config: Config, storage: Storage, error: Exception) -> None:
    """Writes the `report.json` of a run that has failed.

    Args:
        config: the run's settings.
        storage: the run directory.
        error: why it has failed.
    """
    settings = config.model_dump(mode="json")
    failed = {"run": config.run, "status": "failed", "error": str(error), "config": settings}
    storage.write_text("report.json", json.dumps(failed, indent=1))


def score(
    job: Job, storage: Storage, models: Sequence[ScoredModel], facts: Facts
) -> tuple[list[Row], dict[tuple[str, str, str], np.ndarray]]:
    """Scores every model at every pooling, every ensemble by its mean embedding, grid models and words alone.

    Returns:
        The rows, and the resampled headline scores of the groups of rows, see `findings.Draws`.
    """
    evaluation, tasks, main = job.evaluation, job.config.report_tasks(), job.config.encoder.layers
    rows, similarities = [], {}
    for name, similarity_P in baselines(evaluation).items():
        rows.append(Row(name, "baseline", 0, None, 0, evaluation.score_similarities(similarity_P)))
        similarities[name, "baseline"] = [evaluation.of_tasks(similarity_P, tasks)]
    rows += grid_rows(job, facts.grids)
    for recipe in dict.fromkeys(model.recipe for model in models):
        group = [model for model in models if model.recipe == recipe]
        for model in group:
            for layers in model.poolings:
                embeddings = _load(storage, model, layers)
                scores = evaluation.score(embeddings)
                rows.append(Row(recipe, model.kind, model.index, None, layers, scores, model.left_out))
                if layers == main and not model.left_out:
                    similarities.setdefault((recipe, model.kind), []).append(_cosines(evaluation, embeddings, tasks))
        healthy = [model for model in group if not model.left_out]
        if group[0].kind == "member" and healthy:
            mean = mean_embeddings([_load(storage, member, main) for member in healthy])
            rows.append(Row(recipe, "ensemble", 0, None, main, evaluation.score(mean)))
            similarities[recipe, "ensemble"] = [_cosines(evaluation, mean, tasks)]
    return rows, _resampled(job, rows, similarities)


def _cosines(evaluation: Evaluation, embeddings: Embeddings, tasks: Sequence[str]) -> np.ndarray:
    return np.concatenate([evaluation.cosines(embeddings, task)[0] for task in tasks])


def _resampled(
    job: Job, rows: Sequence[Row], similarities: Mapping[tuple[str, str], Sequence[np.ndarray]]
) -> dict[tuple[str, str, str], np.ndarray]:
    """Of every group the mean, and of groups of several models the one with the best headline score, too."""
    tasks, main = job.config.report_tasks(), job.config.encoder.layers
    groups = {(*group, "mean"): models for group, models in similarities.items()}
    for (recipe, kind), models in similarities.items():
        scores = [r.average(tasks) for r in rows if (r.recipe, r.kind) == (recipe, kind) and r.counts(main)]
        if len(scores) > 1 and None not in scores:
            groups[recipe, kind, "best"] = [models[int(np.argmax(scores))]]
    draws = resample(job.evaluation, groups, tasks, seed=derive_seed(job.config.seed, "bootstrap"))
    single = {(*group, "best"): draws[(*group, "mean")] for group in similarities if (*group, "best") not in groups}
    return {**draws, **single}


def export(
    job: Job,
    storage: Storage,
    choice: Choice,
    rows: Sequence[Row],
    facts: Facts,
    draws: Mapping[tuple[str, str, str], np.ndarray],
) -> dict[str, int]:
    """Writes `model/`, and compares its vectors with the model in memory before it is published.

    Returns:
        How many triples of the sanity list (`evaluation.triples`) are answered as by a person: by the model, by the
        untouched encoder, and by words alone.

    Raises:
        RuntimeError: they differ.
    """
    config, chosen = job.config, choice.model
    encoder, tokenizer = load_start(config.encoder, storage, chosen.weights)
    calibration = None
    if parse_recipe(chosen.recipe).calibration:
        calibration = load_calibration(storage.fetch(chosen.embeddings) / f"layers-{config.encoder.layers}")
    options: dict[str, Any] = {
        "layers": config.encoder.layers,
        "max_length": config.encoder.max_length,
        "calibration": calibration,
    }
    untouched = load_start(config.encoder, storage, choice.base_weights)
    sanity = {
        "triples": len(triples()),
        "exported": answered_by(_embedder(config, encoder, tokenizer, calibration)),
        "base": answered_by(_embedder(config, *untouched, None)),
        "words": answered_by_words(),
    }

    def write(path: Path) -> None:
        export_model(encoder, tokenizer, path, card=_card(job, choice, rows, facts, draws, sanity), **options)
        difference = parity(path, encoder, tokenizer, job.evaluation.sentences[:_PARITY_SENTENCES], **options)
        if not difference < _PARITY:
            raise RuntimeError(f"the exported model's vectors differ from the trained model's by {difference:.2g}")

    storage.commit("model", write, job.depends, {"recipe": chosen.recipe, "index": chosen.index})
    return sanity


def _embedder(config: Config, encoder: Encoder, tokenizer: Any, calibration: CalibrationMap | None) -> Embed:
    def embed(sentences: Sequence[str]) -> np.ndarray:
        tokens = tokenize(tokenizer, list(sentences), config.encoder.max_length)
        x_BD = encode(encoder, tokens, (config.encoder.layers,), config.resources.encode_token_budget)[0]
        return calibration.transform(x_BD) if calibration else x_BD

    return embed


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
        trainings=_trainings(job, storage, models, rows, facts),
        spectra=space.spectra,
        agreement={
            name: job.evaluation.cosines(_load(storage, model, layers), task) for name, model in agreement.items()
        },
        agreement_task=task,
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


def _trainings(
    job: Job, storage: Storage, models: Sequence[ScoredModel], rows: Sequence[Row], facts: Facts
) -> dict[str, plots.Training]:
    """The training histories of the members of every node, and of the learners of every recipe that distils."""
    shown = {}
    for node, names in facts.members.items():
        criterion = job.config.sts.criterion if node.endswith("sts") else "spearman"
        base = _dev_scores(job, rows, {"base": (BASE, "base")}, criterion)
        shown[node] = plots.Training("member", _curves(storage, "member", names), base, criterion)
    for text in dict.fromkeys(recipe.uncalibrated for recipe in job.recipes if recipe.distils):
        node = parse_recipe(text).ensemble
        others = {"base": (BASE, "base"), "members, mean": (node, "member"), "full ensemble": (node, "ensemble")}
        names = [model.weights for model in models if model.recipe == text]
        shown[text] = plots.Training("learner", _curves(storage, "learner", names), _dev_scores(job, rows, others))
    return shown


def _dev_scores(
    job: Job, rows: Sequence[Row], groups: Mapping[str, tuple[str, str]], criterion: str = "spearman"
) -> dict[str, float]:
    """Mean dev scores of groups of like models (recipe and kind), as far as there are any."""
    dev, layers = job.config.evaluation.dev, job.config.encoder.layers
    found = {
        name: [
            row.metrics[dev][criterion]
            for row in rows
            if (row.recipe, row.kind) == group and row.counts(layers) and dev in row.metrics
        ]
        for name, group in groups.items()
    }
    return {name: statistics.fmean(scores) for name, scores in found.items() if scores}


def _curves(storage: Storage, what: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Histories by `member 00` and the like; the models of a grid's winner are its members."""
    return {f"{what} {name.rpartition('/')[2]}": _history(storage, name) for name in names}


def _history(storage: Storage, name: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (storage.fetch(name) / "history.jsonl").read_text().splitlines()]
    return [{**entry, "dev": max(entry["dev"].values()) if "dev" in entry else None} for entry in entries]


def _report(
    job: Job,
    storage: Storage,
    models: Sequence[ScoredModel],
    rows: Sequence[Row],
    draws: Mapping[tuple[str, str, str], np.ndarray],
    facts: Facts,
    space: Space,
    choice: Choice,
    sanity: Mapping[str, int],
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
        exported=choice.model.recipe,
        export=choice.words(),
        sanity=sanity,
        draws=draws,
        fitted_on=_seen_by_calibrations(config),
        learners=_distances(job, storage, models),
        command=_typed(),
        repeat=how_to_repeat(storage.location, storage.run, _main_job()),
        plots=pictures,
    )


def _typed() -> str:
    """The command as the user typed it."""
    words = ["raysed"] if Path(sys.argv[0]).name == "raysed" else ["python", sys.argv[0]]
    return shlex.join([*words, *sys.argv[1:]])


def _main_job() -> list[str]:
    """The main job as the user would type it: the script beside the job that runs, or the installed command."""
    path = Path(sys.argv[0]).with_name("ensemble_then_distill.py")
    return ["python", str(path)] if path.is_file() else ["raysed", "run"]


def _views(job: Job) -> dict[str, list[str]]:
    """Kinds of views by stage."""
    return {stage: getattr(job.config, stage).views for recipe in job.recipes for stage in recipe.two_view_stages}


def _labels(job: Job) -> dict[str, str]:
    """The labels that stages train on: pairs labelled entailment are labelled, whatever is made of them."""
    return {**LABELS, **{stage: LABELS["nli"] for stage, kinds in _views(job).items() if "entailment" in kinds}}


def _seen_by_calibrations(config: Config) -> str:
    """`tasks`, `corpus`, `nli`, or what a reader should call the source."""
    return _public_name(config.flow.fit_on)


def _distances(job: Job, storage: Storage, models: Sequence[ScoredModel]) -> list[dict[str, Any]]:
    """How far learners, and the members themselves, are from the members' mean: what a learner has learnt.

    Mean squared distances per dimension on the evaluation's sentences, at the pooling that learners are trained with
    where the run has it; less each model's mean, which `sed.target: centred_mean` leaves out.
    """
    found = []
    by_recipe = {
        text: [m for m in models if m.recipe == text and not m.left_out] for text in {m.recipe for m in models}
    }
    for recipe in dict.fromkeys(recipe for recipe in job.recipes if recipe.distils):
        learners, members = by_recipe[recipe.uncalibrated], by_recipe[recipe.ensemble]
        layers = 1 if 1 in learners[0].poolings else job.config.encoder.layers
        of_members = [_centred(storage, member, layers) for member in members]
        mean_UD = np.mean(of_members, axis=0)
        found.append(
            {
                "recipe": recipe.uncalibrated,
                "updates": int(storage.entry(learners[0].weights).meta["steps"]),
                "distance": float(np.mean([((_centred(storage, m, layers) - mean_UD) ** 2).mean() for m in learners])),
                "members_distance": float(np.mean([((x_UD - mean_UD) ** 2).mean() for x_UD in of_members])),
            }
        )
    return list({entry["recipe"]: entry for entry in found}.values())


def _centred(storage: Storage, model: ScoredModel, layers: Layers) -> np.ndarray:
    x_UD = np.asarray(_load(storage, model, layers), np.float64)
    return x_UD - x_UD.mean(0)


def _left_out(name: str, reason: str) -> dict[str, Any]:
    node, *_, index = name.split("/")
    return {"recipe": node, "index": int(index), "reason": reason}


def _card(
    job: Job,
    choice: Choice,
    rows: Sequence[Row],
    facts: Facts,
    draws: Mapping[tuple[str, str, str], np.ndarray],
    sanity: Mapping[str, int],
) -> Card:
    config, chosen = job.config, choice.model
    recipe = parse_recipe(chosen.recipe)
    return Card(
        name=f"{config.run}-{chosen.recipe}",
        recipe=chosen.recipe,
        base=_public_name(config.encoder.path),
        members=sum(name not in facts.left_out for name in facts.members.get(recipe.ensemble, [])),
        left_out=sum(name.startswith(f"{recipe.ensemble}/") for name in facts.left_out),
        corpus=_text_of(job, recipe),
        lengths=LengthReport(**facts.corpus["lengths"]) if facts.corpus else LengthReport(config.encoder.max_length),
        scores=headline_table(
            rows,
            config.report_tasks(),
            config.encoder.layers,
            markdown=True,
            labels=_labels(job),
            draws=draws,
            fitted_on=_seen_by_calibrations(config),
            marked=chosen.recipe,
        ),
        choice=choice.words(),
        sanity=sanity_words(sanity),
        fitted_on=_seen_by_calibrations(config) if recipe.calibration else None,
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
    fitted = bool(recipe.calibration) and job.config.flow.fit_on == "corpus"
    return ", ".join(names) if recipe.trains_on_corpus(job.config) or fitted else ""


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
