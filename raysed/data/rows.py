"""The one reader of rows: text with or without a header, JSONL, Parquet, and hub datasets.

Errors name the file and the line (or row). Libraries do not count lines, so text is parsed here. File endings mean the
same for all schemas:

- `.csv` and `.tsv`: text with a header. Commas, with quoting (RFC 4180), or tabs, with cells that may be quoted,
  separate columns: as the header shows, or else as the ending says.
- `.txt`: tab-separated text without a header if the schema knows columns by position; else as `.tsv`.
- `.jsonl`: an object per line. `.parquet`: Parquet. `.gz` may follow the endings of text.

Text is UTF-8. A newline ends a line; a carriage return does in files that end most lines so.
"""

import codecs
import csv
import io
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.config import PairSource, TaskConfig
from raysed.data.parquet import refuse_code
from raysed.data.sources import File, Hub, find, local_file, readable
from raysed.errors import UserError, first_line, need
from raysed.uris import half_character_in

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 22
"""Object stores get one request per buffer."""
_MAX_LINE_BYTES = 1 << 26
_ROWS, _BLOCK_CHARACTERS = 4096, 1 << 24
"""Limits of a block; its last row may exceed them."""
_BATCH_ROWS = 64
"""Rows to decode at a time: a Parquet file may store a long text once for many rows."""
_MAX_SHOWN, _MAX_NAMED = 40, 15
_MAX_NUMBER = 1e30
"""Limit of absolute scores, far below where float64 squares overflow."""
_SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val", "trial"), "test": ("test",)}
"""Names of a split in a column `split`; SICK calls it `trial`."""
_HUB_SPLITS = {"dev": "|".join((*_SPLITS["dev"], "test"))}
"""The first that a hub dataset has counts."""
_QUOTED = re.compile(r'(?<![^\t\n])"([^"]*(?:""[^"]*)*)"(?![^\t\n])')
"""A cell of tab-separated text in quotation marks."""
_SAMPLE_LINES = 1000
_Record = tuple[int, Sequence[Any] | None]
"""Number of a line or row, and its values by field."""


@dataclass(frozen=True)
class Schema:
    """Which columns a source must have; `setting`, `kind`, `needed` (the columns) and `remedy` are for messages.

    Attributes:
        wanted: column names of each group of fields; the first that are all present count. Lower case matches any case.
        optional: column names of further fields; values are null where a source or JSONL object lacks one.
        text: fields that hold text or null.
        bare: fields by position in a `.txt` file without a header. A single field takes whole lines, counts blank lines
            as rows, and accepts an empty file.
        loose: whether the header of `.txt` and `.tsv` files is optional; needs `bare`.
        blanks: whether any blanks separate columns without a header.
    """

    setting: str
    kind: str
    wanted: Mapping[tuple[str, ...], Sequence[tuple[str, ...]]]
    needed: str
    optional: Mapping[str, str] = field(default_factory=dict)
    text: Sequence[str] = ()
    remedy: str = ""
    bare: Sequence[str] = ()
    loose: bool = False
    blanks: bool = False

    @cached_property
    def fields(self) -> list[str]:
        """All fields, optional ones last."""
        return [*chain.from_iterable(self.wanted), *self.optional]

    def find(self, names: Collection[str]) -> list[list[str]] | None:
        """Return each field's columns, none if optional and absent; None if a required one is absent."""
        found: list[list[str]] = []
        for choices in self.wanted.values():
            columns = [[_named(wanted, names) for wanted in choice] for choice in choices]
            if (choice := next(filter(all, columns), None)) is None:
                return None
            found += choice
        return found + [_named(wanted, names) for wanted in self.optional.values()]

    def columns(self, names: Collection[str], where: str) -> list[str | None]:
        """Return each field's column, None if optional and absent; UserError if one is missing or ambiguous."""
        if (found := self.find(names)) is None:
            raise UserError(f"{where}: columns {self.needed} are needed, found {_listed(names)}{self.remedy}")
        for columns in found:
            if len(columns) > 1:
                raise UserError(f"{where}: {len(columns)} columns are named {columns[0]!r}; rename all but one")
        return [columns[0] if columns else None for columns in found]


def _named(wanted: str, names: Collection[str]) -> list[str]:
    return [name for name in names if name == wanted] or [name for name in names if name.strip().lower() == wanted]


