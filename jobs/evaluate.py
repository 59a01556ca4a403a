"""Scores any models side by side, on the tasks of a config: similarity, and transfer tasks where the config has some.

    python jobs/evaluate.py --model runs/quickstart/model --model bundled:encoder
    python jobs/evaluate.py --model MODEL --config minilm3-cpu --set evaluation.transfer.source=SentEval/data/downstream

A model is a directory or a hub id: one that this project exported, any other of sentence-transformers, or a plain
transformer, whose tokens and --layers are averaged. Of a config, `evaluation`, `encoder.max_length`, `encoder.layers`
and `resources` count.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of
from raysed.commands.evaluate import AFTER_STOP, job, parser

if __name__ == "__main__":
    sys.exit(main_of(job, parser(), AFTER_STOP))
