"""Makers of two views of a sentence that mean the same (BSL sections 3.2 and 4.4): a file for each kind.

Each file has
- `check(views, encoder)`: finds before a run starts what `maker` would refuse, without making anything;
- `maker(views, encoder, seed, device)`: returns a function of sentences and their ids. What it draws for a sentence
  depends on the seed and the id alone, however sentences are spread over calls and workers;
- `models(views, encoder)`: the models that it loads, with the settings that name them;
- `UNIT`: what it counts.
"""

import json

from raysed.config import EncoderConfig, ViewsConfig
from raysed.model.views import back_translation, masked, synonyms
from raysed.model.views.common import folder_of, loading
from raysed.store.hub import encoder_path

KINDS = {"synonym": synonyms, "mlm": masked, "back_translation": back_translation}
_UNKNOWN_BYTES = 300_000_000
"""Weights of a model that has not been fetched yet; a Marian model of the paper has about as many."""


def weights_bytes(kind: str, views: ViewsConfig, encoder: EncoderConfig) -> int:
    """Estimate the memory of one maker's weights in fp32, from the sizes of their files and without loading any."""
    sizes = {}
    for setting, config in KINDS[kind].models(views, encoder):
        with loading(setting, config.path):
            path = encoder_path(config)
            folder = folder_of(path)
            files = list(folder.glob("*.safetensors")) if folder else []
            sizes[path] = _UNKNOWN_BYTES
            if files:
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                is_half = (config.get("dtype") or config.get("torch_dtype")) in ("float16", "bfloat16")
                sizes[path] = (1 + is_half) * sum(file.stat().st_size for file in files)
    return sum(sizes.values())
