"""Says where a run is: its stage, what is done, how long the stage will take, the last checkpoints.

    python jobs/status.py quickstart
    python jobs/status.py NAME --storage s3://bucket/runs

It reads the run directory only, so it works from any machine that reaches the storage, also after the job is gone.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("run", help="name of the run")
    result.add_argument("--storage", default="runs", help="directory or URI under which run directories lie")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Prints what the run directory tells."""
    from raysed.status import describe
    from raysed.storage import Storage

    print(*describe(Storage(arguments.storage, arguments.run)), sep="\n")


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
