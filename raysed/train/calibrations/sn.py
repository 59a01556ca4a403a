"""Standard normalization, a baseline of BERT-flow (table 5)."""

import numpy as np

from raysed.model.calibration import Affine
from raysed.train.calibrations import Calibration, FitOptions, inverse_deviations, mean_and_covariance


class _Sn(Calibration):
    name, title = "sn", "SN"
    words = "every coordinate was then shifted and scaled to mean 0 and deviation 1"

    def fit(self, x_ND: np.ndarray, options: FitOptions | None = None) -> Affine:
        """Standardise each channel: (x - mean) / standard deviation. A constant channel becomes zero.

        >>> CALIBRATION.fit(np.array([[0.0, 5.0], [2.0, 5.0]])).transform(np.array([[0.0, 5.0], [4.0, 7.0]])).tolist()
        [[-1.0, 0.0], [3.0, 0.0]]
        """
        mean_D, covariance_DD = mean_and_covariance(x_ND)
        weight_DD = np.diag(inverse_deviations(np.diag(covariance_DD)))
        return Affine(weight_DD, -mean_D @ weight_DD)


CALIBRATION = _Sn()
