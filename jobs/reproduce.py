r"""Runs a table of the SED, BERT-flow or BSL paper and prints ours beside the published numbers.

All tables:       python jobs/reproduce.py --list
On this machine:  python jobs/reproduce.py sed-table-1 --scale small --data ../shared/data
On a cluster:     ray job submit --working-dir . -- python jobs/reproduce.py sed-table-1 --data /mnt/SentEval/data \
                      --storage /mnt/runs --output /mnt/tables

The same command continues a table that was stopped.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.reproduce import job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
