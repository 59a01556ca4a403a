"""Compare models as teachers, alone and together; `raysed teachers` as a script.

python jobs/teachers.py A B --task pairs.tsv --task labelled.tsv --dev pairs-dev.tsv
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.teachers import AFTER_STOP, job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser(), AFTER_STOP))
