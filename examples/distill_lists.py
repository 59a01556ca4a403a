"""Distil sentences in memory into a static model (one vector per token), in seconds and without labels.

    python examples/distill_lists.py

Use your own teachers, such as "sentence-transformers/all-MiniLM-L6-v2"; `bundled:encoder` comes with the package.
"""

import raysed
from raysed import bundled

sentences = bundled.corpus()[:3000]  # a list, an iterator, a datasets.Dataset or a data frame
pairs = [(first, second, score) for score, first, second in bundled.pairs("dev")]  # generated, with their similarity

result = raysed.distill(
    teachers="bundled:encoder",
    corpus=sentences,
    static=True,
    dev=pairs[:200],
    tasks={"held out": pairs[200:]},
    run="distill-lists",
    settings={"export": {"allow_worse": True}},
)
print(result.scores)
print(result.model.encode("The printer is out of paper.").shape, result.path)
