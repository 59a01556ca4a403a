"""Survey your own text and write a first config for it, with a comment on every setting.

    raysed init --corpus tickets.txt
    raysed init --corpus data/tickets/*.jsonl --teachers A B --dev dev.csv --task test.csv --output tickets.yaml

It describes the files, warns of problems, and prints the commands to run next. It trains nothing, and reads at most
about 200,000 rows.
"""

import argparse
import shlex
from pathlib import Path

from raysed.cli import check_output, write_output
from raysed.commands import add_names, add_tasks, parser_of, refuse_renamed
from raysed.errors import UserError
from raysed.store.text import printable, shortened

AFTER_STOP = "raysed wrote nothing."
_SAMPLES = 3
_SHOWN_CHARACTERS = 90


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__)
    add_names(result, "--corpus", "SOURCE", "files, directories, patterns or URIs of sentences", required=True)
    result.add_argument("--column", help="read sentences from this column; default: sentence or text")
    add_names(result, "--teachers", "MODEL", "distil these models")
    result.add_argument("--dev", metavar="TASK", help="choose models on these graded pairs")
    add_tasks(result, "report these graded pairs, too")
    refuse_renamed(result, {"SOURCE": "--corpus", "--pairs": "--dev (the first file) and --task (each other)"})
    encoder = "start training from this model; default: half of the first teacher's layers"
    result.add_argument("--encoder", metavar="MODEL", help=encoder)
    result.add_argument(
        "--output",
        type=Path,
        default=Path("raysed.yaml"),
        metavar="FILE",
        help="write the config here; default: raysed.yaml",
    )
    result.add_argument("--force", action="store_true", help="overwrite an existing config")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Survey the files, write the config, and describe both on the terminal."""
    output = arguments.output
    check_output(output)
    if output.exists() and not arguments.force:
        raise UserError(f"{output} already exists; name another file with --output, or overwrite it with --force")

    from raysed.config import TaskConfig, make_config
    from raysed.data.graded import gold_of, load_task
    from raysed.model.teacher import default_learner
    from raysed.plan.draft import draft, survey_corpus, warnings
    from raysed.plan.lengths import in_passages

    encoder = {"path": arguments.encoder} if arguments.encoder else default_learner(arguments.teachers)
    corpus = {"source": arguments.corpus, "column": arguments.column}
    config = make_config({"corpus": corpus, "encoder": {**encoder, "pool_layers": 1}})
    survey = survey_corpus(in_passages(config.corpus))
    report, files = survey.report, survey.files
    _show("corpus", files[0] if len(files) == 1 else f"{len(files):,} files, starting with {files[0]}")
    _show("columns", ", ".join(survey.columns) or "none: each line is a sentence")
    left_out = {"empty": report.empty, "too short": report.too_short, "too long": report.too_long}
    counts = "".join(f", {count:,} {what}" for what, count in left_out.items() if count)
    note = "" if survey.complete else "; only these first rows were read"
    _show("rows", f"{report.lines:,}: {report.usable:,} usable, {report.duplicates:,} duplicates{counts}{note}")
    for place, sentence in enumerate(survey.sample[:: max(1, len(survey.sample) // _SAMPLES)][:_SAMPLES]):
        _show("" if place else "samples", shortened(sentence, _SHOWN_CHARACTERS))
    pairs = {}
    options = dict.fromkeys(arguments.tasks, "--task")
    if arguments.dev:
        options = {arguments.dev: "--dev", **options}
    for source, option in options.items():
        task = pairs[source] = load_task(source, TaskConfig(source=source, score_range=None), option)
        gold_P = gold_of(task)
        scores = f"{task.pairs:,} with scores from {gold_P.min():g} to {gold_P.max():g}, {task.dropped:,} without"
        _show("pairs", f"{source}: {scores}")

    result = draft(survey, config.corpus, pairs, bool(arguments.dev), arguments.teachers, config.encoder, str(output))
    _show("tokens", str(result.lengths))
    _show("encoder", config.encoder.path)
    if not (arguments.encoder or arguments.teachers):
        _show("", "a small model for trying things out; name a larger one with --encoder")
    for text in warnings(survey, pairs):
        _show("warning", text)
    write_output(output, result.text)
    _show("written", str(output))
    command = f"raysed run --config {shlex.quote(str(output))}"
    print(f"\nnext:\n  {command} --plan\n  {command}")


def _show(name: str, text: str) -> None:
    print(f"{name:10} {printable(text)}", flush=True)
