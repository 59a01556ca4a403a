"""Work on frozen encoders, as Ray tasks: embed the evaluation's sentences, fit calibrations on embeddings.

Each result is an artefact with one `layers-<k>.npy` (float32 [U, D], rows in the order of `Evaluation.sentences`) per
pooling, or with one file per pooling and task where every task has a calibration of its own, so that scores, plots and
the mean of an ensemble are computed from files and never encoded twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import ray

from raysed.cluster.heartbeat import watched_tasks
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Share
from raysed.config import Config, CorpusConfig, FlowConfig, Layers, derive_seed
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.pair_table import read_pairs
from raysed.data.tokens import TokenTable, read_tokens, tokenize
from raysed.errors import UserError
from raysed.model.affine import Affine
from raysed.model.encoder import Encoder, load_start, load_start_tokenizer
from raysed.model.encoding import encode
from raysed.model.flow import Flow
from raysed.plan.artefacts import Calibration, Embedding, load_calibrated, write_calibrated
from raysed.score.tasks import Evaluation, comparable, main_score
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage
from raysed.train.calibration import MOST_DIRECTIONS, choose_natsv_k, fit_calibration, largest_k
from raysed.train.flow_fit import distinct_pairs

Parts = dict[str | None, np.ndarray]
"""Rows to fit on by task; under None where all tasks share one calibration."""


def embed_all(
    jobs: Sequence[Embedding], tokens: TokenTable, config: Config, storage: Storage, share: Share | None
) -> None:
    """Makes the embeddings that are not there yet, as tasks of that share each, or in this process without one.

    Args:
        tokens: the sentences to embed, e.g. `Evaluation.sentences`.
        share: of one task; None: no tasks.

    Raises:
        UserError: an embedding is not finite.
    """
    todo = [job for job in jobs if not storage.finished(job.name, job.depends)]
    for failure in _run("embed evaluation sentences", _embed, todo, tokens, config, storage, share):
        if failure:
            raise UserError(failure)
    tell(sentences=len(todo) * len(tokens))


def calibrate_all(
    jobs: Sequence[Calibration], evaluation: Evaluation, config: Config, storage: Storage, share: Share | None
) -> dict[str, str]:
    """Fits the calibrations that are not there yet, as a task of that share per model, or in this process without one.

    Fits are work for CPUs. Only while a model embeds the text that they are made on, a task of its own holds a GPU.

    The entry of an artefact has in its meta data `natsv_k`, the directions that `natsv` removes, by pooling, and
    `failed`, why a pooling other than the main one has none.

    Args:
        share: of one task; None: no tasks. A GPU in it is for embedding.

    Returns:
        The artefacts that could not be made, because the fit at the main pooling fails, and why.
    """
    groups: dict[str, list[Calibration]] = {}
    for job in jobs:
        if not storage.finished(job.name, job.depends):
            groups.setdefault(job.embedding.name, []).append(job)
    failures: dict[str, str] = {}
    for failed in _run("fit calibrations", _calibrate, list(groups.values()), evaluation, config, storage, share):
        failures |= failed or {}
    return failures


def _run(
    title: str,
    function: Any,
    jobs: Sequence,
    data: Any,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> Iterator[Any]:
    """Yields what the function returns for each job."""
    if not jobs:
        return
    progress = Progress(title, len(jobs))
    shared = ray.put(data) if share else data
    outcomes = _outcomes(title, function, jobs, (shared, config, storage, share))
    for count, outcome in enumerate(outcomes, start=1):
        yield outcome
        progress.update(count, f"{count} of {len(jobs)}")
    progress.close()


def _outcomes(title: str, function: Any, jobs: Sequence, arguments: tuple) -> Iterator[Any]:
    """Runs in this process where there is no share: there, new workers would take longer to import than to work."""
    _, config, _, share = arguments
    if share is None:
        return (function(job, *arguments) for job in jobs)
    seconds = config.resources.silence_seconds
    own = share.on_cpus if function is _calibrate else share
    return watched_tasks(function, jobs, *arguments, work=title, share=own, seconds=seconds)


def _embed(job: Embedding, tokens: TokenTable, config: Config, storage: Storage, share: Share | None) -> str | None:
    """One task; returns a user's mistake as a sentence."""
    _set_up(share)
    encoder = _encoder(job, config, storage, share)
    try:
        results = encode(encoder, tokens, job.poolings, config.resources.encode_token_budget)
    except UserError as error:
        return str(error)
    if not all(np.isfinite(result).all() for result in results):
        return f"{job.model or config.encoder.path}: the embeddings of some evaluation sentences are not finite"

    def write(path: Path) -> None:
        for layers, result in zip(job.poolings, results):
            np.save(path / f"layers-{layers}.npy", result)

    storage.commit(job.name, write, job.depends)
    return None


