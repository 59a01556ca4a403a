"""Show the progress of runs; `raysed status` as a script.

python jobs/status.py quickstart
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.status import AFTER_STOP, job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser(), AFTER_STOP))
