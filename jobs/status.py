"""Says where a run is: its stage, what is done, how long the stage will take, the last checkpoints.

    python jobs/status.py                          all runs: their state and its age
    python jobs/status.py quickstart
    python jobs/status.py NAME --storage s3://bucket/runs

It reads the run directory only, so it works from any machine that reaches the storage, also after the job is gone.
The exit code is the run's state: 0 complete, 1 failed, 3 running, 4 stopped or gone; 2: there is no such run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.status import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
