"""Makers of two views of a sentence with the same meaning (BSL sections 3.2 and 4.4), one file per kind.

Each file has
- `check(views, encoder)`: raises before the run starts what `maker` would raise, without making views;
- `maker(views, encoder, seed, device)`: returns a `Maker`. Its random draws for a sentence depend on seed and id only,
  not on how sentences are spread over calls and workers;
- `models(views, encoder)`: the models that it loads, each with the setting that names it;
- `UNIT`: the unit of `Made.chosen` and `Made.total`.
"""

from raysed.config import EncoderConfig, ViewsConfig
from raysed.model.shape import shape_of
from raysed.model.views import back_translation, masked, synonyms

KINDS = {"synonym": synonyms, "mlm": masked, "back_translation": back_translation}


def weights_bytes(kind: str, views: ViewsConfig, encoder: EncoderConfig) -> int:
    """Estimate the bytes of one maker's weights in fp32."""
    return 4 * sum(shape_of(config).parameters for _, config in KINDS[kind].models(views, encoder))
