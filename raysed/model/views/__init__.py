"""Makers of two views of a sentence that mean the same (BSL sections 3.2 and 4.4): a file for each kind.

Each file has
- `check(views, encoder)`: finds before a run starts what `maker` would refuse, without making anything;
- `maker(views, encoder, seed, device)`: returns a function of sentences and their ids. What it draws for a sentence
  depends on the seed and the id alone, however sentences are spread over calls and workers;
- `models(views, encoder)`: the models that it loads, with the settings that name them;
- `UNIT`: what it counts.
"""

from raysed.config import EncoderConfig, ViewsConfig
from raysed.model.shape import shape_of
from raysed.model.views import back_translation, masked, synonyms

KINDS = {"synonym": synonyms, "mlm": masked, "back_translation": back_translation}


def weights_bytes(kind: str, views: ViewsConfig, encoder: EncoderConfig) -> int:
    """Estimate the memory of one maker's weights, in fp32."""
    return 4 * sum(shape_of(config).parameters for _, config in KINDS[kind].models(views, encoder))
