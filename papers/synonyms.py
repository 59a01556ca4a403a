"""Views: the sentence, and the same with a share of its words replaced by WordNet synonyms (BSL section 4.4).

The paper gives only the share. Here words are drawn from those with a synonym, except single letters, function words
and names (capitalised within a sentence). Synonyms come from the word's most frequent sense, over all parts of speech,
that has another word. They are not inflected.
"""

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any
from zipfile import BadZipFile

import numpy as np

from papers.masked import GeneratedViews, Maker, capital_as, draw, replace_spans
from raysed.config import derive_seed
from raysed.errors import UserError

_CACHED_WORDS = 1 << 18
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:['’-][^\W\d_]+)*")
_FUNCTION_WORDS = frozenset(
    """
    a an the this that these those such some any no none every each either neither both all another other
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves who whom whose which what one
    am is are was were be been being have has had having do does did done doing
    will would shall should can could may might must ought
    and or but nor so yet if because as until while although though unless since whether than then
    of at by for with about against between among into through during before after above below to from up down in out
    on off over under upon within without toward towards onto across along around behind beside besides near per via
    not never ever too very just only also there here when where why how again once more most much many few less least
    now even still yes
    """.split()
)


def synonym_views(share: float, seed: int) -> Maker:
    """Return a maker that replaces this share of the words; UserError if WordNet is not installed."""
    seed, synonyms_of = derive_seed(seed, "synonym"), lru_cache(_CACHED_WORDS)(partial(_synonyms, _wordnet()))

    def make(sentences: Sequence[str], ids: np.ndarray) -> GeneratedViews:
        pairs, chosen, total = [], 0, 0
        for sentence, key in zip(sentences, ids.tolist()):
            words = list(_WORD.finditer(sentence))
            common = words
            if not (sentence.isupper() or sentence.istitle()):  # capitals within a sentence mark names
                common = words[:1] + [match for match in words[1:] if not match[0][0].isupper()]
            options = [(match, synonyms) for match in common if (synonyms := synonyms_of(match[0].lower()))]
            rng = np.random.default_rng([seed, key])
            places = draw(len(options), share * len(words), rng).tolist()
            replacements = []
            for place, drawn in zip(places, rng.random(len(places)).tolist()):
                match, synonyms = options[place]
                synonym = synonyms[int(drawn * len(synonyms))]
                replacements.append((*match.span(), capital_as(match[0], synonym)))
            pairs.append((sentence, replace_spans(sentence, replacements)))
            chosen, total = chosen + len(places), total + len(words)
        return GeneratedViews(pairs, chosen, total)

    return make


def _synonyms(wordnet: Any, word: str) -> tuple[str, ...]:
    """Return the other words of the most frequent sense that has any; function words and single letters have none."""
    senses = []
    parts = (wordnet.NOUN, wordnet.VERB, wordnet.ADJ, wordnet.ADV)
    for part in () if len(word) == 1 or word in _FUNCTION_WORDS else parts:
        base = wordnet.morphy(word, part)
        for rank, synset in enumerate(wordnet.synsets(base, part) if base else ()):
            others = [name.replace("_", " ") for name in synset.lemma_names() if name.lower() not in (word, base)]
            if others:
                count = sum(lemma.count() for lemma in synset.lemmas() if lemma.name().lower() == base)
                senses.append((-count, rank, others))
    return tuple(min(senses, key=lambda sense: sense[:2])[2]) if senses else ()


def _wordnet() -> Any:
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
        return wordnet
    except (ImportError, LookupError, BadZipFile) as error:
        what = "the package nltk" if isinstance(error, ImportError) else "nltk's WordNet data"
        raise UserError(
            f"synonyms need {what}, which is not installed: run pip install nltk and python -m nltk.downloader wordnet"
        ) from None
