"""Package data that needs no network: two small encoders, and generated sentences and pairs.

`tools/everyday` in the repository writes the sentences and pairs and grades the pairs, by rules. Scores on
them say little about other text.
"""

from pathlib import Path

ENCODER = Path(__file__).parent / "encoder"
"""Directory of the quickstart's encoder, in Hugging Face layout."""
ENCODERS = {"encoder": ENCODER, "raw": ENCODER.parent / "raw"}
"""By name: one distilled from published models, and one only pre-trained, with its head. Both have also learnt
from `generated-text`."""
CORPUS = Path(__file__).parent / "corpus.txt"
PREFIX = "bundled:"
"""Marks package data in settings: `bundled:encoder`, `bundled:generated-text`, `bundled:generated-dev`."""
PAIRS = PREFIX + "generated-"
"""Marks pairs: `bundled:generated-train`, and so on."""
SPLITS = ("train", "dev", "test")


def corpus() -> list[str]:
    """Return 6,000 distinct generated sentences of 4 to 25 words, none of them in a graded pair.

    >>> for sentence in corpus()[:2]:
    ...     print(sentence)
    A researcher designing a website without help in the workshop.
    A young woman rehearsing the dance on stage.
    """
    return CORPUS.read_text(encoding="utf-8").splitlines()


def pairs_file(split: str) -> Path:
    """Return the file of generated `train` (600), `dev` (400) or `test` pairs (500): score 0 to 5, two sentences."""
    return Path(__file__).parent / f"generated-{split}.tsv"


def pairs(split: str) -> list[tuple[float, str, str]]:
    """Return the generated pairs of a split: (score 0 to 5, sentence, sentence).

    >>> for part in pairs("dev")[2]:
    ...     print(part)
    4.2
    The company hired a director and a manager went over some figures.
    The figures are checked by a manager and the employee is employed by the company.
    """
    rows = [line.split("\t") for line in pairs_file(split).read_text(encoding="utf-8").splitlines()[1:]]
    return [(float(score), first, second) for score, first, second in rows]
