"""Looks at your own text and writes a first config for it, with a comment on every setting.

    raysed init tickets.txt
    raysed init data/tickets/*.jsonl --teachers A B --pairs dev.csv test.csv --encoder MODEL --output tickets.yaml

It says what the files hold and what in them will hurt, trains nothing, and ends with the commands to type next. Where
no column is called sentence or text, the one with the longest text is taken. Of much text only the first 200,000 rows
are read.
"""

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysed.data.survey import PairsSurvey, Survey
    from raysed.plan.draft import Draft, EncoderFacts

AFTER_STOP = "nothing was written"
_SAMPLES = 3
_SHOWN = 90
"""Characters of a sample."""


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "corpus", nargs="+", metavar="CORPUS", help="files, directories, patterns or URIs of sentences without labels"
    )
    result.add_argument("--column", help="column that holds the sentences")
    result.add_argument("--teachers", nargs="+", default=[], metavar="MODEL", help="models that a learner learns from")
    result.add_argument(
        "--pairs",
        nargs="+",
        default=[],
        metavar="FILE",
        help="pairs of sentences that people have graded; the first file chooses models, others are reported",
    )
    result.add_argument(
        "--encoder", metavar="MODEL", help="what training starts from; half of the first teacher's layers without it"
    )
    result.add_argument("--output", type=Path, default=Path("raysed.yaml"), metavar="FILE", help="the config to write")
    result.add_argument("--force", action="store_true", help="replace the config if it is there")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Surveys the files, writes the config, and says both on the terminal."""
    from raysed.data.survey import survey_corpus, survey_pairs

    _check_output(arguments.output, arguments.force)
    survey = survey_corpus(arguments.corpus, arguments.column)
    pairs = [survey_pairs(source) for source in arguments.pairs]
    _show(_of_corpus(survey))
    _show(line for found in pairs for line in _of_pairs(found))

    from raysed.plan.draft import draft

    encoder, keep = _encoder(arguments)
    facts, problem = _look_at(encoder, keep, survey)
    usable = [found for found in pairs if found.usable]
    written = draft(survey, usable, arguments.teachers, encoder, keep, facts, str(arguments.output))
    _show(_of_encoder(encoder, facts, problem, written))
    _show(("warning", text) for text in [*survey.warnings(), *(w for found in pairs for w in found.warnings())])
    _show(_of_time(survey, facts, written, bool(arguments.teachers)))
    arguments.output.write_text(written.text, encoding="utf-8")
    _show([("written", str(arguments.output))])
    command = f"raysed run --config {shlex.quote(str(arguments.output))}"
    print(f"\nnext:\n  {command} --plan\n  {command}")


def _check_output(path: Path, force: bool) -> None:
    from raysed.errors import UserError

    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--output {path}: no file can be written there; name one in a directory that exists")
    if path.exists() and not force:
        raise UserError(f"{path} is there already; name another file with --output, or replace it with --force")


def _encoder(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """`encoder.path` and `encoder.keep_layers`."""
    from raysed.model.teacher import default_learner

    settings = {"path": arguments.encoder} if arguments.encoder else default_learner(arguments.teachers)
    return settings["path"], settings.get("keep_layers")


def _look_at(encoder: str, keep: str | None, survey: "Survey") -> tuple["EncoderFacts | None", str]:
    """What the encoder is like, or why that cannot be said."""
    from raysed.errors import UserError
    from raysed.plan.guess import look_at

    try:
        return look_at(encoder, keep, survey.sample), ""
    except UserError as error:
        return None, str(error)


# What is said -----------------------------------------------------------------------------------------------


def _show(lines: Iterable[tuple[str, str]]) -> None:
    for name, text in lines:
        print(f"{name:10} {text}", flush=True)


def _of_corpus(survey: "Survey") -> Iterator[tuple[str, str]]:
    from raysed.store.text import shortened

    names = survey.files[0] if len(survey.files) == 1 else f"{len(survey.files):,} files from {survey.files[0]} on"
    yield "corpus", names + (f", {_size(survey.size)}" if survey.size is not None else "")
    yield from _column(survey)
    report = survey.report
    others = {"empty": report.empty, "too short": report.too_short, "too long": report.too_long}
    left_out = "".join(f", {count:,} {what}" for what, count in others.items() if count)
    yield "rows", f"{report.lines:,}: {report.usable:,} usable, {report.duplicates:,} duplicates{left_out}"
    if not survey.complete:
        yield "", f"only these first rows were read; in all there may be {survey.sentences:,} sentences"
    half, most, longest = map(survey.characters, (0.5, 0.95, 1))
    yield "length", f"median {half:,} characters, 95 % up to {most:,}, longest {longest:,}"
    shown = survey.sample[:: max(1, len(survey.sample) // _SAMPLES)][:_SAMPLES]
    for place, text in enumerate(shown):
        yield "" if place else "samples", shortened(text, _SHOWN)


def _column(survey: "Survey") -> Iterator[tuple[str, str]]:
    if survey.taken is None:
        yield "column", "none: a line is a sentence"
        return
    others = ", ".join(name for name in survey.columns if name != survey.taken)
    yield "column", survey.taken + (f"; there are also {others}" if others else "")
    if survey.guessed:
        yield "", "none is called sentence or text, and this one has the longest text; --column names another"


def _size(count: int) -> str:
    from raysed.store.text import size

    return size(count) if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _of_pairs(found: "PairsSurvey") -> Iterator[tuple[str, str]]:
    scores = f"scores from {found.lowest:g} to {found.highest:g}"
    yield (
        "pairs",
        f"{found.source}: {found.pairs:,} with {scores}, {found.blank:,} without, {found.duplicates:,} duplicates",
    )


def _of_encoder(name: str, facts: "EncoderFacts | None", problem: str, written: "Draft") -> Iterator[tuple[str, str]]:
    half, most, _, longest = written.lengths
    roughly = "" if facts else "roughly, by their characters: "
    yield "tokens", f"{roughly}median {half:,}, 95 % up to {most:,}, longest {longest:,}"
    if facts is None:
        yield "encoder", f"cannot be looked at: {problem}"
        return
    limit = f", at most {facts.limit} tokens" if facts.limit else ""
    yield "encoder", f"{name}: {facts.parameters / 1e6:.1f} million parameters, {facts.layers} layers{limit}"
    if name == "bundled:encoder":
        yield "", "small, and made for trying things out; name a real one with --encoder"
    if written.cut > 0.01 and facts.limit == written.config.encoder.max_length:
        yield "warning", f"{written.cut:.0%} of the sentences are longer than the encoder takes, and are cut"


def _of_time(
    survey: "Survey", facts: "EncoderFacts | None", written: "Draft", has_teachers: bool
) -> Iterator[tuple[str, str]]:
    """How long the trainings may take, where anything can be said about it."""
    if facts is None:
        yield "time", "cannot be guessed without a look at the encoder"
        return
    from raysed.errors import UserError
    from raysed.plan.guess import cpus_here, training_seconds

    try:
        seconds = training_seconds(written.config, survey.sentences, float(facts.tokens_N.mean()))
    except UserError as error:
        yield "time", f"cannot be guessed: {error}"
        return
    others = "the teachers' part and scoring" if has_teachers else "scoring and calibrations"
    yield "time", f"a guess: {_roughly(seconds)} of training on the {cpus_here()} CPUs here, without {others}"


def _roughly(seconds: float) -> str:
    """No more digits than a guess deserves."""
    minutes = seconds / 60
    if minutes < 10:
        return f"{max(1, round(minutes))} min"
    return f"{5 * round(minutes / 5)} min" if minutes < 100 else f"{round(minutes / 60)} hours"
