"""Show a run's progress: its stage, finished parts, the time left in the stage, and the last checkpoints.

    raysed status                      all runs: their state and its age
    raysed status quickstart
    watch raysed status quickstart     again every two seconds, until Ctrl-C
    raysed status NAME --storage s3://bucket/runs
    raysed status NAME --json          for programs; docs/files.md has the keys

It reads only the run directory, so it works on any machine that reaches the storage, even after the job has ended.
The exit code is the run's state: 0 complete, 1 failed, 5 running, 4 stopped or gone; 2: no such run.
"""

import argparse

from raysed.commands import parser_of
from raysed.errors import UserError

AFTER_STOP = "The run itself continues."


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--storage")
    result.add_argument("run", nargs="?", help="name of the run; default: list all runs, with exit code 0")
    result.add_argument("--json", action="store_true", help="print the state of one run as JSON")
    result.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    return result


def job(arguments: argparse.Namespace) -> int:
    """Print the state of one or all runs; return the exit code of the run's state."""
    from raysed.data.sources import readable
    from raysed.store.status import describe, describe_all
    from raysed.store.storage import Storage

    if arguments.watch:
        raise UserError("--watch is no option: follow a run with watch raysed status NAME, or in TensorBoard")
    if arguments.run is None:
        if arguments.json:
            raise UserError("--json is for one run; name it: raysed status NAME --json")
        print(*describe_all(arguments.storage), sep="\n")
        return 0
    storage = Storage(arguments.storage, arguments.run)
    if not storage.is_local:
        storage.check_access()
    with readable(str(storage)):
        lines, code = describe(storage, arguments.json)  # raises for an unknown run
    print(*lines, sep="\n")
    return code
