"""Sentence pairs with a gold score: read from files, directories, the package or the hub, and checked."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Rows, Schema, read, read_lines, read_source
from raysed.data.sources import local_file
from raysed.errors import UserError, public

SENTENCE_COLUMNS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
)
"""What the two sentences of a pair are often called."""

PAIR = ("first", "second")
"""The fields of the two sentences in a schema."""

GRADED_COLUMNS = (
    *SENTENCE_COLUMNS,
    ("sentence_1", "sentence_2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
)
"""What the sentences of graded pairs are often called; the first pair that is there is taken."""

GOLD_COLUMNS = ("score", "similarity_score", "relatedness_score", "similarity", "relatedness", "label")
"""The same for their score."""

Subset = tuple[list[str], list[str], np.ndarray]

_ALL = "all"
"""The subset of pairs that are not divided."""

_TELLING = 20
"""So many scores tell whether they fill the range that they should have; fewer may lie close together by chance."""

_PART = 1 / 3
"""Scores of real data fill at least so much of their range: SICK's go from 1 to 5, those of STS from 0 to 5."""

_ARGUMENTS = Schema(
    setting="",
    kind="graded pairs",
    wanted={("label",): [("regression_label",)], PAIR: [("sentence_1", "sentence_2")]},
    needed="regression_label, sentence_1 and sentence_2",
    latin=True,
)

FEWEST = 3
"""The correlation of two pairs is 1 or -1 whatever the model says."""


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
    if len(gold_P) < FEWEST:
        raise UserError(
            f"{setting}: {public(config.source)} has {_counted(len(gold_P))} with a score, but a correlation "
            f"needs at least {FEWEST}; add some, or leave the task out"
        )
    if np.ptp(gold_P) == 0:
        raise UserError(
            f"{setting}: all {len(gold_P):,} pairs of {public(config.source)} have the score {gold_P[0]:g}, so no "
            f"correlation is defined; check which column holds the score ({setting}.columns)"
        )
    _check_range(gold_P, config, setting)
    return task


def _counted(pairs: int) -> str:
    return "1 pair" if pairs == 1 else f"{pairs:,} pairs"


