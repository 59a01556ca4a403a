"""Parse recipes such as `ct-sed-flow`, and list the ensembles that they need."""

from dataclasses import dataclass
from typing import Any

from raysed.config import MEMBERS, TeacherConfig
from raysed.errors import UserError
from raysed.registry import calibration_names, calibrations, stages

BASE, TEACHERS, SED = "base", "teachers", "sed"


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe.

    Attributes:
        members: stages that train members, in order; none for `base` and `teachers`.
        calibration: stages fitted on frozen embeddings.
    """

    text: str
    members: tuple[str, ...]
    distils: bool
    calibration: tuple[str, ...]

    @property
    def ensemble(self) -> str:
        """The ensemble whose members the recipe uses; `base` or `teachers` if it trains none."""
        return "-".join(self.members) or self.text.split("-")[0]

    @property
    def uncalibrated(self) -> str:
        return "-".join([self.ensemble, *([SED] if self.distils else [])])

    @property
    def two_view_stages(self) -> tuple[str, ...]:
        return tuple(stage for stage in self.members if "views" in stages()[stage].Settings.model_fields)


def member_stages() -> tuple[str, ...]:
    """Return the stages that train members."""
    return tuple(name for name in stages() if name != SED)


def parse_recipe(text: str) -> Recipe:
    """Parse a recipe.

    >>> parse_recipe("ct-sed-flow")
    Recipe(text='ct-sed-flow', members=('ct',), distils=True, calibration=('flow',))
    """
    names, known = text.split("-"), (BASE, TEACHERS, *member_stages(), SED, *calibration_names())
    starts = names[0] in (BASE, TEACHERS)
    count = next((i for i, name in enumerate(names) if name not in member_stages()), len(names))
    members, rest = tuple(names[:count]), names[count + starts :]
    distils = bool(rest) and rest[0] == SED
    calibration = tuple(rest[1:] if distils else rest)
    if problem := _problem(names, known, members, distils, calibration):
        raise UserError(f"recipe {text!r}: {problem}")
    return Recipe(text, members, distils, calibration)


def _problem(names: list[str], known: tuple, members: tuple, distils: bool, calibration: tuple) -> str | None:
    for name in names:
        if name not in known:
            return f"{name!r} is not a stage; the stages are {', '.join(known)}"
        if name in members and members.count(name) > 1:
            return f"{name!r} appears twice; use each stage once"
    if distils and not members and names[0] != TEACHERS:
        return "sed needs an ensemble before it, for example ct-sed"
    if names[0] == TEACHERS and names[1:] and not distils:
        return f"{TEACHERS} must be followed by sed, for example {TEACHERS}-sed"
    if not members and names[0] not in (BASE, TEACHERS):
        return f"{names[0]!r} needs a model before it, for example {BASE}-{'-'.join(names)}"
    misplaced = [name for name in calibration if name not in calibration_names()]
    if misplaced:
        return f"{misplaced[0]!r} is in the wrong place; the order is member stages, sed, calibration"
    if len(calibration) > 1:
        affine = [name for name, made in calibrations().items() if made.is_affine]
        if len(set(calibration)) < len(calibration) or not set(calibration).issubset(affine):
            return f"use one flow, or a chain of different calibrations from {', '.join(affine)}"
    return None


def parse_recipes(texts: list[str]) -> list[Recipe]:
    """Parse recipes; drop repeated ones."""
    if not texts:
        raise UserError("recipes is empty; name at least one, for example ct-sed-flow")
    return [parse_recipe(text) for text in dict.fromkeys(texts)]


def member_nodes(recipes: list[Recipe]) -> list[list[str]]:
    """Return the ensembles to train, by depth; prefixes that recipes share appear once.

    >>> member_nodes([parse_recipe("ct-sed"), parse_recipe("ct-sed-flow"), parse_recipe("base-flow")])
    [['ct']]
    """
    prefixes = {recipe.members[:depth] for recipe in recipes for depth in range(1, len(recipe.members) + 1)}
    deepest = max((len(prefix) for prefix in prefixes), default=0)
    return [sorted("-".join(p) for p in prefixes if len(p) == depth) for depth in range(1, deepest + 1)]


def last_stage(node: str) -> Any:
    """Return the stage that trains an ensemble, such as that of `nli-ct`."""
    return stages()[node.rpartition("-")[2]]


def node_of(teacher: TeacherConfig, recipes: list[Recipe]) -> str:
    """Return the ensemble that a teacher with the path `members` or `members:NODE` stands for."""
    nodes = list(dict.fromkeys(recipe.ensemble for recipe in recipes if recipe.members))
    if not nodes:
        raise UserError(f"teachers: {teacher.path} needs a recipe that trains members; add one to recipes, such as ct")
    node = teacher.path.partition(":")[2] or (nodes[0] if len(nodes) == 1 else "")
    if node not in nodes:
        choices = " or ".join(f"{MEMBERS}:{node}" for node in nodes)
        raise UserError(f"teachers: {teacher.path} names no ensemble of the recipes; write {choices}")
    return node
