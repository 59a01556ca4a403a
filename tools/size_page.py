"""Writes the plans of docs/size.md: what the papers' configurations need, on clusters that one can rent.

    python tools/size_page.py        (or: make docs)

No model and no text is read: encoders have the shapes that their papers give, tables as many rows as the papers say.
"""

import re
from pathlib import Path

from transformers import BertConfig, DistilBertConfig, RobertaConfig

from raysed.config import find_config, load_config
from raysed.model.shape import shape_of_model
from raysed.plan.size import described, in_words
from raysed.recipe import parse_recipes

PAGE = Path(__file__).resolve().parents[1] / "docs/size.md"
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ENCODERS = {
    "google-bert/bert-base-uncased": BertConfig(),
    "google-bert/bert-large-uncased": BertConfig(**_LARGE),
    "google-bert/bert-base-multilingual-cased": BertConfig(vocab_size=119_547),
    "distilbert/distilbert-base-uncased": DistilBertConfig(),
    "FacebookAI/roberta-large": RobertaConfig(**_LARGE, vocab_size=50_265, max_position_embeddings=514),
}
_ROWS = {
    **{"corpus": 1_000_000, "pairs/nli": 942_069, "pairs/sts": 5_749},
    **{"views/back_translation": 1_000_000, "views/files": 1_000_000},
}
"""Where a configuration does not draw a number of sentences of its own."""
PLANNED = {
    "bert-base-unsupervised": "1x4xA10G",
    "bert-large-unsupervised": "4x1xA10G",
    "distilbert-unsupervised": "1x4xA10G",
    "bert-large-nli": "1x8xA100-40G",
    "roberta-large-sts": "2x8xH100",
    "bert-base-bsl": "1x8xA100-40G",
    "mbert-bsl": "1x8xA100-40G",
}
"""Configurations that train, and a cluster for each."""


def plan_of(name: str, cluster: str) -> str:
    """Returns the plan of one of the package's configurations in words.

    Args:
        name: of the configuration.
        cluster: as `--cluster` takes it.
    """
    config = load_config(find_config(name))
    rows = _ROWS | ({"corpus": config.corpus.sentences} if config.corpus.sentences else {})
    shape = shape_of_model(_ENCODERS[config.encoder.path])
    return in_words(config, parse_recipes(config.recipes), shape, rows, described(cluster))


def page(text: str) -> str:
    """Returns the page with its plans written anew.

    Args:
        text: of the page.
    """
    plans = [
        f"### {name}\n\n```\n$ raysed run --config {name} --plan --cluster {cluster}\n{plan_of(name, cluster)}\n```\n"
        for name, cluster in PLANNED.items()
    ]
    return re.sub(
        r"(<!-- plans -->\n).*?(<!-- /plans -->)", lambda m: m[1] + "\n".join(plans) + m[2], text, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
