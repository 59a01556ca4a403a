"""SentEval's transfer tasks, read from its `data/downstream` or from tables of SICK and STS-B."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from papers.data import lines_of
from raysed.config import TaskConfig
from raysed.data.graded import load_task
from raysed.data.rows import Schema, read
from raysed.data.sources import local_file
from raysed.errors import UserError

FOLDS, SEED = 10, 1111
"""Of every cross-validation, as in SentEval."""
Kind = Literal["nested", "folds", "split", "regression"]
PROTOCOLS: dict[Kind, str] = {
    "nested": f"{FOLDS} outer folds, C by {FOLDS} inner folds",
    "folds": f"C by {FOLDS} folds of train",
    "split": "C by dev",
    "regression": "expected grade, stopped by dev",
}
_DRAWN = {"test": 3, "dev": 10}
"""A split that a table lacks is one in this many of its training rows."""
Example = tuple[float, tuple[str, ...]]
"""Label, and one or two sentences."""


class Split(NamedTuple):
    """N examples: sentences, or both sides of pairs, with classes int64 [N] or scores float64 [N]."""

    sides: tuple[list[str], ...]
    labels: np.ndarray


@dataclass(frozen=True)
class TransferTask:
    """One task, named as in SentEval.

    `nested` has one split, `all`; `folds` has train and test; `split` and `regression` have dev, too. `note` lists
    deviations from SentEval.
    """

    name: str
    kind: Kind
    splits: Mapping[str, Split]
    note: str = ""

    @property
    def protocol(self) -> str:
        """The method in words, for reports."""
        return "; ".join(filter(None, [PROTOCOLS[self.kind], self.note]))


class _Source(NamedTuple):
    """How SentEval stores a task.

    Attributes:
        files: by split; for a nested task by class.
        line: pattern with the groups `label`, `first` and perhaps `second`, described by `shape`; lines of a nested
            task are sentences.
        labels: class names, or the lowest and the highest score.
    """

    kind: Kind
    files: Mapping[str, str]
    line: str = ""
    shape: str = ""
    labels: tuple = ("0", "1")
    header: bool = False

    def example(self, line: str, where: str) -> Example:
        """Parse a line of a task that is not nested."""
        found = re.match(self.line, line)
        if not found:
            raise UserError(f"{where}: write it as {self.shape}")
        parts = found.groupdict()
        return self.label(parts.pop("label").strip(), where), tuple(parts.values())

    def label(self, text: str, where: str) -> float:
        """Return the index of a class, or the score."""
        if self.kind != "regression":
            if text.lower() not in self.labels:
                raise UserError(f"{where}: label {text!r} is not one of {', '.join(self.labels)}")
            return self.labels.index(text.lower())
        try:
            score, (low, high) = float(text), self.labels
        except ValueError:
            raise UserError(f"{where}: score {text!r} is not a number") from None
        if not low <= score <= high:
            raise UserError(f"{where}: score {text} is outside the range {low:g} to {high:g}")
        return score


def load_tasks(data: Path, names: Sequence[str] | None = None, seed: int = SEED) -> list[TransferTask]:
    """Read tasks by name, or all that a directory holds.

    The directory is laid out like SentEval's `data/downstream`. It, or a directory in it, may instead hold tables:
    `sick*.tsv` (columns split, relatedness, label, premise, hypothesis) and `stsb-train.tsv`, `stsb-dev.tsv`,
    `stsb-test.tsv` (columns subset, score, sentence1, sentence2). `seed` draws missing SICK splits from the training
    rows, as the task's note says.

    Words are joined by single spaces, and an empty sentence becomes ".". Examples are in SentEval's order, by number of
    words and then label, because folds depend on it.
    """
    for name in names or []:
        if name not in _SOURCES:
            raise UserError(f"{name!r} is no transfer task; the tasks are {', '.join(_SOURCES)}")
    if not data.is_dir():
        raise UserError(f"{data} is not a directory; name SentEval's data/downstream")
    names = names or [name for name in _SOURCES if _places(data, name)]
    if not names:
        raise UserError(
            f"{data} has no transfer task; it must have folders such as MR or SICK (SentEval's data/downstream), "
            "sick*.tsv or stsb-train.tsv"
        )
    return [_load(data, name, seed) for name in dict.fromkeys(names)]


def _places(source: Path, name: str) -> list[Path]:
    """Return the task's SentEval folder, or else its tables, if any."""
    folder, pattern = (source / next(iter(_SOURCES[name].files.values()))).parent, _TABLES.get(name)
    if folder.is_dir():
        return [folder]
    return (sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}"))) if pattern else []


