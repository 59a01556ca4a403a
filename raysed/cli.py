"""What all jobs share: finding a config by name, and turning outcomes into sentences and exit codes."""

import argparse
import atexit
import gc
import signal
import sys
from collections.abc import Callable

from raysed import interrupts
from raysed.errors import RunFailed, UserError
from raysed.store.metrics import show_notes


def main_of(
    job: Callable[[argparse.Namespace], int | None],
    parser: argparse.ArgumentParser,
    after_stop: str = "the same command continues from here",
) -> int:
    """Runs a job.

    Args:
        job: takes the parsed arguments; may return an exit code.
        parser: of the command line.
        after_stop: what Ctrl-C has left behind, for the user.

    Returns:
        0 or the job's own code when it went well, 1 when the run failed, 2 for a user's mistake, 130 after Ctrl-C, 143
        after SIGTERM.
    """
    arguments = parser.parse_args()

    def last_words() -> None:
        print(f"\nstopped; {after_stop}", file=sys.stderr)

    interrupts.listen(last_words)
    show_notes()
    atexit.register(gc.freeze)  # or Python looks through all of torch for garbage before it ends, for a second or two
    try:
        with interrupts.errors_are_stops():
            return job(arguments) or 0
    except UserError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        interrupts.notice()
        last_words()
        return 128 + (interrupts.came() or signal.SIGINT)  # a library may have raised another interrupt since
    finally:
        interrupts.leave()


def _one_line(error: Exception) -> str:
    """Messages may quote a library's, which may have several."""
    return " ".join(str(error).split())
