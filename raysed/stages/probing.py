"""What a run measures on further sentences, apart from graded pairs: transfer tasks and QNLI.

The base, the first member and the first learner of every recipe are scored, calibrated or not. Each encoder embeds the
further sentences once; probes are Ray tasks, and their results artefacts.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from raysed.cluster.heartbeat import watched_tasks
from raysed.cluster.resources import Share
from raysed.config import Config, Layers
from raysed.data.tokens import tokenize
from raysed.evaluation.analysis import qnli_auc
from raysed.evaluation.further import FurtherTasks
from raysed.evaluation.transfer import SED_TASKS, combine, jobs, run_probe, transfer_average
from raysed.model.affine import load_calibration
from raysed.model.encoder import load_start
from raysed.plan.artefacts import Embedding, ScoredModel, first_healthy
from raysed.recipe import parse_recipe
from raysed.stages.frozen import embed_all
from raysed.store.progress import Progress
from raysed.store.storage import Storage


def probe(
    further: FurtherTasks, models: Sequence[ScoredModel], config: Config, storage: Storage, share: Share | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Scores the first model of every recipe; of members, the first that has not collapsed.

    Args:
        further: what is asked.
        models: all models of the run.
        config: the run's settings.
        storage: the run directory.
        share: for embedding, see `frozen.embed_all`.

    Returns:
        What `Report.transfer` and, as `qnli`, `Report.analysis` take.
    """
    layers = config.evaluation.transfer.layers or config.encoder.layers
    first = [first_healthy(models, recipe) for recipe in dict.fromkeys(model.recipe for model in models)]
    shown = [model for model in first if _can_be_asked(model, layers, config)]
    embedded = _embed(further, shown, layers, config, storage, share)
    transfer = _transfer(further, shown, embedded, layers, config, storage) if further.transfer else []
    qnli = {m.recipe: _auc(further, _vectors(m, embedded, layers, storage)) for m in shown} if further.qnli else {}
    return transfer, qnli


def _can_be_asked(model: ScoredModel, layers: Layers, config: Config) -> bool:
    """A calibration has to be fitted at this pooling, and for all tasks together."""
    return not parse_recipe(model.recipe).calibration or (layers in model.poolings and not config.flow.per_task)


def _embed(
    further: FurtherTasks,
    shown: Sequence[ScoredModel],
    layers: Layers,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> dict[str, Embedding]:
    """The embedding of every recipe without its calibration."""
    _, tokenizer = load_start(config.encoder, storage, shown[0].weights)
    tokens = tokenize(tokenizer, further.sentences, config.encoder.max_length)
    embedded = {}
    for model in shown:
        if not parse_recipe(model.recipe).calibration:
            depends = {
                "embeddings": storage.entry(model.embeddings).fingerprint,
                "sentences": further.identity,
                "layers": layers,
            }
            name = f"{model.recipe}/probes/{model.index:02d}"
            embedded[model.recipe] = Embedding(name, model.weights, (layers,), depends)
    embed_all(list(embedded.values()), tokens, config, storage, share)
    return embedded


def _vectors(model: ScoredModel, embedded: dict[str, Embedding], layers: Layers, storage: Storage) -> np.ndarray:
    """Embeddings of the probes' sentences, float32 [U, D], calibrated where the recipe is."""
    recipe = parse_recipe(model.recipe)
    x_UD = np.load(storage.fetch(embedded[recipe.uncalibrated].name) / f"layers-{layers}.npy")
    if recipe.calibration:
        return load_calibration(storage.fetch(model.embeddings) / f"layers-{layers}").transform(x_UD)
    return x_UD


def _transfer(
    further: FurtherTasks,
    shown: Sequence[ScoredModel],
    embedded: dict[str, Embedding],
    layers: Layers,
    config: Config,
    storage: Storage,
) -> list[dict[str, Any]]:
    todo = jobs(further.transfer, config.evaluation.transfer.seed)
    progress = Progress("transfer tasks", len(shown) * len(todo))
    rows = []
    for place, model in enumerate(shown):
        depends = {
            "vectors": storage.entry(model.embeddings).fingerprint,
            "sentences": further.identity,
            "layers": layers,
            "seed": config.evaluation.transfer.seed,
        }
        name = f"{model.recipe}/transfer/{model.index:02d}"
        entry = storage.finished(name, depends)
        if entry is None:
            vectors = ray.put(_vectors(model, embedded, layers, storage))
            count = partial(_count, progress, place * len(todo), model.recipe)
            scores = combine(_in_tasks(todo, vectors, config.resources.silence_seconds, count))
            entry = storage.commit(name, partial(_write, scores), depends, {"scores": scores})
        scores = entry.meta["scores"]
        average = transfer_average(scores, SED_TASKS if set(SED_TASKS) <= set(scores) else None)
        about = {"recipe": model.recipe, "kind": model.kind, "index": model.index, "layers": layers}
        rows.append({**about, "scores": scores, "average": average})
    progress.close()
    return rows


def _write(scores: dict[str, Any], path: Path) -> None:
    (path / "scores.json").write_text(json.dumps(scores, indent=1))


def _in_tasks(todo: Sequence[Any], vectors: Any, seconds: float, count: Any) -> Iterable[dict[str, Any]]:
    """Runs every probe as a Ray task of one CPU."""
    one_cpu = Share(len(todo), 1, 0.0, threads=1)
    results = watched_tasks(run_probe, todo, vectors, work="transfer tasks", share=one_cpu, seconds=seconds)
    for done, result in enumerate(results, start=1):
        count(done)
        yield result


def _count(progress: Progress, before: int, recipe: str, done: int) -> None:
    progress.update(before + done, recipe)


def _auc(further: FurtherTasks, vectors_UD: np.ndarray) -> float:
    questions, answers, labels_P = further.qnli
    row = {sentence: i for i, sentence in enumerate(further.sentences)}
    a_PD, b_PD = (vectors_UD[[row[sentence] for sentence in side]] for side in (questions, answers))
    norms_P = np.linalg.norm(a_PD, axis=1) * np.linalg.norm(b_PD, axis=1)
    return qnli_auc((a_PD * b_PD).sum(1) / np.maximum(norms_P, 1e-12), labels_P)
