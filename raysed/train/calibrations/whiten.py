"""Whitening, the linear counterpart of the flow."""

import numpy as np

from raysed.model.calibration import Affine
from raysed.train.calibrations import Calibration, FitOptions, inverse_deviations, mean_and_covariance


class _Whiten(Calibration):
    name, title = "whiten", "whitening"
    words = "the coordinates were then made uncorrelated and equally large (whitening)"

    def fit(self, x_ND: np.ndarray, options: FitOptions | None = None) -> Affine:
        """Map to zero mean and identity covariance: x -> (x - mean) @ covariance**-0.5.

        This symmetric map moves the embeddings least; all whitening maps give the same cosines. Directions without
        variance, as with fewer rows than channels, become zero.
        """
        mean_D, covariance_DD = mean_and_covariance(x_ND)
        variances_D, directions_DD = np.linalg.eigh(covariance_DD)
        weight_DD = (directions_DD * inverse_deviations(variances_D)) @ directions_DD.T
        return Affine(weight_DD, -mean_D @ weight_DD)


CALIBRATION = _Whiten()
