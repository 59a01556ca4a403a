"""Trains an ensemble, distils its mean into one model, calibrates it, and reports what helped.

On this machine:  python jobs/ensemble_then_distill.py
On a cluster:     ray job submit --working-dir . -- python jobs/ensemble_then_distill.py --storage s3://bucket/runs

The same command continues a run that was stopped, and does nothing for one that is complete.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.run import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
