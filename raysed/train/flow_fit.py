"""Fit BERT-flow, an invertible map that makes sentence embeddings look Gaussian.

Where paper and released code disagree, the settings of `FlowConfig` choose. Variants: see `raysed.model.glow`. Levels:
2 in the paper, 3 in the code. Initialisation from the data: in Glow, which the paper follows; the code has it, but its
script never runs it, so the flow starts at small random values. Source: Li et al., EMNLP 2020, section 3.2, table 7 and
appendices A and B.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import Flow, require_finite
from raysed.model.glow import RELEASED
from raysed.train.flow_gradient import AutogradObjective, FlowObjective
from raysed.train.optimizers import UncorrectedAdamW

INITIALISATION_ROWS = 2048
CLIP = 1.0


def fit_flow(
    embeddings_ND: np.ndarray | Tensor,
    config: FlowConfig,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Flow:
    """Fit a flow to embeddings by maximum likelihood (BERT-flow section 3.2 and appendix B).

    Rows 2i and 2i + 1 are a pair (A, B), as in the released code; a last row without a partner is dropped. Pairs are
    reshuffled every epoch. The loss is the mean bits per dimension of the As plus that of the Bs. After each update,
    counted from 1, `on_step` gets `loss`, `bits_per_dim` (half of it) and `gradient_norm`.

    On a CPU the fit uses one thread. A second one saves a seventh of the time, but costs several times as much when
    other processes compete for the cores. On a CPU, equal arguments give bit-identical flows.
    """
    require_finite(embeddings_ND)
    if (count := len(embeddings_ND)) < 2:
        raise UserError(f"a flow cannot be fitted on {count} sentences; flow.fit_on must provide at least two")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x_ND = torch.as_tensor(embeddings_ND[: count // 2 * 2], dtype=torch.float32).contiguous()
        return _fit_flow(x_ND, config, seed, on_step)
    finally:
        torch.set_num_threads(threads)


def _fit_flow(
    x_ND: Tensor, config: FlowConfig, seed: int, on_step: Callable[[int, dict[str, float]], None] | None
) -> Flow:
    generator = torch.Generator().manual_seed(seed)
    shape = x_ND.shape[1], config.levels, config.depth, config.hidden
    flow = Flow(*shape, config.variant, generator).to(x_ND.device)
    if config.data_dependent_init:
        flow.initialize_(x_ND[torch.randperm(len(x_ND), generator=generator)[:INITIALISATION_ROWS]])
    x_P2D = x_ND.view(len(x_ND) // 2, 2, -1)
    size, updates = _updates(len(x_P2D), config)
    objective = FlowObjective(flow, 2 * size) if config.variant == RELEASED else AutogradObjective(flow)
    optimizer = UncorrectedAdamW(objective.parameters, config.learning_rate)  # as released: decays biases, too
    order = torch.empty(0, dtype=torch.long)  # of pairs: a stream of separately shuffled epochs
    for step in range(1, updates + 1):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(len(x_P2D), generator=generator)])
        pairs, order = order[:size], order[size:]
        loss = objective.backward(x_P2D.index_select(0, pairs.to(x_ND.device)).flatten(0, 1)).item()
        norm = nn.utils.clip_grad_norm_(objective.parameters, CLIP).item()
        optimizer.step()
        if not math.isfinite(loss + norm):
            problem = "before the first update: the embeddings (largest value "
            problem += f"{x_ND.abs().max():.2g}) are too large or too uneven for a flow; use whiten instead"
            if step > 1:
                problem = f"at update {step}; lower flow.learning_rate, which is {config.learning_rate:g} "
                problem += "(BERT-flow: 0.001)"
            raise UserError(f"the flow's loss is not finite {problem}")
        if on_step:
            on_step(step, {"loss": loss, "bits_per_dim": loss / 2, "gradient_norm": norm})
    objective.write_back()
    return flow.eval()


def distinct_pairs(pairs: int, config: FlowConfig) -> int:
    """Return how many of the pairs a fit uses: fewer than all if `epochs` is below 1.

    >>> distinct_pairs(1000, FlowConfig(epochs=0.15)), distinct_pairs(1000, FlowConfig(epochs=2))
    (128, 1000)
    """
    if config.epochs >= 1 or not pairs:
        return pairs
    size, updates = _updates(pairs, config)
    return size * updates


def _updates(pairs: int, config: FlowConfig) -> tuple[int, int]:
    size = min(config.batch_size, pairs)
    # Without the small term, 0.29 * 100 would be cut to 28.
    return size, max(1, int(pairs * config.epochs / size + 1e-9))
