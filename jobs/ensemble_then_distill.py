"""Train an ensemble, distil and calibrate it, and report what helped; `raysed run` as a script.

python jobs/ensemble_then_distill.py
ray job submit --working-dir . -- python jobs/ensemble_then_distill.py --storage s3://bucket/runs
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.run import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
