"""Embeddings of the evaluation's sentences by frozen models, and calibrations.

Each pooling has a file `layers-<k>.npy` (float32 [U, D], rows in the order of `Evaluation.sentences`), or one file per
task if every task has its own calibration. Scores, plots and ensemble means read these files, so no sentence is encoded
twice.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from raysed.config import FlowConfig, Layers, Role, TeacherConfig, derive_seed
from raysed.context import Context
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.pairs import read_pairs
from raysed.data.tokens import Tokenizer, TokenTable, read_tokens
from raysed.errors import RunFailed, UserError
from raysed.make.inputs import Named, layers_file
from raysed.model.calibration import save_calibration
from raysed.model.encoding import encode
from raysed.model.pretrained import load_start, text_tokenizer
from raysed.model.prompts import embed_in_parts
from raysed.model.teacher import Teacher, load_teacher
from raysed.score.tasks import DevTask, Embeddings, Evaluation
from raysed.store.hub import model_identity
from raysed.store.progress import emit
from raysed.train.calibration import choose_natsv_k, fit_calibration
from raysed.train.calibrations.natsv import MOST_DIRECTIONS, largest_k
from raysed.train.flow_fit import distinct_pairs
from raysed.train.state import seed_everything

OF_TASK = "embeddings.npy"
Parts = dict[str | None, np.ndarray]
"""Rows to fit on, by task; under None if all tasks share one calibration."""


# -- embeddings ------------------------------------------------------------------------------------------------------


def embeddings(out: Path, inputs: Named, settings: Named, context: Context) -> None:
    """Embed sentences at every pooling with one encoder; refuse non-finite results."""
    sentences, config, model = inputs["sentences"], inputs["encoder"], inputs["model"]
    encoder, tokenizer = load_start(config, model)
    evaluation, tokens = sentences.evaluation, sentences.tokens
    if tokens is None:
        whole = Tokenizer(tokenizer, config.max_length, sentences.prompts)
        tokens = whole(evaluation.sentences, evaluation.roles)
    results = encode(encoder.to(context.device), tokens, settings["layers"])
    for layers, x_UD in zip(settings["layers"], results):
        if not np.isfinite(x_UD).all():
            name = config.path if model is None else "/".join(model.parts[-3:])
            raise UserError(f"{name}: the embeddings of some evaluation sentences are not finite")
        np.save(out / layers_file(layers), x_UD)
    emit(sentences=len(tokens))


def teacher_embeddings(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Embed sentences with an external teacher, and free its model; refuse non-finite results."""
    teacher: Teacher | TeacherConfig = inputs["teacher"]
    if isinstance(teacher, TeacherConfig):
        teacher = load_teacher(teacher, context.device, settings.get("precision", "fp32"))
    evaluation = inputs["sentences"].evaluation
    x_UD = embed_by(teacher, evaluation.sentences, evaluation.roles)
    np.save(out / layers_file(settings["layers"]), x_UD)
    facts = {"parameters": teacher.parameters, "width": x_UD.shape[1]}
    teacher.unload()
    return facts


def embed_by(teacher: Teacher, texts: Sequence[str], roles: Sequence[Role]) -> np.ndarray:
    """Return a teacher's embeddings [N, D]; refuse non-finite ones."""
    x_ND = embed_in_parts(teacher.embed, texts, roles, f"embed by {teacher.title}")
    if not np.isfinite(x_ND).all():
        raise RunFailed(f"teachers: {teacher.config.path!r} has embeddings that are not finite")
    return x_ND


# -- calibrations ----------------------------------------------------------------------------------------------------