@dataclass(frozen=True)
class Rows:
    """N rows of a source; messages show `name`, `unit` (`line` or `row`) and `numbers` [N]."""

    name: str
    unit: str
    numbers: Sequence[int]
    columns: Mapping[str, list[Any]]
    """Values by field, [N] each; None throughout for an absent optional column."""

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, place: int) -> str:
        """Return the source and the line or row at `place`, counted from 0, for messages."""
        return f"{self.name}, {self.unit} {self.numbers[place]}"

    def texts(self, name: str) -> list[str]:
        """Return a field's values, with null as empty text."""
        return [text or "" for text in self.columns[name]]

    def numbers_of(self, name: str, remedy: str) -> list[float | None]:
        """Return a field's values as finite numbers, None for null or blank; UserError for anything else."""
        return [self._number(name, place, remedy) for place in range(len(self))]

    def _number(self, name: str, place: int, remedy: str) -> float | None:
        value = self.columns[name][place]
        text = "" if value is None else str(value).strip()
        if not text:
            return None
        try:
            if abs(number := float(text.replace("_", "?"))) <= _MAX_NUMBER:  # Python reads 1_5 as 15
                return number
            problem = f"is too large or not finite; {remedy}"
        except ValueError:
            problem = f"is not a number; {remedy}"
            if re.fullmatch(r"[+-]?\d*,\d+", text):
                problem = f"has a decimal comma; write {text.replace(',', '.')}"
        raise UserError(f"{self.where(place)}: {name} {text[:_MAX_SHOWN]!r} {problem}")


def read_source(config: PairSource | TaskConfig, schema: Schema, split: str = "train") -> Rows:
    """Read a file or hub dataset; only the rows of `config.split`, if set.

    Else `split` (`train`, `dev` or `test`) tells the rows of a file with a column `split`. If it has no such rows, all
    count; a note says which do. Of a hub dataset, the dev task is the split `dev` or `validation`, else `test`, too.
    """
    hub = Hub(config.source, config.config_name, config.split or _HUB_SPLITS.get(split, split))
    (source,) = find(config.source, schema.setting, schema.kind, hub)
    is_subset = any("split" in names for choices in schema.wanted.values() for names in choices)
    if source is hub or (is_subset and config.split is None):
        return read(source, schema)
    table = read(source, replace(schema, optional={**schema.optional, "split": "split"}))
    splits = table.columns["split"]
    known = ", ".join(sorted({repr(value) for value in splits if value is not None}))
    names = splits if config.split else [str(value).strip().lower() for value in splits]
    wanted = (config.split,) if config.split else _SPLITS.get(split, (split,))
    places = [place for place, name in enumerate(names) if name in wanted]
    if not places and config.split:
        known = f"it has {known}" if known else f"it has no such column; remove split: {config.split}"
        problem = f"no row of {source.name} has {config.split!r} in the column split; {known}"
        raise UserError(problem, setting=schema.setting)
    if known and not config.split:
        found = f"its {len(places):,} rows {' or '.join(wanted)} of {len(table):,} are read"
        found = found if places else f"none of its {len(table):,} rows is {' or '.join(wanted)}, so all are read"
        log.info("%s: %s has a column split; %s", schema.setting, source.name, found)
    if not places:
        return table
    taken = {name: [values[place] for place in places] for name, values in table.columns.items()}
    return replace(table, numbers=[table.numbers[place] for place in places], columns=taken)


def read(source: File | Hub, schema: Schema) -> Rows:
    """Read all rows of a source at once."""
    blocks = list(rows(source, schema)) or [Rows(source.name, "row", [], {name: [] for name in schema.fields})]
    columns = {name: [value for block in blocks for value in block.columns[name]] for name in schema.fields}
    numbers = [number for block in blocks for number in block.numbers]
    return replace(blocks[0], numbers=numbers, columns=columns)


def rows(source: File | Hub, schema: Schema) -> Iterator[Rows]:
    """Yield a source's rows in non-empty blocks of up to 4,096."""
    is_text = isinstance(source, File) and source.ending != ".parquet"
    records = _read_text if is_text else _read_hub if isinstance(source, Hub) else _read_parquet
    for numbers, values in _in_blocks(records(source, schema)):
        columns = dict(zip(schema.fields, map(list, zip(*values))))
        block = Rows(source.name, "line" if is_text else "row", numbers, columns)
        for place, name in product(range(len(block)), schema.fields):
            value, is_text = columns[name][place], name in schema.text
            if not isinstance(value, str | None) and (is_text or isinstance(value, Collection)):
                needed = "a sentence must be text" if is_text else f"{name} must be one value per text"
                kind = type(value).__name__
                raise UserError(f"{block.where(place)}: {needed}, not of type {kind}{schema.remedy}")
            if is_text and value and (problem := half_character_in(value)):
                raise UserError(f"{block.where(place)}: {problem}")
        yield block


