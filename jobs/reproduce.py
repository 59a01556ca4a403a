r"""Run a table of the SED, BERT-flow or BSL paper; print our numbers beside the published ones.

All tables:       python jobs/reproduce.py --list
On this machine:  python jobs/reproduce.py sed-table-1 --scale small --data ../shared/data
On a cluster:     ray job submit --working-dir . -- python jobs/reproduce.py sed-table-1 --data /mnt/SentEval/data \
                      --storage /mnt/runs --output /mnt/tables

The same command continues a stopped table.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from papers.data import Request
from papers.published import list_tables
from raysed.cli import main_of
from raysed.errors import UserError
from raysed.store.storage import check_stays


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("table", nargs="?", help="a name from --list")
    result.add_argument("--list", action="store_true", help="list all tables and exit")
    result.add_argument("--scale", choices=("paper", "small"), default="paper", help="small: only check that rows work")
    result.add_argument("--data", type=Path, default=Path("data"), help="directory of STS, NLI and SentEval files")
    result.add_argument("--encoder", help="encoder for --scale small, as encoder.path; default: bundled:encoder")
    result.add_argument(
        "--output", type=Path, default=Path("runs/tables"), help="write finished tables to this directory"
    )
    result.add_argument("--storage", help="directory or URI that holds the run directories")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting of all runs"
    )
    return result


def job(arguments: argparse.Namespace) -> None:
    """List the tables, or run one."""
    options = vars(arguments)
    tables = list_tables()
    if options.pop("list"):
        width = max(map(len, tables))
        print("\n".join(f"{name:{width}}  {title}" for name, title in tables.items()))
        return
    if arguments.table is None:
        raise UserError(f"name a table; the tables are {', '.join(tables)}")
    if arguments.encoder and arguments.scale == "paper":
        raise UserError("--encoder is for --scale small; with --scale paper, use --set encoder.path=…")
    check_stays(str(arguments.output), "output")
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {arguments.output}: cannot create this directory: {error.strerror}") from None
    request = Request(**{**options, "overrides": tuple(arguments.overrides)})

    from papers.plan import make_plan
    from papers.run import reproduce

    reproduce(request, make_plan(request))


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
