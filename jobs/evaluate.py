"""Compare models side by side; `raysed evaluate` as a script.

python jobs/evaluate.py --model runs/quickstart/model --model bundled:encoder
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.evaluate import AFTER_STOP, job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser(), AFTER_STOP))
