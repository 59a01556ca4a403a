"""Blocks of the corpus: which are missing, how actors make them, and how one is committed, with or without Ray.

A block holds the same sentences for any number of workers, and every finished one is an artefact, so a stopped run
continues with the missing ones.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.jobs import OnEvent
from raysed.config import stable_hash
from raysed.context import Context
from raysed.data.parquet import ROWS_PER_GROUP, SentenceTable, matrix, open_table, roles_in, with_column
from raysed.made import BLOCK_FILE, Step, block_name
from raysed.store.checkpoints import changes
from raysed.store.storage import Entry, Storage

_KEYS, _IS_NEW, _KEYS_AT_ONCE = "keys.npy", "is_new", 8
_SMALLEST_BLOCK = 256
"""Sentences; all of a block are lost with its worker."""
_BLOCKS_PER_WORKER = 4
Place = dict[str, int]
"""Rows of a block in the sentence table: `start` to `stop`, exclusive."""


@dataclass(frozen=True)
class BlockTables:
    """Tables of blocks that are made in one pass over the corpus; it unpickles without torch.

    Attributes:
        corpus: name of the sentence table.
        depends: by name of each table, all that it depends on.
        columns, kept: of the corpus, that blocks are made from, and of a block, as far as the corpus has them.
        rows, size: of the corpus, and of a block.
        is_keyed: see `raysed.made.Blocks`.
    """

    title: str
    corpus: str
    depends: Mapping[str, Mapping[str, Any]]
    columns: Sequence[str]
    kept: Sequence[str]
    rows: int
    size: int
    is_keyed: bool = False

    def missing(self, storage: Storage) -> list[Place]:
        """Return the places of blocks that may be missing; of a keyed one, that depends on its text."""
        starts = range(0, self.rows, self.size)
        if not self.is_keyed:
            known = (entry for table in self.depends.items() for entry in storage.finished_below(*table))
            done = {entry.name for entry in known if entry.meta["size"] == self.size}
            names = {start: {block_name(name, start // self.size) for name in self.depends} for start in starts}
            starts = [start for start in starts if names[start] - done]
        return [{"start": start, "stop": min(start + self.size, self.rows)} for start in starts]

    def known(self, storage: Storage) -> KnownTexts | None:
        """Return what blocks of a keyed table say of any text, such as those of yesterday's corpus; None: of none."""
        if not self.is_keyed:
            return None
        ((name, depends),) = self.depends.items()
        own = {role: value for role, value in depends.items() if role != "corpus"}
        same = [entry for entry in chain(storage.listed(name), storage.replaced(name)) if _KEYS in entry.files]
        same = [entry for entry in same if not changes({**own, "sentences": entry.depends["sentences"]}, entry.depends)]
        return KnownTexts.of(same, storage) if same else None

    def read(self, storage: Storage, corpus: SentenceTable, place: Place) -> pa.Table:
        """Return the rows of a block that is to be made; none if it exists by now."""
        rows = corpus.rows(place["start"], place["stop"], self.columns)
        if self.is_keyed and all(storage.finished(*self._block(name, rows)) for name in self.depends):
            return rows.slice(0, 0)
        return rows

    def commit(self, storage: Storage, rows: pa.Table) -> list[Entry]:
        """Publish a block of each table: what the last stage has made of some rows."""
        entries = []
        for index, table in enumerate(self.depends):
            name, depends = self._block(table, rows)
            names = ["target" if name == f"target-{index}" else name for name in rows.column_names]
            block = rows.rename_columns(names).select([name for name in self.kept if name in names])
            meta: dict[str, Any] = {"rows": len(block), "size": self.size}
            if _IS_NEW in rows.column_names:
                meta["embedded"] = int(rows.column(_IS_NEW).to_numpy().sum())
            if "input_ids" in self.kept:  # targets, whose mean is asked for
                meta["sum"] = matrix(block.column("target")).sum(axis=0, dtype=np.float64).tolist()

            def write(path: Path, block: pa.Table = block) -> None:
                pq.write_table(block, path / BLOCK_FILE)
                if self.is_keyed:
                    np.save(path / _KEYS, keys_of(rows))

            # What a block replaces may have vectors of text that comes later.
            entries.append(storage.commit(name, write, depends, meta, keeps_replaced=self.is_keyed))
        return entries

    def _block(self, table: str, rows: pa.Table) -> tuple[str, dict[str, Any]]:
        """Return the artefact of the block with these rows, and its dependencies."""
        ids = rows.column("id").to_numpy()
        first, depends = int(ids[0]), dict(self.depends[table])
        expected = min(self.size, self.rows - first)
        if first % self.size or not np.array_equal(ids, np.arange(first, first + expected)):
            raise RuntimeError(f"{table}: the rows from {first} on are not a block of {expected} sentences")
        if self.is_keyed:
            texts, roles = rows.column("sentence").to_pylist(), roles_in(rows)  # a query may have another prompt
            depends["sentences"] = stable_hash(list(zip(texts, roles)) if any(roles) else texts)
            del depends["corpus"]
        return block_name(table, first // self.size), depends


@dataclass(frozen=True)
class KnownTexts:
    """Where blocks have vectors of texts; 16 bytes per text.

    Attributes:
        entries: of the blocks.
        keys_N: of the texts, ascending, see `keys_of`.
        places_N2: for each, the number of its block in `entries`, and its row.
    """

    entries: Sequence[Entry]
    keys_N: np.ndarray
    places_N2: np.ndarray

    @classmethod
    def of(cls, entries: Sequence[Entry], storage: Storage) -> KnownTexts:
        def keys(entry: Entry) -> np.ndarray:
            with suppress(FileNotFoundError):
                data = storage.plain.read(f"{entry.place}/{_KEYS}")
                if sha256(data).hexdigest() == entry.files[_KEYS]:
                    return np.load(io.BytesIO(data))
            return np.zeros(0, np.uint64)

        with ThreadPoolExecutor(_KEYS_AT_ONCE) as readers:
            found = list(readers.map(keys, entries))
        places = [np.stack([np.full(len(of), number), np.arange(len(of))], 1) for number, of in enumerate(found)]
        keys_N, places_N2 = np.concatenate(found), np.concatenate(places).astype(np.int32)
        order = np.argsort(keys_N, kind="stable")
        return cls(entries, keys_N[order], places_N2[order])

    def find(self, keys_B: np.ndarray, storage: Storage) -> dict[int, np.ndarray]:
        """Return the known vectors [D] among some texts, by their places; damaged blocks know none."""
        if not len(self.keys_N):
            return {}
        at_B = np.minimum(np.searchsorted(self.keys_N, keys_B), len(self.keys_N) - 1)
        rows_B = np.flatnonzero(self.keys_N[at_B] == keys_B)
        blocks, found = self.places_N2[at_B, 0], {}
        for number in np.unique(blocks[rows_B]):
            if (path := storage.intact(self.entries[number])) is not None:
                vectors_ND = matrix(open_table(path / BLOCK_FILE).read(["target"]).column("target"))
                storage.release(path)
                rows = rows_B[blocks[rows_B] == number]
                found |= dict(zip(rows.tolist(), vectors_ND[self.places_N2[at_B[rows], 1]]))
        return found


def keys_of(rows: pa.Table) -> np.ndarray:
    """Return 8 bytes that stand for each text and its role, uint64 [B]."""
    texts = zip(roles_in(rows), rows.column("sentence").to_pylist())
    digests = [blake2b(f"{role}\n{text}".encode(), digest_size=8).digest() for role, text in texts]
    return np.frombuffer(b"".join(digests), np.uint64)


@dataclass(frozen=True)
class Stream:
    """How tables of blocks are made.

    Attributes:
        chain: for each stage of actors, its step, and a label for people.
        places: of the blocks that may be missing.
        worker: class that makes a block, as a stage of the chain: `worker(inputs, settings, context)` is called with
            rows of the corpus; of the last stage's result, some columns are the block.
        known: texts that need not be embedded again.
    """

    tables: BlockTables
    places: Sequence[Place]
    chain: Sequence[tuple[Step, str]]
    worker: Any
    context: Context
    known: KnownTexts | None = None


def chain_of(steps: Sequence[Step], title: str, groups: int = 1) -> list[tuple[Step, str]]:
    """Return the stages that make some artefacts; averaged teachers that do not fit into one actor form `groups`."""
    first = steps[0]
    if "teachers" not in first.inputs:
        return [(first, title)]
    of_tables, chain = [step.inputs["teachers"] for step in steps], []
    teachers = [[index, teacher] for index, of_table in enumerate(of_tables) for teacher in of_table]
    inputs = {role: value for role, value in first.inputs.items() if role != "teachers"}
    for start, stop in pairwise(len(teachers) * group // groups for group in range(groups + 1)):
        part, counts = teachers[start:stop], [len(of) for of in of_tables] if stop == len(teachers) else []
        step = replace(first, inputs={**inputs, "part": part, "counts": counts})
        who = " to ".join(dict.fromkeys([part[0][1].name, part[-1][1].name]))
        chain.append((step, f"the teachers {who}"))
    return chain


def block_size(storage: Storage, steps: Sequence[Step], rows: int, workers: int, is_keyed: bool = False) -> int:
    """Return the sentences per block: that of blocks that can be kept, or few enough to keep all workers busy."""
    for step in steps:
        if entry := next(storage.listed(step.name, None if is_keyed else step.depends), None):
            return entry.meta["size"]
    size = ROWS_PER_GROUP
    while size > _SMALLEST_BLOCK and rows < size * workers * _BLOCKS_PER_WORKER:
        size //= 2
    return size


class StreamStage:
    """One stage of a stream; the first block loads its model."""

    def __init__(self, stream: Stream, number: int, storage: Storage):
        self._stream, self._storage = stream, storage
        self._step, self.label = stream.chain[number]
        self._worker: Any = None

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a block with what the model adds."""
        if self._stream.known is None:
            return self._embedded(rows)
        vectors = self._stream.known.find(keys_of(rows), self._storage)
        is_new = np.array([row not in vectors for row in range(len(rows))])
        if is_new.any():
            new_BD = matrix(self._embedded(rows.filter(pa.array(is_new))).column("target"))
            vectors |= dict(zip(np.flatnonzero(is_new).tolist(), new_BD))
        x_BD = np.stack([vectors[row] for row in range(len(rows))])
        return with_column(rows, "target", x_BD).append_column(_IS_NEW, pa.array(is_new))

    def _embedded(self, rows: pa.Table) -> pa.Table:
        if self._worker is None:
            inputs, settings = self._step.resolve_inputs(self._storage), self._step.settings
            self._worker = self._stream.worker(inputs, settings, self._stream.context)
        return self._step.checked(self._worker(rows))


def make_blocks_here(stream: Stream, storage: Storage, on_event: OnEvent) -> None:
    """Make the missing blocks in this process."""
    tables, stage = stream.tables, StreamStage(stream, 0, storage)
    corpus = SentenceTable(storage.fetch(tables.corpus))
    for place in stream.places:
        rows = tables.read(storage, corpus, place)
        entries = tables.commit(storage, stage(rows)) if len(rows) else []
        made = sum(entry.meta.get("embedded", entry.meta["rows"]) for entry in entries[:1])
        on_event(tables.title, {"rows": place["stop"] - place["start"], "made": made, "entries": entries})
