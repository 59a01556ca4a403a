"""Gives bundled:raw its masked-language-model head, which `python -m papers.views mlm` fills tokens with.

    OMP_NUM_THREADS=1 python tools/bundled_head.py TEXT [TEXT ...] [--epochs 8]

The encoder stays frozen; BERT's head (a dense layer, a layer norm and a bias per token, the output matrix being the
input embeddings) is trained on the named text files and `bundled:generated-text`, and its tensors are put beside the
encoder's own. See raysed/bundled/README.md.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from raysed.bundled import ENCODERS
from raysed.config import CorpusConfig, EncoderConfig
from raysed.data.batches import EpochBatches
from raysed.data.corpus import BUNDLED, CorpusReport, sentence_chunks
from raysed.data.tokens import LengthReport, TokenTable, tokenize
from raysed.model.pretrained import load_encoder
from raysed.process import prepare_process
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.optimizers import bert_optimizer
from raysed.train.stage import TrainingPlan, warmup_schedule
from raysed.train.stages.mlm import MaskedLM
from raysed.train.state import seed_everything

BATCH = 64
MEAN_OVER = 200
"""Updates behind each logged loss."""


def main() -> None:
    """Trains the head, says what its loss is, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", help="text files, one sentence a line")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    prepare_process()
    torch.manual_seed(0)
    objective, batches = prepare([*arguments.texts, BUNDLED])
    fit(objective, batches, arguments.epochs * batches.per_epoch)
    for dropout in (True, False):
        print(f"mean loss with dropout {'on' if dropout else 'off'}: {mean_loss(objective, batches, dropout):.3f}")
    write(objective, ENCODERS["raw"] / "model.safetensors")


def prepare(sources: list[str]) -> tuple[MaskedLM, EpochBatches]:
    """Returns a new head on the frozen encoder, and shuffled batches of the sources."""
    encoder, tokenizer = load_encoder(EncoderConfig(path="bundled:raw", max_length=48))
    encoder.requires_grad_(False)
    objective = MaskedLM(encoder, tokenizer.mask_token_id, tokenizer.all_special_ids, dropout=False)
    objective.transform[2].eps = encoder.transformer.config.layer_norm_eps
    read, lengths = CorpusReport(), LengthReport(48)
    chunks = sentence_chunks(CorpusConfig(source=sources), 0, read)
    table = TokenTable.concatenate([tokenize(tokenizer, texts, 48, ids, lengths) for ids, texts in chunks])
    print(f"{read.summary()}\n{lengths}")
    return objective, EpochBatches(table, BATCH, seed=0)


def fit(objective: MaskedLM, batches: EpochBatches, steps: int) -> None:
    """Trains the head without dropout: it is going to see the encoder's states without."""
    losses: list[float] = []
    started = time.monotonic()

    def log_loss(entry: dict) -> None:
        losses.append(entry["loss"])
        if entry["step"] % MEAN_OVER == 0 or entry["step"] == steps:
            recent = losses[-MEAN_OVER:]
            seconds = time.monotonic() - started
            print(f"step {entry['step']}/{steps}  loss {sum(recent) / len(recent):.3f}  {seconds:.0f} s", flush=True)

    plan = TrainingPlan(steps, warmup_schedule(2e-3, steps, 0.05, "linear"), log_every=1, keep="encoder")
    engine = TorchEngine(objective, bert_optimizer(objective, weight_decay=0.01), clip=1.0, bf16=True)
    TrainingLoop(objective, batches, plan, engine, on_metrics=log_loss).train()


@torch.no_grad()
def mean_loss(objective: MaskedLM, batches: EpochBatches, dropout: bool) -> float:
    """Returns the mean loss of as many batches as a logged loss; the encoder's own was logged with dropout on."""
    objective.encoder.train(dropout)
    seed_everything(1, 0)
    return sum(objective.loss(batches(step)).item() for step in range(MEAN_OVER)) / MEAN_OVER


def write(objective: MaskedLM, path: Path) -> None:
    """Puts the head's tensors into the encoder's file, in half precision; the other tensors stay as they are."""
    dense, _, norm = objective.transform
    head = {
        "transform.dense.weight": dense.weight,
        "transform.dense.bias": dense.bias,
        "transform.LayerNorm.weight": norm.weight,
        "transform.LayerNorm.bias": norm.bias,
        "bias": objective.bias,
    }
    halves = {f"cls.predictions.{name}": tensor.detach().half() for name, tensor in head.items()}
    path.write_bytes(save(load_file(path) | halves, metadata={"format": "pt"}))


if __name__ == "__main__":
    main()
