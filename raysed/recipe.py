"""The recipe language: `ct-sed-flow` and the like, and the tree of nodes that a list of recipes needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysed.config import MEMBERS, TeacherConfig
from raysed.errors import UserError
from raysed.registry import calibration_names, calibrations, stage_names, stages

if TYPE_CHECKING:
    from raysed.config import Config

GIVEN_VIEWS = ("files", "entailment")
"""Kinds of views that are read; the others are made of the corpus."""
BASE, TEACHERS, SED, WHITEN = "base", "teachers", "sed", "whiten"


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe.

    Attributes:
        members: the stages that train the members, in order; empty for `base` and `teachers`.
        calibration: the stages fitted on frozen embeddings, in order.
    """

    text: str
    members: tuple[str, ...]
    distils: bool
    calibration: tuple[str, ...]

    @property
    def ensemble(self) -> str:
        """The node whose members the recipe uses, `base` or `teachers` where it trains none."""
        return "-".join(self.members) or self.text.split("-")[0]

    @property
    def uncalibrated(self) -> str:
        """The recipe without its calibration."""
        return "-".join([self.ensemble, *([SED] if self.distils else [])])

    @property
    def two_view_stages(self) -> tuple[str, ...]:
        """Its stages that learn from two views of a sentence."""
        return tuple(stage for stage in self.members if "views" in stages()[stage].Settings.model_fields)

    def tables(self, config: Config) -> list[str]:
        """Return the artefacts that its training learns from, each once: `corpus`, `pairs/nli`, `views/mlm`, ..."""
        names = [name for stage in self.members for name in stages()[stage].tables(getattr(config, stage))]
        return list(dict.fromkeys([*names, *(["corpus"] if self.distils else [])]))

    def view_kinds(self, config: Config) -> list[str]:
        """Return the kinds of views that its stages learn from and that have a table, each once."""
        return [name.removeprefix("views/") for name in self.tables(config) if name.startswith("views/")]

    def trains_on_corpus(self, config: Config) -> bool:
        """Return whether a stage of its training reads the corpus, as it is or rewritten."""
        return "corpus" in self.tables(config) or bool(set(self.view_kinds(config)) - set(GIVEN_VIEWS))


def member_stages() -> tuple[str, ...]:
    """Return the stages that train members."""
    return tuple(name for name in stage_names() if name != SED)


def parse_recipe(text: str) -> Recipe:
    """Read one recipe.

    >>> parse_recipe("ct-sed-flow")
    Recipe(text='ct-sed-flow', members=('ct',), distils=True, calibration=('flow',))
    """
    stages = text.split("-")
    if stages[0] in (BASE, TEACHERS):
        members, rest = (), stages[1:]
    else:
        count = next((i for i, stage in enumerate(stages) if stage not in member_stages()), len(stages))
        members, rest = tuple(stages[:count]), stages[count:]
    distils = bool(rest) and rest[0] == SED
    calibration = tuple(rest[1:] if distils else rest)
    _check(text, stages, members, distils, calibration)
    return Recipe(text, members, distils, calibration)


def parse_recipes(texts: list[str]) -> list[Recipe]:
    """Read a list of recipes; the same recipe twice is one."""
    if not texts:
        raise UserError("recipes is empty; name at least one, for example ct-sed-flow")
    return [parse_recipe(text) for text in dict.fromkeys(texts)]


def member_nodes(recipes: list[Recipe]) -> list[list[str]]:
    """Return the ensembles to train by depth; the prefixes that recipes share occur once.

    >>> member_nodes([parse_recipe("ct-sed"), parse_recipe("ct-sed-flow"), parse_recipe("base-flow")])
    [['ct']]
    """
    prefixes = {recipe.members[:depth] for recipe in recipes for depth in range(1, len(recipe.members) + 1)}
    deepest = max((len(prefix) for prefix in prefixes), default=0)
    return [sorted("-".join(p) for p in prefixes if len(p) == depth) for depth in range(1, deepest + 1)]


def node_of(teacher: TeacherConfig, recipes: list[Recipe]) -> str:
    """Return the ensemble that a teacher of the path `members` or `members:NODE` stands for."""
    nodes = list(dict.fromkeys(recipe.ensemble for recipe in recipes if recipe.members))
    if not nodes:
        raise UserError(f"teachers: {teacher.path} needs a recipe that trains members; add one to recipes, such as ct")
    asked = teacher.path.partition(":")[2] or (nodes[0] if len(nodes) == 1 else "")
    if asked not in nodes:
        choices = " or ".join(f"{MEMBERS}:{node}" for node in nodes)
        raise UserError(f"teachers: {teacher.path} names no ensemble of the recipes; write {choices}")
    return asked


def _check(text: str, stages: list[str], members: tuple, distils: bool, calibration: tuple) -> None:
    known = (BASE, TEACHERS, *member_stages(), SED, *calibration_names())
    for stage in stages:
        if stage not in known:
            raise UserError(f"recipe {text!r}: {stage!r} is not a stage; the stages are {', '.join(known)}")
    if len(set(members)) < len(members):
        twice = next(stage for stage in members if members.count(stage) > 1)
        raise UserError(f"recipe {text!r}: {twice!r} appears twice; use each stage once")
    if distils and not members and stages[0] != TEACHERS:
        raise UserError(f"recipe {text!r}: sed needs an ensemble before it, for example ct-sed")
    if stages[0] == TEACHERS and stages[1:] and not distils:
        raise UserError(f"recipe {text!r}: what follows {TEACHERS} is sed, for example {TEACHERS}-sed")
    if not members and stages[0] not in (BASE, TEACHERS):
        raise UserError(f"recipe {text!r}: {stages[0]!r} needs a model before it, for example {BASE}-{text}")
    for stage in calibration:
        if stage not in calibration_names():
            raise UserError(
                f"recipe {text!r}: {stage!r} is in the wrong place; the order is member stages, sed, calibration"
            )
    is_chain = len(calibration) == len(set(calibration))
    if len(calibration) > 1 and not (is_chain and all(calibrations()[stage].is_affine for stage in calibration)):
        affine = ", ".join(name for name, calibration in calibrations().items() if calibration.is_affine)
        raise UserError(f"recipe {text!r}: use one flow, or a chain of different calibrations from {affine}")
