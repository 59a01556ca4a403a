"""Looks at your own text and writes a first config for it, with a comment on every setting.

    raysed init tickets.txt
    raysed init data/tickets/*.jsonl --teachers A B --pairs dev.csv test.csv --encoder MODEL --output tickets.yaml

It says what the files hold and what in them will hurt, trains nothing, and ends with the commands to type next. Where
no column is called sentence or text, the one with the longest text is taken. Of much text only the first 200,000 rows
are read.
"""

import argparse
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raysed.cli import check_output, write_output
from raysed.commands import parser_of
from raysed.errors import UserError

if TYPE_CHECKING:
    from raysed.data.survey import Survey
    from raysed.plan.draft import Draft, EncoderFacts

AFTER_STOP = "nothing was written"
_SAMPLES = 3
_SHOWN_CHARACTERS = 90


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    result = parser_of(__doc__)
    result.add_argument("corpus", nargs="+", metavar="CORPUS", help="files, directories, patterns or URIs of sentences")
    result.add_argument("--column", help="column that holds the sentences")
    result.add_argument("--teachers", nargs="+", default=[], metavar="MODEL", help="models that a learner learns from")
    pairs = "pairs of sentences that people have graded; the first file chooses models, others are reported"
    result.add_argument("--pairs", nargs="+", default=[], metavar="FILE", help=pairs)
    encoder = "what training starts from; half of the first teacher's layers without it"
    result.add_argument("--encoder", metavar="MODEL", help=encoder)
    result.add_argument("--output", type=Path, default=Path("raysed.yaml"), metavar="FILE", help="the config to write")
    result.add_argument("--force", action="store_true", help="replace the config if it is there")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Survey the files, write the config, and describe both on the terminal."""
    output = arguments.output
    check_output(output)
    if output.exists() and not arguments.force:
        raise UserError(f"{output} is there already; name another file with --output, or replace it with --force")

    from raysed.data.survey import survey_corpus, survey_pairs

    survey = survey_corpus(arguments.corpus, arguments.column)
    pairs = [survey_pairs(source) for source in arguments.pairs]
    _show(_of_corpus(survey))
    for found in pairs:
        scores = f"{found.pairs:,} with scores from {found.lowest:g} to {found.highest:g}, {found.blank:,} without"
        _show([("pairs", f"{found.source}: {scores}, {found.duplicates:,} duplicates")])

    from raysed.model.teacher import default_learner
    from raysed.plan.draft import draft, look_at

    settings = {"path": arguments.encoder} if arguments.encoder else default_learner(arguments.teachers)
    encoder, keep = settings["path"], settings.get("keep_layers")
    facts, problem = None, ""
    try:
        facts = look_at(encoder, keep, survey.sample)
    except UserError as error:  # such as a hub that cannot be reached now
        problem = str(error)
    usable = [found for found in pairs if found.usable]
    written = draft(survey, usable, arguments.teachers, encoder, keep, facts, str(output))
    _show(_of_encoder(encoder, facts, problem, written))
    _show(("warning", text) for found in [survey, *pairs] for text in found.warnings())
    write_output(output, written.text)
    _show([("written", str(output))])
    command = f"raysed run --config {shlex.quote(str(output))}"
    print(f"\nnext:\n  {command} --plan\n  {command}")


def _show(lines: Iterable[tuple[str, str]]) -> None:
    for name, text in lines:
        print(f"{name:10} {text}", flush=True)


def _of_corpus(survey: "Survey") -> Iterator[tuple[str, str]]:
    import numpy as np

    from raysed.store.text import shortened, size

    names = survey.files[0] if len(survey.files) == 1 else f"{len(survey.files):,} files from {survey.files[0]} on"
    yield "corpus", names + (f", {size(survey.size)}" if survey.size else "")
    others = ", ".join(name for name in survey.columns if name != survey.taken)
    yield "column", (survey.taken or "none: a line is a sentence") + (f"; there are also {others}" if others else "")
    if survey.guessed:
        yield "", "none is called sentence or text, and this one has the longest text; --column names another"
    report = survey.report
    left_out = {"empty": report.empty, "too short": report.too_short, "too long": report.too_long}
    counts = "".join(f", {count:,} {what}" for what, count in left_out.items() if count)
    yield "rows", f"{report.lines:,}: {report.usable:,} usable, {report.duplicates:,} duplicates{counts}"
    if not survey.complete:
        yield "", "only these first rows were read"
    half, most, longest = np.quantile(survey.lengths_N, (0.5, 0.95, 1), method="higher").astype(int)
    yield "length", f"median {half:,} characters, 95 % up to {most:,}, longest {longest:,}"
    for place, text in enumerate(survey.sample[:: max(1, len(survey.sample) // _SAMPLES)][:_SAMPLES]):
        yield "" if place else "samples", shortened(text, _SHOWN_CHARACTERS)


def _of_encoder(name: str, facts: "EncoderFacts | None", problem: str, written: "Draft") -> Iterator[tuple[str, str]]:
    half, most, _, longest = written.lengths
    how = "" if facts else "roughly, by their characters: "
    yield "tokens", f"{how}median {half:,}, 95 % up to {most:,}, longest {longest:,}"
    if facts is None:
        yield "encoder", f"cannot be looked at: {problem}"
        return
    limit = f", at most {facts.limit} tokens" if facts.limit else ""
    yield "encoder", f"{name}: {facts.parameters / 1e6:.1f} million parameters, {facts.layers} layers{limit}"
    if name == "bundled:encoder":
        yield "", "small, and made for trying things out; name a real one with --encoder"
    if written.cut > 0.01 and facts.limit == written.config.encoder.max_length:
        yield "warning", f"{written.cut:.0%} of the sentences are longer than the encoder takes, and are cut"
