"""The flow against plain references: its map, density, initialisation, optimizer, fit and files."""

import math

import numpy as np
import pytest
import torch

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model import calibration as flow_module
from raysed.model.calibration import Flow
from raysed.model.calibration import load_calibration as load
from raysed.model.calibration import save_calibration as save
from raysed.train.flow_fit import fit_flow
from raysed.train.flow_gradient import FlowObjective

VARIANTS = [2, 3]
"""Levels of the paper's and of the released variant."""


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def perturbed_flow(width, levels, seed=0, dtype=torch.float64, depth=3):
    """A flow with every parameter random, so that no term of the map is zero, and none is huge."""
    flow = Flow(width, levels, depth).to(dtype)
    generator = seeded(seed)
    with torch.no_grad():
        for vector in (flow.shift, flow.log_scale):
            vector.normal_(0, 0.15, generator=generator)
        for weight in flow.weights:
            weight.normal_(0, 0.2, generator=generator)
    return flow


def embeddings(rows=600, width=16, seed=0):
    """Correlated, off-centre and skewed rows, as sentence embeddings are."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) / width**0.5
    return (x + 0.5 * x**2 + rng.normal(size=width)).astype(np.float32)


def reference_steps(flow):
    """Per step, from the layout that Flow's docstring gives: shifts and log-scales of 4 places, 3 weights."""
    widths = [flow.width >> level for level in range(flow.levels) for _ in range(flow.depth)]
    places = [widths, [flow.hidden] * len(widths), [flow.hidden] * len(widths), [w // 2 for w in widths]]
    steps = [{"shift": [], "log_scale": [], "weights": []} for _ in widths]
    start = 0
    for sizes in places:
        for step, size in zip(steps, sizes):
            for name in ("shift", "log_scale"):
                step[name].append(getattr(flow, name)[start : start + size].detach())
            start += size
    assert start == len(flow.shift)
    for index, weight in enumerate(flow.weights):
        steps[index // 3]["weights"].append(weight.detach())
    return steps


def reference_forward(flow, x_D):
    """One row at a time, with an explicit anti-diagonal matrix and a running log-determinant."""
    steps, left, log_det = reference_steps(flow), [], 0.0
    for level in range(flow.levels):
        for step in steps[level * flow.depth : (level + 1) * flow.depth]:
            width = len(x_D)
            x_D = (x_D + step["shift"][0]) * torch.exp(3 * step["log_scale"][0])
            log_det += 3 * float(step["log_scale"][0].sum())
            reversal_DD = torch.tensor([[float(i + j == width - 1) for j in range(width)] for i in range(width)])
            x_D = reversal_DD.to(x_D.dtype) @ x_D
            h = x_D[: width // 2]
            for place in (1, 2, 3):
                h = step["weights"][place - 1] @ h + step["shift"][place]
                h = h * torch.exp(3 * step["log_scale"][place])
                if place < 3:
                    h = torch.clamp(h, min=0)
            x_D = torch.cat([x_D[: width // 2], x_D[width // 2 :] + h])
        if level < flow.levels - 1:
            left.append(x_D[len(x_D) // 2 :])
            x_D = x_D[: len(x_D) // 2]
    return torch.cat([*left, x_D]), log_det


def reference_inverse(flow, z_D):
    """The row that the flow maps to this one: the steps of `reference_forward`, the last one first."""
    steps, halvings = reference_steps(flow), [*range(1, flow.levels), flow.levels - 1]
    *left, x_D = z_D.split([flow.width >> count for count in halvings])
    for level in reversed(range(flow.levels)):
        if level < flow.levels - 1:
            x_D = torch.cat([x_D, left[level]])
        for step in reversed(steps[level * flow.depth : (level + 1) * flow.depth]):
            kept, moved = x_D.chunk(2)
            h = kept
            for place in (1, 2, 3):
                h = (step["weights"][place - 1] @ h + step["shift"][place]) * torch.exp(3 * step["log_scale"][place])
                h = h.clamp(min=0) if place < 3 else h
            x_D = torch.cat([kept, moved - h]).flip(0)
            x_D = x_D / torch.exp(3 * step["log_scale"][0]) - step["shift"][0]
    return x_D


class TestMap:
    @pytest.mark.parametrize(
        ("width", "levels", "count"),
        [
            (768, 2, 127_872),
            (768, 3, 151_488),
            (1024, 2, 168_192),
            (1024, 3, 198_528),
        ],
    )
    def test_parameter_counts(self, width, levels, count):
        assert sum(p.numel() for p in Flow(width, levels).parameters()) == count

    @pytest.mark.parametrize("levels", VARIANTS)
    @pytest.mark.parametrize("depth", [1, 3])
    def test_equals_a_plain_reference(self, levels, depth):
        flow = perturbed_flow(16, levels, depth=depth)
        x_BD = torch.randn(5, 16, generator=seeded(3), dtype=torch.float64)
        z_BD, log_det_B = flow(x_BD)
        for x_D, z_D, log_det in zip(x_BD, z_BD, log_det_B):
            expected_D, expected_log_det = reference_forward(flow, x_D)
            torch.testing.assert_close(z_D, expected_D, rtol=1e-6, atol=1e-6)
            assert math.isclose(log_det.item(), expected_log_det, rel_tol=1e-9)

    @pytest.mark.parametrize("levels", VARIANTS)
    @pytest.mark.parametrize("seed", range(2))
    def test_log_det_is_that_of_the_jacobian(self, levels, seed):
        flow = perturbed_flow(8, levels, seed)
        x_1D = torch.randn(1, 8, generator=seeded(seed), dtype=torch.float64)
        jacobian_DD = torch.func.jacrev(lambda x_1D: flow(x_1D)[0][0])(x_1D)[:, 0]
        expected = torch.linalg.slogdet(jacobian_DD).logabsdet
        assert abs(expected) > 0.1
        torch.testing.assert_close(flow(x_1D)[1][0], expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("levels", [1, *VARIANTS])
    @pytest.mark.parametrize("depth", [1, 3])
    def test_inverse_in_both_directions(self, levels, depth):
        flow = perturbed_flow(16, levels, depth=depth)
        for x_D in torch.randn(5, 16, generator=seeded(3), dtype=torch.float64):
            back_D = reference_inverse(flow, flow(x_D[None])[0][0])
            torch.testing.assert_close(back_D, x_D, rtol=0, atol=1e-10)
            forth_D = flow(reference_inverse(flow, x_D)[None])[0][0]
            torch.testing.assert_close(forth_D, x_D, rtol=0, atol=1e-10)

    def test_a_fitted_flow_loses_nothing_in_float32(self):
        x_ND = embeddings()
        flow = fit_flow(x_ND, FlowConfig(epochs=3), seed=0)
        again_ND = [reference_inverse(flow, z_D).numpy() for z_D in torch.tensor(flow.transform(x_ND[:50]))]
        np.testing.assert_allclose(again_ND, x_ND[:50], atol=1e-4, rtol=0)

    def test_density_integrates_to_one(self):
        flow = perturbed_flow(2, 1, seed=4)
        grid = torch.arange(-12, 12, 0.08, dtype=torch.float64)
        density_B = torch.exp(-flow.bits_per_dim(torch.cartesian_prod(grid, grid)) * math.log(2) * 2)
        assert abs(density_B.sum().item() * 0.08**2 - 1) < 1e-3

    def test_bits_per_dim_of_the_identity_is_the_gaussian_entropy_formula(self):
        flow = Flow(8).double()
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter.zero_()
        x_BD = torch.randn(6, 8, generator=seeded(), dtype=torch.float64)
        nats_B = 0.5 * (x_BD**2).sum(1) + 4 * math.log(2 * math.pi)
        torch.testing.assert_close(flow.bits_per_dim(x_BD), nats_B / math.log(2) / 8)

    @pytest.mark.parametrize(("width", "levels"), [(770, 2), (770, 3), (772, 3), (3, 1), (0, 2)])
    def test_width_that_cannot_be_halved_is_a_users_mistake(self, width, levels):
        with pytest.raises(UserError, match=rf"width {width} .*flow\.variant"):
            Flow(width, levels)

    def test_transform_equals_forward_over_block_borders(self, monkeypatch):
        monkeypatch.setattr(flow_module, "_TRANSFORM_ROWS", 4)
        flow = perturbed_flow(8, 2, dtype=torch.float32)
        x_ND = embeddings(11, 8)
        z_ND = flow.transform(x_ND)
        assert z_ND.dtype == np.float32
        np.testing.assert_allclose(z_ND, flow(torch.tensor(x_ND))[0].detach(), rtol=1e-5, atol=1e-5)
        assert flow.transform(x_ND[:0]).shape == (0, 8)


class TestInitialisation:
    def test_every_actnorm_standardises_its_channels(self):
        flow = perturbed_flow(16, 2)
        x_BD = torch.tensor(embeddings(400, 16)).double()
        flow.initialize_(x_BD)
        for step in reference_steps(flow)[: flow.depth]:
            x_BD = (x_BD + step["shift"][0]) * torch.exp(3 * step["log_scale"][0])
            torch.testing.assert_close(x_BD.mean(0), torch.zeros(16).double(), atol=1e-9, rtol=0)
            torch.testing.assert_close(x_BD.std(0, correction=0), torch.ones(16).double(), atol=1e-4, rtol=0)
            x_BD = x_BD.flip(1)
            h_BH = x_BD[:, :8]
            for place in (1, 2):
                h_BH = h_BH @ step["weights"][place - 1].T + step["shift"][place]
                h_BH = h_BH * torch.exp(3 * step["log_scale"][place])
                torch.testing.assert_close(h_BH.mean(0), torch.zeros(32).double(), atol=1e-9, rtol=0)
                assert (h_BH.std(0, correction=0) - 1).abs().max() < 1e-3
                h_BH = h_BH.relu()
            g_BH = (h_BH @ step["weights"][2].T + step["shift"][3]) * torch.exp(3 * step["log_scale"][3])
            x_BD = torch.cat([x_BD[:, :8], x_BD[:, 8:] + g_BH], 1)

    def test_a_fresh_flow_becomes_the_standardiser(self):
        x_ND = embeddings(500, 8)
        flow = Flow(8)
        flow.initialize_(torch.tensor(x_ND))
        expected_ND = np.sort((x_ND - x_ND.mean(0)) / x_ND.std(0), axis=1)
        np.testing.assert_allclose(np.sort(flow.transform(x_ND), axis=1), expected_ND, atol=1e-4)

    def test_released_start_is_glorot_uniform_with_zero_ends(self):
        flow = Flow(768, 3)
        for step in reference_steps(flow):
            for name in ("shift", "log_scale"):
                for piece in step[name][:3]:
                    limit = math.sqrt(6 / (1 + len(piece)))
                    assert 0.8 * limit < piece.abs().max() <= limit
                assert not step[name][3].any()
            assert abs(step["weights"][0].std().item() - 0.05) < 0.005
            assert abs(step["weights"][1].std().item() - 0.05) < 0.005
            assert not step["weights"][2].any()

    @pytest.mark.parametrize("seed", range(6))
    def test_channels_that_are_constant_but_for_rounding_are_not_blown_up(self, seed):
        """all-MiniLM-L6-v2 has three: LayerNorm weights of 1e-32 and 1e-8 in front of a bias."""
        generator = np.random.default_rng(seed)
        x_ND, noise = embeddings(300, 16, seed), generator.normal(size=(300, 4)).astype(np.float32)
        dead = generator.choice(16, 4, replace=False)
        x_ND[:, dead] = noise * [1e-32, 2e-9, 0, 1e-7] + np.float32([0, -9e-8, 0.3, -0.5])
        flow = Flow(16)
        flow.initialize_(torch.tensor(x_ND))
        z_ND = np.abs(flow.transform(x_ND))
        assert np.isfinite(z_ND).all()
        assert (np.sort(z_ND.std(0))[:4] < 1e-5).all() and (np.sort(z_ND.std(0))[4:] > 0.1).all()
        losses = []
        fit_flow(x_ND, FlowConfig(epochs=20), seed, lambda _, metrics: losses.append(metrics["loss"]))
        assert np.isfinite(losses).all() and losses[-1] < losses[0]

    def test_second_call_is_refused_also_after_loading(self, tmp_path):
        flow = Flow(8)
        flow.initialize_(torch.tensor(embeddings(50, 8)))
        save(flow, tmp_path)
        for initialised in (flow, load(tmp_path)):
            with pytest.raises(RuntimeError, match="already"):
                initialised.initialize_(torch.zeros(4, 8))


class TestFit:
    def test_equals_a_plain_loop(self):
        """Loss as two means, clip and update written out, over the pairs that a seeded shuffle gives."""
        x_ND, config = embeddings(2 * 40, 8), FlowConfig(batch_size=16, learning_rate=3e-3, epochs=2)
        losses = []
        fitted = fit_flow(x_ND, config, 5, lambda step, metrics: losses.append(metrics["loss"]))
        generator = seeded(5)
        flow = Flow(8, 2, generator=generator)
        flow.initialize_(torch.tensor(x_ND)[torch.randperm(80, generator=generator)])
        order = torch.cat([torch.randperm(40, generator=generator) for _ in range(2)])
        parameters = list(flow.parameters())
        m, v = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
        assert len(losses) == 5
        for update in range(5):
            pairs = order[16 * update : 16 * (update + 1)]
            a_BD, b_BD = torch.tensor(x_ND)[2 * pairs], torch.tensor(x_ND)[2 * pairs + 1]
            loss = flow.bits_per_dim(a_BD).mean() + flow.bits_per_dim(b_BD).mean()
            assert math.isclose(loss.item(), losses[update], rel_tol=1e-4)
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.sqrt(sum((g**2).sum() for g in gradients))
            with torch.no_grad():
                for i, parameter in enumerate(parameters):
                    g = gradients[i] / max(1.0, norm.item())
                    m[i] = 0.9 * m[i] + 0.1 * g
                    v[i] = 0.999 * v[i] + 0.001 * g**2
                    parameter -= 3e-3 * (m[i] / (v[i].sqrt() + 1e-6) + 0.01 * parameter)
        np.testing.assert_allclose(fitted.transform(x_ND), flow.transform(x_ND), atol=2e-3)

    def test_its_optimizer_decays_everything_by_a_hundredth(self, monkeypatch):
        """Where no gradient moves them; as released, biases and scales too."""
        monkeypatch.setattr(FlowObjective, "backward", lambda self, x_BD: self.vector.grad.zero_().sum())
        x_ND, config = embeddings(40), FlowConfig(variant="released", batch_size=4, learning_rate=0.5)
        fitted, start = fit_flow(x_ND, config, 5), Flow(16, 3, generator=seeded(5))
        for parameter, value in zip(fitted.parameters(), start.parameters()):
            torch.testing.assert_close(parameter, value * (1 - 0.5 * 0.01) ** 5)

    @pytest.mark.parametrize("variant", ["paper", "released"])
    def test_same_seed_same_bits_other_seed_other_flow(self, variant):
        x_ND, config = embeddings(200), FlowConfig(variant=variant, batch_size=8)
        first, second, other = (fit_flow(x_ND, config, seed) for seed in (1, 1, 2))
        assert first.levels == {"paper": 2, "released": 3}[variant]
        assert bool(first.initialized) == (variant == "paper")
        for a, b, c in zip(first.parameters(), second.parameters(), other.parameters()):
            assert torch.equal(a, b)
            assert not torch.equal(a, c)

    def test_lowers_held_out_bits_per_dim(self):
        x_ND = embeddings(3000)
        kept_ND, train_ND = torch.tensor(x_ND[:1000]), x_ND[1000:]
        start = Flow(16)
        start.initialize_(torch.tensor(train_ND))
        fitted = fit_flow(train_ND, FlowConfig(epochs=4), seed=0)
        before, after = (flow.bits_per_dim(kept_ND).mean().item() for flow in (start, fitted))
        assert after < before - 0.05

    @pytest.mark.parametrize(
        ("rows", "batch_size", "epochs", "steps"),
        [
            (200, 10, 1.0, 10),
            (200, 10, 0.25, 2),
            (200, 10, 2.5, 25),
            (20, 32, 3.0, 3),
            (20, 32, 0.1, 1),
            (200, 2, 0.58, 29),
            (3, 2, 1.0, 1),
        ],
    )
    def test_number_of_updates(self, rows, batch_size, epochs, steps):
        seen = []
        config = FlowConfig(batch_size=batch_size, epochs=epochs)
        fit_flow(embeddings(rows, 4), config, 0, lambda step, metrics: seen.append((step, *metrics)))
        assert seen == [(i + 1, "loss", "bits_per_dim", "gradient_norm") for i in range(steps)]

    def test_an_epoch_sees_every_pair_once_and_keeps_pairs_together(self, monkeypatch):
        x_ND, batches, backward = embeddings(80, 4), [], FlowObjective.backward
        monkeypatch.setattr(FlowObjective, "backward", lambda self, x_BD: batches.append(x_BD) or backward(self, x_BD))
        fit_flow(x_ND, FlowConfig(batch_size=8, epochs=1), seed=0)
        assert [len(batch) for batch in batches] == [16] * 5
        rows = [np.flatnonzero((x_ND == row_D).all(1)).item() for row_D in torch.cat(batches).numpy()]
        assert sorted(rows) == list(range(80)) != rows
        assert all(b == a + 1 and a % 2 == 0 for a, b in zip(rows[::2], rows[1::2]))

    def test_initialisation_rows_are_drawn_from_all_rows(self, monkeypatch):
        drawn = []
        monkeypatch.setattr("raysed.train.flow_fit.INITIALISATION_ROWS", 30)
        monkeypatch.setattr(Flow, "initialize_", lambda self, x_BD: drawn.append(x_BD))
        fit_flow(np.arange(1000, dtype=np.float32)[:, None] + np.zeros((1, 4), np.float32), FlowConfig(epochs=0.01), 0)
        rows = drawn[0][:, 0]
        assert len(set(rows.tolist())) == 30 and rows.min() < 250 and rows.max() > 750

    @pytest.mark.parametrize("make", [np.asarray, torch.tensor])
    def test_bad_rows_are_named(self, make):
        x_ND = embeddings(20)
        x_ND[3, 1], x_ND[17, 0] = np.nan, np.inf
        with pytest.raises(UserError, match=r"2 of 20 embeddings .*rows 3, 17"):
            fit_flow(make(x_ND), FlowConfig(), 0)

    def test_divergence_before_the_first_update_does_not_blame_the_rate(self):
        with pytest.raises(UserError, match=r"before the first update: the embeddings \(largest .*whiten") as failure:
            fit_flow(embeddings(64, 8) * np.float32(1e25), FlowConfig(), 0)
        assert "learning_rate" not in str(failure.value)

    def test_divergence_names_the_learning_rate(self):
        with pytest.raises(UserError, match=r"lower flow\.learning_rate, which is 1000"):
            fit_flow(embeddings(200), FlowConfig(learning_rate=1000, batch_size=4), 0)

    def test_one_sentence_is_too_few(self):
        with pytest.raises(UserError, match=r"flow\.fit_on"):
            fit_flow(embeddings(1), FlowConfig(), 0)


class TestObjective:
    @pytest.mark.parametrize("levels", [1, *VARIANTS])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_loss_and_gradient_are_those_of_autograd(self, levels, depth):
        x_BD = torch.randn(6, 16, generator=seeded(3), dtype=torch.float64)
        flow = perturbed_flow(16, levels, depth=depth)
        loss = flow.bits_per_dim(x_BD[::2]).mean() + flow.bits_per_dim(x_BD[1::2]).mean()
        expected = torch.autograd.grad(loss, list(flow.parameters()))
        objective = FlowObjective(flow, rows=6)
        for _ in range(2):  # the second time over buffers that hold the first
            found = objective.backward(x_BD)
            torch.testing.assert_close(found, loss.detach(), rtol=1e-10, atol=1e-10)
        objective.vector.data = objective.vector.grad
        objective.write_back()
        for parameter, gradient in zip(flow.parameters(), expected):
            torch.testing.assert_close(parameter.detach(), gradient, rtol=1e-8, atol=1e-10)


def test_threads_change_neither_the_fit_nor_the_setting():
    x_ND = embeddings(400, 64)
    first = fit_flow(x_ND, FlowConfig(), 0)
    torch.set_num_threads(2)  # the fixture sets it back
    second = fit_flow(x_ND, FlowConfig(), 0)
    assert torch.get_num_threads() == 2
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
