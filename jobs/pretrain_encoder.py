"""Pre-trains a small BERT from nothing by masked language modelling: this is how the bundled encoder was made.

    python jobs/pretrain_encoder.py --corpus FILE [FILE …] --out DIR

The tokenizer (WordPiece, lower case) and the weights are trained on the given corpora together with the sentences of
`bundled:everyday`. Nothing here sees pairs of sentences or scores. Weights are stored in half precision.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of


def parser() -> argparse.ArgumentParser:
    """Returns the command line; the defaults are the bundled encoder's settings."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--corpus", nargs="+", required=True, help="text files, directories or URIs")
    result.add_argument("--out", type=Path, required=True)
    result.add_argument("--vocabulary", type=int, default=8000)
    result.add_argument("--layers", type=int, default=3)
    result.add_argument("--width", type=int, default=192)
    result.add_argument("--heads", type=int, default=6)
    result.add_argument("--max-length", type=int, default=48)
    result.add_argument("--epochs", type=float, default=10)
    result.add_argument("--batch", type=int, default=64)
    result.add_argument("--learning-rate", type=float, default=1e-3)
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--bf16", action="store_true", help="autocast; twice as fast on CPUs that have it")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Reads, trains the tokenizer, trains the encoder, writes both."""
    from raysed.tracking import quiet_libraries

    quiet_libraries()
    sentences = read_corpora(arguments)
    tokenizer = train_tokenizer(sentences, arguments.vocabulary)
    encoder = train_encoder(tokenizer, sentences, arguments)
    encoder.transformer.half().save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    print(f"written to {arguments.out}")


def read_corpora(arguments: argparse.Namespace) -> list[str]:
    """Returns the distinct sentences of all corpora."""
    from raysed.config import CorpusConfig
    from raysed.corpus import CorpusReport, sentence_chunks

    report = CorpusReport()
    source = CorpusConfig(source=[*arguments.corpus, "bundled:everyday"])
    sentences = [s for _, chunk in sentence_chunks(source, arguments.seed, report) for s in chunk]
    print(report.summary())
    return sentences


def train_tokenizer(sentences: list[str], size: int) -> Any:
    """Trains a lower-case WordPiece vocabulary with BERT's special tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token=special["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in (special["cls"], special["sep"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    names = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def train_encoder(tokenizer: Any, sentences: list[str], arguments: argparse.Namespace) -> Any:
    """Trains BERT with AdamW, linear warm-up over 5 % of the updates and linear decay."""
    import torch
    from transformers import BertConfig, BertModel

    from raysed import training
    from raysed.encoder import Encoder
    from raysed.objectives.masked_lm import EpochBatches, MaskedLM
    from raysed.tokens import LengthReport, tokenize

    torch.manual_seed(arguments.seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.width,
        max_position_embeddings=2 * arguments.max_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = Encoder(BertModel(config))
    lengths = LengthReport(arguments.max_length)
    table = tokenize(tokenizer, sentences, arguments.max_length, report=lengths)
    print(lengths)
    objective = MaskedLM(encoder, tokenizer.mask_token_id, tokenizer.all_special_ids)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in encoder.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.01, fused=True)
    batches = EpochBatches(table, arguments.batch, arguments.seed)
    steps = int(batches.per_epoch * arguments.epochs)
    schedule = training.warmup_schedule(arguments.learning_rate, steps, 0.05, "linear")
    plan = training.Plan(steps, schedule, seed=arguments.seed, log_every=200, keep="encoder")
    engine = training.TorchEngine(objective, optimizer, clip=1.0, bf16=arguments.bf16)
    started, recent = time.monotonic(), []

    class Smoothed:
        """The mean loss since the last line: one batch's loss is noisy."""

        def update(self, batch: Any, rate: float) -> float:
            recent.append(engine.update(batch, rate))
            return recent[-1]

    def show(entry: dict[str, Any]) -> None:
        loss = sum(recent) / max(len(recent), 1)
        recent.clear()
        seconds = time.monotonic() - started
        print(
            f"step {entry['step']}/{steps}  loss {loss:.3f}  rate {entry['learning_rate']:.2e}  {seconds:.0f} s",
            flush=True,
        )

    training.train(objective, batches, plan, Smoothed(), on_metrics=show)
    return encoder


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
