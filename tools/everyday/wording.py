"""Meanings put into words: inflection, voice, tense, article and order, drawn independently of the meaning."""

import re
from random import Random
from typing import NamedTuple

from everyday.scenes import Meaning, Scene, pick, row_of, tables

IRREGULAR = """
bite bit bitten, blow blew blown, break broke broken, bring brought brought, build built built, buy bought
bought, catch caught caught, choose chose chosen, come came come, cut cut cut, dig dug dug, do did done,
draw drew drawn, drink drank drunk, drive drove driven, eat ate eaten, feed fed fed, find found found, fly
flew flown, freeze froze frozen, get got gotten, give gave given, go went gone, grow grew grown, hang hung
hung, hide hid hidden, hit hit hit, lead led led, lie lay lain, lose lost lost, make made made, meet met
met, overtake overtook overtaken, pay paid paid, put put put, read read read, ride rode ridden, run ran run,
say said said, sell sold sold, send sent sent, sew sewed sewn, shear sheared shorn, shine shone shone, shoot
shot shot, shut shut shut, sing sang sung, sink sank sunk, sit sat sat, sleep slept slept, sow sowed sown,
speak spoke spoken, stand stood stood, steal stole stolen, strike struck struck, sweep swept swept, swim
swam swum, take took taken, teach taught taught, throw threw thrown, weep wept wept, win won won, write
wrote written
"""
"""Verb, past, participle."""
_IRREGULAR = {base: forms for base, *forms in (verb.split() for verb in IRREGULAR.split(","))}
TENSES = {
    "any": ("progressive",) * 4 + ("present",) * 3 + ("past",) * 3,
    "past": ("past",) * 4 + ("past progressive",),
    "future": ("future",),
    "simple": ("present", "past"),
    "lasting": ("past", "past progressive"),
}
"""A time's tense -> the tenses to draw from."""
ARTICLES = {
    "free": (("a", "the"), ("", "the", "some")),
    "plain": (("a", "the"), ("", "the")),
    "known": (("the",), ("the",)),
    "new": (("a",), ("some",)),
}
"""Articles to draw from: for one thing; for many or a mass."""
DIRECTIONS = {"to", "into", "onto", "out", "from", "through", "over", "across", "along", "down", "around"}
"""A place that begins with one cannot stand first."""
FREE_ADVERBS = {"slowly", "quickly", "carefully", "quietly", "suddenly", "calmly", "gently", "patiently"}
"""Adverbs that can stand first or before the verb."""


class NounPhrase(NamedTuple):
    """Words with their article; `known` phrases have 'the' or 'my'."""

    text: str
    plural: bool
    known: bool


class _Clause(NamedTuple):
    """The pieces of a clause; `auxiliary` may be empty."""

    subject: NounPhrase
    auxiliary: str
    verb: str
    after: str
    details: list[str]

    def text(self) -> str:
        return _join(self.subject.text, self.auxiliary, self.verb, self.after, *self.details)


def put_into_words(meaning: Meaning, rng: Random) -> str:
    """Draw one of the many sentences with this meaning."""
    scene = meaning[0]
    tense = _draw_tense(meaning, rng)
    if len(meaning) > 1:
        text = _two_clauses(meaning, tense, rng)
    elif scene.asked:
        text = _question(scene, tense, rng)
    elif _is_visible(scene) and rng.random() < 0.4:
        text = _picture(scene, tense, rng)
    else:
        text = _statement(scene, tense, rng)
    return text[0].upper() + text[1:] + ("?" if scene.asked else ".")


def _draw_tense(meaning: Meaning, rng: Random) -> str:
    once = any("once" in row_of(scene).flags for scene in meaning)
    tenses = TENSES[_asked_tense(meaning[0])]
    return pick(rng, [tense for tense in tenses if not (once and "progressive" in tense)])


def _asked_tense(scene: Scene) -> str:
    return tables().tenses.get(scene.time or "", "any")


# --- sentences


def _statement(scene: Scene, tense: str, rng: Random) -> str:
    """Put the subject first, or a detail ('In the morning, the cook peels apples')."""
    clause = _clause(scene, tense, rng)
    movable = [detail for detail in clause.details if _can_stand_first(detail, scene)]
    if not movable or rng.random() < 0.6:
        return clause.text()
    first = pick(rng, movable)
    return f"{first}, {clause._replace(details=[d for d in clause.details if d != first]).text()}"


def _can_stand_first(detail: str, scene: Scene) -> bool:
    if scene.manner and detail in scene.manner.split("/"):
        return detail in FREE_ADVERBS or detail.startswith("with ")
    return detail.split()[0] not in DIRECTIONS


def _question(scene: Scene, tense: str, rng: Random) -> str:
    clause = _clause(scene, tense, rng)
    return _join(clause.auxiliary, clause.subject.text, clause.verb, clause.after, *clause.details)


def _two_clauses(meaning: Meaning, tense: str, rng: Random) -> str:
    first, second = meaning if rng.random() < 0.5 else meaning[::-1]
    link = pick(rng, (" and", ", and", ", while", " while"))
    return f"{_clause(first, tense, rng).text()}{link} {_clause(second, tense, rng).text()}"


def _is_visible(scene: Scene) -> bool:
    """Return whether a picture can show it: somebody doing something now."""
    seen = scene.topic != "weather" and "once" not in row_of(scene).flags
    return seen and not scene.denied and _asked_tense(scene) == "any"


