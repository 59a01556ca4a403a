"""Affine calibrations of embeddings: standard normalization, nulling of top directions, whitening.

Each is fitted on the embeddings of unlabelled sentences and has the flow's interface, `transform(x_ND)`.
Chained ones multiply out to a single affine map, so they cost one matrix product and can be exported as one
linear layer.

Sources: `sn` and `natsv` are the baselines of BERT-flow (section 4.3 and table 5, after Arora et al. 2017 and
Mu et al. 2017); `whiten` is the linear counterpart of the flow.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from raysed import flow
from raysed.config import FlowConfig
from raysed.errors import UserError

VARIANCE_FLOOR = 1e-10
"""Directions with less than this share of the largest variance are rounding noise: they are set to zero."""
_BLOCK_ROWS = 8192


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
        """Returns the mapped rows as float32.

        Raises:
            UserError: the rows have another width.
        """
        flow.require_width(x_ND, self.width)
        y_ND = np.asarray(x_ND, np.float32) @ self.weight_DD.astype(np.float32)
        y_ND += self.bias_D.astype(np.float32)
        return y_ND

    def then(self, second: "Affine") -> "Affine":
        """Returns the map that applies this one first and `second` to its result."""
        return Affine(self.weight_DD @ second.weight_DD, self.bias_D @ second.weight_DD + second.bias_D)


Calibration = flow.Flow | Affine


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
    mean_D, covariance_DD = _statistics(x_ND)
    largest = min(len(x_ND) - 2, len(mean_D) - 1)
    if not 1 <= k <= largest:
        raise UserError(f"natsv_k is {k}: with {len(x_ND)} embeddings of width {len(mean_D)} it can be 1 to {largest}")
    top_DK = np.linalg.eigh(covariance_DD).eigenvectors[:, -k:]
    weight_DD = np.eye(len(mean_D)) - top_DK @ top_DK.T
    return Affine(weight_DD, -mean_D @ weight_DD)


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
    natsv_k: int,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Calibration:
    """Fits the calibration that ends a recipe.

    Args:
        stages: `["flow"]`, or one or more of `sn`, `natsv` and `whiten`, each fitted on what the ones before
            it give.
        embeddings_ND: rows to fit on; for the flow, rows 2i and 2i + 1 are pairs.
        flow_config: used by `flow`.
        natsv_k: directions that `natsv` removes.
        seed: used by `flow`; the others have no randomness.
        on_step: as for `raysed.flow.fit_flow`; the others do not call it.

    Raises:
        UserError: unknown or mixed stages, or embeddings that a stage refuses.

    >>> x_ND = np.random.default_rng(0).normal(size=(50, 4))
    >>> fit_calibration(["sn", "natsv"], x_ND, FlowConfig(), natsv_k=1, seed=0).width
    4
    """
    if list(stages) == ["flow"]:
        return flow.fit_flow(embeddings_ND, flow_config, seed, on_step)
    fits = {"sn": fit_sn, "natsv": lambda x_ND: fit_natsv(x_ND, natsv_k), "whiten": fit_whiten}
    if not stages or not set(stages) <= set(fits):
        raise UserError(
            f"calibration {'-'.join(stages)!r} is not known: it must be flow, or a chain of {', '.join(fits)}"
        )
    calibration = fits[stages[0]](embeddings_ND)
    for stage in stages[1:]:
        calibration = calibration.then(fits[stage](calibration.transform(embeddings_ND)))
    return calibration


def save_calibration(calibration: Calibration, directory: Path) -> None:
    """Writes `config.json` and `model.safetensors` for a flow or an affine map."""
    if isinstance(calibration, flow.Flow):
        return flow.save(calibration, directory)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": "affine", "width": calibration.width}, indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    tensors = {"weight": calibration.weight_DD, "bias": calibration.bias_D}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, directory / "model.safetensors")


def load_calibration(directory: Path) -> Calibration:
    """Reads what `save_calibration` or `raysed.flow.save` wrote; `kind` in config.json says which it is.

    Raises:
        UserError: the directory does not hold a calibration.
    """
    directory = Path(directory)
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if config["kind"] == "flow":
            return flow.load(directory)
        tensors, width = load_file(directory / "model.safetensors"), config["width"]
        if config["kind"] != "affine" or tensors["weight"].shape != (width, width):
            raise ValueError(f"config.json says kind {config['kind']!r}, width {width!r}")
        return Affine(tensors["weight"], tensors["bias"])
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{directory} does not hold a calibration that can be read: {error}") from None


def _statistics(x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the covariance (divided by N) in float64, a block of rows at a time."""
    flow.require_finite(x_ND)
    if not len(x_ND):
        raise UserError("a calibration cannot be fitted on no sentences: flow.fit_on must name some")
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
