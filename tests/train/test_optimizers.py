"""AdamW without bias correction and RMSprop against their formulas, and their groups."""

import numpy as np
import pytest
import torch
from torch import nn

from raysed.train.engine import TorchEngine, step_if_finite
from raysed.train.optimizers import RMSprop, UncorrectedAdamW, adam_optimizer, bert_optimizer
from raysed.train.stages.ct import STAGE, ContrastiveTension, CtConfig, PairSampler


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_adam(start, gradients, rates, decay):
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for gradient, rate in zip(gradients, rates):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        p = p - rate * (m / (v.sqrt() + 1e-6) + decay * p)
    return p


def plain_rmsprop(start, gradients, rates):
    """Every number in every update."""
    p, v = start.clone(), torch.zeros_like(start)
    for gradient, rate in zip(gradients, rates):
        v = 0.9 * v + 0.1 * gradient**2
        p = p - rate * gradient / (v.sqrt() + 1e-7)
    return p


def test_updates_equal_the_formula():
    """Gradients of very different sizes, a rate that changes, and two groups with decays of their own."""
    sizes, decays = [(5,), (3, 4), (), (2, 3)], [0.0, 0.3, 0.0, 0.3]
    rates = np.random.default_rng(0).uniform(1e-3, 3e-2, 25).tolist()
    starts = [randn(*size, seed=0) for size in sizes]
    gradients = [[randn(*size, seed=step) * 10.0 ** (3 * i - 6) for step in range(25)] for i, size in enumerate(sizes)]
    parameters = [nn.Parameter(start.clone()) for start in starts]
    groups = [{"params": parameters[::2], "weight_decay": 0.0}, {"params": parameters[1::2]}]
    optimizer = UncorrectedAdamW(groups, learning_rate=1.0, weight_decay=0.3)
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, of_parameter in zip(parameters, gradients):
            parameter.grad = of_parameter[step].clone()
        optimizer.step()
    for parameter, start, of_parameter, decay in zip(parameters, starts, gradients, decays):
        expected = plain_adam(start, of_parameter, rates, decay)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)
        assert (expected - start).abs().max() > 0.01


@pytest.mark.parametrize("make", [bert_optimizer, adam_optimizer])
def test_biases_and_layer_norms_are_not_decayed(make_encoder, make):
    """What is not trained is in no group."""
    module = nn.ModuleDict({"encoder": make_encoder("bert"), "head": nn.Linear(4, 3)})
    norms = {id(p) for part in module.modules() if isinstance(part, nn.LayerNorm) for p in part.parameters()}
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    plain = {name for name, p in trained.items() if name.endswith("bias") or id(p) in norms}
    assert {"head.bias"} < plain and len(norms) > 8
    decay = {id(p): group["weight_decay"] for group in make(module, 0.07).param_groups for p in group["params"]}
    assert len(decay) == len(trained)
    assert {name: decay[id(p)] for name, p in trained.items()} == {
        name: 0.0 if name in plain else 0.07 for name in trained
    }


def state_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], int]:
    """Where each number of the state lies in memory."""
    return {
        (place, key): value.data_ptr()
        for place, p in enumerate(p for group in optimizer.param_groups for p in group["params"])
        for key, value in optimizer.state[p].items()
    }


@pytest.mark.parametrize("is_sparse", [True, False])
def test_no_update_makes_state(make_encoder, make_table, is_sparse):
    """What is not there before the first update may not fit into memory at its end."""
    objective = ContrastiveTension(make_encoder("bert"))
    for embedding in (m for m in objective.modules() if isinstance(m, nn.Embedding)):
        embedding.sparse &= is_sparse
    optimizer = STAGE.optimizer(CtConfig(), objective) if is_sparse else adam_optimizer(objective, 0.1)
    before = state_of(optimizer)
    objective.loss(PairSampler(make_table(20), CtConfig(), 0)(0)).backward()
    optimizer.step()
    assert before and state_of(optimizer) == before


# -- RMSprop: an embedding's rows are updated when they are met ------------------------------------------------------


def row_gradients(shape: tuple[int, int], steps: int) -> list[torch.Tensor]:
    """Sparse, as an embedding's backward pass makes them: the same row several times, and often none of most rows."""
    draw, made = np.random.default_rng(7), []
    for _ in range(steps):
        rows = torch.from_numpy(draw.integers(shape[0], size=draw.integers(1, 5)))
        values = torch.from_numpy(draw.normal(size=(len(rows), shape[1])) * 10.0 ** draw.integers(-3, 3))
        made.append(torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=True))
    return made


@pytest.mark.parametrize(("before", "after"), [("rows", "rows"), ("rows", "dense"), ("dense", "rows")])
def test_rows_that_wait_end_where_dense_updates_end(before, after):
    """Some are met every few updates, some hardly ever; a dense parameter is beside them.

    On a CPU rows have sparse gradients, on a GPU dense ones; a state may be written there and read here.
    """
    rates = np.random.default_rng(7).uniform(1e-3, 3e-2, 60).tolist()
    rows, dense = row_gradients((12, 3), 60), [randn(2, 3, seed=step) for step in range(60)]
    starts = [randn(12, 3, seed=1), randn(2, 3, seed=2)]
    parameters = [nn.Parameter(start.clone()) for start in starts]
    optimizers = [
        RMSprop(parameters, alpha=0.9, eps=1e-7, sparse=parameters[:1] if kind == "rows" else [])
        for kind in (before, after)
    ]
    for step, rate in enumerate(rates):
        kind, optimizer = (before, optimizers[0]) if step < 30 else (after, optimizers[1])
        if step == 30:
            optimizer.load_state_dict(optimizers[0].state_dict())
        optimizer.param_groups[0]["lr"] = rate
        parameters[0].grad = rows[step].clone() if kind == "rows" else rows[step].to_dense()
        parameters[1].grad = dense[step].clone()
        optimizer.step()
    for parameter, start, gradients in zip(parameters, starts, ([row.to_dense() for row in rows], dense)):
        expected = plain_rmsprop(start, gradients, rates)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)


def test_token_embeddings_of_two_models_have_sparse_gradients(make_encoder, make_table):
    """Their norm is that of the dense gradient, although rows occur more than once."""
    objective = ContrastiveTension(make_encoder("bert"))
    objective.loss(PairSampler(make_table(20), CtConfig(), 0)(0)).backward()
    for model in (objective.first, objective.second):
        table, norms = model.transformer.get_input_embeddings().weight, []
        assert table.grad.is_sparse
        expected = table.grad.to_dense().norm().item()
        step_if_finite(torch.tensor(0.0), [table], norms.append)
        assert norms[0].item() == pytest.approx(expected, rel=1e-5)


def test_a_broken_sparse_gradient_reaches_no_weight():
    """The root of a row of zero is finite, and its gradient is not."""
    objective = nn.Embedding.from_pretrained(torch.tensor([[0.0], [4.0]]), freeze=False, sparse=True)
    objective.loss = lambda rows: objective(rows).sqrt().sum()
    engine = TorchEngine(objective, RMSprop(objective.parameters(), 0.9, 1e-7))
    assert np.isnan(engine.update(torch.tensor([0, 1]), 0.1))
    assert objective.weight.tolist() == [[0.0], [4.0]]
    assert engine.update(torch.tensor([1]), 0.1) == 2.0
    assert objective.weight.tolist()[0] == [0.0] and objective.weight[1] < 4.0
