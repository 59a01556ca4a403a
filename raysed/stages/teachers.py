"""Teachers from outside: their embeddings of the corpus, and the targets that these together make.

A teacher's embeddings are kept by blocks of sentences, each an artefact that depends on the teacher and on the text, so
that another teacher, way of combining or larger corpus computes only what is not there yet. Work is done in Ray tasks
that read and write the run directory; the driver sees names only.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysed.cluster.heartbeat import watched_tasks
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Share
from raysed.config import Config, ResourcesConfig, TeacherConfig
from raysed.data.targets import ROWS_PER_GROUP, TargetWriter, matrix, with_targets
from raysed.data.tokens import SentenceTable, TokenTable
from raysed.errors import RunFailed, UserError
from raysed.model.combination import (
    Combination,
    choose_teachers,
    choose_weights,
    fit_combination,
    side_by_side,
    turn,
)
from raysed.model.encoder import Encoder, load_start
from raysed.model.encoding import encode
from raysed.model.head import START
from raysed.model.teacher import MissingSentence, Teacher, load_teacher
from raysed.plan.lineage import of_precision
from raysed.recipe import TEACHERS
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage

COMBINATION = "combination.npz"
"""The fitted combination, beside the targets."""
_FILE = "embeddings.npy"
_WORTH_ADDING = 0.1
"""By how much another teacher has to raise the dev score, x100."""
_TURNED_BY = 4 * ROWS_PER_GROUP
"""Sentences that decide how targets are turned: many more than dimensions."""


@dataclass(frozen=True)
class AskedTeacher:
    """A teacher of a run.

    Attributes:
        config: which model, and how it is asked.
        identity: what tells it from others.
        width: of its embeddings.
    """

    config: TeacherConfig
    identity: str
    width: int


@dataclass(frozen=True)
class _Block:
    """A teacher and the sentences that it is asked in one task."""

    teacher: AskedTeacher
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{TEACHERS}/rows/{self.teacher.identity}/{self.number:06d}"

    def __str__(self) -> str:
        return f"sentences {self.start:,} to {self.stop - 1:,} for {self.teacher.config.title}"


def embed_corpus(
    teachers: Sequence[AskedTeacher], config: Config, storage: Storage, plan: Callable[[Config, int], Share]
) -> None:
    """Makes the teachers' embeddings of the corpus that are not there yet.

    Args:
        plan: shares the cluster among so many tasks.

    Raises:
        UserError: an embedding is missing or not finite.
    """
    rows = len(SentenceTable(storage.fetch("corpus")))
    blocks = [block for teacher in teachers for block in _blocks(teacher, rows)]
    share = plan(config, len(blocks))
    progress = Progress("ask teachers", len(blocks))
    asked = 0
    tasks = watched_tasks(
        _embed_block,
        blocks,
        storage,
        config.resources,
        share,
        work="ask teachers",
        share=share,
        seconds=config.resources.silence_seconds,
        part=str,
    )
    for done, (sentences, mistake) in enumerate(tasks, start=1):
        if mistake:
            raise UserError(mistake)
        asked += sentences
        progress.update(done, f"{asked:,} sentences by {len(teachers)} teacher{'s' * (len(teachers) > 1)}")
    progress.close()
    tell(sentences=asked)


def _blocks(teacher: AskedTeacher, rows: int) -> list[_Block]:
    starts = range(0, rows, ROWS_PER_GROUP)
    return [_Block(teacher, n, start, min(start + ROWS_PER_GROUP, rows)) for n, start in enumerate(starts)]


def _embed_block(block: _Block, storage: Storage, how: ResourcesConfig, share: Share) -> tuple[int, str | None]:
    """One task: returns how many sentences were embedded, and a user's mistake as a sentence."""
    prepare_worker(share.threads)
    table = SentenceTable(storage.fetch("corpus")).rows(block.start, block.stop, ("sentence",))
    sentences = table.column("sentence").to_pylist()
    digest = hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16]
    depends = {"teacher": block.teacher.identity, "sentences": digest, **of_precision(how)}
    if storage.finished(block.name, depends):
        return 0, None
    try:
        x_BD = _loaded(block.teacher.config.model_dump_json(), how, share.device).embed(sentences)
    except UserError as error:
        return 0, str(error)
    broken = np.flatnonzero(~np.isfinite(x_BD).all(1))
    if len(broken):
        what = f"{block.teacher.config.path!r}: its embedding of {sentences[broken[0]][:60]!r} is not finite"
        return 0, f"teachers: {what}"
    storage.commit(block.name, lambda path: np.save(path / _FILE, x_BD), depends)
    return len(sentences), None


