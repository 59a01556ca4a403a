"""Find the data of a table below one directory, and convert it for a run."""

import csv
import io
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raysed.config import TaskConfig
from raysed.data.graded import read_graded
from raysed.errors import UserError

Subsets = dict[str, tuple[Sequence[str], Sequence[str], Sequence[float]]]
"""By subset: first sentences, second sentences and scores."""


@dataclass(frozen=True)
class Request:
    """The user's choices.

    Attributes:
        output: directory for tables and their data.
        storage: of the runs; None: as in the configs.
        encoder: for the scale `small`; None: the bundled one.
        overrides: `block.key=value` for every run.
    """

    table: str
    scale: Literal["paper", "small"]
    data: Path
    output: Path
    storage: str | None = None
    encoder: str | None = None
    overrides: tuple[str, ...] = ()

    @property
    def small(self) -> bool:
        """Whether runs only show that the rows work."""
        return self.scale == "small"

    @property
    def name(self) -> str:
        return f"{self.table}-small" if self.small else self.table

    def sets(self, key: str) -> bool:
        """Return whether the user sets a setting, a part of it, or its block."""
        given = [item.partition("=")[0] for item in self.overrides]
        return any(key == other or other.startswith(f"{key}.") or key.startswith(f"{other}.") for other in given)


