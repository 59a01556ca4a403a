"""An ensemble of Contrastive Tension models, averaged and distilled, with sentence-transformers alone.

    python benchmarks/s5_peer.py --model DIR --corpus SENTENCES.txt --dev stsb-dev.tsv [--members 4] [--updates 200]

What a user would write after its documentation: members one after the other, their mean in memory, a learner. It prints
the learner's Spearman x100 on the dev pairs. Nothing of raysed is in it; S5 times it as a process.
"""

import argparse
import random
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import ContrastiveTensionLoss, MSELoss
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments

NEGATIVES = 7
"""Pairs of different sentences for each pair of the same one."""


def main() -> None:
    """Members -> mean -> learner -> dev score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory or name of the encoder")
    parser.add_argument("--corpus", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--dev", type=Path, required=True, help="subset, score and two sentences, tab-separated")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--updates", type=int, default=200, help="of each member")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision")
    options = parser.parse_args()
    sentences = options.corpus.read_text(encoding="utf-8").splitlines()
    # On a CPU its default is as fast as any; a GPU wants more at a time.
    batch_size = 32 if options.device == "cpu" else 256
    total = 0.0
    for seed in range(options.members):
        member = train_member(sentences, seed, options)
        total = total + member.encode(sentences, batch_size=batch_size)
    learner = distil(sentences, total / options.members, options)
    print(f"dev {score(learner, options.dev, batch_size):.4f}")


def train_member(sentences: list[str], seed: int, options: argparse.Namespace) -> SentenceTransformer:
    """Trains by Contrastive Tension on random pairs, of which one in eight is a sentence with itself."""
    draw = random.Random(seed)
    first = draw.choices(sentences, k=16 * options.updates)
    second = [text if i % (1 + NEGATIVES) == 0 else draw.choice(sentences) for i, text in enumerate(first)]
    model = load(options)
    arguments = training_arguments(options, batch_size=16, learning_rate=1e-5, lr_scheduler_type="constant", seed=seed)
    pairs = Dataset.from_dict({"text1": first, "text2": second})
    SentenceTransformerTrainer(model, arguments, pairs, loss=ContrastiveTensionLoss(model)).train()
    return model


def distil(sentences: list[str], targets: np.ndarray, options: argparse.Namespace) -> SentenceTransformer:
    """Trains a fresh model to give the targets, for one epoch."""
    model = load(options)
    arguments = training_arguments(
        options, batch_size=32, learning_rate=2e-5, lr_scheduler_type="constant_with_warmup", warmup_steps=0.1
    )
    rows = Dataset.from_dict({"text": sentences, "label": targets})
    SentenceTransformerTrainer(model, arguments, rows, loss=MSELoss(model)).train()
    return model


def score(model: SentenceTransformer, dev: Path, batch_size: int) -> float:
    """Returns Spearman x100 of the cosines with the gold scores."""
    rows = [line.split("\t") for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    scores, first, second = [float(row[1]) / 5 for row in rows], [row[2] for row in rows], [row[3] for row in rows]
    found = EmbeddingSimilarityEvaluator(first, second, scores, batch_size, write_csv=False)(model)
    return 100 * found["spearman_cosine"]


def load(options: argparse.Namespace) -> SentenceTransformer:
    """Loads the encoder with mean pooling."""
    model = SentenceTransformer(options.model, trust_remote_code=False, device=options.device)
    model.max_seq_length = 75
    return model


def training_arguments(
    options: argparse.Namespace, batch_size: int, **others: object
) -> SentenceTransformerTrainingArguments:
    """Returns what both trainings have in common: nothing is saved, logged or shown."""
    return SentenceTransformerTrainingArguments(
        num_train_epochs=1,
        per_device_train_batch_size=batch_size,
        bf16=options.bf16,
        use_cpu=options.device == "cpu",
        # Next to a GPU, processes of their own tokenise ahead; without one they would take the cores.
        dataloader_num_workers=0 if options.device == "cpu" else 4,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **others,
    )


if __name__ == "__main__":
    main()
