"""More text from the same text: whether parts of sentences, and two joined, teach as much as other sentences.

    python benchmarks/more_text.py --local ../shared/data

Two corpus files begin with the same 15,000 sentences of headline.py's first inductive draw, and have as many lines:

    parts    each sentence is followed by its halves, cut at a comma or a clause, and by itself joined to the next one
    others   the sentences are followed by other ones, of general text

Learners take 703 steps from each, with the headline's learner, teachers and tasks. The page is `more-text.md` beside
the headline's. The same command continues what was stopped.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from raysed.config import load_config
from raysed.data.corpus import LEAST_CHARACTERS, clean
from raysed.process import prepare_process

from controls import shorter, trained_options
from headline import ALL, GENERAL, SIX, TEACHERS, Arm, Bench, Scores, loaded, write_comparison, write_teachers
from headline_data import texts
from runs import write_lines

ARM = Arm(SIX, ALL)
SENTENCES, LEAST_WORDS = 15_000, 3
PARTS, OTHERS = "parts of sentences", "other sentences"
CLAUSE = re.compile(r"(?<=[,;:]) | (?=(?:and|but|or|because|which|who|while|when|where|after|before|if|as|that) )")


def main() -> None:
    """Trains what is missing, scores all, and writes the page."""
    arguments = trained_options(__doc__).parse_args()
    prepare_process()
    bench = Bench.of(arguments)
    drawn = write_texts(bench)
    for seed in arguments.seeds:
        for name, directory in drawn.items():
            learn(bench, name, seed, directory)
    if arguments.unscored:
        return
    scores = Scores.of(bench.learners(drawn), loaded(bench.data, bench.sample), bench.results)
    lines = f"Each file has {len(texts(drawn[PARTS] / 'text.txt')):,} lines; {SENTENCES:,} are the same."
    to = bench.results / "more-text.md"
    write_comparison("More text from the same text", scores, [(PARTS, OTHERS)], to, lines)


def write_texts(bench: Bench) -> dict[str, Path]:
    """Writes both files, and has the teachers embed them; returns their directories."""
    whole = texts(bench.drawn(ARM, 0) / "text.txt")[:SENTENCES]
    longer = list(dict.fromkeys(line for k in range(len(whole)) for line in with_parts(whole[k], whole[k - 1])))
    usable = [text for text in map(clean, texts(bench.pools[GENERAL])) if len(text) >= LEAST_CHARACTERS]
    others = list(dict.fromkeys([*whole, *usable]))[: len(longer)]
    drawn = {}
    for name, lines in {PARTS: longer, OTHERS: others}.items():
        drawn[name] = bench.results / "text" / name.replace(" ", "-")
        drawn[name].mkdir(parents=True, exist_ok=True)
        write_lines(drawn[name] / "text.txt", lines)
        write_teachers({each: bench.teachers[each] for each in TEACHERS[ALL]}, drawn[name], bench.results / "vectors")
    return drawn


def with_parts(sentence: str, other: str) -> Iterator[str]:
    """Yields a sentence, its halves if both have enough words, and the sentence joined to another one.

    >>> list(with_parts("He came late, but nobody had missed him.", "So it goes."))[1:]
    ['He came late,', 'but nobody had missed him.', 'So it goes. He came late, but nobody had missed him.']
    """
    yield clean(sentence)
    cuts = [(sentence[: m.start()], sentence[m.end() :]) for m in CLAUSE.finditer(sentence)]
    halves = [pair for pair in cuts if min(len(half.split()) for half in pair) >= LEAST_WORDS]
    if halves:
        yield from map(clean, min(halves, key=lambda pair: abs(len(pair[0]) - len(pair[1]))))
    yield clean(f"{other} {sentence}")


def learn(bench: Bench, name: str, seed: int, drawn: Path) -> None:
    """Trains one seed unless its learner exists."""
    path = bench.config(f"{drawn.name}-{seed}")
    config, lines = load_config(path, bench.more), len(texts(drawn / "text.txt"))
    overrides = [
        *bench.more,
        *ARM.overrides(config, drawn, seed),
        f"corpus.sentences={lines}",
        shorter(config, lines),
    ]
    bench.train_once(name, seed, path, overrides)


if __name__ == "__main__":
    main()
