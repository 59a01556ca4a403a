"""Affine calibrations of embeddings: standard normalization, nulling of top directions, whitening.

Each is fitted on the embeddings of unlabelled sentences and has the flow's interface, `transform(x_ND)`.
Chained ones multiply out to a single affine map, so they cost one matrix product and can be exported as one
linear layer. An artefact of a run holds one calibration per pooling, or one per pooling and task.

Sources: `sn` and `natsv` are the baselines of BERT-flow (section 4.3 and table 5, after Arora et al. 2017 and
Mu et al. 2017); `whiten` is the linear counterpart of the flow.
"""

from collections.abc import Callable, Sequence

import numpy as np

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.affine import Affine, CalibrationMap
from raysed.model.flow import require_finite
from raysed.train.flow_fit import fit_flow

MOST_DIRECTIONS = 20
"""The largest k of `natsv` that is tried on the dev task (BERT-flow section 4.3)."""
VARIANCE_FLOOR = 1e-10
"""Directions with less than this share of the largest variance are rounding noise: they are set to zero."""
_BLOCK_ROWS = 8192


def fit_sn(x_ND: np.ndarray) -> Affine:
    """Standard normalization: (x - mean) / standard deviation, per channel. A constant channel becomes zero.

    Raises:
        UserError: no rows, or NaN or infinite ones.

    >>> fit_sn(np.array([[0.0, 5.0], [2.0, 5.0]])).transform(np.array([[0.0, 5.0], [4.0, 7.0]])).tolist()
    [[-1.0, 0.0], [3.0, 0.0]]
    """
    mean_D, covariance_DD = _statistics(x_ND)
    weight_DD = np.diag(_inverse_deviations(np.diag(covariance_DD)))
    return Affine(weight_DD, -mean_D @ weight_DD)


def fit_natsv(x_ND: np.ndarray, k: int) -> Affine:
    """Removes the mean and the projections on the k directions of largest variance.

    These are the top k singular vectors of the centred rows (Mu et al. 2017; BERT-flow does not say whether
    it centres). BERT-flow chooses k from 1 to 20 on a validation set: 10 alone, 6 after `sn`.

    Raises:
        UserError: k does not leave a direction, or rows that `fit_sn` refuses.
    """
    return _without_top(*_directions(x_ND, k), k)


def largest_k(x_ND: np.ndarray) -> int:
    """Returns how many directions `fit_natsv` can remove from these rows so that one is left."""
    return min(len(x_ND) - 2, x_ND.shape[1] - 1)


def fit_whiten(x_ND: np.ndarray) -> Affine:
    """Maps to zero mean and identity covariance: x -> (x - mean) @ covariance**-0.5.

    Of the maps that do this it is the symmetric one, which moves the embeddings least; all of them give the
    same cosines. Directions without variance (see `VARIANCE_FLOOR`; there are some whenever there are fewer
    rows than channels) become zero instead of being blown up.

    Raises:
        UserError: no rows, or NaN or infinite ones.
    """
    mean_D, covariance_DD = _statistics(x_ND)
    variances_D, directions_DD = np.linalg.eigh(covariance_DD)
    weight_DD = (directions_DD * _inverse_deviations(variances_D)) @ directions_DD.T
    return Affine(weight_DD, -mean_D @ weight_DD)


