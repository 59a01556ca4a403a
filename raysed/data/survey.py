"""What a user's own files hold: columns, counts, lengths, samples, and what in them will hurt."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raysed.config import CorpusConfig, TaskConfig
from raysed.data.corpus import BUNDLED, COLUMNS, CorpusReport, Source, find_sources, sentence_chunks
from raysed.data.graded import FEWEST, gold_of, read_graded
from raysed.data.rows import Schema, column_names, rows
from raysed.data.sources import File
from raysed.errors import UserError

FIRST_ROWS = 200_000
SAMPLE = 2_000
"""The sample has this many sentences, or up to twice as many."""
FEW_SENTENCES, FEW_PAIRS = 1_000, 100
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 5.0), (0.0, 10.0), (0.0, 100.0))
"""Usual ranges of scores; the first that holds all scores is taken."""
_IDENTIFIER = re.compile(r"[!-~]*[\d_][!-~]*")
"""A digit and no blank: an id, a date, a number. Text of languages without blanks is not ASCII."""


@dataclass(frozen=True)
class Survey:
    """What a corpus holds, or its first rows where it is not `complete`.

    Attributes:
        size: of all files in bytes; None if something is no file.
        columns: of the first file that has some.
        column: the setting `corpus.column`, which may be guessed; None if its default finds the sentences.
        taken: the column that was read; None if each line is a sentence.
        tabbed: whether most lines without columns hold tabs.
        lengths_N: characters of the sentences that were read.
        sample: some of these sentences, evenly spread.
    """

    source: Sequence[str]
    files: Sequence[str]
    size: int | None
    columns: Sequence[str]
    column: str | None
    guessed: bool
    taken: str | None
    tabbed: bool
    report: CorpusReport
    complete: bool
    lengths_N: np.ndarray = field(repr=False)
    sample: Sequence[str] = field(repr=False)

    def warnings(self) -> list[str]:
        """Return a sentence for everything that will hurt."""
        report, found = self.report, []
        if report.usable < FEW_SENTENCES:
            learns = f"with less than {FEW_SENTENCES:,} a model learns these by heart and little about others"
            found.append(f"{report.usable:,} sentences are few; {learns}")
        if report.too_long * 100 > report.lines:
            too_long = f"{report.too_long:,} of {report.lines:,} rows are too long for sentences and are left out"
            found.append(f"{too_long}; cut text into sentences, one per row")
        if report.duplicates * 2 > report.lines:
            found.append(f"{report.duplicates:,} of {report.lines:,} rows are duplicates, which a run leaves out")
        if sum(map(bool, map(_IDENTIFIER.fullmatch, self.sample))) * 2 > len(self.sample):
            where = f"column {self.taken!r}" if self.taken else "this text"
            found.append(f"{where} looks like ids or numbers instead of sentences; name another column with --column")
        if self.tabbed:
            found.append("most lines hold tabs; if these separate columns, let the file's name end in .tsv")
        return found


def survey_corpus(source: Sequence[str], column: str | None = None, first: int = FIRST_ROWS) -> Survey:
    """Read a corpus as a run does, or its first rows; without `column`, guess one if none is `sentence` or `text`."""
    found = find_sources(CorpusConfig(source=list(source)))
    columns, taken = [], column
    if table := next((file for file in found if isinstance(file, File) and file.ending != ".txt"), None):
        columns = column_names(table)
        known = {name.strip().lower(): name for name in columns}
        taken = column or next((known[name] for name in COLUMNS if name in known), None)
        taken = taken or _longest_text(table, columns)
    setting = taken if column or (taken and taken.strip().lower() not in COLUMNS) else None
    config, report, sentences = CorpusConfig(source=list(source), column=setting), CorpusReport(), []
    complete = True
    try:
        for _, chunk in sentence_chunks(config, 0, report):
            sentences += chunk
            if report.lines >= first:
                complete = False
                break
    except UserError:
        if not report.too_long:
            raise
        raise UserError(
            f"no row of {source[0]}{f' and {len(source) - 1} more' if source[1:] else ''} is a sentence: "
            f"{report.too_long:,} of {report.lines:,} are longer than {config.max_characters:,} characters; cut the "
            "text into sentences, one per row"
        ) from None
    sizes = [file.size if isinstance(file, File) and file.name != BUNDLED else None for file in found]
    return Survey(
        source=source,
        files=[file.name for file in found],
        size=None if None in sizes else sum(sizes),
        columns=columns,
        column=setting,
        guessed=setting is not None and column is None,
        taken=taken,
        tabbed=taken is None and _is_tabbed(found),
        report=report,
        complete=complete,
        lengths_N=np.array([len(sentence) for sentence in sentences]),
        sample=sentences[:: max(1, len(sentences) // SAMPLE)],
    )


def _longest_text(file: File, names: Sequence[str]) -> str:
    """The column whose first values are the longest texts."""
    block = next(rows(file, Schema("corpus.source", "sentences", {}, "", {name: name for name in names})), None)
    lengths = {
        name: np.mean([len(value) for value in values if isinstance(value, str)] or [0])
        for name, values in (block.columns if block else {}).items()
        if not all(isinstance(value, str) and _IDENTIFIER.fullmatch(value) for value in values if value)
    }
    longest = max(lengths, key=lengths.get, default=None)
    if longest is None or not lengths[longest]:
        raise UserError(f"{file.name} has no column of text: it has {', '.join(names) or 'none'}; name other files")
    return longest


def _is_tabbed(sources: Sequence[Source]) -> bool:
    file = next((file for file in sources if isinstance(file, File)), None)
    block = next(rows(file, Schema("", "", {("line",): [("line",)]}, "", bare=("line",))), None) if file else None
    lines = [line for line in block.columns["line"] if line] if block else []
    return sum("\t" in line for line in lines) * 2 > len(lines)


@dataclass(frozen=True)
class PairsSurvey:
    """What a file of graded pairs holds: those with a score, those left out because it is blank, and repeated ones."""

    source: str
    pairs: int
    blank: int
    lowest: float
    highest: float
    duplicates: int
    subsets: int = 1

    @property
    def usable(self) -> bool:
        """Whether a correlation with these scores is defined."""
        return self.pairs >= FEWEST and self.lowest < self.highest

    @property
    def score_range(self) -> tuple[float, float]:
        """The range that the scores seem to be meant to lie in."""
        fitting = (r for r in _RANGES if r[0] <= self.lowest and self.highest <= r[1])
        return next(fitting, (float(np.floor(self.lowest)), float(np.ceil(self.highest))))

    def warnings(self) -> list[str]:
        """Return a sentence for everything that will hurt."""
        if not self.usable:
            problem = f"are only {self.pairs} with a score"
            if self.pairs >= FEWEST:
                problem = f"have the one score {self.lowest:g}"
            return [f"the pairs of {self.source} {problem}, so no correlation is defined; they are left out"]
        found = []
        if self.pairs < FEW_PAIRS:
            found.append(f"{self.pairs} pairs of {self.source} are few; differences between models will be mostly luck")
        if self.duplicates * 20 > self.pairs:
            repeated = f"{self.duplicates:,} of the {self.pairs:,} pairs of {self.source}"
            found.append(f"{repeated} repeat others, and count again")
        return found


def survey_pairs(source: str) -> PairsSurvey:
    """Read graded pairs."""
    task = read_graded("pairs", TaskConfig(source=source, score_range=None), "--pairs")
    gold_P = gold_of(task)
    pairs = [frozenset(pair) for first, second, _ in task.subsets.values() for pair in zip(first, second)]
    lowest, highest, duplicates = float(gold_P.min()), float(gold_P.max()), len(pairs) - len(set(pairs))
    return PairsSurvey(source, len(pairs), task.dropped, lowest, highest, duplicates, len(task.subsets))
