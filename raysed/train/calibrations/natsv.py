"""Removal of the directions of largest variance, a baseline of BERT-flow (section 4.3; Arora and Mu 2017)."""

import numpy as np

from raysed.errors import UserError
from raysed.model.calibration import Affine
from raysed.train.calibrations import Calibration, FitOptions, mean_and_covariance

MOST_DIRECTIONS = 20
"""Largest k tried on the dev task (BERT-flow section 4.3)."""


def largest_k(x_ND: np.ndarray) -> int:
    """Return how many directions can be removed from these rows if one must remain."""
    return min(len(x_ND) - 2, x_ND.shape[1] - 1)


class _Natsv(Calibration):
    name, title = "natsv", "NATSV"
    words = "the directions that all vectors share were then removed"

    def fit(self, x_ND: np.ndarray, options: FitOptions) -> Affine:
        """Remove the mean and the projections on the k directions of largest variance.

        These are the top k singular vectors of the centred rows (Mu et al. 2017; BERT-flow does not say whether it
        centres). BERT-flow chooses k from 1 to 20 on a validation set: 10 alone, 6 after `sn`.
        """
        mean_D, covariance_DD = mean_and_covariance(x_ND)
        k = options.natsv_k
        if not 1 <= k <= largest_k(x_ND):
            most = f"with {len(x_ND)} embeddings of width {len(mean_D)} it must be 1 to {largest_k(x_ND)}"
            raise UserError(f"calibration.natsv_k is {k}, but {most}")
        top_DK = np.linalg.eigh(covariance_DD).eigenvectors[:, -k:]
        weight_DD = np.eye(len(mean_D)) - top_DK @ top_DK.T
        return Affine(weight_DD, -mean_D @ weight_DD)


CALIBRATION = _Natsv()
