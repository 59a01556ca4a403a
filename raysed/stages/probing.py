"""What a run measures on further sentences, apart from graded pairs: transfer tasks and QNLI.

The base, all teachers from outside, and members and learners of every recipe are scored, calibrated or not: the first
of each, or all. Each encoder embeds the further sentences once; probes are Ray tasks, and their results artefacts.
TF-IDF is given the transfer tasks, too.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from raysed.cluster.heartbeat import watched_tasks
from raysed.cluster.resources import Share
from raysed.config import Config, Layers
from raysed.data.tokens import tokenize
from raysed.model.affine import load_calibration
from raysed.model.encoder import load_start_tokenizer
from raysed.plan.artefacts import Embedding, ScoredModel
from raysed.recipe import TEACHERS, parse_recipe
from raysed.score.baselines import run_word_probe, word_counts
from raysed.score.further import FurtherTasks
from raysed.score.lexical import TF_IDF
from raysed.score.transfer import SED_TASKS, ProbeJob, combine, jobs, run_probe, transfer_average
from raysed.stages.frozen import embed_all
from raysed.store.progress import Progress
from raysed.store.storage import Storage

Embedded = Mapping[str | None, Embedding]
"""By artefact of an encoder, None for the pre-trained one."""


def probe(
    further: FurtherTasks,
    models: Sequence[ScoredModel],
    of_teachers: Embedded,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Scores the models of every recipe that `evaluation.transfer.models` means.

    Args:
        of_teachers: what teachers from outside have made of the sentences; others are not scored.
        share: for embedding, see `frozen.embed_all`.

    Returns:
        What `Report.transfer` and, as `qnli`, `Report.analysis` take.
    """
    layers = config.evaluation.transfer.layers or config.encoder.layers
    models = [model for model in models if model.recipe != TEACHERS or model.weights in of_teachers]
    shown = [model for model in asked_models(models, config) if _can_be_asked(model, layers, config)]
    own = [model for model in models if model.recipe != TEACHERS]
    embedded = {**of_teachers, **_embed(further, own, shown, layers, config, storage, share)}
    transfer = _transfer(further, shown, embedded, layers, config, storage) if further.transfer else []
    qnli = {}
    if further.qnli:
        names = names_of(shown)
        row = {sentence: i for i, sentence in enumerate(further.sentences)}
        rows = [row[sentence] for sentence in further.qnli.sentences]
        qnli = {names[m]: further.qnli.score(_vectors(m, embedded, layers, storage)[rows]) for m in shown}
    return transfer, qnli


def asked_models(models: Sequence[ScoredModel], config: Config) -> list[ScoredModel]:
    """Returns the first healthy model of every recipe, or all healthy ones; the first where none is; and all teachers.

    Args:
        config: `evaluation.transfer.models` says which.
    """
    groups: dict[str, list[ScoredModel]] = {}
    for model in models:
        groups.setdefault(model.recipe, []).append(model)
    many = None if config.evaluation.transfer.models == "all" else 1
    chosen = {recipe: [model for model in group if not model.left_out] or group[:1] for recipe, group in groups.items()}
    return [model for recipe, group in chosen.items() for model in group[: None if recipe == TEACHERS else many]]


def names_of(shown: Sequence[ScoredModel]) -> dict[ScoredModel, str]:
    """Returns what models are called in a report: by their recipe, or `nli/01` where there are several of one."""
    counts = Counter(model.recipe for model in shown)
    return {m: m.recipe if counts[m.recipe] == 1 else f"{m.recipe}/{m.index:02d}" for m in shown}


def _can_be_asked(model: ScoredModel, layers: Layers, config: Config) -> bool:
    """A calibration has to be fitted at this pooling, and for all tasks together."""
    return not parse_recipe(model.recipe).calibration or (layers in model.poolings and not config.flow.per_task)


