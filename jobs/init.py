"""Survey your own text and write a first config for it; `raysed init` as a script.

python jobs/init.py tickets.txt --teachers A B --pairs dev.csv
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.init import AFTER_STOP, job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser(), AFTER_STOP))
