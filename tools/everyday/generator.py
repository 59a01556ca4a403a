"""Generated text, made from scenes of everyday life: a corpus without labels, and pairs graded by rules.

A *scene* says who does what to what, where, when and how, and whether it is denied or asked. A *meaning* is
one scene, or two that are told together. Both are drawn from the tables in `lexicon.py`, which give an action
only actors, objects and places that fit. A sentence is a meaning put into words, which are drawn independently
of the meaning: synonyms, article, tense and aspect, active or passive, order, caption or full sentence. So two
sentences of one meaning may share few words, and two sentences that share most words may differ in meaning.

**The score** of two scenes is 5 times the product of one factor for each difference, rounded to one decimal:

    ==================================================  =======  =======  =========
    what                                                related  other    only in one
    ==================================================  =======  =======  =========
    action (related: one family, such as chop and peel)     0.55     0.25   -
    action of another topic (kitchen, traffic, ...)            -     0.10   -
    object (related: one group, such as the strings)        0.70     0.45     0.45
    actor  (related: one group, such as the children)       0.75     0.60   -
    place                                                      -     0.85     0.92
    time   (related: one group, such as the seasons)        0.95     0.85     0.92
    manner                                                     -     0.85     0.92
    ==================================================  =======  =======  =========

    actor and object change places                       0.50 (instead of their factors; mutual, as to meet: 1)
    denied in one                                        0.60
    asked in one, stated in the other                    0.90

Synonyms, voice, order, article, tense and aspect make no difference. So 5 is a paraphrase, about 4 the same in
another place, 3 its denial, 2 to 3 swapped roles or a related action, about 1 and below another action. Two
scenes in both sentences are paired for the highest mean; a scene in only one sentence counts as half a scene,
with 0.

Everything is a function of the seed, drawn with `random.Random.random`, whose sequence Python guarantees.
"""

from collections.abc import Set
from functools import lru_cache
from random import Random

from everyday.scenes import Meaning, Scene, change, draw_meaning, draw_scene, pick, related, row_of, same
from everyday.wording import put_into_words

SIZES = {"train": 600, "dev": 400, "test": 500}
"""Graded pairs per split."""
MAX_SCORE = 5.0
MIN_WORDS, MAX_WORDS = 4, 25

ACTION_RELATED, ACTION_OTHER, ACTION_OTHER_TOPIC = 0.55, 0.25, 0.10
OBJECT_RELATED, OBJECT_OTHER = 0.70, 0.45
ACTOR_RELATED, ACTOR_OTHER = 0.75, 0.60
TIME_RELATED, DETAIL_OTHER, DETAIL_MISSING = 0.95, 0.85, 0.92
SWAPPED, DENIED, ASKED = 0.50, 0.60, 0.90
EXTRA_SCENE = 0.5
BINS = 10
"""Number of equal parts of the range of scores; each has equally many pairs."""


def corpus(count: int = 6000, seed: int = 0) -> list[str]:
    """Return distinct sentences of 4 to 25 words, none of them part of a graded pair.

    >>> for sentence in corpus(2):
    ...     print(sentence)
    A researcher designing a website without help in the workshop.
    A young woman rehearsing the dance on stage.
    """
    rng = Random(f"everyday corpus {seed}")
    graded = {s for rows in _all_pairs().values() for _, *both in rows for s in both}
    found: dict[str, None] = {}
    while len(found) < count:
        sentence = put_into_words(draw_meaning(rng), rng)
        if _is_new(sentence, graded):
            found[sentence] = None
    return list(found)


def pairs(split: str) -> list[tuple[float, str, str]]:
    """Return the graded pairs of `train`, `dev` or `test`: (score 0 to 5, sentence, sentence).

    >>> for part in pairs("dev")[2]:
    ...     print(part)
    4.2
    The company hired a director and a manager went over some figures.
    The figures are checked by a manager and the employee is employed by the company.
    """
    return list(_all_pairs()[split])


def files() -> dict[str, str]:
    """Return the text of the package's files by name: sentences, and pairs as TSV."""
    result = {"corpus.txt": "".join(f"{sentence}\n" for sentence in corpus())}
    for split in SIZES:
        lines = [f"{score}\t{first}\t{second}\n" for score, first, second in pairs(split)]
        result[f"generated-{split}.tsv"] = "".join(["score\tsentence1\tsentence2\n", *lines])
    return result


