"""The flow's network for arrays of any number of rows; how it is fitted is in `train.flow_fit`."""

import numpy as np
import torch
from torch import Tensor

from raysed.errors import UserError
from raysed.model import glow

_TRANSFORM_ROWS = 1024


class Flow(glow.Glow):
    """The network (see `raysed.model.glow.Glow`) for arrays of any number of rows; refuses widths that do not fit."""

    def __init__(
        self, width: int, levels: int = 2, depth: int = 3, hidden: int = 32, generator: torch.Generator | None = None
    ):
        if width < 1 or width % 2**levels:
            raise UserError(
                f"embeddings of width {width} do not fit this flow: flow.variant paper needs a multiple of 4, released "
                "a multiple of 8; whiten works with any width"
            )
        super().__init__(width, levels, depth, hidden, generator)

    @torch.inference_mode()
    def transform(self, x_ND: np.ndarray) -> np.ndarray:
        """Return z_ND as float32 for any number of rows, a block of rows at a time; refuse rows of another width."""
        require_width(x_ND, self.width)
        z_ND = np.empty((len(x_ND), self.width), np.float32)
        for start in range(0, len(x_ND), _TRANSFORM_ROWS):
            rows = slice(start, start + _TRANSFORM_ROWS)
            x_BD = torch.tensor(x_ND[rows], dtype=self.shift.dtype, device=self.shift.device)
            z_ND[rows] = self(x_BD)[0].cpu().numpy()
        return z_ND


def require_finite(embeddings_ND: np.ndarray | Tensor) -> None:
    """Refuse NaN and infinite embeddings.

    >>> require_finite(np.array([[0.0, 1.0], [np.nan, 0.0]]))
    Traceback (most recent call last):
        ...
    raysed.errors.UserError: 1 of 2 embeddings are NaN or infinite (rows 1): check the encoder that made them
    """
    rows = np.flatnonzero(~np.isfinite(np.asarray(embeddings_ND)).all(1)).tolist()
    if rows:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise UserError(
            f"{len(rows)} of {len(embeddings_ND)} embeddings are NaN or infinite (rows {shown}): "
            "check the encoder that made them"
        )


def require_width(x_ND: np.ndarray, width: int) -> None:
    """Refuse embeddings that a calibration of this width was not fitted on."""
    if x_ND.ndim != 2 or x_ND.shape[1] != width:
        raise UserError(f"this calibration needs embeddings of width {width}, but got shape {x_ND.shape}")