def _in_blocks(records: Iterator[_Record]) -> Iterator[tuple[Sequence[int], Sequence[Sequence[Any]]]]:
    block, size = [], 0
    for record in records:
        block.append(record)
        size += sum(map(len, map(str, record[1])))
        if len(block) == _ROWS or size >= _BLOCK_CHARACTERS:
            yield zip(*block)
            block, size = [], 0
    if block:
        yield zip(*block)


def column_names(file: File) -> list[str]:
    """Return column names; for text, the first line's cells, even if it is no header."""
    if file.ending == ".parquet":
        file = (*file.parts, file)[0]
        with readable(file.name), file.filesystem.open_input_file(file.path) as raw:
            return pq.read_schema(raw).names
    number, line = first_filled_line(file)
    if file.ending == ".jsonl":
        return list(_json_object(line, f"{file.name}, line {number}")) if line else []
    cells = _cells(line, "\t")
    return cells if len(cells) > 1 else _cells(line, ",")


def first_filled_line(file: File) -> tuple[int, str]:
    """Return the number and text of the first line that is not blank, or 1 and no text."""
    return next(((number, line) for number, line in _lines(file) if line.strip()), (1, ""))


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines without their ends."""
    return [line for _, line in _lines(local_file(path))]


def _listed(names: Collection[str]) -> str:
    """List names, shortened: without a header they are sentences."""
    shown = [n if len(n) <= _MAX_SHOWN else f"{n[:_MAX_SHOWN]}..." for n in islice(names, _MAX_NAMED)]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return (", ".join(shown) or "none") + more


# -- text ------------------------------------------------------------------------------------------------------------


def _read_text(file: File, schema: Schema) -> Iterator[_Record]:
    """Yield the records of a text file; blank lines count only for a single bare field."""
    lines, is_blank_counted = _lines(file), len(schema.bare) == 1
    if file.ending == ".txt" and is_blank_counted:
        records = ((number, [line]) for number, line in lines)
    elif file.ending == ".jsonl":
        records = _json_records(file.name, lines, schema)
    else:
        records = _text_records(file, lines, schema)
    blank = [None] * len(schema.fields)
    yield from ((number, values or blank) for number, values in records if values or is_blank_counted)


def _text_records(file: File, lines: Iterator[tuple[int, str]], schema: Schema) -> Iterator[tuple[int, list | None]]:
    number, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    separator = _separator(file, schema, first, number)
    if not first and (len(schema.bare) == 1 or separator is None):
        return
    lines, least, count = chain([(number, first)], lines), len(schema.bare), len(schema.bare)
    if separator == ",":
        cells = _quoted(file.name, lines, number, ",")
    elif schema.blanks and not separator:
        cells = ((number, line.split()) for number, line in lines)
    else:
        cells = _tab_separated(file.name, lines, first.count("\t") + 1 if separator else count)
    if separator:
        _, header = next(cells)
        columns = schema.columns(header, f"{file.name}, line {number}")
        places = [None if name is None else header.index(name) for name in columns]
        # Rows of released files may lack the last columns, which matters only if one is wanted.
        least, count = max(place for place in places if place is not None) + 1, len(header)
        expected = f"tab-separated columns, but the header has {count}"
        if separator == ",":
            expected = f"fields, but the header has {count}; quote fields that contain a comma"
    else:
        places = [schema.bare.index(name) if name in schema.bare else None for name in schema.fields]
        expected = f"tab-separated columns instead of {count}"
        if schema.loose:
            expected += f"; separate them by tabs, or name the columns in the first line: {schema.needed}"
    for number, row in cells:
        if row and not least <= len(row) <= count:
            raise UserError(f"{file.name}, line {number}: {len(row)} {expected}")
        yield number, [None if place is None else row[place] for place in places] if row else None


def _separator(file: File, schema: Schema, first: str, number: int) -> str | None:
    """Return the separator in the header; None if the first line is data."""
    if file.ending == ".txt" and schema.bare and not schema.loose:
        return None
    by_comma = _cells(first, ",")
    is_tabbed, is_commaed = schema.find(_cells(first, "\t")), schema.find(by_comma)
    is_known = is_tabbed or is_commaed or schema.loose or len(by_comma) > 1
    if not is_known and (first.count(";") > 1 or schema.find(first.split(";"))):
        raise UserError(
            f"{file.name}, line {number}: columns are separated by semicolons; save the file with commas (.csv) or "
            "tabs (.tsv) between them, and write numbers as 3.5"
        )
    if (is_commaed and not is_tabbed) or (file.ending == ".csv" and "\t" not in first):
        return ","
    return None if schema.loose and not is_tabbed else "\t"


def _cells(line: str, separator: str) -> list[str]:
    """Return a header's cells, or the whole line if it can be no header: an overlong cell, or a carriage return."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        return [line]


