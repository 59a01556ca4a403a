"""Score a model on tasks of the MTEB leaderboard with the mteb library, which fetches their data from the hub.

    pip install mteb
    python examples/mteb_scores.py runs/quickstart/model STSBenchmark SICK-R

`SentenceTransformer` must be able to load the model, as it can raysed's exports. A model with a flow contains code:
set `trust_remote_code=True` for it.
"""

import sys

import mteb
from sentence_transformers import SentenceTransformer


def main(path: str, *names: str) -> None:
    """Print the main score of each task, x100."""
    tasks = mteb.get_tasks(tasks=list(names))
    model = SentenceTransformer(path, trust_remote_code=False).float()  # whatever the precision of its file
    results = mteb.evaluate(model, tasks=tasks, cache=None, show_progress_bar=False)
    for result in results.task_results:
        print(f"{result.task_name}: {100 * result.get_score():.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