class Finder:
    """Finds data, and notes what is missing.

    Args:
        entries: `data` of `runs.yaml`: candidate places of each piece, best first.
        pairs: pairs to keep of a task at the scale `small`.

    Attributes:
        missing: places searched, by name of missing data.
        different: how graded pairs differ from the paper's, by name.
    """

    def __init__(self, entries: Mapping[str, Any], pairs: int, request: Request):
        self.missing: dict[str, str] = {}
        self.different: dict[str, str] = {}
        self.notes: list[str] = []
        self._entries, self._pairs, self._request = entries, pairs, request
        self._found: dict[str, Any] = {}

    def source(self, name: str) -> Any:
        """Return a path or a list of paths for a setting; None if missing.

        Raises:
            UserError: a file cannot be read.
        """
        if name not in self._found:
            self._found[name] = self._find(name, self._entries[name])
        return self._found[name]

    def filler(self, name: str) -> str | None:
        """Return the masked language model that makes these views, if one does."""
        return self._entries[name].get("masked")

    def task(self, name: str) -> dict[str, Any] | None:
        source = self.source(name)
        return {"source": source, **self._entries[name].get("task", {})} if source else None

    def _find(self, name: str, entry: Mapping[str, Any]) -> Any:
        for kind in ("splits", "each", "folders", "sentences_of", "text_of", "together"):
            if kind in entry:
                return getattr(self, f"_{kind}")(name, entry)
        path = self._existing(entry["at"]) or self._stand_in(name, entry)
        if not path and "masked" not in entry:
            self.missing[name] = ", ".join(entry["at"])
        return self._graded(name, path, entry) if path and {"pairs", "subsets"} & set(entry) else path

    def _stand_in(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Return a substitute for missing data, at the scale `small`."""
        for place in entry.get("small", []) if self._request.small else []:
            if found := place if place.startswith("bundled:") else self._existing([place]):
                self.notes.append(f"{name}: {place} stands in for it.")
                return found
        return None

    def _existing(self, places: Sequence[str]) -> str | None:
        return next((str(self._request.data / p) for p in places if (self._request.data / p).exists()), None)

    def _graded(self, name: str, path: str, entry: Mapping[str, Any]) -> str:
        """Return a file of graded pairs: the given one if a run can read all of it, else a converted one."""
        subsets = read_pairs(name, TaskConfig(source=path, **entry.get("task", {})))
        if self._request.small:
            return self._write(name, draw_pairs(subsets, self._pairs))
        count = sum(len(gold) for _, _, gold in subsets.values())
        lacking = [subset for subset in entry.get("subsets", []) if subset not in subsets]
        if lacking:
            self.different[name] = f"no pairs of {', '.join(lacking)}"
        elif count != entry.get("pairs", count):
            self.different[name] = f"{count:,} scored pairs instead of {entry['pairs']:,}"
        return path if _is_readable(path) else self._write(name, subsets)

    def _splits(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Join the splits of a task in one file, each a subset; the test split must exist."""
        joined: Subsets = {}
        for split, part in entry["splits"].items():
            task = self.task(part)
            if task:
                subsets = read_pairs(part, TaskConfig(**task)).values()
                joined[split] = tuple([value for columns in subsets for value in columns[i]] for i in range(3))
                if part in self.different:
                    self.different[name] = f"{split}: {self.different[part]}"
        return self._write(name, joined) if "test" in joined else None

    def _each(self, name: str, entry: Mapping[str, Any]) -> list[str] | None:
        """Return all files of an entry; at the scale `small` those that exist, or else its small ones."""
        found = [self._existing(places) for places in entry["each"]]
        missing = [" or ".join(places) for places, source in zip(entry["each"], found) if not source]
        if self._request.small and not any(found):
            places = [place for place in entry.get("small", []) if self._existing([place])]
            found = [self._existing([place]) for place in places]
            self.notes += [f"{name}: {place} stands in for it." for place in places]
        sources = [source for source in found if source]
        if sources and (self._request.small or not missing):
            return sources
        self.missing[name] = ", ".join(missing)
        return None

    def _folders(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Return the first folder with a file that matches its pattern."""
        for folder, pattern in [*entry["folders"], *(entry["small"] if self._request.small else [])]:
            if (self._request.data / folder).is_dir() and any((self._request.data / folder).glob(pattern)):
                return str(self._request.data / folder)
        self.missing[name] = ", ".join(f"{folder}/{pattern}" for folder, pattern in entry["folders"])
        return None

    def _sentences_of(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Write the questions and sentences of QNLI's files as text; lines 2i and 2i + 1 are a pair."""
        sources = self._each(name, {"each": entry["sentences_of"]})
        if sources is None:
            return None
        pairs = []
        for source in sources:
            rows = csv.DictReader(lines_of(source), delimiter="\t", quoting=csv.QUOTE_NONE)
            pairs += [(row.get("question"), row.get("sentence")) for row in rows]
        return self._write_text(name, filter(all, pairs))

    def _text_of(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Write both sentences of all pairs of an entry as text, without scores or labels; see `_sentences_of`."""
        source = self.source(entry["text_of"])
        if not source:
            return self._stand_in(name, entry)
        if isinstance(source, list):
            from raysed.data.pairs import load_nli
            from raysed.train.stages.nli import NliConfig  # imports torch, which a list of tables does not need

            rows = load_nli(NliConfig(train=source).train)
            pairs = list(zip(rows.first, rows.second))
        else:
            subsets = read_pairs(entry["text_of"], TaskConfig(**self.task(entry["text_of"]))).values()
            pairs = [pair for first, second, _ in subsets for pair in zip(first, second)]
        return self._write_text(name, ((" ".join(first.split()), " ".join(second.split())) for first, second in pairs))

    def _together(self, name: str, entry: Mapping[str, Any]) -> list[str] | None:
        """Return several sources as one; at the scale `small` those that exist."""
        parts = [self.source(part) for part in entry["together"]]
        if not (all(parts) or (self._request.small and any(parts))):
            return None
        return [source for part in filter(None, parts) for source in (part if isinstance(part, list) else [part])]

    def _write_text(self, name: str, pairs: Iterable[tuple[str, str]]) -> str:
        path = self._made(name, "txt")
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{first}\n{second}\n" for first, second in pairs)
        return str(path)

    def _write(self, name: str, subsets: Subsets) -> str:
        path = self._made(name, "tsv")
        write_pairs(path, subsets)
        return str(path)

    def _made(self, name: str, ending: str) -> Path:
        path = (self._request.output / "data" / f"{self._request.scale}-{name}.{ending}").resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def read_pairs(name: str, task: TaskConfig) -> Subsets:
    """Read graded pairs: anything that a task can name, or files of SentEval and Misra et al.

    SentEval's STS benchmark is `sts-*.csv`, its SICK `SICK_*.txt`; each of their lines must have a score. Argument
    facet similarity (Misra et al. 2016) is a directory of `ArgPairs_<topic>.csv`, a subset per topic. Elsewhere, pairs
    without a score are left out.
    """
    if _is_readable(task.source):
        return dict(read_graded(name, task, name).subsets)
    if topics := _arguments(task.source):
        return {path.stem.removeprefix("ArgPairs_"): _read_arguments(path) for path in topics}
    is_sick = Path(task.source).name.startswith("SICK_")  # with a header: id, A, B, relatedness, entailment
    score, first, second = (3, 1, 2) if is_sick else (4, 5, 6)
    columns: tuple[list, list, list] = ([], [], [])
    for number, line in enumerate(lines_of(task.source)[is_sick:], start=1 + is_sick):
        cells = line.split("\t")
        try:
            triple = (cells[first], cells[second], float(cells[score]))
        except (IndexError, ValueError):
            raise UserError(f"{task.source}, line {number}: no score and two sentences in SentEval's columns") from None
        for column, value in zip(columns, triple):
            column.append(value)
    return {"all": columns}


def draw_pairs(subsets: Subsets, count: int) -> Subsets:
    """Draw about `count` pairs, the same number (rounded up) from each subset; always the same ones.

    >>> pairs = (["a", "b", "c"], ["d", "e", "f"], [1.0, 2.0, 3.0])
    >>> [len(gold) for _, _, gold in draw_pairs({"x": pairs, "y": pairs}, 3).values()]
    [2, 2]
    """
    share = math.ceil(count / len(subsets))
    drawn = {}
    for name, columns in subsets.items():
        rows = range(len(columns[0]))
        chosen = sorted(random.Random(name).sample(rows, min(share, len(rows))))
        drawn[name] = tuple([column[i] for i in chosen] for column in columns)
    return drawn


def write_pairs(path: Path, subsets: Subsets) -> None:
    """Write pairs as a table that a task can read."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("subset\tscore\tsentence1\tsentence2\n")
        for subset, columns in subsets.items():
            for first, second, gold in zip(*columns):
                file.write(f"{subset}\t{float(gold)}\t{first}\t{second}\n")


def lines_of(path: str | Path) -> list[str]:
    """Return a file's lines, split only at newlines: other separators of Unicode stay in their sentence."""
    text = text_of(path)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def text_of(path: str | Path) -> str:
    """Return the text of a file in UTF-8 or else Latin-1, which some files of SentEval use."""
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_readable(path: str) -> bool:
    """Return whether a task can read the file."""
    return not (path.endswith(".csv") or Path(path).name.startswith("SICK_") or _arguments(path))


def _arguments(path: str) -> list[Path]:
    return sorted(Path(path).glob("ArgPairs_*.csv"))


def _read_arguments(path: Path) -> tuple[list[str], list[str], list[float]]:
    columns: tuple[list, list, list] = ([], [], [])
    for row in csv.DictReader(io.StringIO(text_of(path), newline="")):
        if score := row["regression_label"].strip():
            # Quoted cells may hold newlines, which tables of pairs cannot.
            sides = [" ".join(row[side].split()) for side in ("sentence_1", "sentence_2")]
            for column, value in zip(columns, (*sides, float(score))):
                column.append(value)
    return columns
