"""Scenes drawn from the tables in `lexicon.py`: at random, and changed in one part."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple, TypeVar

from everyday import lexicon

Item = TypeVar("Item")


class Scene(NamedTuple):
    """One event; its strings are concepts as `lexicon.py` writes them, such as `man/guy`."""

    topic: str
    family: str
    action: str
    actor: str
    object: str | None = None
    place: str | None = None
    time: str | None = None
    manner: str | None = None
    denied: bool = False
    asked: bool = False


Meaning = tuple[Scene, ...]
"""One scene, or two that are told together."""


class Action(NamedTuple):
    """A line of the table of topics, with its topic's defaults."""

    topic: str
    family: str
    action: str
    objects: tuple[str, ...]
    actors: tuple[str, ...]
    places: tuple[str, ...]
    manners: tuple[str, ...]
    times: tuple[str, ...]
    flags: tuple[str, ...]


class Tables(NamedTuple):
    """The lexicon as read from its tables."""

    actions: tuple[Action, ...]
    by_topic: dict[str, tuple[Action, ...]]
    by_key: dict[tuple[str, str, str], Action]
    groups: dict[str, frozenset[str]]
    """Concept -> names of its groups."""
    tenses: dict[str, str]
    """Time -> its tense."""


def pick(rng: Random, items: Sequence[Item]) -> Item:
    """Draw one item by `random()` alone, whose sequence Python guarantees for a seed."""
    return items[int(rng.random() * len(items))]


def same(a: str | None, b: str | None) -> bool:
    """Return whether two concepts are equal or have a name in common."""
    return a == b or not names(a).isdisjoint(names(b))


@lru_cache(maxsize=4096)
def names(concept: str | None) -> frozenset[str]:
    """Return the names of a concept, without its signs."""
    return frozenset(concept.lstrip("~+=").split("/")) if concept else frozenset()


def related(a: str | None, b: str | None) -> bool:
    """Return whether two concepts share a group."""
    groups, none = tables().groups, frozenset()
    return not groups.get(a, none).isdisjoint(groups.get(b, none))


