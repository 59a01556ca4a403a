"""Affine maps of embeddings, and the files of a calibration.

Chained maps multiply out to a single one, so they cost one matrix product and are exported as one linear layer.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from raysed.errors import UserError
from raysed.model import glow
from raysed.model.flow import Flow, require_width


@dataclass(frozen=True, eq=False)
class Affine:
    """The map x -> x @ weight_DD + bias_D. Both are float64; a linear layer's weight is the transpose.

    >>> double = Affine(np.eye(2) * 2, np.zeros(2))
    >>> shift = Affine(np.eye(2), np.ones(2))
    >>> double.then(shift).transform(np.array([[1.0, 2.0]])).tolist()
    [[3.0, 5.0]]
    """

    weight_DD: np.ndarray
    bias_D: np.ndarray

    @property
    def width(self) -> int:
        """D."""
        return len(self.bias_D)

    def transform(self, x_ND: np.ndarray) -> np.ndarray:
        """Return the mapped rows as float32; refuse those of another width."""
        require_width(x_ND, len(self.weight_DD))
        y_ND = np.asarray(x_ND, np.float32) @ self.weight_DD.astype(np.float32)
        y_ND += self.bias_D.astype(np.float32)
        return y_ND

    def then(self, second: "Affine") -> "Affine":
        """Return the map that applies this one first and `second` to its result."""
        return Affine(self.weight_DD @ second.weight_DD, self.bias_D @ second.weight_DD + second.bias_D)


CalibrationMap = Flow | Affine


def save_calibration(calibration: CalibrationMap, directory: Path) -> None:
    """Write `config.json` and `model.safetensors` for a flow or an affine map."""
    if isinstance(calibration, Flow):
        return glow.write(calibration, directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": "affine", "width": calibration.width}, indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    tensors = {"weight": calibration.weight_DD, "bias": calibration.bias_D}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, directory / "model.safetensors")


def load_calibration(directory: Path) -> CalibrationMap:
    """Read what `save_calibration` wrote: the same map, bit for bit, on the CPU; `kind` in config.json says which.

    Raises:
        UserError: the directory does not hold a calibration.
    """
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
