"""The fit of BERT-flow, an invertible map that makes sentence embeddings look Gaussian.

Where paper and released code disagree, `FlowConfig.variant` chooses: `paper` has 2 levels and starts from the data's
own means and deviations; `released` has 3 and starts from small random values, because the released script never runs
its initialisation. Source: Li et al., EMNLP 2020, section 3.2, table 7 and appendices A and B.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import Flow, require_finite
from raysed.train.flow_gradient import FlowObjective
from raysed.train.optimizers import UncorrectedAdamW

INITIALISATION_ROWS = 2048
CLIP = 1.0
_LEVELS = {"paper": 2, "released": 3}


def fit_flow(
    embeddings_ND: np.ndarray | Tensor,
    config: FlowConfig,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Flow:
    """Fit a flow to embeddings by maximum likelihood (BERT-flow section 3.2 and appendix B).

    Rows 2i and 2i + 1 are a pair (A, B), as in the released code; a last row without a partner is left out, and pairs
    are shuffled anew for every epoch. The loss is the mean bits per dimension of the As plus that of the Bs. The
    released code runs the encoder in every step, with its dropout on.

    On a CPU the fit takes one thread, because a second one gains a seventh of the time, and loses several times of it
    where other processes want the cores. The result is a function of the arguments alone there, bit for bit.

    Args:
        on_step: called after update 1, 2, ... with `loss`, `bits_per_dim` (half of the loss) and `gradient_norm`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _fit_flow(_pairs_of_rows(embeddings_ND), config, seed, on_step)
    finally:
        torch.set_num_threads(threads)


def _fit_flow(
    x_ND: Tensor, config: FlowConfig, seed: int, on_step: Callable[[int, dict[str, float]], None] | None
) -> Flow:
    generator = torch.Generator().manual_seed(seed)
    width, levels = x_ND.shape[1], _LEVELS[config.variant]
    flow = Flow(width, levels, config.depth, config.hidden, generator).to(x_ND.device)
    if config.variant == "paper":
        flow.initialize_(x_ND[torch.randperm(len(x_ND), generator=generator)[:INITIALISATION_ROWS]])
    x_P2D = x_ND.view(len(x_ND) // 2, 2, -1)
    objective = FlowObjective(flow, 2 * _updates(len(x_P2D), config)[0])
    optimizer = UncorrectedAdamW([objective.vector], config.learning_rate)  # as released: biases are decayed, too
    for step, pairs in enumerate(_batches(len(x_P2D), config, generator), start=1):
        loss = objective.backward(x_P2D.index_select(0, pairs.to(x_ND.device)).flatten(0, 1)).item()
        norm = nn.utils.clip_grad_norm_([objective.vector], CLIP).item()
        optimizer.step()
        if not math.isfinite(loss + norm):
            raise UserError(_divergence(step, x_ND, config))
        if on_step:
            on_step(step, {"loss": loss, "bits_per_dim": loss / 2, "gradient_norm": norm})
    objective.write_back()
    return flow.eval()


def _divergence(step: int, x_ND: Tensor, config: FlowConfig) -> str:
    if step > 1:
        remedy = f"lower flow.learning_rate, which is {config.learning_rate:g} (BERT-flow: 0.001)"
        return f"the flow's loss is not finite at update {step}; {remedy}"
    return (
        f"the flow's loss is not finite before the first update: the embeddings (largest value "
        f"{x_ND.abs().max():.2g}) are too large or too uneven for a flow; use whiten instead"
    )


def distinct_pairs(pairs: int, config: FlowConfig) -> int:
    """Return how many of the pairs a fit uses at all: fewer than there are where `epochs` is below 1.

    >>> distinct_pairs(1000, FlowConfig(epochs=0.15)), distinct_pairs(1000, FlowConfig(epochs=2))
    (128, 1000)
    """
    if config.epochs >= 1 or not pairs:
        return pairs
    size, updates = _updates(pairs, config)
    return size * updates


def _pairs_of_rows(embeddings_ND: np.ndarray | Tensor) -> Tensor:
    require_finite(embeddings_ND)
    if len(embeddings_ND) < 2:
        count = len(embeddings_ND)
        raise UserError(f"a flow cannot be fitted on {count} sentences; flow.fit_on must provide at least two")
    even = embeddings_ND[: len(embeddings_ND) // 2 * 2]
    if isinstance(even, Tensor):
        return even.detach().to(torch.float32).contiguous()
    return torch.tensor(even, dtype=torch.float32)


def _batches(pairs: int, config: FlowConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the pairs of each update: whole batches of a stream of epochs, each in its own order."""
    size, updates = _updates(pairs, config)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(updates):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(pairs, generator=generator)])
        yield order[:size]
        order = order[size:]


def _updates(pairs: int, config: FlowConfig) -> tuple[int, int]:
    """Return the pairs per update, and the updates in all."""
    size = min(config.batch_size, pairs)
    # The small term keeps a product such as 0.29 * 100 from being cut to 28.
    return size, max(1, int(pairs * config.epochs / size + 1e-9))
