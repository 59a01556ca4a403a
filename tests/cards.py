"""A model card with nothing on it, for tests of what lies beside it."""

from typing import Any

from raysed.data.tokens import LengthReport
from raysed.model.export import Card


def plain_card(max_length: int, **others: Any) -> Card:
    """A card of a tiny model; `others` replace its words."""
    words = {
        "name": "tiny",
        "recipe": "ct",
        "base": "tiny",
        "members": 1,
        "left_out": 0,
        "corpus": "none",
        "lengths": LengthReport(max_length),
        "scores": "",
        "measure": "Spearman correlation, x100, mean over toy",
        "aggregation": "mean",
        "settings": {},
        "versions": {},
    }
    return Card(**{**words, **others})
