"""Print the scores of complete runs as one table: mean ± standard deviation over the runs, for example over seeds.

    raysed table quickstart
    raysed table mine-0 mine-1 mine-2 --format latex --columns sts12 sts-b mean --rows ct ct-sed ct-sed-flow

A line is a group of models of one recipe, of which each run contributes the mean; a column is a task, or the mean over
the tasks in the headline. The runs need the same tasks and recipes. It reads only their report.json and status.json.
"""

import argparse

from raysed.commands import add_names, parser_of

AFTER_STOP = "Run the same command again to start over."


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--storage")
    result.add_argument("runs", nargs="+", metavar="RUN", help="names of runs")
    result.add_argument("--format", choices=("markdown", "latex"), default="markdown", help="default: markdown")
    add_names(result, "--columns", "TASK", "tasks, or mean; default: those in the headline, and their mean")
    add_names(result, "--rows", "RECIPE", "recipes, or baselines such as tf-idf; default: all")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Print the table."""
    from raysed.data.sources import readable
    from raysed.report.runs import table_of_runs
    from raysed.store.storage import Storage

    runs = [Storage(arguments.storage, run) for run in arguments.runs]
    with readable(arguments.storage):
        table, note = table_of_runs(runs, arguments.columns, arguments.rows)
    print(f"{table.markdown()}\n\n{note}" if arguments.format == "markdown" else f"% {note}\n{table.latex()}")