# --- grading


def grade(meaning1: Meaning, meaning2: Meaning) -> float:
    """Return how close two meanings are, 0 to 5 with one decimal, by the rule at the top of this module."""
    few, many = sorted((meaning1, meaning2), key=len)
    extra = EXTRA_SCENE * (len(many) - len(few))
    orders = [many, many[::-1]] if len(many) > 1 else [many]
    best = max(sum(_closeness(a, b) for a, b in zip(few, order)) for order in orders)
    return round(MAX_SCORE * best / (len(few) + extra), 1)


def _closeness(a: Scene, b: Scene) -> float:
    """Return the product of the factors of two scenes, 0 to 1."""
    details = _detail(a.place, b.place) * _detail(a.time, b.time) * _detail(a.manner, b.manner)
    force = (DENIED if a.denied != b.denied else 1.0) * (ASKED if a.asked != b.asked else 1.0)
    return _action(a, b) * _roles(a, b) * details * force


def _action(a: Scene, b: Scene) -> float:
    if a.family == b.family:
        return 1.0 if a.action.split("/")[0] == b.action.split("/")[0] else ACTION_RELATED
    return ACTION_OTHER if a.topic == b.topic else ACTION_OTHER_TOPIC


def _roles(a: Scene, b: Scene) -> float:
    if a.actor != b.actor and (a.actor, a.object) == (b.object, b.actor):
        return 1.0 if a.action == b.action and "mutual" in row_of(a).flags else SWAPPED
    return _noun(a.actor, b.actor, ACTOR_RELATED, ACTOR_OTHER) * _noun(a.object, b.object, OBJECT_RELATED, OBJECT_OTHER)


def _noun(a: str | None, b: str | None, close: float, other: float) -> float:
    if same(a, b):
        return 1.0
    return close if related(a, b) else other


def _detail(a: str | None, b: str | None) -> float:
    if same(a, b):
        return 1.0
    if a is None or b is None:
        return DETAIL_MISSING
    return TIME_RELATED if related(a, b) else DETAIL_OTHER


# --- drawing pairs


@lru_cache(maxsize=1)
def _all_pairs() -> dict[str, list[tuple[float, str, str]]]:
    """Draw all splits at once, because no two pairs may share a scene or a sentence."""
    rng = Random("everyday pairs")
    taken: set[Scene | str] = set()
    return {split: _draw_pairs(rng, size, taken) for split, size in SIZES.items()}


def _draw_pairs(rng: Random, size: int, taken: set[Scene | str]) -> list[tuple[float, str, str]]:
    """Draw equally many pairs in each part of the range of scores, in random order."""
    room = [size // BINS] * BINS
    found = []
    while len(found) < size:
        meanings = _draw_two(rng)
        score = grade(*meanings)
        part = min(int(score / MAX_SCORE * BINS), BINS - 1)
        if not room[part] or not taken.isdisjoint(meanings[0] + meanings[1]):
            continue
        sentences = [put_into_words(meaning, rng) for meaning in meanings]
        if sentences[0] != sentences[1] and all(_is_new(sentence, taken) for sentence in sentences):
            room[part] -= 1
            taken.update(*meanings, sentences)
            found.append((rng.random(), score, *sentences))
    return [row[1:] for row in sorted(found)]


def _is_new(sentence: str, taken: Set[Scene | str]) -> bool:
    return sentence not in taken and MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def _draw_two(rng: Random) -> tuple[Meaning, Meaning]:
    """Draw a meaning and the same after up to three changes, or (one time in 16) an unrelated one.

    Scenes told together have no time and are not asked: one tense must fit both.
    """
    first = draw_meaning(rng)
    second = list(first)
    for _ in range(pick(rng, (0, 1, 1, 2, 2, 3))):
        at = pick(rng, range(len(second)))
        changed = change(rng, second[at])
        second[at] = changed if len(second) == 1 else changed._replace(time=None, asked=False)
    if len(second) > 1 and rng.random() < 0.2:
        second = second[:1]
    if rng.random() < 1 / 16:
        second = [draw_scene(rng)]
    return first, tuple(second)
