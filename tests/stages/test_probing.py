"""Which models are given transfer tasks and QNLI, and what a report calls them."""

import pytest

from raysed.config import make_config
from raysed.plan.artefacts import ScoredModel
from raysed.stages.probing import asked_models, names_of


def model(recipe: str, index: int = 0, left_out: bool = False) -> ScoredModel:
    return ScoredModel(recipe, "member", index, f"{recipe}/embeddings/{index}", (2,), f"{recipe}/{index}", left_out)


MODELS = [
    model("base"),
    *(model("nli", 0, left_out=True), model("nli", 1), model("nli", 2)),
    *(model("bsl", 0, left_out=True), model("bsl", 1, left_out=True)),
    *(model("teachers", 0), model("teachers", 1)),
]


@pytest.mark.parametrize(
    ("models", "names"),
    [
        ("first", ["base", "nli", "bsl", "teachers/00", "teachers/01"]),
        ("all", ["base", "nli/01", "nli/02", "bsl", "teachers/00", "teachers/01"]),
    ],
)
def test_the_models_that_are_asked(models, names):
    """Collapsed ones are not asked, unless a recipe has no others; the first healthy one is, and every teacher."""
    config = make_config({"evaluation": {"transfer": {"models": models}}})
    asked = asked_models(MODELS, config)
    assert list(names_of(asked).values()) == names
    assert [(m.recipe, m.index) for m in asked][:2] == [("base", 0), ("nli", 1)]
    assert [m.index for m in asked if m.recipe == "bsl"] == [0]