def _picture(scene: Scene, tense: str, rng: Random) -> str:
    """Write 'It is ... that plays', 'There is a man playing', 'A man playing' or 'A man can be seen playing'."""
    clause = _clause(scene, tense, rng, active=True)
    if not clause.subject.plural and rng.random() < 0.25:
        said = _join(clause.auxiliary, clause.verb, clause.after, *clause.details)
        return f"it {_be(tense, False)} {clause.subject.text} that {said}"
    shown = _clause(scene, "progressive", rng, active=True)
    doing = _join(shown.verb, shown.after, *shown.details)
    actor = noun_phrase(scene.actor, rng, "new")
    if not actor.known and rng.random() < 0.4:
        return f"there {_be(tense, actor.plural)} {actor.text} {doing}"
    return f"{actor.text} {pick(rng, ('', 'can be seen '))}{doing}"


# --- clauses


def _clause(scene: Scene, tense: str, rng: Random, active: bool = False) -> _Clause:
    names = scene.action.split("/")
    able = [name for name in names if not name.startswith("!")]
    passive = bool(scene.object and able) and not active and rng.random() < 0.35
    name = pick(rng, able if passive else names).lstrip("!")
    subject, after = _nouns(scene, passive, rng)
    auxiliary, verb = _verb(name, tense, subject.plural, passive, aided=scene.denied or scene.asked)
    if scene.denied:
        auxiliary = pick(rng, (f"{auxiliary} not", "won't" if auxiliary == "will" else f"{auxiliary}n't"))
    manner = pick(rng, scene.manner.split("/")) if scene.manner else ""
    if manner in FREE_ADVERBS and rng.random() < 0.4:
        verb, manner = f"{manner} {verb}", ""
    details = [pick(rng, detail.split("/")) for detail in (scene.place, scene.time) if detail]
    details.insert(1 if scene.place and " " in manner and rng.random() < 0.4 else 0, manner)
    return _Clause(subject, auxiliary, verb, after, [d for d in details if d])


def _nouns(scene: Scene, passive: bool, rng: Random) -> tuple[NounPhrase, str]:
    """Return the subject, and the words after the verb."""
    careful = scene.denied or scene.asked
    actor = noun_phrase(scene.actor, rng, "known" if scene.denied and not passive else "plain")
    if scene.object is None:
        return actor, ""
    thing = noun_phrase(scene.object, rng, ("known" if passive else "plain") if careful else "free")
    return (thing, f"by {actor.text}") if passive else (actor, thing.text)


def noun_phrase(concept: str, rng: Random, articles: str) -> NounPhrase:
    """Draw a name of the concept and, if it takes one, an article of `ARTICLES[articles]`."""
    kind = concept[0] if concept[0] in "~+=" else ""
    many = concept.startswith(("+", "=+"))
    name = pick(rng, concept.lstrip("~+=").split("/"))
    if kind == "=":
        return NounPhrase(name, many, known=name.split()[0] not in ("a", "an", "two", "three", "many"))
    article = pick(rng, ARTICLES[articles][1 if kind else 0])
    if article == "a" and re.match(r"(?!un[i]|uk|use)[aeiou]|hour", name):
        article = "an"
    return NounPhrase(_join(article, name), many, known=article == "the")


# --- verbs


def _verb(name: str, tense: str, plural: bool, passive: bool, aided: bool) -> tuple[str, str]:
    """Return auxiliary and verb, as ('is', 'cutting up'); `aided` (not, questions) needs an auxiliary."""
    base, _, particle = name.partition(" ")
    past, participle = inflect(base)
    if passive:
        shape = {"future": "be "}.get(tense, "being " if "progressive" in tense else "") + participle
        return "will" if tense == "future" else _be(tense, plural), _join(shape, particle)
    if "progressive" in tense:
        return _be(tense, plural), _join(gerund(base), particle)
    if tense == "future" or aided:
        return {"future": "will", "past": "did"}.get(tense, "do" if plural else "does"), name
    return "", _join(past if tense == "past" else base if plural else third_person(base), particle)


def _be(tense: str, plural: bool) -> str:
    return ("were" if plural else "was") if "past" in tense else ("are" if plural else "is")


def inflect(base: str) -> tuple[str, str]:
    """Return past and participle.

    >>> inflect("write"), inflect("carry"), inflect("chop")
    (('wrote', 'written'), ('carried', 'carried'), ('chopped', 'chopped'))
    """
    if base in _IRREGULAR:
        past, participle = _IRREGULAR[base]
        return past, participle
    if re.search(r"[^aeiou]y$", base):
        regular = base[:-1] + "ied"
    else:
        regular = (base if base.endswith("e") else _doubled(base) + "e") + "d"
    return regular, regular


def gerund(base: str) -> str:
    """Return the -ing form.

    >>> gerund("cut"), gerund("bake"), gerund("lie"), gerund("eat")
    ('cutting', 'baking', 'lying', 'eating')
    """
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return (base[:-1] if re.search(r"[^e]e$", base) else _doubled(base)) + "ing"


def third_person(base: str) -> str:
    """Return the form for he, she and it.

    >>> third_person("wash"), third_person("carry"), third_person("play")
    ('washes', 'carries', 'plays')
    """
    if re.search(r"[^aeiou]y$", base):
        return base[:-1] + "ies"
    return base + ("es" if re.search(r"(s|x|z|ch|sh|o)$", base) else "s")


def _doubled(base: str) -> str:
    """Double the last consonant of a short verb such as 'chop'."""
    return base + base[-1] if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]|control", base) else base


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)
