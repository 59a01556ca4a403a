"""The calibration that ends a recipe: a flow, or a chain of affine maps multiplied into one."""

from collections.abc import Callable, Sequence

import numpy as np

from raysed.config import FlowConfig
from raysed.model.calibration import Affine, CalibrationMap
from raysed.registry import calibrations
from raysed.train.calibrations import FitOptions
from raysed.train.calibrations.natsv import MOST_DIRECTIONS, largest_k


def fit_calibration(
    stages: Sequence[str],
    embeddings_ND: np.ndarray,
    flow_config: FlowConfig,
    natsv_k: int | None,
    seed: int,
) -> CalibrationMap:
    """Fit the calibration that ends a recipe. Each stage of a chain is fitted on the output of the one before.

    For the flow, rows 2i and 2i + 1 are pairs.

    >>> x_ND = np.random.default_rng(0).normal(size=(50, 4))
    >>> fit_calibration(["sn", "natsv"], x_ND, FlowConfig(), natsv_k=1, seed=0).width
    4
    """
    known = calibrations()
    options = FitOptions(flow_config, natsv_k, seed)
    calibration = known[stages[0]].fit(embeddings_ND, options)
    for stage in stages[1:]:
        calibration = calibration.then(known[stage].fit(calibration.transform(embeddings_ND), options))
    return calibration


def choose_natsv_k(
    stages: Sequence[str], embeddings_ND: np.ndarray, score: Callable[[Affine], float], most: int = MOST_DIRECTIONS
) -> int:
    """Return the k of `natsv`, 1 to `most`, whose chain scores highest (BERT-flow section 4.3).

    Ties go to the smallest k. At least one direction remains.
    """
    counts = range(1, max(1, min(most, largest_k(embeddings_ND))) + 1)
    scores = [score(fit_calibration(stages, embeddings_ND, FlowConfig(), k, seed=0)) for k in counts]
    return int(np.argmax(scores)) + 1