def fit_calibration(
    stages: Sequence[str],
    embeddings_ND: np.ndarray,
    flow_config: FlowConfig,
    natsv_k: int | None,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> CalibrationMap:
    """Fits the calibration that ends a recipe.

    Args:
        stages: `["flow"]`, or one or more of `sn`, `natsv` and `whiten`, each fitted on what the ones before
            it give.
        embeddings_ND: rows to fit on; for the flow, rows 2i and 2i + 1 are pairs.
        flow_config: used by `flow`.
        natsv_k: directions that `natsv` removes; None where it is no stage.
        seed: used by `flow`; the others have no randomness.
        on_step: as for `raysed.train.flow_fit.fit_flow`; the others do not call it.

    Raises:
        UserError: unknown or mixed stages, or embeddings that a stage refuses.

    >>> x_ND = np.random.default_rng(0).normal(size=(50, 4))
    >>> fit_calibration(["sn", "natsv"], x_ND, FlowConfig(), natsv_k=1, seed=0).width
    4
    """
    if list(stages) == ["flow"]:
        return fit_flow(embeddings_ND, flow_config, seed, on_step)
    fits = {"sn": fit_sn, "natsv": lambda x_ND: fit_natsv(x_ND, natsv_k), "whiten": fit_whiten}
    if not stages or not set(stages) <= set(fits):
        raise UserError(
            f"calibration {'-'.join(stages)!r} is not known: it must be flow, or a chain of {', '.join(fits)}"
        )
    return _chain([fits[stage] for stage in stages], embeddings_ND)


def choose_natsv_k(
    stages: Sequence[str], embeddings_ND: np.ndarray, score: Callable[[Affine], float], most: int = MOST_DIRECTIONS
) -> int:
    """Chooses k of a calibration with `natsv` by a score, as BERT-flow does on a validation set (section 4.3).

    Args:
        stages: a chain of affine stages, `natsv` among them; the score is that of the whole chain.
        score: of a fitted calibration; more is better.
        most: the largest k to try, where the rows allow so many.

    Returns:
        The k from 1 to `most` of the best score; of equal scores the smallest.

    Raises:
        UserError: there is no direction to remove, or rows that `fit_sn` refuses.
    """
    place = list(stages).index("natsv")
    fits = {"sn": fit_sn, "whiten": fit_whiten}
    before = _chain([fits[stage] for stage in stages[:place]], embeddings_ND) if place else None
    x_ND = before.transform(embeddings_ND) if before else embeddings_ND
    directions, scores = _directions(x_ND, 1), []
    for k in range(1, max(1, min(most, largest_k(x_ND))) + 1):
        rest = _chain([lambda _, k=k: _without_top(*directions, k), *(fits[s] for s in stages[place + 1 :])], x_ND)
        scores.append(score(before.then(rest) if before else rest))
    return int(np.argmax(scores)) + 1


def _chain(fits: Sequence[Callable[[np.ndarray], Affine]], x_ND: np.ndarray) -> Affine:
    """Fits each on what the ones before it give."""
    calibration = fits[0](x_ND)
    for fit in fits[1:]:
        calibration = calibration.then(fit(calibration.transform(x_ND)))
    return calibration


def _directions(x_ND: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and the directions by rising variance as columns; refuses rows from which k cannot be removed."""
    mean_D, covariance_DD = _statistics(x_ND)
    if not 1 <= k <= largest_k(x_ND):
        raise UserError(
            f"calibration.natsv_k is {k}, but with {len(x_ND)} embeddings of width {len(mean_D)} it must be 1 to "
            f"{largest_k(x_ND)}"
        )
    return mean_D, np.linalg.eigh(covariance_DD).eigenvectors


def _without_top(mean_D: np.ndarray, directions_DD: np.ndarray, k: int) -> Affine:
    top_DK = directions_DD[:, -k:]
    weight_DD = np.eye(len(mean_D)) - top_DK @ top_DK.T
    return Affine(weight_DD, -mean_D @ weight_DD)


def _statistics(x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the covariance (divided by N) in float64, a block of rows at a time."""
    require_finite(x_ND)
    if not len(x_ND):
        raise UserError("there are no sentences to fit a calibration on; flow.fit_on must provide some")
    mean_D = x_ND.mean(0, dtype=np.float64)
    covariance_DD = np.zeros((len(mean_D), len(mean_D)))
    for start in range(0, len(x_ND), _BLOCK_ROWS):
        centred_BD = x_ND[start : start + _BLOCK_ROWS] - mean_D
        covariance_DD += centred_BD.T @ centred_BD
    return mean_D, covariance_DD / len(x_ND)


def _inverse_deviations(variances_D: np.ndarray) -> np.ndarray:
    """Returns 1 / sqrt(variance), and zero for variances under the floor."""
    seen_D = variances_D > VARIANCE_FLOOR * variances_D.max()
    return np.where(seen_D, 1 / np.sqrt(np.where(seen_D, variances_D, 1.0)), 0.0)