def _load(source: Path, name: str, seed: int) -> TransferTask:
    spec, places, note = _SOURCES[name], _places(source, name), ""
    if not places or places[0].is_dir():
        examples = _read_files(source, spec)
    elif name == "STSBenchmark":
        examples = _read_sts_benchmark_tables(places[0])
    else:
        examples, note = _read_sick_tables(places, spec, seed)
    task = TransferTask(name, spec.kind, {split: _split(found) for split, found in examples.items()}, note)
    _check_size(task, places[0])
    return task


def _read_files(source: Path, spec: _Source) -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = {}
    for key, name in spec.files.items():
        path = _present(source / name)
        lines = enumerate(lines_of(path)[spec.header :], start=1 + spec.header)
        if spec.kind == "nested":
            found.setdefault("all", []).extend((int(key), (line,)) for _, line in lines)
        else:
            found[key] = [spec.example(line, f"{path}, line {number}") for number, line in lines]
    return found


def _read_sick_tables(paths: list[Path], spec: _Source, seed: int) -> tuple[dict[str, list[Example]], str]:
    """Read all rows by their column `split`; draw missing splits from the training rows."""
    found: dict[str, list[Example]] = {"train": [], "dev": [], "test": []}
    names = ("split", "premise", "hypothesis", "relatedness" if spec.kind == "regression" else "label")
    needed = f"{', '.join(names[:-1])} and {names[-1]}"
    schema = Schema("SICK", "tasks", {names: [names]}, needed)
    for path in paths:
        table = read(local_file(path), schema)
        for place, (split, first, second, value) in enumerate(zip(*map(table.texts, names))):
            where = table.where(place)
            if split not in (*found, "trial"):
                raise UserError(f"{where}: split {split!r} is unknown; write train, dev (or trial) or test")
            found["dev" if split == "trial" else split].append((spec.label(value, where), (first, second)))
    rows, notes, start = found["train"], [], 0
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    for split in [split for split in _DRAWN if not found[split]]:
        stop = start + len(rows) // _DRAWN[split]
        found[split] = [rows[i] for i in sorted(order[start:stop])]
        notes.append(f"{split} is {stop - start:,} of the {len(rows):,} training rows, drawn with seed {seed}")
        start = stop
    found["train"] = [rows[i] for i in sorted(order[start:])]
    return found, ", ".join(notes)


def _read_sts_benchmark_tables(train: Path) -> dict[str, list[Example]]:
    found = {}
    for split in _SPLITS:
        task = TaskConfig(source=str(_present(train.with_name(f"stsb-{split}.tsv"))))
        subsets = load_task(f"STSBenchmark {split}", task, "STSBenchmark").subsets.values()
        found[split] = [(label, sides) for first, second, gold in subsets for *sides, label in zip(first, second, gold)]
    return found


def _split(examples: list[Example]) -> Split:
    """Clean the sentences, and sort examples in SentEval's order."""
    cleaned = [(label, tuple(" ".join(side.split()) for side in sides)) for label, sides in examples]
    cleaned.sort(key=lambda example: (*(len(side.split()) for side in example[1]), example[0]))
    sides = zip(*(sentences for _, sentences in cleaned))
    return Split(tuple([sentence or "." for sentence in side] for side in sides), np.array([y for y, _ in cleaned]))


