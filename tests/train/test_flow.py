"""The flow against plain references: its map, density, initialisation, optimizer, fit and files."""

import json
import math

import numpy as np
import pytest
import torch

from raysed.config import FlowConfig
from raysed.errors import UserError
from raysed.model import calibration as flow_module
from raysed.model.calibration import Flow, load_calibration, save_calibration
from raysed.train.flow_fit import fit_flow
from raysed.train.flow_gradient import FlowObjective

VARIANTS = ["released", "paper"]
LEVELS = [2, 3]
"""Of the paper and of the released code."""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def perturbed_flow(width, levels, seed=0, dtype=torch.float64, depth=3, hidden=32, variant="released"):
    """A flow with every parameter random, so that no term of the map is zero, and none is huge."""
    generator = seeded(seed)
    flow = Flow(width, levels, depth, hidden, variant, seeded(seed)).to(dtype)
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
    """Per step, from the layout that Glow's docstring gives: shifts and log-scales of 4 places, 3 weights, order."""
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
    start = 0
    for step, size in zip(steps, widths):
        step["order"] = list(range(size))[::-1]
        if flow.variant == "paper":
            step["order"] = flow.order[start : start + size].tolist()
            start += size
    return steps


def reference_inverse(flow, z_D):
    """The row that the flow maps to this one, the last step first, as Glow's docstring has them."""
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
            h = h + kept if flow.variant == "paper" else h
            y_D = torch.cat([kept, moved - h])
            x_D = torch.empty_like(y_D)
            x_D[step["order"]] = y_D
            x_D = x_D / torch.exp(3 * step["log_scale"][0]) - step["shift"][0]
    return x_D


