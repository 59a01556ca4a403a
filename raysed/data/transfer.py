"""SentEval's transfer tasks, read from its `data/downstream` or from tables of SICK and STS-B."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from raysed.config import TaskConfig, TransferConfig
from raysed.data.graded import load_task
from raysed.data.rows import Schema, read, read_lines
from raysed.data.sources import local_file
from raysed.errors import UserError

FOLDS = 10
"""Of every cross-validation (the literature's setting of SentEval)."""
Kind = Literal["nested", "folds", "split", "regression"]
PROTOCOLS: dict[Kind, str] = {
    "nested": f"{FOLDS} outer folds, C by {FOLDS} inner folds",
    "folds": f"C by {FOLDS} folds of train",
    "split": "C by dev",
    "regression": "expected grade, stopped by dev",
}
_QUESTION_TYPES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_ENTAILMENT = ("contradiction", "neutral", "entailment")
_DRAWN = {"test": 3, "dev": 10}
"""A split that a table lacks is one in so many of its training rows."""


class Split(NamedTuple):
    """N examples: sentences, or first and second ones of pairs, with classes int64 [N] or scores float64 [N]."""

    sides: tuple[list[str], ...]
    labels: np.ndarray


@dataclass(frozen=True)
class TransferTask:
    """One task, named as in SentEval."""

    name: str
    kind: Kind
    """`nested` has the one split `all`; `folds` has train and test; `split` and `regression` have dev, too."""
    splits: Mapping[str, Split]
    note: str = ""
    """What is not as in SentEval; empty where nothing is."""

    @property
    def protocol(self) -> str:
        """How the score comes about, in words."""
        return "; ".join(filter(None, [PROTOCOLS[self.kind], self.note]))


Example = tuple[float, tuple[str, ...]]
"""Label, and one sentence or two."""
Parse = Callable[[str, str], Example]
"""A line, and file and line for messages, to an example."""


class _Source(NamedTuple):
    """Where a task lies: in SentEval's files (split, path, parser), maybe with headers, or in tables of a pattern."""

    kind: Kind
    files: list[tuple[str, str, Parse]]
    header: bool = False
    tables: str | None = None
    read_tables: Callable[[list[Path], int], tuple[dict[str, list[Example]], str]] | None = None


def load_transfer(config: TransferConfig) -> list[TransferTask]:
    """Read the tasks of `evaluation.transfer`.

    The source is laid out as SentEval's `data/downstream`. Two kinds of tables will do instead, in the directory
    itself or one below: `sick*.tsv` (columns split, relatedness, label, premise, hypothesis; a split that they lack is
    drawn from the training rows, and the task's note says so) and `stsb-train.tsv`, `stsb-dev.tsv`, `stsb-test.tsv`
    (columns subset, score, sentence1, sentence2).

    Words are joined by single spaces, an empty sentence becomes ".", and examples are in SentEval's order, by number
    of words and then label, so that folds are the same as there.

    Returns:
        The tasks in the order of `tasks`, or all that the source holds in SentEval's order; empty without a source.
    """
    for name in config.tasks or []:
        if name not in _SOURCES:
            raise UserError(f"evaluation.transfer.tasks names {name!r}; the tasks are {', '.join(_SOURCES)}")
    if config.source is None and config.tasks:
        problem = "evaluation.transfer.tasks needs evaluation.transfer.source; set it to SentEval's data/downstream"
        raise UserError(problem)
    if config.source is None:
        return []
    source = Path(config.source).expanduser()
    if not source.is_dir():
        raise UserError(f"evaluation.transfer.source: {source} is not a directory; name SentEval's data/downstream")
    names = config.tasks
    if names is None:
        names = [name for name in _SOURCES if _places(source, name)]
        if not names:
            raise UserError(
                f"evaluation.transfer.source: {source} has no task; it must have folders such as MR or SICK "
                "(SentEval's data/downstream), sick*.tsv or stsb-train.tsv"
            )
    return [_load(source, name, config.seed) for name in dict.fromkeys(names)]


def _places(source: Path, name: str) -> list[Path]:
    """Return the task's folder of SentEval, or else its tables; empty where there is neither."""
    folder, pattern = (source / _SOURCES[name].files[0][1]).parent, _SOURCES[name].tables
    if folder.is_dir():
        return [folder]
    return (sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}"))) if pattern else []


def _load(source: Path, name: str, seed: int) -> TransferTask:
    spec, places, note = _SOURCES[name], _places(source, name), ""
    if places and not places[0].is_dir():
        examples, note = spec.read_tables(places, seed)
    else:
        examples: dict[str, list[Example]] = {split: [] for split, _, _ in spec.files}
        for split, file, parse in spec.files:
            lines = read_lines(_present(source / file), latin=True)
            for number, line in list(enumerate(lines, start=1))[spec.header :]:
                examples[split].append(parse(line, f"{source / file}, line {number}"))
    task = TransferTask(name, spec.kind, {split: _split(found) for split, found in examples.items()}, note)
    _check_size(task, places[0])
    return task


def _split(examples: list[Example]) -> Split:
    """The examples with clean sentences, in SentEval's order."""
    cleaned = [(label, tuple(" ".join(side.split()) for side in sides)) for label, sides in examples]
    cleaned.sort(key=lambda example: (*(len(side.split()) for side in example[1]), example[0]))
    sides = zip(*(sentences for _, sentences in cleaned))
    return Split(tuple([sentence or "." for sentence in side] for side in sides), np.array([y for y, _ in cleaned]))


def _check_size(task: TransferTask, where: Path) -> None:
    """Refuse what a probe cannot be made of."""
    for key, split in task.splits.items():
        if not len(split.labels):
            raise UserError(f"{task.name}: {where} has no example for {key}")
    if task.kind == "regression":
        return
    classes, counts = np.unique(next(iter(task.splits.values())).labels, return_counts=True)
    if len(classes) < 2:
        raise UserError(f"{task.name}: {where} has only one class, {classes[0]}; training needs at least two")
    # Nine tenths of a class are left for the inner folds of a nested search.
    needed = {"nested": FOLDS + 2, "folds": FOLDS}.get(task.kind, 1)
    if counts.min() < needed:
        few = classes[counts.argmin()]
        raise UserError(
            f"{task.name}: {where} has {counts.min()} examples of class {few}, but {FOLDS} folds need at least {needed}"
        )


def _present(path: Path) -> Path:
    if not path.is_file():
        raise UserError(
            f"evaluation.transfer: {path} does not exist; add it, or remove its task from evaluation.transfer.tasks"
        )
    return path


def _parse_question(line: str, where: str) -> Example:
    label, _, rest = line.partition(":")
    if label not in _QUESTION_TYPES or " " not in rest:
        raise UserError(f"{where}: write it as TYPE:fine question, with one of {', '.join(_QUESTION_TYPES)}")
    return _QUESTION_TYPES.index(label), (rest.partition(" ")[2],)


def _parse_binary(line: str, where: str) -> Example:
    sentence, _, label = line.strip().rpartition("\t")
    return _named(label, where, ("0", "1"), "0 to 1"), (sentence,)


def _parse_fine(line: str, where: str) -> Example:
    label, _, sentence = line.strip().partition(" ")
    return _named(label, where, tuple("01234"), "0 to 4"), (sentence,)


def _parse_cells(line: str, where: str, columns: tuple[int, int, int], label: Callable[[str, str], float]) -> Example:
    """A pair, whose sentences and label are in these tab-separated columns."""
    cells = line.split("\t")
    if len(cells) <= max(columns):
        raise UserError(f"{where}: {len(cells)} tab-separated columns instead of {max(columns) + 1}")
    first, second, value = (cells[column] for column in columns)
    return label(value, where), (first, second)


def _named(text: str, where: str, names: Sequence[str], known: str = "") -> int:
    """Return the place of a label among the names of the classes."""
    if text.strip().lower() not in names:
        raise UserError(f"{where}: label {text!r} is not one of {known or ', '.join(names)}")
    return names.index(text.strip().lower())


def _score(text: str, where: str, low: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: score {text!r} is not a number") from None
    if not low <= value <= 5:
        raise UserError(f"{where}: score {text} is outside the range {low:g} to 5")
    return value


def _read_sick_tables(
    paths: list[Path], seed: int, column: str, label: Callable[[str, str], float]
) -> tuple[dict[str, list[Example]], str]:
    """All rows of all tables by their column `split`; what is missing is drawn from the training rows."""
    by_split: dict[str, list[Example]] = {"train": [], "dev": [], "test": []}
    names = ("split", "premise", "hypothesis", column)
    schema = Schema(
        "evaluation.transfer", "tasks", {names: [names]}, f"{', '.join(names[:-1])} and {column}", latin=True
    )
    for path in paths:
        table = read(local_file(path), schema)
        for place, (split, first, second, value) in enumerate(zip(*(table.texts(name) for name in names))):
            where = table.where(place)
            if split not in (*by_split, "trial"):
                raise UserError(f"{where}: split {split!r} is unknown; write train, dev (or trial) or test")
            by_split["dev" if split == "trial" else split].append((label(value, where), (first, second)))
    rows, notes, start = by_split["train"], [], 0
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    for split in [split for split in _DRAWN if not by_split[split]]:
        stop = start + len(rows) // _DRAWN[split]
        by_split[split] = [rows[i] for i in sorted(order[start:stop])]
        notes.append(f"{split} is {stop - start:,} of the {len(rows):,} training rows, drawn with seed {seed}")
        start = stop
    by_split["train"] = [rows[i] for i in sorted(order[start:])]
    return by_split, ", ".join(notes)


def _read_sts_benchmark_tables(paths: list[Path], seed: int) -> tuple[dict[str, list[Example]], str]:
    examples = {}
    for split in ("train", "dev", "test"):
        task = TaskConfig(source=str(_present(paths[0].with_name(f"stsb-{split}.tsv"))))
        subsets = load_task(f"STSBenchmark {split}", task, "evaluation.transfer").subsets.values()
        examples[split] = [
            (label, sides) for first, second, gold in subsets for *sides, label in zip(first, second, gold)
        ]
    return examples, ""


def _opposites(first: str, second: str) -> _Source:
    """Two files with a sentence per line; those of the first one are class 1."""
    return _Source(
        "nested", [("all", first, lambda line, _: (1, (line,))), ("all", second, lambda line, _: (0, (line,)))]
    )


def _splits(pattern: str, names: Sequence[str], parse: Parse) -> list[tuple[str, str, Parse]]:
    """Files of train, dev and test, or of train and test, by their names."""
    splits = ("train", "dev", "test") if len(names) == 3 else ("train", "test")
    return [(split, pattern.format(name), parse) for split, name in zip(splits, names)]


def _sick(kind: Kind, column: int, name: str, label: Callable[[str, str], float]) -> _Source:
    parse = partial(_parse_cells, columns=(1, 2, column), label=label)
    files = _splits("SICK/SICK_{}.txt", ("train", "trial", "test_annotated"), parse)
    return _Source(kind, files, True, "sick*.tsv", partial(_read_sick_tables, column=name, label=label))


_THREE = ("train", "dev", "test")
_PARAPHRASE: Parse = partial(_parse_cells, columns=(3, 4, 0), label=partial(_named, names=("0", "1"), known="0 to 1"))
_SIMILARITY: Parse = partial(_parse_cells, columns=(5, 6, 4), label=partial(_score, low=0.0))
_SOURCES = {
    "MR": _opposites("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": _opposites("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": _opposites("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": _opposites("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    "SST2": _Source("split", _splits("SST/binary/sentiment-{}", _THREE, _parse_binary)),
    "SST5": _Source("split", _splits("SST/fine/sentiment-{}", _THREE, _parse_fine)),
    "TREC": _Source("folds", _splits("TREC/{}.label", ("train_5500", "TREC_10"), _parse_question)),
    "MRPC": _Source("folds", _splits("MRPC/msr_paraphrase_{}.txt", ("train", "test"), _PARAPHRASE), header=True),
    "SICKEntailment": _sick("split", 4, "label", partial(_named, names=_ENTAILMENT)),
    "SICKRelatedness": _sick("regression", 3, "relatedness", partial(_score, low=1.0)),
    "STSBenchmark": _Source(
        "regression",
        _splits("STS/STSBenchmark/sts-{}.csv", _THREE, _SIMILARITY),
        tables="stsb-train.tsv",
        read_tables=_read_sts_benchmark_tables,
    ),
}
TASKS = tuple(_SOURCES)