# --- reading the lexicon


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Read the lexicon once."""
    nouns = {name: _items(text) for name, text in _named_lines(lexicon.NOUNS)}
    times = {name.split()[0]: (name.split()[1], _items(text)) for name, text in _named_lines(lexicon.TIMES)}
    members = {**nouns, **{name: items for name, (_, items) in times.items()}}
    groups: dict[str, set[str]] = {}
    for name, items in members.items():
        for item in items:
            groups.setdefault(item, set()).add(name)
    actions = tuple(_read_actions(members, groups))
    topics = dict.fromkeys(a.topic for a in actions)
    return Tables(
        actions=actions,
        by_topic={topic: tuple(a for a in actions if a.topic == topic) for topic in topics},
        by_key={a[:3]: a for a in actions},
        groups={item: frozenset(found) for item, found in groups.items()},
        tenses={item: tense for tense, items in times.values() for item in items},
    )


def _read_actions(members: dict[str, tuple[str, ...]], groups: dict[str, set[str]]) -> Iterator[Action]:
    """Yield the actions, and add a group for the objects that an action lists by name."""
    topic, defaults = "", {}
    for line in _lines(lexicon.TOPICS):
        if line.startswith("=="):
            topic, defaults = line[2:].strip(), {}
        elif "|" in line:
            family, action, objects, *fields = (field.strip() for field in line.split("|"))
            options = {**defaults, **dict(field.split("=", 1) for field in fields if "=" in field)}
            times = options["when"] + (", @durations, @habits" if "long" in fields else "")
            for item in _items(objects):
                if not item.startswith("@"):
                    groups.setdefault(item, set()).add(f"{topic}: {action}")
            lists = (objects, options["who"], options["where"], options["how"], times)
            flags = tuple(field for field in fields if "=" not in field)
            yield Action(topic, family, action, *(_expand(_items(text), members) for text in lists), flags)
        else:
            key, text = line.split(":", 1)
            defaults[key] = text


def _named_lines(text: str) -> list[tuple[str, str]]:
    return [(name, rest) for name, _, rest in (line.partition(":") for line in _lines(text))]


def _lines(text: str) -> list[str]:
    """Return the lines that are not empty, with indented ones joined to the line above."""
    return [line for line in text.replace("\n    ", " ").splitlines() if line]


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip() not in ("", "-"))


def _expand(items: tuple[str, ...], members: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    every = (concept for item in items for concept in (members[item[1:]] if item[0] == "@" else (item,)))
    return tuple(dict.fromkeys(every))


# --- drawing


def draw_meaning(rng: Random) -> Meaning:
    """Draw one scene, or (one time in eight) two of one topic with different actors."""
    scene = draw_scene(rng)
    if rng.random() > 0.125 or scene.denied or scene.asked:
        return (scene,)
    taken = {scene.actor, scene.object}
    others = [a for a in tables().by_topic[scene.topic] if a.action != scene.action and set(a.actors) - taken]
    second = _fill(rng, pick(rng, others), without=(scene.actor, scene.object))
    return (scene._replace(time=None), second)


def draw_scene(rng: Random) -> Scene:
    """Draw a scene: topic, action, then fitting details."""
    action = pick(rng, tables().by_topic[pick(rng, tuple(tables().by_topic))])
    scene = _fill(rng, action)
    place = pick(rng, action.places) if action.places and rng.random() < 0.6 else None
    time = pick(rng, action.times) if rng.random() < 0.45 else None
    manner = pick(rng, action.manners) if action.manners and rng.random() < 0.25 else None
    force = rng.random()
    denied, asked = force < 0.07, 0.07 <= force < 0.14
    return scene._replace(place=place, time=time, manner=None if denied else manner, denied=denied, asked=asked)


def _fill(rng: Random, action: Action, without: tuple[str | None, ...] = ()) -> Scene:
    actor = pick(rng, [a for a in action.actors if a not in without])
    others = [o for o in action.objects if o != actor]
    objects = [o for o in others if o not in without] or others
    return Scene(*action[:3], actor=actor, object=pick(rng, objects) if objects else None)


# --- changing one part


def change(rng: Random, scene: Scene) -> Scene:
    """Return the scene with one random part changed, or the scene itself if nothing else fits."""
    return pick(rng, _CHANGES)(rng, scene)


def _other_actor(rng: Random, scene: Scene) -> Scene:
    return _other(rng, scene, "actor", row_of(scene).actors, {scene.object})


def _other_object(rng: Random, scene: Scene) -> Scene:
    return _other(rng, scene, "object", row_of(scene).objects, {scene.actor})


def _other_place(rng: Random, scene: Scene) -> Scene:
    return _other_detail(rng, scene, "place", row_of(scene).places)


def _other_time(rng: Random, scene: Scene) -> Scene:
    return _other_detail(rng, scene, "time", row_of(scene).times)


def _other_manner(rng: Random, scene: Scene) -> Scene:
    return scene if scene.denied else _other_detail(rng, scene, "manner", row_of(scene).manners)


def _other(rng: Random, scene: Scene, slot: str, concepts: Sequence[str], without: set[str | None]) -> Scene:
    """Change a slot, half of the time to a related concept if possible."""
    now = getattr(scene, slot)
    free = [c for c in concepts if c != now and c not in without]
    close = [c for c in free if related(c, now)]
    options = close if close and rng.random() < 0.5 else free
    return scene._replace(**{slot: pick(rng, options)}) if options else scene


def _other_detail(rng: Random, scene: Scene, slot: str, concepts: Sequence[str]) -> Scene:
    """Change a detail, or leave it out one time in three."""
    if getattr(scene, slot) is not None and rng.random() < 1 / 3:
        return scene._replace(**{slot: None})
    return _other(rng, scene, slot, concepts, set())


def _swap_roles(rng: Random, scene: Scene) -> Scene:
    row = row_of(scene)
    fits = scene.object in row.actors and scene.actor in row.objects
    return scene._replace(actor=scene.object, object=scene.actor) if fits else scene


def _deny(rng: Random, scene: Scene) -> Scene:
    return scene._replace(denied=not scene.denied, asked=False, manner=None)


def _ask(rng: Random, scene: Scene) -> Scene:
    return scene._replace(asked=not scene.asked, denied=False)


def _related_action(rng: Random, scene: Scene) -> Scene:
    rows = [a for a in tables().by_topic[scene.topic] if a.family == scene.family and a.action != scene.action]
    return _move(rng, scene, pick(rng, rows)) if rows else scene


def _other_action(rng: Random, scene: Scene) -> Scene:
    return _move(rng, scene, pick(rng, [a for a in tables().by_topic[scene.topic] if a.family != scene.family]))


def _other_topic(rng: Random, scene: Scene) -> Scene:
    rows = tables().by_topic[pick(rng, [t for t in tables().by_topic if t != scene.topic])]
    return _move(rng, scene, pick(rng, rows))


def _move(rng: Random, scene: Scene, row: Action) -> Scene:
    """Change the action and keep all of the scene that fits: the pair shares words, but not its meaning."""
    new = _fill(rng, row)
    if scene.actor in row.actors and new.object != scene.actor:
        new = new._replace(actor=scene.actor)
    if scene.object in row.objects and new.actor != scene.object:
        new = new._replace(object=scene.object)
    place = scene.place if scene.place in row.places or not (scene.place and row.places) else pick(rng, row.places)
    return new._replace(
        place=place if row.places else None,
        time=scene.time if scene.time in row.times or not scene.time else pick(rng, row.times),
        manner=scene.manner if scene.manner in row.manners else None,
        denied=scene.denied,
        asked=scene.asked,
    )


def row_of(scene: Scene) -> Action:
    """Return the table's line with the scene's action."""
    return tables().by_key[scene[:3]]


_Change = Callable[[Random, Scene], Scene]
_CHANGES: tuple[_Change, ...] = (
    *(_other_actor, _other_actor, _other_object, _other_object, _other_place, _other_time, _other_manner),
    *(_swap_roles, _deny, _ask, _related_action, _other_action, _other_action, _other_topic),
)
