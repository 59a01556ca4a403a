"""Members that train as one program: each comes out as it does alone, whatever the others are and do."""

import copy
import math

import numpy as np
import pytest
import torch

from raysed.data.pairs import PairBatches, PairTable
from raysed.errors import UserError
from raysed.model.encoding import encode
from raysed.store.storage import Storage
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.optimizers import adam_optimizer, bert_optimizer
from raysed.train.stack import Stack, can_be_stacked, train_together
from raysed.train.stage import Plan, Start
from raysed.train.stages.contrastive import Contrastive
from raysed.train.stages.ct import STAGE, CtConfig, PairSampler, SentenceSampler
from raysed.train.stages.mlm import MaskedLM
from raysed.train.stages.nli import SiameseNLI
from raysed.train.stages.sts import CosineRegression

STEPS = 8
STAGES = ("ct", "ct-in-batch", "nli", "sts", "contrastive")


@pytest.fixture
def make_run(make_encoder, make_table):
    """Builds the training of one member; its seed gives it weights and batches of its own."""

    def run(stage, seed, *, kind="bert", dropout=False, dtype=torch.float64, steps=STEPS, keep="last", **options):
        encoder = make_encoder(kind, layers=2, seed=seed).to(dtype)
        torch.manual_seed(seed)
        objective, batches, optimizer = _parts(stage, encoder, make_table, seed, dropout)
        clip = None if stage.startswith("ct") else 0.5
        names = list(objective.candidates())
        plan = Plan(
            steps,
            lambda step: 1e-3 * (1 + seed) / (1 + step),
            seed,
            evaluate_every=3,
            checkpoint_every=4,
            log_every=1,
            keep=names[-1] if keep == "last" else keep,
        )
        engine = TorchEngine(objective.to(dtype), optimizer(objective), clip, options.pop("bf16", False))
        result = Run(objective, batches, plan, engine, **options)
        result.objective = objective
        return result

    return run


def _parts(stage, encoder, make_table, seed, dropout):
    table = make_table(60, seed=4)
    if stage.startswith("ct"):
        variant = "in_batch" if stage == "ct-in-batch" else "pairs"
        config = CtConfig(variant=variant, groups=2, negatives=3, batch_size=6, dropout=dropout)
        batches = PairSampler(table, config, seed) if variant == "pairs" else SentenceSampler(table, 6, seed)
        objective = STAGE.objective(config, Start(encoder, None, {}, seed))
        return objective, batches, lambda objective: STAGE.optimizer(config, objective)
    if stage == "contrastive":
        batches = PairBatches(PairTable(table, table), 6, seed)
        return Contrastive(encoder, dropout=dropout), batches, lambda objective: adam_optimizer(objective, 0.01)
    pairs = PairTable(table, make_table(60, seed=5), np.arange(60) % 3 if stage == "nli" else np.linspace(0, 1, 60))
    objective = SiameseNLI(encoder, dropout=dropout) if stage == "nli" else CosineRegression(encoder, 0.3, dropout)
    return objective, PairBatches(pairs, 6, seed), lambda objective: bert_optimizer(objective, 0.01)


def assert_equal(found, expected, make_table, atol=1e-8):
    """Embeddings and history agree; single weights need not, where the gradient is zero but for rounding."""
    table = make_table(20, seed=8)
    for (_, first), (_, second) in zip(found.objective.candidates().items(), expected.objective.candidates().items()):
        np.testing.assert_allclose(encode(first, table)[0], encode(second, table)[0], rtol=0, atol=atol)
    histories = [run.end().history for run in (found, expected)]
    assert [entry["step"] for entry in histories[0]] == [entry["step"] for entry in histories[1]]
    for one, other in zip(*histories):
        assert one["loss"] == pytest.approx(other["loss"], abs=atol)
        assert one.get("directions") == pytest.approx(other.get("directions"), abs=atol)


@pytest.mark.parametrize("stage", STAGES)
def test_each_member_is_the_one_that_trains_alone(make_run, make_table, stage):
    stacked = [make_run(stage, seed) for seed in (1, 2, 3)]
    train_together(stacked)
    for seed, run in zip((1, 2, 3), stacked):
        expected = make_run(stage, seed)
        before = encode(next(iter(expected.objective.candidates().values())), make_table(20, seed=8))[0]
        expected.train()
        assert_equal(run, expected, make_table)
        after = encode(run.objective.candidates().popitem()[1], make_table(20, seed=8))[0]
        assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "mpnet"])
def test_so_it_is_in_every_architecture(make_run, make_table, kind):
    stacked = [make_run("ct", seed, kind=kind) for seed in (1, 2)]
    train_together(stacked)
    for seed, run in zip((1, 2), stacked):
        (expected := make_run("ct", seed, kind=kind)).train()
        assert_equal(run, expected, make_table)