class TestMap:
    def test_parameter_counts(self):
        counts = {(768, 2): 127_872, (768, 3): 151_488, (1024, 2): 168_192, (1024, 3): 198_528}
        assert {shape: sum(p.numel() for p in Flow(*shape).parameters()) for shape in counts} == counts

    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("levels", [1, *LEVELS])
    @pytest.mark.parametrize("depth", [1, 3])
    def test_it_is_the_inverse_of_the_plain_inverse_and_knows_its_jacobian(self, levels, depth, variant):
        flow = perturbed_flow(16, levels, depth=depth, variant=variant)
        for x_D in torch.randn(5, 16, generator=seeded(3), dtype=torch.float64):
            back_D = reference_inverse(flow, flow(x_D[None])[0][0])
            torch.testing.assert_close(back_D, x_D, rtol=0, atol=1e-10)
            forth_D = flow(reference_inverse(flow, x_D)[None])[0][0]
            torch.testing.assert_close(forth_D, x_D, rtol=0, atol=1e-10)
        jacobian_DD = torch.autograd.functional.jacobian(lambda x_D: flow(x_D[None])[0][0], x_D)
        expected = torch.linalg.slogdet(jacobian_DD).logabsdet
        torch.testing.assert_close(flow(x_D[None])[1][0], expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(("width", "levels"), [(770, 2), (772, 3), (0, 2)])
    def test_width_that_cannot_be_halved_is_a_users_mistake(self, width, levels):
        with pytest.raises(UserError, match=rf"width {width} .*flow\.levels {levels} .* multiple of {2**levels};"):
            Flow(width, levels)

    def test_permutations_are_drawn_from_the_seed_for_each_step(self):
        flow = Flow(64, 2, variant="paper", generator=seeded())
        orders = [step["order"] for step in reference_steps(flow)]
        assert [len(order) for order in orders] == [64] * 3 + [32] * 3
        assert all(sorted(order) == list(range(len(order))) for order in orders)
        assert len({*map(tuple, orders)}) == 6, "no two steps have the same"
        assert Flow(64, 2).order is None and "order" not in Flow(64, 2).state_dict()
        with pytest.raises(ValueError, match="variant is released or paper, not 'papers'"):
            Flow(64, variant="papers")

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

    def test_released_start_is_glorot_uniform_with_zero_ends(self):
        flow = Flow(768, 3)
        for step in reference_steps(flow):
            for name in ("shift", "log_scale"):
                for piece in step[name][:3]:
                    limit = math.sqrt(6 / (1 + len(piece)))
                    assert 0.8 * limit < piece.abs().max() <= limit
                assert not step[name][3].any()
            assert all(abs(weight.std().item() - 0.05) < 0.005 for weight in step["weights"][:2])
            assert not step["weights"][2].any()

    @pytest.mark.parametrize("seed", range(2))
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


class TestFit:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_equals_a_plain_loop(self, monkeypatch, variant):
        """Loss as two means, clip and update written out, over the pairs that a seeded shuffle gives."""
        monkeypatch.setattr("raysed.train.flow_fit.INITIALISATION_ROWS", 30)
        x_ND = embeddings(2 * 40, 8)
        config = FlowConfig(variant=variant, batch_size=16, learning_rate=3e-3, epochs=2)
        losses = []
        fitted = fit_flow(x_ND, config, 5, lambda step, metrics: losses.append(metrics["loss"]))
        generator = seeded(5)
        flow = Flow(8, 2, variant=variant, generator=generator)
        flow.initialize_(torch.tensor(x_ND)[torch.randperm(80, generator=generator)[:30]])
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

    @pytest.mark.parametrize(
        ("variant", "levels", "is_initialised"), [("released", 2, True), ("released", 3, False), ("paper", 2, True)]
    )
    def test_same_seed_same_bits_other_seed_other_flow(self, variant, levels, is_initialised):
        """However many threads there are: the fit takes one, and leaves the setting as it was."""
        settings = {"variant": variant, "levels": levels, "data_dependent_init": is_initialised}
        x_ND, config, threads = embeddings(200), FlowConfig(**settings, batch_size=8), []
        first, other = (fit_flow(x_ND, config, seed) for seed in (1, 2))
        torch.set_num_threads(2)
        second = fit_flow(torch.tensor(x_ND), config, 1, lambda *_: threads.append(torch.get_num_threads()))
        assert {*threads} == {1} and torch.get_num_threads() == 2
        assert (first.variant, first.levels, bool(first.initialized)) == (variant, levels, is_initialised)
        for a, b, c in zip(first.parameters(), second.parameters(), other.parameters()):
            assert torch.equal(a, b) and not torch.equal(a, c)

    @pytest.mark.parametrize(
        ("rows", "batch_size", "epochs", "steps"),
        [(200, 10, 0.25, 2), (200, 2, 0.58, 29), (20, 32, 3.0, 3), (20, 32, 0.1, 1), (3, 2, 1.0, 1)],
    )
    def test_number_of_updates(self, rows, batch_size, epochs, steps):
        seen, config = [], FlowConfig(batch_size=batch_size, epochs=epochs)
        fit_flow(embeddings(rows, 4), config, 0, lambda step, metrics: seen.append((step, *metrics)))
        assert seen == [(i + 1, "loss", "bits_per_dim", "gradient_norm") for i in range(steps)]

    @pytest.mark.parametrize(
        ("factor", "config", "said"),
        [
            (1e25, {}, r"before the first update: the embeddings \(largest .*whiten"),
            (1, {"learning_rate": 1000, "batch_size": 4}, r"lower flow\.learning_rate, which is 1000"),
        ],
    )
    def test_divergence_names_its_cause(self, factor, config, said):
        with pytest.raises(UserError, match=said):
            fit_flow(embeddings(64, 8) * np.float32(factor), FlowConfig(**config), 0)


class TestObjective:
    @pytest.mark.parametrize("levels", [1, *LEVELS])
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


class TestFiles:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_saved_flow_is_the_same_when_loaded(self, variant, tmp_path):
        """Also where its file names no variant, as older ones."""
        flow, x_ND = perturbed_flow(16, 3, dtype=torch.float32, variant=variant), embeddings(20)
        save_calibration(flow, tmp_path)
        if variant == "released":
            config = json.loads((tmp_path / "config.json").read_text())
            del config["variant"]
            (tmp_path / "config.json").write_text(json.dumps(config))
        loaded = load_calibration(tmp_path)
        assert loaded.variant == variant and loaded.levels == 3
        np.testing.assert_array_equal(loaded.transform(x_ND), flow.transform(x_ND))
