"""The recipe language: what it accepts, what it refuses and says, and the tree of nodes that recipes share."""

import pytest

from raysed.recipe import Recipe, member_nodes, member_stages, parse_recipe, parse_recipes
from raysed.registry import calibration_names

GOOD = {
    # text: members, distils, calibration, ensemble, uncalibrated
    "base": ((), False, (), "base", "base"),
    "base-flow": ((), False, ("flow",), "base", "base"),
    "ct": (("ct",), False, (), "ct", "ct"),
    "ct-sed-flow": (("ct",), True, ("flow",), "ct", "ct-sed"),
    "nli-ct-sed-flow": (("nli", "ct"), True, ("flow",), "nli-ct", "nli-ct-sed"),
    "bsl-sed-flow": (("bsl",), True, ("flow",), "bsl", "bsl-sed"),
    "contrastive-ct": (("contrastive", "ct"), False, (), "contrastive-ct", "contrastive-ct"),
    "sts-flow": (("sts",), False, ("flow",), "sts", "sts"),
    "mlm-nli-ct-sts": (("mlm", "nli", "ct", "sts"), False, (), "mlm-nli-ct-sts", "mlm-nli-ct-sts"),
    "base-whiten-natsv-sn": ((), False, ("whiten", "natsv", "sn"), "base", "base"),
    "ct-sed-sn-natsv-whiten": (("ct",), True, ("sn", "natsv", "whiten"), "ct", "ct-sed"),
}


def test_good_recipes():
    for text, (members, distils, calibration, ensemble, uncalibrated) in GOOD.items():
        recipe = parse_recipe(text)
        assert recipe == Recipe(text, members, distils, calibration)
        assert (recipe.ensemble, recipe.uncalibrated) == (ensemble, uncalibrated)
    stages = {stage for text in GOOD for stage in text.split("-")}
    assert stages == {"base", "sed", *member_stages(), *calibration_names()}, "a new stage belongs into the table"


def test_the_same_recipe_twice_is_one():
    assert [recipe.text for recipe in parse_recipes(["ct-sed", "ct", "ct-sed"])] == ["ct-sed", "ct"]


@pytest.mark.parametrize(
    ("recipes", "nodes"),
    [
        ([()], []),
        ([("a",)], [["a"]]),
        ([("a",), ("a",), ()], [["a"]]),
        ([("a", "b"), ("a",), ("c",)], [["a", "c"], ["a-b"]]),
        ([("a", "b", "c"), ("a", "b", "d"), ("b",)], [["a", "b"], ["a-b"], ["a-b-c", "a-b-d"]]),
    ],
)
def test_recipes_share_the_nodes_of_their_prefixes(recipes, nodes):
    """Every prefix once, by depth, whether or not it is a recipe of its own."""
    parsed = [Recipe("-".join(members), members, False, ()) for members in recipes]
    assert member_nodes(parsed) == nodes
    assert member_nodes(parsed[::-1]) == nodes
