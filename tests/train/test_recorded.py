"""Recorded updates are the plain ones, bit for bit: a tape stands in for CUDA graphs."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tape import Recorder

from raysed.data.batches import EpochBatches
from raysed.data.targets import TargetBatch
from raysed.data.tokens import TokenTable, pack
from raysed.model.encoder import Encoder
from raysed.train.engine import TorchEngine
from raysed.train.optimizers import bert_optimizer
from raysed.train.recorded import RecordedUpdates, _place_of_copy, _warn_of_shapes, launched_rate
from raysed.train.stages.ct import CtConfig, PairSampler
from raysed.train.stages.sed import Distillation
from raysed.train.state import load_state, seed_everything, snapshot, write_state

STEPS, RATE = 14, 2.0**-12  # a rate that float32 has
few_shapes = partial(pack, few_shapes=True)
OBJECTIVES = ("ct", "nli", "sts", "contrastive", "bsl", "sed")


class Training:
    """A training with dropout, on the CPU as on a GPU."""

    def __init__(self, objective, batch_at, optimizer, records=True, bf16=False, fault=None):
        self.objective, self.batch_at = objective.train(), batch_at
        self.recorder = Recorder(self._known, fault and partial(fault, self)) if records else None
        self.engine = TorchEngine(self.objective, optimizer, 1.0, bf16, record=self.recorder)
        self.batch_at.few_shapes = True

    def _known(self):
        yield from self.objective.parameters()
        yield from self.objective.buffers()
        for state in self.engine.optimizer.state.values():
            yield from state.values()

    def __call__(self, steps=range(STEPS), spoilt=None):
        losses, self.watched = [], []
        for step in steps:
            seed_everything(5, step)
            batch = self.batch_at(step)
            if step == spoilt:
                batch.targets[0, 0] = math.nan
            losses.append(self.engine.update(batch, RATE))
            self.watched.append(0.0 if self.objective.watched is None else self.objective.watched.sum().item())
        return losses


class Targets(EpochBatches):
    def batch(self, rows):
        generator = torch.Generator().manual_seed(int(rows.ids.sum()))
        return TargetBatch(pack(rows, few_shapes=True), torch.randn(len(rows), 16, generator=generator))


@pytest.fixture
def train(setup, make_encoder, make_table, monkeypatch):
    monkeypatch.setattr(Encoder, "use_sparse_gradients", lambda encoder: None)  # as on a GPU

    def make(name, **named):
        if name == "sed":
            objective = Distillation(make_encoder("bert", layers=2), dropout=True)
            return Training(
                objective, Targets(make_table(300, longest=40), 19, 3), bert_optimizer(objective, 0.1), **named
            )
        run = setup(name)
        return Training(run.objective, run.batch_at, run.engine.optimizer, **named)

    return make


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_replays_are_the_plain_updates(train, name, bf16):
    plain, recorded = (train(name, records=records, bf16=bf16) for records in (False, True))
    assert plain() == recorded()
    torch.testing.assert_close(recorded.engine.state_dict(), plain.engine.state_dict(), rtol=0, atol=0)
    made = recorded.engine._recorded
    assert (made.recorded, made.replayed) == (len(recorded.recorder.replays), sum(recorded.recorder.replays))
    assert made.replayed >= STEPS // 3 and made.recorded <= 5 and not made.is_off
    assert recorded.watched == plain.watched


def test_a_continued_training_records_anew(train, tmp_path):
    plain, broken = train("sed", records=False), train("sed")
    expected = plain()
    losses = broken(range(8))
    write_state(*snapshot(broken.engine.state_dict()), tmp_path)
    fresh = train("sed")
    fresh.engine.load_state_dict(load_state(tmp_path))
    assert losses + fresh(range(8, STEPS)) == expected
    broken.engine.load_state_dict(load_state(tmp_path))  # in the same process: its recordings are of other tensors
    assert broken(range(8, STEPS)) == expected[8:]


def test_what_is_not_finite_changes_nothing(train):
    training = train("sed")
    training(range(10))
    assert sum(training.recorder.replays)
    before = snapshot(training.engine.state_dict())[1]
    (loss,) = training(range(10, 11), spoilt=10)
    after = snapshot(training.engine.state_dict())[1]
    assert math.isnan(loss) and all(torch.equal(after[name], before[name]) for name in before)
    assert math.isfinite(*training(range(11, 12)))


def test_what_cannot_be_recorded_is_updated_without(train, caplog):
    """Also where an objective claims that it can."""
    caplog.set_level("INFO")
    plain, recorded = (train("mlm", records=records) for records in (False, True))
    assert "launched kernel by kernel, because its loss waits for the GPU" in caplog.text
    recorded.objective.is_recordable = True
    recorded.engine = TorchEngine(recorded.objective, recorded.engine.optimizer, 1.0, record=recorded.recorder)
    assert recorded() == plain()
    assert "updates cannot be recorded" in caplog.text and not sum(recorded.recorder.replays)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no CUDA graphs")])
def test_a_card_that_cannot_record_launches(train, error, caplog):
    """Because it is too small, or its driver too old; what was recorded before makes room."""
    plain, recorded = (train("sed", records=records) for records in (False, True))

    def record(function, batch):
        if recorded.recorder.replays:
            recorded.engine._gradient(batch)  # what a broken capture leaves behind
            raise error
        return recorded.recorder(function, batch)

    recorded.engine._recorded._record = record
    assert recorded() == plain()
    assert caplog.text.count("updates cannot be recorded, so they are slower from now on") == 1
    assert len(recorded.recorder.replays) == 1 and not recorded.engine._recorded._recordings


def test_batches_that_have_to_be_split_are_launched(train):
    plain, recorded = (train("sed", records=records) for records in (False, True))
    for training in (plain, recorded):
        training(range(8))
        training.objective.learner.parts = 2
    before = sum(recorded.recorder.replays)
    assert recorded(range(8, STEPS)) == plain(range(8, STEPS))
    assert before and sum(recorded.recorder.replays) == before and not recorded.engine._recorded._recordings


def test_numbers_of_a_batch_are_part_of_its_shape(train):
    """A worker's weight, which is 1 without others."""
    plain, recorded = (train("sed", records=records) for records in (False, True))
    batch = recorded.batch_at(0)
    for weight in (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0):
        losses = []
        for training in (plain, recorded):
            torch.manual_seed(1)
            losses.append(training.engine.update(replace(batch, weight=weight), RATE))
        assert losses[0] == losses[1]
    assert recorded.recorder.replays == [3, 1]


