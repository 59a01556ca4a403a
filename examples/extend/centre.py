# raysed/train/calibrations/centre.py
"""Centring: the mean of all embeddings goes to zero."""

import numpy as np

from raysed.model.calibration import Affine
from raysed.train.calibrations import Calibration


class _Centre(Calibration):
    name, title = "centre", "centring"
    words = "the mean of all vectors was then subtracted"

    def fit(self, x_ND, options):
        return Affine(np.eye(x_ND.shape[1]), -x_ND.mean(0, dtype=np.float64))


CALIBRATION = _Centre()