def _tab_separated(name: str, lines: Iterator[tuple[int, str]], count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and its cells, `count` as a rule.

    The 1,000 lines from the first quotation mark on decide: if such marks are only around whole cells, a spreadsheet or
    pandas put them there. Else they are text, as in STS, where one sentence may begin and a later one end with a mark.
    So they are in a single column in which no cell needs them.
    """
    for number, line in lines:
        if '"' in line:
            break
        yield number, line.split("\t") if line.strip() else []
    else:
        return
    ahead = [(number, line), *islice(lines, _SAMPLE_LINES - 1)]
    parts = [line for _, line in ahead]
    if count == 1 or any(line.count("\t") != count - 1 for line in parts if line.strip()):  # not each line is a row
        parts = ["\n".join(parts)]
        parts[0] += '"' * (len(ahead) == _SAMPLE_LINES and parts[0].count('"') % 2)  # of a cell that goes on
    lines, is_text = chain(ahead, lines), any('"' in _QUOTED.sub("", part) for part in parts)
    if count == 1:  # nothing in "Yes." needs marks
        is_text |= not any(re.search(r'["\t\n]', cell) for cell in _QUOTED.findall(parts[0]))
    if is_text:
        yield from ((number, line.split("\t") if line.strip() else []) for number, line in lines)
    else:
        yield from _quoted(name, lines, number, "\t")


def _quoted(
    name: str, lines: Iterator[tuple[int, str]], number: int, separator: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line (counted from `number`) and cells."""
    csv.field_size_limit(_MAX_LINE_BYTES)
    reader, start = csv.reader((f"{line}\n" for _, line in lines), delimiter=separator, strict=True), number
    try:
        for row in reader:
            yield start, row
            start = number + reader.line_num
    except csv.Error as error:
        advice = "check for quotation marks that are not closed or not doubled"
        raise UserError(f"{name}, line {start}: {error}; {advice}") from None


def _json_records(name: str, lines: Iterator[tuple[int, str]], schema: Schema) -> Iterator[tuple[int, list | None]]:
    """Yield records; the first one names the columns."""
    columns, needed = [], len(schema.fields) - len(schema.optional)
    for number, line in lines:
        if not line.strip():
            yield number, None
            continue
        where = f"{name}, line {number}"
        record = _json_object(line, where)
        if not columns:  # optional fields may be absent from the first object
            found = schema.columns(record, where)
            columns = found[:needed] + [one or name for one, name in zip(found[needed:], schema.optional.values())]
        for column in columns[:needed]:
            if column not in record:
                raise UserError(f"{where}: no field {column!r}; found {_listed(record)}")
        yield number, [record.get(column) for column in columns]


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits
        raise UserError(f"{where}: not valid JSON: {first_line(error)}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected an object {{...}}, found a {type(record).__name__}")
    return record


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {max(names, key=names.count)!r} occurs more than once")
    return found


def _lines(file: File) -> Iterator[tuple[int, str]]:
    r"""Yield each line's number, from 1, and its text without the \n or \r\n at its end.

    Lines end in \r alone if the first block has more of these than of \n, as in files of old Macs and some exports.
    """
    filesystem = file.filesystem
    with readable(file.name), filesystem.open_input_stream(file.path, buffer_size=_BUFFER_BYTES) as raw:
        stream = io.BufferedReader(raw, _BLOCK_BYTES)
        start, read_line = stream.peek(), partial(stream.readline, _MAX_LINE_BYTES)
        if start.count(b"\r") - start.count(b"\r\n") > start.count(b"\n"):
            text = io.TextIOWrapper(stream, "latin-1")  # which reads any bytes, and turns all ends into \n
            read_line = lambda: text.readline(_MAX_LINE_BYTES).encode("latin-1")  # noqa: E731
        for number, line in enumerate(iter(read_line, b""), start=1):
            if len(line) == _MAX_LINE_BYTES:
                limit = f"{_MAX_LINE_BYTES >> 20} MiB; put one sentence or record per line"
                raise UserError(f"{file.name}, line {number} is longer than {limit}")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if line.count(b"\0") * 3 > len(line):
                    raise UserError(f"{file.name}, line 1 has zero bytes, as in UTF-16; save the file as UTF-8")
            try:
                yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                problem = f"not valid UTF-8 (byte 0x{line[error.start]:02x}); save the file as UTF-8"
                raise UserError(f"{file.name}, line {number}: {problem}") from None


# -- tables with types -----------------------------------------------------------------------------------------------


def _read_parquet(file: File, schema: Schema) -> Iterator[_Record]:
    """Yield the records of a file, or of all parts of a directory, with numbers that run on."""
    first = 1
    for part in file.parts or (file,):
        with readable(part.name), part.filesystem.open_input_file(part.path) as raw:
            table = pq.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            columns = schema.columns(table.schema_arrow.names, part.name)
            names = [name for name in dict.fromkeys(columns) if name is not None]
            refuse_code(table.schema_arrow, part.name, names)
            classes = _class_names(table.schema_arrow.metadata or {})
            for batch in table.iter_batches(_BATCH_ROWS, columns=names):
                try:
                    values = batch.to_pydict()
                except (ValueError, OverflowError, pa.ArrowException) as error:  # such as a date beyond the year 9999
                    utf8 = isinstance(error, UnicodeDecodeError)
                    problem = "is not valid UTF-8" if utf8 else f"cannot be read: {first_line(error)}"
                    where = f"{file.name}, rows {first:,} to {first + len(batch) - 1:,}"
                    raise UserError(f"{where}: a value {problem}") from None
                yield from _records(first, columns, values, classes)
                first += len(batch)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return class names by column, if the hub's libraries left them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        kinds = {name: kind["names"] for name, kind in features.items() if isinstance(kind, dict) and "names" in kind}
        return {name: list(map(str, names)) for name, names in kinds.items() if isinstance(names, list)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):  # absent or from another program
        return {}


def _read_hub(source: Hub, schema: Schema) -> Iterator[_Record]:
    need("datasets", f"{schema.setting}: there is no file {source.id!r}; a dataset of the hub", "datasets")
    try:
        import datasets  # heavy, and needed only here

        options = {"streaming": True} if source.streaming else {}
        split = source.split
        if "|" in split:
            known = datasets.get_dataset_split_names(source.id, source.config)
            only = known if split.endswith("|*") and len(known) == 1 else [split.removesuffix("|*")]
            split = next((name for name in split.split("|") if name in known), only[0])
        table, first = datasets.load_dataset(source.id, source.config, split=split, **options), 1
        columns = schema.columns(table.column_names or next(iter(table), {}), source.name)
        kinds = table.features or {}
        classes = {name: kind.names for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)}
        names = [name for name in dict.fromkeys(columns) if name is not None]
        for values in table.select_columns(names).iter(_BATCH_ROWS):
            yield from _records(first, columns, values, classes)
            first += len(values[names[0]])
    except UserError:
        raise
    except Exception as error:  # the hub's libraries raise a dozen unrelated types
        raise UserError(
            f"there is no file {source.id!r}, and it cannot be read as a hub dataset (name {source.config!r}, split "
            f"{source.split.removesuffix('|*')!r}): {first_line(error)}",
            setting=schema.setting,
        ) from None


def _records(
    first: int, columns: Sequence[str | None], values: Mapping[str, list[Any]], classes: Mapping
) -> Iterator[_Record]:
    """Yield records, numbered from `first`; class ids become names, and null if they stand for no class."""
    count, parts = len(next(iter(values.values()))), []
    for column in columns:
        part = [None] * count if column is None else values[column]
        if column in classes:
            name_of: dict[Any, str | None] = {-1: None, **dict(enumerate(classes[column]))}
            part = [name_of.get(value, value) if isinstance(value, int | float) else value for value in part]
        parts.append(part)
    yield from zip(range(first, first + count), zip(*parts))
