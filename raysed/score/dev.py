"""The dev score of an encoder while it trains."""

from collections.abc import Callable
from typing import Any, Literal

from raysed.config import Config
from raysed.data.tokens import tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import default_token_budget, encode
from raysed.score.tasks import Evaluation, comparable, load_any_task, score_by

_WHILE_TRAINING = 8192
"""Tokens per forward pass at most: memory holds weights and moments, too, maybe of other members on the same GPU."""


def dev_score(
    config: Config, tokenizer: Any, metric: Literal["spearman", "pearson"] = "spearman"
) -> Callable[[Encoder], float] | None:
    """Returns the dev task's correlation x100 of an encoder, 0 where it is not defined; None without a dev task."""
    name = config.evaluation.dev
    if name is None:
        return None
    evaluation = Evaluation(
        [load_any_task(name, config.evaluation.tasks[name], config.seed, config.evaluation.aggregation)]
    )
    tokens = tokenize(tokenizer, evaluation.sentences, config.encoder.max_length)

    def score(encoder: Encoder) -> float:
        device = next(encoder.parameters()).device
        budget = config.resources.encode_token_budget or min(default_token_budget(device), _WHILE_TRAINING)
        embeddings_UD = encode(encoder, tokens, (config.encoder.layers,), budget)[0]
        return comparable(score_by(evaluation.score(embeddings_UD)[name], metric))

    return score