def test_so_it_is_in_bf16(make_run, make_table):
    """After one update: further ones enlarge what bf16 rounds."""
    options = {"dtype": torch.float32, "bf16": True, "steps": 1}
    stacked = [make_run("sts", seed, **options) for seed in (1, 2)]
    train_together(stacked)
    for seed, run in zip((1, 2), stacked):
        (expected := make_run("sts", seed, **options)).train()
        assert_equal(run, expected, make_table, atol=0.05)


def test_the_best_on_dev_is_kept_of_each(make_run, make_table):
    def score(module):
        return float(np.abs(encode(module, make_table(5, seed=9))[0]).mean())

    stacked = [make_run("ct", seed, keep="best", evaluate=score) for seed in (1, 2)]
    for seed, run, result in zip((1, 2), stacked, train_together(stacked)):
        expected = make_run("ct", seed, keep="best", evaluate=score)
        best = expected.train()
        assert (result.kept, result.kept_step) == (best.kept, best.kept_step)
        assert result.score == pytest.approx(best.score, abs=1e-8)
        assert_equal(run, expected, make_table)


def test_members_begin_and_end_where_they_do(make_run, make_table, tmp_path):
    saved = Storage(str(tmp_path), "run").checkpoints("member-1", {})
    make_run("ct", 1, until=4, checkpoints=saved).train()
    stacked = [make_run("ct", 1, checkpoints=saved), make_run("ct", 2, steps=3), make_run("ct", 3)]
    train_together(stacked)
    for run, expected in zip(stacked, (make_run("ct", 1), make_run("ct", 2, steps=3), make_run("ct", 3))):
        expected.train()
        assert_equal(run, expected, make_table)


@pytest.mark.parametrize("stage", ["ct", "nli"])
def test_a_stopped_stack_goes_on_as_single_members_and_they_as_a_stack(make_run, make_table, tmp_path, stage):
    def checkpoints(seed):
        return Storage(str(tmp_path), "run").checkpoints(f"member-{seed}", {})

    def runs(until=None):
        return [make_run(stage, seed, until=until, checkpoints=checkpoints(seed)) for seed in (1, 2)]

    train_together(runs(until=3))
    for run in runs(until=6):
        run.train()
    stacked = runs()
    results = train_together(stacked)
    for seed, run, result in zip((1, 2), stacked, results):
        assert result.resumed_at == 6
        (expected := make_run(stage, seed)).train()
        assert_equal(run, expected, make_table)


def test_a_member_whose_loss_breaks_is_named_and_the_weights_of_no_other_are_touched(make_run):
    stacked = [make_run("ct", seed) for seed in (1, 2)]
    with torch.no_grad():
        stacked[1].objective.second.transformer.get_input_embeddings().weight.fill_(math.inf)
    stack = Stack([run.engine for run in stacked])
    broken = copy.deepcopy(stacked[1].objective.first.state_dict())
    losses = stack.update([run.next_batch() for run in stacked], [1e-3, 1e-3])
    assert math.isfinite(losses[0]) and not math.isfinite(losses[1])
    assert all(torch.isfinite(value).all() for value in stacked[0].objective.state_dict().values())
    assert all(torch.equal(value, broken[name]) for name, value in stacked[1].objective.first.state_dict().items())
    with pytest.raises(UserError, match="not finite at step 0"):
        train_together([make_run("ct", 1), stacked[1]])


def test_afterwards_every_weight_has_memory_of_its_own(make_run):
    stacked = [make_run("nli", seed, steps=2) for seed in (1, 2, 3)]
    stack = Stack([run.engine for run in stacked])
    encoders = [run.objective.encoder for run in stacked]
    joined = [p for encoder in encoders for p in encoder.parameters()]
    assert all(p.untyped_storage().nbytes() == 3 * p.nbytes for p in joined)
    stack.part()
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in joined)


def test_with_dropout_each_member_draws_its_own_masks(make_run):
    stacked = [make_run("nli", 1, dropout=True) for _ in range(2)]
    first, second = train_together(stacked)
    losses = [[entry["loss"] for entry in result.history] for result in (first, second)]
    assert all(abs(one - other) > 1e-9 for one, other in zip(*losses))
    assert losses[0] == pytest.approx(losses[1], abs=0.5)


def test_what_draws_at_random_in_its_loss_or_has_no_rows_is_not_stacked(make_run, make_encoder, make_table):
    assert can_be_stacked(make_run("ct", 1).engine)
    hidden = MaskedLM(make_encoder("bert"), mask_id=4, special_ids=[0, 1, 2, 3, 4])
    assert not can_be_stacked(TorchEngine(hidden, bert_optimizer(hidden, 0.01)))
    padded = make_run("nli", 1)
    padded.objective.encoder._offset = None
    assert not can_be_stacked(padded.engine)
