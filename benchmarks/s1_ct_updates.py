"""S1: updates of Contrastive Tension a second, raysed against sentence-transformers and plain PyTorch.

    python benchmarks/s1_ct_updates.py [--pairs 5] [--updates 20] [--quality-updates 200] [--dropout]

M3 (or `--encoder`), 16 pairs per update (2 positive ones), at most 75 tokens, learning rate 1e-5. raysed reads a table
that is tokenised once, as in a run; the peer tokenises while it trains, and what that takes is printed. Dropout is off
on both sides, as in the released code of Contrastive Tension, or on with `--dropout`; it is always on at `sentence-
transformers default`. (The peer's loss leaves the first of its two models in evaluation mode, so where dropout is on,
it has it in one only.) Each turn starts from fresh weights, and some updates come before the clock starts (`--warm-
up`).

The dev scores are those of one more training of each side. The table has the better of the two models, because which of
them gains depends on the seed, and the released code keeps the better one.
"""

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch
from sentence_transformers.sentence_transformer.losses import ContrastiveTensionLoss
from torch.nn import functional as F
from transformers import AutoTokenizer

from raysed.config import Config
from raysed.data.tokens import TokenTable, read_tokens, tokenize
from raysed.registry import stages
from raysed.train.loop import TrainingLoop
from raysed.train.setup import set_up
from raysed.train.stage import Start
from raysed.train.stages.ct import CtConfig, PairSampler

import harness
import peers

CT = CtConfig(boundaries=[], learning_rates=[1e-5])
BATCH = CT.groups * (1 + CT.negatives)
Embed = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class Work:
    """What all sides read.

    Attributes:
        options: the script's.
        sentences: the corpus.
        corpus: directory of its token table.
        encoder: directory of what is trained.
        pairs: columns `text1` and `text2` for the peer.
    """

    options: argparse.Namespace
    sentences: list[str]
    corpus: Path
    encoder: Path
    pairs: datasets.Dataset

    @property
    def table(self) -> TokenTable:
        """The corpus as tokens."""
        return read_tokens(self.corpus)


def main() -> None:
    """Times all sides in turn, then trains each once for its dev score."""
    parser = peers.training_parser(__doc__)
    options = parser.parse_args()
    peers.prepare(options)
    with tempfile.TemporaryDirectory() as directory:
        work = prepare(options, Path(directory))
        sides = sides_of(work)
        samples, notes = peers.in_turns(sides, options)
        if options.quality_updates:
            samples, note = _scored(work, sides, samples)
            notes.append(note)
    harness.publish(_figure(options, samples, notes), options)


def prepare(options: argparse.Namespace, directory: Path) -> Work:
    """Loads and tokenises what all sides read.

    Args:
        options: the script's.
        directory: empty.
    """
    encoder = harness.encoder_directory(directory / "encoder", options.encoder)
    sentences, (_, tokenizer) = harness.sentences(options), harness.encoder(path=encoder)
    corpus = directory / "corpus"
    corpus.mkdir()
    harness.write_tokens(corpus / "part-00000.parquet", tokenize(tokenizer, sentences, harness.MAX_LENGTH))
    return Work(options, sentences, corpus, encoder, _ct_pairs(sentences))


def sides_of(work: Work) -> dict[str, peers.Side]:
    """Returns the sides: functions of updates and seed."""
    dropout = work.options.dropout
    return {
        "raysed": partial(train_raysed, work, False),
        "sentence-transformers": partial(_train_peer, work, dropout, False),
        "raysed bf16": partial(train_raysed, work, True),
        "sentence-transformers bf16": partial(_train_peer, work, dropout, True),
        "sentence-transformers default": partial(_train_peer, work, True, False),
        "plain PyTorch": partial(_train_plain, work),
    }


def raysed_setup(work: Work, bf16: bool, seed: int) -> TrainingLoop:
    """Returns what a run makes for one member."""
    model, tokenizer = harness.encoder(work.options.device, work.encoder)
    ct = CT.model_copy(update={"dropout": work.options.dropout})
    config = Config(ct=ct, members={"precision": "bf16" if bf16 else "fp32"})
    start = Start(model, tokenizer, {"corpus": work.corpus}, seed)
    return set_up(stages()["ct"], config.ct, config.members, start)


