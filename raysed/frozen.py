"""Work on frozen encoders, as Ray tasks: embed the evaluation's sentences, fit calibrations on embeddings.

Each result is an artefact with one `layers-<k>.npy` (float32 [U, D], rows in the order of `Evaluation.sentences`) per
pooling, so that scores, plots and the mean of an ensemble are computed from files and never encoded twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from raysed.calibration import fit_calibration, save_calibration
from raysed.config import Config, CorpusConfig, Layers
from raysed.corpus import CorpusReport, sentence_chunks
from raysed.encoder import Encoder, encode, load_checkpoint, load_encoder
from raysed.errors import UserError
from raysed.resources import Share
from raysed.storage import Storage
from raysed.tokens import TokenTable, read_tokens, tokenize
from raysed.tracking import Progress, quiet_libraries


@dataclass(frozen=True)
class Embedding:
    """Embeddings to make: of the evaluation's sentences, by one encoder.

    Attributes:
        name: of the artefact, e.g. `ct/embeddings/00`.
        model: artefact of the encoder; None for the pre-trained one.
        poolings: one file each.
        depends: everything that the numbers depend on.
    """

    name: str
    model: str | None
    poolings: tuple[Layers, ...]
    depends: dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """A calibration to fit per pooling, and its version of the embeddings.

    Attributes:
        name: of the artefact, e.g. `ct-sed-flow/calibrations/00`.
        stages: e.g. `("flow",)` or `("sn", "natsv")`.
        embedding: what it is fitted on and applied to.
        seed: of the fit.
        depends: everything that it depends on.
    """

    name: str
    stages: tuple[str, ...]
    embedding: Embedding
    seed: int
    depends: dict[str, Any]


@dataclass(frozen=True)
class Sentences:
    """The evaluation's sentences: tokens, and rows of both sentences of every pair, int64 [P, 2]."""

    tokens: TokenTable
    pair_rows: np.ndarray


def embed_all(
    jobs: Sequence[Embedding], sentences: Sentences, config: Config, storage: Storage, share: Share | None
) -> None:
    """Makes the embeddings that are not there yet, as tasks of that share each, or in this process without one."""
    todo = [job for job in jobs if not storage.finished(job.name, job.depends)]
    _run("embed evaluation sentences", _embed, todo, sentences, config, storage, share)


def calibrate_all(
    jobs: Sequence[Calibration], sentences: Sentences, config: Config, storage: Storage, share: Share | None
) -> None:
    """Fits the calibrations that are not there yet, as tasks of that share each, or in this process without one."""
    todo = [job for job in jobs if not storage.finished(job.name, job.depends)]
    _run("fit calibrations", _calibrate, todo, sentences, config, storage, share)


def load_embeddings(storage: Storage, name: str, layers: Layers) -> np.ndarray:
    """Returns float32 [U, D] of a finished artefact."""
    return np.load(storage.fetch(name) / _file_name(layers))


def _run(
    title: str,
    function: Any,
    jobs: Sequence,
    sentences: Sentences,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> None:
    if not jobs:
        return
    progress = Progress(title, len(jobs))
    shared = ray.put(sentences) if share else sentences
    for count, failure in enumerate(_outcomes(function, jobs, (shared, config, storage, share), share), start=1):
        if failure:
            raise UserError(failure)
        progress.update(count, f"{count} of {len(jobs)}")
    progress.close()


def _outcomes(function: Any, jobs: Sequence, arguments: tuple, share: Share | None) -> Iterator[str | None]:
    """Runs in this process where there is no share to give away: new workers would import for longer than they work."""
    if share is None:
        yield from (function(job, *arguments) for job in jobs)
        return
    remote = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus)(function)
    waiting = [remote.remote(job, *arguments) for job in jobs]
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        yield ray.get(done[0])


def _embed(job: Embedding, sentences: Sentences, config: Config, storage: Storage, share: Share | None) -> str | None:
    """One task; returns a user's mistake as a sentence."""
    _set_up(share)
    encoder = _encoder(job, config, storage, share)
    results = encode(encoder, sentences.tokens, job.poolings, config.resources.encode_token_budget)
    if not all(np.isfinite(result).all() for result in results):
        return f"{job.model or config.encoder.path}: the embeddings of some evaluation sentences are not finite"

    def write(path: Path) -> None:
        for layers, result in zip(job.poolings, results):
            np.save(path / _file_name(layers), result)

    storage.commit(job.name, write, job.depends)
    return None


def _calibrate(
    job: Calibration, sentences: Sentences, config: Config, storage: Storage, share: Share | None
) -> str | None:
    _set_up(share)
    poolings = job.embedding.poolings
    embeddings = [load_embeddings(storage, job.embedding.name, layers) for layers in poolings]
    try:
        fitted = [
            fit_calibration(list(job.stages), x_ND, config.flow, config.calibration.natsv_k, job.seed)
            for x_ND in _fitting_data(job, embeddings, sentences, config, storage, share)
        ]
    except UserError as error:
        return f"{job.name}: {error}"

    def write(path: Path) -> None:
        for layers, calibration, x_UD in zip(poolings, fitted, embeddings):
            directory = path / f"layers-{layers}"
            directory.mkdir()
            save_calibration(calibration, directory)
            np.save(path / _file_name(layers), calibration.transform(x_UD))

    storage.commit(job.name, write, job.depends)
    return None


def _fitting_data(
    job: Calibration,
    embeddings: list[np.ndarray],
    sentences: Sentences,
    config: Config,
    storage: Storage,
    share: Share | None,
) -> list[np.ndarray]:
    """One matrix per pooling; rows 2i and 2i + 1 are a pair where the sentences come in pairs."""
    if config.flow.fit_on == "tasks":
        rows = sentences.pair_rows.reshape(-1)
        return [embedding[rows] for embedding in embeddings]
    encoder = _encoder(job.embedding, config, storage, share)
    if config.flow.fit_on == "corpus":
        table = read_tokens(storage.fetch("corpus"))
    else:
        table = _other_text(config)
    return encode(encoder, table, job.embedding.poolings, config.resources.encode_token_budget)


def _other_text(config: Config) -> TokenTable:
    _, tokenizer = load_encoder(config.encoder)
    source = CorpusConfig(source=config.flow.fit_on)
    texts = [s for _, chunk in sentence_chunks(source, config.seed, CorpusReport()) for s in chunk]
    return tokenize(tokenizer, texts, config.encoder.max_length)


def _encoder(job: Embedding, config: Config, storage: Storage, share: Share | None) -> Encoder:
    encoder = load_checkpoint(storage.fetch(job.model)) if job.model else load_encoder(config.encoder)[0]
    return encoder.to("cuda" if share and share.gpus else "cpu")


def _set_up(share: Share | None) -> None:
    if share:
        quiet_libraries()
        torch.set_num_threads(share.threads)


def _file_name(layers: Layers) -> str:
    return f"layers-{layers}.npy"