def read_graded(name: str, config: TaskConfig, setting: str, split: str = "test") -> StsTask:
    """Reads the pairs that `config.source` names.

    Kinds of source:
    - a file with a header, JSONL or Parquet, by path or URI, see `rows`. The score stands in the first of
      `GOLD_COLUMNS` that is there, the sentences in the first of `GRADED_COLUMNS`, the subset in `subset` if that is
      there; `config.columns` names others. Other columns do not matter;
    - a SentEval directory (`STS.input.<subset>.txt` and `STS.gs.<subset>.txt`, line by line), or one such
      `STS.input.<subset>.txt` with its scores beside it (a track of STS 2017);
    - any other .txt file, with sentence1, sentence2 and score on each line, tab-separated, without a header (a pair of
      languages of STS 2017 extended, `STS.en-de.txt`);
    - a directory of argument facet similarity (Misra et al. 2016): `ArgPairs_<topic>.csv` with the columns
      regression_label, sentence_1 and sentence_2, each topic a subset; Latin-1 where it is not UTF-8;
    - `bundled:train`, `bundled:dev` or `bundled:test`;
    - a dataset of the Hugging Face hub, with columns as in a file.

    A pair with a blank score (STS 2015 and 2016 have many) is dropped with its sentences. Lines end at a newline
    only: other Unicode line separators stay in their sentence.

    Args:
        config: source, columns, and range of the gold score.
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
        raise UserError(f"{setting}: {public(config.source)} has no pair with a gold score ({dropped} blank)")
    arrays = {key: (first, second, np.array(gold)) for key, (first, second, gold) in subsets.items()}
    return StsTask(name, arrays, dropped, config.aggregation)


def _check_range(gold_P: np.ndarray, config: TaskConfig, setting: str) -> None:
    """Scores of 0 to 1 that are taken for scores of 0 to 5 give wrong targets, and nobody would notice."""
    if config.score_range is None:
        return
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
    if path.name.startswith("STS.input.") and path.suffix == ".txt":
        return _read_graded_lines(path)
    return _pairs(read_source(config, graded_schema(config, setting), split))


def _pairs(rows: Rows) -> Iterator[_Pair]:
    subsets = rows.columns.get("subset", [None] * len(rows))
    for place, row in enumerate(zip(subsets, rows.columns["label"], rows.texts("first"), rows.texts("second"))):
        subset, score, first, second = row
        yield _Pair(rows.where(place), _ALL if subset in (None, "") else str(subset), score, first, second)


def graded_schema(config: TaskConfig, setting: str) -> Schema:
    """Returns what is wanted of a file of graded pairs."""
    named = config.columns
    sentences = dict.fromkeys((named.sentence1 or one, named.sentence2 or other) for one, other in GRADED_COLUMNS)
    wanted = {PAIR: list(sentences), ("label",): [(name,) for name in ([named.score] if named.score else GOLD_COLUMNS)]}
    if named.subset:
        wanted[("subset",)] = [(named.subset,)]
    needed = [named.score or "score (or label)", named.sentence1 or "sentence1", named.sentence2 or "sentence2"]
    if not (named.sentence1 or named.sentence2):
        needed[-1] += " (or text1 and text2)"
    return Schema(
        setting=setting,
        kind="graded pairs",
        wanted=wanted,
        needed=", ".join([*([named.subset] if named.subset else []), *needed[:2]]) + f" and {needed[2]}",
        optional={} if named.subset else {"subset": "subset"},
        text=PAIR,
        remedy=f"; name yours in {setting}.columns",
        bare=(*PAIR, "label"),
    )


def _read_senteval(directory: Path) -> Iterator[_Pair]:
    # Some copies have a file of all subsets together beside the subsets.
    inputs = sorted(path for path in directory.glob("STS.input.*.txt") if path.name != "STS.input.ALL.txt")
    if not inputs:
        raise UserError(f"{directory} is not a SentEval directory: it has no STS.input.<subset>.txt")
    for path in inputs:
        yield from _read_graded_lines(path)


def _read_graded_lines(path: Path) -> Iterator[_Pair]:
    """One `STS.input.<subset>.txt` and the scores that lie beside it."""
    subset = path.name.removeprefix("STS.input.").removesuffix(".txt")
    gold_path = path.with_name(f"STS.gs.{subset}.txt")
    lines, golds = read_lines(path), read_lines(gold_path)
    if len(lines) != len(golds):
        raise UserError(f"{path} has {len(lines)} lines, but {gold_path.name} beside it has {len(golds)}")
    for number, (line, gold) in enumerate(zip(lines, golds), start=1):
        cells = line.split("\t")
        if len(cells) != 2:
            raise UserError(f"{path}, line {number}: {len(cells)} tab-separated columns instead of 2")
        yield _Pair(f"{gold_path}, line {number}", subset, gold, *cells)


def _read_arguments(paths: Sequence[Path]) -> Iterator[_Pair]:
    for path in paths:
        topic = path.stem.removeprefix("ArgPairs_")
        for pair in _pairs(read(local_file(path), _ARGUMENTS)):
            # A quoted cell may hold line ends, which tables of pairs cannot.
            score, first, second = (" ".join(cell.split()) for cell in pair[2:])
            yield _Pair(pair.where, topic, score, first, second)


def _read_bundled(source: str, setting: str) -> Iterator[_Pair]:
    from raysed import bundled

    split = source.removeprefix("bundled:")
    if split not in ("train", "dev", "test"):
        raise UserError(f"{setting}: {source} does not exist; use bundled:train, bundled:dev or bundled:test")
    for number, (score, first, second) in enumerate(bundled.pairs(split), start=1):
        yield _Pair(f"{source}, pair {number}", _ALL, score, first, second)


def _gold(pair: _Pair, score_range: tuple[float, float] | None, setting: str) -> float | None:
    text = "" if pair.score is None else str(pair.score).strip()
    if not text:
        return None
    low, high = score_range or (-math.inf, math.inf)
    try:
        gold = float(text)
    except ValueError:
        raise UserError(f"{pair.where}: {_no_number(text, setting)}") from None
    if not low <= gold <= high:  # and so is nan
        raise UserError(f"{pair.where}: score {text} is outside {setting}.score_range, {low:g} to {high:g}")
    return gold


def _no_number(text: str, setting: str) -> str:
    if re.fullmatch(r"[+-]?\d*,\d+", text):
        return f"score {text!r} has a decimal comma; write {text.replace(',', '.')}"
    return (
        f"score {text!r} is not a number; write it as 3.5, leave it blank, or name the score's column in "
        f"{setting}.columns"
    )


def gold_of(task: StsTask) -> np.ndarray:
    """Returns the gold scores of all subsets in order, float64 [P]."""
    return np.concatenate([gold for _, _, gold in task.subsets.values()])
