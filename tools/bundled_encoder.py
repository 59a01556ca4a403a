"""Trains a small encoder from text alone, as the one in raysed/bundled/encoder was: docs/bundled-encoder.md.

    python tools/bundled_encoder.py 'text/*.txt' bundled:everyday [--set mlm.epochs=2]

A lower-case WordPiece tokenizer is trained on the sentences and written with a BERT of random weights, in Hugging Face
layout, to runs/bundled-encoder-start. A run of the recipe `mlm` then trains it: its only member is the encoder.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import raysed
from raysed.config import make_config
from raysed.config_text import apply_override
from raysed.data.corpus import CorpusReport, sentence_chunks

VOCABULARY, LAYERS, WIDTH, HEADS, MAX_LENGTH = 8000, 3, 192, 6, 48
SETTINGS = {
    "run": "bundled-encoder",
    "recipes": ["mlm"],
    "mlm": {"epochs": 10, "batch_size": 64, "learning_rate": 1e-3, "warmup": 0.05},
    "members": {"count": 1, "evaluate_every": 200, "checkpoint_every": 200},
}
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def main() -> None:
    """Write the untrained encoder and train it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="as in corpus.source")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    arguments = parser.parse_args()
    start = Path("runs/bundled-encoder-start")
    settings = {
        **SETTINGS,
        "corpus": {"source": arguments.sources},
        "encoder": {"path": str(start), "max_length": MAX_LENGTH},
    }
    for item in arguments.set:
        apply_override(settings, item)
    config = make_config(settings)
    chunks = sentence_chunks(config.corpus, config.seed, CorpusReport())
    write_start((sentence for _, chunk in chunks for sentence in chunk), config.seed, start)
    raysed.run(config)
    print(f"the encoder is {config.storage}/{config.run}/mlm/members/00")


def train_tokenizer(sentences: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a lower-case WordPiece vocabulary of at most `vocabulary` pieces, with BERT's special tokens.

    The same sentences give the same vocabulary in whatever order.
    """
    tokenizer = _word_piece({})
    words = Counter(word for sentence in sentences for word in sentence.split())
    special = list(_SPECIAL.values())
    # Pieces that are equally frequent are ordered by the numbers of their parts. The trainer numbers the characters
    # within words as it meets them, in the order of a hash table that is another in every run, unless it is given them.
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    inner = {character for word in words for part, _ in split(normalize(word)) for character in part[1:]}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=special + [f"##{c}" for c in sorted(inner)], show_progress=False
    )
    tokenizer.train_from_iterator(words.elements(), trainer)
    tokenizer = _word_piece(tokenizer.get_vocab())  # in which only the special tokens will be special
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (_SPECIAL["cls"], _SPECIAL["sep"])],
    )
    names = {f"{name}_token": token for name, token in _SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _word_piece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def write_start(sentences: Iterable[str], seed: int, path: Path) -> None:
    """Write the tokenizer and a BERT of random weights, which depend on the seed alone, in Hugging Face layout."""
    tokenizer = train_tokenizer(sentences, VOCABULARY)
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=2 * MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(path)
    tokenizer.save_pretrained(path)


if __name__ == "__main__":
    main()