def test_seventeen_shapes_make_sixteen_recordings(train, make_table, caplog):
    _warn_of_shapes.cache_clear()
    recorded = train("sed")
    for _ in range(4):
        for count in range(1, 18):
            rows = make_table(count, longest=3)
            batch = TargetBatch(pack(rows), torch.zeros(count, 16))
            recorded.engine.update(batch, RATE)
    assert recorded.recorder.replays == [1] * 16
    (warning,) = caplog.records
    assert warning.levelname == "WARNING" and "batches have more than 16 shapes" in warning.getMessage()


def test_batches_have_few_shapes_and_the_same_embeddings(make_encoder, make_table):
    encoder, table, shapes = make_encoder("bert").eval(), make_table(2000, longest=38), set()
    for seed in range(100):
        some = table.take(np.random.default_rng(seed).integers(len(table), size=32))
        shapes.add(few_shapes(some).input_ids.shape)
        if seed < 5:
            with torch.no_grad():
                expected = encoder(pack(some))
                for padded in (few_shapes(some), pack(some).with_rows(40)):
                    torch.testing.assert_close(encoder(padded), expected, rtol=0, atol=1e-5)
    assert len(shapes) <= 5
    counts = {len(few_shapes(TokenTable.from_lists([[1] * 128] * count)).input_ids) for count in range(1, 65)}
    assert counts == {*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64}
    batch = PairSampler(table, CtConfig(), seed=1)
    batch.few_shapes = True
    assert all(first.input_ids.shape == second.input_ids.shape for first, second, *_ in map(batch, range(30)))
    assert few_shapes(TokenTable.from_lists([[1] * 129])).input_ids.shape == (1, 256)


# -- comparison of a recording with a launched update ------------------------------------------------------------------


def nothing(training, tape, first, batch):
    """A replay that does nothing."""


def no_lerp(training, tape, first, batch):
    tape.calls = [call for call in tape.calls if "lerp" not in str(call[0])]
    tape.replay()


def no_statistics(training, tape, first, batch):
    before = [buffer.clone() for buffer in training.objective.buffers()]
    tape.replay()
    for buffer, old in zip(training.objective.buffers(), before, strict=True):
        buffer.copy_(old)


def other_loss(training, tape, first, batch):
    """The right weights, but a loss that is off by 0.2 %."""
    tape.replay()
    tape.calls[-1][-1].mul_(1.002)


FAULTS = [nothing, no_lerp, no_statistics, other_loss]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["sed", "contrastive", "bsl"])
def test_a_replay_that_differs_is_never_used(train, name, fault, caplog):
    if fault in (no_lerp, no_statistics) and name != "bsl":
        pytest.skip("only BSL has them")
    plain, recorded = train(name, records=False), train(name, fault=fault)
    assert recorded() == plain() and recorded.watched == plain.watched
    torch.testing.assert_close(recorded.engine.state_dict(), plain.engine.state_dict(), rtol=0, atol=0)
    assert recorded.engine._recorded.is_off and sum(recorded.recorder.replays) == 1
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert "updates are slower from now on: a replay is wrong (loss" in warning


def test_a_new_recording_has_the_others_checked_again(train):
    """Because they share memory: here the first one breaks when there is a second one."""

    def broken_later(training, tape, first, batch):
        if len(training.recorder.replays) == 1:
            tape.replay()

    plain, recorded = train("sed", records=False), train("sed", fault=broken_later)
    assert recorded() == plain() and recorded.engine._recorded.is_off
    assert recorded.recorder.replays[0] >= 2


@pytest.mark.parametrize(("free", "place"), [(191, "cpu"), (192, "cuda")])
def test_a_nearly_full_gpu_has_the_copy_on_the_cpu(monkeypatch, free, place):
    """Two copies of 24 numbers of four bytes have to fit."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    assert _place_of_copy([torch.zeros(20), torch.zeros(4)], torch.device("cuda")).type == place


# -- what is launched --------------------------------------------------------------------------------------------------


def test_updates_are_not_recorded_where_the_switch_is_off_or_rows_are_padded(train, caplog):
    training = train("sts")
    engine = training.engine
    parts = training.objective, engine.optimizer, engine._gradient, engine._step
    assert not RecordedUpdates(*parts, record=training.recorder).is_off
    assert RecordedUpdates(*parts, records=False, record=training.recorder).is_off and not caplog.records
    training.objective.encoder.position_offset = None
    assert RecordedUpdates(*parts, record=training.recorder).is_off
    assert "its encoder takes no packed rows" in caplog.text


def test_a_gpu_rounds_the_rate_of_launched_updates():
    """As recorded ones have it; CPUs keep the rate."""
    rate = 2e-5
    assert launched_rate(rate, torch.device("cuda")) == torch.tensor(rate).item() != rate
    assert launched_rate(rate, torch.device("cpu")) == rate