def _embed(
    further: FurtherTasks,
    models: Sequence[ScoredModel],
    shown: Sequence[ScoredModel],
    layers: Layers,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> Embedded:
    """What the encoders of the shown models make of the sentences, before any calibration."""
    tokenizer = load_start_tokenizer(config.encoder, storage, shown[0].weights)
    tokens = tokenize(tokenizer, further.sentences, config.encoder.max_length)
    wanted, embedded = {model.weights for model in shown}, {}
    for model in models:
        if model.weights in wanted and not parse_recipe(model.recipe).calibration:
            depends = {
                "embeddings": storage.entry(model.embeddings).fingerprint,
                "sentences": further.identity,
                "layers": layers,
            }
            name = f"{model.recipe}/probes/{model.index:02d}"
            embedded[model.weights] = Embedding(name, model.weights, (layers,), depends)
    embed_all(list(embedded.values()), tokens, config, storage, share)
    return embedded


def _vectors(model: ScoredModel, embedded: Embedded, layers: Layers, storage: Storage) -> np.ndarray:
    """Embeddings of the probes' sentences, float32 [U, D], calibrated where the recipe is."""
    x_UD = np.load(storage.fetch(embedded[model.weights].name) / f"layers-{layers}.npy")
    if parse_recipe(model.recipe).calibration:
        return load_calibration(storage.fetch(model.embeddings) / f"layers-{layers}").transform(x_UD)
    return x_UD


def _transfer(
    further: FurtherTasks,
    shown: Sequence[ScoredModel],
    embedded: Embedded,
    layers: Layers,
    config: Config,
    storage: Storage,
) -> list[dict[str, Any]]:
    """TF-IDF, and then the shown models: a gain over nothing is no gain."""
    seed = config.evaluation.transfer.seed
    todo = jobs(further.transfer, seed)
    progress = Progress("transfer tasks", (1 + len(shown)) * len(todo))
    probes = _Probes(todo, storage, progress, config.resources.silence_seconds)
    depends = {"sentences": further.identity, "seed": seed}
    words = partial(word_counts, further.transfer)
    rows = [{**_about(TF_IDF, "baseline", 0, None), **probes.scores(TF_IDF, 0, depends, run_word_probe, words)}]
    for model in shown:
        of_model = {**depends, "vectors": storage.entry(model.embeddings).fingerprint, "layers": layers}
        vectors = partial(_vectors, model, embedded, layers, storage)
        found = probes.scores(model.recipe, model.index, of_model, run_probe, vectors)
        rows.append({**_about(model.recipe, model.kind, model.index, layers), **found})
    progress.close()
    return rows


def _about(recipe: str, kind: str, index: int, layers: Layers | None) -> dict[str, Any]:
    return {"recipe": recipe, "kind": kind, "index": index, "layers": layers}


@dataclass
class _Probes:
    """Every probe is a Ray task of one CPU; what is finished is not repeated."""

    todo: Sequence[ProbeJob]
    storage: Storage
    progress: Progress
    silence: float
    done: int = 0

    def scores(
        self,
        recipe: str,
        index: int,
        depends: Mapping[str, Any],
        probe: Callable[..., Any],
        features: Callable[[], Any],
    ) -> dict[str, Any]:
        """Returns `scores` by task, and their `average`.

        Args:
            recipe: names the artefact, with `index`.
            features: makes them, where there is something to do.
        """
        name = f"{recipe}/transfer/{index:02d}"
        entry = self.storage.finished(name, depends)
        if entry is None:
            scores = combine(self._in_tasks(probe, ray.put(features()), recipe))
            entry = self.storage.commit(name, partial(_write, scores), depends, {"scores": scores})
        self.done += len(self.todo)
        scores = entry.meta["scores"]
        average = transfer_average(scores, SED_TASKS if set(SED_TASKS) <= set(scores) else None)
        return {"scores": scores, "average": average}

    def _in_tasks(self, probe: Callable[..., Any], features: Any, recipe: str) -> Iterator[dict[str, Any]]:
        one_cpu = Share(len(self.todo), 1, 0.0, threads=1)
        results = watched_tasks(probe, self.todo, features, work="transfer tasks", share=one_cpu, seconds=self.silence)
        for count, result in enumerate(results, start=1):
            self.progress.update(self.done + count, recipe)
            yield result


def _write(scores: dict[str, Any], path: Path) -> None:
    (path / "scores.json").write_text(json.dumps(scores, indent=1))
