"""Calibrations against their definitions in plain numpy, chains, choices on the dev task, files and artefacts."""

import json

import numpy as np
import pytest
import torch

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model.calibration import Affine, Flow, load_calibration, save_calibration
from raysed.score.metrics import spearman
from raysed.train.calibration import choose_natsv_k, fit_calibration
from raysed.train.calibrations.sn import CALIBRATION as SN
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN


def embeddings(rows=300, width=12, seed=0):
    rng = np.random.default_rng(seed)
    scales_D = np.geomspace(0.05, 5, width)
    x_ND = (rng.normal(size=(rows, width)) * scales_D) @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    return (x_ND + 3 * rng.normal(size=width)).astype(np.float32)


def cosines(x_ND):
    unit_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return unit_ND @ unit_ND.T


def close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=0)


class TestDefinitions:
    @pytest.mark.parametrize("seed", range(3))
    def test_sn(self, seed):
        fit_on, new = embeddings(seed=seed).astype(float), embeddings(40, seed=seed + 50).astype(float)
        close(SN.fit(fit_on).transform(new), (new - fit_on.mean(0)) / fit_on.std(0))

    @pytest.mark.parametrize("k", [1, 5, 11])
    def test_natsv(self, k):
        fit_on, new = embeddings().astype(float), embeddings(40, seed=50).astype(float)
        mean_D = fit_on.mean(0)
        top = np.linalg.svd(fit_on - mean_D, full_matrices=False)[2][:k]
        expected = new - mean_D
        for direction_D in top:
            expected = expected - (expected @ direction_D)[:, None] * direction_D
        close(fit_calibration(["natsv"], fit_on, FlowConfig(), k, seed=0).transform(new), expected)

    @pytest.mark.parametrize("rows", [300, 20_000])
    def test_whiten_gives_zero_mean_and_identity_covariance(self, rows):
        x_ND = embeddings(rows)
        z_ND = WHITEN.fit(x_ND).transform(x_ND).astype(float)
        close(z_ND.mean(0), np.zeros(12), 1e-3)
        close(np.cov(z_ND.T, bias=True), np.eye(12), 1e-3)

    def test_whiten_has_the_cosines_of_the_svd_form(self):
        x_ND = embeddings().astype(float)
        left_NK = np.linalg.svd(x_ND - x_ND.mean(0), full_matrices=False)[0]
        close(cosines(WHITEN.fit(x_ND).transform(x_ND)), cosines(left_NK))

    def test_fewer_rows_than_channels(self):
        """The unseen directions are not blown up: new rows stay of the size of the old ones."""
        fit_on, new = embeddings(8), embeddings(40)
        calibration = WHITEN.fit(fit_on)
        covariance = np.cov(calibration.transform(fit_on).T.astype(float), bias=True)
        eigenvalues = np.linalg.eigvalsh(covariance)
        close(eigenvalues, [0] * 5 + [1] * 7, 1e-2)
        assert np.linalg.matrix_rank(calibration.weight_DD, tol=1e-6) == 7
        assert np.isfinite(calibration.transform(new)).all()

    @pytest.mark.parametrize("fit", [SN.fit, WHITEN.fit])
    def test_constant_channel_becomes_zero(self, fit):
        x_ND = embeddings()
        x_ND[:, 3] = 7.3
        new_ND = embeddings(5, seed=9)
        close(fit(x_ND).transform(new_ND)[:, 3], np.zeros(5))


class TestAffine:
    def test_then_is_one_after_the_other(self):
        rng = np.random.default_rng(0)
        first, second, third = (Affine(rng.normal(size=(5, 5)), rng.normal(size=5)) for _ in range(3))
        x_ND = rng.normal(size=(7, 5)).astype(np.float32)
        expected = third.transform(second.transform(first.transform(x_ND)))
        close(first.then(second).then(third).transform(x_ND), expected)
        close(first.then(second.then(third)).transform(x_ND), expected)


class TestFitCalibration:
    def fit(self, stages, x_ND, k=2, seed=0, **kwargs):
        return fit_calibration(stages, x_ND, FlowConfig(batch_size=8), k, seed, **kwargs)

    def test_chain_fits_each_stage_on_what_comes_before(self):
        x_ND = embeddings().astype(float)
        normal = (x_ND - x_ND.mean(0)) / x_ND.std(0)
        top_KD = np.linalg.svd(normal, full_matrices=False)[2][:2]
        calibration = self.fit(["sn", "natsv"], x_ND)
        assert isinstance(calibration, Affine)
        close(calibration.transform(x_ND), normal - normal @ top_KD.T @ top_KD)

    def test_flow_gets_seed_and_reports_steps(self):
        seen = []
        x_ND = embeddings(64)
        first = self.fit(["flow"], x_ND, seed=3, on_step=lambda step, metrics: seen.append(step))
        assert isinstance(first, Flow) and seen == [1, 2, 3, 4]
        assert torch.equal(first.shift, self.fit(["flow"], x_ND, seed=3).shift)
        assert not torch.equal(first.shift, self.fit(["flow"], x_ND, seed=4).shift)

    @pytest.mark.parametrize(("rows", "k"), [(300, 0), (300, 12), (10, 9)])
    def test_natsv_must_leave_a_direction(self, rows, k):
        with pytest.raises(UserError, match=f"natsv_k is {k}"):
            self.fit(["natsv"], embeddings(rows), k=k)
        assert np.abs(self.fit(["natsv"], embeddings(rows), k=min(rows - 2, 11)).transform(embeddings())).max() > 0.01

    @pytest.mark.parametrize("stage", ["sn", "natsv", "whiten", "flow"])
    def test_bad_and_missing_rows(self, stage):
        x_ND = embeddings(20)
        x_ND[4, 2] = np.inf
        with pytest.raises(UserError, match="rows 4"):
            self.fit([stage], x_ND)
        with pytest.raises(UserError, match=r"flow\.fit_on"):
            self.fit([stage], x_ND[:0])


