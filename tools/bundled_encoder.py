"""Distil a small encoder from published models and text alone, like the one in raysed/bundled/encoder.

    python tools/bundled_encoder.py 'text/*.txt' bundled:generated-text --teachers A B [--set sed.epochs=2]

It trains a lower-case WordPiece tokenizer on the sentences. A BERT starts from token embeddings that are the teachers'
embeddings of single tokens. Both are written to runs/bundled-encoder-start in Hugging Face layout, unless it exists. A
run of `teachers-sed` then trains the BERT. See raysed/bundled/README.md.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import raysed
from raysed.config import make_config
from raysed.config_text import apply_override
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.model.combination import principal_directions, side_by_side
from raysed.model.load import load_model

VOCABULARY, LAYERS, WIDTH, HEADS, MAX_LENGTH = 8000, 3, 192, 6, 48
SETTINGS = {
    "run": "bundled-encoder",
    "recipes": ["teachers-sed"],
    "export": {"recipe": "teachers-sed"},
    "sed": {
        "loss": "unit_mse",
        "epochs": 12,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "decay": "linear",
        "clip": 1.0,
        "weight_decay": 0.01,
    },
}
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def main() -> None:
    """Write the encoder's start and train it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="as in corpus.source")
    parser.add_argument("--teachers", nargs="+", required=True, help="models, by directory or hub id")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of the run")
    arguments = parser.parse_args()
    start = Path("runs/bundled-encoder-start")
    settings = {
        **SETTINGS,
        "teachers": arguments.teachers,
        "corpus": {"source": arguments.sources},
        "encoder": {"path": str(start), "max_length": MAX_LENGTH, "pool_layers": 1},
    }
    for item in arguments.set:
        apply_override(settings, item)
    config = make_config(settings)
    if not start.exists():
        chunks = sentence_chunks(config.corpus, config.seed, CorpusReport())
        tokenizer = train_tokenizer((sentence for _, chunk in chunks for sentence in chunk), VOCABULARY)
        write_start(tokenizer, token_vectors(tokenizer, arguments.teachers), start)
    print(f"encoder: {raysed.run(config, verbose=True).path}")


def train_tokenizer(sentences: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a lower-case WordPiece vocabulary of at most `vocabulary` pieces, with BERT's special tokens.

    The order of the sentences does not matter.
    """
    tokenizer = _word_piece({})
    words = Counter(word for sentence in sentences for word in sentence.split())
    special = list(_SPECIAL.values())
    # The trainer orders equally frequent pieces by the numbers of their parts. It numbers characters within words in
    # the order of a hash table, which differs in every run, unless it gets them as special tokens.
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    inner = {character for word in words for part, _ in split(normalize(word)) for character in part[1:]}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=special + [f"##{c}" for c in sorted(inner)], show_progress=False
    )
    tokenizer.train_from_iterator(words.elements(), trainer)
    tokenizer = _word_piece(tokenizer.get_vocab())  # without the characters among its special tokens
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


def token_vectors(tokenizer: PreTrainedTokenizerFast, teachers: Sequence[str]) -> np.ndarray:
    """Return the teachers' embeddings of all tokens but the special ones, each as a text, float32 [V - 5, WIDTH].

    Their unit vectors are joined side by side, centred over the tokens and reduced to the principal directions.
    """
    tokens = tokenizer.convert_ids_to_tokens(range(len(_SPECIAL), len(tokenizer)))
    texts = [token.removeprefix("##") for token in tokens]
    x_VE = side_by_side([load_model(teacher).embed(texts) for teacher in teachers], is_unit=True)
    x_VE -= x_VE.mean(0)
    return (x_VE @ principal_directions(x_VE.T @ x_VE, WIDTH)[0]).astype(np.float32)


@torch.no_grad()
def write_start(tokenizer: PreTrainedTokenizerFast, vectors_VD: np.ndarray, path: Path) -> None:
    """Write the tokenizer, and a BERT whose layers first pass a token's vector on unchanged.

    Positions and the outputs of attention and feed-forward layers start at zero. The mean over the last layer is then
    that of the token vectors, scaled to one length. Special tokens and the other weights of layers are random.
    """
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=2 * MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertModel(shape, add_pooling_layer=False)
    model.embeddings.word_embeddings.weight[len(_SPECIAL) :].copy_(torch.from_numpy(vectors_VD))
    model.embeddings.position_embeddings.weight.zero_()
    model.embeddings.token_type_embeddings.weight.zero_()
    for layer in model.encoder.layer:
        layer.attention.output.dense.weight.zero_()
        layer.output.dense.weight.zero_()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


if __name__ == "__main__":
    main()
