"""Parallel text: how often the nearest text of the other language is the translation, as Tatoeba is scored."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from raysed.config import TaskConfig
from raysed.data.rows import Schema, column_names, read_source
from raysed.data.sources import Hub, ending, find
from raysed.errors import UserError
from raysed.score.kinds import BLOCK_CELLS, EvaluationTask
from raysed.score.lexical import Vectors
from raysed.score.metrics import unit

_LANGUAGES = re.compile(r"(sentence|text|(?!id\t)[a-z]{2}([-_]\w+)?)(\t(?!id\b)[a-z]{2}([-_]\w+)?)+")
"""Columns that tell their languages, such as `de` and `pt-BR`; `id` names rows."""


class Translations(EvaluationTask):
    """Scores models on N rows with a text in each language: the first language with each other one, in both directions.

    A text finds its translation if that is the nearest by cosine of all texts of the other language; equal texts are
    one.
    """

    kind, main, measure = "translations", "translations", "accuracy of the nearest text in the other language"

    def __init__(self, name: str, languages: Sequence[str], rows: Sequence[tuple[str, ...]], left_out: int = 0):
        self.name, self.languages, self.rows = name, languages, rows
        self.size = f"{len(rows):,} rows, in {', '.join(languages)} ({left_out:,} more lack a text)"
        self.sentences = list(dict.fromkeys(text for row in rows for text in row))
        place = {sentence: i for i, sentence in enumerate(self.sentences)}
        first_N, *others = np.array([[place[text] for text in row] for row in rows]).T
        self._ways = [way for other_N in others for way in ((first_N, other_N), (other_N, first_N))]

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        """Return whether columns are named by languages and nothing else; the first may be `sentence` or `text`."""
        if ending(config.source) not in (".csv", ".tsv", ".jsonl", ".parquet") or config.columns.score:
            return False
        return bool(_LANGUAGES.fullmatch("\t".join(_columns(config, setting))))

    @classmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> "Translations":
        """Read a file with a column for each language; rows that lack a text are left out and counted."""
        setting = f"evaluation.tasks.{name}"
        names = _columns(config, setting)
        wanted = {(name,): [(name,)] for name in names}
        table = read_source(config, Schema(setting, "translations", wanted, ", ".join(names), text=names), split)
        rows = [row for row in zip(*map(table.texts, names)) if all(map(str.strip, row))]
        if len(names) < 2 or len(rows) < 2:
            raise UserError("translations need a file with a column per language, and two rows or more", setting)
        return cls(name, names, rows, len(table) - len(rows))

    def content(self) -> list[Any]:
        return [self.kind, self.languages, self.rows]

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return whether each row's translation is found, in each direction, bool [N, directions]."""
        return self._outcome(unit(np.asarray(x_UD, np.float32)))

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        return self._outcome(vectors(self.sentences))

    def _outcome(self, x_UD: Any) -> np.ndarray:
        found = []
        for a_N, b_N in self._ways:
            blocks = np.array_split(a_N, 1 + len(a_N) ** 2 // BLOCK_CELLS)
            scores = (x_UD[block] @ x_UD[b_N].T for block in blocks)
            # Rounded: equal word counts must tie.
            near = [(s.toarray().round(12) if issparse(s) else s).argmax(1) for s in scores]
            found.append(b_N[np.concatenate(near)] == b_N)
        return np.stack(found, 1)

    def metrics(self, outcome: np.ndarray) -> dict[str, Any]:
        """Return the accuracy x100, also of each direction, and the number of rows."""
        first, *others = self.languages
        names = [name for other in others for name in (f"{first} to {other}", f"{other} to {first}")]
        directions = dict(zip(names, (100 * outcome.mean(0)).tolist()))
        return {"translations": 100 * float(outcome.mean()), "directions": directions, "rows": len(outcome)}

    def strata(self) -> list[tuple[slice, float]]:
        return [(slice(0, len(self.rows)), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return the accuracy x100 of M models, [M, R]."""
        return 100 * np.stack([outcome.mean(1) for outcome in outcomes]) @ counts_PR / counts_PR.sum(0)


def _columns(config: TaskConfig, setting: str) -> list[str]:
    """Return the names of a file's columns but `split`; of a dataset of the hub, none."""
    (source,) = find(config.source, setting, "a task", Hub(config.source, None, ""))
    return [] if isinstance(source, Hub) else [name for name in column_names(source) if name != "split"]
