"""Calibrations, one per file, found by `raysed.registry`. CONTRIBUTING.md shows how to add one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import CalibrationMap, require_finite

VARIANCE_FLOOR = 1e-10
"""Directions below this share of the largest variance are rounding noise; fits set them to zero."""
_BLOCK_ROWS = 8192


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit; each calibration reads those it needs."""

    flow: FlowConfig
    natsv_k: int | None
    seed: int


class Calibration:
    """A calibration, by its name in recipes.

    Attributes:
        title: its name in sentences of the report.
        words: what it does, for the model card.
        is_affine: whether `fit` returns an `Affine`; only these can be chained.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    words: ClassVar[str]
    is_affine: ClassVar[bool] = True

    def fit(self, x_ND: np.ndarray, options: FitOptions) -> CalibrationMap:
        """Fit to embeddings of unlabelled sentences."""
        raise NotImplementedError


def mean_and_covariance(x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance (divided by N) in float64, computed in blocks of rows."""
    require_finite(x_ND)
    if not len(x_ND):
        raise UserError("there are no sentences to fit a calibration on; flow.fit_on must provide some")
    mean_D = x_ND.mean(0, dtype=np.float64)
    covariance_DD = np.zeros((len(mean_D), len(mean_D)))
    for start in range(0, len(x_ND), _BLOCK_ROWS):
        centred_BD = x_ND[start : start + _BLOCK_ROWS] - mean_D
        covariance_DD += centred_BD.T @ centred_BD
    return mean_D, covariance_DD / len(x_ND)


def inverse_deviations(variances_D: np.ndarray) -> np.ndarray:
    """Return 1 / sqrt(variance), and zero for variances below the floor."""
    seen_D = variances_D > VARIANCE_FLOOR * variances_D.max()
    return np.where(seen_D, 1 / np.sqrt(np.where(seen_D, variances_D, 1.0)), 0.0)
