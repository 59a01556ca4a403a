r"""`raysed reproduce` as a script: runs a table of a paper and prints ours beside the published numbers.

On this machine:  python jobs/reproduce.py sed-table-1 --scale small --data ../shared/data
On a cluster:     ray job submit --working-dir . -- python jobs/reproduce.py sed-table-1 --data /mnt/SentEval/data \
                      --storage /mnt/runs --output /mnt/tables
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.reproduce import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