def _calibrate(
    group: Sequence[Calibration], evaluation: Evaluation, config: Config, storage: Storage, share: Share | None
) -> dict[str, str]:
    """One task: all calibrations of one model; returns which failed, and why."""
    _set_up(share)
    poolings = group[0].embedding.poolings
    embeddings = [load_calibrated(storage, group[0].embedding.name, layers) for layers in poolings]
    text, failures = _Text(group[0].embedding, config, storage, share), {}
    for job in group:
        try:
            parts, settings = _parts_to_fit(job, embeddings, evaluation, config, text)
            inputs = {layers: of for layers, of in zip(poolings, zip(embeddings, parts)) if layers in job.poolings}
            _fit_and_commit(job, inputs, settings, evaluation, config, storage)
        except UserError as error:
            failures[job.name] = str(error)
    return failures


def _fit_and_commit(
    job: Calibration,
    inputs: Mapping[Layers, tuple[np.ndarray, Parts]],
    settings: FlowConfig,
    evaluation: Evaluation,
    config: Config,
    storage: Storage,
) -> None:
    """Fits at every pooling; a failure at another than the main pooling costs its cells in a side table only."""
    ks, fitted, failed = {}, {}, {}
    for layers, (x_UD, parts) in inputs.items():
        try:
            ks[layers] = _natsv_k(job, x_UD, parts, evaluation, config)
            fitted[layers] = _fit(job, parts, settings, ks[layers])
        except UserError as error:
            if layers == config.encoder.layers:
                raise
            failed[str(layers)] = str(error)

    def write(path: Path) -> None:
        for layers, calibrations in fitted.items():
            x_UD, _ = inputs[layers]
            for task, calibration in calibrations.items():
                applied_to = x_UD if task is None else evaluation.of_task(x_UD, task)
                write_calibrated(path, layers, task, calibration, applied_to)

    meta = {"natsv_k": {str(layers): ks[layers] for layers in fitted}} if "natsv" in job.stages else {}
    storage.commit(job.name, write, job.depends, {**meta, **({"failed": failed} if failed else {})})


def _fit(job: Calibration, parts: Parts, settings: FlowConfig, natsv_k: int | None) -> dict[str | None, Affine | Flow]:
    seeds = {task: job.seed if task is None else derive_seed(job.seed, task) for task in parts}
    return {
        task: fit_calibration(list(job.stages), rows_ND, settings, natsv_k, seeds[task])
        for task, rows_ND in parts.items()
    }


def _natsv_k(job: Calibration, x_UD: np.ndarray, parts: Parts, evaluation: Evaluation, config: Config) -> int | None:
    """The directions that `natsv` removes; chosen for one task, they are those of all, as in BERT-flow."""
    k, dev = config.calibration.natsv_k, config.evaluation.dev
    if "natsv" not in job.stages or k != "dev":
        return None if k == "dev" else k
    dev_UD = evaluation.of_task(x_UD, dev)

    def score(calibration: Any) -> float:
        return comparable(main_score(evaluation.score({dev: calibration.transform(dev_UD)})[dev]))

    most = min(MOST_DIRECTIONS, *map(largest_k, parts.values()))
    return choose_natsv_k(job.stages, parts.get(dev, parts.get(None)), score, most)