_held: dict[tuple[str, str, str], Teacher] = {}
"""The teacher of this process' last task."""


def _loaded(config: str, how: ResourcesConfig, device: str) -> Teacher:
    """Ray gives a process one task after the other, most of them for the same teacher; memory is for one of them."""
    key = config, how.model_dump_json(), device
    if key not in _held:
        _held.clear()
        asked = TeacherConfig.model_validate_json(config)
        _held[key] = load_teacher(asked, how.encode_token_budget, device, how.encode_precision)
    return _held[key]


@dataclass(frozen=True)
class TaughtTable:
    """A target table of teachers from outside, and what it is made of.

    Attributes:
        name: of the artefact.
        depends: its dependencies.
        teachers: who says something.
        means: the target table of each that is an ensemble of this run, by its number.
        config: the run's settings.
        storage: the run directory.
        start: artefact of the model that learners start from, None for the pre-trained encoder.
    """

    name: str
    depends: dict[str, Any]
    teachers: Sequence[AskedTeacher]
    means: Mapping[int, str]
    config: Config
    storage: Storage
    start: str | None

    def write(self, directory: Path, score: Callable[[Combination], float]) -> dict[str, Any]:
        """Writes id, input_ids and what the teachers together say, and the combination beside it.

        Args:
            score: of a combination on the dev task, where that decides.

        Returns:
            Counts for the manifest; `shared` says whether targets are in the space of a single teacher. Where the dev
            task decides, `trace` has the numbers of the chosen teachers and their score, step by step, and
            `weights_trace` their weights and the score.
        """
        encoder, _ = load_start(self.config.encoder, self.storage, self.start)
        combination, traces = self._fitted(score, None if self.config.sed.head else encoder.width)
        if self.config.sed.head:
            np.save(directory / START, turn(self._products(combination, encoder).T).astype(np.float32))
        elif self._is_to_be_turned(encoder.width):
            combination = combination.turned(self._products(combination, encoder))
        combination.save(directory / COMBINATION)
        corpus, writer = self._corpus(), TargetWriter(directory)
        for start, parts in self._parts(len(corpus)):
            targets_BD = combination.target(parts)
            block = corpus.rows(start, start + len(targets_BD), ("id", "input_ids"))
            writer.add(with_targets(block, targets_BD, self.config.sed.target_precision))
        writer.close(len(corpus))
        about = {"rows": len(corpus), "teachers": len(self.teachers), "width": combination.width}
        is_shared = len(self.teachers) == 1 and combination.is_identity
        return {**about, "kept": combination.kept, "shared": is_shared, **traces}

    def _is_to_be_turned(self, width: int) -> bool:
        """Not where teacher and learner share their space, nor where targets are in the order of importance."""
        asked = self.config.combination.turn
        is_shared = [teacher.width for teacher in self.teachers] == [width]
        return not (is_shared or self.config.sed.widths) if asked is None else asked

    def _fitted(self, score: Callable[[Combination], float], width: int | None) -> tuple[Combination, dict[str, Any]]:
        how, widths = self.config.combination, [teacher.width for teacher in self.teachers]
        products_EE = np.zeros((sum(widths), sum(widths)))
        for _, parts in self._parts(len(self._corpus())):
            rows_BE = side_by_side(parts, how.how != "mean")
            products_EE += rows_BE.T @ rows_BE
        is_ordered = bool(self.config.sed.widths)

        def fit(kept: Sequence[int], weights: Sequence[float] | None = None) -> Combination:
            chosen = dict(zip(kept, weights or []))
            asked = how.model_copy(update={"weights": [chosen.get(k, 1.0) for k in range(count)]}) if chosen else how
            return fit_combination(asked, widths, products_EE, width, kept, is_ordered)

        count, traces = len(widths), {}
        kept, weights = list(range(count)), None
        if how.leave_out:
            traces["trace"] = choose_teachers(count, lambda some: score(fit(some)), _WORTH_ADDING)
            kept, _ = traces["trace"][-1]
        if how.weights == "dev":
            traces["weights_trace"] = choose_weights(len(kept), lambda some: score(fit(kept, some)), _WORTH_ADDING)
            weights, _ = traces["weights_trace"][-1]
        return fit(kept, weights), traces

    def _products(self, combination: Combination, encoder: Encoder) -> np.ndarray:
        """Targets times what the learner makes of some sentences before it has learnt anything, [D, H]."""
        corpus, products_DH = self._corpus(), np.zeros((combination.width, encoder.width))
        for start, parts in self._parts(min(len(corpus), _TURNED_BY)):
            targets_BD = combination.target(parts).astype(np.float64)
            tokens = TokenTable.from_arrow(corpus.rows(start, start + len(targets_BD), ("id", "input_ids")))
            (own_BH,) = encode(encoder, tokens, (1,), self.config.resources.encode_token_budget)
            products_DH += targets_BD.T @ side_by_side([own_BH], is_unit=True)
        return products_DH

    def _corpus(self) -> SentenceTable:
        return SentenceTable(self.storage.fetch("corpus"))

    def _parts(self, rows: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """First row and the teachers' embeddings of block after block."""
        readers = [self._reader(index) for index in range(len(self.teachers))]
        for blocks in zip(*(_blocks(teacher, rows) for teacher in self.teachers), strict=True):
            yield blocks[0].start, [read(block) for read, block in zip(readers, blocks)]

    def _reader(self, index: int) -> Callable[[_Block], np.ndarray]:
        """What a teacher said of a block of sentences."""
        if index not in self.means:
            return lambda block: np.load(self.storage.fetch(block.name) / _FILE)
        table = SentenceTable(self.storage.fetch(self.means[index]))  # its rows are in the corpus' order
        return lambda block: matrix(table.rows(block.start, block.stop, ("target",)).column("target"))


def combine(table: TaughtTable, score: Callable[[Combination], float], share: Share) -> None:
    """Makes a target table in a Ray task, so that no embedding passes through the driver.

    Args:
        score: of a combination on the dev task, where that decides.
        share: of the task, which leaves its GPU to others.

    Raises:
        RunFailed: the task failed.
    """
    title, seconds, share = "combine teachers", table.config.resources.silence_seconds, share.on_cpus
    progress = Progress(title, 1)
    list(watched_tasks(_combine, [table], score, share, work=title, share=share, seconds=seconds))
    progress.close()


def _combine(table: TaughtTable, score: Callable[[Combination], float], share: Share) -> None:
    """The task."""
    prepare_worker(share.threads)
    meta: dict[str, Any] = {}
    table.storage.commit(table.name, lambda path: meta.update(table.write(path, score)), table.depends, meta)


def embed_sentences(
    name: str, depends: dict[str, Any], teacher: AskedTeacher, sentences: list[str], layers: Any, storage: Storage
) -> bool:
    """Makes a teacher's embeddings of the evaluation's sentences, in this process, and measures its speed.

    Returns:
        Whether the teacher knows these sentences; a file of embeddings may not.

    Raises:
        RunFailed: an embedding is not finite.
    """
    if storage.finished(name, depends):
        return True
    model = load_teacher(teacher.config)
    progress = Progress(f"ask {teacher.config.title}", len(sentences))
    try:
        began = time.monotonic()
        x_UD = np.concatenate(list(_by_blocks(model, sentences, progress.update)))
        seconds = time.monotonic() - began
    except MissingSentence:
        return False
    finally:
        progress.close()
    if not np.isfinite(x_UD).all():
        raise RunFailed(f"teachers: {teacher.config.path!r} has embeddings that are not finite")
    speed = len(sentences) / seconds if model.is_model else None
    meta = {"parameters": model.parameters, "sentences_per_second": speed, "width": x_UD.shape[1]}
    storage.commit(name, lambda path: np.save(path / f"layers-{layers}.npy", x_UD), depends, meta)
    return True


def _by_blocks(model: Teacher, sentences: list[str], say: Callable[[int], None]) -> Iterator[np.ndarray]:
    for start in range(0, len(sentences), ROWS_PER_GROUP):
        yield model.embed(sentences[start : start + ROWS_PER_GROUP])
        say(min(start + ROWS_PER_GROUP, len(sentences)))
