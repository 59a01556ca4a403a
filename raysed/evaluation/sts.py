"""Semantic textual similarity: cosine of two embeddings against a human score.

A task is a set of graded sentence pairs, often in several subsets (a SemEval year). How the subsets become
one number is what makes published tables hard to compare, so all three ways are computed every time: `all`
concatenates the subsets (SBERT, BSL), `mean` averages their correlations (SED), `wmean` weights that average
by subset size (BERT-flow).
"""

import csv
import gzip
import io
import logging
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from raysed.config import TaskConfig
from raysed.errors import UserError, public
from raysed.pair_sources import SENTENCE_COLUMNS, Layout, read_source
from raysed.sources import ending

log = logging.getLogger(__name__)

GRADED_COLUMNS = (
    *SENTENCE_COLUMNS,
    ("sentence_1", "sentence_2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
)
"""What the sentences of graded pairs are often called; the first pair that is there is taken."""
GOLD_COLUMNS = ("score", "similarity_score", "relatedness_score", "similarity", "relatedness", "label")
"""The same for their score."""
ARGUMENT_COLUMNS = ("regression_label", "sentence_1", "sentence_2")
Subset = tuple[list[str], list[str], np.ndarray]
_ALL = "all"
"""The subset of pairs that are not divided."""
_TELLING = 20
"""So many scores tell whether they fill the range that they should have; fewer may lie close together by chance."""
_PART = 1 / 3
"""Scores of real data fill at least so much of their range: SICK's go from 1 to 5, those of STS from 0 to 5."""
_FEWEST = 3
"""The correlation of two pairs is 1 or -1 whatever the model says."""

Embeddings = np.ndarray | Mapping[str, np.ndarray]
"""Of one model: a matrix with a row for each of `Evaluation.sentences`; or, where every task has its own embeddings
(BERT-flow fits a flow per task), by task a matrix with a row for each of `Evaluation.rows`."""


class _Pair(NamedTuple):
    where: str
    """File and line, for error messages."""
    subset: str
    score: str | float | None
    sentence1: str
    sentence2: str


@dataclass(frozen=True)
class StsTask:
    """Sentence pairs with gold scores."""

    name: str
    subsets: dict[str, Subset]
    """Subset name to (first sentences, second sentences, gold scores as float64 [P])."""
    dropped: int = 0
    """Pairs left out because their gold score is blank."""
    aggregation: str | None = None
    """`all`, `mean` or `wmean` for this task alone; None: as the evaluation says."""

    @property
    def pairs(self) -> int:
        """Number of scored pairs over all subsets."""
        return sum(len(gold) for _, _, gold in self.subsets.values())


def load_task(name: str, config: TaskConfig, setting: str | None = None) -> StsTask:
    """Reads the pairs that a model is to be scored on, see `read_graded`.

    Args:
        name: what the task is called in reports.
        config: source, columns, and range of the gold score.
        setting: that names the source, for messages; None: `evaluation.tasks.NAME`.

    Raises:
        UserError: as `read_graded`; or there are too few pairs, or all scores are equal, so that no correlation is
            defined.
    """
    setting = setting or f"evaluation.tasks.{name}"
    task = _read_task(name, config, setting, "test")
    gold_P = gold_of(task)
    if len(gold_P) < _FEWEST:
        raise UserError(
            f"{setting}: {public(config.source)} has {_counted(len(gold_P))} with a score; a correlation needs at "
            f"least {_FEWEST}, so add some or leave the task out"
        )
    if np.ptp(gold_P) == 0:
        raise UserError(
            f"{setting}: all {len(gold_P):,} pairs of {public(config.source)} have the score {gold_P[0]:g}, with which "
            f"no correlation is defined; is another column the score ({setting}.columns)?"
        )
    _check_range(gold_P, config, setting)
    return task


def _counted(pairs: int) -> str:
    return "1 pair" if pairs == 1 else f"{pairs:,} pairs"


def read_graded(name: str, config: TaskConfig, setting: str, split: str = "test") -> StsTask:
    """Reads the pairs that `config.source` names.

    Kinds of source:
    - a file with a header, by path or URI: .csv (with quoting) or .tsv (without; what the header looks like decides,
      so a .csv file may be tab-separated), .jsonl, all three also with .gz, or .parquet. The score stands in the first
      of `GOLD_COLUMNS` that is there, the sentences in the first of `GRADED_COLUMNS`, the subset in `subset` if that is
      there; `config.columns` names others. Other columns do not matter;
    - a SentEval directory (`STS.input.<subset>.txt` and `STS.gs.<subset>.txt`, line by line), or one such
      `STS.input.<subset>.txt` with its scores beside it (a track of STS 2017);
    - any other .txt file, with sentence1, sentence2 and score on each line, tab-separated (a pair of languages
      of STS 2017 extended, `STS.en-de.txt`);
    - a directory of argument facet similarity (Misra et al. 2016): `ArgPairs_<topic>.csv` with the columns
      regression_label, sentence_1 and sentence_2, each topic a subset; Latin-1 where it is not UTF-8;
    - `bundled:train`, `bundled:dev` or `bundled:test`;
    - a dataset of the Hugging Face hub, with columns as in a file.

    A pair with a blank score (STS 2015 and 2016 have many) is dropped with its sentences. Lines end at a newline
    only: other Unicode line separators stay in their sentence.

    Args:
        name: of what is returned.
        config: source, columns, and range of the gold score.
        setting: that names the source, for messages.
        split: of a hub dataset, where `config` names none.

    Returns:
        The task, its subsets in the order in which they first appear (directories: by name).

    Raises:
        UserError: the source cannot be read, a score is no number or out of range, no scored pair is left, or the
            scores fill so little of their range that it must be that of other data.
    """
    task = _read_task(name, config, setting, split)
    _check_range(gold_of(task), config, setting)
    return task


def _read_task(name: str, config: TaskConfig, setting: str, split: str) -> StsTask:
    subsets: dict[str, tuple[list[str], list[str], list[float]]] = {}
    dropped = 0
    for pair in _read(config, setting, split):
        gold = _gold(pair, config.score_range, setting)
        if gold is None:
            dropped += 1
            continue
        columns = subsets.setdefault(pair.subset, ([], [], []))
        for column, value in zip(columns, (pair.sentence1, pair.sentence2, gold)):
            column.append(value)
    if not subsets:
        raise UserError(f"{setting}: {public(config.source)} has no pair with a gold score ({dropped} blank ones)")
    arrays = {key: (first, second, np.array(gold)) for key, (first, second, gold) in subsets.items()}
    return StsTask(name, arrays, dropped, config.aggregation)


def _check_range(gold_P: np.ndarray, config: TaskConfig, setting: str) -> None:
    """Scores of 0 to 1 that are taken for scores of 0 to 5 give wrong targets, and nobody would notice."""
    low, high = config.score_range
    lowest, highest = gold_P.min(), gold_P.max()
    if len(gold_P) < _TELLING or highest - lowest >= _PART * (high - low):
        return
    whole = math.floor(lowest), math.ceil(highest)
    example = f", such as [{whole[0]}, {whole[1]}]" if whole[0] < whole[1] and whole != (low, high) else ""
    found = f"are all {lowest:g}" if lowest == highest else f"fill only {lowest:g} to {highest:g} of it"
    raise UserError(
        f"{setting}.score_range is {low:g} to {high:g}, but the {len(gold_P):,} scores of {public(config.source)} "
        f"{found}; set {setting}.score_range to the lowest and the highest score that "
        f"they can have{example}"
    )


def _read(config: TaskConfig, setting: str, split: str) -> Iterable[_Pair]:
    if config.source.startswith("bundled:"):
        return _read_bundled(config.source, setting)
    path = Path(config.source).expanduser()
    if path.is_dir():
        topics = sorted(path.glob("ArgPairs_*.csv"))
        return _read_arguments(topics) if topics else _read_senteval(path)
    if ending(config.source) == ".txt":
        return _read_text(path)
    return _read_columns(config, setting, split)


def _read_columns(config: TaskConfig, setting: str, split: str) -> Iterator[_Pair]:
    """Pairs with names for their columns: in a file or in a dataset of the hub."""
    source = read_source(config, _layout(config, setting, split))
    subsets = source.subsets or [None] * len(source)
    for place, (score, first, second, subset) in enumerate(zip(source.labels, source.first, source.second, subsets)):
        named = _ALL if subset is None or subset == "" else str(subset)
        yield _Pair(source.where(place), named, score, first, second)


def _layout(config: TaskConfig, setting: str, split: str) -> Layout:
    named = config.columns
    sentences = dict.fromkeys((named.sentence1 or one, named.sentence2 or other) for one, other in GRADED_COLUMNS)
    needed = [named.score or "score (or label)", named.sentence1 or "sentence1", named.sentence2 or "sentence2"]
    if not (named.sentence1 or named.sentence2):
        needed[-1] += " (or text1 and text2)"
    return Layout(
        setting=setting,
        kind="graded pairs",
        sentences=tuple(sentences),
        needed=", ".join([*([named.subset] if named.subset else []), *needed[:2]]) + f" and {needed[2]}",
        labels=(named.score,) if named.score else GOLD_COLUMNS,
        subset=named.subset or "subset",
        needs_subset=named.subset is not None,
        remedy=f"; name yours in {setting}.columns",
        split=split,
    )


def _read_senteval(directory: Path) -> Iterator[_Pair]:
    # Some copies have a file of all subsets together beside the subsets.
    inputs = sorted(path for path in directory.glob("STS.input.*.txt") if path.name != "STS.input.ALL.txt")
    if not inputs:
        raise UserError(f"{directory} holds no STS.input.<subset>.txt, so it is no SentEval directory")
    for path in inputs:
        yield from _read_graded_lines(path)


def _read_text(path: Path) -> Iterator[_Pair]:
    if path.name.startswith("STS.input."):
        yield from _read_graded_lines(path)
        return
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            where = f"{path}, line {number}"
            first, second, score = _cells(line, 3, where)
            yield _Pair(where, _ALL, score, first, second)


def _read_graded_lines(path: Path) -> Iterator[_Pair]:
    """One `STS.input.<subset>.txt` and the scores that lie beside it."""
    subset = path.name.removeprefix("STS.input.").removesuffix(".txt")
    gold_path = path.with_name(f"STS.gs.{subset}.txt")
    lines, golds = read_lines(path), read_lines(gold_path)
    if len(lines) != len(golds):
        raise UserError(f"{path} has {len(lines)} lines but {gold_path.name} beside it has {len(golds)}")
    for number, (line, gold) in enumerate(zip(lines, golds), start=1):
        yield _Pair(f"{gold_path}, line {number}", subset, gold, *_cells(line, 2, f"{path}, line {number}"))


def _cells(line: str, count: int, where: str) -> list[str]:
    cells = line.split("\t")
    if len(cells) != count:
        raise UserError(f"{where}: {len(cells)} tab-separated columns instead of {count}")
    return cells


def _read_arguments(paths: Sequence[Path]) -> Iterator[_Pair]:
    for path in paths:
        topic = path.stem.removeprefix("ArgPairs_")
        rows = csv.DictReader(io.StringIO(_decoded(path), newline=""))
        names = rows.fieldnames or []
        if not set(ARGUMENT_COLUMNS) <= set(names):
            raise UserError(
                f"{path}, line 1: comma-separated columns {', '.join(ARGUMENT_COLUMNS)} are needed, "
                f"found {', '.join(names) or 'none'}"
            )
        try:
            yield from (_argument_pair(row, topic, f"{path}, line {rows.line_num}") for row in rows)
        except csv.Error as error:
            raise UserError(f"{path}, line {rows.line_num}: not readable as comma-separated text: {error}") from None


def _argument_pair(row: Mapping[str, str | None], topic: str, where: str) -> _Pair:
    cells = [row[column] for column in ARGUMENT_COLUMNS]
    if None in cells:
        raise UserError(f"{where}: fewer comma-separated columns than in the header")
    # A quoted cell may hold line ends, which tables of pairs cannot.
    score, first, second = (" ".join(cell.split()) for cell in cells)
    return _Pair(where, topic, score, first, second)


def _decoded(path: Path) -> str:
    """The text of a file that is UTF-8 or else Latin-1."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _read_bundled(source: str, setting: str) -> Iterator[_Pair]:
    from raysed import bundled  # the package data is needed by this kind of source only

    split = source.removeprefix("bundled:")
    if split not in ("train", "dev", "test"):
        raise UserError(f"{setting}: {source} is not there; use bundled:train, bundled:dev or bundled:test")
    for number, (score, first, second) in enumerate(bundled.pairs(split), start=1):
        yield _Pair(f"{source}, pair {number}", _ALL, score, first, second)


def read_lines(path: Path) -> list[str]:
    """Returns a text file's lines without their ends; other Unicode line separators stay in their line.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _gold(pair: _Pair, score_range: tuple[float, float], setting: str) -> float | None:
    text = "" if pair.score is None else str(pair.score).strip()
    if not text:
        return None
    low, high = score_range
    try:
        gold = float(text)
    except ValueError:
        raise UserError(f"{pair.where}: {_no_number(text, setting)}") from None
    if not low <= gold <= high:
        raise UserError(f"{pair.where}: score {text} is outside {setting}.score_range, {low:g} to {high:g}")
    return gold


def _no_number(text: str, setting: str) -> str:
    if re.fullmatch(r"[+-]?\d*,\d+", text):
        return f"score {text!r} has a decimal comma; write {text.replace(',', '.')}"
    return f"score {text!r} is no number; write 3.5, or leave it blank, or name the score's column in {setting}.columns"


class _Group(NamedTuple):
    """Pairs under one correlation; its gold side is the same for every model, so it is computed once."""

    pairs: slice
    gold: np.ndarray
    gold_ranks: np.ndarray

    @property
    def counts(self) -> bool:
        """Whether a correlation with these scores says something: they are three or more, and differ."""
        return len(self.gold) >= _FEWEST and bool(self.gold.any())


class Evaluation:
    """Scores models on tasks; built once, then given the embeddings of one model after the other.

    >>> gold = np.array([5.0, 1.0, 3.0])
    >>> task = StsTask("toy", {"all": (["a", "b", "a"], ["c", "d", "b"], gold)})
    >>> evaluation = Evaluation([task])
    >>> evaluation.sentences
    ['a', 'c', 'b', 'd']
    >>> round(evaluation.score(np.array([[1, 0], [1, 0], [1, 2], [-1, 0]]))["toy"]["spearman"], 6)
    100.0
    """

    def __init__(self, tasks: Sequence[StsTask], aggregation: str = "mean"):
        """Numbers the distinct sentences and prepares the gold side of every correlation.

        Args:
            tasks: what to score; names must differ.
            aggregation: `all`, `mean` or `wmean`, for tasks that do not name their own.

        Raises:
            UserError: a mean over subsets of which none has a correlation.
        """
        self.tasks = {task.name: task for task in tasks}
        self._aggregation = {task.name: task.aggregation or aggregation for task in tasks}
        subsets = [subset for task in tasks for subset in task.subsets.values()]
        sides = [[s for subset in subsets for s in subset[side]] for side in (0, 1)]
        self.sentences = list(dict.fromkeys(s for pair in zip(*sides) for s in pair))
        """The distinct sentences of all tasks in first-seen order: what a model has to encode."""
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self._rows_P2 = np.array([[row[s] for s in side] for side in sides], dtype=np.int64).T
        self._whole, self._subsets = _groups(tasks)
        self._left_out = {
            task: [name for name, group in groups.items() if not group.counts] for task, groups in self._subsets.items()
        }
        self._refuse_means_of_nothing()

    def _refuse_means_of_nothing(self) -> None:
        for task, groups in self._subsets.items():
            left_out, several = self._left_out[task], len(groups) > 1
            if not several or not left_out or self._aggregation[task] == "all":
                continue
            why = f"fewer than {_FEWEST} pairs or one score only"
            if len(left_out) == len(groups):
                raise UserError(
                    f"task {task}: each of its {len(groups):,} subsets has {why}, so the mean of their correlations is "
                    f"not defined; set evaluation.tasks.{task}.aggregation to all"
                )
            shown = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else "")
            log.info("task %s: left out of the mean over subsets, which have %s: %s", task, why, shown)

    def pair_rows(self, tasks: Iterable[str] | None = None) -> np.ndarray:
        """Returns int64 [P, 2]: where in `sentences` the two sentences of every pair are.

        Args:
            tasks: the tasks whose pairs are meant, in this order; None: all.
        """
        if tasks is None:
            return self._rows_P2
        return np.concatenate([self._rows_P2[self._whole[task].pairs] for task in tasks])

    def pair_sentences(self, tasks: Iterable[str] | None = None) -> tuple[list[str], list[str]]:
        """Returns the first and the second sentences of the P pairs; `tasks` as for `pair_rows`."""
        first, second = ([self.sentences[row] for row in side] for side in self.pair_rows(tasks).T)
        return first, second

    def of_tasks(self, similarity_P: np.ndarray, tasks: Iterable[str]) -> np.ndarray:
        """Returns the values of some tasks' pairs, in the order of `pair_rows(tasks)`, of one for every pair."""
        return np.concatenate([similarity_P[self._whole[task].pairs] for task in tasks])

    def rows(self, task: str) -> np.ndarray:
        """Returns where in `sentences` the distinct sentences of one task are, rising, int64 [U_task]."""
        return np.unique(self.pair_rows([task]))

    def of_task(self, embeddings: Embeddings, task: str) -> np.ndarray:
        """Returns the embeddings of one task's distinct sentences, [U_task, D], in the order of `rows`."""
        return embeddings[task] if isinstance(embeddings, Mapping) else embeddings[self.rows(task)]

    def score(self, embeddings: Embeddings) -> dict[str, dict]:
        """Scores one model.

        Args:
            embeddings: one row for each of `sentences`, in their order; or a matrix per task, and then only the
                tasks that are there are scored.

        Returns:
            Per task `spearman` and `pearson` (x100, under `aggregation`), `pairs` and `aggregation`; where
            the task has several subsets also `all`, `mean`, `wmean` and, per subset, `subsets`. A correlation that is
            not defined is None: that of a model for which all pairs of a task, or of a subset under `mean` and
            `wmean`, are equally similar, and that of a subset with fewer than three pairs or one score only. Such a
            subset is in no mean, and `subsets_left_out` lists it where there is one.

        Raises:
            UserError: an embedding has a value that is not finite.
        """
        if not isinstance(embeddings, Mapping):
            return self.score_similarities(self._cosines(embeddings, np.arange(len(self.sentences)), self._rows_P2))
        similarity_P, scored = np.zeros(len(self._rows_P2)), [task for task in self.tasks if task in embeddings]
        for task in scored:
            similarity_P[self._whole[task].pairs] = self.cosines(embeddings, task)[0]
        return {task: self._metrics(task, similarity_P) for task in scored}

    def score_similarities(self, similarity_P: np.ndarray) -> dict[str, dict]:
        """Scores any similarity, one value per row of `pair_rows`; returns what `score` returns."""
        if similarity_P.shape != (len(self._rows_P2),) or not np.isfinite(similarity_P).all():
            raise ValueError(f"{len(self._rows_P2)} finite similarities expected, got shape {similarity_P.shape}")
        return {name: self._metrics(name, similarity_P) for name in self.tasks}

    def strata(self, task: str) -> list[np.ndarray]:
        """Returns the gold scores [P] of each part of a task that has a correlation of its own, in order."""
        if self._aggregation[task] == "all":
            return [gold_of(self.tasks[task])]
        return [gold_P for _, _, gold_P in self.tasks[task].subsets.values()]

    def weights(self, task: str) -> list[float]:
        """Returns the share of each of `strata` in the task's score; 0 for a subset that is in no mean."""
        if self._aggregation[task] == "all":
            return [1.0]
        weighted, left_out = self._aggregation[task] == "wmean", self._left_out[task]
        sizes = [
            0 if name in left_out else len(s[2]) if weighted else 1 for name, s in self.tasks[task].subsets.items()
        ]
        return [size / sum(sizes) for size in sizes]

    def cosines(self, embeddings: Embeddings, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the cosine and the gold score of every pair of one task, both float64 [P]."""
        rows_P2, gold_P = self.pair_rows([task]), gold_of(self.tasks[task])
        if isinstance(embeddings, Mapping):
            sentences_U = self.rows(task)
            return self._cosines(embeddings[task], sentences_U, np.searchsorted(sentences_U, rows_P2)), gold_P
        return self._cosines(embeddings, np.arange(len(self.sentences)), rows_P2), gold_P

    def _cosines(self, embeddings_UD: np.ndarray, sentences_U: np.ndarray, rows_P2: np.ndarray) -> np.ndarray:
        """Row i of the embeddings is that of sentence `sentences_U[i]`."""
        embeddings_UD = np.asarray(embeddings_UD)
        if embeddings_UD.ndim != 2 or len(embeddings_UD) != len(sentences_U):
            raise ValueError(f"{len(sentences_U)} rows of embeddings expected, got shape {embeddings_UD.shape}")
        self._refuse_not_finite(embeddings_UD, sentences_U)
        return _pair_cosines(embeddings_UD, rows_P2)

    def _refuse_not_finite(self, embeddings_UD: np.ndarray, sentences_U: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(embeddings_UD).all(axis=1))
        if len(bad):
            examples = ", ".join(repr(self.sentences[i][:60]) for i in sentences_U[bad[:3]])
            raise UserError(
                f"{len(bad)} of {len(embeddings_UD)} embeddings are not finite, first those of {examples}: "
                "the model has diverged; lower its learning rate"
            )

    def _metrics(self, task: str, similarity_P: np.ndarray) -> dict:
        subsets = {name: _correlate(group, similarity_P) for name, group in self._subsets[task].items()}
        left_out = self._left_out[task]
        counted = [metrics for name, metrics in subsets.items() if name not in left_out]
        ways = _aggregate(counted, _correlate(self._whole[task], similarity_P))
        aggregation = self._aggregation[task]
        chosen = {key: ways[aggregation][key] for key in ("spearman", "pearson")}
        metrics = {**chosen, "pairs": self.tasks[task].pairs, "aggregation": aggregation}
        if len(subsets) == 1:
            return metrics
        return {**metrics, **ways, "subsets": subsets, **({"subsets_left_out": left_out} if left_out else {})}


def comparable(correlation: float | None) -> float:
    """Returns a score that a choice can be made by, rounded so that noise breaks no tie.

    One that is not defined is 0: a model that tells no pairs apart is as good as chance.

    >>> comparable(71.23456789), comparable(None)
    (71.234568, 0.0)
    """
    return round(correlation or 0.0, 6)


def mean_embeddings(models: Sequence[Embeddings]) -> Embeddings:
    """Returns the mean of several models' embeddings, per task where theirs are.

    >>> mean_embeddings([np.zeros((1, 2)), np.ones((1, 2))]).tolist()
    [[0.5, 0.5]]
    """
    if isinstance(models[0], Mapping):
        return {task: mean_embeddings([model[task] for model in models]) for task in models[0]}
    return np.mean(models, axis=0)


def gold_of(task: StsTask) -> np.ndarray:
    """Returns the gold scores of all subsets in order, float64 [P]."""
    return np.concatenate([gold for _, _, gold in task.subsets.values()])


def spearman(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the rank correlation, -1 to 1; ties share their mean rank, and a constant side gives 0.

    >>> round(spearman(np.array([1, 2, 3]), np.array([1, 4, 9])), 6)
    1.0
    """
    return pearson(rankdata(a_P), rankdata(b_P))


def pearson(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the linear correlation, -1 to 1; 0 where a side is constant (as SentEval reports it)."""
    return _dot(_standardise(a_P), _standardise(b_P))


def _groups(tasks: Sequence[StsTask]) -> tuple[dict[str, _Group], dict[str, dict[str, _Group]]]:
    """Per task, its whole and its subsets as slices of the pairs of all tasks."""
    whole, subsets, start = {}, {}, 0
    for task in tasks:
        first, subsets[task.name] = start, {}
        for name, (_, _, gold_P) in task.subsets.items():
            subsets[task.name][name] = _group(slice(start, start := start + len(gold_P)), gold_P)
        whole[task.name] = _group(slice(first, start), gold_of(task))
    return whole, subsets


def _group(pairs: slice, gold_P: np.ndarray) -> _Group:
    return _Group(pairs, _standardise(gold_P), _standardise(rankdata(gold_P)))


def _correlate(group: _Group, similarity_P: np.ndarray) -> dict[str, float | int | None]:
    values = similarity_P[group.pairs]
    if not group.counts or np.ptp(values) == 0:
        return {"spearman": None, "pearson": None, "pairs": len(values)}
    return {
        "spearman": 100 * _dot(_standardise(rankdata(values)), group.gold_ranks),
        "pearson": 100 * _dot(_standardise(values), group.gold),
        "pairs": len(values),
    }


def _aggregate(subsets: Sequence[dict], whole: dict) -> dict[str, dict[str, float | None]]:
    keys = ("spearman", "pearson")
    sizes = [metrics["pairs"] for metrics in subsets]
    table = {key: [metrics[key] for metrics in subsets] for key in keys}
    # A mean without the subsets on which this one model fails could not be compared with that of another.
    defined = bool(subsets) and None not in table["spearman"]
    return {
        "all": {key: whole[key] for key in keys},
        "mean": {key: float(np.mean(table[key])) if defined else None for key in keys},
        "wmean": {key: float(np.average(table[key], weights=sizes)) if defined else None for key in keys},
    }


def _dot(a_P: np.ndarray, b_P: np.ndarray) -> float:
    return float(np.clip(a_P @ b_P, -1.0, 1.0))


def _standardise(values_P: np.ndarray) -> np.ndarray:
    """Mean 0 and length 1, so that a dot product is a correlation; zeros for a constant."""
    values_P = np.asarray(values_P, dtype=np.float64)
    if np.ptp(values_P) == 0:
        return np.zeros_like(values_P)
    centred_P = values_P - values_P.mean()
    return centred_P / np.linalg.norm(centred_P)


def _pair_cosines(embeddings_UD: np.ndarray, rows_P2: np.ndarray, block: int = 4096) -> np.ndarray:
    """Cosines in float64, 0 for a zero vector; in blocks, so that memory does not grow with the pairs."""
    cosines_P = np.zeros(len(rows_P2))
    for start in range(0, len(rows_P2), block):
        rows = rows_P2[start : start + block]
        a_BD, b_BD = (embeddings_UD[rows[:, side]].astype(np.float64) for side in (0, 1))
        dot_B = np.einsum("bd,bd->b", a_BD, b_BD)
        norm_B = np.linalg.norm(a_BD, axis=1) * np.linalg.norm(b_BD, axis=1)
        np.divide(dot_B, norm_B, out=cosines_P[start : start + block], where=norm_B > 0)
    # Pairs that are equal in exact arithmetic (a sentence with itself) must tie: rounding noise has no rank.
    return cosines_P.round(12)