def calibration(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Fit a calibration at every pooling, and write the calibrated embeddings.

    Only a failure at the main pooling is an error. Others leave cells of a side table empty and are returned as
    `failed`.
    """
    evaluation, stages, poolings = inputs["sentences"].evaluation, settings["stages"], settings["layers"]
    frozen = {layers: load_embeddings(inputs["embeddings"], layers) for layers in poolings}
    flow = settings["flow"]
    if has_dropout(flow, stages) and not inputs["encoder"].static:
        parts, flow = _rows_with_dropout(inputs, settings, context)
    elif flow.fit_on == "tasks":
        rows_of = _rows_of_tasks(evaluation, flow)
        parts = [{task: x_UD[rows] for task, rows in rows_of.items()} for x_UD in frozen.values()]
    else:
        parts, flow = _rows_of_text(inputs, settings, context)
    ks, failed, seed = {}, {}, settings["seed"]
    for layers, rows in zip(poolings, parts):
        try:
            ks[layers] = _natsv_k(inputs.get("dev"), settings, frozen[layers], rows)
            seeds = {task: seed if task is None else derive_seed(seed, task) for task in rows}
            fitted = {task: fit_calibration(stages, x_ND, flow, ks[layers], seeds[task]) for task, x_ND in rows.items()}
        except UserError as error:
            if layers == poolings[settings["main"]]:
                raise
            failed[str(layers)] = str(error)
            continue
        for task, fit in fitted.items():
            folder, file, x_ND = out / f"layers-{layers}", out / layers_file(layers), frozen[layers]
            if task is not None:
                folder = folder / quote(task, safe="")
                file, x_ND = folder / OF_TASK, evaluation.of_task(x_ND, task)
            folder.mkdir(parents=True)
            save_calibration(fit, folder)
            np.save(file, fit.transform(x_ND))
    meta = {"natsv_k": {str(layers): k for layers, k in ks.items()}} if "natsv" in stages else {}
    return {**meta, "failed": failed} if failed else meta


def has_dropout(flow: FlowConfig, stages: Sequence[str]) -> bool:
    """Return whether a calibration is fitted on embeddings with dropout."""
    return flow.dropout and "flow" in stages


def _rows_of_tasks(evaluation: Evaluation, flow: FlowConfig) -> dict[str | None, np.ndarray]:
    """Return which embeddings to fit on, by task. For sentence pairs, rows 2i and 2i + 1 are a pair."""
    tasks = {task: [task] for task in evaluation.tasks} if flow.per_task else {None: flow.fit_tasks}
    return {task: evaluation.pair_rows(names).reshape(-1) for task, names in tasks.items()}


def _rows_with_dropout(inputs: Named, settings: Named, context: Context) -> tuple[list[Parts], FlowConfig]:
    """Return embeddings by the encoder with dropout, per pooling, and flow settings that use each of them once.

    BERT-flow's released code runs the encoder in every update, with dropout. Here all is embedded before the fit, each
    sentence once per epoch with a dropout mask of its own. For up to one epoch that is the same; the sentences of
    several epochs are shuffled together. The initialisation from the data sees these embeddings, too.
    """
    flow, sentences, poolings = settings["flow"], inputs["sentences"], settings["layers"]
    if flow.fit_on == "tasks":
        rows_of = _rows_of_tasks(sentences.evaluation, flow)
        tables = {task: sentences.tokens.take(rows) for task, rows in rows_of.items()}
    else:
        table, flow = draw(_text_to_fit(inputs, settings), flow, settings["seed"])
        tables = {None: table}
    encoder, _ = load_start(inputs["encoder"], inputs["model"])
    encoder, epochs = encoder.to(context.device), math.ceil(flow.epochs)
    parts: list[Parts] = [{} for _ in poolings]
    seed_everything(settings["seed"], step=0)
    for task, table in tables.items():
        rows = np.tile(np.arange(len(table) // 2 * 2), epochs)
        for part, x_ND in zip(parts, encode(encoder, table.take(rows), poolings, dropout=True)):
            part[task] = x_ND
    return parts, flow.model_copy(update={"epochs": flow.epochs / epochs})


def poolings_without_fit(meta: Named) -> str:
    """Return why poolings have no fit, from the facts of `calibration`; empty if all have one."""
    return "; ".join(f"no fit with {layers} pooled layers: {why}" for layers, why in meta.get("failed", {}).items())


def _natsv_k(dev: DevTask | None, settings: Named, x_UD: np.ndarray, parts: Parts) -> int | None:
    """Return how many directions `natsv` removes. A choice on the dev task holds for all tasks, as in BERT-flow."""
    k = settings["calibration"].natsv_k
    if "natsv" not in settings["stages"] or k != "dev":
        return None if k == "dev" else k
    (name,) = dev.evaluation.tasks
    most = min(MOST_DIRECTIONS, *map(largest_k, parts.values()))
    score = lambda fitted: dev.score(fitted.transform(x_UD[dev.rows]))  # noqa: E731
    return choose_natsv_k(settings["stages"], parts.get(name, parts.get(None)), score, most)


_embedded: dict[Any, dict[Layers, np.ndarray]] = {}
"""Embeddings of all sentences to fit on, cached for the next calibration of the same model."""


def _rows_of_text(inputs: Named, settings: Named, context: Context) -> tuple[list[Parts], FlowConfig]:
    """Return embeddings of sentences outside the tasks, per pooling, and flow settings for their number."""
    table, flow = draw(_text_to_fit(inputs, settings), settings["flow"], settings["seed"])
    poolings = inputs["poolings"]  # all of the model's: other fits read them from the cache
    digest = hashlib.sha256(table.offsets.tobytes())  # files may change between runs in this process
    digest.update(np.ascontiguousarray(table.input_ids))
    weights = model_identity(inputs["encoder"])
    key = str((inputs["encoder"], weights, inputs["model"], poolings, digest.hexdigest()))
    if key not in _embedded:
        encoder, _ = load_start(inputs["encoder"], inputs["model"])
        _embedded.clear()
        _embedded[key] = dict(zip(poolings, encode(encoder.to(context.device), table, poolings)))
    return [{None: _embedded[key][layers]} for layers in settings["layers"]], flow


def _text_to_fit(inputs: Named, settings: Named) -> TokenTable:
    flow, text, config = settings["flow"], inputs["text"], inputs["encoder"]
    if isinstance(text, Path) and flow.fit_on != "corpus":  # labelled pairs
        pairs = read_pairs(text)
        both = TokenTable.concatenate([pairs.first, pairs.second])
        return both.take(np.arange(len(both)).reshape(2, -1).T.reshape(-1))  # side by side
    if isinstance(text, Path):
        table = read_tokens(text)
    else:
        chunks = sentence_chunks(text, settings["run_seed"], CorpusReport())
        texts = [sentence for _, chunk in chunks for sentence in chunk]
        table = text_tokenizer(config, inputs["model"])(texts)
    most = flow.fit_sentences
    if most is None or most >= len(table):
        return table
    seed = derive_seed(settings["run_seed"], "calibration")  # the same sentences for all models of the run
    return table.take(np.sort(np.random.default_rng(seed).choice(len(table), most, replace=False)))


def draw(table: TokenTable, flow: FlowConfig, seed: int) -> tuple[TokenTable, FlowConfig]:
    """Draw the pairs that the flow's fit uses, for one pass over them; return everything if it uses all."""
    pairs = len(table) // 2
    needed = distinct_pairs(pairs, flow)
    if needed == pairs:
        return table, flow
    drawn = np.sort(np.random.default_rng(seed).choice(pairs, needed, replace=False))
    return table.take((2 * drawn[:, None] + np.arange(2)).reshape(-1)), flow.model_copy(update={"epochs": 1.0})


def load_embeddings(directory: Path, layers: Layers) -> Embeddings:
    """Load embeddings for `Evaluation.score`: float32 [U, D], or with `flow.per_task` by task [U_task, D]."""
    files = sorted((directory / f"layers-{layers}").glob(f"*/{OF_TASK}"))
    if files:
        return {unquote(file.parent.name): np.load(file) for file in files}
    return np.load(directory / layers_file(layers))
