"""AdamW without bias correction and RMSprop against their formulas, and their groups."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from raysed.train.engine import TorchEngine, step_if_finite
from raysed.train.optimizers import RMSprop, UncorrectedAdamW, adam_optimizer, bert_optimizer, make_moments
from raysed.train.stages.ct import STAGE, ContrastiveTension, CtConfig, PairSampler


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_updates(start, gradients, rates, decay):
    """The formula for one parameter, update by update."""
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for gradient, rate in zip(gradients, rates):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        p = p - rate * (m / (v.sqrt() + 1e-6) + decay * p)
    return p


@pytest.mark.parametrize("seed", range(3))
def test_updates_equal_the_formula(seed):
    """Gradients of very different sizes, a rate that changes, and two groups with decays of their own."""
    sizes, decays = [(5,), (3, 4), (), (2, 3)], [0.0, 0.3, 0.0, 0.3]
    rates = np.random.default_rng(seed).uniform(1e-3, 3e-2, 25).tolist()
    starts = [torch.randn(size, generator=generator(seed), dtype=torch.float64) for size in sizes]
    gradients = [
        [
            torch.randn(size, generator=generator(seed + 97 * step), dtype=torch.float64) * 10.0 ** (3 * i - 6)
            for step in range(25)
        ]
        for i, size in enumerate(sizes)
    ]
    parameters = [nn.Parameter(start.clone()) for start in starts]
    groups = [
        {"params": [parameters[0], parameters[2]], "weight_decay": 0.0},
        {"params": [parameters[1], parameters[3]]},
    ]
    optimizer = UncorrectedAdamW(groups, learning_rate=1.0, weight_decay=0.3)
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, of_parameter in zip(parameters, gradients):
            parameter.grad = of_parameter[step].clone()
        optimizer.step()
    for parameter, start, of_parameter, decay in zip(parameters, starts, gradients, decays):
        expected = plain_updates(start, of_parameter, rates, decay)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)
        assert (expected - start).abs().max() > 0.01


def test_the_first_update_is_three_times_the_rate():
    """0.1 / sqrt(0.001) times the sign of the gradient, where Adam with its correction takes the rate itself."""
    module = nn.Linear(3, 2)
    for make, size in ((bert_optimizer, 10**0.5), (adam_optimizer, 1.0)):
        nn.init.zeros_(module.weight)
        optimizer = make(module, 0.0)
        optimizer.param_groups[0]["lr"] = 1e-3
        module.weight.grad = torch.tensor([[5.0, -7.0, 0.5]]).repeat(2, 1)
        optimizer.step()
        torch.testing.assert_close(module.weight.detach(), -1e-3 * size * module.weight.grad.sign(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "mpnet"])
def test_biases_and_layer_norms_are_not_decayed(make_encoder, kind):
    """Whatever an architecture calls its layer norms; what is not trained is in no group."""
    module = nn.ModuleDict({"encoder": make_encoder(kind), "head": nn.Linear(4, 3)})
    norms = {id(p) for part in module.modules() if isinstance(part, nn.LayerNorm) for p in part.parameters()}
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    plain = {name for name, p in trained.items() if name.endswith("bias") or id(p) in norms}
    assert {"head.bias"} < plain and len(norms) > 8

    optimizer = bert_optimizer(module, 0.07)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay.get(id(p)) for name, p in module.named_parameters()} == {
        name: None if name not in trained else 0.0 if name in plain else 0.07 for name, _ in module.named_parameters()
    }


def state_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], int]:
    """Where each number of the state lies in memory."""
    return {
        (place, key): value.data_ptr()
        for place, p in enumerate(p for group in optimizer.param_groups for p in group["params"])
        for key, value in optimizer.state[p].items()
    }


def _ct_optimizer(objective: nn.Module) -> RMSprop:
    return STAGE.optimizer(CtConfig(), objective)


@pytest.mark.parametrize(
    "make", [_ct_optimizer, partial(bert_optimizer, weight_decay=0.1), partial(adam_optimizer, weight_decay=0.1)]
)
def test_no_update_makes_state(make_encoder, make_table, make):
    """What is not there before the first update may not fit into memory at its end."""
    objective = ContrastiveTension(make_encoder("bert"))
    if make is not _ct_optimizer:
        for embedding in (m for m in objective.modules() if isinstance(m, nn.Embedding)):
            embedding.sparse = False
    optimizer = make(objective)
    before = state_of(optimizer)
    objective.loss(PairSampler(make_table(20), CtConfig(), 0)(0)).backward()
    optimizer.step()
    assert before and state_of(optimizer) == before


def test_moments_that_are_made_ahead_are_those_of_torch():
    parameters = [nn.Parameter(torch.randn(3, 4, generator=generator(1))) for _ in range(2)]
    optimizers = [torch.optim.AdamW([p], lr=0.1, fused=True) for p in parameters]
    make_moments(optimizers[0])
    for step in range(3):
        for parameter, optimizer in zip(parameters, optimizers):
            parameter.grad = torch.randn(3, 4, generator=generator(step))
            optimizer.step()
    assert torch.equal(*parameters)
    states = [optimizer.state[p] for p, optimizer in zip(parameters, optimizers)]
    assert states[0].keys() == states[1].keys()
    for key, value in states[1].items():
        assert torch.equal(states[0][key], value) and states[0][key].dtype == value.dtype


@pytest.mark.parametrize("expected_sparse", [True, False])
def test_rms_makes_state_anew_for_a_gradient_of_the_other_kind(expected_sparse):
    """As of a model whose own code looks rows up in another way than its embedding says."""
    found = []
    for sparse in (expected_sparse, not expected_sparse):
        parameter = nn.Parameter(torch.ones(4, 2))
        optimizer = RMSprop([parameter], 0.9, 1e-7, sparse=[parameter] if sparse else [])
        optimizer.param_groups[0]["lr"] = 0.1
        for _ in range(3):
            gradient = torch.tensor([[1.0, 2.0], [0, 0], [3, 4], [0, 0]])
            parameter.grad = gradient.to_sparse(1) if expected_sparse else gradient
            optimizer.step()
        found.append(parameter.detach())
    assert torch.equal(*found)


# -- RMSprop: an embedding's rows are updated when they are met ------------------------------------------------------


def plain_rmsprop(start, gradients, rates):
    """Every number in every update."""
    p, v = start.clone(), torch.zeros_like(start)
    for gradient, rate in zip(gradients, rates):
        v = 0.9 * v + 0.1 * gradient**2
        p = p - rate * gradient / (v.sqrt() + 1e-7)
    return p


def row_gradients(seed: int, shape: tuple[int, int], steps: int) -> list[torch.Tensor]:
    """Sparse, as an embedding's backward pass makes them: the same row several times, and often none of most rows."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        rows = torch.from_numpy(draw.integers(shape[0], size=draw.integers(1, 5)))
        values = torch.from_numpy(draw.normal(size=(len(rows), shape[1])) * 10.0 ** draw.integers(-3, 3))
        made.append(torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=True))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_wait_end_where_dense_updates_end(seed):
    """RMSprop over 60 updates, some rows met every few of them, some hardly ever; a dense parameter beside them."""
    rates = np.random.default_rng(seed).uniform(1e-3, 3e-2, 60).tolist()
    sparse = row_gradients(seed, (12, 3), 60)
    dense = [torch.randn(2, 3, generator=generator(seed + step), dtype=torch.float64) for step in range(60)]
    starts = [torch.randn(12, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)]
    parameters = [nn.Parameter(start.clone()) for start in starts]
    optimizer = RMSprop(parameters, alpha=0.9, eps=1e-7)
    for step, rate in enumerate(rates):
        if step == 30:  # the state survives being written and read
            state = optimizer.state_dict()
            optimizer = RMSprop(parameters, alpha=0.9, eps=1e-7)
            optimizer.load_state_dict(state)
        optimizer.param_groups[0]["lr"] = rate
        parameters[0].grad, parameters[1].grad = sparse[step].clone(), dense[step].clone()
        optimizer.step()
    expected = plain_rmsprop(starts[0], [gradient.to_dense() for gradient in sparse], rates)
    torch.testing.assert_close(parameters[0].detach(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(parameters[1].detach(), plain_rmsprop(starts[1], dense, rates), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sparse_first", [True, False])
def test_a_training_that_moves_between_kinds_of_gradients_goes_on_exactly(sparse_first):
    """On a CPU rows have sparse gradients, on a GPU dense ones; a state may be written there and read here."""
    rates = np.random.default_rng(7).uniform(1e-3, 3e-2, 40).tolist()
    gradients = row_gradients(7, (12, 3), 40)
    start = torch.randn(12, 3, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    optimizer = RMSprop([parameter], alpha=0.9, eps=1e-7, sparse=[parameter] if sparse_first else [])
    for step, rate in enumerate(rates):
        if step == 20:
            state = optimizer.state_dict()
            optimizer = RMSprop([parameter], alpha=0.9, eps=1e-7, sparse=[] if sparse_first else [parameter])
            optimizer.load_state_dict(state)
        optimizer.param_groups[0]["lr"] = rate
        is_sparse = sparse_first == (step < 20)
        parameter.grad = gradients[step].clone() if is_sparse else gradients[step].to_dense()
        optimizer.step()
    expected = plain_rmsprop(start, [gradient.to_dense() for gradient in gradients], rates)
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)


def test_token_embeddings_of_two_models_have_sparse_gradients(make_encoder, make_table):
    """Their norm is that of the dense gradient, although rows occur more than once."""
    objective = ContrastiveTension(make_encoder("bert"))
    objective.loss(PairSampler(make_table(20), CtConfig(), 0)(0)).backward()
    for model in (objective.first, objective.second):
        table = model.transformer.get_input_embeddings().weight
        assert table.grad.is_sparse
        expected = table.grad.to_dense().norm().item()
        norms = []
        step_if_finite(torch.tensor(0.0), [table], None, False, norms.append)
        assert norms[0].item() == pytest.approx(expected, rel=1e-5)


class RootOfRows(nn.Module):
    """A finite loss; its gradient is not, where a row is zero."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.tensor([[0.0], [4.0]]), freeze=False, sparse=True)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        return self.embedding(rows).sqrt().sum()


def test_a_broken_sparse_gradient_reaches_no_weight():
    objective = RootOfRows()
    engine = TorchEngine(objective, RMSprop(objective.parameters(), 0.9, 1e-7))
    assert np.isnan(engine.update(torch.tensor([0, 1]), 0.1))
    assert objective.embedding.weight.tolist() == [[0.0], [4.0]]
    assert engine.update(torch.tensor([1]), 0.1) == 2.0
    assert objective.embedding.weight.tolist()[0] == [0.0] and objective.embedding.weight[1] < 4.0
