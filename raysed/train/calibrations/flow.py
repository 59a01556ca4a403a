"""BERT-flow: an invertible network that makes embeddings Gaussian, fitted by `raysed.train.flow_fit`."""

import numpy as np

from raysed.model.calibration import Flow
from raysed.train.calibrations import Calibration, FitOptions
from raysed.train.flow_fit import fit_flow


class _FlowCalibration(Calibration):
    name, title = "flow", "the flow"
    words = "a normalizing flow (an invertible network fitted without labels) then makes the vectors Gaussian"
    is_affine = False

    def fit(self, x_ND: np.ndarray, options: FitOptions) -> Flow:
        return fit_flow(x_ND, options.flow, options.seed)


CALIBRATION = _FlowCalibration()
