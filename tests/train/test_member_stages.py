"""What holds for every stage that trains members, whichever files there are."""

from dataclasses import replace

import pytest
import torch
from stopping import stop_after

from raysed.registry import stages
from raysed.store.storage import Storage

MEMBERS = sorted(stages().keys() - {"sed"})


@pytest.mark.parametrize("name", MEMBERS)
def test_an_interrupted_training_goes_on_exactly(setup, tmp_path, monkeypatch, name):
    """All that it holds, encoders, heads with their statistics, targets and moments, and its history, bit for bit.

    Also where batches are prepared ahead, as on a GPU.
    """
    whole, checkpoints = setup(name), Storage(str(tmp_path), "run").checkpoints("member", {})
    expected = whole.train()
    for updates in (2, 5):
        stop_after(replace(setup(name), checkpoints=checkpoints), updates)
    logged: list[dict] = []
    continued = replace(setup(name), checkpoints=checkpoints, on_metrics=logged.append)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(continued, "_on_gpu", True)
    result = continued.train()
    assert result.resumed_at == 5 and logged == expected.history
    torch.testing.assert_close(continued.engine.state_dict(), whole.engine.state_dict(), rtol=0, atol=0)
    assert replace(result, resumed_at=0) == replace(expected, resumed_at=0)
    other = setup(name, seed=4)
    other.train()
    kept, theirs = (list(run.objective.candidates().values())[-1].state_dict() for run in (whole, other))
    assert any(not torch.equal(value, theirs[key]) for key, value in kept.items())


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("name", MEMBERS)
def test_dropout_is_a_setting_and_encoders_alone_are_kept(setup, name, dropout):
    """The rest of an objective is in training mode either way; nothing is while it is evaluated."""
    objective = setup(name, dropout).objective.train()
    encoders = objective.encoders()
    within = {id(module) for encoder in encoders for module in encoder.modules()}
    assert all(module.training is (dropout or id(module) not in within) for module in objective.modules())
    assert not any(module.training for module in objective.eval().modules())
    assert {id(kept) for kept in objective.candidates().values()} <= {id(encoder) for encoder in encoders}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MEMBERS)
def test_members_train_in_the_precision_of_the_settings(setup, name, precision):
    """bf16 is for the forward pass only: weights and gradients stay in fp32."""
    run, seen = setup(name, precision=precision), set()
    layer = run.objective.encoders()[0].transformer.encoder.layer[0].output.dense
    layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    run.engine.update(run.batch_at(0), 1e-3)
    assert seen == {{"fp32": torch.float32, "bf16": torch.bfloat16}[precision]}
    parameters = list(run.objective.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert gradients and {tensor.dtype for tensor in (*parameters, *gradients)} == {torch.float32}
