"""Pairs of sentences as they stand in files and hub datasets, with label, split and subset where they have them.

`read_source` reads TSV, TXT, CSV, JSONL and Parquet files, by path or URI, and datasets of the hub. What columns are
called and what messages say comes from a `Layout`; graded pairs, labelled pairs and pairs of views each have their own.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raysed.config import NliSource, TaskConfig, ViewSource
from raysed.data.sources import (
    NO_TEXT,
    delimited_cells,
    ending,
    is_hub_id,
    is_text,
    json_record,
    plain_values,
    readable,
)
from raysed.errors import UserError, first_line, public

SENTENCE_COLUMNS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
)
"""What the two sentences of a pair are often called."""

_BUFFER_BYTES = 1 << 20
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Layout:
    """What is looked for in a source.

    Attributes:
        setting: that names the sources, for messages.
        kind: what a source holds, for messages.
        sentences: pairs of columns, the first pair that is there is taken; lower case finds any case.
        needed: the columns in words, for messages.
        labels: columns of which the first that is there is the label; empty where no label is wanted.
        subset: column that divides the pairs; None where that is not wanted.
        needs_subset: whether that column has to be there.
        remedy: what to do where a column is not found, for messages.
        bare: whether a tab-separated file of two columns may do without a header.
        split: of a hub dataset, where the source names none.
    """

    setting: str
    kind: str
    sentences: Sequence[tuple[str, str]]
    needed: str
    labels: Sequence[str] = ()
    subset: str | None = None
    needs_subset: bool = False
    remedy: str = ""
    bare: bool = False
    split: str = "train"


@dataclass(frozen=True)
class PairSource:
    """A file or dataset of P pairs that has been read.

    Attributes:
        name: as shown to the user.
        unit: `line` or `row`.
        numbers: lines or rows as the user counts them, [P].
        first: first sentences, [P]; empty for null.
        second: second sentences, [P]; empty for null.
        labels: as they stand in the source, [P]; None where none are wanted.
        splits: [P]; None where there is no such column.
        subsets: [P]; likewise.
        classes: names of the labels that are numbers, by number; None where the source does not say.
    """

    name: str
    unit: str
    numbers: Sequence[int]
    first: list[str]
    second: list[str]
    labels: list[Any] | None = None
    splits: list[Any] | None = None
    subsets: list[Any] | None = None
    classes: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, place: int) -> str:
        """Returns the name and the line or row of a pair, for messages."""
        return f"{self.name}, {self.unit} {self.numbers[place]}"


def read_source(config: NliSource | TaskConfig | ViewSource, layout: Layout) -> PairSource:
    """Reads one source: all of a file, or the rows of `config.split` where one is given; of a hub dataset one split.

    Text with a header (.tsv, .csv, .txt) is tab-separated where the header has tabs between the columns that are
    needed, and comma-separated where it has commas, whatever the ending. Tab-separated text has no quoting, and only a
    newline ends a line; comma-separated text has (RFC 4180). Text may be compressed (.gz).

    Raises:
        UserError: nothing is there, a column or the split is not, a line has too few or too many columns, columns are
            separated by semicolons, a sentence is no text, or the data are broken.
    """
    file = _find_file(config.source, layout)
    if file is not None:
        source = _READERS[ending(file.path)](file, layout)
        source = source if config.split is None else _in_split(source, config.split, layout)
    elif is_hub_id(config.source):
        source = _read_hub(config, layout)
    else:
        raise UserError(
            f"{layout.setting}: nothing is at {public(config.source)}; name an existing file or a hub dataset"
        )
    return replace(source, first=_texts(source, source.first), second=_texts(source, source.second))


def _in_split(source: PairSource, split: str, layout: Layout) -> PairSource:
    if source.splits is None:
        raise UserError(f"{layout.setting}: {source.name} has no column split, so leave the split {split!r} out")
    places = [place for place, value in enumerate(source.splits) if value == split]
    if not places:
        known = ", ".join(sorted({repr(value) for value in source.splits}))
        raise UserError(
            f"{layout.setting}: {source.name} has no rows of the split {split!r}; its splits are {known or 'none'}"
        )
    columns = {name: getattr(source, name) for name in ("numbers", "first", "second", "labels", "subsets")}
    taken = {name: [values[place] for place in places] for name, values in columns.items() if values is not None}
    return replace(source, **taken, splits=None)


def _texts(source: PairSource, values: list[Any]) -> list[str]:
    """The sentences of one side, checked; null becomes empty."""
    for place, text in enumerate(values):
        if text is not None and not isinstance(text, str):
            raise UserError(f"{source.where(place)}: a sentence is a {type(text).__name__} where text is needed")
        if text and not is_text(text):
            raise UserError(f"{source.where(place)}: {NO_TEXT}")
    return [text or "" for text in values]


# Columns ----------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """What a source calls its columns; None for what is not wanted, and for a split or subset that is not there."""

    first: str
    second: str
    labels: str | None
    splits: str | None
    subsets: str | None

    @property
    def there(self) -> dict[str, str]:
        """Names in the source by attribute of `PairSource`."""
        return {field: name for field, name in self._asdict().items() if name is not None}


def _find_columns(names: Iterable[str], layout: Layout) -> _Columns | None:
    """Finds the columns, whatever the case of their letters; None where one that is needed is not there."""
    names = list(names)
    found = {name.strip().lower(): name for name in names} | {name: name for name in names}
    sentences = next((pair for pair in layout.sentences if found.keys() >= set(pair)), None)
    label = next((name for name in layout.labels if name in found), None)
    subset = found.get(layout.subset)
    if sentences is None or (layout.labels and label is None) or (layout.needs_subset and subset is None):
        return None
    return _Columns(found[sentences[0]], found[sentences[1]], label and found[label], found.get("split"), subset)


def _columns(names: Iterable[str], where: str, layout: Layout) -> _Columns:
    names = list(names)
    columns = _find_columns(names, layout)
    if columns is None:
        raise UserError(f"{where}: columns {layout.needed} are needed, found {_listed(names)}{layout.remedy}")
    return columns


def _listed(names: Iterable[str]) -> str:
    """The names, shortened: where a header is missing they are sentences."""
    return ", ".join(n if len(n) <= _SHOWN_CHARACTERS else f"{n[:_SHOWN_CHARACTERS]}..." for n in names) or "none"


# Files ------------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    name: str
    filesystem: pafs.FileSystem
    path: str


def _find_file(item: str, layout: Layout) -> _File | None:
    """The file that a path or URI names, None where nothing is there."""
    name = public(item)
    with readable(f"{layout.setting}: {name}"):
        filesystem, path = pafs.FileSystem.from_uri(item) if "://" in item else (pafs.LocalFileSystem(), item)
        path = os.path.expanduser(path)
        kind = filesystem.get_file_info(path).type
    if kind == pafs.FileType.NotFound:
        return None
    if kind == pafs.FileType.Directory or ending(path) not in _READERS:
        raise UserError(
            f"{layout.setting}: {name} is no file of {layout.kind}; the endings known are {', '.join(_READERS)}, "
            "and .gz after those of text"
        )
    return _File(name, filesystem, path)


def _read_text(file: _File, layout: Layout) -> PairSource:
    """Tab-separated or comma-separated text; which of them, the header says better than the ending does."""
    number, header = next(_lines(file), (1, ""))
    by_tab, by_comma = header.split("\t"), _comma_separated(header)
    if _find_columns(by_tab, layout) is None:
        looks_so = ending(file.path) == ".csv" and len(by_tab) == 1
        if len(by_tab) == len(by_comma) == 1 and header.count(";") > 1 and not layout.bare:
            raise UserError(
                f"{file.name}, line {number}: columns are separated by semicolons; save the file with commas (.csv) or "
                "tabs (.tsv) between them, and write numbers as 3.5"
            )
        if looks_so or _find_columns(by_comma, layout) is not None:
            return _read_csv(file, layout)
    return _read_tsv(file, layout)


def _comma_separated(header: str) -> list[str]:
    try:
        return next(csv.reader([header], strict=True), [])
    except csv.Error:
        return []


def _read_csv(file: _File, layout: Layout) -> PairSource:
    fields: list[str] = []

    def choose(header: list[str]) -> list[int]:
        there = _columns(header, f"{file.name}, line 1", layout).there
        fields.extend(there)
        return [header.index(name) for name in there.values()]

    lines = (text + "\n" for _, text in _all_lines(file))
    rows = [(number, cells) for number, cells in delimited_cells(lines, file.name, choose) if cells]
    if not fields:
        choose([])
    values = {field: [cells[place] for _, cells in rows] for place, field in enumerate(fields)}
    return PairSource(file.name, "line", [number for number, _ in rows], **values)


def _read_tsv(file: _File, layout: Layout) -> PairSource:
    lines = _lines(file)
    first_number, text = next(lines, (1, ""))
    header = text.split("\t")
    if layout.bare and _find_columns(header, layout) is None:
        return _read_bare(file, chain([(first_number, text)] if text else [], lines), layout)
    columns = _columns(header, f"{file.name}, line {first_number}", layout)
    places = [header.index(name) for name in columns.there.values()]
    numbers, values = [], [[] for _ in places]
    for number, line in lines:
        cells = line.split("\t")
        if not max(places) < len(cells) <= len(header):
            raise UserError(
                f"{file.name}, line {number}: {len(cells)} tab-separated columns where the header has {len(header)}"
            )
        numbers.append(number)
        for column, place in zip(values, places):
            column.append(cells[place])
    return PairSource(file.name, "line", numbers, **dict(zip(columns.there, values)))


def _read_bare(file: _File, lines: Iterable[tuple[int, str]], layout: Layout) -> PairSource:
    """Two columns without a header."""
    numbers, first, second = [], [], []
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != 2:
            raise UserError(f"{file.name}, line {number}: {_not_two(len(cells), layout)}")
        numbers.append(number)
        first.append(cells[0])
        second.append(cells[1])
    return PairSource(file.name, "line", numbers, first, second)


def _not_two(count: int, layout: Layout) -> str:
    if count == 1:
        return "one column where two are needed; write both sentences of a pair on a line, with a tab between them"
    return (
        f"{count} tab-separated columns where two are needed; keep the two sentences of a pair, or name the columns in "
        f"the first line: {layout.needed}"
    )


def _read_jsonl(file: _File, layout: Layout) -> PairSource:
    fields: dict[str, str] = {}
    numbers: list[int] = []
    values: dict[str, list] = {"first": [], "second": []}
    for number, line in _lines(file):
        where = f"{file.name}, line {number}"
        record = json_record(line, where)
        if not fields:
            fields = _columns(record, where, layout).there
            values = {field: [] for field in fields}
        for field, name in fields.items():
            if name not in record and field != "subsets":
                raise UserError(f"{where}: no field {name!r} among {_listed(record)}")
            values[field].append(record.get(name))
        numbers.append(number)
    return PairSource(file.name, "line", numbers, **values)


def _read_parquet(file: _File, layout: Layout) -> PairSource:
    with readable(file.name), file.filesystem.open_input_file(file.path) as raw:
        table = pq.ParquetFile(raw)
        columns = _columns(table.schema_arrow.names, file.name, layout)
        data = table.read(list(columns.there.values()))
        values = {
            field: plain_values(data.column(name), f"{file.name}, column {name!r}")
            for field, name in columns.there.items()
        }
    classes = _classes_in(table.schema_arrow.metadata or {}, columns.labels)
    return PairSource(file.name, "row", range(1, len(data) + 1), **values, classes=classes)


def _classes_in(metadata: dict[bytes, bytes], label: str | None) -> Sequence[str] | None:
    """The names of class ids that the hub writes into its Parquet files."""
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return features.get(label, {}).get("names")


def _read_hub(config: NliSource | TaskConfig | ViewSource, layout: Layout) -> PairSource:
    name, split = f"dataset {config.source}", config.split or layout.split
    try:
        import datasets  # heavy, and needed by this kind of source only

        table = datasets.load_dataset(config.source, config.name, split=split)
    except Exception as error:  # the hub's libraries raise a dozen unrelated kinds
        raise UserError(
            f"{layout.setting}: {config.source!r} is no file here, and as a hub dataset (name {config.name!r}, split "
            f"{split!r}) it cannot be read: {first_line(error)}"
        ) from None
    columns = _columns(table.column_names, name, layout)
    data = table.select_columns(list(columns.there.values()))[:]
    values = {field: list(data[column]) for field, column in columns.there.items()}
    classes = getattr(table.features[columns.labels], "names", None) if columns.labels else None
    return PairSource(name, "row", range(1, len(table) + 1), **values, classes=classes)


def _lines(file: _File) -> Iterator[tuple[int, str]]:
    r"""Yields number (from 1) and text of every line that is not blank; only \n ends a line."""
    return ((number, text) for number, text in _all_lines(file) if text.strip())


def _all_lines(file: _File) -> Iterator[tuple[int, str]]:
    opened = partial(file.filesystem.open_input_stream, file.path, buffer_size=_BUFFER_BYTES)
    with readable(file.name), opened() as stream:
        for number, line in enumerate(io.BufferedReader(stream, _BUFFER_BYTES), 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{file.name}, line {number}: not valid UTF-8; save the file as UTF-8") from None


_READERS: dict[str, Callable[[_File, Layout], PairSource]] = {
    ".tsv": _read_text,
    ".txt": _read_text,
    ".csv": _read_text,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
