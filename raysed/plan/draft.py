"""Draft a first configuration for a user's own files: survey them, then choose recipes and every number.

Files are read as in a run. Of the encoder, only the configuration and the tokenizer are loaded.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raysed.config import Config, CorpusConfig, EncoderConfig, make_config
from raysed.data.corpus import CorpusReport, find_sources, sentence_chunks
from raysed.data.graded import StsTask
from raysed.data.rows import column_names
from raysed.data.sources import File
from raysed.model.shape import shape_of
from raysed.plan.consistency import check_settings
from raysed.plan.lengths import Lengths, fit_lengths
from raysed.score.tasks import task_name
from raysed.store.text import render

FIRST_ROWS = 200_000
SAMPLE = 2_000
"""Least size of the sample of a larger corpus; it has at most twice as many sentences."""
MOST_SENTENCES = 100_000
"""Draw this many from a larger corpus: a first run should take hours, not days."""
FEW_SENTENCES, FEW_PAIRS = 1_000, 100
_UPDATES = 800
"""Steps of a learner; three layers of MiniLM then score 97 % of their teacher (docs/results.md#one-teacher)."""
_MAX_EPOCHS = 20
_CT_STEPS = (200, 1000)
_FLOW_UPDATES = 300


@dataclass(frozen=True)
class Survey:
    """The content of a corpus, or of its first rows unless `complete`.

    Attributes:
        columns: of the first file that has some.
        sample: some sentences, evenly spaced.
    """

    files: Sequence[str]
    columns: Sequence[str]
    report: CorpusReport
    complete: bool
    sample: Sequence[str] = field(repr=False)


@dataclass(frozen=True)
class Draft:
    """A configuration, also as commented YAML (`text`), and how much it reads of the sample's texts."""

    text: str
    config: Config
    lengths: Lengths


def survey_corpus(config: CorpusConfig, first: int = FIRST_ROWS) -> Survey:
    """Read a corpus as a run does, but stop after about `first` rows."""
    found, report, sentences, complete = find_sources(config), CorpusReport(), [], True
    table = next((source for source in found if isinstance(source, File) and source.ending != ".txt"), None)
    for _, chunk in sentence_chunks(config, 0, report):
        sentences += chunk
        if report.lines >= first:
            complete = False
            break
    files, columns = [source.name for source in found], column_names(table) if table else []
    return Survey(files, columns, report, complete, sentences[:: max(1, len(sentences) // SAMPLE)])


def draft(
    survey: Survey,
    corpus: CorpusConfig,
    pairs: Mapping[str, StsTask],
    teachers: Sequence[str],
    encoder: EncoderConfig,
    output: str,
) -> Draft:
    """Write a configuration for a surveyed corpus.

    Args:
        pairs: graded pairs by source; the first chooses, the report scores the others.
        teachers: if empty, train members.
        output: name of the file, for its comments.
    """
    lengths = fit_lengths(survey.sample, survey.report.split > 0, corpus, encoder, teachers)
    # The survey saw this many, so the draw cannot fail, whatever the rest holds.
    usable = survey.report.usable
    drawn = min(MOST_SENTENCES, usable) if usable > MOST_SENTENCES or not survey.complete else None
    count = drawn or usable
    batch = 16 if count < 2000 else 32 if count < 8000 or not teachers else 64
    epochs, updates = _epochs(count // batch, _UPDATES)
    every = min(200, max(10, 10 * round(updates / 80)))
    fitted = min(count, 10_000)
    flow_epochs, flow_updates = _epochs(fitted // 64, _FLOW_UPDATES)  # of 32 pairs of sentences
    first = Path(re.split(r"[*?[]", corpus.source[0])[0].rstrip("/"))  # a file, directory or dataset
    is_bundled = encoder.path == EncoderConfig().path
    tasks: dict[str, tuple[str, StsTask]] = {}
    for source, task in pairs.items():
        tasks[task_name(source, tasks)] = source, task
    text = render(
        "config.yaml",
        run=re.sub(r"[^A-Za-z0-9._-]+", "-", first.name.split(".")[0]).strip("._-")[:100] or "my-text",
        output=output,
        survey=survey,
        corpus=corpus,
        drawn=drawn,
        teachers=teachers,
        encoder=encoder,
        is_bundled=is_bundled,
        layers=1 if is_bundled else min(2, shape_of(encoder).layers),
        lengths=lengths,
        tasks=tasks,
        sed={"batch": batch, "epochs": epochs, "updates": updates, "every": every},
        # One pass over the corpus, within bounds; an update draws 30 sentences: two, each with 14 negatives.
        ct_steps=min(_CT_STEPS[1], max(_CT_STEPS[0], 50 * round(count / 30 / 50))),
        flow={"fitted": fitted, "epochs": flow_epochs, "updates": flow_updates},
        yaml=_on_one_line,
    )
    config = make_config(yaml.safe_load(text))
    check_settings(config)
    return Draft(text, config, lengths)


def warnings(survey: Survey, pairs: Mapping[str, StsTask]) -> Iterator[str]:
    """Yield a sentence about each foreseeable problem."""
    report = survey.report
    if report.usable < FEW_SENTENCES:
        learns = f"with fewer than {FEW_SENTENCES:,}, a model memorises them and learns little about others"
        yield f"{report.usable:,} sentences are few; {learns}"
    if report.duplicates * 2 > report.lines:
        yield f"{report.duplicates:,} of {report.lines:,} rows are duplicates; a run leaves them out"
    for source, task in pairs.items():
        if task.pairs < FEW_PAIRS:
            yield f"{task.pairs} pairs of {source} are few; differences between models will be mostly chance"


def _epochs(per_epoch: int, wanted: int) -> tuple[int, int]:
    """Return the epochs for about `wanted` updates, and the updates they make."""
    per_epoch = max(1, per_epoch)
    epochs = min(_MAX_EPOCHS, max(1, round(wanted / per_epoch)))
    return epochs, epochs * per_epoch


def _on_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()