class _Text:
    """The sentences outside of the tasks that a model's calibrations are fitted on, and their embeddings."""

    def __init__(self, embedding: Embedding, config: Config, storage: Storage, share: Share | None):
        self.embedding, self.config, self.storage, self.share = embedding, config, storage, share

    @cached_property
    def table(self) -> TokenTable:
        """The tokens."""
        if self.config.flow.fit_on == "nli":
            pairs = read_pairs(self.storage.fetch("pairs/nli"))
            return _side_by_side(pairs.first, pairs.second)
        table = self._tokens()
        most = self.config.flow.fit_sentences
        if most is None or most >= len(table):
            return table
        seed = derive_seed(self.config.seed, "calibration")  # the same sentences for all models of the run
        return table.take(np.sort(np.random.default_rng(seed).choice(len(table), most, replace=False)))

    def _tokens(self) -> TokenTable:
        config = self.config
        if config.flow.fit_on == "corpus":
            return read_tokens(self.storage.fetch("corpus"))
        tokenizer = load_start_tokenizer(config.encoder, self.storage, self.embedding.model)
        source = CorpusConfig(source=config.flow.fit_on)
        texts = [s for _, chunk in sentence_chunks(source, config.seed, CorpusReport()) for s in chunk]
        return tokenize(tokenizer, texts, config.encoder.max_length)

    @cached_property
    def all_rows(self) -> list[np.ndarray]:
        """Embeddings of all, float32 [N, D] per pooling."""
        return self._encode(self.table)

    def rows(self, fit: FlowConfig, seed: int) -> tuple[list[np.ndarray], FlowConfig]:
        """Returns the embeddings that a fit uses, per pooling, and its settings."""
        table, fit = _drawn(self.table, fit, seed)
        return (self.all_rows if table is self.table else self._encode(table)), fit

    def _encode(self, table: TokenTable) -> list[np.ndarray]:
        if self.share is None or not self.share.gpus:
            return _encoded(self.embedding, table, self.config, self.storage, self.share)
        work, seconds = "embed text to fit on", self.config.resources.silence_seconds
        rest = ray.put(table), self.config, self.storage, self.share
        (arrays,) = watched_tasks(_encoded, [self.embedding], *rest, work=work, share=self.share, seconds=seconds)
        return [x_ND.copy() for x_ND in arrays]  # those in Ray's store cannot be written to


def _encoded(
    embedding: Embedding, table: TokenTable, config: Config, storage: Storage, share: Share | None
) -> list[np.ndarray]:
    """Embeddings of a table, float32 [N, D] per pooling; one task where there is a GPU."""
    _set_up(share)
    encoder = _encoder(embedding, config, storage, share)
    return encode(encoder, table, embedding.poolings, config.resources.encode_token_budget)


def _parts_to_fit(
    job: Calibration, embeddings: list[np.ndarray], evaluation: Evaluation, config: Config, text: _Text
) -> tuple[list[Parts], FlowConfig]:
    """Per pooling the rows to fit on, 2i and 2i + 1 a pair where sentences come in pairs; and the flow's settings."""
    fit = config.flow
    if fit.fit_on != "tasks":
        results, fit = text.rows(fit, job.seed)
        return [{None: x_ND} for x_ND in results], fit
    if fit.per_task:
        rows = {task: evaluation.pair_rows([task]).reshape(-1) for task in evaluation.tasks}
    else:
        rows = {None: evaluation.pair_rows(fit.fit_tasks).reshape(-1)}
    return [{task: x_UD[of_task] for task, of_task in rows.items()} for x_UD in embeddings], fit


def _side_by_side(first: TokenTable, second: TokenTable) -> TokenTable:
    """Row 2i is sentence i of the first table, row 2i + 1 that of the second."""
    both = TokenTable.concatenate([first, second])
    return both.take(np.arange(len(both)).reshape(2, -1).T.reshape(-1))


def _drawn(table: TokenTable, fit: FlowConfig, seed: int) -> tuple[TokenTable, FlowConfig]:
    """As many pairs as the flow's fit uses, which goes over each of them once; all, where that is all or more."""
    pairs = len(table) // 2
    needed = distinct_pairs(pairs, fit)
    if needed == pairs:
        return table, fit
    drawn = np.sort(np.random.default_rng(seed).choice(pairs, needed, replace=False))
    return table.take((2 * drawn[:, None] + np.arange(2)).reshape(-1)), fit.model_copy(update={"epochs": 1.0})


def _encoder(job: Embedding, config: Config, storage: Storage, share: Share | None) -> Encoder:
    encoder, _ = load_start(config.encoder, storage, job.model)
    return encoder.to(share.device if share else "cpu")


def _set_up(share: Share | None) -> None:
    if share:
        prepare_worker(share.threads)
