"""Distil one or several models into one small model; `raysed distill` as a script.

python jobs/distill.py --teachers A B C --corpus tickets.txt
ray job submit --working-dir . -- python jobs/distill.py --teachers A B --corpus s3://bucket/text --storage s3://bucket/runs
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.distill import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
