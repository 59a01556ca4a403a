"""Calibrations against their definitions in plain numpy, chains, choices on the dev task, and files."""

import json

import numpy as np
import pytest

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import Affine, Flow, load_calibration, save_calibration
from raysed.score.metrics import spearman
from raysed.train.calibration import choose_natsv_k, fit_calibration
from raysed.train.calibrations.sn import CALIBRATION as SN
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN

FLOW = {"kind": "flow", "width": 8, "levels": 2, "depth": 3, "hidden": 32}


def embeddings(rows=300, width=12, seed=0):
    rng = np.random.default_rng(seed)
    scales_D = np.geomspace(0.05, 5, width)
    x_ND = (rng.normal(size=(rows, width)) * scales_D) @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    return (x_ND + 3 * rng.normal(size=width)).astype(np.float32)


def close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=0)


def fit(stages, x_ND, k=2, seed=0, **kwargs):
    return fit_calibration(stages, x_ND, FlowConfig(batch_size=8), k, seed, **kwargs)


class TestDefinitions:
    @pytest.mark.parametrize("k", [1, 5, 11])
    def test_sn_then_natsv(self, k):
        """Each is fitted on what comes before."""
        fit_on, new = embeddings().astype(float), embeddings(40, seed=50).astype(float)
        normal, expected = ((x_ND - fit_on.mean(0)) / fit_on.std(0) for x_ND in (fit_on, new))
        for direction_D in np.linalg.svd(normal, full_matrices=False)[2][:k]:
            expected = expected - (expected @ direction_D)[:, None] * direction_D
        close(fit(["sn", "natsv"], fit_on, k).transform(new), expected)

    @pytest.mark.parametrize("rows", [300, 20_000])  # the covariance of one block, and of several
    def test_whiten_gives_zero_mean_and_identity_covariance(self, rows):
        x_ND = embeddings(rows)
        z_ND = WHITEN.fit(x_ND).transform(x_ND).astype(float)
        close(z_ND.mean(0), np.zeros(12), 1e-3)
        close(np.cov(z_ND.T, bias=True), np.eye(12), 1e-3)

    def test_fewer_rows_than_channels(self):
        """The unseen directions are not blown up: new rows stay of the size of the old ones."""
        fit_on, new = embeddings(8), embeddings(40)
        calibration = WHITEN.fit(fit_on)
        covariance = np.cov(calibration.transform(fit_on).T.astype(float), bias=True)
        close(np.linalg.eigvalsh(covariance), [0] * 5 + [1] * 7, 1e-2)
        assert np.linalg.matrix_rank(calibration.weight_DD, tol=1e-6) == 7
        assert np.isfinite(calibration.transform(new)).all()

    @pytest.mark.parametrize("stage", [SN, WHITEN])
    def test_constant_channel_becomes_zero(self, stage):
        x_ND = embeddings()
        x_ND[:, 3] = 7.3
        close(stage.fit(x_ND).transform(embeddings(5, seed=9))[:, 3], np.zeros(5))


class TestFitCalibration:
    @pytest.mark.parametrize(("rows", "k", "most"), [(300, 0, 11), (300, 12, 11), (10, 9, 8)])
    def test_natsv_must_leave_a_direction(self, rows, k, most):
        with pytest.raises(UserError, match=f"natsv_k is {k}"):
            fit(["natsv"], embeddings(rows), k)
        assert np.abs(fit(["natsv"], embeddings(rows), most).transform(embeddings())).max() > 0.01

    @pytest.mark.parametrize(("stage", "too_few"), [("sn", 0), ("natsv", 0), ("whiten", 0), ("flow", 1)])
    def test_bad_and_missing_rows(self, stage, too_few):
        x_ND = embeddings(20)
        x_ND[4, 2] = np.inf
        with pytest.raises(UserError, match="rows 4"):
            fit([stage], x_ND)
        with pytest.raises(UserError, match=r"flow\.fit_on"):
            fit([stage], x_ND[:too_few])


class TestFiles:
    def test_round_trip_is_bitwise(self, tmp_path):
        x_ND = embeddings(64)
        calibration = fit(["sn", "whiten"], x_ND)
        save_calibration(calibration, tmp_path)
        np.testing.assert_array_equal(load_calibration(tmp_path).transform(x_ND), calibration.transform(x_ND))

    @pytest.mark.parametrize(
        ("calibration", "file", "text"),
        [
            (Affine(np.eye(12), np.zeros(12)), "config.json", "no"),
            (Affine(np.eye(12), np.zeros(12)), "config.json", "[]"),
            (Affine(np.eye(12), np.zeros(12)), "config.json", '{"kind": "spline", "width": 12}'),
            (Affine(np.eye(12), np.zeros(12)), "config.json", '{"kind": "affine", "width": 8}'),
            (Flow(8), "config.json", json.dumps({**FLOW, "width": 16})),
            (Flow(8), "config.json", json.dumps({**FLOW, "variant": "other"})),
            (Flow(8), "model.safetensors", "no"),
            (None, "other", ""),
        ],
    )
    def test_what_is_no_calibration_is_a_users_mistake(self, tmp_path, calibration, file, text):
        if calibration:
            save_calibration(calibration, tmp_path)
        (tmp_path / file).write_text(text)
        with pytest.raises(UserError, match="holds no readable"):
            load_calibration(tmp_path)


def test_another_width_is_refused():
    for calibration in (SN.fit(embeddings()), Flow(12)):
        for shape in ((3, 4), (12,)):
            with pytest.raises(UserError, match="width 12"):
                calibration.transform(np.zeros(shape, np.float32))


class TestChoosingK:
    @pytest.mark.parametrize("stages", [["natsv"], ["sn", "natsv", "whiten"]])
    def test_is_the_best_of_all_that_can_be_fitted(self, stages):
        """Each candidate is the calibration that `fit_calibration` fits with that k."""
        x_ND, gold_P = embeddings(80, width=6), np.random.default_rng(5).normal(size=40)

        def score(calibration):
            a_PD, b_PD = calibration.transform(x_ND).astype(float).reshape(40, 2, 6).transpose(1, 0, 2)
            return spearman((a_PD * b_PD).sum(1) / np.linalg.norm(a_PD, axis=1) / np.linalg.norm(b_PD, axis=1), gold_P)

        fitted, seen = {k: fit(stages, x_ND, k) for k in range(1, 6)}, []
        best = choose_natsv_k(stages, x_ND, lambda c: seen.append(c) or score(c))
        assert best == max(fitted, key=lambda k: score(fitted[k])) not in (1, 5)
        for k, calibration in enumerate(seen, start=1):
            close(calibration.transform(x_ND), fitted[k].transform(x_ND), 1e-3)

    def test_of_equal_scores_the_smallest_wins_and_at_most_twenty_are_tried(self):
        tried = []
        assert choose_natsv_k(["natsv"], embeddings(), lambda c: tried.append(c) or 0.5) == 1
        assert len(tried) == 11, "width 12 has no more to remove"
        steps = iter([0.1, 0.3, 0.3, 0.2])
        assert choose_natsv_k(["natsv"], embeddings(), lambda _: next(steps), most=4) == 2
        assert choose_natsv_k(["natsv"], embeddings(width=30), lambda c: tried.append(c) or len(tried)) == 20
