"""Calibrations of embeddings (a flow or an affine map) and their files."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from raysed.errors import UserError
from raysed.model import glow

_TRANSFORM_ROWS = 1024


class Flow(glow.Glow):
    """A `Glow` that rejects widths it cannot split and transforms arrays block by block."""

    def __init__(
        self,
        width: int,
        levels: int = 2,
        depth: int = 3,
        hidden: int = 32,
        variant: str = glow.RELEASED,
        generator: torch.Generator | None = None,
    ):
        if width < 1 or width % 2**levels:
            raise UserError(
                f"embeddings of width {width} do not fit this flow: with flow.levels {levels} the width must be a "
                f"multiple of {2**levels}; lower flow.levels, or use whiten, which works with any width"
            )
        super().__init__(width, levels, depth, hidden, variant, generator)

    @torch.inference_mode()
    def transform(self, x_ND: np.ndarray) -> np.ndarray:
        """Return z_ND as float32; raise UserError for another width."""
        require_width(x_ND, self.width)
        z_ND = np.empty((len(x_ND), self.width), np.float32)
        for start in range(0, len(x_ND), _TRANSFORM_ROWS):
            rows = slice(start, start + _TRANSFORM_ROWS)
            x_BD = torch.tensor(x_ND[rows], dtype=self.shift.dtype, device=self.shift.device)
            z_ND[rows] = self(x_BD)[0].cpu().numpy()
        return z_ND


def require_finite(embeddings_ND: np.ndarray | torch.Tensor) -> None:
    """Raise UserError if any embedding is NaN or infinite.

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
    """Raise UserError unless the embeddings are [N, width]."""
    if x_ND.ndim != 2 or x_ND.shape[1] != width:
        raise UserError(f"this calibration needs embeddings of width {width}, but got shape {x_ND.shape}")


@dataclass(frozen=True, eq=False)
class Affine:
    """The map x -> x @ weight_DD + bias_D, in float64. `nn.Linear` stores the transpose of `weight_DD`.

    >>> double = Affine(np.eye(2) * 2, np.zeros(2))
    >>> shift = Affine(np.eye(2), np.ones(2))
    >>> double.then(shift).transform(np.array([[1.0, 2.0]])).tolist()
    [[3.0, 5.0]]
    """

    weight_DD: np.ndarray
    bias_D: np.ndarray

    @property
    def width(self) -> int:
        return len(self.bias_D)

    def transform(self, x_ND: np.ndarray) -> np.ndarray:
        require_width(x_ND, len(self.weight_DD))
        y_ND = np.asarray(x_ND, np.float32) @ self.weight_DD.astype(np.float32)
        y_ND += self.bias_D.astype(np.float32)
        return y_ND

    def then(self, second: "Affine") -> "Affine":
        """Compose this map with `second`, which is applied after it."""
        return Affine(self.weight_DD @ second.weight_DD, self.bias_D @ second.weight_DD + second.bias_D)


CalibrationMap = Flow | Affine


def save_calibration(calibration: CalibrationMap, directory: Path) -> None:
    """Write `config.json` and `model.safetensors`."""
    if isinstance(calibration, Flow):
        return glow.write(calibration, directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": "affine", "width": calibration.width}, indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    tensors = {"weight": calibration.weight_DD, "bias": calibration.bias_D}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, directory / "model.safetensors")


def load_calibration(directory: Path) -> CalibrationMap:
    """Load what `save_calibration` wrote, on the CPU; raise UserError if it cannot be read."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if config["kind"] == "flow":
            return glow.read(directory, Flow)
        tensors, width = load_file(directory / "model.safetensors"), config["width"]
        if config["kind"] != "affine" or tensors["weight"].shape != (width, width):
            raise ValueError(f"config.json says kind {config['kind']!r}, width {width!r}")
        return Affine(tensors["weight"], tensors["bias"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{directory} holds no readable calibration: {error}") from None