def train_raysed(work: Work, bf16: bool, updates: int, seed: int) -> peers.Trained:
    """Trains from fresh weights with the loop of a run."""
    setup = raysed_setup(work, bf16, seed)

    def update(count: int) -> None:
        plan = replace(setup.plan, steps=count, keep="second")  # a choice is no update
        TrainingLoop(setup.objective, setup.batch_at, plan, setup.engine).train()

    update(work.options.warm_up)
    with harness.timed() as seconds:
        update(updates)
    tokenizer = AutoTokenizer.from_pretrained(work.encoder, trust_remote_code=False)
    models = setup.objective.candidates()
    return peers.Trained(seconds[0], tuple(harness.embedder(models[name], tokenizer) for name in ("first", "second")))


def _train_peer(work: Work, dropout: bool, bf16: bool, updates: int, seed: int) -> peers.Trained:
    model = peers.load(work.encoder, work.options.device, dropout)
    loss = ContrastiveTensionLoss(model)
    rate = CT.learning_rates[0]
    plan = peers.Updates(updates, BATCH, rate, seed, bf16, work.options.device, work.options.warm_up)
    timing = peers.train(model, loss, work.pairs, plan)
    models = tuple(partial(model.encode, show_progress_bar=False) for model in (loss.model1, loss.model2))
    return peers.Trained(timing.updates, models, timing.loading)


def _train_plain(work: Work, updates: int, seed: int) -> peers.Trained:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(work.encoder, trust_remote_code=False)
    models = [peers.plain_model(work.encoder, work.options.device, work.options.dropout) for _ in range(2)]
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=CT.learning_rates[0], alpha=0.9, eps=1e-7, foreach=True)
    sampler = PairSampler(work.table, CT, seed)

    def update(step: int) -> None:
        first, second = sampler.rows(step)
        embeddings = [
            peers.plain_embed(model, tokenizer, [work.sentences[row] for row in rows])
            for model, rows in zip(models, (first, second))
        ]
        logits = (embeddings[0] * embeddings[1]).sum(-1)
        loss = F.binary_cross_entropy_with_logits(logits, torch.from_numpy(first == second).to(logits))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for step in range(work.options.warm_up):
        update(step)
    with harness.timed() as seconds:
        for step in range(updates):
            update(step)
    return peers.Trained(seconds[0], tuple(partial(peers.plain_encode, model, tokenizer) for model in models))


def _ct_pairs(sentences: Sequence[str]) -> datasets.Dataset:
    """Pairs as the peer's documentation makes them: the same sentence with probability 1/8, else a random one."""
    draw = random.Random(0)

    def to_ct_pairs(sample: dict[str, str], pos_neg_ratio: int = BATCH // CT.groups) -> dict[str, str]:
        sample["text2"] = sample["text1"] if draw.random() < 1 / pos_neg_ratio else draw.choice(sentences)
        return sample

    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict({"text1": list(sentences)}).map(to_ct_pairs)


def _scored(
    work: Work, sides: dict[str, peers.Side], samples: dict[str, list[harness.Sample]]
) -> tuple[dict[str, list[harness.Sample]], str]:
    """Adds the better model's dev score; the note has those of both."""
    base = harness.dev_score(harness.embedder(*harness.encoder(path=work.encoder)), work.options)
    if base is None:
        return samples, "No dev scores."
    both = {}
    for name, side in sides.items():
        both[name] = [harness.dev_score(embed, work.options) for embed in side(work.options.quality_updates, 0).models]
        print(f"  dev of {name}: {both[name][0]:.2f} and {both[name][1]:.2f}", flush=True)
    listed = ", ".join(f"{name} {first:.2f} / {second:.2f}" for name, (first, second) in both.items())
    note = (
        f"Dev after {work.options.quality_updates} updates, first / second model: {listed}; untrained {base:.2f}. "
        "The table has the better of the two."
    )
    return harness.scored(samples, {name: max(scores) for name, scores in both.items()}), note


def _figure(options: argparse.Namespace, samples: dict[str, list[harness.Sample]], notes: list[str]) -> harness.Figure:
    best = max(("raysed", "raysed bf16"), key=lambda name: statistics.median(sample.rate for sample in samples[name]))
    targets = {
        ("raysed", "sentence-transformers"): 2.5,
        ("raysed bf16", "sentence-transformers bf16"): 2.5,
        (best, "sentence-transformers default"): 3.0,
        ("raysed", "plain PyTorch"): None,
        ("sentence-transformers", "plain PyTorch"): None,
    }
    title = f"CT updates: {options.encoder}, {BATCH} pairs, length {harness.MAX_LENGTH}"
    title = f"{title}, dropout {'on' if options.dropout else 'off'}"
    return harness.Figure("S1", title, "updates", samples, targets, notes=notes)


if __name__ == "__main__":
    main()