def _check_size(task: TransferTask, where: Path) -> None:
    """Raise `UserError` if a split is empty, or a class too small for the folds."""
    for key, split in task.splits.items():
        if not len(split.labels):
            raise UserError(f"{task.name}: {where} has no example for {key}")
    if task.kind == "regression":
        return
    classes, counts = np.unique(next(iter(task.splits.values())).labels, return_counts=True)
    if len(classes) < 2:
        raise UserError(f"{task.name}: {where} has only one class, {classes[0]}; training needs at least two")
    # The inner folds of a nested search get nine tenths of a class.
    needed = {"nested": FOLDS + 2, "folds": FOLDS}.get(task.kind, 1)
    if counts.min() < needed:
        few = classes[counts.argmin()]
        raise UserError(
            f"{task.name}: {where} has {counts.min()} examples of class {few}, but {FOLDS} folds need at least {needed}"
        )


def _present(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path} does not exist; add it, or name the tasks without it")
    return path


_SPLITS = ("train", "dev", "test")
_SICK = {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt", "test": "SICK/SICK_test_annotated.txt"}
_MRPC = {"train": "MRPC/msr_paraphrase_train.txt", "test": "MRPC/msr_paraphrase_test.txt"}
_PAIR = r"(?P<first>[^\t]*)\t(?P<second>[^\t]*)"
_LABEL = r"(?P<label>[^\t]*)"
_SOURCES = {
    "MR": _Source("nested", {"1": "MR/rt-polarity.pos", "0": "MR/rt-polarity.neg"}),
    "CR": _Source("nested", {"1": "CR/custrev.pos", "0": "CR/custrev.neg"}),
    "SUBJ": _Source("nested", {"1": "SUBJ/subj.objective", "0": "SUBJ/subj.subjective"}),
    "MPQA": _Source("nested", {"1": "MPQA/mpqa.pos", "0": "MPQA/mpqa.neg"}),
    "SST2": _Source(
        kind="split",
        files={split: f"SST/binary/sentiment-{split}" for split in _SPLITS},
        line=r"(?P<first>.*)\t(?P<label>.*)",
        shape="a sentence, a tab, and 0 or 1",
    ),
    "SST5": _Source(
        kind="split",
        files={split: f"SST/fine/sentiment-{split}" for split in _SPLITS},
        line=r"(?P<label>\S*) ?(?P<first>.*)",
        labels=("0", "1", "2", "3", "4"),
    ),
    "TREC": _Source(
        kind="folds",
        files={"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
        line=r"(?P<label>\w+):\S* (?P<first>.*)",
        shape="TYPE:fine question",
        labels=("abbr", "desc", "enty", "hum", "loc", "num"),
    ),
    "MRPC": _Source("folds", _MRPC, rf"{_LABEL}\t.*?\t.*?\t{_PAIR}", "5 tab-separated columns", header=True),
    "SICKEntailment": _Source(
        kind="split",
        files=_SICK,
        line=rf".*?\t{_PAIR}\t.*?\t{_LABEL}",
        shape="5 tab-separated columns",
        labels=("contradiction", "neutral", "entailment"),
        header=True,
    ),
    "SICKRelatedness": _Source(
        "regression", _SICK, rf".*?\t{_PAIR}\t{_LABEL}", "5 tab-separated columns", (1.0, 5.0), header=True
    ),
    "STSBenchmark": _Source(
        kind="regression",
        files={split: f"STS/STSBenchmark/sts-{split}.csv" for split in _SPLITS},
        line=rf"(?:.*?\t){{4}}{_LABEL}\t{_PAIR}",
        shape="7 tab-separated columns",
        labels=(0.0, 5.0),
    ),
}
_TABLES = {"SICKEntailment": "sick*.tsv", "SICKRelatedness": "sick*.tsv", "STSBenchmark": "stsb-train.tsv"}
TASKS = tuple(_SOURCES)
