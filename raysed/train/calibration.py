"""The calibration that ends a recipe: one flow, or a chain of affine maps that multiply out to one."""

from collections.abc import Callable, Sequence

import numpy as np

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import Affine, CalibrationMap
from raysed.registry import calibrations
from raysed.train.calibrations import FitOptions
from raysed.train.calibrations.natsv import MOST_DIRECTIONS, directions, largest_k, without_top


def fit_calibration(
    stages: Sequence[str],
    embeddings_ND: np.ndarray,
    flow_config: FlowConfig,
    natsv_k: int | None,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> CalibrationMap:
    """Fit the calibration that ends a recipe; a chain's stages are each fitted on what the ones before them give.

    Args:
        embeddings_ND: rows to fit on; for the flow, rows 2i and 2i + 1 are pairs.
        natsv_k: directions that `natsv` removes.
        on_step: as for `raysed.train.flow_fit.fit_flow`; the others do not call it.

    >>> x_ND = np.random.default_rng(0).normal(size=(50, 4))
    >>> fit_calibration(["sn", "natsv"], x_ND, FlowConfig(), natsv_k=1, seed=0).width
    4
    """
    known = calibrations()
    is_known = bool(stages) and set(stages) <= set(known)
    if not is_known or (len(stages) > 1 and not all(known[stage].is_affine for stage in stages)):
        affine = ", ".join(name for name, calibration in known.items() if calibration.is_affine)
        raise UserError(f"calibration {'-'.join(stages)!r} is not known: it must be flow, or a chain of {affine}")
    return _chain(stages, embeddings_ND, FitOptions(flow_config, natsv_k, seed, on_step))


def choose_natsv_k(
    stages: Sequence[str], embeddings_ND: np.ndarray, score: Callable[[Affine], float], most: int = MOST_DIRECTIONS
) -> int:
    """Return the k of `natsv`, 1 to `most`, by which the whole chain scores best (BERT-flow section 4.3).

    More is better; of equal scores the smallest k wins, and at least one direction is left.
    """
    place = list(stages).index("natsv")
    before = _chain(stages[:place], embeddings_ND) if place else None
    x_ND = before.transform(embeddings_ND) if before else embeddings_ND
    found, scores = directions(x_ND, 1), []
    for k in range(1, max(1, min(most, largest_k(x_ND))) + 1):
        cut = without_top(*found, k)
        rest = cut.then(_chain(stages[place + 1 :], cut.transform(x_ND))) if stages[place + 1 :] else cut
        scores.append(score(before.then(rest) if before else rest))
    return int(np.argmax(scores)) + 1


def _chain(stages: Sequence[str], x_ND: np.ndarray, options: FitOptions | None = None) -> CalibrationMap:
    options = options or FitOptions(FlowConfig(), None, seed=0)
    calibration = calibrations()[stages[0]].fit(x_ND, options)
    for stage in stages[1:]:
        calibration = calibration.then(calibrations()[stage].fit(calibration.transform(x_ND), options))
    return calibration