class TestFiles:
    @pytest.mark.parametrize("stages", [["sn"], ["natsv"], ["sn", "whiten"], ["flow"]])
    def test_round_trip_is_bitwise(self, tmp_path, stages):
        x_ND = embeddings(64)
        calibration = fit_calibration(stages, x_ND, FlowConfig(batch_size=8), 2, 0)
        save_calibration(calibration, tmp_path)
        again = load_calibration(tmp_path)
        assert type(again) is type(calibration)
        np.testing.assert_array_equal(again.transform(x_ND), calibration.transform(x_ND))
        if isinstance(again, Affine):
            np.testing.assert_array_equal(again.weight_DD, calibration.weight_DD)
            np.testing.assert_array_equal(again.bias_D, calibration.bias_D)

    @pytest.mark.parametrize(
        "config",
        ["no", "[]", "{}", '{"kind": "spline", "width": 12}', '{"kind": "affine", "width": 8}', None],
    )
    def test_what_is_no_calibration_is_a_users_mistake(self, tmp_path, config):
        if config:
            save_calibration(SN.fit(embeddings()), tmp_path)
            (tmp_path / "config.json").write_text(config)
        with pytest.raises(UserError, match="holds no readable"):
            load_calibration(tmp_path)

    @pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
    def test_what_is_no_flow_is_one_too(self, tmp_path, broken):
        """A configuration of another width, and weights that are none."""
        save_calibration(Flow(8), tmp_path)
        other = {"kind": "flow", "width": 16, "levels": 2, "depth": 3, "hidden": 32}
        (tmp_path / broken).write_text(json.dumps(other) if broken == "config.json" else "no")
        with pytest.raises(UserError, match="holds no readable"):
            load_calibration(tmp_path)


def test_another_width_is_refused():
    for calibration in (SN.fit(embeddings()), Flow(12)):
        for shape in ((3, 4), (12,)):
            with pytest.raises(UserError, match="width 12"):
                calibration.transform(np.zeros(shape, np.float32))


def planted(pairs=300, noise=3, width=10, seed=0):
    """Rows 2i, 2i + 1 whose cosine in a few dimensions is the gold score, under strong noise in `noise` others."""
    rng = np.random.default_rng(seed)
    x_ND = rng.normal(size=(2 * pairs, width))
    x_ND[:, :noise] *= 30
    signal_P2D = x_ND[:, noise:].reshape(pairs, 2, -1)
    gold_P = np.einsum("pd,pd->p", *signal_P2D.transpose(1, 0, 2)) / np.linalg.norm(signal_P2D, axis=2).prod(1)
    return x_ND @ np.linalg.qr(rng.normal(size=(width, width)))[0], gold_P


def dev_score(x_ND, gold_P):
    def score(calibration):
        unit_ND = calibration.transform(x_ND).astype(float)
        unit_ND /= np.linalg.norm(unit_ND, axis=1, keepdims=True)
        return spearman((unit_ND[0::2] * unit_ND[1::2]).sum(1), gold_P)

    return score


class TestChoosingK:
    @pytest.mark.parametrize("stages", [["natsv"], ["sn", "natsv"], ["sn", "natsv", "whiten"], ["natsv", "whiten"]])
    def test_is_the_best_of_all_that_can_be_fitted(self, stages):
        """Each candidate is the calibration that `fit_calibration` fits with that k."""
        x_ND, gold_P = planted(pairs=40, noise=2, width=6, seed=1)
        score = dev_score(x_ND, gold_P + np.random.default_rng(0).normal(0, 0.3, 40))
        fitted = {k: fit_calibration(stages, x_ND, FlowConfig(), k, 0) for k in range(1, 6)}
        seen = []
        best = choose_natsv_k(stages, x_ND, lambda c: seen.append(c) or score(c))
        assert best == max(fitted, key=lambda k: score(fitted[k]))
        for k, calibration in enumerate(seen, start=1):
            close(calibration.transform(x_ND), fitted[k].transform(x_ND), 1e-3)

    def test_of_equal_scores_the_smallest_wins(self):
        tried = []
        assert choose_natsv_k(["natsv"], embeddings(), lambda c: tried.append(c) or 0.5) == 1
        assert len(tried) == 11, "width 12 has no more to remove"
        steps = iter([0.1, 0.3, 0.3, 0.2])
        assert choose_natsv_k(["natsv"], embeddings(), lambda _: next(steps), most=4) == 2

    def test_tries_at_most_twenty(self):
        tried = []
        choose_natsv_k(["natsv"], embeddings(width=30), lambda c: tried.append(c) or len(tried))
        assert len(tried) == 20

    def test_rows_without_a_direction_to_remove(self):
        with pytest.raises(UserError, match="natsv_k is 1, but with 2 embeddings"):
            choose_natsv_k(["sn", "natsv"], embeddings(2), lambda _: 0.0)
